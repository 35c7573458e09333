"""The batched trainer on NumPy: exactly the merges of the sequential algorithm, many at a time.

BPE training merges the most frequent pair of neighbouring symbols, again and again. Of the pairs
ranked by (count descending, rank of the left symbol, rank of the right symbol), the longest prefix
in which no pair's left symbol is any pair's right symbol can be merged in one pass:

- Merging (a, b) changes the counts of pairs (p, a) and (b, n) only, and none of those is in the
  prefix; nor do occurrences of its pairs overlap, since they would share a symbol.
- A new pair can't outrank a pair of the prefix. It is at most as frequent as the pair (p, a) or
  (b, n) it came from, and where it is just as frequent it ranks behind, because a new symbol ranks
  behind all older ones.
- A pair (a, a) is a prefix of its own; its occurrences are merged from the left.

The parts are the files beside this one: linked symbols, pairs and where they are, the
selection of a batch, its application, and the same for merges that are known, the replay.

Decisions:

- Words are counted once and weighted. Their symbols lie end to end with a separator around each
  word, and are linked forwards and backwards, so a merge touches nothing but its neighbours.
- A merge that spells a token which is there already, but which no merge has made (see
  `symbols.Spellings`), makes a symbol that is not new: its pairs may outrank what
  follows in the prefix, so the prefix ends with it. Apart from that it is as good as new, because
  it is nowhere in the words yet.
- Every pair has a slot, and every position has the slot of the pair that starts there. A pair
  gains occurrences only in the batch that makes it, as its newer symbol is made there. So its
  positions are one range of a list; those whose slot has changed since are stale.
- A pair that is too rare when it is made stays too rare, and one that is too long stays too long:
  it gets no slot of its own. What it would be merged to is longer yet, so pairs left out for their
  length change nothing of the above.
- Candidates for the next batch are taken from a short list of the best-ranked pairs, which is
  filled again from all pairs when it runs empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray
from llmgpu.bpe.training.merges import OnMerges, SymbolMerges
from llmgpu.bpe.training.numpy_application import merge_batch
from llmgpu.bpe.training.numpy_pairs import Keep, PairIndex, count_pairs, pairs_of_keys, split_keys
from llmgpu.bpe.training.numpy_selection import ShortList
from llmgpu.bpe.training.numpy_symbols import LinkedSymbols, check_limits
from llmgpu.bpe.training.symbols import Spellings, SymbolWords
from llmgpu.progress import Progress, no_progress

MAX_BATCH = 256  # merges in one pass


def train(
    words: SymbolWords,
    *,
    merges: int,
    min_frequency: int = 2,
    max_token_length: int | None = None,
    progress: Progress = no_progress,
    on_merges: OnMerges | None = None,
    spellings: Spellings | None = None,
) -> SymbolMerges:
    """Learn merges that make up to `merges` new symbols.

    min_frequency: rarer pairs are not merged; 0 counts as 1.
    max_token_length: pairs of more bytes are not merged. Hugging Face's trainer compares otherwise:
        its max_token_length is one more than this, and never keeps two bytes apart.
    on_merges: takes the merges of each batch.
    spellings: symbols that merging may still reach; what is merged is added to it. A merge that
        reaches one makes no new symbol.

    Memory: about 60 bytes for each symbol of the words, half of it for the positions of pairs, and
    up to 60 for each distinct pair.

    Raises:
        LlmgpuError: more tokens or more positions than the trainer can number.
    """
    check_limits(words, merges)
    least = max(min_frequency, 1)
    lengths = GrowableArray(np.int64, len(words.lengths) + merges)
    lengths.append(words.lengths)
    symbols = LinkedSymbols(words)
    pairs = PairIndex(_worth_merging(least, max_token_length, lengths))
    count_pairs(symbols, pairs)
    short_list = ShortList(pairs, least, spellings)
    log = _Log(on_merges)
    while len(lengths) < len(words.lengths) + merges:
        missing = len(words.lengths) + merges - len(lengths)
        batch = short_list.next_batch(min(missing, MAX_BATCH), len(lengths))
        if len(batch.slots) == 0:
            break
        keys, counts = pairs.keys.values[batch.slots], pairs.counts.values[batch.slots]
        left, right = split_keys(keys)
        new = batch.results >= len(lengths)
        lengths.append((lengths.values[left] + lengths.values[right])[new])
        merge_batch(symbols, pairs, batch)
        log.add(keys, counts)
        progress("merging", len(lengths) - len(words.lengths), merges)
    return SymbolMerges(*log.merges(), symbols.total, log.batches)


def _worth_merging(
    least: int, max_token_length: int | None, lengths: GrowableArray[np.int64]
) -> Keep:
    """Return what says which pairs, by keys and counts, may be merged now or later."""

    def keep(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        kept = counts >= least
        if max_token_length is not None:
            left, right = split_keys(keys)
            kept &= lengths.values[left] + lengths.values[right] <= max_token_length
        return kept

    return keep


class _Log:
    """The merges made: their keys and counts, batch by batch."""

    def __init__(self, on_merges: OnMerges | None) -> None:
        self._keys = GrowableArray(np.int64)
        self._counts = GrowableArray(np.int64)
        self._on_merges = on_merges
        self.batches = 0

    def add(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.batches += 1
        self._keys.append(keys)
        self._counts.append(counts)
        if self._on_merges is not None:
            self._on_merges(pairs_of_keys(keys), counts)

    def merges(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        return pairs_of_keys(self._keys.values), self._counts.values
