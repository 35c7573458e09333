"""Cuts of a text inside of documents: the pre-tokens of the parts are those of the whole."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.pretokens import blocks
from llmgpu.bpe.pretokens.blocks import RulePattern, cut_text_by
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from tests.reference import bpe

PIECE = st.sampled_from([*"aB7!/ é中\n\t\u0301\xa0", "  ", "\r\n", "'s", "<>"])
TEXT = st.lists(PIECE, max_size=60).map("".join).map(str.encode)
RULES = [name for name in PATTERNS if isinstance(PATTERNS[name], RulePattern)]
SEPARATORS = (b"<>", b" a ", b"7")


def pre_tokens(text: bytes, pattern: str, separators: tuple[bytes, ...]) -> list[bytes]:
    expression = b"|".join(map(re.escape, sorted(separators, key=len, reverse=True)))
    documents = re.split(expression, text) if separators else [text]
    return [word for document in documents for word in bpe.pre_tokens(document, pattern)]


@pytest.mark.parametrize("separators", [(), SEPARATORS])
@pytest.mark.parametrize("pattern", RULES)
@given(text=TEXT, offset=st.integers(0, 80))
def test_parts_have_the_pre_tokens_of_the_whole(
    pattern: str, separators: tuple[bytes, ...], text: bytes, offset: int
) -> None:
    find = cut_text_by(get_pattern(pattern), separators)
    assert find is not None
    offset = min(offset, len(text))
    cut = find(io.BytesIO(text), offset)
    assert offset <= cut <= len(text)
    parts = [text[:cut], text[cut:]]
    words = [word for part in parts for word in pre_tokens(part, pattern, separators)]
    assert words == pre_tokens(text, pattern, separators)


def test_white_space_that_ends_a_part_is_cut_as_in_the_whole() -> None:
    text = "\r\n\t\xa0aaaaaaaaa\xe9\u0301 b and more of it to come".encode()
    find = cut_text_by(get_pattern("cl100k"), ())
    assert find is not None
    for offset in range(len(text)):
        cut = find(io.BytesIO(text), offset)
        words = [
            word for part in (text[:cut], text[cut:]) for word in pre_tokens(part, "cl100k", ())
        ]
        assert words == pre_tokens(text, "cl100k", ())


@pytest.mark.slow
def test_cuts_do_not_depend_on_how_much_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        b"x" * 500 + b" " + b"y" * 900 + b" and long after it <> a" + b"1" * 300 + b" end of it" * 9
    )
    find = cut_text_by(get_pattern("cl100k"), (b"<>",))
    assert find is not None
    whole = [find(io.BytesIO(text), offset) for offset in range(len(text))]
    assert whole[0] == 500 and whole[501] == 1401 and whole[-1] == len(text)
    monkeypatch.setattr(blocks, "_CUT_WINDOW", 1)
    assert [find(io.BytesIO(text), offset) for offset in range(len(text))] == whole


def test_other_patterns_have_no_certain_cuts() -> None:
    for name in ("none", r"regex:\w+|\W", "class"):
        assert cut_text_by(get_pattern(name), ()) is None
