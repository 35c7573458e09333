"""Before training: where each phase will run, and how much memory it will take."""

from __future__ import annotations

from dataclasses import dataclass

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.errors import LlmgpuError

NUMPY_BYTES = 256 << 20  # buffers of counting and merging, for any text
HOST_BYTES = 192 << 20  # staging memory and what the driver takes


@dataclass(frozen=True)
class Plan:
    """What is trained, where the phases run, and what people should know about it.

    counting, merging: the backends of these phases.
    notes: a line each.
    """

    options: TrainingOptions
    counting: Backend
    merging: Backend
    notes: tuple[str, ...] = ()


def make_plan(options: TrainingOptions, backend: Backend) -> Plan:
    """Choose where each phase runs.

    Raises LlmgpuError if the engine does not support what the options ask for.
    """
    if options.engine == "recount":
        _check_recount(options, backend)
        return Plan(options, backend, backend)
    if backend.device is not None and options.symbols.unreached:
        note = (
            "the seed has tokens that no merge makes: merging on NumPy, which can reuse their ids"
        )
        return Plan(options, backend, NUMPY, (note,))
    return Plan(options, backend, backend)


def _check_recount(options: TrainingOptions, backend: Backend) -> None:
    if backend.device is None:
        raise LlmgpuError(
            "the recount engine needs a GPU adapter: use --device gpu, or the batched engine"
        )
    for what, asked in (
        ("extend a seed vocabulary", options.seed is not None),
        ("limit the length of tokens", options.max_token_length is not None),
        ("make several sizes", bool(options.smaller_sizes)),
    ):
        if asked:
            raise LlmgpuError(f"the recount engine can't {what}: use the batched one")


def estimate_memory(plan: Plan, text_bytes: int) -> tuple[int, int]:
    """Estimate the bytes of memory that training takes, on the host and on the device."""
    backend = plan.merging
    # The distinct words of a text grow slower than it; this is the rate of a small one.
    words_bytes = min(text_bytes, 64 << 20) // 2 + text_bytes // 40
    if backend.device is None:
        return NUMPY_BYTES + 30 * words_bytes, 0
    if plan.options.engine == "batched":
        from llmgpu.bpe.training import batched_gpu
        from llmgpu.bpe.words import count_gpu

        host = HOST_BYTES + 12 * words_bytes
        on_device = count_gpu.gpu_bytes(words_bytes) + batched_gpu.gpu_bytes(words_bytes)
    else:
        from llmgpu.bpe.plain import recount_gpu

        host = HOST_BYTES + 2 * text_bytes
        on_device = recount_gpu.gpu_bytes(text_bytes)
    return host + (on_device if backend.is_software else 0), on_device
