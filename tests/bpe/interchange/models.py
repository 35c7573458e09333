"""SentencePiece's model files, written field by field; and random ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

from tests.reference.pieces import BYTE, CONTROL, MARK, NORMAL, UNKNOWN, UNUSED, USER, Piece

SPECIAL: list[Piece] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES: list[Piece] = [(f"<0x{value:02X}>", 0.0, BYTE) for value in range(256)]


def number(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def field(key: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return number(key << 3) + number(value)
    return number(key << 3 | 2) + number(len(value)) + value


def piece(text: str, score: float, kind: int) -> bytes:
    message = field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, kind)
    return field(1, message)


def model(
    pieces: Sequence[Piece],
    trainer: Mapping[int, int | bytes] | None = None,
    normalizer: Mapping[int, int | bytes] | None = None,
) -> bytes:
    """Return a model file; by default as trained with the rule `identity`."""
    has_bytes = int(any(kind == BYTE for _, _, kind in pieces))
    settings = {3: 2, 35: has_bytes} | dict(trainer or {})
    rules = {1: b"identity", 3: 1, 4: 0, 5: 1} | dict(normalizer or {})
    parts = [piece(*each) for each in pieces]
    parts.append(field(2, b"".join(field(k, v) for k, v in settings.items())))
    parts.append(field(3, b"".join(field(k, v) for k, v in rules.items())))
    return b"".join(parts)


ALPHABET = f"ab{MARK}c\u65e5\u00e9\U0001f600"


def random_pieces(seed: int, *, has_bytes: bool, has_unused: bool = False) -> list[Piece]:
    """Return special pieces, and up to 40 that are made of few characters, with equal scores."""
    draw = random.Random(seed)
    texts = {MARK} | set(draw.sample(ALPHABET, 4))
    while len(texts) < draw.randint(8, 40):
        known = sorted(texts)
        texts.add((draw.choice(known) + draw.choice([*known, *ALPHABET]))[:9])
    found = [(text, float(-draw.randint(0, 12)), NORMAL) for text in sorted(texts)]
    symbols = texts | set(ALPHABET)
    if has_unused:
        found = [
            (text, score, UNUSED if _ways(text, symbols) < 2 and draw.random() < 0.3 else kind)
            for text, score, kind in found
        ]
        found = [(text, score, NORMAL if text == MARK else kind) for text, score, kind in found]
    return [*SPECIAL, *(BYTES if has_bytes else ()), *found]


def _ways(text: str, symbols: set[str]) -> int:
    return sum(text[:k] in symbols and text[k:] in symbols for k in range(1, len(text)))


def random_text(draw: random.Random, more: Sequence[str] = ()) -> str:
    strings = [*ALPHABET, " ", "  ", "x\x00\uffff", *more]
    return "".join(draw.choice(strings) for _ in range(draw.randint(0, 30)))


def user_defined(*texts: str) -> list[Piece]:
    return [(text, 0.0, USER) for text in texts]
