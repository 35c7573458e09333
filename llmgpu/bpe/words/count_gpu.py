"""Counting the distinct words of a corpus on a GPU: kernels in wgsl/count.

Every word of a slice is looked up in a table on the device and counted there. When the table has
reached its limit of memory, its words move to the host and the table is emptied. The host counts
words of more than MAX_WORD bytes, and slices in which the device can't decide all starts of words.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import offsets_of
from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pattern import as_pattern
from llmgpu.bpe.pretokens.pretoken_gpu import SLOTS, begin_slots, made_slots, submitted_slices
from llmgpu.bpe.pretokens.slices import Slice, SliceReader
from llmgpu.bpe.words.count_host import HostCounter
from llmgpu.bpe.words.distinct_words import NO_WORDS, DistinctWords, list_words
from llmgpu.bpe.words.spilling import OnWords, WordAccumulator, default_memory_bytes, no_words
from llmgpu.bpe.words.word_table_gpu import (
    BEGIN,
    FIRST_WORDS,
    HASH_MASK,
    INSERTION,
    REHASH,
    TABLE_BYTES,
    GpuWordTable,
    WordSlot,
)
from llmgpu.gpu.commands import Commands
from llmgpu.gpu.device import Device
from llmgpu.machine import Costs
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus

KERNELS = BEGIN, "count/00_look_up", *INSERTION, "count/01_count_fresh", REHASH
PACKING = "count/02_lengths", "count/03_pack"
MAX_WORD = 1024
# Bytes of the first slice: few, because most of its words are new, and the table has to grow.
FIRST_SLICE_BYTES = 1 << 20
SLICE_BYTES, SOFTWARE_SLICE_BYTES = 32 << 20, 4 << 20
COUNT_LIMIT = 1 << 32  # the device's counters have 32 bits


# Device memory at its peak, while the table is being enlarged.
COSTS = Costs(fixed=64 << 20, per_byte=6, per_word=120)


def gpu_bytes(words: float, nbytes: float, device: Device) -> int:
    """Return the device memory, in bytes, that counting needs.

    words: number of distinct words. nbytes: sum of their lengths in bytes.
    """
    slices = SOFTWARE_SLICE_BYTES if device.is_software else SLICE_BYTES
    return SLOTS * 2 * slices + COSTS.of(words, nbytes)


class GpuWordCounter:
    """Counts words under one pattern on one device, in a table that grows with the text."""

    def __init__(
        self,
        device: Device,
        pattern: str | Pattern,
        words: WordAccumulator,
        *,
        slice_bytes: int | None = None,
        first_words: int = FIRST_WORDS,
        table_bytes: int = TABLE_BYTES,
        hash_mask: int = HASH_MASK,
    ) -> None:
        """Compile the kernels and make an empty table.

        words: collects the words that leave the device; at the end, all words.
        slice_bytes, first_words, table_bytes: sizes of slices and of the table; they do not change
            the result.
        hash_mask: bits of the words' hashes to use; the result does not depend on the mask.
        """
        self._device, self._words = device, words
        self._pattern = found = as_pattern(pattern)
        self._on_host = HostCounter(found, words, default_memory_bytes() // 2)
        # A slice must fit into one binding, and a 32-bit count must hold all occurrences in a
        # slice.
        if slice_bytes is None:
            slice_bytes = SOFTWARE_SLICE_BYTES if device.is_software else SLICE_BYTES
        most = min(device.max_binding_bytes, COUNT_LIMIT // 2)
        self._slice_bytes = min(slice_bytes, most)
        constants = {"HASH_MASK": hash_mask, "MAX_WORD": MAX_WORD}
        with ThreadPoolExecutor(thread_name_prefix="llmgpu-slot") as threads:
            # Allocate slots while the kernels are compiled.
            slots = begin_slots(device, threads, lambda: _Slot(self))
            kernels = device.prepare(dict.fromkeys((*KERNELS, *PACKING), constants))
        self._lengths, self._packing = kernels.pop("lengths"), kernels.pop("pack")
        self._lock = threading.Lock()  # held while a slice is submitted or the table grows
        self.table = GpuWordTable(
            device,
            kernels,
            self._slice_bytes,
            first_words,
            table_bytes,
            word_arrays={"counts": 4},
            data_arrays={},
        )
        self._text_counted = 0
        self._carried = np.zeros(0, np.int64)  # counts that moved to the host, by word number
        self._slots = made_slots(slots)

    def count(
        self,
        corpus: Corpus,
        progress: Progress = no_progress,
        on_words: OnWords = no_words,
    ) -> DistinctWords:
        """Read a corpus to its end and return its words.

        on_words: called with upper estimates of the number of distinct words so far and of their
        bytes.
        """
        reader = SliceReader(corpus, self._pattern)
        first = min(FIRST_SLICE_BYTES, self._slice_bytes)
        # Words and their bytes: on the device, in the accumulator, and in the host's table.
        sizes = [(0, 0)] * 3
        for slot, piece in submitted_slices(
            reader, self._slots, lambda: _Slot(self), self._slice_bytes, first
        ):
            if piece.apart:
                self._on_host.add(piece)
            elif (state := slot.collect())["undecided"]:
                self._on_host.add(slot.read_slice())
            else:
                sizes[0] = self._count_missing(slot, state)
            progress("counting words", corpus.bytes_read, corpus.total_bytes)
            sizes[1:] = self._words.size, self._on_host.measured[:2]
            on_words(*map(sum, zip(*sizes, strict=True)))
        self._words.add(self._take_all())
        self._on_host.hand_over()
        return self._words.result()

    def _count_missing(self, slot: _Slot, state: NDArray[Any]) -> tuple[int, int]:
        """Count the words of a slice that the device could not count at once.

        Returns the number of words in the table, and of their bytes.
        """
        if state["long"]:
            long_words = slot.read_words(slot.long_spans(MAX_WORD))
            counts = Counter(word.tobytes() for word in long_words)
            self._words.add(list_words(counts, counts.values()))
        with self._lock:
            left = 0
            while state["pending"]:
                # If the device inserted no word, the table is full, or no slot near the words'
                # hashes is free.
                is_stuck = state["full"] or state["pending"] == left
                if is_stuck and not self.table.grow(state):
                    self._words.add(self._take_all())
                left = int(state["pending"])
                slot.submit_count(self._device.record())
                state = slot.collect()
        return int(state["words"]), 4 * int(state["data_used"])

    def expect(self, text_bytes: int) -> None:
        """Move counts to the host if a device counter could overflow in `text_bytes` more bytes."""
        self._text_counted += text_bytes
        if self._text_counted >= COUNT_LIMIT:
            # The words stay in the table.
            self._carried = self._total_counts(int(self.table.read_state()["words"]))
            commands = self._device.record()
            commands.clear(self.table.buffers["counts"])
            commands.submit()
            self._text_counted = text_bytes

    def _total_counts(self, words: int) -> NDArray[np.int64]:
        counts = self._device.read(self.table.buffers["counts"], words, np.uint32).astype(np.int64)
        counts[: len(self._carried)] += self._carried
        return counts

    def _take_all(self) -> DistinctWords:
        """Return all words with their counts and empty the table."""
        words = int(self.table.read_state()["words"])
        if words == 0:
            return NO_WORDS
        counts = self._total_counts(words)
        data, offsets = self._pack(words)
        self.table.clear()
        self._carried, self._text_counted = np.zeros(0, np.int64), 0
        return DistinctWords(data, offsets, counts)

    def _pack(self, words: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the words' bytes end to end, uint8, and their offsets, int64 (words + 1,)."""
        device = self._device
        stored = {name: self.table.buffers[name] for name in ("places", "word_data", "state")}
        lengths = device.create_buffer("word lengths", 4 * words)
        device.dispatch(self._lengths.bind(**stored, lengths=lengths), self.table.groups)
        offsets = offsets_of(device.read(lengths, words, np.uint32))
        size = int(offsets[-1])
        device.write(lengths, offsets[1:].astype(np.uint32))
        packed = device.create_buffer("packed words", size)
        bound = self._packing.bind(**stored, ends=lengths, packed=packed)
        device.dispatch(bound, -(-size // (4 * self._packing.workgroup_size)))
        return device.read(packed, size, np.uint8), offsets


class _Slot(WordSlot):
    """Buffers of one slice that is being counted."""

    def __init__(self, counter: GpuWordCounter) -> None:
        super().__init__(counter._device, counter._pattern, counter._slice_bytes)
        # A proxy avoids a reference cycle, because the counter refers to its slots.
        self._counter: GpuWordCounter = proxy(counter)

    def submit(self, piece: Slice) -> None:
        """Submit the slice that was read into the staging memory."""
        with self._counter._lock:
            self._counter.expect(piece.main_end)
            commands = self.device.record()
            self.upload(commands, piece)
            self.submit_count(commands)

    def submit_count(self, commands: Commands) -> None:
        """Record the kernels that count the pending words, and submit the commands."""
        table, groups = self._counter.table, {"begin_slice": 1, "look_up": self.groups_over_text}
        self.record(commands, table, groups)
        self.submit_with_state(commands, table)
