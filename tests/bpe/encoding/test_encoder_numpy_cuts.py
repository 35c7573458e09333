"""Words cut where no token can lie across, and kept by threads: that no id changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.encoding import encoder_c, encoder_numpy
from llmgpu.bpe.encoding.encoder_c import CpuEncoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.encoding.matching import BpeMatcher
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.host_encoders import HOST_ENCODERS
from tests.conftest import examples
from tests.reference import bpe as greedy_reference
from tests.reference import encoding as reference

LETTERS = b"ab \x80\xbf\xc0\xc3\xe4\xff"
BYTES = [bytes([value]) for value in range(256)]
TEXT = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=60).map(bytes)
TOKENS = st.lists(
    st.lists(st.sampled_from(LETTERS), min_size=2, max_size=6).map(bytes), max_size=25, unique=True
)
SLICE_BYTES = st.integers(1, 50)


def make_vocabulary(
    tokens: list[bytes],
    match: str,
    merges: list[tuple[int, int, int]] | None = None,
    *,
    pattern: str = "none",
    ignore_merges: bool = False,
    unknown_token: int | None = None,
) -> Vocabulary:
    return Vocabulary(
        tuple(tokens),
        np.array(merges or [], np.uint32).reshape(-1, 3),
        pattern,
        PATTERNS[pattern].expression,
        match=match,
        ignore_merges=ignore_merges or (match == "bpe" and not merges),
        unknown_token=unknown_token,
    )


def encode(vocabulary: Vocabulary, text: bytes, slice_bytes: int, threads: int = 1) -> list[int]:
    """Return the ids that all encoders on the host give."""
    found = []
    for host_encoder in HOST_ENCODERS:
        encoder = host_encoder(vocabulary, slice_bytes, threads)
        pieces = encoder.encode(corpus_from_bytes([text]))
        found.append([i for piece in pieces for i in piece.ids.tolist()])
        slices = encoder.c_slices if isinstance(encoder, CpuEncoder) else None
        if slices and (ids := slices.encode_document(text)) is not None:
            found.append(ids.tolist())
    assert all(ids == found[0] for ids in found)
    return found[0]


def test_a_token_beside_a_cut() -> None:
    tokens = [*BYTES, b"a\xc3", b"\xc3\xa4", b"b\xc3\xa4", b"\xe4\xb8", b"\xa4\xe4\xb8"]
    vocabulary = make_vocabulary(tokens, "bpe")
    for end in (b"a\xc3\xa4", b"a\xc3\xa9", b"b\xc3\xa4", b"x\xc3\xa4", b"\xe4\xb8\x80"):
        text = b"z" * 16 + end  # shorter words are not cut
        assert encode(vocabulary, text, 99) == reference.bpe_encode(vocabulary, text)


@pytest.mark.parametrize("match", ["bpe", "greedy"])
def test_the_first_of_all_tokens_is_not_cut(match: str) -> None:
    assert encode(make_vocabulary([b"ab", *BYTES], match), b"abba" * 9, 1 << 20) == [0, 99, 98] * 9


@pytest.mark.parametrize("by_merges", [False, True])
def test_long_words_of_many_pairs(by_merges: bool) -> None:
    rng = np.random.default_rng(8)
    letters = [bytes([byte]) for byte in b"abcdefgh"]
    pairs = [left + right for left in letters for right in letters]
    longer = [letter + pair for letter in letters for pair in pairs]
    tokens = [*BYTES, *(some[k] for some in (pairs, longer) for k in rng.permutation(len(some)))]
    ids = {token: number for number, token in enumerate(tokens)}
    merges = [
        (ids[token[:cut]], ids[token[cut:]], number)
        for token, number in ids.items()
        for cut in range(1, len(token))
    ]
    order = rng.permutation(len(merges)) if by_merges else []
    vocabulary = make_vocabulary(list(ids), "bpe", [merges[k] for k in order])
    for length in (20, 47, 48, 49, 300, 700):
        text = rng.choice(np.frombuffer(b"abcdefgh", np.uint8), length).tobytes()
        assert encode(vocabulary, text, 1 << 20) == reference.bpe_encode(vocabulary, text)


def test_windows_of_few_long_tokens() -> None:
    doubled = [b"a" * (1 << k) for k in range(1, 13)]
    vocabulary = make_vocabulary([*BYTES, *doubled], "bpe")
    word = b"b" + b"a" * 70_000 + b"c"
    found = encode(vocabulary, word, 1 << 20)
    assert vocabulary.decode(found) == word
    assert found[:18] == [98, *[267] * 17] and len(found) < 26


def test_no_cut_makes_a_piece_that_no_merges_lead_to() -> None:
    vocabulary = make_vocabulary([*BYTES, b"abc", b"\xe4\xb8\x80"], "bpe")
    for end in (b"abc\xc3\xa4", b"x\xe4\xb8\x80", b"abc"):
        for text in (end, b"z" * 16 + end):
            assert encode(vocabulary, text, 9) == reference.bpe_encode(vocabulary, text)


@st.composite
def merge_vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Merges in any order, also such that no training gives: repeated, of results to come."""
    tokens = BYTES + draw(TOKENS)
    ids = {token: number for number, token in enumerate(tokens)}
    parts = [
        (ids[token[:cut]], ids[token[cut:]], ids[token])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    merges = draw(st.lists(st.sampled_from(parts), min_size=1, max_size=40)) if parts else []
    return make_vocabulary(tokens, "bpe", merges, ignore_merges=draw(st.booleans()))


@settings(deadline=None, max_examples=examples(150))
@given(merge_vocabularies(), TEXT, SLICE_BYTES, st.sampled_from(["none", "class", "cl100k"]))
def test_ids_by_merges(vocabulary: Vocabulary, text: bytes, slice_bytes: int, pattern: str) -> None:
    changed = replace(vocabulary, pattern=pattern, expression=PATTERNS[pattern].expression)
    assert encode(changed, text, slice_bytes) == reference.bpe_encode(changed, text)


@settings(deadline=None, max_examples=examples(100))
@given(st.permutations(BYTES), TOKENS, TEXT, SLICE_BYTES)
def test_ids_by_ranks(
    single: list[bytes], tokens: list[bytes], text: bytes, slice_bytes: int
) -> None:
    vocabulary = make_vocabulary(tokens[::2] + single + tokens[1::2], "bpe")
    assert encode(vocabulary, text, slice_bytes) == reference.bpe_encode(vocabulary, text)


@settings(deadline=None, max_examples=examples(100))
@given(TOKENS, TEXT, SLICE_BYTES, st.data())
def test_ids_with_an_unknown_token(
    tokens: list[bytes], text: bytes, slice_bytes: int, data: st.DataObject
) -> None:
    some = data.draw(st.lists(st.sampled_from([bytes([x]) for x in LETTERS]), unique=True))
    tokens = [b"<unk>", *some, *tokens]
    unknown = data.draw(st.integers(0, len(tokens) - 1))
    vocabulary = make_vocabulary(tokens, "bpe", unknown_token=unknown)
    assert encode(vocabulary, text, slice_bytes) == reference.bpe_encode(vocabulary, text)


@settings(deadline=None, max_examples=examples(100))
@given(TOKENS, TEXT, SLICE_BYTES, st.sampled_from(["none", "class"]))
def test_ids_by_the_longest_token(
    tokens: list[bytes], text: bytes, slice_bytes: int, pattern: str
) -> None:
    vocabulary = make_vocabulary(BYTES + tokens, "greedy", pattern=pattern)
    ids: dict[bytes, int] = {}
    for number, token in enumerate(vocabulary.tokens):
        ids.setdefault(token, number)
    assert encode(vocabulary, text, slice_bytes) == greedy_reference.greedy(text, ids, pattern)


@pytest.mark.slow
def test_a_huge_word_of_many_characters() -> None:
    rng = np.random.default_rng(3)
    signs = ["的", "一", "é", "ß", "あ", "x", "yz"]
    text = "".join(signs[k] for k in rng.integers(0, len(signs), 2000)).encode()
    tokens = [*BYTES, "的一".encode(), "é".encode(), "あx".encode(), b"\x81\x82", b"yz"]
    for match in ("bpe", "greedy"):
        vocabulary = make_vocabulary(tokens, match)
        expected = (
            reference.bpe_encode(vocabulary, text)
            if match == "bpe"
            else greedy_reference.greedy(text, {t: k for k, t in enumerate(tokens)}, "none")
        )
        for slice_bytes in (100, 1 << 20):
            assert encode(vocabulary, text, slice_bytes) == expected


@pytest.mark.parametrize("most_words", [1, 50, 1 << 20])
def test_threads_share_their_words(monkeypatch: pytest.MonkeyPatch, most_words: int) -> None:
    monkeypatch.setattr(encoder_numpy, "MAX_TABLE_BYTES", most_words * 300)
    monkeypatch.setattr(encoder_c, "MAX_TABLE_BYTES", most_words * 600)
    rng = np.random.default_rng(4)
    words = [f" w{k * k % 611}é{k % 7}世界" for k in range(900)]
    text = "".join(words[k] for k in rng.integers(0, len(words), 5000)).encode()
    tokens = [*BYTES, b" w", "é".encode(), b"11", "世".encode()]
    vocabulary = make_vocabulary(tokens, "bpe", pattern="cl100k")
    expected = reference.bpe_encode(vocabulary, text)
    for threads in (2, 4):
        assert encode(vocabulary, text, 1500, threads) == expected


class _FailingMatcher(BpeMatcher):
    """Fails the first time."""

    fails = True

    def match_word(self, word: bytes) -> Sequence[int]:
        if self.fails:
            self.fails = False
            raise MemoryError("no room")
        return super().match_word(word)


def test_words_that_could_not_be_matched_are_matched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoder_numpy, "BpeMatcher", _FailingMatcher)
    vocabulary = make_vocabulary(BYTES, "bpe", pattern="class")
    encoder = NumpyEncoder(vocabulary)
    with pytest.raises(MemoryError, match="no room"):
        list(encoder.encode(corpus_from_bytes([b"abc"])))
    (piece,) = encoder.encode(corpus_from_bytes([b"abc"]))
    assert piece.ids.tolist() == [97, 98, 99]


