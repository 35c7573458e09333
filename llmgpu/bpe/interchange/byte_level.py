"""GPT-2's alphabet: a printable character for each byte, so that tokens can stand in JSON.

Bytes that are printable characters of Latin-1 stand for themselves, the others get the characters
from U+0100 on, in order.
"""

from __future__ import annotations

from llmgpu.bpe.interchange.input_files import quote
from llmgpu.errors import VocabularyError


def _make_alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    number = {value: 0x100 + k for k, value in enumerate(others)}
    return tuple(chr(number.get(value, value)) for value in range(256))


ALPHABET = _make_alphabet()  # by byte

_TO_TEXT = dict(enumerate(ALPHABET))
# Characters that stand for no byte must not pass for the byte of their number.
_TO_BYTES = {value: 0xFFFD for value in range(256)} | {
    ord(character): value for value, character in enumerate(ALPHABET)
}


def to_text(token: bytes) -> str:
    """Return the characters of a token's bytes."""
    return token.decode("latin-1").translate(_TO_TEXT)


def to_bytes(text: str) -> bytes:
    """Return the bytes that `text` stands for; VocabularyError if a character stands for none."""
    try:
        return text.translate(_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError as error:
        raise VocabularyError(
            f"{quote(text)} is not written in the byte-level alphabet: {text[error.start]!r}"
        ) from error
