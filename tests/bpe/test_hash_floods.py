"""Words and pairs that were chosen to collide do so under one key alone; no result has the key."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.bpe.encoding import encoder_gpu
from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder
from llmgpu.bpe.plain import recount_gpu
from llmgpu.bpe.training import batched_gpu
from llmgpu.bpe.training.batched_gpu import Capacities
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import MergeTask, SymbolWords
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.cpu.library import insert_pairs, library
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import constant
from tests.conftest import PYTHON_PATH
from tests.engines import DeviceEngine, NumpyEngine, count, encode, train
from tests.harness.hash_keys import KEYS, use_key
from tests.reference import hashes

KNOWN, OTHER = KEYS[:2]  # the attacker knows the first
FIRSTS = 256  # slots at which the search for all items of a flood begins, under the known key
MOST = 40  # slots in a row, taken by chance in a table an eighth full less than once in 1e9


def longest_run(taken: NDArray[np.bool_]) -> int:
    """Return how many slots in a row are taken: a search ends at the first free one."""
    return max((sum(1 for _ in run) for is_taken, run in itertools.groupby(taken) if is_taken))


def random_words(length: int) -> Iterator[bytes]:
    draw = random.Random(length)
    letters = b"abcdefghijklmnopqrstuvwxyz"
    while True:
        yield bytes(draw.choices(letters, k=length))


@pytest.mark.parametrize("length", [5, 8, 11, 12, 40])
def test_words_flood_a_table_under_the_known_key_alone(
    device: Device, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, words = 1 << 13, 1000
    chosen = hashes.flood(
        random_words(length), lambda word: hashes.hash_word(word, KNOWN), slots, FIRSTS, words
    )
    documents = sorted({*chosen})
    assert len(documents) > words - 10
    vocabulary, runs = byte_vocabulary("class", "hf"), []
    for key in (KNOWN, OTHER):
        use_key(monkeypatch, key)
        encoder = GpuEncoder(device, vocabulary, 1 << 16, first_words=slots // 2)
        assert encode(encoder, documents) == [list(word) for word in documents]
        table = encoder._table
        assert table.slot_capacity == slots
        taken = device.read(table.buffers["slots"], slots, np.uint32) != 0
        assert taken.sum() == len(documents)
        runs.append(longest_run(taken))
    assert runs[0] >= len(documents) and runs[1] <= MOST


@pytest.mark.parametrize("engine", ["numpy", "c"])
def test_pairs_flood_the_table_of_a_vocabulary_under_the_known_key_alone(engine: str) -> None:
    if engine == "c" and library() is None:
        pytest.skip("there is no CPU engine here")
    slots, pairs = 1 << 13, 1000
    ids = np.random.default_rng(3).integers(0, 50_000, (100_000, 2)).tolist()
    chosen = hashes.flood(ids, lambda pair: hashes.hash_numbers(pair, KNOWN), slots, FIRSTS, pairs)
    distinct = sorted({*map(tuple, chosen)})
    entries = np.array([(*pair, rank, 0) for rank, pair in enumerate(distinct)], np.uint32)
    runs = []
    for key in (KNOWN, OTHER):
        table = np.full((slots, 4), encoder_gpu.FREE, np.uint32)
        if engine == "c":
            insert_pairs(entries, table, encoder_gpu.FREE, np.array(key, np.uint32))
        else:
            encoder_gpu._insert_pairs(entries, table, np.array(key, np.uint32))
        taken = table[:, 2] != encoder_gpu.FREE
        assert taken.sum() == len(entries)
        runs.append(longest_run(taken))
    assert runs[0] >= len(entries) and runs[1] <= MOST


def test_new_pairs_flood_the_table_of_a_batch_under_the_known_key_alone(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The symbols before one pair that is merged: each makes a new pair."""
    slots, pairs = 1 << 13, 1000
    assert constant("batched/state.wgsl", "RIGHT_IS_NEW") == 1

    def hash_of(symbol: int) -> int:
        return hashes.hash_numbers([1 + (1 << 20) + symbol], KNOWN)  # see entry_key there

    chosen = list(hashes.flood(range(300, 1 << 20), hash_of, slots, FIRSTS, pairs))
    symbols = np.array([[symbol, 256, 257] for symbol in chosen], np.uint32).reshape(-1)
    lengths = np.ones(max(chosen) + 1, np.uint32)
    options = TrainingOptions(256, min_frequency=1)
    sizes = Capacities(1 << 16, 1 << 16, entry_capacity=slots, candidate_capacity=1 << 12)
    runs = []
    for key in (KNOWN, OTHER):
        use_key(monkeypatch, key)
        offsets = np.arange(0, len(symbols) + 1, 3)
        words = SymbolWords(symbols, offsets, np.ones(pairs, np.int64), lengths, len(symbols))
        loop = batched_gpu._BatchedLoop(device, words, MergeTask(merges=1), sizes)
        loop.load(options)
        assert loop.run().pairs.tolist() == [[256, 257]]
        entries = device.read(loop._buffers["entries"], 5 * slots, np.uint32).reshape(-1, 5)
        taken = entries[:, 0] != 0
        assert taken.sum() == pairs
        runs.append(longest_run(taken))
    assert runs[0] >= pairs and runs[1] <= MOST


