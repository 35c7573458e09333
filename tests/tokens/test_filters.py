"""Chunks of documents, against cutting lists of ids one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.tokens.filters import in_chunks
from llmgpu.tokens.sinks import TokenSink


def slices(documents: list[list[int]], cuts: list[int]) -> Iterator[EncodedSlice]:
    """The ids of documents, cut anywhere."""
    ids = [token for document in documents for token in document]
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    bounds = sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)})
    begin = taken = 0
    for end in bounds:
        is_last = end == len(ids)
        last = len(starts) if is_last else int(np.searchsorted(starts, end))
        part = np.array(ids[begin:end], np.uint32)
        closed = is_last or (last < len(starts) and starts[last] == end)
        mask = part % 3 == 0
        yield EncodedSlice(part, starts[taken:last] - begin, 0, closed, mask)
        begin, taken = end, last


def cut(document: list[int], most: int, overlap: int) -> list[list[int]]:
    """The chunks of a document, one by one."""
    chunks = []
    while len(document) > most:
        chunks.append(document[:most])
        document = document[most - overlap :]
    return [*chunks, document]


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=30), min_size=1, max_size=6),
    st.lists(st.integers(0, 100), max_size=5),
    st.integers(1, 9),
    st.data(),
)
def test_chunks(
    documents: list[list[int]], cuts: list[int], most: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, most - 1))
    sink, in_loss = TokenSink(), 0
    chunks = in_chunks(slices(documents, cuts), most, overlap, np.arange(100))
    found: list[list[int]] = []
    for piece in chunks:
        sink.write(piece)
        bounds = [*piece.document_starts.tolist(), len(piece.ids)]
        assert bounds[0] == 0 and piece.closed and piece.mask is not None
        in_loss += int(piece.mask.sum())
        assert piece.mask.tolist() == [token % 3 == 0 for token in piece.ids.tolist()]
        found += [piece.ids[low:high].tolist() for low, high in pairwise(bounds)]
    expected = [chunk for document in documents for chunk in cut(document, most, overlap)]
    assert found == expected and sink.documents == len(expected)
    assert in_loss == sum(token % 3 == 0 for chunk in expected for token in chunk)
    assert sink.text_bytes == sum(map(sum, expected))
    assert all(len(chunk) <= most for chunk in found)


def test_a_document_that_fits_is_one_chunk() -> None:
    for most, number in ((4, 2), (5, 1), (6, 1)):
        chunks = in_chunks(slices([[1, 2, 3, 4, 5]], []), most, 2, np.zeros(9, np.int64))
        assert sum(len(piece.document_starts) for piece in chunks) == number


@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_a_long_document_is_not_held(cuts: list[int]) -> None:
    """What is decided is handed on at once."""
    chunks = in_chunks(slices([[*range(10)]], cuts), 2, 1, np.zeros(10, np.int64))
    sizes = [len(piece.document_starts) for piece in chunks]
    assert sizes == ([8, 1] if not cuts else [1] * 9) or sum(sizes) == 9
