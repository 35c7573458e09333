"""Encoding a corpus into a sink, which writes while the next piece is encoded."""

from __future__ import annotations

import gzip
import re
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, OutputError
from llmgpu.progress import no_progress
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from llmgpu.text.sources import resolve_sources
from llmgpu.tokens.filters import Filter, shuffled
from llmgpu.tokens.sinks import TokenSink
from llmgpu.tokens.tokenizing import encode_into, known_bytes, suggesting_gpu
from tests.bpe.encoding.test_encoder_gpu import hostile_text, train
from tests.text.reading import write


class Collecting(TokenSink):
    """Keeps what it gets, and fails at the piece with this number."""

    def __init__(self, failing: int = -1, *, is_direct: bool = False) -> None:
        super().__init__()
        self.is_direct = is_direct
        self.threads: set[int] = set()
        self.pieces: list[NDArray[np.uint32]] = []
        self.text_bytes = 0
        self._failing = failing

    def write(self, piece: EncodedSlice) -> None:
        self.threads.add(threading.get_ident())
        if len(self.pieces) == self._failing:
            raise OutputError("no room")
        self.pieces.append(piece.ids.copy())
        self.text_bytes += piece.text_bytes

    def close(self) -> None:
        raise AssertionError("that is for who opened the sink")

    abort = close


@pytest.mark.parametrize("is_direct", [True, False])
def test_all_ids_are_written_in_order(is_direct: bool) -> None:
    text = hostile_text(3, 50_000)
    vocabulary = train(text)
    sink = Collecting(is_direct=is_direct)
    encode_into(sink, NumpyEncoder(vocabulary, 1000), corpus_from_bytes(text), no_progress)
    assert len(sink.pieces) > 10
    assert sink.text_bytes == len(text)
    assert vocabulary.decode(np.concatenate(sink.pieces)) == text
    assert (sink.threads == {threading.get_ident()}) == is_direct


@pytest.mark.parametrize("filters", [[], [partial(shuffled, seed=0, spans=np.ones(300, np.int64))]])
def test_each_encoded_slice_is_reported(filters: list[Filter]) -> None:
    """Also while documents are stored for shuffling, before the first of them is written."""
    corpus = corpus_from_bytes(hostile_text(3, 20_000))
    sink, seen = Collecting(is_direct=True), list[tuple[int, int]]()

    def progress(phase: str, done: int, total: int | None) -> None:
        assert (phase, done, total) == ("tokenizing", corpus.bytes_read, corpus.total_bytes)
        seen.append((done, len(sink.pieces)))

    encode_into(sink, NumpyEncoder(train(b"abc " * 100), 1000), corpus, progress, filters)
    assert len(seen) > 10 and seen[-1][0] == corpus.bytes_read
    assert [written for _, written in seen] == [0 if filters else k for k in range(len(seen))]


@pytest.mark.parametrize("failing", [0, 3])
def test_what_a_sink_raises_ends_the_encoding(failing: int) -> None:
    text = hostile_text(3, 50_000)
    encoder = NumpyEncoder(train(text), 1000)
    threads = threading.active_count()
    sink = Collecting(failing)
    with pytest.raises(OutputError, match="no room"):
        encode_into(sink, encoder, corpus_from_bytes(text), no_progress)
    assert len(sink.pieces) == failing
    assert threading.active_count() == threads


def test_a_byte_without_a_token_is_in_a_file(tmp_path: Path) -> None:
    expression = PATTERNS["class"].expression
    vocabulary = Vocabulary((b"a", b" "), np.empty((0, 3), np.uint32), "class", expression)
    paths = [write(tmp_path, name, data) for name, data in (("x", b"aa a"), ("y", b"a aba"))]
    options = SpecialOptions(eos=1)
    for normalizer, message in (
        (None, f"0x62 at offset 3 of the text in {paths[1]} has"),
        ("NFC", "in the normalized text, byte 0x62 at offset 7 of"),
    ):
        made = replace(vocabulary, normalizer=normalizer)
        encoder = open_encoder(made, NUMPY, special=options)
        with Corpus(paths) as text, pytest.raises(InputError, match=re.escape(message)):
            encode_into(Collecting(), encoder, text, no_progress)


def test_a_direct_sink_fails_at_once() -> None:
    """Who reads may have gone, and the next piece may never come."""
    text = hostile_text(3, 50_000)
    encoder = NumpyEncoder(train(text), 1000)
    corpus = corpus_from_bytes(text)
    with pytest.raises(OutputError, match="no room"):
        encode_into(Collecting(0, is_direct=True), encoder, corpus, no_progress)
    assert corpus.text_bytes < 3000


def test_what_fails_last_is_raised_too() -> None:
    vocabulary = train(b"abc " * 100)
    with pytest.raises(OutputError, match="no room"):
        encode_into(Collecting(0), NumpyEncoder(vocabulary), corpus_from_bytes(b"abc"), no_progress)


@pytest.mark.parametrize(("is_unknown", "noted"), [(True, 1), (False, 0)])
def test_a_gpu_is_suggested_once_after_much_text_of_unknown_size(
    is_unknown: bool, noted: int
) -> None:
    notes: list[str] = []
    seen: list[int] = []

    def progress(phase: str, done: int, total: int | None) -> None:
        seen.append(done)

    text = corpus_from_bytes(b"x" * 300)
    suggest = suggesting_gpu(text, is_unknown, notes.append, progress, least=200)
    counts = []
    for _ in range(3):
        text.read_into(np.empty(100, np.uint8))
        suggest("tokenizing", text.bytes_read, None)
        counts.append(len(notes))
    assert counts == [0, noted, noted]
    assert seen == [100, 200, 300]
    assert all("--device gpu may be faster" in note for note in notes)


def test_the_size_of_text_is_known_for_plain_files_alone(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_bytes(b"x" * 1000)
    packed.write_bytes(gzip.compress(b"x" * 1000))
    for names, limit, expected in (
        *[([plain], None, 1000), ([plain, plain], None, 2000), ([plain], 10, 10)],
        *[([plain], 5000, 1000), ([plain, packed], None, None), ([packed], 10, None)],
        ([Path("-")], None, None),
    ):
        sources = resolve_sources([str(name) for name in names])
        assert known_bytes(sources, limit) == expected
