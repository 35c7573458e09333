"""NFC: text composed as Unicode says, before it is encoded.

- Each document is normalized by itself, and in it each run of valid UTF-8; invalid bytes stay as
  they are, and nothing composes across them.
- A document that comes in blocks is cut before a character that starts anew whatever came before:
  its decomposition begins with a starter that composes with nothing in front of it. What is behind
  the last such place is held back; that is a few bytes, unless a text goes on with marks for ever.
- Python's own table is used: `UNICODE_VERSION` says which it is.
"""

from __future__ import annotations

import codecs
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, NoTokenError, new_ids
from llmgpu.errors import InputError
from llmgpu.text.corpus import TextSource
from llmgpu.text.documents import Chunk
from llmgpu.text.text_filter import LEAST_BYTES, FilteredSource

UNICODE_VERSION = unicodedata.unidata_version

_ERRORS = "surrogateescape"  # invalid bytes become lone surrogates, which are starters
_LONGEST = 4  # bytes of a character
_VOWELS_AND_FINALS = range(0x1160, 0x1200)  # conjoining Hangul letters that follow others


class NormalizingEncoder:
    """An encoder that normalizes its text first; slices and offsets are of the normalized text."""

    def __init__(self, encoder: Encoder, block_bytes: int = LEAST_BYTES) -> None:
        """Put NFC before `encoder`; block_bytes: read at a time, at least."""
        self._encoder = encoder
        self._block_bytes = block_bytes

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        filtered = FilteredSource(source, NfcFilter(), self._block_bytes)
        try:
            yield from self._encoder.encode(filtered, allocate)
        except NoTokenError as error:
            raise InputError(f"in the normalized text, {error}") from None


class NfcFilter:
    """Normalizes a text that comes in blocks; see `llmgpu.text.text_filter.TextFilter`."""

    def __init__(self) -> None:
        self._held = b""  # begins where a document does, or at a safe place; has no other one
        self._held_starts = np.empty(0, np.int64)

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Chunk:
        """Return the normalized text that is decided."""
        before = len(self._held)
        data = self._held + text.tobytes()
        starts = np.concatenate([self._held_starts, starts + before])
        decided, own = len(data), len(starts)
        if not final:
            last = int(starts[-1]) if len(starts) else 0
            found = _last_safe_place(data, max(last, before - _LONGEST + 1))
            decided = last if found is None else found
            own = int(np.searchsorted(starts, decided))
        self._held, self._held_starts = data[decided:], starts[own:] - decided
        normalized, places = _normalize_documents(data[:decided], starts[:own])
        return Chunk(np.frombuffer(normalized, np.uint8), places, final)


def _normalize_documents(data: bytes, starts: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
    """Return the normalized bytes, and where the documents begin in them."""
    if data.isascii() or unicodedata.is_normalized("NFC", data.decode(errors=_ERRORS)):
        return data, starts
    parts = [
        unicodedata.normalize("NFC", data[begin:end].decode(errors=_ERRORS)).encode(errors=_ERRORS)
        for begin, end in pairwise([0, *starts.tolist(), len(data)])
    ]
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return b"".join(parts), np.cumsum(lengths)[:-1]


def _last_safe_place(data: bytes, first: int) -> int | None:
    """Return the last position from `first` on before which the data can be cut, if any."""
    return next((i for i in range(len(data) - 1, first - 1, -1) if _is_safe(data, i)), None)


def _is_safe(data: bytes, position: int) -> bool:
    """Whether the data before and from a position on can be normalized one by one."""
    if data[position] < 0x80:
        return True
    if data[position] < 0xC0:  # part of a character, unless it is the fourth such byte in a row
        before = data[max(0, position - _LONGEST + 1) : position]
        return len(before) == _LONGEST - 1 and all(0x80 <= byte < 0xC0 for byte in before)
    text, _ = codecs.utf_8_decode(data[position : position + _LONGEST], _ERRORS, False)
    return bool(text) and starts_anew(text[0])


def starts_anew(character: str) -> bool:
    """Whether nothing before a character can change what it is normalized to, nor be changed."""
    first = unicodedata.normalize("NFD", character)[0]
    return not unicodedata.combining(first) and first not in _composing()


@cache
def _composing() -> frozenset[str]:
    """Return the characters that can compose with one in front of them, and maybe more."""
    found = set(map(chr, _VOWELS_AND_FINALS))
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            found.add(chr(int(parts[1], 16)))
    return frozenset(found)
