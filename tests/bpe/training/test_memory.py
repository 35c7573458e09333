"""Estimates against what NumPy takes: bounds, and near enough to tell something."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.pretokens.pattern import as_pattern
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.training import batched_numpy, merge_host, train
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import MergeTask, byte_symbols
from llmgpu.bpe.training.train import Training
from llmgpu.bpe.vocabulary.building import byte_ranks, byte_vocabulary
from llmgpu.bpe.words import count_host
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.cpu.library import library
from llmgpu.gpu.device import Device
from llmgpu.machine import Memory
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes

RNG = np.random.default_rng(8)
OPTIONS = TrainingOptions(1000)
TRAINING = Training(OPTIONS, NUMPY)


def of_lengths(letters: bytes, lengths: list[int]) -> DistinctWords:
    data = RNG.choice(np.frombuffer(letters, np.uint8), sum(lengths))
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    return DistinctWords(data, offsets, np.ones(len(lengths), np.int64))


LETTERS = bytes(range(97, 123))
WORDS = {
    "one letter": of_lengths(b"a", [400_000]),
    "one word": of_lengths(LETTERS, [400_000]),
    "short words": of_lengths(LETTERS, RNG.integers(3, 12, 50_000).tolist()),
    "words of bytes": of_lengths(bytes(range(256)), RNG.integers(1, 8, 80_000).tolist()),
    "long words": of_lengths(LETTERS, RNG.integers(500, 5000, 150).tolist()),
}


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_merging_is_within_its_estimate(words: DistinctWords) -> None:
    def merge() -> None:
        symbols = byte_symbols(words, byte_ranks("hf"))
        batched_numpy.train(symbols, OPTIONS, MergeTask(merges=40))

    peak, costs = words.nbytes + peak_of(merge), batched_numpy.COSTS
    estimate = costs.of(len(words), len(words.data)) - costs.fixed
    assert peak <= estimate <= 2.5 * peak


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="the CPU engine is not built")
@pytest.mark.parametrize("name", WORDS)
def test_merging_in_c_is_within_its_estimate(name: str) -> None:
    """Of a process of its own, since tracemalloc does not see what C allocates."""
    code = (
        "import resource, sys\n"
        "from llmgpu.bpe.training import merge_host\n"
        "from llmgpu.bpe.training.symbols import MergeTask\n"
        "from tests.bpe.training.test_memory import OPTIONS, WORDS, byte_ranks, byte_symbols\n"
        "words = WORDS[sys.argv[1]]\n"
        "before = int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()\n"
        "symbols = byte_symbols(words, byte_ranks('hf'))\n"
        "merge_host.train(symbols, OPTIONS, MergeTask(merges=700))\n"
        # Unlike getrusage, without the peak of the process that started this one.
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "peak = int(status['VmHWM'].split()[0]) * 1024\n"
        "print(words.nbytes + peak - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, check=True)
    words, costs = WORDS[name], merge_host.ENGINE_COSTS
    assert int(done.stdout) <= costs.of(len(words), len(words.data))


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="the CPU engine is not built")
@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("lengths", ["[9_000_000]", "[9] * 1_000_000", "[2] * 4_000_000"])
def test_merging_in_little_memory_takes_few_bytes_a_byte(lengths: str, least: int) -> None:
    """Of random bytes, whose pairs are many: all of them take up to 47 bytes a byte."""
    code = (
        "from llmgpu.bpe.training import merge_host\n"
        "from llmgpu.bpe.training.options import TrainingOptions\n"
        "from llmgpu.bpe.training.symbols import MergeTask\n"
        "from tests.bpe.training.test_memory import byte_ranks, byte_symbols, of_lengths\n"
        f"words = of_lengths(bytes(range(256)), {lengths})\n"
        "symbols = byte_symbols(words, byte_ranks('hf'))\n"
        "merge_host.FEW_PAIRS = 1 << 16\n"  # so that what is fixed hardly matters
        "merge_host.LITTLE_COSTS = merge_host.LITTLE_COSTS._replace(fixed=24 << 20)\n"
        "merge_host.free_memory = lambda: merge_host.ENGINE_COSTS.of(*sizes) - 1\n"
        "sizes = len(words), len(words.data)\n"
        "def now(key):\n"
        "    status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "    return int(status[key].split()[0]) * 1024\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"  # the peak begins here
        "before = now('VmRSS')\n"
        f"options = TrainingOptions(20_000, min_frequency={least})\n"
        "merge_host.train(symbols, options, MergeTask(merges=19_744))\n"
        "print(words.nbytes + now('VmHWM') - before, merge_host.LITTLE_COSTS.of(*sizes))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    peak, estimate = map(int, done.stdout.split())
    assert peak < estimate


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="the CPU engine is not built")
@pytest.mark.parametrize("letters", [b"a", LETTERS])
def test_merging_one_long_word_in_c_takes_few_times_its_length(letters: bytes) -> None:
    """With the text, and with the symbols and lists of 30 MB that no longer matter at its size."""
    code = (
        "import sys, numpy as np\n"
        "from llmgpu.bpe.training import merge_host\n"
        "from llmgpu.bpe.training.symbols import MergeTask\n"
        "from tests.bpe.training.test_memory import OPTIONS, byte_ranks, byte_symbols, of_lengths\n"
        "symbols = byte_symbols(of_lengths(sys.argv[1].encode(), [30_000_000]), byte_ranks('hf'))\n"
        "def now(key):\n"
        "    status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "    return int(status[key].split()[0]) * 1024\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"  # the peak begins here
        "before = now('VmRSS')\n"
        "merge_host.train(symbols, OPTIONS, MergeTask(merges=700))\n"
        "print(now('VmHWM') - before)"
    )
    command = [sys.executable, "-c", code, letters.decode()]
    done = subprocess.run(command, capture_output=True, check=True)
    assert int(done.stdout) < 9.5 * 30_000_000


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="the CPU engine is not built")
@pytest.mark.parametrize("command", ["bpe-train", "tokenize"])
def test_one_long_pretoken_takes_less_than_12_times_its_length(
    command: str, tmp_path: Path
) -> None:
    """By how much more a text of twice the length takes, so that what is fixed does not matter.

    Random letters have many pairs, each with a count and a list.
    """
    vocabulary, peaks = tmp_path / "v.bin", []
    byte_vocabulary("gpt2", "hf").save(vocabulary)
    for size in (12_000_000, 24_000_000):
        text = tmp_path / f"{size}.txt"
        text.write_bytes(RNG.choice(np.frombuffer(LETTERS, np.uint8), size).tobytes())
        output = [command, str(text), "-o", f"{text}.bin", "--device=cpu", "--quiet"]
        options = ["--vocab", str(vocabulary)] if command == "tokenize" else []
        code = "from llmgpu.cli import main; main()"
        process = subprocess.Popen([sys.executable, "-c", code, *output, *options])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks.append(usage.ru_maxrss << 10)
    assert peaks[1] - peaks[0] < 12 * 12_000_000


@pytest.mark.parametrize("longest", [9, 12])
def test_a_table_of_words_is_within_its_estimate(longest: int) -> None:
    listed = of_lengths(LETTERS, RNG.integers(3, longest, 180_000).tolist())
    words = [listed.spell(number) for number in range(len(listed))]
    table = count_host.CountTable(as_pattern("cl100k"))

    def count() -> DistinctWords:
        table._add({bytes(bytearray(word)): 1000 + k for k, word in enumerate(words)})
        return table.words()

    peak, costs = peak_of(count), count_host.NUMPY_COSTS
    estimate = costs.of(*table.size)
    assert peak <= estimate <= 2.5 * peak
    assert table.nbytes <= peak


@pytest.mark.parametrize("spaces", [0.25, 0.4, 1.0])
def test_a_slice_is_within_its_estimate(spaces: float) -> None:
    """The most memory is for a text in which each byte is a word: digits between letters (1.0)."""
    size = count_host.SLICE_BYTES // 2
    letters = RNG.choice(np.frombuffer(LETTERS[:3], np.uint8), size + PADDING)
    buffer = np.where(RNG.random(len(letters)) < spaces, ord(" "), letters).astype(np.uint8)
    if spaces == 1.0:
        buffer = np.resize(np.frombuffer(b"a1", np.uint8), size + PADDING)
    none = np.empty(0, np.int64)
    piece = Slice(buffer[:size], none, closed=True, end=True, buffer=buffer, main_end=size)
    table = count_host.CountTable(as_pattern("cl100k"))
    peak = peak_of(lambda: table.add(piece))
    words, nbytes = table.size
    of_words = count_host.NUMPY_COSTS.of(words, nbytes) - count_host.NUMPY_COSTS.fixed
    assert peak <= of_words + count_host.NUMPY_THREAD_BYTES // 2 <= 3 * peak


def test_what_is_known_is_told_and_becomes_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = partial(count_host.count_words, slice_bytes=1 << 12)
    monkeypatch.setattr(train, "count_words", counting)
    text = b" ".join(b"%x" % number for number in RNG.integers(0, 1 << 40, 20_000))
    told: list[Memory] = []
    training = Training(OPTIONS, NUMPY, on_memory=told.append)
    counts = training.count(corpus_from_bytes(text), merges=False)
    words, nbytes = len(counts.words), len(counts.words.data)
    assert len(told) > 10 and told[-1] == TRAINING.words_memory(words, nbytes, merges=False)
    told.clear()
    Training(OPTIONS, NUMPY, on_memory=told.append).run(corpus_from_bytes(text))
    assert told[-1] == TRAINING.words_memory(words, nbytes)
    # All words of the text are new, so what is told early is near what it comes to.
    parts = [round(each.host / told[-1].host, 3) for each in told]
    assert 0.9 <= min(parts) <= max(parts) <= 1.5
    told.clear()
    Training(OPTIONS, NUMPY, on_memory=told.append).run(counts)
    assert told == [TRAINING.words_memory(words, nbytes)]


def test_memory_for_words_is_spilled_before_its_share_is_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train, "default_memory_bytes", lambda: 1 << 30)
    none, many = (TRAINING.words_memory(count, 9 * count, merges=False) for count in (0, 1 << 40))
    assert many.host == none.host + (1 << 30)


def test_how_much_text_is_left() -> None:
    corpus = corpus_from_bytes(b"a" * 1000)
    assert corpus.left is None
    corpus.read_into(np.empty(50, np.uint8))
    assert corpus.left is None
    corpus.read_into(np.empty(200, np.uint8))
    assert corpus.left == 4
    limited = Corpus([__file__], CorpusOptions(limit=1000))
    limited.read_into(np.empty(500, np.uint8))
    assert limited.left == 2
    limited.close()


def test_a_software_device_takes_the_host_s_memory(device: Device) -> None:
    backend = Backend(device, "the adapter")
    needed = Training(TrainingOptions(300), backend).words_memory(10**6, 10**7)
    assert needed.device > 10**7
    assert (needed.host > needed.device) == backend.is_software
    for tokens, each in ((300, 6.5), (32_768, 6.5), (32_769, 10.5)):
        recount = Training(TrainingOptions(tokens, engine="recount"), backend)
        needed = recount.recount_memory(10**8)
        assert each * 10**8 < needed.device < (each + 1) * 10**8 and needed.host > 10**8
