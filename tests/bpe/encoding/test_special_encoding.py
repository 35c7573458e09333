"""Special tokens in texts against tiktoken, wherever the text is cut."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding import special_encoding
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_encoding import SpecialEncoder
from llmgpu.bpe.encoding.special_options import SpecialOptions, Tokens, token_id
from llmgpu.bpe.encoding.special_search import SEARCHED_BYTES, Flags, SpelledTokens
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from llmgpu.text.documents import Piece
from tests.bpe.encoding.test_encoder_numpy import make_vocabulary
from tests.bpe.vocabularies import build_vocabulary
from tests.conftest import examples

# Tokens that end, contain and overlap one another. Which of two that begin with one another counts
# depends on their hashes in tiktoken; here it is the longer one.
UNEQUAL = ("<|a|>", "<|b|>", "|><", "aab", "ba", "☃")
SPECIAL = (*UNEQUAL, "<|", "<|a|><|b|>", "aa")
PARTS = ["<", "|", ">", "a", "b", "ab", " ", "\n", "☃", "ä", "aa", *SPECIAL]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=25).map("".join)
DOCUMENTS = st.lists(TEXTS, max_size=4)
CHOICES = st.sets(st.sampled_from(SPECIAL))
UNEQUAL_CHOICES = st.sets(st.sampled_from(UNEQUAL))


@cache
def vocabulary(pattern: str = "gpt2") -> Vocabulary:
    merges = [(124, 62), (97, 98), (98, 257), (32, 60), (226, 152), (195, 164), (60, 60)]
    return build_vocabulary(merges, pattern=pattern, tie="hf", special_tokens=SPECIAL, training={})


@cache
def peer() -> tiktoken.Encoding:
    ours = vocabulary()
    special = {text: ours.special_tokens[text] for text in UNEQUAL}
    return tiktoken.Encoding(
        name="peer",
        pat_str=r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
        mergeable_ranks={token: i for i, token in enumerate(ours.tokens[:263])},
        special_tokens=special,
    )


def encode(encoder: Encoder, documents: Sequence[str | bytes]) -> list[list[int]]:
    """Return the ids of each document."""
    data = [text if isinstance(text, bytes) else text.encode() for text in documents]
    ids: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    text_bytes = 0
    for piece in encoder.encode(corpus_from_bytes(data)):
        assert (piece.ids.dtype, piece.document_starts.dtype) == (np.uint32, np.int64)
        assert ((piece.document_starts >= 0) & (piece.document_starts <= len(piece.ids))).all()
        starts += (piece.document_starts + len(ids)).tolist()
        ids += piece.ids.tolist()
        text_bytes += piece.text_bytes
        ends += [len(ids)] * piece.closed
    assert text_bytes == sum(map(len, data))
    assert len(starts) == len(documents) and starts[:1] in ([], [0])
    assert set(ends) <= {*starts, len(ids)}, "closed where no document ends"
    found = [ids[start:end] for start, end in pairwise([*starts, len(ids)])]
    if isinstance(encoder, SpecialEncoder):
        assert_same_at_once(encoder, data, found)
    return found


def assert_same_at_once(
    encoder: SpecialEncoder, documents: Sequence[bytes], expected: Sequence[list[int]]
) -> None:
    """Encode each document at once, unless it has to be encoded in blocks; compare the ids."""

    def encode(text: bytes | memoryview) -> NDArray[np.uint32]:
        pieces = encoder._encoder.encode(corpus_from_bytes(bytes(text)))
        return np.concatenate([np.empty(0, np.uint32), *(piece.ids for piece in pieces)])

    for document, ids in zip(documents, expected, strict=True):
        for text in (document, memoryview(document)):
            found = encoder.encode_document(text, encode)
            assert found is None or (found.dtype, found.tolist()) == (np.uint32, ids)


def special_encoder(
    allowed: Collection[str] = (),
    disallowed: Collection[str] = (),
    bos: int | str | None = None,
    eos: int | str | None = None,
    *,
    cut: int = 1 << 20,
    threads: int = 1,
) -> Encoder:
    """Return an encoder with slices and blocks of about `cut` bytes."""
    options = SpecialOptions(allowed, disallowed, bos, eos)
    inner = NumpyEncoder(vocabulary(), cut, threads)
    return SpecialEncoder(inner, vocabulary(), options, cut)


@settings(max_examples=examples(150))
@given(DOCUMENTS, UNEQUAL_CHOICES, st.integers(1, 30), st.integers(1, 2))
def test_ids_are_those_of_tiktoken(
    documents: list[str], allowed: set[str], cut: int, threads: int
) -> None:
    encoder = special_encoder(allowed, cut=cut, threads=threads)
    expected = [
        peer().encode(text, allowed_special=allowed, disallowed_special=()) for text in documents
    ]
    assert encode(encoder, documents) == expected


def split_ids(text: str, allowed: Collection[str]) -> list[int]:
    """Cut a text at special tokens, the longest first, and let tiktoken do the rest."""
    special = vocabulary().special_tokens
    longest_first = sorted(allowed, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if allowed else [text]
    return [
        token
        for i, piece in enumerate(pieces)
        for token in ([special[piece]] if i % 2 else peer().encode_ordinary(piece))
    ]


@settings(max_examples=examples(150))
@given(DOCUMENTS, CHOICES, st.integers(1, 30), st.integers(1, 2))
def test_the_longest_at_a_position_counts(
    documents: list[str], allowed: set[str], cut: int, threads: int
) -> None:
    encoder = special_encoder(allowed, cut=cut, threads=threads)
    assert encode(encoder, documents) == [split_ids(text, allowed) for text in documents]


@settings(max_examples=examples(200))
@given(DOCUMENTS, UNEQUAL_CHOICES, UNEQUAL_CHOICES, st.integers(1, 30))
def test_disallowed_is_what_tiktoken_refuses(
    documents: list[str], allowed: set[str], disallowed: set[str], cut: int
) -> None:
    encoder = special_encoder(allowed, disallowed, cut=cut)
    try:
        expected = [
            peer().encode(text, allowed_special=allowed, disallowed_special=disallowed)
            for text in documents
        ]
    except ValueError:
        with pytest.raises(InputError, match=r"special token .* is disallowed"):
            encode(encoder, documents)
    else:
        assert encode(encoder, documents) == expected


@settings(max_examples=examples(150))
@given(
    DOCUMENTS,
    CHOICES,
    st.sampled_from([None, 7, "<|b|>", "ab", (7, "<|b|>", 0)]),
    st.sampled_from([None, 262, "aab", (262, 262)]),
    st.integers(1, 30),
)
def test_documents_begin_with_bos_and_end_with_eos(
    documents: list[str],
    allowed: set[str],
    bos: Tokens | None,
    eos: Tokens | None,
    cut: int,
) -> None:
    def around(tokens: Tokens | None) -> list[int]:
        several = tokens if isinstance(tokens, tuple) else [] if tokens is None else [tokens]
        return [token_id(vocabulary(), token) for token in several]

    encoder = special_encoder(allowed, bos=bos, eos=eos, cut=cut)
    plain = encode(special_encoder(allowed), documents)
    assert encode(encoder, documents) == [around(bos) + ids + around(eos) for ids in plain]


class Announcing:
    """A source that says where a document begins together with the end of the one before."""

    def __init__(self, documents: list[str], piece_bytes: int) -> None:
        self._fills: list[tuple[bytes, list[int], bool]] = []
        for number, document in enumerate(documents):
            data = document.encode()
            for begin in range(0, max(len(data), 1), piece_bytes):
                piece = data[begin : begin + piece_bytes]
                closed = begin + piece_bytes >= len(data)
                starts = [len(piece)] * (closed and number + 1 < len(documents))
                self._fills.append((piece, [0, *starts] if not self._fills else starts, closed))

    def read_into(self, buffer: NDArray[np.uint8]) -> Piece:
        data, starts, closed = self._fills.pop(0)
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        return Piece(buffer[: len(data)], np.array(starts, np.int64), closed, not self._fills)


@settings(max_examples=examples(150))
@given(
    st.lists(TEXTS, min_size=1, max_size=4),
    CHOICES,
    st.integers(1, 60),
    st.sampled_from([(0, 1), ((0, 2), (1, 1, 3))]),
)
def test_documents_that_are_announced_early(
    documents: list[str], allowed: set[str], piece_bytes: int, around: tuple[Tokens, Tokens]
) -> None:
    encoder = special_encoder(allowed, bos=around[0], eos=around[1], cut=1 << 10)
    pieces = list(encoder.encode(Announcing(documents, piece_bytes)))
    ids = np.concatenate([piece.ids for piece in pieces])
    expected = [token for part in encode(encoder, documents) for token in part]
    assert ids.tolist() == expected
    assert sum(len(piece.document_starts) for piece in pieces) == len(documents)


class Waiting(Announcing):
    """A source that knows where a document ends before the next one begins."""

    def __init__(self, documents: list[str]) -> None:
        data = [text.encode() for text in documents]
        self._fills = [(text, [0] * bool(text), True) for text in data]


def test_the_end_of_a_document_is_told_at_once() -> None:
    documents = ["<|a|>b", "x<|a|><|b|>y", "y", "<|b|>z"]
    pieces = list(special_encoder(["<|a|>", "<|b|>"], eos=1).encode(Waiting(documents)))
    expected = encode(special_encoder(["<|a|>", "<|b|>"], eos=1), documents)
    ends, closed = np.cumsum([len(piece.ids) for piece in pieces]), [p.closed for p in pieces]
    assert np.concatenate([piece.ids for piece in pieces]).tolist() == [
        i for d in expected for i in d
    ]
    assert ends[closed].tolist() == np.cumsum([len(ids) for ids in expected]).tolist()


def test_text_that_can_begin_no_token_does_not_wait() -> None:
    found = special_encoding._Boundaries()
    tokens = {b"<|a|>": 1, b"<|endoftext|>": 2}
    cut = special_encoding._SpecialTokenFilter(tokens, Flags(), None, found)

    def feed(text: bytes) -> bytes:
        piece = cut.feed(np.frombuffer(text, np.uint8), np.zeros(0, np.int64), final=False)
        return piece.text.tobytes()

    texts = [b"a line\n", b"x<|a|>\n", b"y<|", b"a|", b"b<", b"z<|endoftext|", b">\n"]
    handed = [b"a line\n", b"x\n", b"y", b"", b"<|a|b", b"<z", b"\n"]
    assert [feed(text) for text in texts] == handed


def test_all_means_all() -> None:
    text = "x<|a|><|b|>aab☃|>< <|"
    expected = split_ids(text, SPECIAL)
    assert encode(special_encoder(["all"]), [text]) == [expected]
    encode(special_encoder(["all"], ["all"]), [text])  # all but the allowed ones, so none
    with pytest.raises(InputError, match=r"'☃' at offset 14 .*--allowed-special"):
        encode(special_encoder(set(SPECIAL) - {"☃"}, ["all"]), [text])


def test_no_token_goes_over_the_end_of_a_document() -> None:
    documents = ["<|a", "|>", "", "<|a|>", "<|b|", ">"]
    special = vocabulary().special_tokens["<|a|>"]
    for cut in range(1, 12):
        ids = encode(special_encoder(["<|a|>"], ["<|b|>"], cut=cut), documents)
        assert ids[2:4] == [[], [special]]
        assert [vocabulary().decode(i).decode() for i in ids] == documents


def test_the_offset_of_a_disallowed_token() -> None:
    documents = ["äb", "<|b|>", "ab<|b|>"]
    for cut in range(1, 20):
        with pytest.raises(InputError, match=r"special token '<\|b\|>' at offset 3 of the text"):
            encode(special_encoder(disallowed=["<|b|>"], cut=cut), documents)


def test_a_byte_without_a_token_has_its_offset_in_the_whole_text() -> None:
    tokens = [b"a", b" ", b"<s>"]
    made = Vocabulary(
        tuple(tokens),
        np.empty((0, 3), np.uint32),
        "class",
        PATTERNS["class"].expression,
        special_tokens={"<s>": 2},
    )
    for cut in range(1, 20):
        inner = NumpyEncoder(made, cut)
        encoder = SpecialEncoder(inner, made, SpecialOptions(["all"]), cut)
        with pytest.raises(InputError, match="byte 0x62 at offset 9 of the text"):
            encode(encoder, ["a<s>", "a <s>", "ba<s>a"])


@pytest.mark.slow
def test_many_documents_and_tokens_in_large_blocks() -> None:
    generator = np.random.default_rng(5)
    parts = generator.choice(np.array(PARTS), 40_000).tolist()
    documents = ["".join(parts[i : i + 9]) for i in range(0, len(parts), 9)]
    expected = [split_ids(text, SPECIAL) for text in documents]
    for cut in (1000, 1 << 20):
        assert encode(special_encoder(["all"], cut=cut, threads=2), documents) == expected


@pytest.mark.parametrize("match", ["bpe", "greedy"])
@pytest.mark.parametrize("pattern", ["gpt2", "none", "class"])
def test_a_device_gives_the_same_ids(device: Device, match: str, pattern: str) -> None:
    generator = np.random.default_rng(6)
    parts = generator.choice(np.array(PARTS), 9_000).tolist()
    documents = ["".join(parts[i : i + 900]) for i in range(0, len(parts), 900)] + ["", "<|a|>"]
    made = vocabulary(pattern).with_match(match)
    options = SpecialOptions(["<|a|>", "aa", "☃"], (), "<|b|>", 0)
    found = [
        encode(SpecialEncoder(open_encoder(made, backend, 2000), made, options), documents)
        for backend in (Backend(device, ""), Backend(None, ""))
    ]
    assert found[0] == found[1]


def test_tokens_over_the_borders_of_files_and_blocks(tmp_path: Path) -> None:
    half = "☃<|a|>" * 30_000
    (tmp_path / "a.txt").write_text(half + "<|a", encoding="utf-8")
    (tmp_path / "b.txt").write_text("|>" + half, encoding="utf-8")
    options = CorpusOptions(separators=("☃☃".encode(),))
    for reading in (CorpusOptions(), options):
        with Corpus([str(tmp_path)], reading) as corpus:
            pieces = list(special_encoder(["<|a|>"], cut=1 << 16).encode(corpus))
        ids = np.concatenate([piece.ids for piece in pieces])
        assert sum(len(piece.document_starts) for piece in pieces) == 2
        special = vocabulary().special_tokens["<|a|>"]
        assert int((ids == special).sum()) == 60_000
        assert vocabulary().decode(ids).decode() == half + "<|a|>" + half


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (-1, "id -1 is not in this vocabulary of 272 tokens"),
        (272, "id 272 is not in"),
        ("abc", "'abc' is not a single token .* special tokens are '<|a|>', '<|b|>'"),
        ("", "'' is not a single token"),
        ("\ud800\ud800", "is not a single token"),
    ],
)
def test_what_is_no_token(token: int | str, message: str) -> None:
    with pytest.raises(VocabularyError, match=message.replace("|", r"\|")):
        special_encoder(bos=token)


def test_what_is_no_special_token() -> None:
    for options in (SpecialOptions(["ab"]), SpecialOptions((), "ab")):
        with pytest.raises(VocabularyError, match="'ab' is not a special token"):
            SpecialEncoder(NumpyEncoder(vocabulary()), vocabulary(), options)


def test_a_text_of_several_ids_is_refused() -> None:
    made = make_vocabulary([b"a", b"b", b"a"], "class")
    with pytest.raises(VocabularyError, match=r"2 tokens, \[0, 2\]: give the id"):
        token_id(made, "a")


def test_without_options_nothing_is_put_around() -> None:
    for options, is_wrapped in ((SpecialOptions(), False), (SpecialOptions(bos=1), True)):
        encoder = open_encoder(vocabulary(), NUMPY, special=options)
        assert isinstance(encoder, SpecialEncoder) is is_wrapped


@pytest.mark.parametrize(
    ("count", "shown"), [(9, "'<8>'"), (10, "'<9>'"), (12, "'<9>' and 2 more")]
)
def test_ten_special_tokens_are_named(count: int, shown: str) -> None:
    made = build_vocabulary(
        [], pattern="gpt2", tie="hf", special_tokens=[f"<{k}>" for k in range(count)], training={}
    )
    with pytest.raises(VocabularyError, match=f"{shown}$"):
        SpecialEncoder(NumpyEncoder(made), made, SpecialOptions(["<x>"]))


@pytest.mark.parametrize("bos", [None, "<|a|>", 3])
@pytest.mark.parametrize("eos", [None, "<|b|>", 5])
def test_a_document_at_once_has_what_is_put_around(
    bos: str | int | None, eos: str | int | None
) -> None:
    options = SpecialOptions(bos=bos, eos=eos)
    encoder = SpecialEncoder(NumpyEncoder(vocabulary()), vocabulary(), options)
    ids = encoder.encode_document(b"ab", lambda text: np.frombuffer(text, np.uint8))
    expected = [*([] if bos is None else [token_id(vocabulary(), bos)]), 97, 98]
    expected += [] if eos is None else [token_id(vocabulary(), eos)]
    assert ids is not None and ids.tolist() == expected
    assert encoder.encode_document(b"ab", lambda text: None) is None


@pytest.mark.parametrize(("most", "is_split"), [(1, False), (2, True)])
def test_a_document_of_many_special_tokens_is_encoded_in_blocks(
    monkeypatch: pytest.MonkeyPatch, most: int, is_split: bool
) -> None:
    monkeypatch.setattr(special_encoding, "MOST_CALLS", most)
    encoder = SpecialEncoder(NumpyEncoder(vocabulary()), vocabulary(), SpecialOptions(["☃"]))
    ids = encoder.encode_document("a☃b☃".encode(), lambda text: np.frombuffer(text, np.uint8))
    snowman = vocabulary().special_tokens["☃"]
    assert (None if ids is None else ids.tolist()) == (
        [97, snowman, 98, snowman] if is_split else None
    )


@pytest.mark.parametrize("normalizer", ["NFC", '[{"type":"NFC"}]', '[{"type":"Lowercase"}]'])
def test_nothing_is_kept_for_documents_that_were_read(
    monkeypatch: pytest.MonkeyPatch, normalizer: str
) -> None:
    made = dataclasses.replace(vocabulary(), normalizer=normalizer)
    boundaries: list[special_encoding._Boundaries] = []

    class Listed(special_encoding._Boundaries):
        def __init__(self) -> None:
            super().__init__()
            boundaries.append(self)

    monkeypatch.setattr(special_encoding, "_Boundaries", Listed)
    encoder = SpecialEncoder(NumpyEncoder(made), made, SpecialOptions(["☃"]))
    for _ in encoder.encode(corpus_from_bytes(["a☃b".encode()] * 9)):
        pass
    assert len(boundaries) == 2 and not any(each.follows for each in boundaries)


def test_a_disallowed_token_is_left_to_the_search_in_blocks() -> None:
    options = SpecialOptions(["☃"], ["|><"])
    encoder = SpecialEncoder(NumpyEncoder(vocabulary()), vocabulary(), options)
    for text in ("a|><", "☃", "☃|><"):
        assert encoder.encode_document(text.encode(), lambda text: np.empty(0)) is None
    ids = encoder.encode_document(b"ab", lambda text: np.frombuffer(text, np.uint8))
    assert ids is not None and ids.tolist() == [97, 98]


def test_a_byte_without_a_token_in_normalized_text() -> None:
    tokens = tuple(token.encode() for token in ("a", " ", "e"))
    none = np.empty((0, 3), np.uint32)
    made = Vocabulary(tokens, none, "class", PATTERNS["class"].expression, normalizer="NFC")
    encoder = SpecialEncoder(NumpyEncoder(made), made, SpecialOptions())
    assert encode(encoder, ["ea a"]) == [[2, 0, 1, 0]]
    with pytest.raises(InputError, match=r"in the normalized text, .*byte 0xc3 at offset 2 "):
        encode(encoder, ["a e\u0301 a"])


def test_one_id_or_several_are_put_around_documents() -> None:
    vocabulary = byte_vocabulary("class", "hf")
    assert SpecialOptions(bos=7, eos=(8, 9)).around(vocabulary) == SpecialOptions(bos=7, eos=(8, 9))
    vocabulary = dataclasses.replace(vocabulary, prefix_ids=(5,), suffix_ids=(6,))
    around = SpecialOptions(eos=9).around(vocabulary)
    assert around == SpecialOptions(bos=5, eos=(6, 9))


def test_spelled_tokens_of_a_file_are_counted_wherever_it_is_cut(tmp_path: Path) -> None:
    """Bytes that are read, bytes that an encoder reads itself, and tokens across the borders."""
    text = 30_000 * "....<|a|>.☃".encode()
    (tmp_path / "t.txt").write_bytes(text)
    watch = SpelledTokens(vocabulary(), SpecialOptions(("☃",)), clock=lambda: 0.0)
    with Corpus([str(tmp_path / "t.txt")]) as corpus:
        corpus.watch = watch
        corpus.read_into(np.empty(6, np.uint8))
        corpus.read_into(np.empty(100_001, np.uint8))
        assert corpus.upcoming(1000, 100_000, 0) is not None
        corpus.skip(100_000)
        while not corpus.read_into(np.empty(70_000, np.uint8)).end:
            pass
    assert (watch.found, watch.is_complete) == (30_000, True)
    assert watch.note().startswith("the text spells 30,000 special tokens encoded as text: ")


def test_the_search_for_spelled_tokens_ends_in_time() -> None:
    block = b"<|a|>".ljust(1 << 16)

    def reads(begin: int, end: int) -> bytes:
        return block[begin % (1 << 16) :][: end - begin]

    seconds = iter(range(1000))
    slow = SpelledTokens(vocabulary(), SpecialOptions(), clock=lambda: float(next(seconds)))
    slow.see(3 << 16, reads)
    assert (slow.found, slow.is_complete) == (1, False)
    assert slow.note().startswith("the text spells at least 1 special token encoded as text: ")
    long = SpelledTokens(vocabulary(), SpecialOptions(), clock=lambda: 0.0)
    long.see(SEARCHED_BYTES, reads)
    assert (long.found, long.is_complete) == (SEARCHED_BYTES >> 16, True)
    long.see(1 << 16, reads)
    assert (long.found, long.is_complete) == (SEARCHED_BYTES >> 16, False)
    every = SpelledTokens(vocabulary(), SpecialOptions(disallowed=("all",)))
    every.see(1 << 16, reads)
    assert every.note() == ""
