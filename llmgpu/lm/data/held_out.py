"""Which part of the tokens is held out for evaluation, and reading what is left as one row.

What is held out is taken from several parts of the text, a block at the end of each, since texts
are often sorted by where they are from. Where the token between documents is near, a block begins
at one, and training continues after one: the text around a block is joined between documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.data.token_source import TokenSource

SEARCHED_SEQUENCES = 8  # how far a document may begin before the place that was meant
LEAST_PART = 64  # sequences of a part, so that blocks and searches fit

_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True)
class Division:
    """Tokens divided into those to train on and those held out.

    training: ranges of tokens, ascending. evaluation: where the sequences held out begin.
    """

    training: list[tuple[int, int]]
    evaluation: NDArray[np.int64]


class Ranges:
    """Ranges of a source, end to end, read as `TokenSource` is."""

    def __init__(self, source: TokenSource, ranges: Sequence[tuple[int, int]]) -> None:
        """Take ranges of tokens, none of them empty."""
        self._source, self.has_mask = source, source.has_mask
        self._begins = np.array([begin for begin, _ in ranges], np.int64)
        self._ends = np.cumsum([end - begin for begin, end in ranges], dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of ids."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        """Return the ids [start, start + count); see `TokenSource.read`."""
        return self._join(self._source.read, start, count)

    def read_mask(self, start: int, count: int) -> NDArray[np.bool_]:
        """Return which of these ids count in the loss."""
        return self._join(self._source.read_mask, start, count)

    def _join(
        self, read: Callable[[int, int], NDArray[_Number]], start: int, count: int
    ) -> NDArray[_Number]:
        pieces = []
        index = int(np.searchsorted(self._ends, start, side="right"))
        while count:
            left = int(self._ends[index]) - start
            taken = min(count, left)
            before = int(self._ends[index - 1]) if index else 0
            pieces.append(read(int(self._begins[index]) + start - before, taken))
            start, count, index = start + taken, count - taken, index + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def divide(
    source: Ranges, seq_len: int, held_out: int, parts: int, separator: int | None
) -> Division:
    """Hold out sequences of a source of more than seq_len * held_out tokens.

    held_out: sequences in all. parts: the most parts of the text that they are taken from; with one
    they are the last of the text. separator: the id between documents, if any.
    """
    size = len(source)
    parts = max(1, min(parts, held_out, size // (LEAST_PART * seq_len)))
    training: list[tuple[int, int]] = []
    evaluation = []
    resumed = 0
    for part in range(parts):
        end = (part + 1) * size // parts
        sequences = held_out // parts + (part < held_out % parts)
        # The last target of a sequence is the token after it.
        begin = end - sequences * seq_len - 1
        if parts > 1 and separator is not None and sequences:
            least = max(resumed + seq_len, begin - SEARCHED_SEQUENCES * seq_len)
            begin = _last(source, separator, least, begin)
        # The first token that is held out is read there, and predicted here.
        training.append((resumed, max(resumed, begin + 1)))
        evaluation.append(begin + seq_len * np.arange(sequences, dtype=np.int64))
        resumed = begin + sequences * seq_len + 1
        if part < parts - 1 and separator is not None:
            found = _first(source, separator, resumed, end + SEARCHED_SEQUENCES * seq_len)
            resumed = resumed if found is None else found + 1
    training.append((resumed, size))
    used = [(begin, end) for begin, end in training if begin < end]
    return Division(used, np.concatenate(evaluation))


def _last(source: Ranges, separator: int, least: int, begin: int) -> int:
    """Return the last place from `least` to `begin` of the separator; `begin` if there is none."""
    if least > begin:
        return begin
    found = np.flatnonzero(source.read(least, begin - least + 1) == separator)
    return least + int(found[-1]) if len(found) else begin


def _first(source: Ranges, separator: int, begin: int, end: int) -> int | None:
    """Return the first place from `begin` on of the separator, before `end`."""
    found = np.flatnonzero(source.read(begin, end - begin) == separator)
    return begin + int(found[0]) if len(found) else None
