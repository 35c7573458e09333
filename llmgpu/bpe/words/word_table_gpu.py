"""The table of distinct words on a device, for counting and encoding: kernels in wgsl/words.

A slice takes one submission: the text is uploaded, the starts of words are marked, every word is
looked up in the table, and missing words are inserted. The table is kept from slice to slice. Words
for which the table had no room stay pending. Then the table grows, or is emptied if it has reached
its limit of memory, and the slice runs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pretoken_gpu import GpuPretokenizer
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import ALIGNMENT, Buffer
from llmgpu.gpu.commands import Commands, Download, Staging
from llmgpu.gpu.device import Device, hash_key_buffer
from llmgpu.gpu.kernel import BoundKernel, Kernel
from llmgpu.kernel_source import constant, struct_dtype
from llmgpu.spelling import spelled

STATE = struct_dtype("words/state.wgsl", "WordState")
FIRST_WORDS = 1 << 19
MOST_FRESH = 1 << 19  # number of new words that one pass over a slice can list, at most
TABLE_BYTES = 4 << 30  # a table that would grow beyond this size is emptied
# Bytes of a slot of the table: a word's key, and the number by which a new word claims the slot.
SLOT_BYTES = 20
GROUPS, SOFTWARE_GROUPS = 512, 64
HASH_MASK = constant("words/state.wgsl", "HASH_MASK")


# The table's kernels, see `Device.prepare`: before words are looked up, afterwards, and for growth.
BEGIN, REHASH = "words/00_begin_slice", "words/03_rehash"
INSERTION = "words/01_claim", "words/02_number"


class GpuWordTable:
    """A table of distinct words on a device, numbered in the order of insertion.

    generation: a number that changes when buffers are replaced; kernels must then be bound again.
    """

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

        kernels: `rehash`, and the kernels of a slice in their order.
        first_words: number of words for which the first table has room. table_bytes: limit of the
            table's memory.
        word_arrays: bytes of an element, by name, of further buffers that have an element for each
            word, zero at first.
        data_arrays: bytes of an element, by name, of further buffers that have an element for every
            four bytes of the words.
        """
        self.device, self.kernels = device, dict(kernels)
        self._rehash_kernel = self.kernels.pop("rehash")
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
            "hash_key": hash_key_buffer(device),
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
        for name in ("word_capacity", "slot_capacity", "data_capacity", "fresh_capacity"):
            state[name] = getattr(self, name)
        self.device.write(self.buffers["state"], state)

    def read_state(self) -> NDArray[Any]:
        """Return the state, one element of STATE."""
        size = STATE.itemsize
        state: NDArray[Any] = self.device.read(self.buffers["state"], size, np.uint8).view(STATE)[0]
        return state

    def grow(self, state: NDArray[Any], *, beyond_limit: bool = False) -> bool:
        """At least double the table's room for words or for their bytes; return False at the limit.

        Does nothing and returns True if another slice has made the table grow since this slice ran.

        state: the state after this slice. beyond_limit: grow even beyond the limit of memory.
        """
        found = int(state["word_capacity"]), int(state["data_capacity"])
        if found != (self.word_capacity, self.data_capacity):
            return True
        now = self.read_state()
        words, data = int(now["words"]), int(now["data_used"])
        fresh = words + min(int(state["fresh"]), self.fresh_capacity)
        fresh_data = data + int(state["fresh_data"])
        new_words, new_data = self.word_capacity, self.data_capacity
        # The slice ran out of room for bytes or for words, or found no free slot near a hash. In
        # the last two cases the table needs more slots.
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
        # The kernel reads the new number of slots from the state.
        self._write_state()
        commands = self.device.record()
        for name in (*self._word_arrays, *self._data_arrays):
            source, target = before[name], self.buffers[name]
            commands.copy(source.handle, target.handle, min(source.nbytes, target.nbytes))
        rehash = self._rehash_kernel.bind_from(self.buffers | {"old_table": before["table"]})
        commands.dispatch(rehash, self.groups)
        commands.submit()
        if self.read_state()["full"]:
            raise DeviceError(
                f"too many words have the same hash value; use {spelled('--device cpu')}"
            )

    def clear(self) -> None:
        """Empty the table."""
        commands = self.device.record()
        for name in ("slots", "table", *self._word_arrays):
            commands.clear(self.buffers[name])
        commands.submit()
        self._write_state()


