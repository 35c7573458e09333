"""Text of any size, made from a seed, with as many distinct words as real text of its size.

- The frequency of a word falls with its rank r as in Zipf's law: as 1/r among the first
  _TABLE_WORDS ranks, then as r to the power -5/3. Ranks have no bound, so new words keep appearing:
  n words have about 15 n^0.6 distinct words, as Heaps' law says with the constants of English.
- A word's spelling is a function of its rank alone, and no two ranks below 2^32 share a spelling.
  A word has up to four syllables of one or two consonants and vowels each, and a final consonant or
  none; frequent words have fewer syllables. Of 64 words, one is Cyrillic and one is a number.
- The syllables are chosen as if at random, so the tokens of this text differ from the tokens of a
  real language.
- Text is generated in blocks, each from the seed and the block's number. The arithmetic consists of
  integers, divisions and square roots, so a seed gives the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import library
from llmgpu.cpu.texts import GeneratedBlocks
from llmgpu.machine import usable_processors
from llmgpu.pipeline import in_order

BLOCK_WORDS = 1 << 15
SMALLEST_BLOCK = 4 * BLOCK_WORDS  # bytes; every block is larger
_GROUP = 16  # blocks per call in a thread; with large calls, threads seldom wait for Python's lock
_TABLE_WORDS = 1 << 12  # number of the most frequent words, which are drawn from a table
_DRAWS = 1 << 16  # entries of the table; a word has entries in proportion to its frequency
_SYLLABLES = 4  # most syllables of a word
_LONGER_FROM = (1 << 6, 1 << 11, 1 << 19)  # at each of these ranks, words get one more syllable
_ONSETS = (*"bcdfghlmnprstv", "st", "tr")
_VOWELS = (*"aeiouy", "ai", "au", "ea", "ee", "ei", "ie", "io", "oa", "oo", "ou")
_CYRILLIC_ONSETS, _CYRILLIC_VOWELS = "бвгджзклмнпрстфх", "аеиоуыэюяёєіїўйѣ"
_CODAS = ("", "", "n", "s", "r", "t", "l", "")
_ENDS = {" ": 220, ", ": 14, ". ": 11, ".\n": 4, "\n": 2, "? ": 2, "; ": 1, ": ": 1, ".\n\n": 1}


def generate_text(nbytes: int, seed: int = 0) -> Iterator[bytes]:
    """Yield `nbytes` of UTF-8 text in blocks of some 200 KB; the last block ends with a newline.

    Except for its last four bytes, a text is the beginning of every longer text of the same seed.
    """
    missing = nbytes
    for block in _blocks(seed, 1 + nbytes // SMALLEST_BLOCK):
        if len(block) >= missing:
            break
        yield block
        missing -= len(block)
    # Fill the rest of the last block with newlines, after its last whole character.
    kept = block[: max(missing - 1, 0)].decode(errors="ignore").encode()
    yield kept + b"\n" * (missing - len(kept))


def _blocks(seed: int, most: int) -> Iterator[bytes]:
    """Yield the blocks of a seed without end; most: upper estimate of the blocks to be used."""
    words = _Words()
    threads = 1 if library() is None else usable_processors()
    group = max(1, min(_GROUP, most // threads))
    groups = (range(first, first + group) for first in count(0, group))
    ahead = min(2 * threads, most)
    for blocks in in_order(groups, partial(words.blocks, seed), ahead, threads=threads):
        yield from map(bytes, blocks)


class _Words:
    """Draws words by frequency and spells them.

    A word is a row of cells, uint32: _SYLLABLES syllables, then a final consonant, then the space
    or punctuation after the word. A cell has up to 4 bytes of text, padded with zeros at the end.
    """

    def __init__(self) -> None:
        latin = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
        cyrillic = [onset + vowel for onset in _CYRILLIC_ONSETS for vowel in _CYRILLIC_VOWELS]
        numbers = [f"{number:03}" for number in range(256)]
        self._syllables = _cells([*latin, *cyrillic, *numbers])  # 256 of each script
        self._codas = _cells(list(_CODAS))
        ends = [end for end, share in _ENDS.items() for _ in range(share)]
        self._ends = _cells(ends) << np.uint32(8)
        self._ends_sentence = np.array([end[0] in ".?\n" for end in ends])
        ranks = _table_ranks()
        self._table = self._spell(ranks)
        self._in_c: GeneratedBlocks | None = None
        if library() is not None:
            cells = self._syllables, self._codas, self._ends >> np.uint32(8)
            rows = self._spell(np.arange(_TABLE_WORDS, dtype=np.uint64))
            frequent = [row.tobytes().replace(b"\0", b"") for row in rows]
            self._in_c = GeneratedBlocks(
                BLOCK_WORDS, ranks.astype(np.uint16), frequent, cells, self._ends_sentence
            )

    def blocks(self, seed: int, numbers: Sequence[int]) -> list[bytes | memoryview]:
        """Return the texts of the blocks with these numbers. A block has whole sentences."""
        generators = [np.random.PCG64DXSM([seed, number]) for number in numbers]
        if self._in_c is not None:
            return [*self._in_c.blocks(generators)]
        return [self._block(generator) for generator in generators]

    def _block(self, generator: np.random.PCG64DXSM) -> bytes:
        random = generator.random_raw(BLOCK_WORDS)
        # Random bits, uint64 (words,): 16 for a frequent word, 8 for its end, 40 for a rare word.
        draws = random.astype(np.uint16)
        rows = self._table.take(draws, axis=0, mode="clip")
        rare = np.flatnonzero(draws >= len(self._table))
        rows[rare] = self._spell(_rare_ranks(random[rare] >> np.uint64(24)))
        ends = (random >> np.uint64(16)).astype(np.uint8)
        ends[-1] = len(self._ends) - 1
        rows[:, -1] |= self._ends[ends]
        _capitalize(rows, self._ends_sentence[ends])
        return rows.tobytes().translate(None, b"\0")

    def _spell(self, ranks: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Return a row for each word: the codes of its syllables, uint32 (n, _SYLLABLES + 1).

        The rows have no space and no punctuation. ranks: uint64 (n,), below 2^32.
        """
        syllables = np.searchsorted(_LONGER_FROM, ranks, side="right") + 1
        bits = (8 * syllables).astype(np.uint64)
        # The product and the shift each permute the numbers below 2**bits, so spellings stay
        # distinct.
        numbers = ranks * np.uint64(0x9E3779B97F4A7C15) & ((np.uint64(1) << bits) - np.uint64(1))
        numbers ^= numbers >> (bits >> np.uint64(1))
        mixed = ranks * np.uint64(0xD1B54A32D192ED03)
        # script 1 and 2 (Cyrillic, numbers): 1 word of 64 each
        script = np.maximum((mixed >> 58).astype(np.int64) - 61, 0)
        rows = np.zeros((len(ranks), _SYLLABLES + 1), np.uint32)
        for place in range(_SYLLABLES):
            digit = (numbers >> np.uint64(8 * place)).astype(np.uint8)
            cells = self._syllables[256 * script + digit]
            rows[:, place] = np.where(place < syllables, cells, 0)
        coda = (mixed >> 55 & 7).astype(np.int64)
        rows[:, -1] = np.where(script == 0, self._codas[coda], 0)
        return rows


