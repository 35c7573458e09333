"""What all encoders have in common: text in, ids out, slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import TextError
from llmgpu.text.corpus import TextSource

# Returns memory for n ids, uint32 (n,), whose contents are undefined.
Allocate = Callable[[int], NDArray[np.uint32]]


def new_ids(count: int) -> NDArray[np.uint32]:
    """Return new memory for `count` ids."""
    return np.empty(count, np.uint32)


@dataclass(frozen=True)
class EncodedSlice:
    """The ids of a part of a text.

    ids: uint32 (tokens,).
    document_starts: int64, positions in ids where documents start, repeated for empty documents.
    text_bytes: bytes of text that the slice covers.
    closed: a document ends where the slice does.
    """

    ids: NDArray[np.uint32]
    document_starts: NDArray[np.int64]
    text_bytes: int = 0
    closed: bool = False


class Encoder(Protocol):
    """Turns text into ids; `llmgpu.bpe.encoding.open.open_encoder` returns one."""

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order, each slice as soon as it is done.

        allocate: returns memory for the ids of a slice, called at most once for each. Only encoders
            that fetch ids from a device call it; the others have the ids in memory already.

        Raises:
            NoTokenError: a byte has no token, and the vocabulary no unknown token.
            InputError: the source's.
        """
        ...


class NoTokenError(TextError):
    """A byte at which no token starts."""

    def __init__(self, byte: int, offset: int) -> None:
        """Take the byte, and its offset in the whole text."""
        super().__init__(
            f"byte 0x{byte:02x}",
            offset,
            "has no token in the vocabulary, which has no unknown token either; use a vocabulary "
            "with all 256 bytes",
        )
        self.byte = byte
