"""The table of distinct words on a device, kernels in wgsl/words, as counting and encoding use it.

A slice is one submission: upload, marking where words start, looking every word up in the table,
and inserting those that are not there yet. The table persists over slices. What a slice could not
take in, because the table was full, is left pending; the table grows, or is emptied when it has its
share of memory, and the slice is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.pretoken_gpu import GpuPretokenizer
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.errors import DeviceError
from llmgpu.gpu import (
    BoundKernel,
    Buffer,
    BufferPool,
    Commands,
    Device,
    Download,
    Kernel,
    Staging,
    struct_dtype,
)

STATE = struct_dtype("words/state.wgsl", "WordState")
FIRST_WORDS = 1 << 19
MOST_FRESH = 1 << 19  # words that are listed in a run
TABLE_BYTES = 4 << 30  # a table that would need more is emptied
SLOT_BYTES = 20  # key and claim of a slot
GROUPS, SOFTWARE_GROUPS = 512, 64
INSERTION = ("claim", "number")  # kernels that follow the one that looks words up


def prepare_kernels(
    device: Device, workgroup_size: int, files: Mapping[str, Mapping[str, int]]
) -> dict[str, Kernel]:
    """Compile the table's kernels and those of `files`, which have constants of their own.

    Returns them by the names of their files, without folder and number.
    """
    size = {"WORKGROUP_SIZE": workgroup_size}
    shared = ("words/01_claim", "words/02_number", "words/03_rehash")
    requests: list[tuple[str, Mapping[str, int]]] = [("words/00_begin_slice.wgsl", {})]
    requests += [(f"{file}.wgsl", size) for file in shared]
    requests += [(f"{file}.wgsl", size | dict(constants)) for file, constants in files.items()]
    names = [file.split("/")[1].removesuffix(".wgsl")[3:] for file, _ in requests]
    return dict(zip(names, device.prepare(requests), strict=True))


class GpuWordTable:
    """The table of distinct words, numbered as they come; it grows."""

    def __init__(
        self,
        device: Device,
        kernels: dict[str, Kernel],
        slice_bytes: int,
        first_words: int,
        table_bytes: int,
        *,
        word_arrays: Mapping[str, int],
        data_arrays: Mapping[str, int],
    ) -> None:
        """Make an empty table.

        word_arrays: further buffers by name, so many bytes for each word, zeros at first.
        data_arrays: the same for each four bytes of the words.
        """
        self.device, self.kernels = device, kernels
        self.groups = SOFTWARE_GROUPS if device.is_software else GROUPS
        self._most_bytes = table_bytes
        self._word_arrays = {"places": 4, **word_arrays}
        self._data_arrays = {"word_data": 4, **data_arrays}
        self.generation = 0
        self.fresh_capacity = max(64, min(slice_bytes // 8, first_words, MOST_FRESH))
        self.buffers: dict[str, Buffer] = {
            "state": device.create_buffer("word state", STATE.itemsize),
            "fresh": device.create_buffer("fresh words", 16 * self.fresh_capacity),
            "owners": device.create_buffer("owners", 4 * self.fresh_capacity),
        }
        data = 2 * self.fresh_capacity + slice_bytes // 4
        self._allocate(max(first_words, self.fresh_capacity), data)
        self._write_state()

    def _allocate(self, words: int, data: int) -> None:
        self.slot_capacity = 2 << (words - 1).bit_length()
        self.word_capacity, self.data_capacity = self.slot_capacity // 2, data
        create = self.device.create_buffer
        self.buffers["slots"] = create("word slots", 4 * self.slot_capacity)
        self.buffers["table"] = create("word table", 16 * self.slot_capacity)
        for name, nbytes in self._word_arrays.items():
            self.buffers[name] = create(name, nbytes * self.word_capacity)
        for name, nbytes in self._data_arrays.items():
            self.buffers[name] = create(name, nbytes * data)
        self.generation += 1

    def _write_state(self, words: int = 0, data_used: int = 0, ids_used: int = 0) -> None:
        state = np.zeros(1, STATE)
        state["words"], state["data_used"], state["ids_used"] = words, data_used, ids_used
        state["word_capacity"] = self.word_capacity
        state["slot_capacity"] = self.slot_capacity
        state["data_capacity"] = self.data_capacity
        state["fresh_capacity"] = self.fresh_capacity
        self.device.write(self.buffers["state"], state)

    def read_state(self) -> NDArray[Any]:
        """Return the state, one element of STATE."""
        size = STATE.itemsize
        state: NDArray[Any] = self.device.read(self.buffers["state"], size, np.uint8).view(STATE)[0]
        return state

    def bind(self, names: Sequence[str], slot: Mapping[str, Buffer]) -> list[BoundKernel]:
        """Bind kernels to the table's buffers and those of a slot."""
        buffers = self.buffers | dict(slot)
        kernels = [self.kernels[name] for name in names]
        return [
            kernel.bind(**{binding.name: buffers[binding.name] for binding in kernel.bindings})
            for kernel in kernels
        ]

    def grow(self, state: NDArray[Any], *, beyond_limit: bool = False) -> bool:
        """Make room for the fresh words of a slice and as many again; False if that is too much.

        state: that of the slice. beyond_limit: grow all the same.
        """
        now = self.read_state()
        words, data = int(now["words"]), int(now["data_used"])
        fresh = words + min(int(state["fresh"]), self.fresh_capacity)
        fresh_data = data + int(state["fresh_data"])
        new_words, new_data = self.word_capacity, self.data_capacity
        if fresh_data > new_data:
            new_data = max(2 * new_data, fresh_data)
        if fresh > new_words or new_data == self.data_capacity:
            new_words = max(2 * new_words, fresh)
        slots = 2 << (new_words - 1).bit_length()
        largest = max(16 * slots, max(self._data_arrays.values()) * new_data)
        total = SLOT_BYTES * slots + sum(self._word_arrays.values()) * new_words
        total += sum(self._data_arrays.values()) * new_data
        if (
            words
            and not beyond_limit
            and (largest > self.device.max_binding_bytes or total > self._most_bytes)
        ):
            return False
        self._rehash(new_words, new_data)
        self._write_state(words, data, int(now["ids_used"]))
        return True

    def _rehash(self, new_words: int, new_data: int) -> None:
        before = dict(self.buffers)
        self._allocate(new_words, new_data)
        # The state says already how many slots there are now.
        self._write_state()
        commands = self.device.record()
        for name in (*self._word_arrays, *self._data_arrays):
            source, target = before[name], self.buffers[name]
            commands.copy(source.handle, target.handle, min(source.nbytes, target.nbytes))
        rehash = self.kernels["rehash"].bind(
            old_table=before["table"],
            slots=self.buffers["slots"],
            table=self.buffers["table"],
            state=self.buffers["state"],
        )
        commands.dispatch(rehash, self.groups)
        self.device.submit(commands)
        if self.read_state()["full"]:
            raise DeviceError("too many words of one hash value; use --device cpu")

    def clear(self) -> None:
        """Empty the table."""
        commands = self.device.record()
        for name in ("slots", "table", *self._word_arrays):
            commands.clear(self.buffers[name])
        self.device.submit(commands)
        self._write_state()


