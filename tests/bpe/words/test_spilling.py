"""Adding words up: sums against a Counter, with and without runs on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu import machine
from llmgpu.bpe.words import spilling
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.bpe.words.spilling import RunFile, WordAccumulator, default_memory_bytes
from llmgpu.errors import InputError, OutputError
from tests.bpe.word_lists import as_words, listed
from tests.conftest import examples

LETTERS = st.sampled_from(b"\x00\x00ab\xff")
WORD = st.one_of(
    st.lists(LETTERS, min_size=1, max_size=20).map(bytes),
    st.builds(lambda size, end: b"\x00" * size + end, st.integers(1, 600), st.binary(max_size=2)),
)
PIECE = st.dictionaries(WORD, st.integers(1, 1 << 40), max_size=12)
PIECES = st.lists(PIECE, max_size=12)


def numbered(first: int, last: int) -> dict[bytes, int]:
    return {b"%d" % number: 1 + number % 5 for number in range(first, last)}


def total(pieces: list[dict[bytes, int]]) -> list[tuple[bytes, int]]:
    counts: Counter[bytes] = Counter()
    for piece in pieces:
        counts.update(piece)
    return sorted(counts.items())


def accumulate(pieces: list[dict[bytes, int]], memory_bytes: int | None) -> DistinctWords:
    accumulator = WordAccumulator(memory_bytes)
    for piece in pieces:
        accumulator.add(as_words(piece))
    return accumulator.result()


@settings(deadline=None)
@given(pieces=PIECES, memory_bytes=st.sampled_from([None, 0, 1000, 10_000]))
def test_sums_are_those_of_a_counter(
    pieces: list[dict[bytes, int]], memory_bytes: int | None
) -> None:
    result = accumulate(pieces, memory_bytes)
    assert sorted(listed(result)) == total(pieces)
    dtypes = [array.dtype for array in (result.data, result.offsets, result.counts)]
    assert dtypes == [np.uint8, np.int64, np.int64]


@settings(deadline=None, max_examples=examples(50))
@given(pieces=PIECES, block_bytes=st.integers(1, 300), most_merged=st.integers(2, 4))
def test_runs_of_small_blocks_merged_a_few_at_a_time(
    pieces: list[dict[bytes, int]], block_bytes: int, most_merged: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "_LEAST_BLOCK", block_bytes)
        patch.setattr(spilling, "_MOST_MERGED", most_merged)
        assert sorted(listed(accumulate(pieces, 0))) == total(pieces)


@pytest.mark.slow
def test_many_runs_are_merged_in_order() -> None:
    pieces = [numbered(first, first + 3000) for first in range(0, 100_000, 1000)]
    assert listed(accumulate(pieces, 50_000)) == total(pieces)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_runs_is_bounded() -> None:
    """What is alive while words are added and merged is little, apart from the result."""
    script = """
import numpy as np
from llmgpu import machine
from llmgpu.bpe.words import spilling
from llmgpu.bpe.words.distinct_words import DistinctWords, add_up
def piece(first):
    numbers = np.arange(first, first + 50_000, dtype=">u8").view(np.uint8)
    return DistinctWords(numbers, np.arange(50_001) * 8, np.ones(50_000, np.int64))
add_up([piece(0), piece(5)])
accumulator = spilling.WordAccumulator(16 << 20)
def peak():  # unlike getrusage's, that of this program alone, not of the process it was forked from
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0])
before = peak()
for first in range(0, 5_000_000, 50_000):
    accumulator.add(piece(first))
added = peak()
words = accumulator.result()
merged = peak()
assert len(words) == 5_000_000
print(added - before, merged - before - (words.nbytes >> 10))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert all(int(kilobytes) << 10 < 24 << 20 for kilobytes in done.stdout.split()), done.stdout


def test_a_single_piece_is_returned_as_it_is() -> None:
    words = as_words({b"b": 1, b"a": 2})
    accumulator = WordAccumulator()
    accumulator.add(as_words({}))
    accumulator.add(words)
    assert accumulator.result() is words
    assert listed(accumulator.result()) == []


def test_an_accumulator_starts_again_after_its_result() -> None:
    accumulator = WordAccumulator(0)
    for count in (1, 2):
        accumulator.add(as_words({b"a": count}))
        accumulator.add(as_words({b"b": count, b"a": count}))
        assert listed(accumulator.result()) == [(b"a", 2 * count), (b"b", count)]


@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_more_text_than_counts_reach_to(memory_bytes: int | None) -> None:
    most = {b"ab": (1 << 62) - 1}
    assert listed(accumulate([most, {b"c": 1}], memory_bytes)) == [*most.items(), (b"c", 1)]
    with pytest.raises(InputError, match="9,223,372,036,854,775,807 bytes"):
        accumulate([most, {b"ab": 1}], memory_bytes)


def test_runs_leave_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    accumulator = WordAccumulator(0)
    accumulator.add(as_words(numbered(0, 100)))
    accumulator.add(as_words(numbered(50, 150)))
    assert len(accumulator.result()) == 150
    assert os.listdir(tmp_path) == []


def test_a_killed_process_leaves_no_file_behind(tmp_path: Path) -> None:
    script = """
import os, signal
from llmgpu.bpe.words.spilling import WordAccumulator
from tests.bpe.word_lists import as_words
accumulator = WordAccumulator(0)
accumulator.add(as_words({b"a": 1}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert done.returncode == -9
    assert os.listdir(tmp_path) == []


def test_no_room_for_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OutputError, match=r"missing \(set TMPDIR for another folder\)"):
        accumulate([{b"a": 1}], 0)


def test_runs_that_are_cut_short_are_an_error() -> None:
    file = RunFile(100)
    run = file.write([as_words({b"a": 1, b"bc": 2})])
    file._file.truncate(10)
    for read in (lambda: list(file.read(run)), lambda: file.read_whole(run)):
        with pytest.raises(OutputError, match=r"set TMPDIR .*: it was cut short while"):
            read()


def test_default_memory_is_a_share_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_memory_bytes() > 1 << 20
    info, limit, use = tmp_path / "info", tmp_path / "limit", tmp_path / "use"
    for name, path in (("_MEMORY_INFO", info), ("_GROUP_LIMIT", limit), ("_GROUP_USE", use)):
        monkeypatch.setattr(machine, name, path)
    assert default_memory_bytes() > 1 << 20
    info.write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    assert default_memory_bytes() == 1000 << 10
    limit.write_text("max\n")
    use.write_text("1000\n")
    assert default_memory_bytes() == 1000 << 10
    limit.write_text("41000\n")
    assert default_memory_bytes() == 10_000


def test_blocks_are_a_share_of_the_memory_within_limits() -> None:
    least, most = spilling._LEAST_BLOCK, spilling._MOST_BLOCK
    share = spilling._WORKING_COPIES * spilling._MOST_MERGED
    for total_bytes, block in ((0, least), (share * (least + 1), least + 1), (1 << 40, most)):
        assert WordAccumulator(total_bytes)._block_bytes == block


def test_blocks_have_the_size_asked_for() -> None:
    """But for a single word that has more."""
    words = as_words({b"!" * 900: 1} | {b"%05d" % k: 1 for k in range(200)})
    (large, *small) = spilling.RunFile(420).write([words])
    assert [(block.words, block.data_bytes) for block in small] == [(20, 100)] * 10
    assert (large.words, large.data_bytes) == (1, 900)
