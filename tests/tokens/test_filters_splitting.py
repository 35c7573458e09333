"""Splits of a tokenized text, by taking it apart document by document."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, OutputError
from llmgpu.progress import no_progress
from llmgpu.text.corpus import corpus_from_bytes
from llmgpu.tokens import filters
from llmgpu.tokens.filters import (
    SplitSink,
    check_shares,
    drawn_owners,
    first_tokens,
    shuffled,
    spans_without,
    split_name,
    uniform,
)
from llmgpu.tokens.tokenizing import encode_into
from tests.bpe.encoding.test_encoder_gpu import hostile_text, train
from tests.tokens.test_tokenizing import Collecting

ABSENT = 1  # a byte
TEXT = hostile_text(3, 2_000).replace(bytes([ABSENT]), b"")


class Kept(Collecting):
    """Keeps the ids of each document, and how it ended."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.found: list[list[int]] = []
        self.ended = ""
        self._fails = fails

    def write(self, piece: EncodedSlice) -> None:
        starts = piece.document_starts.tolist()
        bounds = [*starts, len(piece.ids)]
        if bounds[0]:
            self.found[-1] += piece.ids[: bounds[0]].tolist()
        for begin, end in pairwise(bounds):
            self.found.append(piece.ids[begin:end].tolist())
        self.ids += len(piece.ids)
        self.documents += len(starts)
        self.text_bytes += piece.text_bytes

    def close(self) -> None:
        if self._fails:
            raise OutputError("no room")
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


@cache
def vocabulary() -> Vocabulary:
    return train(TEXT)


@cache
def ids_of_each(documents: tuple[bytes, ...], eos: int | None = None) -> list[list[int]]:
    """Return the ids of each document, encoded alone."""
    encoder = open_encoder(vocabulary(), NUMPY, special=SpecialOptions(eos=eos))
    encoded = (encoder.encode(corpus_from_bytes(document)) for document in documents)
    return [[i for piece in pieces for i in piece.ids.tolist()] for pieces in encoded]


