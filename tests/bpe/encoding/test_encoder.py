"""Memory that encoders put ids into."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.encoding import encoder as id_memory
from llmgpu.bpe.encoding.encoder import CollectedIds, ReusedMemory


@given(
    counts=st.lists(st.integers(0, 50), max_size=12),
    uses_memory=st.lists(st.booleans(), min_size=12, max_size=12),
    most=st.none() | st.integers(0, 400),
    reserved_from=st.sampled_from([0, 100]),
)
def test_pieces_are_one_array(
    counts: list[int], uses_memory: list[bool], most: int | None, reserved_from: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_memory, "RESERVED_FROM", reserved_from)
        collected = CollectedIds(most)
    pieces = np.split(np.arange(sum(counts), dtype=np.uint32), np.cumsum(counts))
    for piece, uses in zip(pieces, [*uses_memory, False], strict=False):
        ids = piece.copy()
        if uses:
            ids = collected(len(piece))
            ids[:] = piece
        collected.append(ids)
    np.testing.assert_array_equal(collected.take(), np.arange(sum(counts)))


def test_one_small_piece_is_not_copied() -> None:
    collected = CollectedIds(1000)
    ids = np.arange(10, dtype=np.uint32)
    collected.append(ids)
    assert collected.take() is ids


def test_more_than_there_are_addresses_for() -> None:
    collected = CollectedIds(1 << 62)
    for begin in (0, 5):
        ids = collected(5)
        ids[:] = np.arange(begin, begin + 5)
        collected.append(ids)
    np.testing.assert_array_equal(collected.take(), np.arange(10))


def test_limited_addresses_are_not_reserved() -> None:
    script = """
import resource
from llmgpu.bpe.encoding.encoder import RESERVED_FROM, CollectedIds
assert len(CollectedIds(RESERVED_FROM)(1).base) == RESERVED_FROM
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
assert CollectedIds(RESERVED_FROM)(1).base is None
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_memory_is_given_again_once_nothing_refers_to_it() -> None:
    memory = ReusedMemory()
    ids = memory(1000)
    assert len(ids) == 1000
    place = ids.ctypes.data
    part = ids[:600][100:].view(np.uint8)
    del ids
    assert memory(900).ctypes.data != place
    part[:] = 1
    del part
    assert place in [memory(900).ctypes.data for _ in range(2)]
    first, second = memory(900), memory(900)
    assert first.ctypes.data != second.ctypes.data
    assert len(memory(100_000)) == 100_000
    assert len(memory(0)) == 0
