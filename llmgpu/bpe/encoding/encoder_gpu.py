"""Byte pair encoding on a GPU by the kernels in wgsl/encode, with a table of distinct words.

- A slice is one submission. Kernels look up the slice's words in the table and insert missing
  words; one thread merges each new word. Further kernels count the tokens of all words, and copy
  the tokens to the positions that follow from the counts. The table is kept from slice to slice and
  from text to text. A full table is emptied.
- Long words are merged on the host. The device writes LONG_WORD in place of their ids.
- The host encodes a whole slice in two cases: the device left starts of words undecided, or the
  slice has many long words. Many means that the device does not list them, and that one thread
  needs longer for them than all threads need for the slice. The host then encodes some of the next
  slices, too, before the device is tried again. If a pattern is one of expressions, the host marks
  the starts of words instead.
- In a vocabulary of SentencePiece's kind, a further kernel replaces the symbols that are left of a
  new word by their items, see `llmgpu.bpe.vocabulary.pieces`.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, proxy

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, new_ids
from llmgpu.bpe.encoding.encoder_c import host_slices, make_c_vocabulary
from llmgpu.bpe.encoding.encoder_host import HostSlices, require_tokens, settled
from llmgpu.bpe.encoding.matching import (
    Pairs,
    byte_ids,
    check_ranks,
    last_listed,
    pair_ranks,
)
from llmgpu.bpe.pretokens.custom_regex import HostPattern
from llmgpu.bpe.pretokens.pretoken_gpu import (
    begin_slots,
    made_slots,
    pack_classes,
    submitted_slices,
)
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, SliceSource
from llmgpu.bpe.vocabulary.pieces import PieceSymbols
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
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
from llmgpu.cpu.library import default_threads, insert_pairs, library
from llmgpu.forking import cached_property
from llmgpu.gpu.adapters import Buffer
from llmgpu.gpu.commands import Commands, Download, parallel_copy
from llmgpu.gpu.device import Device, hash_key
from llmgpu.gpu.kernel import Kernel
from llmgpu.kernel_source import constant, struct_dtype
from llmgpu.text.corpus import TextSource

# Longest word, in bytes, that the device merges, because steps grow with the square of the length.
LONGEST = 512
SOFTWARE_LONGEST = 256  # less on a software adapter, because it limits the steps of a thread
LONG_WORD = constant("encode/params.wgsl", "LONG_WORD")
LISTED = constant("encode/08_long_words.wgsl", "LISTED")
LISTING_GROUPS = constant("encode/08_long_words.wgsl", "GROUPS")
LISTED_WORD = struct_dtype("encode/08_long_words.wgsl", "LongWord")
BYTE_VECTORS = constant("encode/02_merge.wgsl", "BYTE_VECTORS")
SLICE_BYTES, SOFTWARE_SLICE_BYTES = 64 << 20, 2 << 20
# (text bytes, slice bytes): a text of up to the first number of bytes is cut into slices of the
# second. Larger slices would take more time to allocate than they save. Texts of unknown length are
# cut as the last row says.
SHORTER_SLICES = ((256 << 20, 12 << 20), (4 << 30, 32 << 20))
# After a slice that the device could not encode, the host encodes at most this many slices before
# the device is tried again.
MOST_SPARED = 16
# A slice's number of ids is estimated as its bytes times the last slice's ids per byte times this.
MORE_IDS = 1.05
# A slice's number of long words is estimated as the last slice's times this, plus LONG_WORDS.
MORE_LONG_WORDS, LONG_WORDS = 1.5, 64
# The kernels that encode a slice, in the order of their dispatches. `whole_tokens` runs only for
# vocabularies that take whole tokens, `items` only for vocabularies of SentencePiece's kind.
WHOLE_TOKENS, ITEMS = "encode/01_whole_tokens", "encode/02_items"
KERNELS = (
    *(BEGIN, "encode/00_look_up", *INSERTION, WHOLE_TOKENS, "encode/02_merge", ITEMS),
    *("encode/03_store", "encode/04_count_tokens", "encode/05_scan_groups", "encode/06_emit"),
    *("encode/08_long_words", "encode/07_document_starts"),
)
FREE = constant("encode/02_merge.wgsl", "FREE")  # rank that marks a free slot of the pair table


class GpuEncoder:
    """Encodes texts by merges, with one vocabulary on one device."""

    def __init__(
        self,
        device: Device,
        vocabulary: Vocabulary,
        slice_bytes: int | None = None,
        *,
        threads: int | None = None,
        text_bytes: int | None = None,
        first_words: int = 4 * FIRST_WORDS,
        table_bytes: int = TABLE_BYTES,
        hash_mask: int = HASH_MASK,
    ) -> None:
        """Compile the kernels, upload the pairs that merge, and make an empty table.

        slice_bytes: bytes of text to encode at a time. threads: CPU threads that encode the slices
            left to the host; by default one per processor. first_words, table_bytes: the table's
            first capacity and its largest size. text_bytes: see `expect`. hash_mask: bits of the
            words' hashes to use. The ids depend on none of these.

        Raises the errors of `llmgpu.bpe.encoding.open.open_encoder`.
        """
        self._device, self._vocabulary = device, vocabulary
        # The host marks the starts of words if the pattern is of expressions.
        self._marks_on_host = isinstance(vocabulary.cut, HostPattern)
        # Whether a byte of a text may be without a token.
        self._has_gaps = vocabulary.unknown_token is None and bool(vocabulary.missing_bytes)
        # Threads that encode a slice on the host; NumPy has one.
        self._threads = 1 if library() is None else threads or default_threads()
        if slice_bytes is None:
            slice_bytes = SOFTWARE_SLICE_BYTES if device.is_software else SLICE_BYTES
        # The largest buffer, the ids of distinct words, has up to 8 bytes for each byte of a slice.
        self._slice_bytes = min(max(slice_bytes, 64), device.max_binding_bytes // 8)
        self.expect(text_bytes)
        self._shared_bytes = self._long_words = 0  # see `_share_buffers`, `expected_long_words`
        self._longest = SOFTWARE_LONGEST if device.is_software else LONGEST
        # Compile kernels, pack pairs and allocate slots at the same time, because each takes long.
        with ThreadPoolExecutor(thread_name_prefix="llmgpu-pack") as packers:
            packing = packers.submit(packed_pairs, vocabulary)
            slots = begin_slots(device, packers, lambda: _Slot(self))
            self._table = GpuWordTable(
                device,
                self._prepare_kernels(hash_mask),
                self._slot_bytes,
                first_words,
                table_bytes,
                word_arrays={"entries": 8},
                data_arrays={"ids": 16},
            )
            self._table.buffers |= self._vocabulary_buffers(packing)
            self._share_buffers(self._slot_bytes)
        self._lock = threading.Lock()  # held while a slice is submitted or the table grows
        self._idle = made_slots(slots)  # slots that no text uses
        self._empty = True
        self._ids_per_byte = 0.0  # ids per byte of the last finished slice
        self._spared = Spared()

    def expect(self, text_bytes: int | None) -> None:
        """Announce the length of the next text in bytes; None if unknown."""
        if text_bytes is None:
            text_bytes = SHORTER_SLICES[-1][0] - 1
        shorter = (slice_bytes for below, slice_bytes in SHORTER_SLICES if text_bytes < below)
        self._slot_bytes = min([self._slice_bytes, *shorter])

    def _prepare_kernels(self, hash_mask: int) -> dict[str, Kernel]:
        symbols, takes_whole = self._vocabulary.piece_symbols, self._vocabulary.takes_whole_tokens
        constants = {
            "HASH_MASK": hash_mask,
            "MAX_WORD": self._longest,
            "WHOLE_TOKENS": int(takes_whole),
        }
        needed = {WHOLE_TOKENS: takes_whole, ITEMS: symbols is not None}
        files = (file for file in (*KERNELS, REHASH) if needed.get(file, True))
        if symbols is not None:
            constants |= {"SIZE": self._vocabulary.size, "UNKNOWN": symbols.unknown or 0}
            constants["FUSES"] = int(symbols.rules.fuses)
        return self._device.prepare(dict.fromkeys(files, constants))

    def _vocabulary_buffers(self, packing: Future[NDArray[np.uint32]]) -> dict[str, Buffer]:
        upload, trie = self._device.upload, self._vocabulary.trie
        buffers = {
            "nodes": upload("trie nodes", trie.nodes),
            "edges": upload("trie edges", trie.edges),
            "pairs": upload("pairs", packing.result()),
        }
        if (symbols := self._vocabulary.piece_symbols) is not None:
            buffers["firsts"] = upload("firsts of items", symbols.firsts)
            buffers["items"] = upload("items", symbols.items)
        return buffers

    def _share_buffers(self, nbytes: int) -> None:
        """Make the buffers that all slots share, if they are missing or too small for `nbytes`.

        Existing slots are for smaller slices and keep their old buffers.
        """
        if nbytes <= self._shared_bytes:
            return
        create = self._device.create_buffer
        words = create("words", 4 * nbytes)
        self._table.buffers |= {
            "words": words,
            "symbols": words,
            "links": create("symbol links", 4 * nbytes),
            "offsets": create("segment offsets", nbytes // 8 + 4),
            "group_sums": create("group sums", nbytes // 8 + 4),
        }
        self._shared_bytes = nbytes

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        return self.encode_slices(SliceReader(source, self._vocabulary.cut), allocate)

    def encode_slices(
        self, reader: SliceSource, allocate: Allocate = new_ids
    ) -> Generator[EncodedSlice, None, None]:
        """Yield the ids of all slices of `reader` in order; see `encode`."""
        slots, self._idle = self._idle, []
        if slots and slots[0].slice_bytes < self._slot_bytes:
            slots = []
        size = slots[0].slice_bytes if slots else self._slot_bytes
        self._share_buffers(size)
        first = 4 * self._table.fresh_capacity if self._empty else None
        for slot, piece in submitted_slices(
            reader, slots, lambda: _Slot(self), size, first, self._spared.take
        ):
            if piece.apart:
                yield self._encode_on_host(piece, allocate)
                continue
            state = self._finish(slot)
            is_undecided = state["undecided"] and not self._marks_on_host
            encoded = None if is_undecided else self._fetch(slot, piece, state, allocate)
            self._spared.judge(is_bad=encoded is None)
            if encoded is None:
                slot.drop()
                encoded = self._encode_on_host(slot.read_slice(), allocate)
            yield encoded
            self._empty = False
        self._idle = slots

    def _encode_on_host(self, piece: Slice, allocate: Allocate) -> EncodedSlice:
        return settled(self._host.encode(piece, 0)[0], allocate)

    def _finish(self, slot: _Slot) -> NDArray[Any]:
        """Wait for a slice, rerun it until the table has all its words, and return its counters.

        A slice with undecided starts of words is not run again, unless the host marks all starts.
        """
        state = slot.collect()
        if state["undecided"] and not self._marks_on_host:
            return state
        before, cleared = 0, False
        while pending := int(state["pending"]):
            with self._lock:
                if state["undecided"]:
                    slot.mark_on_host()
                # Words are missing because the table is full, or no slot near their hashes is free.
                stuck = state["full"] or pending == before
                if stuck and not self._table.grow(state, beyond_limit=cleared):
                    self._table.clear()
                    cleared = True
                slot.run_again()
            before, state = pending, slot.collect()
        return state

    def expected_ids(self, text_bytes: int) -> int:
        """Estimate the number of ids of a slice; as many are copied before the number is known."""
        return min(text_bytes, int(MORE_IDS * self._ids_per_byte * text_bytes))

    @property
    def expected_long_words(self) -> int:
        """Estimate of the long words of a slice; as many are copied before that is known."""
        return min(int(MORE_LONG_WORDS * self._long_words) + LONG_WORDS, LISTED)

    def _fetch(
        self, slot: _Slot, piece: Slice, state: NDArray[Any], allocate: Allocate
    ) -> EncodedSlice | None:
        """Return the ids of a slice; None if the host encodes it faster, for its long words."""
        tokens, self._long_words = int(state["tokens"]), int(state["long"])
        most_bytes = piece.main_end // self._threads
        long_words = slot.take_long_words(self._long_words, self._longest, most_bytes)
        if long_words is None:
            return None
        if long_words.texts:
            long_words.ids = self._host.match_words(long_words.texts)
        self._ids_per_byte = tokens / max(1, piece.main_end)
        ids, starts = slot.fetch(tokens, allocate, long_words)
        if self._has_gaps and ids.max(initial=0) == NO_TOKEN:
            require_tokens(self._vocabulary, slot.read_slice(), ids, 0)
        return EncodedSlice(ids, starts, piece.main_end, piece.closed)

    @cached_property
    def _host(self) -> HostSlices:
        return host_slices(self._vocabulary, self._threads)


class Spared:
    """Decides how many slices the host encodes before a device is tried again.

    Each bad slice doubles the number of slices that skip the device, up to MOST_SPARED. A good
    slice sets the number back to 1.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the reader's thread takes, and the caller's thread judges
        self._next = 1  # slices to spare the device after the next bad slice
        self._left = 0

    def judge(self, *, is_bad: bool) -> None:
        """Record whether the host had to encode a slice that the device got."""
        with self._lock:
            self._left = self._next if is_bad else 0
            self._next = min(2 * self._next, MOST_SPARED) if is_bad else 1

    def take(self) -> bool:
        """Whether the host encodes the next slice, without the device. Counts the slice."""
        with self._lock:
            is_spared = self._left > 0
            self._left -= is_spared
            return is_spared


