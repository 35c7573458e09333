"""The text that is measured on.

By default the sources of Python's standard library, which every machine has: .py files in the order
of their paths, without the few that are not UTF-8, because peers can't read those. Different
versions of Python have different sources, so the text's hash is recorded. The source "generated" is
text of any size; name a file like that ./generated.
All files are one document, end to end, and the text ends with a line where its length is cut.

Generated text has as many distinct words as real text of its size.

- The frequency of a word falls with its rank r as in Zipf's law: as 1/r among the first
  _TABLE_WORDS ranks, then as r to the power -5/3. Ranks are not bounded, so new words keep coming:
  n words have about 15 n^0.6 distinct ones, which is Heaps' law with the numbers of English.
- A word's spelling is a function of its rank alone, and no two ranks below 2^32 share one. Words
  are syllables, a consonant (or two) and a vowel (or two) each, with a final consonant or none;
  frequent words have fewer. One word in 64 is Cyrillic, and one is a number.
- The syllables of a word are as good as random, so tokens of this text are not those of a language.
- It is made in blocks, each from the seed and the block's number. Nothing but integers, divisions
  and square roots goes into it, so a seed gives the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.results import Result, TextFacts, Times
from llmgpu.errors import InputError
from llmgpu.progress import Progress
from llmgpu.text.corpus import Corpus, CorpusOptions

GENERATED = "generated"
_READ_BYTES = 1 << 20
_NOT_STANDARD = {"site-packages", "dist-packages"}
BLOCK_WORDS = 1 << 15
_TABLE_WORDS = 1 << 12  # ranks whose words are drawn from a table
_DRAWS = 1 << 16  # entries of that table, a word's share of them being its frequency
_SYLLABLES = 4  # of the longest word
_LONGER_FROM = (1 << 6, 1 << 11, 1 << 19)  # ranks from which on words have a syllable more
_ONSETS = (*"bcdfghlmnprstv", "st", "tr")
_VOWELS = (*"aeiouy", "ai", "au", "ea", "ee", "ei", "ie", "io", "oa", "oo", "ou")
_CYRILLIC_ONSETS, _CYRILLIC_VOWELS = "бвгджзклмнпрстфх", "аеиоуыэюяёєіїўйѣ"
_CODAS = ("", "", "n", "s", "r", "t", "l", "")
_ENDS = {" ": 220, ", ": 14, ". ": 11, ".\n": 4, "\n": 2, "? ": 2, "; ": 1, ": ": 1, ".\n\n": 1}


@dataclass(frozen=True)
class BenchText:
    """A text and where it is from."""

    source: str
    data: bytes

    @cached_property
    def is_utf8(self) -> bool:
        """Whether peers, which take text and not bytes, can read it."""
        try:
            self.data.decode()
        except UnicodeDecodeError:
            return False
        return True

    def first(self, limit: int) -> BenchText:
        """Return the first `limit` bytes at most, up to the end of a line if there is one."""
        return BenchText(self.source, _cut(self.data, limit))

    def describe(self) -> TextFacts:
        """Return what the text is."""
        return TextFacts(self.source, len(self.data), hashlib.sha256(self.data).hexdigest())


@dataclass(frozen=True)
class Job:
    """What every engine is measured on.

    path: a file with the bytes of `text`. folder: for output files. runs: how often to measure.
    """

    text: BenchText
    path: Path
    folder: Path
    vocab_size: int
    pattern: str
    runs: int

    def begin(self, what: str, engine: str) -> Result:
        """Return a result without measurements: what was asked of which engine."""
        return Result(
            what,
            engine,
            text_bytes=len(self.text.data),
            vocab_size=self.vocab_size,
            pattern=self.pattern,
        )

    def count_runs(self, begun: Result, progress: Progress) -> Iterator[int]:
        """Yield the number of each run, which is reported as progress."""
        for run in range(self.runs):
            progress(f"{begun.what}: {begun.engine}", run, self.runs)
            yield run

    def finish(self, begun: Result, seconds: Sequence[float]) -> Result:
        """Return a result that was found right, with its times."""
        times = Times.of(seconds)
        rate = len(self.text.data) / times.median / 1e6
        return replace(begun, correct=True, seconds=times, mb_per_second=rate)


def make_job(text: BenchText, folder: Path, vocab_size: int, pattern: str, runs: int) -> Job:
    """Write a text to a file, which puts it into the page cache, and return the job on it."""
    path = folder / f"corpus-{len(text.data)}.txt"
    path.write_bytes(text.data)
    return Job(text, path, folder, vocab_size, pattern, runs)


def load_text(sources: Sequence[str], limit: int) -> BenchText:
    """Read `limit` bytes of `sources` at most, of the standard library if there are none.

    Raises:
        InputError: a source can't be read, or there is no text.
    """
    if not sources:
        text = BenchText("Python's standard library", _standard_library(limit))
    elif GENERATED in sources:
        text = BenchText(GENERATED, b"".join(text_blocks(sources, limit)))
    else:
        text = BenchText(", ".join(sources), _cut(_read(sources, limit + 1), limit))
    if not text.data:
        raise InputError(f"there is no text to measure on in {text.source}")
    return text


def text_blocks(sources: Sequence[str], limit: int) -> Iterator[bytes]:
    """Yield the text of `load_text`, which is not all in memory if it is generated."""
    if GENERATED not in sources:
        yield load_text(sources, limit).data
    elif len(sources) > 1:
        raise InputError("generated text is of any size by itself: give no other sources with it")
    else:
        yield from generate_text(limit)


def standard_library_files() -> list[Path]:
    """Return the .py files of Python's standard library, sorted by path."""
    files: list[Path] = []
    for folder, inside, names in os.walk(sysconfig.get_paths()["stdlib"]):
        inside[:] = set(inside) - _NOT_STANDARD  # what is left out is not walked either
        files += (Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(path for path in files if path.is_file())


def _standard_library(limit: int) -> bytes:
    data = bytearray()
    for path in standard_library_files():
        if len(data) > limit:
            break
        text = BenchText(str(path), path.read_bytes())
        data += text.data if text.is_utf8 else b""
    return _cut(bytes(data), limit)


def _read(sources: Sequence[str], limit: int) -> bytes:
    data = bytearray()
    buffer = np.empty(_READ_BYTES, np.uint8)
    with Corpus(sources, CorpusOptions(limit=limit)) as corpus:
        ended = False
        while not ended:
            fill = corpus.read_into(buffer)
            data += buffer[: fill.length].tobytes()
            ended = fill.end
    return bytes(data)


def _cut(data: bytes, limit: int) -> bytes:
    if len(data) <= limit:
        return data
    return data[: data.rfind(b"\n", 0, limit) + 1 or limit]


def generate_text(nbytes: int, seed: int = 0) -> Iterator[bytes]:
    """Yield `nbytes` of UTF-8 text in blocks of some 200 KB; the last ends with a newline.

    Except for its last four bytes, a text is the beginning of every longer one of the same seed.
    """
    words = _Words()
    missing = nbytes
    for number in count():
        block = words.block(seed, number)
        if len(block) >= missing:
            break
        yield block
        missing -= len(block)
    # The last block ends with newlines from its last whole character on.
    kept = block[: max(missing - 1, 0)].decode(errors="ignore").encode()
    yield kept + b"\n" * (missing - len(kept))


class _Words:
    """Spells and draws words.

    A word is a row of cells: _SYLLABLES syllables, then a final consonant and what follows it.
    A cell is 4 bytes, zeros at the end of which stand for nothing.
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
        self._table = np.empty((_DRAWS, _SYLLABLES + 1), np.uint32)
        self._table[: len(ranks)] = self._spell(ranks)
        self._in_table = len(ranks)

    def block(self, seed: int, number: int) -> bytes:
        """Return the text of block `number`, which is some sentences."""
        random = np.random.PCG64DXSM([seed, number]).random_raw(BLOCK_WORDS)
        # 16 bits for a frequent word, 8 for what follows it, 40 for a rare word
        draws = random.astype(np.uint16)
        rows = self._table.take(draws, axis=0)
        rare = np.flatnonzero(draws >= self._in_table)
        rows[rare] = self._spell(_rare_ranks(random[rare] >> np.uint64(24)))
        ends = (random >> np.uint64(16)).astype(np.uint8)
        ends[-1] = len(self._ends) - 1
        rows[:, -1] |= self._ends[ends]
        _capitalize(rows, self._ends_sentence[ends])
        return rows.tobytes().translate(None, b"\0")

    def _spell(self, ranks: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Return the rows of words, uint32 (n, _SYLLABLES + 1), with nothing after them.

        ranks: uint64 (n,), below 2^32.
        """
        syllables = np.searchsorted(_LONGER_FROM, ranks, side="right") + 1
        bits = (8 * syllables).astype(np.uint64)
        # Both steps map the numbers of this many bits one-to-one.
        numbers = ranks * np.uint64(0x9E3779B97F4A7C15) & ((np.uint64(1) << bits) - np.uint64(1))
        numbers ^= numbers >> (bits >> np.uint64(1))
        mixed = ranks * np.uint64(0xD1B54A32D192ED03)
        script = np.maximum((mixed >> 58).astype(np.int64) - 61, 0)  # 0, or 1 or 2 of 64 times
        rows = np.zeros((len(ranks), _SYLLABLES + 1), np.uint32)
        for place in range(_SYLLABLES):
            digit = (numbers >> np.uint64(8 * place)).astype(np.uint8)
            cells = self._syllables[256 * script + digit]
            rows[:, place] = np.where(place < syllables, cells, 0)
        coda = (mixed >> 55 & 7).astype(np.int64)
        rows[:, -1] = np.where(script == 0, self._codas[coda], 0)
        return rows


def _table_ranks() -> NDArray[np.uint64]:
    """Return the ranks below _TABLE_WORDS, each as often as it occurs in _DRAWS words."""
    ranks = np.arange(_TABLE_WORDS, dtype=np.uint64)
    return np.repeat(ranks, (_DRAWS * 0.11 / (ranks + 1.7)).astype(np.int64))


def _rare_ranks(random: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return ranks from _TABLE_WORDS on; random: uint64 (n,), below 2^40.

    The share of ranks beyond r falls as r to the power -2/3. The few beyond 2^32 are folded.
    """
    share = (random + np.uint64(1)) / float(1 << 40)
    ranks = _TABLE_WORDS / (share * np.sqrt(share))
    return np.fmod(ranks, float(1 << 32)).astype(np.uint64)


def _capitalize(rows: NDArray[np.uint32], ends_sentence: NDArray[np.bool_]) -> None:
    """Give the first words of sentences a capital, where they are Latin; the first row is one."""
    first = np.append(0, np.flatnonzero(ends_sentence[:-1]) + 1)
    letters = rows[first, 0].astype(np.uint8)
    small = (letters >= ord("a")) & (letters <= ord("z"))
    rows[first, 0] ^= np.where(small, 0x20, 0).astype(np.uint32)


def _cells(texts: list[str]) -> NDArray[np.uint32]:
    """Return texts of up to 4 bytes as cells, uint32 (n,), the first byte the lowest."""
    return np.array([int.from_bytes(text.encode(), "little") for text in texts], np.uint32)
