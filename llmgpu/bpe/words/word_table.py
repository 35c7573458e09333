"""A table that numbers the distinct words (pre-tokens) of a text.

- Every word has a 64-bit key. A word of up to 7 bytes is its key; one of up to 15 bytes is
  identified by its key and its first eight bytes; longer words with equal keys are compared.
- Slots are a power of two in number, up to a quarter of them taken, probed one after the other.
  A slot holds a word's number and no key: frequent words come early and get low numbers, so the
  keys that most look-ups need lie together and stay in the processor's cache.
- All words of a block are looked up in lockstep, in arrays that are reused for every block.
  New words that want the same free slot are resolved by who wrote last; the others look again.
- Threads may look words up while one of them inserts some. They see the table as it was before,
  except for its slots: an entry counts only if its word is the one that is looked for.
- Words of more than LONGEST_HASHED bytes are few and are kept in a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges

LONGEST_HASHED = 256  # bytes
_LONGEST_PLAIN = 7  # bytes of a word that is its own key
_LONGEST_PAIRED = 15  # bytes of a word that its key and its first eight bytes identify
_BLOCK = 1 << 16  # words looked up at once: of fewer, threads would mostly wait for each other
_SPAN = 1 << 17  # words looked up before the new ones among them are inserted
_PENDING_BLOCK = 1 << 16  # words searched for or inserted at once
_DICTIONARY_BYTES = 200  # that an entry takes, apart from the word's bytes
_FIRST_BITS = 12
_SPARSITY = 4  # at least this many slots for each word
_NARROW_BITS = 32  # log2 of the slots up to which 32 bits hold a word's number
# Odd constants with well mixed bits: the golden ratio and those of SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_HALF, _BYTE = np.uint64(32), np.uint64(8)
_LENGTH_SHIFT = np.uint64(56)  # the top byte of a longer word's key is its length, or the tag
_HASHED_TAG = np.uint64(0xFF) << _LENGTH_SHIFT
# By length: the bytes of eight that belong to the word. Longer words get a key of another kind.
_MASKS = np.array([(1 << 8 * min(n, _LONGEST_PLAIN)) - 1 for n in range(9)], np.uint64)


@dataclass(frozen=True)
class SoughtWords:
    """Some of the words that are looked up.

    which: int64, which of them. keys: uint64. starts, lengths: int64, in the text.
    """

    which: NDArray[np.int64]
    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> SoughtWords:
        """Return some of these."""
        return SoughtWords(
            self.which[which], self.keys[which], self.starts[which], self.lengths[which]
        )

    def in_dictionary(self) -> Iterator[tuple[int, int, int]]:
        """Yield which, start and length of those that a dictionary is for."""
        long = self.lengths > LONGEST_HASHED
        columns = (values[long].tolist() for values in (self.which, self.starts, self.lengths))
        return zip(*columns, strict=True)

    @staticmethod
    def join(parts: Sequence[SoughtWords]) -> SoughtWords:
        """Return all words of one or more parts."""
        return SoughtWords(
            np.concatenate([part.which for part in parts]),
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )


class _Scratch:
    """Arrays of a block's length: fresh memory would cost more than what is computed in it."""

    def __init__(self, length: int) -> None:
        self.lengths = np.empty(length, np.int64)
        self.masks = np.empty(length, np.uint64)
        self.known_keys = np.empty(length, np.uint64)
        self.found = np.empty(length, np.bool_)
        self.narrow = np.empty(length, np.uint32)


