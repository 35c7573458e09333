"""Arrays that grow, copies of ranges and sorted byte strings against Python's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe import arrays
from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges, is_ascending, sort_by_bytes

# Strings that differ little: in length only (NUL bytes), in one byte, behind many equal ones.
STRING = st.one_of(
    st.lists(st.sampled_from(b"\x00\x00a\xff"), max_size=20).map(bytes),
    st.builds(lambda size, end: b"\x00" * size + end, st.integers(1, 600), st.binary(max_size=2)),
)
LONG = st.sampled_from([7, 14, arrays._LONG_BYTES])


def joined(strings: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    offsets = np.cumsum([0, *map(len, strings)], dtype=np.int64)
    return np.frombuffer(b"".join(strings), np.uint8), offsets


@given(pieces=st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=9))
def test_growable_array_is_a_list(pieces: list[list[int]]) -> None:
    array = GrowableArray(np.int32, capacity=1)
    for piece in pieces:
        array.append(np.array(piece, np.int64))
    flat = [value for piece in pieces for value in piece]
    assert array.values.tolist() == flat
    assert len(array) == len(flat)
    assert array.values.dtype == np.int32


@pytest.mark.parametrize("longest", [3, 3000, 200_000])
def test_concatenate_ranges(longest: int) -> None:
    values = np.arange(300_000)
    rng = np.random.default_rng(longest)
    starts, lengths = rng.integers(0, 100_000, 50), rng.integers(0, longest, 50)
    ranges = [values[s : s + n] for s, n in zip(starts, lengths, strict=True)]
    assert np.array_equal(concatenate_ranges(values, starts, lengths), np.concatenate(ranges))


@settings(deadline=None)
@given(strings=st.lists(STRING, max_size=30), long=LONG)
def test_sorting_byte_strings(strings: list[bytes], long: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_LONG_BYTES", long)
        order, same = sort_by_bytes(*joined(strings))
    ordered = [strings[place] for place in order]
    assert ordered == sorted(strings)
    repeated = [i > 0 and string == ordered[i - 1] for i, string in enumerate(ordered)]
    assert same.tolist() == repeated


@settings(deadline=None)
@given(strings=st.lists(STRING, max_size=8), long=LONG)
def test_ascending_byte_strings(strings: list[bytes], long: int) -> None:
    ascending = sorted(set(strings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_LONG_BYTES", long)
        for candidate in (strings, sorted(strings), ascending):
            assert is_ascending(*joined(candidate)) == (candidate == ascending)
