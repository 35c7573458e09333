"""What holds on every engine: words told apart, documents that are empty, sizes of blocks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.pretokens import slices
from llmgpu.bpe.training import train as training
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text import corpus
from llmgpu.text.corpus import (
    Corpus,
    CorpusOptions,
    corpus_from_bytes,
    corpus_from_documents,
)
from tests.bpe.encoding.test_encoder_gpu import with_pattern
from tests.bpe.encoding.test_matching import make_vocabulary, merge_vocabularies
from tests.conftest import examples
from tests.engines import Engine, count, encode, train
from tests.reference import bpe as reference
from tests.reference import encoding as reference_encoding

# Lengths around those at which a word is stored, hashed or compared in another way.
LENGTHS = [*range(1, 34), 63, 64, 65, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025]


def similar_words() -> list[bytes]:
    """Words of each length that differ in one byte: the first, the last, one of those between."""
    words = []
    for length in LENGTHS:
        places = range(length) if length < 34 else [0, 7, 8, length // 2, length - 9, length - 1]
        words.append(b"a" * length)
        words += [b"a" * place + b"b" + b"a" * (length - place - 1) for place in places]
    return words


def expected_counts(documents: list[bytes], pattern: str) -> Counter[bytes]:
    return Counter(word for text in documents for word in reference.pre_tokens(text, pattern))


@pytest.mark.parametrize(
    ("collide", "slice_bytes"),
    [
        (False, None),
        (True, 20_000),
        pytest.param(False, 20_000, marks=pytest.mark.slow),
        pytest.param(True, None, marks=pytest.mark.slow),
    ],
)
def test_words_that_differ_in_one_byte(
    engine: Engine, collide: bool, slice_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared byte by byte, also where the hashes of all words agree."""
    if collide:
        engine = engine.colliding(monkeypatch)
    words = similar_words()
    documents = [b"\n".join(words), b"\n".join(words[::-1]), b"\n".join(words[::3])]
    assert count(engine, documents, "class", slice_bytes) == expected_counts(documents, "class")
    encoder = engine.encoder(byte_vocabulary("class", "hf"), slice_bytes)
    assert encode(encoder, documents) == [list(text) for text in documents]


def test_many_words_of_many_ids(engine: Engine) -> None:
    """Up to 256 ids a word, and more than 65,536 in all: counts and places need their bits."""
    words = [bytes([97 + k % 26, 97 + k // 26]) * (96 + k % 33) for k in range(400)]
    documents = [b"\n".join(words), b"\n".join(words[::-1])]
    assert max(map(len, words)) == 256 and sum(map(len, words)) > 1 << 16
    encoder = engine.encoder(byte_vocabulary("class", "hf"), 300_000)
    assert encode(encoder, documents) == [list(text) for text in documents]


EMPTY_AND_NOT = st.lists(
    st.sampled_from([b"", b"", b"a" * 32, b"b" * 64, b"ab " * 32, b"c", b"d" * 31]), max_size=12
)


@settings(max_examples=examples(20))
@given(
    documents=EMPTY_AND_NOT,
    slice_bytes=st.sampled_from([64, 96, 4096]),
    match=st.sampled_from(["bpe", "greedy"]),
)
@pytest.mark.parametrize("pattern", ["class", "none"])
def test_empty_documents_where_slices_and_blocks_end(
    engine: Engine, pattern: str, documents: list[bytes], slice_bytes: int, match: str
) -> None:
    vocabulary = byte_vocabulary(pattern, "hf").with_match(match)
    encoder = engine.encoder(vocabulary, slice_bytes)
    assert encode(encoder, documents) == [list(text) for text in documents]


@settings(max_examples=examples(20))
@given(
    documents=st.lists(st.sampled_from([b"", b"", b"", b"a", b"b c" * 9]), max_size=30),
    most=st.integers(1, 5),
    match=st.sampled_from(["bpe", "greedy"]),
    reading=st.sampled_from(["whole", "one by one", "separated"]),
)
def test_many_empty_documents_end_a_slice(
    engine: Engine, documents: list[bytes], most: int, match: str, reading: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (corpus, slices):
            patch.setattr(module, "MANY_DOCUMENTS", most)
        vocabulary = byte_vocabulary("class", "hf").with_match(match)
        encoder = engine.encoder(vocabulary, 64)
        options = CorpusOptions(separators=(b"|",))
        source = {
            "whole": lambda: corpus_from_bytes(documents),
            "one by one": lambda: corpus_from_documents(documents),
            "separated": lambda: corpus_from_documents([b"|".join(documents)], options),
        }[reading if documents else "whole"]()
        assert encode(encoder, documents, source) == [list(text) for text in documents]
        assert count(engine, documents, "class", 1100) == expected_counts(documents, "class")


def test_a_slice_has_a_limited_number_of_empty_documents(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stream of empty documents would take memory without end, in one slice of no text."""
    for module in (corpus, slices):
        monkeypatch.setattr(module, "MANY_DOCUMENTS", 1000)
    (tmp_path / "t.jsonl").write_text('{"text":""}\n' * 400_000)
    encoder = engine.encoder(byte_vocabulary("gpt2", "hf"))
    pieces = list(encoder.encode(Corpus([str(tmp_path / "t.jsonl")], CorpusOptions())))
    assert sum(len(piece.document_starts) for piece in pieces) == 400_000
    # A block of the file is parsed at once, and has all its documents.
    assert max(len(piece.document_starts) for piece in pieces) < 200_000


@settings(max_examples=examples(15))
@given(vocabulary=merge_vocabularies(), documents=st.lists(st.text("abc ", max_size=60)))
def test_ids_of_unusual_vocabularies(
    engine: Engine, vocabulary: Vocabulary, documents: list[str]
) -> None:
    made = with_pattern(vocabulary, "class")
    texts = [text.encode() for text in documents]
    expected = [reference_encoding.bpe_encode(made, text) for text in texts]
    assert encode(engine.encoder(made, 64), texts) == expected


@pytest.mark.parametrize("whole", [True, False])
def test_words_that_are_tokens_no_merges_lead_to(engine: Engine, whole: bool) -> None:
    """Taken whole if the vocabulary says so, whatever way their lengths are stored; else merged."""
    words = [(b"abcdefghij" * 30)[:length] for length in (2, 3, 7, 8, 9, 15, 16, 17, 40, 256, 257)]
    single = [bytes([value]) for value in range(256)]
    merges = [(ord("c"), ord("d"), 256)]
    made = make_vocabulary([*single, b"cd", *words], merges, ignore_merges=whole)
    vocabulary = with_pattern(made, "class")
    documents = [*words, *(b"c" + word for word in words), b"\n".join([*words, *words])]
    expected = [reference_encoding.bpe_encode(vocabulary, document) for document in documents]
    assert encode(engine.encoder(vocabulary, 4096), documents) == expected
    assert len(expected[0]) == (1 if whole else 2)


@pytest.mark.parametrize("method", ["batched", "recount"])
def test_documents_in_blocks_of_the_reader(
    engine: Engine, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pair crosses the end of a document, in whichever block of the text it is read."""
    if method == "recount" and engine.backend.device is None:
        pytest.skip("recounts on adapters")
    monkeypatch.setattr(training, "READ_BYTES", 64)
    documents = [b"ab" * (k % 7) + b"ba" * (k % 5) for k in range(60)]
    options = TrainingOptions(262, pattern="none", tie="bytes", engine=method)
    result = train(engine, documents, options)
    merges = reference.train(documents, 6, "none", "bytes", 2)
    assert [(left, right) for left, right, _ in result.vocabulary.merges.tolist()] == merges
