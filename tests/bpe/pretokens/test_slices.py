"""Slices put together are the text, and each begins where a pre-token starts."""

from __future__ import annotations

import os
import random
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.pretokens import slices
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.slices import Slice, SliceReader
from llmgpu.cpu.library import library
from llmgpu.errors import InputError
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from llmgpu.text.documents import Piece
from tests.bpe.patterns import start_mask
from tests.reference import bpe as reference

LETTERS = b"ab1 \n\t'.s\x00\xc3\xa9\xff"
DOCUMENTS = st.lists(
    st.lists(st.sampled_from(LETTERS), max_size=60).map(bytes) | st.binary(max_size=40), max_size=8
)
NAMES = st.sampled_from(sorted(PATTERNS))


def read_all(
    documents: list[bytes], size: int, pattern: str, lookahead: int | None = None
) -> list[Slice]:
    """Return slices read into memory for `size` bytes, each with a copy of its text."""
    reader = SliceReader(corpus_from_bytes(documents), pattern, lookahead)
    found = []
    while (piece := reader.read(np.zeros(size + PADDING, np.uint8))) is not None:
        assert piece.apart == (len(piece.buffer) > size + PADDING)
        assert len(piece.buffer) >= piece.length + PADDING
        found.append(piece)
    assert reader.read(np.zeros(size + PADDING, np.uint8)) is None
    return found


@given(DOCUMENTS, NAMES, st.integers(1, 60))
def test_main_parts_joined_are_the_text(documents: list[bytes], pattern: str, size: int) -> None:
    found = read_all(documents, size, pattern)
    assert b"".join(s.text[: s.main_end].tobytes() for s in found) == b"".join(documents)
    assert [piece.end for piece in found] == [False] * (len(found) - 1) + [True]


@given(DOCUMENTS, NAMES, st.integers(1, 60))
def test_pre_tokens_of_slices_are_those_of_the_text(
    documents: list[bytes], pattern: str, size: int
) -> None:
    marks: list[bool] = []
    for piece in read_all(documents, size, pattern):
        assert not piece.continues
        mask = start_mask(piece.text, pattern, piece.starts)
        marks += mask[: piece.main_end].tolist()
    assert marks == reference.pre_token_starts(documents, pattern)


class ShortReads:
    """Gives a few bytes of documents at a time, as a pipe may."""

    def __init__(self, documents: list[bytes], most: int) -> None:
        self._corpus, self._most = corpus_from_bytes(documents), most

    def read_into(self, view: NDArray[np.uint8]) -> Piece:
        return self._corpus.read_into(view[: self._most])


@given(DOCUMENTS, NAMES, st.integers(1, 60), st.integers(1, 7))
def test_short_reads_change_nothing(
    documents: list[bytes], pattern: str, size: int, most: int
) -> None:
    marks: list[bool] = []
    reader = SliceReader(ShortReads(documents, most), pattern)
    while (piece := reader.read(np.zeros(size + PADDING, np.uint8))) is not None:
        mask = start_mask(piece.text, pattern, piece.starts)
        marks += mask[: piece.main_end].tolist()
    assert marks == reference.pre_token_starts(documents, pattern)


@given(DOCUMENTS, NAMES, st.integers(1, 60), st.none() | st.integers(0, 12))
def test_starts_are_conserved(
    documents: list[bytes], pattern: str, size: int, lookahead: int | None
) -> None:
    expected = np.concatenate([[0], np.cumsum([len(d) for d in documents])])[: len(documents)]
    found: list[int] = []
    offset = 0
    for piece in read_all(documents, size, pattern, lookahead):
        assert all(0 <= start <= piece.main_end for start in piece.document_starts)
        found += (piece.document_starts + offset).tolist()
        offset += piece.main_end
    assert found == expected.tolist()


@given(DOCUMENTS, st.integers(0, 12), st.integers(1, 60), st.sampled_from([1, 3, 100]))
def test_cut_anywhere_the_lookahead_follows(
    documents: list[bytes], lookahead: int, more: int, most: int
) -> None:
    text = b"".join(documents)
    starts = {0, *np.cumsum([len(d) for d in documents]).tolist()}
    offset = 0
    reader = SliceReader(ShortReads(documents, most), "none", lookahead)
    while (piece := reader.read(np.zeros(lookahead + more + PADDING, np.uint8))) is not None:
        assert piece.text.tobytes() == text[offset : offset + piece.length]
        assert piece.continues == (offset not in starts)
        offset += piece.main_end
        # Less than the lookahead may follow only where a document ends anyway.
        assert piece.length - piece.main_end >= lookahead or offset in starts


def test_a_long_pre_token_gets_memory_of_its_own() -> None:
    found = read_all([b"a" * 300 + b" b" * 400], 64, "class")
    assert found[0].apart and found[0].main_end >= 300
    assert not found[-1].apart


