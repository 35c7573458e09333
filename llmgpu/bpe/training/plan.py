"""The backend of each phase of a training, and an upper estimate of memory.

- The counts of words are added up in memory until they fill a share of the free memory, and from
  then on in files. Merging needs all words in memory.
- While a text is counted, its number of distinct words is extrapolated from the text read so far.
  Words repeat, so the estimate is too high, unless later text is of another kind. After the whole
  text has been counted, the estimate is close.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.pretokens.custom_regex import HostPattern
from llmgpu.bpe.training import merge_host
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.vocabulary.vocabulary import FEW_NODES, Vocabulary
from llmgpu.bpe.words import count_host
from llmgpu.bpe.words.spilling import default_memory_bytes
from llmgpu.errors import LlmgpuError
from llmgpu.machine import Costs, Memory
from llmgpu.spelling import spelled

if TYPE_CHECKING:
    from llmgpu.gpu.device import Device


@dataclass(frozen=True)
class Plan:
    """The options of a training, and the backend of each phase.

    counting, merging: the backends of these phases.
    notes: messages to the user, one line each.
    """

    options: TrainingOptions
    counting: Backend
    merging: Backend
    notes: tuple[str, ...] = ()

    @property
    def counting_device(self) -> Device | None:
        """The device that counts words; None if the CPU counts them.

        A device can't cut text by expressions, so the CPU does all the work under such a pattern.
        """
        return None if isinstance(self.options.cut, HostPattern) else self.counting.device


def make_plan(options: TrainingOptions, backend: Backend) -> Plan:
    """Choose the backend of each phase.

    Raises LlmgpuError if the engine does not support the options.
    """
    if options.engine == "recount":
        _check_recount(options, backend)
    elif backend.device is not None and options.symbols.unreached:
        note = "the seed has tokens that no merge makes: merging on the CPU, which reuses their ids"
        return Plan(options, backend, NUMPY, (note,))
    return Plan(options, backend, backend)


def _check_recount(options: TrainingOptions, backend: Backend) -> None:
    if backend.device is None:
        raise LlmgpuError(
            f"the recount engine needs a GPU adapter: use {spelled('--device gpu')}, or the "
            "batched engine"
        )
    for what, asked in (
        ("extend a seed vocabulary", options.seed is not None),
        ("limit the length of tokens", options.max_token_length is not None),
        ("make several sizes", bool(options.smaller_sizes)),
    ):
        if asked:
            raise LlmgpuError(f"the recount engine can't {what}: use the batched one")


HOST_BYTES = 192 << 20  # memory of the driver, and memory for transfers to the device
_WRITING_BYTES, _NODE_BYTES, _TOKEN_COPIES = 16 << 20, 60, 4
_UPLOAD = Costs(fixed=HOST_BYTES, per_byte=16, per_word=64)


def words_memory(plan: Plan, words: float, nbytes: float, *, merges: bool = True) -> Memory:
    """Estimate the memory for counting distinct words, and for merging them if `merges` is set.

    words: number of distinct words. nbytes: bytes of all distinct words.
    """
    counting = _counting(plan, words, nbytes)
    merging = _merging(plan, words, nbytes) if merges else Memory(0)
    return Memory(max(counting.host, merging.host), max(counting.device, merging.device))


def recount_memory(plan: Plan, nbytes: int) -> Memory:
    """Return the memory that the recount engine needs for a text of `nbytes` bytes."""
    from llmgpu.bpe.plain import recount_gpu

    return _on_device(plan, HOST_BYTES + 2 * nbytes, recount_gpu.gpu_bytes(nbytes, plan.options))


def writing_memory(vocabularies: Iterable[Vocabulary]) -> int:
    """Return the memory, in bytes, for writing vocabularies. Their tries need the most."""
    sizes = [len(vocabulary.token_data) for vocabulary in vocabularies]
    of_nodes = sum(_NODE_BYTES * min(size, FEW_NODES) for size in sizes)
    return _WRITING_BYTES + _TOKEN_COPIES * sum(sizes) + of_nodes


def _counting(plan: Plan, words: float, nbytes: float) -> Memory:
    if plan.counting_device is not None:
        from llmgpu.bpe.words import count_gpu

        on_device = count_gpu.gpu_bytes(words, nbytes, plan.counting_device)
        return _on_device(plan, _UPLOAD.of(words, nbytes), on_device)
    costs = count_host.memory_costs(plan.options.threads)
    return Memory(min(costs.of(words, nbytes), costs.fixed + default_memory_bytes()))


def _merging(plan: Plan, words: float, nbytes: float) -> Memory:
    if plan.merging.device is None:
        return Memory(merge_host.memory_costs(words, nbytes).of(words, nbytes))
    from llmgpu.bpe.training import batched_gpu

    return _on_device(plan, _UPLOAD.of(words, nbytes), batched_gpu.COSTS.of(words, nbytes))


def _on_device(plan: Plan, host: int, device: int) -> Memory:
    """Return host and device memory. On a software adapter, device memory is host memory, too."""
    return Memory(host + device if plan.merging.is_software else host, device)
