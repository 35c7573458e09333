"""A table that numbers the distinct words (pre-tokens) of a text.

- A word of up to 7 bytes is its own key: the bytes and the length fit into 64 bits, so equal keys
  are equal words. A longer word's key is a hash, and on equal keys the bytes are compared.
- Keys are in an open-addressing table of a power of two slots, at most half full, probed one slot
  after the other. All words of a block are looked up in lockstep; several that want the same free
  slot are told apart by who wrote last, the others look at the slot again.
- Words are read eight bytes at a time, so a word of n bytes takes n / 8 rounds; words of more than
  LONGEST_HASHED bytes are few and are kept in a dictionary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges

LONGEST_HASHED = 256  # bytes
_LONGEST_EXACT = 7  # bytes of a word that is its own key
_HASHED_TAG = np.uint64(0xFF)  # lowest byte of a hashed key; elsewhere it is the length
_BLOCK = 1 << 15  # words looked up at once
_FIRST_BITS = 12
# Odd constants with well mixed bits: the golden ratio and those of SplitMix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class _Words:
    """Words of a text: their keys (uint64), where they start, and their lengths (int64)."""

    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> _Words:
        return _Words(self.keys[which], self.starts[which], self.lengths[which])


class WordTable:
    """Distinct words, numbered 0, 1, 2, ... in an order that is deterministic but has no meaning.

    Memory: a word's bytes, 16 bytes for its offset and key, and 32 to 64 for its slots.
    """

    def __init__(self) -> None:
        self._data = GrowableArray(np.uint8)  # bytes of all words, end to end
        self._offsets = GrowableArray(np.int64)  # of word k: offsets[k] .. offsets[k + 1]
        self._offsets.append(np.zeros(1, np.int64))
        self._keys = GrowableArray(np.uint64)  # by word; 0 for those in the dictionary
        self._long: dict[bytes, int] = {}
        self._make_slots(_FIRST_BITS)

    def __len__(self) -> int:
        """Return how many distinct words there are."""
        return len(self._keys)

    @property
    def data(self) -> NDArray[np.uint8]:
        """Bytes of the words, in the order of their numbers, end to end."""
        return self._data.values

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where in `data` each word starts, and where the last one ends: int64 (len + 1,)."""
        return self._offsets.values

    def number(
        self, text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the number of every word text[start:end], giving new words the next numbers.

        starts, ends: int64 (words,), each end behind its start.
        """
        padded = np.zeros(len(text) + 8, np.uint8)
        padded[: len(text)] = text
        lengths = ends - starts
        numbers = np.empty(len(starts), np.int64)
        for first in range(0, len(starts), _BLOCK):
            block = slice(first, first + _BLOCK)
            numbers[block] = self._number_block(padded, starts[block], lengths[block])
        return numbers

    def _number_block(
        self, padded: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        long = lengths > LONGEST_HASHED
        if not long.any():
            return self._number_hashed(padded, starts, lengths)
        numbers = np.empty(len(starts), np.int64)
        numbers[~long] = self._number_hashed(padded, starts[~long], lengths[~long])
        numbers[long] = [
            self._number_long(padded[start : start + length])
            for start, length in zip(starts[long].tolist(), lengths[long].tolist(), strict=True)
        ]
        return numbers

    def _number_long(self, word: NDArray[np.uint8]) -> int:
        number = self._long.setdefault(word.tobytes(), len(self))
        if number == len(self):
            self._append(word, np.array([len(word)]), np.zeros(1, np.uint64))
        return number

    def _number_hashed(
        self, padded: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        self._reserve(len(starts))
        words = _Words(_word_keys(_eight_bytes(padded), starts, lengths), starts, lengths)
        slots = self._home(words.keys)
        numbers, found = self._look(padded, words, slots)
        pending = np.flatnonzero(~found)
        words, slots = words.take(pending), slots[pending]
        while len(pending):
            free = self._slot_keys[slots] == 0
            self._insert(padded, words.take(free), slots[free])
            slots = np.where(free, slots, slots + 1) & (len(self._slot_keys) - 1)
            numbers[pending], found = self._look(padded, words, slots)
            pending, words, slots = pending[~found], words.take(~found), slots[~found]
        return numbers

    def _look(
        self, padded: NDArray[np.uint8], words: _Words, slots: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the number in each word's slot, and whether it is that of the word."""
        numbers = self._slot_numbers[slots]
        found = self._slot_keys[slots] == words.keys
        hashed = np.flatnonzero(found & (words.lengths > _LONGEST_EXACT))
        if len(hashed):
            found[hashed] = self._same_bytes(padded, words.take(hashed), numbers[hashed])
        return numbers, found

    def _same_bytes(
        self, padded: NDArray[np.uint8], words: _Words, numbers: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Compare words of the text, of 8 bytes or more, with those that have these numbers."""
        there, here = _eight_bytes(self.data), _eight_bytes(padded)
        at = self.offsets[numbers]
        same: NDArray[np.bool_] = self.offsets[numbers + 1] - at == words.lengths
        active = np.flatnonzero(same)
        at, starts, last = at[active], words.starts[active], words.lengths[active] - 8
        step = 0
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
        self._slot_keys[slots] = words.keys
        self._slot_numbers[slots] = np.arange(len(self), len(self) + len(slots))
        self._append(
            concatenate_ranges(padded, words.starts, words.lengths), words.lengths, words.keys
        )

    def _claim(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Choose one of those that want the same free slot."""
        mine = np.arange(len(slots))
        self._slot_numbers[slots] = mine
        won: NDArray[np.bool_] = self._slot_numbers[slots] == mine
        return won

    def _append(
        self, data: NDArray[np.uint8], lengths: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> None:
        self._offsets.append(len(self._data) + np.cumsum(lengths))
        self._data.append(data)
        self._keys.append(keys)

    def _reserve(self, words: int) -> None:
        """Make the table large enough to stay half empty if so many new words come."""
        bits = self._bits
        while 2 * (len(self) + words) > 1 << bits:
            bits += 1
        if bits != self._bits:
            self._make_slots(bits)

    def _make_slots(self, bits: int) -> None:
        self._bits = bits
        self._slot_keys = np.zeros(1 << bits, np.uint64)  # 0 marks a free slot
        self._slot_numbers = np.zeros(1 << bits, np.int64)
        pending = np.flatnonzero(self._keys.values)
        slots = self._home(self._keys.values[pending])
        while len(pending):
            free = self._slot_keys[slots] == 0
            won = np.zeros(len(pending), np.bool_)
            won[free] = self._claim(slots[free])
            self._slot_keys[slots[won]] = self._keys.values[pending[won]]
            self._slot_numbers[slots[won]] = pending[won]
            slots = np.where(free, slots, slots + 1) & (len(self._slot_keys) - 1)
            pending, slots = pending[~won], slots[~won]

    def _home(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the slot at which the search for each key begins."""
        mixed = keys * _GOLDEN
        mixed ^= mixed >> _HALF
        mixed *= _MIX_A
        mixed >>= np.uint64(64 - self._bits)
        return mixed.view(np.int64)


def _eight_bytes(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """View `data` as the little-endian number in the eight bytes from each position on."""
    return np.ndarray((max(len(data) - 7, 0),), "<u8", data.data, 0, (1,))


def _word_keys(
    loads: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return a key for each word, never 0: exact for short words, a hash for others."""
    keys = loads[starts]
    keys <<= (64 - 8 * lengths).astype(np.uint64)
    keys |= lengths.view(np.uint64)
    long = np.flatnonzero(lengths > _LONGEST_EXACT)
    if len(long):
        keys[long] = _hash(loads, starts[long], lengths[long]) | _HASHED_TAG
    return keys


def _hash(
    loads: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Hash words of 8 bytes or more: their length, last eight bytes, and all bytes before those."""
    left = lengths - 8
    hashes: NDArray[np.uint64] = loads[starts + left] ^ (lengths.view(np.uint64) * _GOLDEN)
    active, at = np.arange(len(starts)), starts
    while len(active):
        mixed = hashes[active] * _MIX_A
        mixed ^= mixed >> _HALF
        mixed ^= loads[at]
        hashes[active] = mixed
        left = left - 8
        more = left > 0
        active, at, left = active[more], at[more] + 8, left[more]
    hashes *= _MIX_B
    hashes ^= hashes >> _HALF
    return hashes
