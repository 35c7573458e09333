"""The hashes of the tables on devices, written for reading: 32 bits as ints of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Key = Sequence[int]  # four numbers, the last one odd
Item = TypeVar("Item")
BITS = 1 << 32


def take_in(number: int, key: int) -> int:
    low, high = (number ^ key) % 65536, (number ^ key) // 65536
    return (65536 * high + low + high * low) % BITS


def spread(number: int, key: Key) -> int:
    product = (number ^ number // 2**15) * key[3] % BITS
    return product ^ product // 2**16


def hash_numbers(numbers: Sequence[int], key: Key) -> int:
    """Return the hash of one to three numbers."""
    state = 0
    for number, part in zip(numbers, key, strict=False):
        state = take_in(state ^ number, part)
    return spread(state, key)


def word_numbers(word: bytes, key: Key) -> list[int]:
    """Return the three numbers by which a table finds a word: of more than 11 bytes, a hash."""
    if len(word) <= 11:
        padded = word.ljust(11, b"\0") + bytes([len(word)])
        return [int.from_bytes(padded[at : at + 4], "little") for at in (0, 4, 8)]
    low, high = len(word), 0
    for at in [*range(0, len(word) - 8, 8), len(word) - 8]:
        left = low ^ int.from_bytes(word[at : at + 4], "little") ^ key[0]
        right = high ^ int.from_bytes(word[at + 4 : at + 8], "little") ^ key[1]
        low, high = left * right % BITS, left * right // BITS
    return [low, 0, 255 * 2**24 + high % 2**24]


def hash_word(word: bytes, key: Key) -> int:
    return hash_numbers(word_numbers(word, key), key)


def flood(
    items: Iterable[Item], hash_of: Callable[[Item], int], slots: int, firsts: int, count: int
) -> Iterator[Item]:
    """Yield `count` items whose search in a table of so many slots begins in its first slots."""
    for item in items:
        if hash_of(item) % slots < firsts:
            yield item
            count -= 1
            if count == 0:
                return
