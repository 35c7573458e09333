"""Tokens for people to read: all different, on one line, in every script."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.vocabulary.spelling import readable

ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([nrt\\]))")
NAMED = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}


def bytes_of(text: str) -> bytes:
    """Return the token that a text for people stands for."""

    def unescape(found: re.Match[str]) -> str:
        byte, short, long, named = found.groups()
        data = bytes([int(byte, 16)]) if byte else NAMED.get(named, b"")
        if short or long:
            data = chr(int(short or long, 16)).encode()
        return data.decode(errors="surrogateescape")

    return ESCAPE.sub(unescape, text).encode(errors="surrogateescape")


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b" the", " the"),
        ("нет".encode(), "нет"),
        ("你好😀".encode(), "你好😀"),
        ("नि".encode(), "नि"),
        (b"\x00\n\t\x1b", "\\x00\\n\\t\\x1b"),
        (b"\\n", "\\\\n"),
        (b"\xe4\xbda", "\\xe4\\xbda"),
        ("\u200b\u0085\u202e".encode(), "\\u200b\\u0085\\u202e"),
        ("\U000e0001".encode(), "\\U000e0001"),
        (b"", ""),
    ],
)
def test_what_can_be_seen_is_seen(token: bytes, text: str) -> None:
    assert readable(token) == text


@given(st.one_of(st.binary(max_size=9), st.text(max_size=9).map(str.encode)))
def test_every_token_comes_back_and_stays_on_its_line(token: bytes) -> None:
    text = readable(token)
    assert bytes_of(text) == token
    assert all(unicodedata.category(c)[0] not in "C" and len(c.splitlines()) == 1 for c in text)


def test_what_is_not_seen_is_escaped() -> None:
    """A mark alone would be drawn over what is before it; after a letter it is part of the text."""
    shown = {
        "\u0301": "\\u0301",
        "e\u0301": "e\u0301",
        "\u0301e\u0301": "\\u0301e\u0301",
        "\u20dd": "\\u20dd",
        "\u2764\ufe0f": "\u2764\\ufe0f",
        "\u3164": "\\u3164",
        "\u093e": "\u093e",
    }
    for text, expected in shown.items():
        assert readable(text.encode()) == expected
