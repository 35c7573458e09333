"""Places of ids: each slice follows the one before, whichever is done first."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from itertools import accumulate, permutations

import numpy as np
import pytest

from llmgpu.bpe.encoding import encoder
from llmgpu.bpe.encoding.encoder import CollectedIds
from llmgpu.bpe.encoding.places import Places

COUNTS = 3, 0, 5, 1


def collected(monkeypatch: pytest.MonkeyPatch, ids: int) -> CollectedIds:
    monkeypatch.setattr(encoder, "RESERVED_FROM", 1)
    made = CollectedIds(20)
    made.append(np.arange(ids, dtype=np.uint32))
    return made


@pytest.mark.parametrize("order", [*permutations(range(len(COUNTS)))])
def test_slices_follow_one_another(monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]) -> None:
    places = Places(collected(monkeypatch, 2))
    begins = dict.fromkeys(order, -1)
    for done, number in enumerate(order):
        may_be_placed = set(range(number)) <= set(order[:done])
        assert (places.next(number, 1) is not None) == may_be_placed
        places.give(number, COUNTS[number], partial(begins.__setitem__, number))
    expected = [*accumulate(COUNTS, initial=2)][:-1]
    assert [begins[number] for number in sorted(begins)] == expected


def test_a_place_is_in_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = collected(monkeypatch, 2)
    places = Places(ids)
    place = places.next(0, 3)
    assert place is not None
    place[:] = 7
    ids.append(place)
    assert ids.take().tolist() == [0, 1, 7, 7, 7]
    assert places.room == 20
    assert places.at(17, 3) is not None and places.at(17, 4) is None


def test_who_waits_no_more_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(collected(monkeypatch, 0))
    first: Future[int] = Future()
    second: Future[int] = Future()
    first.cancel()
    places.give(1, 4, second.set_result)
    places.give(0, 5, first.set_result)
    assert second.result(0) == 5
