"""The protocol of encoders, text in and ids out, slice by slice; and memory for the ids.

Memory is reused or reserved: the system takes as long for new pages as a GPU for encoding.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import TextError
from llmgpu.memory import has_limited_address_space
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
    closed: a document ends at the end of the slice.
    mask: bool (tokens,), the ids that count in a loss; None if all count.
    content: the ids in the form that a sink writes, set when the sink has prepared the slice.
    """

    ids: NDArray[np.uint32]
    document_starts: NDArray[np.int64]
    text_bytes: int = 0
    closed: bool = False
    mask: NDArray[np.bool_] | None = None
    content: Any = None


class Encoder(Protocol):
    """Turns text into ids; `llmgpu.bpe.encoding.open.open_encoder` returns one."""

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order, each slice as soon as it is done.

        allocate: returns memory for the ids of a slice; called at most once for a slice, in the
            order of the slices. An encoder with memory of its own for ids does not call `allocate`.

        Raises NoTokenError if a byte has no token and the vocabulary no unknown token; InputError
        as the source does.
        """
        ...


@runtime_checkable
class Expecting(Protocol):
    """An encoder that uses the length of the next text, if known, to choose the size of slices."""

    def expect(self, text_bytes: int | None) -> None:
        """Take the bytes of the next text; None: unknown."""


class NoTokenError(TextError):
    """A byte at which no token starts."""

    def __init__(self, byte: int, offset: int) -> None:
        """Store the byte and its offset in the whole text."""
        super().__init__(
            f"byte 0x{byte:02x}",
            offset,
            "has no token in the vocabulary, which has no unknown token either; use a vocabulary "
            "with all 256 bytes",
        )
        self.byte = byte


RESERVED_FROM = 1 << 22  # ids: fewer are quick to copy, and reserving would waste memory


class ReusedMemory:
    """Memory for ids that is reused when no array refers to it any more.

    Any thread may allocate.
    """

    def __init__(self) -> None:
        self._idle: deque[NDArray[np.uint32]] = deque()

    def __call__(self, count: int) -> NDArray[np.uint32]:
        memory = new_ids(0)
        with suppress(IndexError):  # memory that is too small is dropped here
            while len(memory) <= count:
                memory = self._idle.popleft()
        if len(memory) <= count:
            memory = new_ids(1 + count + count // 4)
        # Arrays made from `ids` refer to `ids`, not to `memory`: the base of `ids` is no array.
        ids = np.frombuffer(memory.data, np.uint32)[:count]
        weakref.finalize(ids.base, self._idle.append, memory)
        return ids


class CollectedIds:
    """Ids that arrive slice by slice, collected in one array.

    If there may be many ids, addresses are reserved for all of them. Reserved addresses take no
    memory until ids are written. Slices that an encoder wrote into the array are not copied again.
    """

    def __init__(self, most: int | None) -> None:
        """Expect about `most` ids (None: unknown); more may arrive."""
        self._reserved = _reserve(most or 0)
        self._count = 0  # ids in the reserved memory
        self._rest: list[NDArray[np.uint32]] = []  # slices for which the array had no room

    def __len__(self) -> int:
        return self._count + sum(map(len, self._rest))

    @property
    def room(self) -> int:
        """How many ids the array has addresses for."""
        return len(self._reserved)

    def place(self, begin: int, count: int) -> NDArray[np.uint32] | None:
        """Return the place of `count` ids from number `begin` on; None beyond the array.

        Any thread may write ids to the place before they are appended.
        """
        if begin + count > len(self._reserved):
            return None
        return self._reserved[begin : begin + count]

    def __call__(self, count: int) -> NDArray[np.uint32]:
        """Allocate memory for the next `count` ids, in the array if there is room."""
        if self._rest or count > len(self._reserved) - self._count:
            return new_ids(count)
        return self._reserved[self._count : self._count + count]

    def append(self, ids: NDArray[np.uint32]) -> None:
        """Append ids. Ids in allocated memory must be as many as were allocated."""
        place = self(len(ids))
        if self._rest or place.base is not self._reserved:
            self._rest.append(ids)
            return
        if ids.ctypes.data != place.ctypes.data:  # not written here already
            place[:] = ids
        self._count += len(ids)

    def take(self) -> NDArray[np.uint32]:
        """Return all ids, uint32 (n,)."""
        if self._count == 0 and len(self._rest) == 1:
            return self._rest[0]
        ids = self._reserved[: self._count]
        return np.concatenate([ids, *self._rest]) if self._rest else ids


def _reserve(most: int) -> NDArray[np.uint32]:
    """Reserve untouched memory; none if there are few ids or the system refuses."""
    if most < RESERVED_FROM or has_limited_address_space():
        return new_ids(0)
    try:
        return new_ids(most)
    except (MemoryError, ValueError):  # more than there is, or than an array may have
        return new_ids(0)