@dataclass
class LongWords:
    """The words of a slice that the host encodes, in the order of the text.

    texts: uint8, the bytes of each word. places: int64 (words,), the position of each word's
        LONG_WORD among the slice's ids; None if the ids have to be searched for LONG_WORD. ids:
        uint32, the ids of each word.
    """

    texts: list[NDArray[np.uint8]]
    places: NDArray[np.int64] | None
    ids: list[NDArray[np.uint32]] = field(default_factory=list)


class _Slot(WordSlot):
    """The buffers of a slice of up to `slice_bytes`, used until the slice's ids are fetched."""

    def __init__(self, encoder: GpuEncoder) -> None:
        self.slice_bytes = encoder._slot_bytes
        super().__init__(encoder._device, encoder._vocabulary.cut, self.slice_bytes)
        # A proxy avoids a reference cycle, because the encoder refers to its slots.
        self._encoder: GpuEncoder = proxy(encoder)
        self.buffers["output"] = self.device.create_buffer("output", 4 * self.slice_bytes)
        self.buffers["documents"] = self.device.create_buffer("documents", 4)
        nbytes = LISTED * LISTED_WORD.itemsize
        self.buffers["long_words"] = self.device.create_buffer("long words", nbytes)
        self._ids_copy, self._starts_copy = Download(self.device), Download(self.device)
        self._long_copy = Download(self.device)
        self._documents = 0  # document starts in the last submitted slice
        self._copied = 0  # ids that the submission of the slice copies to the host
        self._copied_words = 0  # listed long words that this submission copies
        # Allocate memory for one id (4 bytes) in each 2.7 bytes of text.
        self._ids_copy.reserve(self.slice_bytes * 3 // 2)

    def submit(self, piece: Slice) -> None:
        """Submit the slice that was read into the staging memory."""
        self._documents = len(piece.document_starts)
        with self._encoder._lock:
            if self._documents:
                self._upload_documents(piece.document_starts)
            commands = self.device.record()
            self.upload(commands, piece)
            self._record(commands)

    def _upload_documents(self, starts: NDArray[np.int64]) -> None:
        needed, held = 4 * len(starts), self.buffers["documents"].nbytes
        if needed > held:
            # Grow by half, so that growing takes amortised constant time.
            size = max(needed, min(held * 3 // 2, self.device.max_binding_bytes))
            self.buffers["documents"] = self.device.create_buffer("documents", size)
            self._generation = 0  # makes `bound` bind the kernels to the new buffer
        self.device.write(self.buffers["documents"], starts.astype(np.uint32))

    def drop(self) -> None:
        """Discard the results of the last run."""
        for copy in (self._ids_copy, self._starts_copy, self._long_copy):
            copy.cancel()

    def run_again(self) -> None:
        """Submit the slice again. The words that it inserted before are in the table."""
        self.drop()
        commands = self.device.record()
        self.all_pending(commands)
        self._record(commands)

    def _record(self, commands: Commands) -> None:
        encoder, table = self._encoder, self._encoder._table
        size, over_text = self.device.workgroup_size, self.groups_over_text
        groups = {
            # Insert new words into the table, and merge them.
            "begin_slice": 1,
            "look_up": over_text,
            "merge": -(-table.fresh_capacity // size),
            # Write the ids of all words and the positions of long words and documents.
            "count_tokens": over_text,
            "scan_groups": 1,
            "emit": over_text,
            "long_words": LISTING_GROUPS,
            "document_starts": -(-self._documents // size),
        }
        self.record(commands, table, groups)
        # Copy the results to the host. The number of ids is an estimate.
        self._copied = encoder.expected_ids(self.main_end)
        self._ids_copy.record(commands, (self.buffers["output"], 4 * self._copied))
        self._starts_copy.record(commands, (self.buffers["documents"], 4 * self._documents))
        self._copied_words = encoder.expected_long_words
        nbytes = self._copied_words * LISTED_WORD.itemsize
        self._long_copy.record(commands, (self.buffers["long_words"], nbytes))
        self.submit_with_state(commands, table)

    def take_long_words(self, count: int, longest: int, most_bytes: int) -> LongWords | None:
        """Return the slice's words of more than `longest` bytes, without their ids.

        Returns None if the device does not list the words and they have more than `most_bytes`
        bytes in all. count: the number of words. The device lists the text of up to LISTED words.
        If there are more, the words are read from the slice's text on the device, which waits for
        all slices submitted so far.
        """
        if not 0 < count <= self._copied_words:
            self._long_copy.cancel()
        if not count:
            return LongWords([], np.empty(0, np.int64))
        if count <= LISTED:
            listed = np.empty(count, LISTED_WORD)
            if count > self._copied_words:  # the estimate was too low: copy again
                self._long_copy.start((self.buffers["long_words"], listed.nbytes))
            self._long_copy.finish(listed.view(np.uint8))
            if listed["length"].all():
                listed = listed[np.argsort(listed["start"])]
                texts = [word["text"].view(np.uint8)[: word["length"]] for word in listed]
                return LongWords(texts, listed["place"].astype(np.int64))
        elif count * longest > most_bytes:  # searching so many words takes long
            return None
        spans = self.long_spans(longest)
        if sum(end - begin for begin, end in spans) > most_bytes:
            return None
        return LongWords(self.read_words(spans), None)

    def fetch(
        self, tokens: int, allocate: Allocate, long_words: LongWords
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the slice's ids, in memory from `allocate`, and the positions of document starts.

        tokens: the number of ids on the device. long_words: the words whose LONG_WORD among these
            ids is replaced by the word's ids.
        """
        if tokens > self._copied:  # the estimate was too low: copy again
            self._ids_copy.cancel()
            self._ids_copy.start((self.buffers["output"], 4 * tokens))
        positions = np.empty(self._documents, np.uint32)
        self._starts_copy.finish(positions.view(np.uint8))
        starts = positions.astype(np.int64)
        # gained[k]: number of ids that the first k long words add to the result.
        gained = np.cumsum([0, *(len(ids) - 1 for ids in long_words.ids)])
        ids = allocate(tokens + int(gained[-1]))

        def insert(copied: NDArray[np.uint8]) -> None:
            nonlocal starts
            found = copied.view(np.uint32)[:tokens]
            places = long_words.places
            if places is None:
                places = np.flatnonzero(found == LONG_WORD)
            insert_long_words(ids, found, long_words.ids, places)
            starts += gained[np.searchsorted(places, starts)]

        self._ids_copy.take(insert)
        return ids, starts


def insert_long_words(
    out: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    long_words: Sequence[NDArray[np.uint32]],
    places: NDArray[np.int64],
) -> None:
    """Copy ids into `out`, replacing each LONG_WORD by the ids of its word.

    places: int64, the positions of LONG_WORD in `ids`.
    """
    pieces: list[NDArray[np.uint32]] = []
    after = 0  # end of the last LONG_WORD so far, as a position in `ids`
    for place, word in zip(places.tolist(), long_words, strict=True):
        pieces += [ids[after:place], word]
        after = place + 1
    at = 0
    for piece in [*pieces, ids[after:]]:
        parallel_copy(out[at : at + len(piece)].view(np.uint8), piece.view(np.uint8))
        at += len(piece)


def ranked_pairs(vocabulary: Vocabulary) -> Pairs:
    """Return `pair_ranks` of a vocabulary; the CPU engine finds pairs if no merges are listed.

    Raises VocabularyError, as `pair_ranks` does.
    """
    if library() is None or len(vocabulary.merges) or vocabulary.missing_bytes:
        return pair_ranks(vocabulary)
    pairs = make_c_vocabulary(vocabulary).pairs()
    return np.column_stack([pairs, pairs[:, 2]])


_packed: WeakKeyDictionary[Vocabulary, NDArray[np.uint32]] = WeakKeyDictionary()
_packing = threading.Lock()


def prepare_tables(vocabulary: Vocabulary) -> None:
    """Compute the tables that `GpuEncoder` will need. No device has to be open yet.

    Raises VocabularyError for too many merges.
    """
    packed_pairs(vocabulary)
    if vocabulary.cut.unicode is not None:
        pack_classes(vocabulary.cut.unicode)


def packed_pairs(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """Return the table of a vocabulary's pairs, see `pack_pairs`, cached by vocabulary."""
    with _packing:
        packed = _packed.get(vocabulary)
        if packed is None:
            symbols = vocabulary.piece_symbols
            if symbols is None:
                of_bytes = byte_ids(vocabulary).view(np.uint32)
                packed = pack_pairs(of_bytes, ranked_pairs(vocabulary))
            else:
                packed = pack_pairs(symbols.byte_symbols, piece_pairs(symbols))
            _packed[vocabulary] = packed
    return packed


def piece_pairs(symbols: PieceSymbols) -> Pairs:
    """Return the pairs of SentencePiece's symbols, with consecutive numbers as ranks.

    Raises VocabularyError for too many ranks.
    """
    pairs = last_listed(symbols.merges)
    numbered = np.unique(pairs[:, 3])
    check_ranks(len(numbered))
    pairs[:, 3] = np.searchsorted(numbered, pairs[:, 3])
    return pairs


def pack_pairs(of_bytes: NDArray[np.uint32], pairs: Pairs) -> NDArray[np.uint32]:
    """Return the table that wgsl/encode/02_merge.wgsl reads, uint32 (BYTE_VECTORS + slots, 4).

    The symbol of each byte comes first, then a hash table of the pairs, at most half full.

    of_bytes: uint32 (256,). pairs: each pair once.
    """
    # The kernel computes the number of slots from the buffer's size, a multiple of 256 bytes. With
    # 32 slots or more, the table fills the buffer exactly.
    slots = 2 << max(len(pairs), 8).bit_length()
    packed = np.full((BYTE_VECTORS + slots, 4), FREE, np.uint32)
    packed[:BYTE_VECTORS] = of_bytes.reshape(BYTE_VECTORS, 4)
    table = packed[BYTE_VECTORS:]
    entries = np.ascontiguousarray(pairs[:, [0, 1, 3, 2]])
    key = hash_key()
    if not insert_pairs(entries, table, FREE, key):
        _insert_pairs(entries, table, key)
    return packed


def _insert_pairs(
    entries: NDArray[np.uint32], table: NDArray[np.uint32], key: NDArray[np.uint32]
) -> None:
    """Insert pairs into the hash table as `llmgpu.cpu.library.insert_pairs` does, in NumPy."""
    last = np.uint32(len(table) - 1)
    at = _pair_hash(entries[:, 0], entries[:, 1], key) & last
    # Insert all pairs at once. A pair whose slot another pair has taken tries the next slot.
    while len(entries):
        free = np.flatnonzero(table[at, 2] == FREE)
        # If several pairs are written to one slot, one of them remains.
        table[at[free]] = entries[free]
        left = (table[at, :2] != entries[:, :2]).any(axis=1)
        entries, at = entries[left], (at[left] + np.uint32(1)) & last


def _pair_hash(
    left: NDArray[np.uint32], right: NDArray[np.uint32], key: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Hash pairs as `hash_pair` in wgsl/common/hash.wgsl does."""
    hashes = _keyed(_keyed(left, key[0]) ^ right, key[1])
    product: NDArray[np.uint32] = (hashes ^ (hashes >> np.uint32(15))) * key[3]
    return product ^ (product >> np.uint32(16))


def _keyed(numbers: NDArray[np.uint32], key: np.uint32) -> NDArray[np.uint32]:
    secret: NDArray[np.uint32] = numbers ^ key
    return secret + (secret & np.uint32(0xFFFF)) * (secret >> np.uint32(16))