def _table_ranks() -> NDArray[np.uint64]:
    """Return the ranks of the table's entries, uint64 (fewer than _DRAWS,)."""
    ranks = np.arange(_TABLE_WORDS, dtype=np.uint64)
    return np.repeat(ranks, (_DRAWS * 0.11 / (ranks + 1.7)).astype(np.int64))


def _rare_ranks(random: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return ranks of rare words, from _TABLE_WORDS on; random: uint64 (n,), below 2^40.

    The share of ranks beyond r falls as r to the power -2/3. Ranks are reduced modulo 2^32.
    """
    share = (random + np.uint64(1)) / float(1 << 40)
    ranks = _TABLE_WORDS / (share * np.sqrt(share))
    return np.fmod(ranks, float(1 << 32)).astype(np.uint64)


def _capitalize(rows: NDArray[np.uint32], ends_sentence: NDArray[np.bool_]) -> None:
    """Capitalize each Latin word that begins a sentence; the first row begins a sentence."""
    first = np.append(0, np.flatnonzero(ends_sentence[:-1]) + 1)
    letters = rows[first, 0].astype(np.uint8)
    small = (letters >= ord("a")) & (letters <= ord("z"))
    rows[first, 0] ^= np.where(small, 0x20, 0).astype(np.uint32)


def _cells(texts: list[str]) -> NDArray[np.uint32]:
    """Return texts of up to 4 bytes as cells, uint32 (n,); the first byte is the lowest."""
    return np.array([int.from_bytes(text.encode(), "little") for text in texts], np.uint32)
