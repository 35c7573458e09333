"""Counting the distinct words of a corpus on a GPU: kernels in wgsl/count.

A slice is one submission: upload, marking where words start, looking every word up in a table on
the device, and inserting those that are not there yet. The table persists over slices. What a
slice could not take in, because the table was full, stays marked; the table grows, or its words
move to the host when it has its share of memory, and the slice is run again for just those words.

Words of more than MAX_WORD bytes are counted on the host.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.corpus import Corpus
from llmgpu.bpe.count_numpy import count_slice
from llmgpu.bpe.gpu_slices import submitted_slices
from llmgpu.bpe.pretoken_gpu import GpuPretokenizer
from llmgpu.bpe.slices import Slice, SliceReader
from llmgpu.bpe.word_runs import WordAccumulator
from llmgpu.bpe.words import DistinctWords
from llmgpu.errors import DeviceError
from llmgpu.gpu import BoundKernel, Buffer, BufferPool, Commands, Device, Download, Kernel, Staging
from llmgpu.progress import Progress, no_progress

MAX_WORD = 1024  # MAX_WORD in wgsl/count/state.wgsl
STATE = np.dtype(
    [
        (name, "<u4")
        for name in (
            "words",
            "data_used",
            "fresh",
            "fresh_data",
            "pending",
            "long",
            "full",
            "word_capacity",
            "slot_capacity",
            "data_capacity",
            "fresh_capacity",
        )
    ]
)  # CountState in wgsl/count/state.wgsl
SLICE_BYTES, SOFTWARE_SLICE_BYTES = 32 << 20, 4 << 20
FIRST_SLICE_BYTES = 1 << 20  # most words of a first slice are new, of later ones few
SLOTS = 3  # slices in flight: one being read, one uploaded, one computed
FIRST_WORDS = 1 << 19
TABLE_BYTES = 4 << 30  # a table that would need more moves its words to the host
SLOT_BYTES, WORD_BYTES = 20, 8  # key and claim of a slot; count and place of a word
GROUPS, SOFTWARE_GROUPS = 512, 64
COUNT_LIMIT = 1 << 32  # occurrences that the device can count of one word
_BYTE_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_LOWEST_BIT = _BYTE_BITS.argmax(axis=1)
_HIGHEST_BIT = 7 - _BYTE_BITS[:, ::-1].argmax(axis=1)


def gpu_bytes(words_bytes: int) -> int:
    """Estimate the device memory, in bytes, that counting takes for this much in distinct words."""
    return 8 * words_bytes + SLOTS * 2 * SLICE_BYTES + (256 << 20)


class GpuWordCounter:
    """Counts words under one pattern on one device; the table grows with the text."""

    def __init__(
        self,
        device: Device,
        pattern: str,
        words: WordAccumulator,
        *,
        slice_bytes: int | None = None,
        first_words: int = FIRST_WORDS,
        table_bytes: int = TABLE_BYTES,
        workgroup_size: int = 256,
    ) -> None:
        """Compile the kernels and make an empty table.

        words: takes the words that the device has no room for, and at the end all of them.
        slice_bytes, first_words, table_bytes: sizes on which the result does not depend.

        Raises:
            DeviceError: the adapter's memory or limits don't do.
        """
        self._device, self._pattern, self._words = device, pattern, words
        if slice_bytes is None:
            slice_bytes = SOFTWARE_SLICE_BYTES if device.is_software else SLICE_BYTES
        most = min(device.max_binding_bytes, COUNT_LIMIT // 2)
        self._slice_bytes = min(slice_bytes, most)
        self._wg = workgroup_size
        self._kernels = self._compile()
        self._lock = threading.Lock()  # of the table: submitting and growing exclude one another
        self._table = _Table(device, self._kernels, self._slice_bytes, first_words, table_bytes)
        pool = BufferPool(device)
        self._slots = [_Slot(self, pattern, number, pool) for number in range(SLOTS)]

    def _compile(self) -> dict[str, Kernel]:
        files = (
            "01_look_up",
            "02_claim",
            "03_number",
            "04_count_fresh",
            "05_rehash",
            "06_lengths",
            "07_pack",
        )
        size = {"WORKGROUP_SIZE": self._wg}
        requests: list[tuple[str, dict[str, int]]] = [("count/00_begin_slice.wgsl", {})]
        requests += [(f"count/{file}.wgsl", size) for file in files]
        kernels = self._device.prepare(requests)
        return {kernel.label.removeprefix("count_"): kernel for kernel in kernels}

    def count(self, corpus: Corpus, progress: Progress = no_progress) -> DistinctWords:
        """Read a corpus to its end and return its words.

        Raises:
            InputError: the corpus can't be read, or a word has more than MAX_WORD_BYTES.
        """
        reader = SliceReader(corpus, self._pattern)
        first = min(FIRST_SLICE_BYTES, self._slice_bytes)
        for slot, piece in submitted_slices(reader, self._slots, self._slice_bytes, first):
            if piece.oversized:
                self._words.add(count_slice(piece, self._pattern))
                continue
            state = slot.collect()
            if state["long"]:
                self._words.add(_long_words(*slot.read_text()))
            with self._lock:
                left = 0
                while state["pending"]:
                    # Nothing was taken in: the table is full, or too crowded where words belong.
                    if state["full"] or state["pending"] == left:
                        self._make_room(state)
                    left = int(state["pending"])
                    state = slot.run_again()
            progress("counting words", corpus.bytes_read, corpus.total_bytes)
        self._words.add(self._table.take_all())
        return self._words.result()

    def _make_room(self, state: NDArray[Any]) -> None:
        """Let the table grow, or move its words to the host."""
        if not self._table.grow(state):
            self._words.add(self._table.take_all())


class _Table:
    """The table of distinct words on the device."""

    def __init__(
        self,
        device: Device,
        kernels: dict[str, Kernel],
        slice_bytes: int,
        first_words: int,
        table_bytes: int,
    ) -> None:
        self._device, self._kernels = device, kernels
        self._groups = SOFTWARE_GROUPS if device.is_software else GROUPS
        self._most_bytes = table_bytes
        self.generation = 0
        self.fresh_capacity = max(64, min(slice_bytes // 8, first_words))
        self._text_counted = 0
        self._carried = np.zeros(0, np.int64)  # counts of words taken from the device, by number
        self.state = device.create_buffer("count state", STATE.itemsize)
        self._fresh = device.create_buffer("fresh words", 16 * self.fresh_capacity)
        self._owners = device.create_buffer("owners", 4 * self.fresh_capacity)
        data = 2 * self.fresh_capacity + slice_bytes // 4
        self._allocate(max(first_words, self.fresh_capacity), data)
        self._write_state(0, 0)

    def _allocate(self, words: int, data: int) -> None:
        create = self._device.create_buffer
        self._slot_capacity = 2 << (words - 1).bit_length()
        self.word_capacity, self._data_capacity = self._slot_capacity // 2, data
        self._slots = create("word slots", 4 * self._slot_capacity)
        self._table = create("word table", 16 * self._slot_capacity)
        self._counts = create("word counts", 4 * self.word_capacity)
        self._places = create("word places", 4 * self.word_capacity)
        self._data = create("word data", 4 * data)
        self.generation += 1

    def _write_state(self, words: int, data_used: int) -> None:
        state = np.zeros(1, STATE)
        state["words"], state["data_used"] = words, data_used
        state["word_capacity"] = self.word_capacity
        state["slot_capacity"] = self._slot_capacity
        state["data_capacity"] = self._data_capacity
        state["fresh_capacity"] = self.fresh_capacity
        self._device.write(self.state, state)

    def _read_state(self) -> NDArray[Any]:
        size = STATE.itemsize
        state: NDArray[Any] = self._device.read(self.state, size, np.uint8).view(STATE)[0]
        return state

    def bind(self, slot: _Slot) -> list[BoundKernel]:
        """Return look_up, claim, number and count_fresh for a slot's buffers."""
        buffers = {
            "table": self._table,
            "slots": self._slots,
            "counts": self._counts,
            "places": self._places,
            "word_data": self._data,
            "fresh": self._fresh,
            "owners": self._owners,
            "state": self.state,
            **slot.buffers,
        }
        return [
            kernel.bind(**{binding.name: buffers[binding.name] for binding in kernel.bindings})
            for kernel in (
                self._kernels[name] for name in ("look_up", "claim", "number", "count_fresh")
            )
        ]

    def expect(self, text_bytes: int) -> None:
        """Prepare for so much more text: no count may pass what the device can count."""
        self._text_counted += text_bytes
        if self._text_counted >= COUNT_LIMIT:
            self._carry_counts()
            self._text_counted = text_bytes

    def _carry_counts(self) -> None:
        """Move the counts, not the words, to the host."""
        words = int(self._read_state()["words"])
        counts = self._device.read(self._counts, words, np.uint32).astype(np.int64)
        counts[: len(self._carried)] += self._carried
        self._carried = counts
        commands = self._device.record()
        commands.clear(self._counts)
        self._device.submit(commands)

    def grow(self, state: NDArray[Any]) -> bool:
        """Make room for the fresh words of a slice and as many again; False if that is too much."""
        now = self._read_state()
        words, data = int(now["words"]), int(now["data_used"])
        fresh = min(int(state["fresh"]), self.fresh_capacity)
        new_words = max(2 * self.word_capacity, words + fresh)
        new_data = max(2 * self._data_capacity, data + int(state["fresh_data"]))
        slots = 2 << (new_words - 1).bit_length()
        largest = max(16 * slots, 4 * new_data)
        total = SLOT_BYTES * slots + WORD_BYTES * new_words + 4 * new_data
        if words and (largest > self._device.max_binding_bytes or total > self._most_bytes):
            return False
        self._rehash(new_words, new_data)
        self._write_state(words, data)
        return True

    def _rehash(self, new_words: int, new_data: int) -> None:
        old_table = self._table
        copied = [self._counts, self._places, self._data]
        self._allocate(new_words, new_data)
        # The state says already how many slots there are now.
        self._write_state(0, 0)
        commands = self._device.record()
        for source, target in zip(copied, (self._counts, self._places, self._data), strict=True):
            commands.copy(source.handle, target.handle, min(source.nbytes, target.nbytes))
        rehash = self._kernels["rehash"].bind(
            old_table=old_table, slots=self._slots, table=self._table, state=self.state
        )
        commands.dispatch(rehash, self._groups)
        self._device.submit(commands)
        if self._read_state()["full"]:
            raise DeviceError("too many words of one hash value; use --device cpu")

    def take_all(self) -> DistinctWords:
        """Return all words with their counts and empty the table."""
        state = self._read_state()
        words = int(state["words"])
        if words == 0:
            none = np.empty(0, np.int64)
            return DistinctWords(np.empty(0, np.uint8), np.zeros(1, np.int64), none)
        counts = self._device.read(self._counts, words, np.uint32).astype(np.int64)
        counts[: len(self._carried)] += self._carried
        data, offsets = self._pack(words)
        commands = self._device.record()
        for buffer in (self._slots, self._table, self._counts):
            commands.clear(buffer)
        self._device.submit(commands)
        self._write_state(0, 0)
        self._carried, self._text_counted = np.zeros(0, np.int64), 0
        return DistinctWords(data, offsets, counts)

    def _pack(self, words: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the words' bytes end to end, and where each begins and the last one ends."""
        device, kernels = self._device, self._kernels
        stored = {"places": self._places, "word_data": self._data, "state": self.state}
        lengths = device.create_buffer("word lengths", 4 * words)
        commands = device.record()
        commands.dispatch(kernels["lengths"].bind(**stored, lengths=lengths), self._groups)
        device.submit(commands)
        offsets = np.zeros(words + 1, np.int64)
        np.cumsum(device.read(lengths, words, np.uint32), out=offsets[1:])
        size = int(offsets[-1])
        device.write(lengths, offsets[1:].astype(np.uint32))
        packed = device.create_buffer("packed words", size)
        commands = device.record()
        pack = kernels["pack"]
        bound = pack.bind(**stored, ends=lengths, packed=packed)
        commands.dispatch(bound, -(-size // (4 * pack.workgroup_size)))
        device.submit(commands)
        return device.read(packed, size, np.uint8), offsets


class _Slot:
    """One slice: staging memory, text, start bits and the words still to be looked at."""

    def __init__(
        self, counter: GpuWordCounter, pattern: str, number: int, pool: BufferPool
    ) -> None:
        self._counter = counter
        device = self._device = counter._device
        size = counter._slice_bytes
        self.staging = Staging(device, size)
        own = BufferPool(device)
        self._text = own.get("text", size + 8)
        self._pretokenizer = GpuPretokenizer(device, pattern, size, own)
        self._pretokenizer.bind(self._text)
        self._pending = own.get("pending", size // 8 + 4)
        self._params = device.create_uniform("count params", 16)
        self._state_copy = Download(device)
        self._generation = 0
        self._kernels: list[BoundKernel] = []
        self._begin = counter._kernels["begin_slice"].bind(state=counter._table.state)
        self._piece: Slice | None = None
        self.buffers: dict[str, Buffer] = {
            "text": self._text,
            "start_bits": self._pretokenizer.start_bits,
            "pending": self._pending,
            "params": self._params,
        }

    def submit(self, piece: Slice) -> None:
        """Submit the slice that was read into the staging memory."""
        self._piece = piece
        with self._counter._lock:
            self._counter._table.expect(piece.main_end)
            params = np.array((piece.main_end, 0, 0, 0), np.uint32)
            self._device.write(self._params, params)
            commands = self._device.record()
            self.staging.copy_to(commands, self._text, piece.length)
            self._pretokenizer.record(commands, piece)
            nbytes = -(-piece.length // 32) * 4
            starts = self._pretokenizer.start_bits
            commands.copy(starts.handle, self._pending.handle, nbytes)
            self._record_count(commands, piece)

    def run_again(self) -> NDArray[Any]:
        """Run the slice again for the words that are pending; return the state, see `collect`."""
        assert self._piece is not None
        self._record_count(self._device.record(), self._piece)
        return self.collect()

    def _record_count(self, commands: Commands, piece: Slice) -> None:
        counter, table = self._counter, self._counter._table
        if self._generation != table.generation:
            self._kernels = table.bind(self)
            self._generation = table.generation
        look_up, claim, number, count_fresh = self._kernels
        commands.dispatch(self._begin, 1)
        commands.dispatch(look_up, -(-piece.main_end // (32 * counter._wg)))
        for kernel in (claim, number, count_fresh):
            commands.dispatch(kernel, table._groups)
        self._state_copy.record(commands, table.state, STATE.itemsize)
        self._state_copy.begin(self._device.submit(commands))

    def collect(self) -> NDArray[Any]:
        """Wait for the slice; return its final state, one element of STATE."""
        state = np.empty(1, STATE)
        self._state_copy.finish(state.view(np.uint8))
        counted: NDArray[Any] = state[0]
        return counted

    def read_text(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the main part, uint8 (main_end,), and a bit for each byte where words start."""
        assert self._piece is not None
        length = self._piece.main_end
        text = self._device.read(self._text, length, np.uint8)
        bits = self._device.read(self._pretokenizer.start_bits, -(-length // 8), np.uint8)
        if length % 8:
            bits[-1] &= (1 << length % 8) - 1
        return text, bits


def _long_words(text: NDArray[np.uint8], start_bits: NDArray[np.uint8]) -> DistinctWords:
    """Return the words of more than MAX_WORD bytes.

    text: uint8 (n,), from the start of a word to the end of one.
    start_bits: uint8, a bit for each of these bytes, none behind.
    """
    # Words of this length leave whole bytes of bits empty, so nothing else is looked at.
    occupied = np.flatnonzero(start_bits)
    before = np.flatnonzero(np.diff(occupied) * 8 > MAX_WORD - 8)
    before = np.append(before, len(occupied) - 1)
    starts = occupied[before] * 8 + _HIGHEST_BIT[start_bits[occupied[before]]]
    behind = occupied[before[:-1] + 1]
    ends = np.append(behind * 8 + _LOWEST_BIT[start_bits[behind]], len(text))
    long = ends - starts > MAX_WORD
    spans = zip(starts[long].tolist(), ends[long].tolist(), strict=True)
    return _as_distinct([text[start:end] for start, end in spans])


def _as_distinct(words: list[NDArray[np.uint8]]) -> DistinctWords:
    counts = Counter(word.tobytes() for word in words)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum([len(word) for word in counts], out=offsets[1:])
    data = np.frombuffer(b"".join(counts), np.uint8)
    return DistinctWords(data, offsets, np.fromiter(counts.values(), np.int64, len(counts)))