@pytest.mark.parametrize("token", ["é", "aé", "é漢", "漢", "a", "aa", "漢a"])
@pytest.mark.parametrize("word", ["{0}漢é漢", "x{0}{0}é", "漢{0}é", "{0}a{0}", "{0}é漢", "é{0}"])
def test_a_part_of_a_word_is_not_taken_whole(token: str, word: str) -> None:
    """No merges lead to the token, so it is only taken where it is the whole word."""
    spelled = token.encode()
    tokens = [*BYTES, *([] if len(spelled) == 1 else [spelled]), b"xy"]
    merges = [(120, 121, len(tokens) - 1)]
    vocabulary = make_vocabulary(tokens, "bpe", merges, ignore_merges=True)
    for text in (word.format(token) * 9, word.format(token) + "é漢" * 20, token):
        expected = reference.bpe_encode(vocabulary, text.encode())
        assert encode(vocabulary, text.encode(), 1 << 20) == expected


def test_a_token_that_merges_make_with_another_id() -> None:
    """The word is the first of two equal tokens; inside a word, merges make the second."""
    tokens = [*BYTES, "é".encode(), "é".encode()]
    vocabulary = make_vocabulary(tokens, "bpe", [(0xC3, 0xA9, 257)], ignore_merges=True)
    assert encode(vocabulary, "é".encode(), 99) == [256]
    for text in ("é" * 20, "x" * 20 + "éé漢"):
        expected = reference.bpe_encode(vocabulary, text.encode())
        assert 257 in expected and encode(vocabulary, text.encode(), 99) == expected
