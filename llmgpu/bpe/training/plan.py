"""Where the phases of a training run, and what people should know about it."""

from __future__ import annotations

from dataclasses import dataclass

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.errors import LlmgpuError


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
        note = "the seed has tokens that no merge makes: merging on the CPU, which reuses their ids"
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