class WordSlot:
    """One slice on a device: staging memory, text, start bits and the words to be looked up."""

    def __init__(self, device: Device, pattern: str, slice_bytes: int) -> None:
        """Allocate memory for slices of up to `slice_bytes`."""
        self.device = device
        self.staging = Staging(device, slice_bytes)
        self.staging.array()  # now, because memory is mapped slowly for the first time
        pool = BufferPool(device)
        self._text = pool.get("text", slice_bytes + 8)
        self._pretokenizer = GpuPretokenizer(device, pattern, slice_bytes, pool)
        self._pretokenizer.bind(self._text)
        self._pending = pool.get("pending", slice_bytes // 8 + 4)
        self._params = device.create_uniform("slice params", 16)
        self._state_copy = Download(device)
        self._generation = 0
        self._kernels: list[BoundKernel] = []
        self._piece: Slice | None = None
        self.buffers: dict[str, Buffer] = {
            "text": self._text,
            "start_bits": self._pretokenizer.start_bits,
            "pending": self._pending,
            "params": self._params,
            "undecided": self._pretokenizer.undecided,
        }

    @property
    def main_end(self) -> int:
        """Bytes of the slice's main part."""
        return self._piece.main_end if self._piece else 0

    def mark_on_host(self) -> None:
        """Mark where words start in a slice that the device leaves undecided."""
        if self._piece is not None:
            text = self.device.read(self._text, self._piece.length, np.uint8)
            self._pretokenizer.mark_on_host(self._piece, text)

    def upload(self, commands: Commands, piece: Slice) -> None:
        """Record uploading the slice in the staging memory, and marking where words start."""
        self._piece = piece
        params = np.array((piece.main_end, len(piece.document_starts), 0, 0), np.uint32)
        self.device.write(self._params, params)
        self.staging.copy_to(commands, self._text, piece.length)
        self._pretokenizer.record(commands, piece)
        self.all_pending(commands)

    def all_pending(self, commands: Commands) -> None:
        """Record that all words of the slice are to be looked up."""
        nbytes = -(-self.main_end // 32) * 4
        starts = self._pretokenizer.start_bits
        commands.copy(starts.handle, self._pending.handle, nbytes)

    def bound(self, table: GpuWordTable, names: Sequence[str]) -> list[BoundKernel]:
        """Return kernels bound to this slot and a table."""
        if self._generation != table.generation:
            self._kernels = table.bind(names, self.buffers)
            self._generation = table.generation
        return self._kernels

    def forget_bindings(self) -> None:
        """Have the kernels bound anew: one of the buffers is another one now."""
        self._generation = 0

    def submit_with_state(self, commands: Commands, table: GpuWordTable) -> None:
        """Submit commands, and the copy of the state that they leave."""
        self._state_copy.record(commands, table.buffers["state"], STATE.itemsize)
        self.device.submit(commands)
        self._state_copy.begin()

    def collect(self) -> NDArray[Any]:
        """Wait for the slice; return its final state, one element of STATE."""
        state = np.empty(1, STATE)
        self._state_copy.finish(state.view(np.uint8))
        final: NDArray[Any] = state[0]
        return final

    def read_byte(self, position: int) -> int:
        """Return a byte of the text."""
        return int(self.device.read(self._text, position + 1, np.uint8)[position])

    def read_long_words(self, longest: int) -> list[NDArray[np.uint8]]:
        """Return the words of more than `longest` bytes, in order."""
        text = self.device.read(self._text, self.main_end, np.uint8)
        starts = self._pretokenizer.start_bits
        bits = self.device.read(starts, -(-self.main_end // 8), np.uint8)
        if self.main_end % 8:
            bits[-1] &= (1 << self.main_end % 8) - 1
        return long_words(text, bits, longest)


def long_words(
    text: NDArray[np.uint8], start_bits: NDArray[np.uint8], longest: int
) -> list[NDArray[np.uint8]]:
    """Return the words of more than `longest` bytes, 128 or more.

    text: uint8 (n,), n > 0, from the start of a word to the end of one.
    start_bits: uint8, a bit for each of these bytes, none behind.
    """
    # Words of this length leave groups of bits empty, so only what is around such is looked at.
    groups = np.zeros(-(-len(start_bits) // 8), "<u8")
    groups.view(np.uint8)[: len(start_bits)] = start_bits
    empty = np.flatnonzero(groups == 0)
    first = empty[np.diff(empty, prepend=-1) > 1]
    last = empty[np.diff(empty, append=len(groups) + 1) > 1]
    enough = last - first + 1 >= (longest - 63) // 64
    words = []
    for group, behind in zip(first[enough].tolist(), (last[enough] + 1).tolist(), strict=True):
        start = 64 * (group - 1) + int(groups[group - 1]).bit_length() - 1
        end = len(text)
        if behind < len(groups):
            bits = int(groups[behind])
            end = 64 * behind + (bits & -bits).bit_length() - 1
        if end - start > longest:
            words.append(text[start:end])
    return words
