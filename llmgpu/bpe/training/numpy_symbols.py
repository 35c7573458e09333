"""The symbols of all words for the NumPy trainer, linked to their neighbours."""

from __future__ import annotations

import numpy as np

from llmgpu.bpe.training.symbols import SymbolWords, offsets_of
from llmgpu.errors import LlmgpuError

MAX_SYMBOLS = 1 << 20
MAX_POSITIONS = (1 << 31) - 1
SEPARATOR = -1  # symbol on either side of a word
NO_SLOT = 0  # slot of positions at which no pair worth counting starts
MERGING = -1  # slot of the positions that the batch at hand merges


def check_limits(words: SymbolWords, new_symbols: int) -> None:
    """Raise an LlmgpuError if there are more tokens or positions than the trainer can number."""
    tokens = len(words.lengths) + new_symbols
    if tokens > MAX_SYMBOLS:
        raise LlmgpuError(
            f"{tokens} tokens asked for, the trainer can number {MAX_SYMBOLS}; ask for fewer"
        )
    positions = len(words.symbols) + len(words.counts) + 1
    if positions > MAX_POSITIONS:
        raise LlmgpuError(
            f"the distinct pre-tokens take {positions} positions, the trainer can number "
            f"{MAX_POSITIONS}; use --limit, or a pattern that makes shorter pre-tokens"
        )


class LinkedSymbols:
    """The symbols of all words.

    All arrays have one entry for each position: a separator, then the symbols of the first word, a
    separator, and so on. Of a merged symbol only the first position stays linked.
    symbol: int32; the separator is -1.
    following, preceding: int32, the neighbours' positions.
    slot: int32, that of the pair that starts here.
    weight: int64, how often the word occurs; a separator has that of the word before it.
    total: number of symbols in the whole text.
    """

    def __init__(self, words: SymbolWords) -> None:
        self.total = words.total
        spans = np.diff(words.offsets) + 1
        size = int(spans.sum()) + 1
        inside = np.ones(size, np.bool_)
        inside[0] = False
        inside[np.cumsum(spans)] = False
        self.symbol = np.full(size, SEPARATOR, np.int32)
        self.symbol[inside] = words.symbols
        self.weight = np.zeros(size, np.int64)
        self.weight[1:] = np.repeat(words.counts, spans)
        self.following = np.arange(1, size + 1, dtype=np.int32)
        self.preceding = np.arange(-1, size - 1, dtype=np.int32)
        self.slot = np.full(size, NO_SLOT, np.int32)

    def words(self) -> SymbolWords:
        """Return the words as they are now, without lengths."""
        # The neighbours of a position that is no longer linked don't know it any more.
        last = len(self.symbol) - 1
        linked = np.flatnonzero(self.preceding[self.following[:-1]] == np.arange(last))
        linked = np.append(linked, last)
        symbols = self.symbol[linked]
        separators = np.flatnonzero(symbols == SEPARATOR)
        lengths = np.diff(separators) - 1
        kept = lengths > 1
        taken = np.append(False, np.repeat(kept, lengths + 1)) & (symbols != SEPARATOR)
        return SymbolWords(
            symbols=symbols[taken].astype(np.uint32),
            offsets=offsets_of(lengths[kept]),
            counts=self.weight[linked[separators[1:]]][kept],
            lengths=np.empty(0, np.uint32),
            total=self.total,
        )
