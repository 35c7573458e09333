"""Characters that patterns treat differently, bytes that are none, and pre-tokens of the engine."""

from __future__ import annotations

import numpy as np

from llmgpu.cpu.library import TEXT_PADDING, CPattern

_VALID = [
    *"aBsSlLtTmMdDzZ'",
    *"019!./-_~",
    *"éÉяЯßǅʰſªא中あ한",  # letters of all kinds
    *"\u0301\u0903\u200d\u20dd",  # marks, and what joins them
    *"٣Ⅷ½𝟗",
    *" \n\r\t\x0b\x1c\x00\x85\xa0\u1680\u2028\u3000\u180e",
    *"😀𝔄𝔞𐐀€\ufeff\ue000\U00100000\U0010ffff",
    *("'s", "'LL", "'re", "'ſ", "  ", "\r\n", "123", "''"),
]
_INVALID = [
    *(b"\xff", b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\x80", b"\xbf"),
    *(b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80"),
]
# What pre-tokens of ASCII text are made of, and a little else.
MOSTLY_ASCII = [
    *(b"a", b"B", b"cd", b"Ef", b"GH", b"word ", b" The", b" quick", b"don't", b"x" * 20),
    *(b"1", b"23", b"4567", b"7" * 11, b"'", b"''", b"'s", b"'LL", b"'re", b"'v", b"'S's"),
    *(b"!", b".", b"./", b"/", b"?\n", b".\n\n", b"\n/", b"://", b"(", b") "),
    *(b" ", b"  ", b"        ", b"\n", b"\n\n", b"\n    ", b"\n  \n", b"\t", b"\r\n", b"\x0b"),
    *("é".encode(), "'ſ".encode(), "\u0301".encode(), "\xa0".encode(), "日".encode(), b"\xff"),
]
CHARACTERS = [*(character.encode() for character in _VALID), *_INVALID]


def ends_of(pattern: CPattern, text: bytes) -> list[int]:
    """Return the ends of the pre-tokens of a document."""
    padded = np.frombuffer(text + bytes(TEXT_PADDING), np.uint8)
    ends = np.empty(len(text), np.int64)
    return ends[: pattern._call("pretoken_ends", padded, len(text), ends)].tolist()
