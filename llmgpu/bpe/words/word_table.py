"""A table that numbers the distinct words (pre-tokens) of a text.

- Every word has a 64-bit key. That of up to 7 bytes says the word itself; one of up to 15 bytes is
  told by its key and its first eight bytes; of longer words on equal keys the bytes are compared.
- Slots are a power of two in number, a quarter of them taken at most, probed one after the other.
  A slot holds a word's number and no key: frequent words come early and get low numbers, so the
  keys that most look-ups need lie together and stay in the processor's cache.
- All words of a block are looked up in lockstep, in arrays that are used again for every block.
  New words that want the same free slot are told apart by who wrote last; the others look again.
- Words of more than LONGEST_HASHED bytes are few and are kept in a dictionary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING, GrowableArray, concatenate_ranges

LONGEST_HASHED = 256  # bytes
_LONGEST_PLAIN = 7  # bytes of a word that is its own key
_LONGEST_PAIRED = 15  # bytes of a word that its key and its first eight bytes tell
_BLOCK = 1 << 15  # words looked up at once: of fewer, threads would mostly wait for each other
_PENDING_BLOCK = 1 << 16  # words searched for or inserted at once
_DICTIONARY_BYTES = 200  # that an entry takes, apart from the word's bytes
_FIRST_BITS = 12
_SPARSITY = 4  # slots for a word at least
_NARROW_BITS = 32  # a table of so many slots has numbers that 32 bits hold
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
class _Words:
    """Words of a text: their keys (uint64), where they start, and their lengths (int64)."""

    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> _Words:
        return _Words(self.keys[which], self.starts[which], self.lengths[which])


class _Scratch:
    """Arrays of a block's length: fresh memory would cost more than what is computed in it."""

    def __init__(self) -> None:
        self.lengths = np.empty(_BLOCK, np.int64)
        self.masks = np.empty(_BLOCK, np.uint64)
        self.known_keys = np.empty(_BLOCK, np.uint64)
        self.found = np.empty(_BLOCK, np.bool_)
        self.narrow = np.empty(_BLOCK, np.uint32)


