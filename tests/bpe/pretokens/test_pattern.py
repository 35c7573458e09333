"""The local boundary rule against Python's re on the published expression; the ranks of bytes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.pretokens import expressions, unicode_classes
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary import TIE_RULES
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.cpu.library import library
from llmgpu.errors import LlmgpuError
from tests.bpe.patterns import start_mask
from tests.cpu.texts import ends_of
from tests.reference import bpe as reference

TEXT = st.lists(
    st.sampled_from(b"   \n\naZz09.\t\r_\x00\x7f\x80\xc3\xff@[`{/:") | st.integers(0, 255),
    max_size=60,
).map(bytes)
PATTERN_NAMES = sorted(PATTERNS)

# What the patterns over characters tell apart: letters of each kind, numbers, marks, white space,
# contractions and what looks like them.
SPACES = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\x85", "\u2028"]
CONTRACTIONS = ["'", "'s", "'S", "'ll", "'re", "'v"]
LETTERS = ["a", "Z", "e\u0301", "\u0131", "\u01c5", "\u02b0", "\u6f22"]
SIGNS = ["9", "\u0663", "\u00bd", "!", ".", "\U0001f44d", "\u200b", "\x1c", "\x00"]
PIECES = [*SPACES, *CONTRACTIONS, *LETTERS, *SIGNS]
CHARACTERS = st.lists(st.sampled_from(PIECES), max_size=20).map(
    lambda parts: "".join(parts).encode()
)
ANY_TEXT = TEXT | CHARACTERS | st.text(max_size=20).map(str.encode)


def mask_of(text: bytes, pattern: str, starts: list[int], *, continues: bool = False) -> list[bool]:
    data, positions = np.frombuffer(text, np.uint8), np.array(starts, np.int64)
    return start_mask(data, pattern, positions, continues=continues).tolist()


def starts_of(documents: list[bytes]) -> list[int]:
    return [sum(map(len, documents[:k])) for k in range(len(documents))]


def test_published_expressions() -> None:
    published = {name: pattern.expression.encode() for name, pattern in PATTERNS.items()}
    assert published == {name: reference.EXPRESSIONS[name] for name in PATTERNS}


@pytest.mark.pinned_regex
@pytest.mark.parametrize("pattern", PATTERN_NAMES)
@settings(deadline=None)
@given(documents=st.lists(ANY_TEXT, max_size=5))
def test_mask_is_that_of_the_expression(pattern: str, documents: list[bytes]) -> None:
    expected = reference.pre_token_starts(documents, pattern)
    assert mask_of(b"".join(documents), pattern, starts_of(documents)) == expected


LETTER = [chr(byte) for byte in b"sdmtlvreLVREx\xe9"]


@pytest.mark.pinned_regex
@pytest.mark.parametrize("pattern", PATTERN_NAMES)
@pytest.mark.parametrize("before", ["", "x", " ", "'", "x'"])
def test_contractions_at_the_end_of_a_text(pattern: str, before: str) -> None:
    """Also those that are cut off, which the padding after a text must not complete."""
    endings = ["", *LETTER, *(one + two for one in LETTER for two in LETTER), "llx", "vex"]
    for ending in endings:
        text = f"{before}'{ending}".encode()
        expected = reference.pre_token_starts([text], pattern)
        assert mask_of(text, pattern, [0]) == expected, text
        if library() is not None:
            ends = [*np.flatnonzero(expected).tolist()[1:], len(text)]
            assert ends_of(get_pattern(pattern).for_engine(), text) == ends, text


# One of each kind that some pattern tells apart.
KINDS = ["a", "Z", "\u02b0", "\u6f22", "\u0301", "9", "!", " ", "\u00a0", "\n", "'s", "/"]


@pytest.mark.pinned_regex
@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_every_short_text(pattern: str) -> None:
    parts = (some for count in range(5) for some in product(KINDS, repeat=count))
    documents = ["".join(some).encode() for some in parts]
    bounds = np.cumsum([0, *map(len, documents)])
    expected = reference.pre_token_starts(documents, pattern)
    data = np.frombuffer(b"".join(documents), np.uint8)
    assert start_mask(data, pattern, bounds[:-1]).tolist() == expected
    if library() is not None:
        c_pattern = get_pattern(pattern).for_engine()
        for document, start in zip(documents[1:], bounds[1:].tolist(), strict=False):
            ends = [k for k in range(1, len(document)) if expected[start + k]]
            assert ends_of(c_pattern, document) == [*ends, len(document)], document


@pytest.mark.pinned_regex
def test_slashes_after_marks_and_newlines() -> None:
    """Slashes go with newlines after others; a mark is an other only where it goes with others."""
    parts = (" ", "\u0301", "!", "\n", "/")
    before = ("".join(some) for count in range(5) for some in product(parts, repeat=count))
    documents = [f"{text}\u0301\n/a".encode() for text in before]
    expected = reference.pre_token_starts(documents, "o200k")
    assert mask_of(b"".join(documents), "o200k", starts_of(documents)) == expected


def test_every_pair_of_bytes() -> None:
    pairs = [bytes([left, right]) for left in range(256) for right in range(256)]
    expected = reference.pre_token_starts(pairs, "class")
    assert mask_of(b"".join(pairs), "class", list(range(0, 2 * len(pairs), 2))) == expected


@pytest.mark.parametrize("pattern", PATTERN_NAMES)
def test_text_longer_than_a_block(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = 1 << 13
    monkeypatch.setattr(unicode_classes, "_BLOCK", block)
    monkeypatch.setattr(expressions, "_BLOCK", block >> 3)
    rng = np.random.default_rng(5)
    text = rng.choice(np.frombuffer(b"  \nab01.\xc3", np.uint8), block * 3 + 3).tobytes()
    assert mask_of(text, pattern, [0]) == reference.pre_token_starts([text], pattern)


def test_long_runs_are_one_pre_token() -> None:
    text = b" " * ((1 << 17) + 1) + b"a" * (1 << 17)
    assert np.flatnonzero(mask_of(text, "class", [0])).tolist() == [0]


def test_empty_text_has_no_starts() -> None:
    assert mask_of(b"", "class", [0, 0]) == []
    assert mask_of(b"", "none", [], continues=True) == []


def test_a_document_may_go_on_inside_of_its_pre_token() -> None:
    assert mask_of(b"ab", "none", [], continues=True) == [False, False]
    assert mask_of(b"ab", "none", [1], continues=True) == [False, True]


def test_text_need_not_be_contiguous() -> None:
    data = np.frombuffer(b"a.b. .", np.uint8)[::2]
    mask = start_mask(data, "class", np.zeros(1, np.int64))
    assert mask.tolist() == [True, False, True]


def test_unknown_pattern_names_the_known_ones() -> None:
    with pytest.raises(LlmgpuError, match=r"'gpt5'.*class, gpt2, .*none, gpt4"):
        get_pattern("gpt5")
    with pytest.raises(LlmgpuError):
        mask_of(b"a", "gpt5", [0])


def test_gpt4_is_cl100k() -> None:
    assert get_pattern("gpt4") is PATTERNS["cl100k"]


@pytest.mark.parametrize("tie", TIE_RULES)
def test_byte_ranks(tie: str) -> None:
    ranks = byte_ranks(tie)
    assert ranks.dtype == np.uint32
    assert ranks.tolist() == [reference.symbol_rank(byte, tie) for byte in range(256)]
    assert sorted(ranks.tolist()) == list(range(256))


def test_unknown_tie_rule() -> None:
    with pytest.raises(LlmgpuError, match=r"'random'.*hf, bytes"):
        byte_ranks("random")
