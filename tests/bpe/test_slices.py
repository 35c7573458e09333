"""Slices put together are the text, wherever they are cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.corpus import corpus_from_bytes
from llmgpu.bpe.pattern import CONTEXT
from llmgpu.bpe.slices import Slice, SliceReader


def _read_all(documents: list[bytes], size: int, lookahead: int) -> list[tuple[Slice, bytes]]:
    reader = SliceReader(corpus_from_bytes(documents), lookahead)
    buffer = np.zeros(size, np.uint8)
    slices = []
    while (piece := reader.read(buffer)) is not None:
        slices.append((piece, buffer[: piece.length].tobytes()))
    assert reader.read(buffer) is None
    return slices


documents_strategy = st.lists(st.binary(max_size=40), max_size=8)


@given(documents_strategy, st.integers(0, 12), st.integers(1, 60))
def test_main_parts_joined_are_the_text(documents: list[bytes], lookahead: int, more: int) -> None:
    slices = _read_all(documents, lookahead + more, lookahead)
    text = b"".join(documents)
    assert b"".join(data[: piece.main_end] for piece, data in slices) == text
    assert [piece.end for piece, _ in slices] == [False] * (len(slices) - 1) + [True]


@given(documents_strategy, st.integers(0, 12), st.integers(1, 60))
def test_starts_are_conserved(documents: list[bytes], lookahead: int, more: int) -> None:
    expected = np.concatenate([[0], np.cumsum([len(d) for d in documents])])[: len(documents)]
    found: list[int] = []
    offset = 0
    for piece, _ in _read_all(documents, lookahead + more, lookahead):
        assert all(0 <= start <= piece.main_end for start in piece.document_starts)
        found += (piece.document_starts + offset).tolist()
        offset += piece.main_end
    assert found == expected.tolist()


@given(documents_strategy, st.integers(0, 12), st.integers(1, 60))
def test_lookahead_is_what_follows(documents: list[bytes], lookahead: int, more: int) -> None:
    text = b"".join(documents)
    ends = set(np.cumsum([len(d) for d in documents]).tolist())
    offset = 0
    for piece, data in _read_all(documents, lookahead + more, lookahead):
        assert data == text[offset : offset + piece.length]
        offset += piece.main_end
        # Less than the lookahead may follow only where a document ends anyway.
        assert piece.length - piece.main_end >= lookahead or offset in ends | {0}


@given(documents_strategy, st.integers(0, 12), st.integers(1, 60))
def test_context_is_what_is_before_in_the_document(
    documents: list[bytes], lookahead: int, more: int
) -> None:
    text = b"".join(documents)
    starts = [0, *np.cumsum([len(d) for d in documents]).tolist()]
    offset = 0
    for piece, _ in _read_all(documents, lookahead + more, lookahead):
        begin = max(start for start in starts if start <= offset)
        assert piece.context == text[max(begin, offset - CONTEXT) : offset]
        offset += piece.main_end


def test_a_long_text_in_three_slices() -> None:
    slices = _read_all([b"abcdefgh", b"i"], size=6, lookahead=2)
    assert [(data, piece.main_end, piece.context) for piece, data in slices] == [
        (b"abcdef", 4, b""),
        (b"efghi", 5, b"abcd"),
    ]
    assert [piece.document_starts.tolist() for piece, _ in slices] == [[0], [4]]


def test_no_documents() -> None:
    ((piece, data),) = _read_all([], size=4, lookahead=2)
    assert (data, piece.main_end, piece.document_starts.tolist()) == (b"", 0, [])
