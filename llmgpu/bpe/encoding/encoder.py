"""The protocol of encoders, which turn text into ids slice by slice, and memory for the ids.

The operating system takes as long to provide new memory as a GPU takes to encode. So the memory for
ids is used again, or reserved once for the ids of a whole text.
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
from llmgpu.machine import has_limited_address_space
from llmgpu.text.corpus import TextSource

# A function that returns memory for n ids, uint32 (n,), with undefined contents.
Allocate = Callable[[int], NDArray[np.uint32]]


def new_ids(count: int) -> NDArray[np.uint32]:
    """Return new memory for `count` ids."""
    return np.empty(count, np.uint32)


@dataclass(frozen=True)
class EncodedSlice:
    """The ids of a slice of text.

    ids: uint32 (tokens,).
    document_starts: int64 (documents,), positions in `ids` where documents start. An empty document
        has the same position as the next document.
    text_bytes: bytes of text that the slice covers.
    closed: whether a document ends at the end of the slice.
    mask: bool (tokens,), whether an id counts in a loss; None if all count.
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
        """Yield the ids of a text in order, each slice as soon as it is encoded.

        allocate: returns memory for the ids of a slice; called at most once for a slice, in the
        order of the slices. An encoder with memory of its own for ids does not call `allocate`.

        Raises NoTokenError if a byte has no token and the vocabulary has no unknown token, and
        InputError if the source can't be read.
        """


@runtime_checkable
class Expecting(Protocol):
    """An encoder that chooses the size of slices by the announced length of the next text."""

    def expect(self, text_bytes: int | None) -> None:
        """Announce the length of the next text in bytes; None if unknown."""


class NoTokenError(TextError):
    """Raised for a byte at which no token starts."""

    def __init__(self, byte: int, offset: int) -> None:
        """Store the byte and its offset in the whole text."""
        super().__init__(
            f"byte 0x{byte:02x}",
            offset,
            "has no token in the vocabulary, which has no unknown token either; use a vocabulary "
            "with all 256 bytes",
        )
        self.byte = byte


# `CollectedIds` reserves memory for this many ids or more. Fewer ids are quickly copied instead.
RESERVED_FROM = 1 << 22


class ReusedMemory:
    """Allocates memory for ids. Memory is reused as soon as no array refers to it.

    Any thread may allocate.
    """

    def __init__(self) -> None:
        self._idle: deque[NDArray[np.uint32]] = deque()

    def __call__(self, count: int) -> NDArray[np.uint32]:
        memory = new_ids(0)
        # Drop idle memory that is too small, until an array is large enough.
        with suppress(IndexError):
            while len(memory) <= count:
                memory = self._idle.popleft()
        if len(memory) <= count:
            memory = new_ids(1 + count + count // 4)
        # `memory` becomes idle when the last view of `ids` is gone, because each view keeps
        # `ids.base` alive. (Without `.data`, views would keep `memory` alive instead of
        # `ids.base`.)
        ids = np.frombuffer(memory.data, np.uint32)[:count]
        weakref.finalize(ids.base, self._idle.append, memory)
        return ids


class CollectedIds:
    """Collects the ids of all slices of a text in one array.

    For many ids, an address range is reserved for the whole array at once. The range takes no
    memory until ids are written. An encoder may write ids straight into the array.
    """

    def __init__(self, most: int | None) -> None:
        """Reserve an array for the ids of a text. Ids beyond its end go to separate arrays.

        most: estimate of the number of ids; None if unknown.
        """
        self._reserved = _reserve(most or 0)
        self._count = 0  # number of ids in the reserved array
        # The ids of the first slice that did not fit into the array, and of all later slices.
        self._rest: list[NDArray[np.uint32]] = []

    def __len__(self) -> int:
        return self._count + sum(map(len, self._rest))

    @property
    def room(self) -> int:
        """The number of ids that the reserved array can hold."""
        return len(self._reserved)

    def place(self, begin: int, count: int) -> NDArray[np.uint32] | None:
        """Return the stretch of the array for ids `begin` to `begin + count`; None beyond its end.

        Any thread may write ids there before they are appended.
        """
        if begin + count > len(self._reserved):
            return None
        return self._reserved[begin : begin + count]

    def __call__(self, count: int) -> NDArray[np.uint32]:
        """Return memory for the next `count` ids, in the array if they fit, else elsewhere."""
        if self._rest or count > len(self._reserved) - self._count:
            return new_ids(count)
        return self._reserved[self._count : self._count + count]

    def append(self, ids: NDArray[np.uint32]) -> None:
        """Append ids. Ids that the encoder wrote straight into the array are not copied."""
        place = self(len(ids))
        if self._rest or place.base is not self._reserved:
            self._rest.append(ids)
            return
        if ids.ctypes.data != place.ctypes.data:  # the encoder wrote these ids elsewhere
            place[:] = ids
        self._count += len(ids)

    def take(self) -> NDArray[np.uint32]:
        """Return all ids, uint32 (n,)."""
        if self._count == 0 and len(self._rest) == 1:
            return self._rest[0]
        ids = self._reserved[: self._count]
        return np.concatenate([ids, *self._rest]) if self._rest else ids


def _reserve(most: int) -> NDArray[np.uint32]:
    """Return an uninitialized array for `most` ids, or an empty array.

    The array is empty if `most` is below RESERVED_FROM, or if the memory can't be reserved.
    """
    if most < RESERVED_FROM or has_limited_address_space():
        return new_ids(0)
    try:
        return new_ids(most)
    except (MemoryError, ValueError):  # ValueError: an array can't be this large
        return new_ids(0)