class WordSlot:
    """Buffers of one slice on a device: staging memory, text, start bits and pending words.

    main_end: length of the main part of the uploaded slice in bytes, see `Slice.main_end`.
    """

    def __init__(self, device: Device, pattern: str | Pattern, slice_bytes: int) -> None:
        self.device = device
        self.staging = Staging(device, slice_bytes)
        self.staging.array()  # map the memory early, because mapping it the first time is slow
        self._pretokenizer = GpuPretokenizer(device, pattern, slice_bytes)
        self._state_copy = Download(device)
        self._generation = 0
        self._kernels: dict[str, BoundKernel] = {}
        self.buffers: dict[str, Buffer] = {
            "text": self._pretokenizer.text,
            "start_bits": self._pretokenizer.start_bits,
            "pending": device.create_buffer("pending", slice_bytes // 8 + 4),
            "params": device.create_buffer("slice params", 16),
            "undecided": self._pretokenizer.undecided,
        }

    def read_slice(self) -> Slice:
        """Return the uploaded slice with its text, read back from the device."""
        return self._pretokenizer.read_back(self._piece)

    def mark_on_host(self) -> None:
        """Mark all starts of words of the slice on the host."""
        self._pretokenizer.mark_on_host(self.read_slice())

    def upload(self, commands: Commands, piece: Slice) -> None:
        """Record commands that upload a slice from staging memory and mark the starts of words."""
        self._piece, self.main_end = piece, piece.main_end
        params = np.array((piece.main_end, len(piece.document_starts), 0, 0), np.uint32)
        self.device.write(self.buffers["params"], params)
        self.staging.copy_to(commands, self.buffers["text"], piece.length)
        self._pretokenizer.record(commands, piece)
        self.all_pending(commands)

    def all_pending(self, commands: Commands) -> None:
        """Record a command that marks all words of the slice as pending."""
        nbytes = -(-self.main_end // 32) * 4
        starts = self._pretokenizer.start_bits
        commands.copy(starts.handle, self.buffers["pending"].handle, nbytes)

    @property
    def groups_over_text(self) -> int:
        """Number of workgroups in which each thread has 32 bytes of the slice's main part."""
        return -(-self.main_end // (32 * self.device.workgroup_size))

    def record(self, commands: Commands, table: GpuWordTable, groups: Mapping[str, int]) -> None:
        """Record a table's kernels of a slice, bound to the buffers of this slot and of the table.

        groups: numbers of workgroups by name; all other kernels have `table.groups`, and stride.
        """
        if self._generation != table.generation:
            buffers = table.buffers | self.buffers
            self._kernels = {name: each.bind_from(buffers) for name, each in table.kernels.items()}
            self._generation = table.generation
        for name, kernel in self._kernels.items():
            commands.dispatch(kernel, groups.get(name, table.groups))

    def submit_with_state(self, commands: Commands, table: GpuWordTable) -> None:
        """Submit commands and a copy of the table's state, which `collect` reads."""
        self._state_copy.record(commands, (table.buffers["state"], STATE.itemsize))
        commands.submit()

    def collect(self) -> NDArray[Any]:
        """Wait for the slice; return its final state, one element of STATE."""
        state = np.empty(1, STATE)
        self._state_copy.finish(state.view(np.uint8))
        final: NDArray[Any] = state[0]
        return final

    def read_words(self, spans: Sequence[tuple[int, int]]) -> list[NDArray[np.uint8]]:
        """Return words of the slice, given by begin and end in ascending order."""
        if not spans:
            return []
        first = spans[0][0] // ALIGNMENT * ALIGNMENT
        count = spans[-1][1] - first
        text = self.device.read(self.buffers["text"].view(first, count), count, np.uint8)
        return [text[begin - first : end - first] for begin, end in spans]

    def long_spans(self, longest: int) -> list[tuple[int, int]]:
        """Return begin and end of each word of the slice of more than `longest` bytes."""
        starts = self._pretokenizer.start_bits
        bits = self.device.read(starts, -(-self.main_end // 8), np.uint8)
        if self.main_end % 8:
            bits[-1] &= (1 << self.main_end % 8) - 1
        return long_spans(bits, self.main_end, longest)


def long_spans(start_bits: NDArray[np.uint8], length: int, longest: int) -> list[tuple[int, int]]:
    """Return begin and end of each word of more than `longest` bytes; `longest` is 128 or more.

    start_bits: uint8, a bit for each byte of a text, lowest bit first: 1 at the start of a word.
        Bits after the text are 0.
    length: bytes of the text, 1 or more; the text consists of whole words.
    """
    # Group the bits by 64, uint64 (length // 64 + 1,), and set a bit at the end of the text. A long
    # word contains whole groups without a set bit.
    groups = np.zeros(length // 64 + 1, "<u8")
    groups.view(np.uint8)[: len(start_bits)] = start_bits
    groups[length // 64] |= np.uint64(1 << length % 64)
    filled = np.flatnonzero(groups)
    spans = []
    for k in np.flatnonzero(np.diff(filled) > (longest - 63) // 64).tolist():
        # The word starts at the last bit set before the gap, and ends at the first bit after it.
        before, after = (int(groups[filled[place]]) for place in (k, k + 1))
        start = 64 * int(filled[k]) + before.bit_length() - 1
        end = 64 * int(filled[k + 1]) + (after & -after).bit_length() - 1
        if end - start > longest:
            spans.append((start, end))
    return spans