class WordTable:
    """Distinct words, numbered 0, 1, 2, ... in an order that is deterministic but has no meaning.

    Memory: a word's bytes, 16 bytes for its offset and key, and 16 to 32 for its slots.
    """

    def __init__(self) -> None:
        self._data = GrowableArray(np.uint8)  # bytes of all words, end to end
        self._offsets = GrowableArray(np.int64)  # of word k: offsets[k] .. offsets[k + 1]
        self._offsets.append(np.zeros(1, np.int64))
        # Of word k at k + 1; 0, which is no word's key, for those in the dictionary and at 0, where
        # the look-up of a free slot ends.
        self._keys = GrowableArray(np.uint64)
        self._keys.append(np.zeros(1, np.uint64))
        self._long: dict[bytes, int] = {}
        self._long_bytes = 0
        self._scratch = _Scratch()
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
        return arrays + self._slots.nbytes + self._long_bytes

    def number(
        self, text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the number of every word text[start:end], giving new words the next numbers.

        starts, ends: int64 (words,), each end behind its start.
        """
        padded = np.zeros(len(text) + PADDING, np.uint8)
        padded[: len(text)] = text
        return self.number_padded(padded, starts, ends)

    def number_padded(
        self, padded: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Do what `number` does with a text that has PADDING bytes behind its last word."""
        numbers = np.empty(len(starts), np.int64)
        missing = [
            first + self._look_up_block(padded, starts[block], ends[block], numbers[block])
            for first in range(0, len(starts), _BLOCK)
            for block in (slice(first, first + _BLOCK),)
        ]
        # Few words are left, so the many small steps that they take are taken for all together.
        pending = np.concatenate(missing) if missing else np.empty(0, np.int64)
        for first in range(0, len(pending), _PENDING_BLOCK):
            which = pending[first : first + _PENDING_BLOCK]
            numbers[which] = self._number_pending(padded, starts[which], ends[which])
        return numbers

    def _look_up_block(
        self,
        padded: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        out: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Write the numbers of the words that are where their search begins.

        Returns which words are left: those and all of more than _LONGEST_PAIRED bytes.
        """
        scratch, count = self._scratch, len(starts)
        loads = _eight_bytes(padded)
        lengths = np.subtract(ends, starts, out=scratch.lengths[:count])
        masks = np.take(_MASKS, lengths, out=scratch.masks[:count], mode="clip")
        keys = _plain_keys(loads[starts], masks)
        longer = np.flatnonzero(lengths > _LONGEST_PLAIN)
        if len(longer):
            keys[longer] = _paired_keys(loads, starts[longer], lengths[longer])
        entries = self._read_slots(self._home(keys, masks), out)
        found = self._compare_keys(entries, keys)
        entries -= 1
        if len(longer):
            found[longer] &= lengths[longer] <= _LONGEST_PAIRED
            longer = longer[found[longer]]
            at = self.offsets[entries[longer]]
            found[longer] = _eight_bytes(self.data)[at] == loads[starts[longer]]
        return np.flatnonzero(~found)

    def _number_pending(
        self, padded: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        lengths = ends - starts
        long = lengths > LONGEST_HASHED
        if not long.any():
            return self._find_or_insert(padded, starts, lengths)
        numbers = np.empty(len(starts), np.int64)
        numbers[~long] = self._find_or_insert(padded, starts[~long], lengths[~long])
        numbers[long] = [
            self._number_long(padded[start : start + length])
            for start, length in zip(starts[long].tolist(), lengths[long].tolist(), strict=True)
        ]
        return numbers

    def _number_long(self, word: NDArray[np.uint8]) -> int:
        number = self._long.setdefault(word.tobytes(), len(self))
        if number == len(self):
            self._append(word, np.array([len(word)]), np.zeros(1, np.uint64))
            self._long_bytes += len(word) + _DICTIONARY_BYTES
        return number

    def _read_slots(self, slots: NDArray[np.int64], out: NDArray[np.int64]) -> NDArray[np.int64]:
        """Write what is in each slot, of a block at most, to `out` and return that."""
        if self._slots.dtype == out.dtype:
            return np.take(self._slots, slots, out=out, mode="clip")
        narrow = self._scratch.narrow[: len(slots)]
        out[:] = np.take(self._slots, slots, out=narrow, mode="clip")
        return out

    def _compare_keys(
        self, entries: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Tell which keys are those of the words at these entries of `_keys`, a block at most."""
        scratch, count = self._scratch, len(keys)
        known = np.take(self._keys.values, entries, out=scratch.known_keys[:count], mode="clip")
        return np.equal(known, keys, out=scratch.found[:count])

    def _find_or_insert(
        self, padded: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the numbers of words, inserting those that are not there."""
        self._reserve(len(starts))
        words = _Words(_word_keys(_eight_bytes(padded), starts, lengths), starts, lengths)
        numbers = np.empty(len(starts), np.int64)
        pending = np.arange(len(numbers))
        slots = self._home(words.keys)
        while len(pending):
            free = np.flatnonzero(self._slots[slots] == 0)
            if len(free):
                self._insert(padded, words.take(free), slots[free])
            entries = self._slots[slots].astype(np.int64)
            numbers[pending] = entries - 1
            found = self._keys.values[entries] == words.keys
            longer = np.flatnonzero(found & (words.lengths > _LONGEST_PLAIN))
            found[longer] = self._same_bytes(padded, words.take(longer), entries[longer] - 1)
            pending, words = pending[~found], words.take(~found)
            slots = (slots[~found] + 1) & (len(self._slots) - 1)
        return numbers

    def _same_bytes(
        self, padded: NDArray[np.uint8], words: _Words, numbers: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Compare words of the text, of 8 bytes or more, with those of these numbers and keys."""
        there, here = _eight_bytes(self.data), _eight_bytes(padded)
        at = self.offsets[numbers]
        same: NDArray[np.bool_] = there[at] == here[words.starts]
        active = np.flatnonzero(same & (words.lengths > _LONGEST_PAIRED))
        same[active] = self.offsets[numbers[active] + 1] - at[active] == words.lengths[active]
        active = active[same[active]]
        at, starts, last = at[active], words.starts[active], words.lengths[active] - 8
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

    def _insert(self, padded: NDArray[np.uint8], words: _Words, slots: NDArray[np.int64]) -> None:
        """Put words into the free slots they want, one for each slot."""
        won = self._claim(slots)
        words, slots = words.take(won), slots[won]
        self._slots[slots] = np.arange(len(self) + 1, len(self) + 1 + len(slots))
        self._append(
            concatenate_ranges(padded, words.starts, words.lengths), words.lengths, words.keys
        )

    def _claim(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Choose one of those that want the same free slot."""
        mine = np.arange(len(slots))
        self._slots[slots] = mine
        won: NDArray[np.bool_] = self._slots[slots] == mine
        return won

    def _append(
        self, data: NDArray[np.uint8], lengths: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> None:
        self._offsets.append(len(self._data) + np.cumsum(lengths))
        self._data.append(data)
        self._keys.append(keys)

    def _reserve(self, words: int) -> None:
        """Make the table large enough to stay sparse if so many new words come."""
        bits = self._bits
        while _SPARSITY * (len(self) + words) > 1 << bits:
            bits += 1
        if bits != self._bits:
            self._make_slots(bits)

    def _make_slots(self, bits: int) -> None:
        self._bits = bits
        dtype = np.uint32 if bits <= _NARROW_BITS else np.int64
        # A word's number plus 1; 0 marks a free slot.
        self._slots: NDArray[np.uint32 | np.int64] = np.zeros(1 << bits, dtype)
        # Of several that want a slot the last wins: the lowest number, so that frequent words are
        # where their search begins.
        pending = np.flatnonzero(self._keys.values)[::-1]
        slots = self._home(self._keys.values[pending])
        while len(pending):
            free = np.flatnonzero(self._slots[slots] == 0)
            won = np.zeros(len(pending), np.bool_)
            won[free[self._claim(slots[free])]] = True
            self._slots[slots[won]] = pending[won]
            pending = pending[~won]
            # Whoever lost finds the slot taken when looking at it again.
            slots = (slots[~won] + 1) & (len(self._slots) - 1)

    def _home(
        self, keys: NDArray[np.uint64], out: NDArray[np.uint64] | None = None
    ) -> NDArray[np.int64]:
        """Return the slot at which the search for each key begins."""
        mixed = np.multiply(keys, _GOLDEN, out=out)
        mixed >>= np.uint64(64 - self._bits)
        return mixed.view(np.int64)


def _eight_bytes(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """View `data` as the little-endian number in the eight bytes from each position on."""
    return np.ndarray((max(len(data) - 7, 0),), "<u8", data.data, 0, (1,))


def _word_keys(
    loads: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return a key for each word, never 0."""
    keys = _plain_keys(loads[starts], np.take(_MASKS, lengths, mode="clip"))
    longer = np.flatnonzero(lengths > _LONGEST_PLAIN)
    keys[longer] = _paired_keys(loads, starts[longer], lengths[longer])
    hashed = np.flatnonzero(lengths > _LONGEST_PAIRED)
    keys[hashed] = _hash(loads, starts[hashed], lengths[hashed]) | _HASHED_TAG
    return keys


def _plain_keys(first_bytes: NDArray[np.uint64], masks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the keys of words of up to 7 bytes; writes them over the text's `first_bytes`."""
    first_bytes &= masks
    # Words of n bytes fill a range of keys of their own, so that "a" and "a\0" differ.
    first_bytes += masks
    return first_bytes


def _paired_keys(
    loads: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return keys of words of 8 to 15 bytes, above those of shorter words.

    Each is the length, and the last seven bytes mixed with the first eight: two words with equal
    keys and equal first bytes are the same. Longer words give keys of no use.
    """
    keys: NDArray[np.uint64] = loads[starts + lengths - 8]
    keys >>= _BYTE
    keys ^= _mix(loads[starts]) >> _BYTE
    keys |= lengths.view(np.uint64) << _LENGTH_SHIFT
    return keys


def _hash(
    loads: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Hash words of 8 bytes or more: their length, last eight bytes, and all bytes before those."""
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
    """Spread the bits of 64-bit numbers, each to a number of its own."""
    mixed = values * _MIX_A
    mixed ^= mixed >> _HALF
    return mixed
