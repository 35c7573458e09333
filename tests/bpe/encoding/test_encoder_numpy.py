"""The encoders on the host against a plain greedy loop, wherever the text is cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.encoding import encoder_numpy
from llmgpu.bpe.encoding.encoder_host import HostEncoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder, SliceEncoder
from llmgpu.bpe.encoding.matching import GreedyMatcher
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.training import batched_numpy
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import MergeTask, byte_symbols, translate
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.count_host import count_words
from llmgpu.errors import InputError
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.host_encoders import HOST_ENCODERS
from tests.bpe.pretokens.test_pattern import PIECES
from tests.bpe.vocabularies import build_vocabulary
from tests.bpe.word_lists import byte_ids
from tests.conftest import examples
from tests.reference import bpe as reference

BYTES = [bytes([value]) for value in range(256)]
LETTERS = b"ab \n\x00\xe4\xb8"
TEXT = st.lists(st.sampled_from(LETTERS), max_size=50).map(bytes)
DOCUMENTS = st.lists(TEXT, max_size=4)
TOKENS = st.lists(
    st.lists(st.sampled_from(LETTERS), min_size=2, max_size=9).map(bytes), max_size=30, unique=True
)
SLICE_BYTES = st.integers(1, 40)


def make_vocabulary(
    tokens: list[bytes], pattern: str, unknown_token: int | None = None
) -> Vocabulary:
    return Vocabulary(
        tuple(tokens),
        np.empty((0, 3), np.uint32),
        pattern,
        PATTERNS[pattern].expression,
        unknown_token=unknown_token,
    )


def train(documents: list[bytes], merges: int, pattern: str) -> Vocabulary:
    words = count_words(corpus_from_bytes(documents), pattern)
    ranks = byte_ranks("hf")
    trained = batched_numpy.train(
        byte_symbols(words, ranks), TrainingOptions(256), MergeTask(merges=merges)
    )
    results = np.arange(256, 256 + len(trained.pairs), dtype=np.uint32)
    return build_vocabulary(
        translate(trained.pairs, results, byte_ids(ranks))[:, :2],
        pattern=pattern,
        tie="hf",
        special_tokens=(),
        training={},
    ).with_match("greedy")


def encode(encoder: HostEncoder, documents: list[bytes]) -> list[list[int]]:
    """Return the ids of each document."""
    ids: list[int] = []
    starts: list[int] = []
    text_bytes = 0
    for piece in encoder.encode(corpus_from_bytes(documents)):
        assert (piece.ids.dtype, piece.document_starts.dtype) == (np.uint32, np.int64)
        assert ((piece.document_starts >= 0) & (piece.document_starts <= len(piece.ids))).all()
        starts += (piece.document_starts + len(ids)).tolist()
        ids += piece.ids.tolist()
        text_bytes += piece.text_bytes
    assert text_bytes == sum(map(len, documents))
    assert len(starts) == len(documents)
    assert starts[:1] in ([], [0])
    return [ids[start:end] for start, end in pairwise([*starts, len(ids)])]


def check(vocabulary: Vocabulary, documents: list[bytes], slice_bytes: int) -> None:
    tokens: dict[bytes, int] = {}
    for number, token in enumerate(vocabulary.tokens):
        tokens.setdefault(token, number)
    expected = [
        reference.greedy(text, tokens, vocabulary.pattern, vocabulary.unknown_token)
        for text in documents
    ]
    for host_encoder in HOST_ENCODERS:
        assert encode(host_encoder(vocabulary, slice_bytes), documents) == expected


@settings(deadline=None, max_examples=examples(100))
@given(TOKENS, DOCUMENTS, st.sampled_from(sorted(PATTERNS)), SLICE_BYTES)
def test_ids_of_greedy_matching(
    tokens: list[bytes], documents: list[bytes], pattern: str, slice_bytes: int
) -> None:
    check(make_vocabulary(BYTES + tokens, pattern), documents, slice_bytes)


@settings(deadline=None, max_examples=examples(50))
@given(TOKENS, DOCUMENTS, SLICE_BYTES)
def test_unknown_token(tokens: list[bytes], documents: list[bytes], slice_bytes: int) -> None:
    vocabulary = make_vocabulary([b"a", b" ", b"<unk>", *tokens], "class", unknown_token=2)
    check(vocabulary, documents, slice_bytes)


@settings(deadline=None, max_examples=examples(100))
@given(TEXT, SLICE_BYTES)
def test_a_byte_without_a_token_is_named(text: bytes, slice_bytes: int) -> None:
    vocabulary = make_vocabulary([b"a", b" ", b"\n", b"ab", b"\x00\x00", b"bbb"], "none")
    matched = re.match(rb"(?:ab?|[ \n]|\x00\x00|bbb)*", text)
    assert matched is not None
    offset = matched.end()
    documents = [b"aa", text]
    if offset == len(text):
        check(vocabulary, documents, slice_bytes)
        return
    message = f"byte 0x{text[offset]:02x} at offset {offset + 2} of the text has no token"
    for host_encoder in HOST_ENCODERS:
        with pytest.raises(InputError, match=message):
            encode(host_encoder(vocabulary, slice_bytes), documents)


@pytest.mark.parametrize("host_encoder", HOST_ENCODERS)
def test_a_byte_without_a_token_in_a_long_word(host_encoder: Callable[..., HostEncoder]) -> None:
    vocabulary = make_vocabulary([b"a", b"aa"], "none")
    with pytest.raises(InputError, match="byte 0x62 at offset 99999 of the text"):
        encode(host_encoder(vocabulary), [b"a" * 99_999 + b"b" + b"a" * 5000])


def test_text_trained_on_at_many_slice_sizes() -> None:
    rng = np.random.default_rng(5)
    parts = [b"the ", b"of the", b" and", b"ing ", b", ", b"\n", b"1984", "漢字仮名".encode()]
    documents = [b"".join(parts[k] for k in rng.integers(0, 8, 200)) for _ in range(2)]
    for pattern in ("class", "gpt2"):
        vocabulary = train(documents, 150, pattern)
        for slice_bytes in (7, 100, 1111, 1 << 20):
            check(vocabulary, documents, slice_bytes)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.sampled_from(PIECES), max_size=25).map(lambda parts: "".join(parts).encode()),
    SLICE_BYTES,
)
def test_characters_and_contractions(text: bytes, slice_bytes: int) -> None:
    tokens = [b"'s", b"s'", b" '", b"'ll", b"'re", b"a'", b"  ", b" a", b"\r\n", "\u3000".encode()]
    check(make_vocabulary([*BYTES, *tokens], "gpt2"), [text, text[1:]], slice_bytes)


@pytest.mark.slow
def test_words_far_longer_than_a_slice() -> None:
    rng = np.random.default_rng(6)
    signs = ["的一是不了在人有我他".encode()[3 * k : 3 * k + 3] for k in range(10)]
    chinese = b"".join(signs[k] for k in rng.integers(0, 10, 3000))
    binary = rng.integers(0, 4, 9000, dtype=np.uint8).tobytes()
    for pattern in PATTERNS:
        vocabulary = train([chinese, binary, b"\x00" * 99], 300, pattern)
        for slice_bytes in (1000, 1 << 20):
            check(vocabulary, [chinese + b" a" * 50 + chinese[::-1], b"", binary], slice_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 3, 7, 16, 255, 256, 257])
@pytest.mark.parametrize("head", [b"", b"x", b"xa"])
def test_runs_of_tokens_of_any_length(length: int, head: bytes) -> None:
    tokens = [*BYTES, b"a" * length, b"xa"]
    check(make_vocabulary(tokens, "none"), [head + b"a" * 2000 + b"b"], 1500)


@pytest.mark.parametrize("host_encoder", HOST_ENCODERS)
def test_a_run_of_millions(host_encoder: Callable[..., HostEncoder]) -> None:
    vocabulary = make_vocabulary([b"a", b"aa", b"a" * 5], "none")
    (ids,) = encode(host_encoder(vocabulary), [b"a" * 5_000_003])
    assert ids == [2] * 1_000_000 + [1, 0]


@pytest.mark.parametrize("host_encoder", HOST_ENCODERS)
def test_many_words_of_as_many_ids_as_bytes(host_encoder: Callable[..., HostEncoder]) -> None:
    """More ids than 16 bits can count, and words of as many ids as 8 bits can, and one more."""
    letters = bytes.maketrans(b"0123456789", b"ghijklmnop")
    words = [(b"%05x" % k).translate(letters) for k in range(15_000)] + [
        b"x" * n for n in (254, 255, 256, 257)
    ]
    text = b"\n".join([*words, *reversed(words), *words])
    encoder = host_encoder(make_vocabulary(BYTES, "class"), 1 << 18)
    for _ in range(2):  # with the words of the first time
        assert encode(encoder, [text]) == [list(text)]


def test_tokens_longer_than_a_slice() -> None:
    tokens = [*BYTES, b"abab" * 10, b"ba" * 30]
    check(make_vocabulary(tokens, "none"), [b"ab" * 200, b"ba" * 31, b"b"], 3)


@pytest.mark.parametrize("documents", [[], [b""], [b"", b""], [b"", b"a", b"", b"", b"b", b""]])
@pytest.mark.parametrize("slice_bytes", [1, 2, 100])
def test_empty_documents(documents: list[bytes], slice_bytes: int) -> None:
    check(make_vocabulary(BYTES, "class"), documents, slice_bytes)


def test_no_token_crosses_documents() -> None:
    vocabulary = make_vocabulary([*BYTES, b"ab"], "none")
    for slice_bytes in range(1, 6):
        for host_encoder in HOST_ENCODERS:
            ids = encode(host_encoder(vocabulary, slice_bytes), [b"xa", b"b", b"ab"])
            assert ids == [[120, 97], [98], [256]]


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.binary(max_size=300), max_size=3), st.integers(1, 200))
def test_binary_text(documents: list[bytes], slice_bytes: int) -> None:
    tokens = [*BYTES, b"\x00\x00", b"\x00\x00\x00\x00", b"\xff\xfe", b"\x00\x01"]
    check(make_vocabulary(tokens, "class"), documents, slice_bytes)


@pytest.mark.parametrize("most", [0, 1000, 1 << 20])
def test_an_encoder_is_used_again_and_forgets_what_it_must(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(encoder_numpy, "MAX_TABLE_BYTES", most)
    vocabulary = make_vocabulary([*BYTES, b"ab", b" ab"], "class")
    encoder = NumpyEncoder(vocabulary, 10)
    for text in (b"ab ab b 12 \n" * 9, b"\x00ab. ab" * 9, b"ab ab b 12 \n" * 9):
        tokens = {token: k for k, token in enumerate(vocabulary.tokens)}
        assert encode(encoder, [text]) == [reference.greedy(text, tokens, "class")]


def test_the_ids_of_single_words() -> None:
    words = [b"ab", b"b", b"aab"]
    vocabulary = make_vocabulary([*BYTES, b"ab"], "none")
    encoder = SliceEncoder(vocabulary)
    found = encoder.match_words([np.frombuffer(word, np.uint8) for word in words])
    assert [ids.tolist() for ids in found] == [[256], [98], [97, 256]]


def test_a_vocabulary_without_tokens() -> None:
    check(make_vocabulary([b"<unk>"], "class", unknown_token=0), [b"abc de"], 4)


def test_a_table_of_words_knows_its_size() -> None:
    vocabulary = make_vocabulary([*BYTES, b"ab"], "class")
    table, sizes = encoder_numpy._Table(), [0]
    matcher = GreedyMatcher(vocabulary)
    for words in ([b"a", b"abc"], [b"abc", b"a"], [b"x" * 1000]):
        padded = np.frombuffer(b"".join(words) + bytes(64), np.uint8)
        table.encode(matcher, padded, np.cumsum([0, *map(len, words)]))
        sizes.append(table.nbytes)
    # Of each word that is new: its bytes, its ids of 4 bytes, and what an entry takes.
    entry = encoder_numpy._WORD_BYTES
    assert np.diff(sizes).tolist() == [2 * entry + 4 + 3 * 4, 0, entry + 5 * 1000]