def test_pairs_make_the_table_of_recounting_grow_under_the_known_key_alone(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search there ends after some slots, and the table grows if none of them is free."""
    slots, pairs = 256, 200
    every = range(1 << 16)

    def hash_of(pair: int) -> int:
        return hashes.hash_numbers([(pair >> 8) << 16 | pair & 255], KNOWN)

    chosen = list(hashes.flood(every, hash_of, slots, 1, pairs))
    assert len(chosen) == pairs
    text = np.array([[pair >> 8, pair & 255] for pair in chosen], np.uint8).reshape(-1)
    made: list[int] = []
    make = recount_gpu._RecountLoop._make_table

    def make_table(loop: recount_gpu._RecountLoop, size: int) -> None:
        made.append(size)
        make(loop, size)

    monkeypatch.setattr(recount_gpu._RecountLoop, "_make_table", make_table)
    starts = np.arange(0, len(text), 2)
    options = TrainingOptions(258, pattern="none", tie="bytes", min_frequency=1)
    grown, merges = [], []
    for key in (KNOWN, OTHER):
        use_key(monkeypatch, key)
        made.clear()
        trained = recount_gpu.train(device, text, starts, options, table_slots=slots)
        merges.append(trained.pairs.tolist())
        grown.append(len(made) - 1)
    assert grown[0] >= 1 and grown[1] == 0
    assert merges[0] == merges[1] == [[*divmod(pair, 256)] for pair in sorted(chosen)[:2]]


def make_documents(seed: int) -> list[bytes]:
    draw = random.Random(seed)
    syllables = ["ka", "lo", "mi", "é", "漢", "да", "x" * 13, "yz" * 40, "'s", " ", "1", "\n"]
    return ["".join(draw.choices(syllables, k=400)).encode() for _ in range(20)]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_no_result_depends_on_the_key(
    any_device: Device, key: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(monkeypatch, key)
    on_device, on_host = DeviceEngine(any_device), NumpyEngine()
    documents = make_documents(5)[:8]
    assert count(on_device, documents, "gpt2") == count(on_host, documents, "gpt2")
    options = TrainingOptions(320, "gpt2")
    expected = train(on_host, documents, options).vocabulary
    recounted = TrainingOptions(270, "gpt2", engine="recount")
    for found in (options, recounted):
        merges = train(on_device, documents, found).vocabulary.merges.tolist()
        assert merges == expected.merges[: found.vocab_size - 256].tolist()
    encoder = on_device.encoder(expected, 4096)
    assert encode(encoder, documents) == encode(on_host.encoder(expected), documents)


PROGRAM = """
from llmgpu.cli import cli
from llmgpu.gpu.device import hash_key
for command in ("bpe-train t.txt --vocab-size 600 -o v.bin --save-counts w.counts --force",
                "bpe-train t.txt --vocab-size 270 --engine recount -o r.bin --force",
                "tokenize t.txt --vocab v.bin -o t.ids --force", "count t.txt --vocab v.bin"):
    cli([*command.split(), "--quiet"], standalone_mode=False)
print(*hash_key())
"""


@pytest.mark.slow
def test_files_of_a_device_do_not_depend_on_the_keys(device: Device, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"".join(make_documents(7)))
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "LLMGPU_DEVICE": device.name}
    digests, keys = set(), set()
    for _ in range(20):
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        *counted, key = done.stdout.splitlines()
        keys.add(key)
        content = b"".join((tmp_path / name).read_bytes() for name in ("v.bin", "w.counts"))
        content += b"".join((tmp_path / name).read_bytes() for name in ("r.bin", "t.ids"))
        digests.add(hashlib.sha256(content + "".join(counted).encode()).hexdigest())
    assert len(keys) == 20 and len(digests) == 1