def test_a_pre_token_beyond_the_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MAX_WORD_BYTES", 1000)
    assert read_all([b"a" * 999], 64, "class")
    with pytest.raises(InputError, match="the limit is"):
        read_all([b"a" * 5000], 64, "class")


class Endless:
    """A text of one letter without an end, as small compressed files may have."""

    def read_into(self, buffer: NDArray[np.uint8]) -> Piece:
        buffer[:] = ord("a")
        return Piece(buffer, np.empty(0, np.int64), closed=False)


@pytest.mark.skipif(library() is None, reason="needs the CPU engine")
@pytest.mark.parametrize("pattern", ["cl100k", "class"])
def test_a_pre_token_beyond_the_limit_takes_less_than_twice_the_limit(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr(slices, "MAX_WORD_BYTES", 1 << 27)
    reader = SliceReader(Endless(), pattern)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="the limit is 134,217,728"):
            reader.read(np.empty(1 << 16, np.uint8))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 27


def test_no_documents() -> None:
    (piece,) = read_all([], 4, "class")
    assert (piece.length, piece.main_end, piece.document_starts.tolist()) == (0, 0, [])


LINES = [
    b"the cat sat",
    b" on a mat, ",
    b"\n",
    b"0123456789" * 30,
    b"\xc3\xa9" * 400,
    b" \x00b",
]


def files_of(folder: Path, chance: random.Random) -> tuple[list[str], bytes]:
    """Write files of text in which some places certainly are cuts, and long ones are not."""
    texts = [b"".join(chance.choices(LINES, [9, 9, 3, 1, 1, 1], k=k)) for k in (900, 0, 3, 700)]
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(text)
    return [str(folder / f"{number}.txt") for number in range(len(texts))], b"".join(texts)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pattern", ["cl100k", "gpt2", "class", "none"])
def test_text_that_is_read_later_is_that_of_slices_read_at_once(
    tmp_path: Path, seed: int, pattern: str
) -> None:
    chance = random.Random(seed)
    files, text = files_of(tmp_path, chance)
    size = chance.choice([520, 700, 3000, 9000])
    expected, left = [], []
    found: list[Slice | None] = []
    with Corpus(files) as corpus:
        reader = SliceReader(corpus, pattern)
        while (piece := reader.read(np.zeros(size + PADDING, np.uint8))) is not None:
            expected.append(piece)
    with Corpus(files) as corpus:
        reader = SliceReader(corpus, pattern)
        while True:
            buffer = np.zeros(size + PADDING, np.uint8)
            if taken := reader.take(len(buffer)):
                left.append((len(found), taken, buffer))
                found.append(None)
            elif (piece := reader.read(buffer)) is not None:
                found.append(piece)
            else:
                break
        counts = corpus.text_bytes, corpus.documents, corpus.bytes_read
    assert counts == (len(text), len(files), len(text))
    assert bool(left) == (pattern != "none")
    chance.shuffle(left)  # and the corpus is closed

    def read(number: int, taken: Slice, buffer: NDArray[np.uint8]) -> None:
        assert taken.read(np.zeros(len(buffer), np.uint8)).offset == taken.offset  # and once more
        found[number] = taken.read(buffer)

    for unread in left:
        thread = threading.Thread(target=read, args=unread)
        thread.start()
        thread.join()
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        np.testing.assert_array_equal(one.text, other.text)
        np.testing.assert_array_equal(one.document_starts, other.document_starts)
        for name in ("main_end", "offset", "end", "closed", "continues", "apart"):
            assert getattr(one, name) == getattr(other, name)


def take_second(corpus: Corpus) -> tuple[SliceReader, Slice]:
    """Read a first slice of a text; return the reader, and the second one unread."""
    reader = SliceReader(corpus, "cl100k")
    assert reader.read(np.zeros(1000 + PADDING, np.uint8)) is not None
    taken = reader.take(2000 + PADDING)
    assert taken is not None
    return reader, taken


def test_text_that_is_gone_when_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"the cat sat on a mat " * 500)
    with Corpus([str(path)]) as corpus:
        _, taken = take_second(corpus)
        path.write_bytes(b"the cat")
        with pytest.raises(InputError, match=r"changed while it was read|shorter than it was"):
            taken.read(np.zeros(2000 + PADDING, np.uint8))


def test_text_that_changes_after_the_last_slice_and_before_it_is_read_is_an_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"the cat sat on a mat " * 500)
    with Corpus([str(path)]) as corpus:
        reader, taken = take_second(corpus)
        while reader.read(np.zeros(5000 + PADDING, np.uint8)) is not None:
            pass
    path.write_bytes(b"the dog sat on a mat " * 500)
    os.utime(path, (1, 1))
    with pytest.raises(InputError, match="was changed while it was read"):
        taken.read(np.zeros(2000 + PADDING, np.uint8))
