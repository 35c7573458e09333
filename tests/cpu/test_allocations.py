"""The CPU engine's allocations: any may fail, nothing is kept, and estimates are bounds."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from ctypes import c_int64
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from llmgpu.bpe.encoding.encoder_c import CpuEncoder, CSliceEncoder
from llmgpu.bpe.pretokens import blocks, custom_regex
from llmgpu.bpe.training import batched_numpy, merge_host
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import MergeTask, byte_symbols
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.bpe.words import count_host
from llmgpu.bpe.words.count_host import count_words
from llmgpu.cpu import build, library
from llmgpu.errors import InputError
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.host_encoders import find_cuts
from tests.bpe.training.test_memory import of_lengths
from tests.bpe.word_lists import listed
from tests.cpu.fuzz import random_vocabulary

HAS_COMPILER = shutil.which(os.environ.get("CC", "cc").split()[0]) is not None
pytestmark = pytest.mark.skipif(
    not HAS_COMPILER or not sys.platform.startswith("linux"), reason="no C compiler, or no Linux"
)
REPLACED = ("malloc", "calloc", "realloc", "free", "mmap", "munmap")
WORDS = [b"%d" % (k * k) for k in range(2500)] + [b"longer than fifteen %d" % k for k in range(300)]
TEXT = b" ".join(WORDS) + b" " + "aé€x".encode() * 60
SMALL = b" ".join([*WORDS[:40], *WORDS[-10:]])
FIRST, STRIDE = 120, 13  # every call of the first ones is tried, then one in some


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    """The engine with allocations that are counted and fail, and with small windows."""
    path: Path = tmp_path_factory.mktemp("engine") / "engine.so"
    flags = [f"-D{name}=counted_{name}" for name in REPLACED]
    source = str(Path(__file__).with_name("allocations.c"))
    build.build(
        path,
        [
            "-O1",
            "-fvisibility=default",
            "-DMOST_AT_ONCE=48",
            "-DWINDOW=16",
            "-DPOOL_SPARE=64",
            *flags,
            source,
        ],
    )
    loaded, reason = library.load(path)
    assert loaded is not None, reason
    loaded.fail_at.argtypes = (c_int64,)
    loaded.fail_at.restype = None
    loaded.calls_left.restype = loaded.not_given_back.restype = c_int64
    loaded.peak_bytes.restype = c_int64
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "load", lambda path: (loaded, ""))
        patch.setenv(library.VARIABLE, "c")
        uncached = blocks.make_rule.__wrapped__
        for module in (blocks, custom_regex):
            patch.setattr(module, "make_rule", uncached)
        yield loaded


def encode(kind: int) -> list[list[int]]:
    """Encode documents with a random vocabulary."""
    rng = random.Random(kind)
    vocabulary = random_vocabulary(rng, "gpt2")
    slices = CSliceEncoder(vocabulary)
    find_cuts(vocabulary)
    slices._is_complete = True
    found = [slices.encode_document(text) for text in (TEXT, b"x" * 500 + TEXT)]
    slices._matching.pairs()
    return [[] if ids is None else ids.tolist() for ids in found]


def encode_parts() -> list[list[int]]:
    """Encode a text with several threads."""
    vocabulary = random_vocabulary(random.Random(3), "gpt2")
    encoder = CpuEncoder(vocabulary, 4000, threads=4)
    return [piece.ids.tolist() for piece in encoder.encode(corpus_from_bytes([TEXT, SMALL]))]


def count() -> list[tuple[bytes, int]]:
    return sorted(listed(count_words(corpus_from_bytes([TEXT, TEXT]), "gpt2", threads=2)))


def merge() -> list[list[int]]:
    words = byte_symbols(count_words(corpus_from_bytes(SMALL), "gpt2"), byte_ranks("hf"))
    trained = merge_host.train(words, TrainingOptions(256), MergeTask(merges=30))
    assert (
        trained.pairs.tolist()
        == batched_numpy.train(words, TrainingOptions(256), MergeTask(merges=30)).pairs.tolist()
    )
    results = np.arange(256, 256 + len(trained.pairs), dtype=np.uint32)
    replayed = merge_host.apply_merges(words, np.column_stack([trained.pairs, results]))
    return [trained.pairs.ravel().tolist(), trained.counts.tolist(), replayed.symbols.tolist()]


# The numbers of random vocabularies: by the longest token, by ranks, by merges, by merges and whole
# tokens, with an unknown token.
JOBS: dict[str, Callable[[], object]] = {
    **{f"encode {kind}": partial(encode, kind) for kind in (0, 4, 3, 6, 9)},
    "encode parts": encode_parts,
    "count": count,
    "merge": merge,
}


@pytest.mark.parametrize("name", JOBS)
def test_any_allocation_fails(engine: ctypes.CDLL, name: str) -> None:
    gc.collect()
    gc.freeze()  # the collections below look at what this test makes alone
    before = engine.not_given_back()
    expected = JOBS[name]()
    nth, errors = 1, 0
    while True:
        engine.fail_at(nth)
        try:
            found = JOBS[name]()
        except InputError as error:
            assert "memory" in str(error)
            errors += 1
        else:
            assert found == expected
        if engine.not_given_back() != before:
            gc.collect()  # what failed in a thread refers to itself
        assert engine.not_given_back() == before, nth
        if engine.calls_left() > 0:  # none failed
            break
        nth += 1 if nth < FIRST else STRIDE
    engine.fail_at(0)
    assert errors > 3


LENGTHS = {"short": [3, 12], "of bytes": [1, 8], "long": [500, 5000], "one": [10**6, 10**6 + 1]}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("letters", [b"a", bytes(range(256))])
def test_merging_grows_within_its_estimate(engine: ctypes.CDLL, name: str, letters: bytes) -> None:
    """The merging of twice as many words takes that much more."""
    peaks, estimates = [], []
    for nbytes in (1_000_000, 2_000_000):
        low, high = LENGTHS[name]
        lengths = np.random.default_rng(1).integers(low, high, nbytes)
        lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), nbytes)) + 1]
        words = of_lengths(letters, lengths.tolist())
        symbols = byte_symbols(words, byte_ranks("hf"))
        engine.peak_bytes()
        merge_host.train(symbols, TrainingOptions(256), MergeTask(merges=40))
        peaks.append(words.nbytes + symbols.symbols.nbytes + engine.peak_bytes())
        estimates.append(merge_host.ENGINE_COSTS.of(len(words), len(words.data)))
    (few, many), (at_least, estimate) = peaks, estimates
    assert many - few <= estimate - at_least <= 4 * (many - few)


@pytest.mark.parametrize("longest", [5, 30])
def test_counting_is_within_its_estimate(engine: ctypes.CDLL, longest: int) -> None:
    rng = np.random.default_rng(longest)
    ends = np.cumsum(rng.integers(3, longest + 1, 100_000))
    letters = rng.integers(ord("a"), ord("k"), ends[-1], np.uint8)
    text = np.insert(letters, ends[:-1], ord(" ")).tobytes()
    engine.peak_bytes()
    words = count_words(corpus_from_bytes(text), "gpt2", threads=1)
    peak, costs = engine.peak_bytes() + words.nbytes, count_host.ENGINE_COSTS
    estimate = costs.of(len(words), len(words.data)) - costs.fixed
    assert peak <= estimate <= 2.5 * peak