@dataclass(frozen=True, eq=False)
class _Known:
    """The words of a table at some time.

    slots: a word's number plus 1; 0 marks a free slot. Others may write to them.
    keys: uint64, of word k at k + 1; 0, which is no word's key, for those in the dictionary and
        at 0, where the look-up of a free slot ends.
    offsets: int64, of word k: offsets[k] .. offsets[k + 1]. data: uint8, all words end to end.
    """

    slots: NDArray[np.uint32 | np.int64]
    keys: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]

    def home(
        self, keys: NDArray[np.uint64], out: NDArray[np.uint64] | None = None
    ) -> NDArray[np.int64]:
        """Return the slot at which the search for each key begins."""
        # Fibonacci hashing: the product's highest bits, as many as number the slots, depend on all
        # bits of the key.
        mixed = np.multiply(keys, _GOLDEN, out=out)
        mixed >>= np.uint64(65 - len(self.slots).bit_length())
        return mixed.view(np.int64)

    def look_up_block(
        self,
        padded: NDArray[np.uint8],
        block: slice,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        out: NDArray[np.int64],
        scratch: _Scratch,
    ) -> tuple[SoughtWords, SoughtWords]:
        """Write the numbers of the words that are where their search begins.

        Returns words to search for in later slots, and words that are not there.
        """
        starts, ends, out = starts[block], ends[block], out[block]
        count = len(starts)
        # The keys of all words, as if they were short; then again of the few that are longer.
        lengths = np.subtract(ends, starts, out=scratch.lengths[:count])
        masks = np.take(_MASKS, lengths, out=scratch.masks[:count], mode="clip")
        loads = _eight_bytes(padded)
        keys = _plain_keys(loads[starts], masks)
        longer = np.flatnonzero(lengths > _LONGEST_PLAIN)
        if len(longer):
            keys[longer] = _longer_keys(loads, starts[longer], lengths[longer])
        # Look at one slot for each: most words are where their search begins.
        entries = self._read_slots(self.home(keys, masks), out, scratch)
        known_keys = np.take(self.keys, entries, out=scratch.known_keys[:count], mode="clip")
        found = np.equal(known_keys, keys, out=scratch.found[:count])
        entries -= 1
        longer = longer[found[longer]]
        if len(longer):
            found[longer] = self._same_bytes(
                padded, starts[longer], lengths[longer], entries[longer]
            )
        # A free slot, whose number is now -1, ends a search; another word's slot does not.
        which = np.flatnonzero(~found)
        left = SoughtWords(which + block.start, keys[which], starts[which], lengths[which])
        missing = entries[which] < 0
        return left.take(~missing), left.take(missing)

    def _read_slots(
        self, slots: NDArray[np.int64], out: NDArray[np.int64], scratch: _Scratch
    ) -> NDArray[np.int64]:
        """Write what is in each slot, of up to a block, to `out` and return that."""
        # Another thread may have put words here that come after those of `keys`, or be claiming the
        # slot: such an entry stands for the last word, which is compared as any other.
        last = len(self.keys) - 1
        if self.slots.dtype == out.dtype:
            np.take(self.slots, slots, out=out, mode="clip")
            return np.minimum(out, last, out=out)
        narrow = np.take(self.slots, slots, out=scratch.narrow[: len(slots)], mode="clip")
        return np.minimum(narrow, last, out=out)

    def search(
        self, padded: NDArray[np.uint8], words: SoughtWords, out: NDArray[np.int64]
    ) -> SoughtWords:
        """Write the numbers of words that are not where their search begins; return the others."""
        missing = [words.take(slice(0))]
        slots = self.home(words.keys)
        while len(slots):
            # Probe the next slots of the words that are still sought.
            slots = (slots + 1) & (len(self.slots) - 1)
            entries = np.minimum(self.slots[slots], len(self.keys) - 1).astype(np.int64)
            found = self.is_at(padded, words, entries)
            out[words.which[found]] = entries[found] - 1
            missing.append(words.take(entries == 0))
            more = ~found & (entries > 0)
            words, slots = words.take(more), slots[more]
        return SoughtWords.join(missing)

    def is_at(
        self, padded: NDArray[np.uint8], words: SoughtWords, entries: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Tell which words of the text are those of these entries of `keys`."""
        found: NDArray[np.bool_] = self.keys[entries] == words.keys
        longer = np.flatnonzero(found & (words.lengths > _LONGEST_PLAIN))
        found[longer] = self._same_bytes(
            padded, words.starts[longer], words.lengths[longer], entries[longer] - 1
        )
        return found

    def _same_bytes(
        self,
        padded: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        numbers: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Compare words of the text, of 8 bytes or more, with those of these numbers and keys."""
        there, here = _eight_bytes(self.data), _eight_bytes(padded)
        at = self.offsets[numbers]
        # That and the key is all there is to words of up to 15 bytes.
        same: NDArray[np.bool_] = there[at] == here[starts]
        active = np.flatnonzero(same & (lengths > _LONGEST_PAIRED))
        same[active] = self.offsets[numbers[active] + 1] - at[active] == lengths[active]
        active = active[same[active]]
        at, starts, last = at[active], starts[active], lengths[active] - 8
        step = 8
        while len(active):
            # Eight bytes from `step` on, or the last eight where fewer are left.
            position = np.minimum(last, step)
            equal = there[at + position] == here[starts + position]
            same[active[~equal]] = False
            more = equal & (last > step)
            active, at, starts, last = active[more], at[more], starts[more], last[more]
            step += 8
        return same


class WordTable:
    """Distinct words, numbered 0, 1, 2, ... in an order that is deterministic but has no meaning.

    Any thread may call `find` at any time; the other methods are for one thread at a time.

    Memory: a word's bytes, 16 bytes for its offset and key, and 16 to 32 for its slots.
    """

    def __init__(self) -> None:
        self._data = GrowableArray(np.uint8)
        self._offsets = GrowableArray(np.int64)
        self._offsets.append(np.zeros(1, np.int64))
        self._keys = GrowableArray(np.uint64)
        self._keys.append(np.zeros(1, np.uint64))
        self._long: dict[bytes, int] = {}
        self._long_bytes = 0
        self._make_slots(_FIRST_BITS)

    def __len__(self) -> int:
        """Return how many distinct words there are."""
        return len(self._offsets) - 1

    @property
    def data(self) -> NDArray[np.uint8]:
        """Bytes of the words, in the order of their numbers, end to end."""
        return self._data.values

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where in `data` each word starts, and where the last one ends: int64 (len + 1,)."""
        return self._offsets.values

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the table takes."""
        arrays = self._data.nbytes + self._offsets.nbytes + self._keys.nbytes
        return arrays + self._known.slots.nbytes + self._long_bytes

    def number(
        self, padded: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the number of every word padded[start:end], giving new words the next numbers.

        padded: a text with PADDING bytes after its last word.
        starts, ends: int64 (words,), each end after its start.
        """
        numbers = np.empty(len(starts), np.int64)
        # A few words at a time, so that most repeats of a new word are found.
        for first in range(0, len(starts), _SPAN):
            span = slice(first, first + _SPAN)
            numbers[span], missing = self.find(padded, starts[span], ends[span])
            self.insert(padded, missing, numbers[span])
        return numbers

    def look_up(
        self, padded: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the numbers of words as `number` takes them, -1 for those not in it."""
        numbers, missing = self.find(padded, starts, ends)
        numbers[missing.which] = -1
        for which, start, length in missing.in_dictionary():
            numbers[which] = self._long.get(padded[start : start + length].tobytes(), -1)
        return numbers

    def find(
        self, padded: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], SoughtWords]:
        """Return the numbers of words as `number` takes them, and those it has not found."""
        known = self._known  # another thread may put a later one in its place
        numbers = np.empty(len(starts), np.int64)
        scratch = _Scratch(min(len(starts), _BLOCK))
        blocks = [slice(first, first + _BLOCK) for first in range(0, max(len(starts), 1), _BLOCK)]
        looked_up = [
            known.look_up_block(padded, block, starts, ends, numbers, scratch) for block in blocks
        ]
        # Few words are left, so the many small steps that they take are taken for all together.
        left = SoughtWords.join([words for words, _ in looked_up])
        missing = [words for _, words in looked_up]
        missing += [
            known.search(padded, left.take(slice(first, first + _PENDING_BLOCK)), numbers)
            for first in range(0, len(left.which), _PENDING_BLOCK)
        ]
        return numbers, SoughtWords.join(missing)

    def insert(
        self, padded: NDArray[np.uint8], missing: SoughtWords, numbers: NDArray[np.int64]
    ) -> None:
        """Number those that `find` has not found, writing to the numbers that it gave."""
        for first in range(0, len(missing.which), _PENDING_BLOCK):
            words = missing.take(slice(first, first + _PENDING_BLOCK))
            self._find_or_insert(padded, words.take(words.lengths <= LONGEST_HASHED), numbers)
            for which, start, length in words.in_dictionary():
                numbers[which] = self._number_long(padded[start : start + length])

    def _number_long(self, word: NDArray[np.uint8]) -> int:
        number = self._long.setdefault(word.tobytes(), len(self))
        if number == len(self):
            self._append(word, np.array([len(word)]), np.zeros(1, np.uint64))
            self._long_bytes += len(word) + _DICTIONARY_BYTES
        return number

    def _find_or_insert(
        self, padded: NDArray[np.uint8], words: SoughtWords, numbers: NDArray[np.int64]
    ) -> None:
        """Write the numbers of words, inserting those that are not there."""
        self._reserve(len(words.keys))
        slots = self._known.home(words.keys)
        while len(slots):
            # Claim free slots first: a word that loses one may find itself there right after.
            free = np.flatnonzero(self._known.slots[slots] == 0)
            if len(free):
                self._insert(padded, words.take(free), slots[free])
            entries = self._known.slots[slots].astype(np.int64)
            found = self._known.is_at(padded, words, entries)
            numbers[words.which[found]] = entries[found] - 1
            words, slots = words.take(~found), slots[~found]
            slots = (slots + 1) & (len(self._known.slots) - 1)

    def _insert(
        self, padded: NDArray[np.uint8], words: SoughtWords, slots: NDArray[np.int64]
    ) -> None:
        """Put words into the free slots they want, one for each slot."""
        won = _claim(self._known.slots, slots)
        words, slots = words.take(won), slots[won]
        # Threads that read a slot before its word is there are dealt with in `_read_slots`.
        self._known.slots[slots] = np.arange(len(self) + 1, len(self) + 1 + len(slots))
        self._append(
            concatenate_ranges(padded, words.starts, words.lengths), words.lengths, words.keys
        )

    def _append(
        self, data: NDArray[np.uint8], lengths: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> None:
        self._offsets.append(len(self._data) + np.cumsum(lengths))
        self._data.append(data)
        self._keys.append(keys)
        self._show(self._known.slots)

    def _show(self, slots: NDArray[np.uint32 | np.int64]) -> None:
        """Let all words be found from now on."""
        self._known = _Known(slots, self._keys.values, self.offsets, self.data)

    def _reserve(self, words: int) -> None:
        """Make the table large enough to stay sparse with this many new words."""
        bits = (len(self._known.slots) - 1).bit_length()
        while _SPARSITY * (len(self) + words) > 1 << bits:
            bits += 1
        if 1 << bits != len(self._known.slots):
            self._make_slots(bits)

    def _make_slots(self, bits: int) -> None:
        dtype = np.uint32 if bits <= _NARROW_BITS else np.int64
        empty: NDArray[np.uint32 | np.int64] = np.zeros(1 << bits, dtype)
        table = _Known(empty, self._keys.values, self.offsets, self.data)
        # Of several that want a slot the last wins: the lowest number, so that frequent words are
        # where their search begins.
        pending = np.flatnonzero(table.keys)[::-1]
        slots = table.home(table.keys[pending])
        while len(pending):
            free = np.flatnonzero(table.slots[slots] == 0)
            won = np.zeros(len(pending), np.bool_)
            won[free[_claim(table.slots, slots[free])]] = True
            table.slots[slots[won]] = pending[won]
            pending = pending[~won]
            # Whoever lost finds the slot taken when looking at it again.
            slots = (slots[~won] + 1) & (len(table.slots) - 1)
        self._show(table.slots)


def _claim(table: NDArray[np.uint32 | np.int64], slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Choose one of those that want the same free slot."""
    mine = np.arange(len(slots))
    table[slots] = mine
    won: NDArray[np.bool_] = table[slots] == mine
    return won


def _eight_bytes(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """View `data` as the little-endian number in the eight bytes from each position on."""
    return np.ndarray((max(len(data) - 7, 0),), "<u8", data.data, 0, (1,))


def _plain_keys(first_bytes: NDArray[np.uint64], masks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the keys of words of up to 7 bytes; writes them over the text's `first_bytes`."""
    first_bytes &= masks
    # Words of n bytes have a separate range of keys, so that "a" and "a\0" differ.
    first_bytes += masks
    return first_bytes


def _paired_keys(
    loads: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return keys of words of 8 to 15 bytes, above those of shorter words.

    Each is the length, and the last seven bytes mixed with the first eight: two words with equal
    keys and equal first bytes are the same. Keys of longer words are undefined.
    """
    # The last seven bytes lie in the low 56 bits; the first of the eight is one of the first eight.
    keys: NDArray[np.uint64] = loads[starts + lengths - 8]
    keys >>= _BYTE
    keys ^= _mix(loads[starts]) >> _BYTE
    keys |= lengths.view(np.uint64) << _LENGTH_SHIFT
    return keys


def _longer_keys(
    loads: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return a key for each word of 8 bytes or more; undefined for those in the dictionary."""
    keys = _paired_keys(loads, starts, lengths)
    # The top byte of a paired key is 8 to 15, so it never equals the tag of a hashed one.
    hashed = np.flatnonzero(lengths > _LONGEST_PAIRED)
    keys[hashed] = _HASHED_TAG
    hashed = hashed[lengths[hashed] <= LONGEST_HASHED]
    keys[hashed] |= _hash(loads, starts[hashed], lengths[hashed])
    return keys


def _hash(
    loads: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Hash words of 8 bytes or more: their length, last eight bytes, and all bytes before those."""
    # The last eight bytes overlap those before them unless the length is a multiple of eight, so no
    # load goes beyond the word.
    left = lengths - 8
    hashes: NDArray[np.uint64] = loads[starts + left] ^ (lengths.view(np.uint64) * _GOLDEN)
    active, at = np.arange(len(starts)), starts
    while len(active):
        hashes[active] = _mix(hashes[active]) ^ loads[at]
        left = left - 8
        more = left > 0
        active, at, left = active[more], at[more] + 8, left[more]
    hashes *= _MIX_B
    hashes ^= hashes >> _HALF
    return hashes


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread the bits of 64-bit numbers; different numbers stay different."""
    mixed = values * _MIX_A
    mixed ^= mixed >> _HALF
    return mixed
