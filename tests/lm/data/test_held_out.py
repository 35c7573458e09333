"""What is held out for evaluation, and the rest read as one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.data.held_out import Division, Ranges, divide

SEQ_LEN = 8


class Row:
    """Ids in memory, read as `TokenSource` is."""

    has_mask = False

    def __init__(self, ids: NDArray[np.uint32]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        assert 0 <= start <= start + count <= len(self.ids)
        return self.ids[start : start + count]


def divided(ids: NDArray[Any], held_out: int, parts: int, separator: int | None) -> Division:
    row: Any = Row(ids.astype(np.uint32))
    return divide(row, SEQ_LEN, held_out, parts, separator)


@pytest.mark.parametrize("separator", [None, 0])
@pytest.mark.parametrize(
    ("size", "held_out", "parts"), [(5_000, 6, 4), (6_001, 90, 32), (40, 1, 3)]
)
def test_nothing_that_is_held_out_is_trained_on(
    size: int, held_out: int, parts: int, separator: int | None
) -> None:
    ids = np.random.default_rng(size).integers(0, 30, size)
    division = divided(ids, held_out, parts, separator)
    assert len(division.evaluation) == held_out
    counted = np.zeros(size, int)
    for begin, end in division.training:
        counted[begin:end] += 1
    evaluated = np.zeros(size, int)
    for begin in division.evaluation:
        assert evaluated[begin + 1 : begin + SEQ_LEN + 1].sum() == 0
        evaluated[begin + 1 : begin + SEQ_LEN + 1] += 1
    assert counted.max() == 1 and (counted & evaluated).sum() == 0
    # What is in neither is less than a search for a document.
    assert (counted + evaluated == 0).sum() <= parts * 9 * SEQ_LEN
    if parts > 1 and size > 1_000:
        assert np.diff(division.evaluation).max() > SEQ_LEN
        if separator is not None:
            # Where a separator is near, which it is in most places.
            after = [ids[begin - 1] == separator for begin, _ in division.training[1:]]
            blocks = np.flatnonzero(np.diff(division.evaluation, prepend=-size) > SEQ_LEN)
            at = ids[division.evaluation[blocks]] == separator
            assert np.mean(after) > 0.5 and at.mean() > 0.5


def test_the_last_of_the_text_as_in_runs_of_earlier_versions() -> None:
    division = divided(np.zeros(100), 3, 1, 0)
    assert division.training == [(0, 100 - 3 * SEQ_LEN)]
    assert division.evaluation.tolist() == [75, 83, 91]


def test_ranges_are_read_as_one_row() -> None:
    row: Any = Row(np.arange(50, dtype=np.uint32))
    ranges = Ranges(row, [(3, 7), (10, 11), (20, 40)])
    whole = [*range(3, 7), 10, *range(20, 40)]
    assert len(ranges) == len(whole)
    for start in range(len(whole)):
        for count in (1, 2, 6, len(whole) - start):
            count = min(count, len(whole) - start)
            assert ranges.read(start, count).tolist() == whole[start : start + count]
