"""How much memory training takes: an upper bound, by the words that were counted so far.

Words are added up in memory until they take their share of what is free, then in files; merging
needs all of them in memory. While a text is counted, the words of the rest are taken to be as many
for each byte as those so far. There are fewer, since words repeat, so that is a bound, too, unless
the texts are different in kind; it is close once all is read.
"""

from __future__ import annotations

from llmgpu.bpe.training import merge_host
from llmgpu.bpe.training.plan import Plan
from llmgpu.bpe.words import count_host
from llmgpu.bpe.words.spilling import default_memory_bytes
from llmgpu.memory import Costs, Memory

HOST_BYTES = 192 << 20  # staging memory and what the driver takes
_UPLOAD = Costs(fixed=HOST_BYTES, per_byte=16, per_word=64)


def words_memory(plan: Plan, words: float, nbytes: float, *, merges: bool = True) -> Memory:
    """Return what counting, and merging unless it is left out, take for distinct words.

    words: how many. nbytes: how many they have.
    """
    counting, merging = _counting(plan, words, nbytes), Memory(0)
    if merges:
        merging = _merging(plan, words, nbytes)
    return Memory(max(counting.host, merging.host), max(counting.device, merging.device))


def recount_memory(plan: Plan, text_bytes: int) -> Memory:
    """Return what the recount engine takes for a text."""
    from llmgpu.bpe.plain import recount_gpu

    return _on_device(plan, HOST_BYTES + 2 * text_bytes, recount_gpu.gpu_bytes(text_bytes))


def _counting(plan: Plan, words: float, nbytes: float) -> Memory:
    if plan.counting.device is not None:
        from llmgpu.bpe.words import count_gpu

        on_device = count_gpu.gpu_bytes(words, nbytes, plan.counting.device)
        return _on_device(plan, _UPLOAD.of(words, nbytes), on_device)
    costs = count_host.memory_costs(plan.options.threads)
    return Memory(min(costs.of(words, nbytes), costs.fixed + default_memory_bytes()))


def _merging(plan: Plan, words: float, nbytes: float) -> Memory:
    if plan.merging.device is None:
        return Memory(merge_host.memory_costs(words, nbytes).of(words, nbytes))
    from llmgpu.bpe.training import batched_gpu

    return _on_device(plan, _UPLOAD.of(words, nbytes), batched_gpu.COSTS.of(words, nbytes))


def _on_device(plan: Plan, host: int, device: int) -> Memory:
    """Return the sum on the host if that is where a software adapter has its memory."""
    return Memory(host + device if plan.merging.is_software else host, device)