def split_mix(seed: int, number: int) -> float:
    """Return what a document draws, in whole numbers of any size."""
    word = (number * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return ((word ^ word >> 31) >> 11) / 2**53


@pytest.mark.parametrize("slice_bytes", [50, 700, 1 << 20])
def test_documents_go_where_their_number_says(slice_bytes: int) -> None:
    documents = [part for part in TEXT.split(b"e") for _ in range(2)]
    documents[5:5] = [b"", b"", b""]
    expected: list[list[list[int]]] = [[], [], []]
    for number, ids in enumerate(ids_of_each(tuple(documents))):
        drawn = split_mix(7, number)
        part = 1 if drawn < 0.2 else 2 if drawn < 0.3 else 0
        expected[part].append(ids)
    sinks = [Kept(), Kept(), Kept()]
    encoder = open_encoder(vocabulary(), NUMPY, slice_bytes)
    spans = spans_without(vocabulary(), SpecialOptions())
    with SplitSink(sinks, drawn_owners([0.2, 0.1], 7), spans) as split:
        encode_into(split, encoder, corpus_from_bytes(documents), no_progress)
    assert [sink.found for sink in sinks] == expected
    assert [sink.ended for sink in sinks] == ["closed"] * 3
    assert (split.documents, split.ids) == (len(documents), sum(sink.ids for sink in sinks))
    assert sum(sink.text_bytes for sink in sinks) == sum(map(len, documents))


def test_a_sink_that_fails_takes_those_after_it_along() -> None:
    sinks = [Kept(), Kept(fails=True), Kept()]
    split = SplitSink(sinks, drawn_owners([0.1, 0.1], 0), np.ones(300, np.int64))
    with pytest.raises(OutputError), split:
        pass
    assert [sink.ended for sink in sinks] == ["closed", "", "aborted"]
    with (
        pytest.raises(KeyError),
        SplitSink(sinks, drawn_owners([0.1, 0.1], 0), np.ones(300, np.int64)),
    ):
        raise KeyError
    assert [sink.ended for sink in sinks] == ["aborted"] * 3


def test_draws_are_even_and_those_of_the_seed() -> None:
    numbers = np.arange(20_000, dtype=np.uint64)
    for seed in (0, 1, 2**63 + 5):
        drawn = uniform(seed, numbers)
        assert drawn[:50].tolist() == [split_mix(seed, number) for number in range(50)]
        counts = np.histogram(drawn, 10, (0, 1))[0]
        assert abs(counts - 2000).max() < 200
    assert not np.array_equal(uniform(0, numbers), uniform(1, numbers))


def test_names_of_parts() -> None:
    assert split_name("train.bin", "val") == "val.bin"
    assert split_name("a/owt-train.npy", "val") == "a/owt-val.npy"
    assert split_name("a.b/x.bin", "test") == "a.b/x-test.bin"
    assert split_name("x", "val") == "x-val"


def test_shares_leave_something() -> None:
    check_shares({"a": 0.5, "b": 0.4999})
    with pytest.raises(InputError, match="100% of the documents"):
        check_shares({"a": 0.5, "b": 0.5})


@pytest.mark.parametrize("most", [1, 2, 99, 100, 250, 600, 1_000_000])
def test_the_first_tokens(most: int) -> None:
    documents = [b"", b"low low", *TEXT.split(b"e"), b""]
    around = SpecialOptions(eos=ABSENT)
    spans = spans_without(vocabulary(), around)
    ids: list[int] = []
    begins = []
    for own in ids_of_each(tuple(documents), eos=ABSENT):
        begins.append(len(ids))
        ids += own
    encoder, sink = open_encoder(vocabulary(), NUMPY, 200, special=around), Kept()
    filters = [partial(first_tokens, most=most, spans=spans)]
    encode_into(sink, encoder, corpus_from_bytes(documents), no_progress, filters)
    taken = ids[:most]
    assert [i for document in sink.found for i in document] == taken
    assert len(sink.found) == sink.documents == sum(begin < most for begin in begins)
    assert sink.text_bytes == sum(int(spans[i]) for i in taken)


def shuffle(documents: list[list[int]], pieces: int, seed: int) -> Kept:
    """The documents after shuffling, given in pieces cut anywhere."""
    ids = np.array([i for document in documents for i in document], np.uint32)
    lengths = np.array([len(document) for document in documents], np.int64)

    def slices() -> Iterator[EncodedSlice]:
        starts, done = np.cumsum(lengths) - lengths, 0
        for part in np.array_split(ids, pieces):
            last = done + len(part) == len(ids)
            here = starts[(starts >= done) & ((starts < done + len(part)) | last)] - done
            yield EncodedSlice(part, here, 0)
            starts = starts[len(here) :] if not last else starts[:0]
            done += len(part)

    kept, given = Kept(), slices()
    for piece in shuffled(given, seed, np.arange(100)):
        assert next(given, None) is None  # all slices are taken before the first one is yielded
        kept.write(piece)
    return kept


@pytest.mark.parametrize("piece_ids", [1, 3, 1 << 20])
def test_shuffling(monkeypatch: pytest.MonkeyPatch, piece_ids: int) -> None:
    monkeypatch.setattr(filters, "_PIECE_IDS", piece_ids)
    documents = [[k] * (k % 4) for k in range(1, 60)]
    found = {
        (pieces, seed): shuffle(documents, pieces, seed) for pieces in (1, 7) for seed in (0, 5)
    }
    for kept in found.values():
        assert sorted(kept.found) == sorted(documents) and kept.found != documents
        assert kept.text_bytes == sum(map(sum, documents))
    assert found[1, 0].found == found[7, 0].found != found[1, 5].found == found[7, 5].found
    # The order is that of numbers drawn for each document.
    drawn = uniform(filters._SHUFFLING, np.arange(len(documents), dtype=np.uint64))
    assert found[1, 0].found == [documents[k] for k in np.argsort(drawn)]


def test_shuffling_nothing_and_failing() -> None:
    assert shuffle([], 1, 0).found == []
    assert shuffle([[], []], 1, 0).found == [[], []]
    with pytest.raises(OutputError, match=r"can't write /missing/a temporary file"):
        next(shuffled(iter([]), 0, np.arange(100), "/missing"))
