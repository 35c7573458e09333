"""The batched trainer on an adapter against the sequential oracle and the NumPy trainer."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.training import batched_gpu, batched_numpy
from llmgpu.bpe.training.batched_gpu import Capacities
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges, MergeTask, SymbolWords, byte_symbols, translate
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.errors import DeviceError
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import struct_dtype
from tests.bpe.word_lists import byte_ids
from tests.harness.devices import workgroups_of
from tests.reference import bpe as reference

REPEATED = TrainingOptions(256)  # merge pairs that occur twice or more
ALL_PAIRS = TrainingOptions(256, min_frequency=1)

TINY = Capacities(4, 8, 2, 1)  # everything has to grow
# Counts full of ties; words that are runs, single letters, or hold byte 0.
WORD = st.one_of(
    st.lists(st.sampled_from(b"ab"), min_size=1, max_size=12).map(bytes),
    st.lists(st.sampled_from(b"abcdef\x00"), min_size=1, max_size=6).map(bytes),
    st.integers(1, 30).map(lambda n: b"a" * n),
)
WORDS = st.dictionaries(WORD, st.sampled_from([1, 1, 2, 3, 100]), max_size=30)


def distinct(words: dict[bytes, int]) -> DistinctWords:
    offsets = np.cumsum([0, *map(len, words)]).astype(np.int64)
    data = np.frombuffer(b"".join(words), np.uint8)
    return DistinctWords(data, offsets, np.array(list(words.values()), np.int64))


def documents_of(words: dict[bytes, int]) -> list[bytes]:
    return [word for word, count in words.items() for _ in range(count)]


def id_pairs(merges: Merges, tie: str) -> list[tuple[int, int]]:
    results = np.arange(256, 256 + len(merges.pairs), dtype=np.uint32)
    ids = translate(merges.pairs, results, byte_ids(byte_ranks(tie)))
    return [(left, right) for left, right, _ in ids.tolist()]


def assert_same(trained: Merges, expected: Merges) -> None:
    np.testing.assert_array_equal(trained.pairs, expected.pairs)
    np.testing.assert_array_equal(trained.counts, expected.counts)
    assert trained.symbols == expected.symbols
    assert trained.pairs.dtype == np.uint32
    assert trained.counts.dtype == np.int64


@pytest.mark.slow
@given(
    words=WORDS,
    merges=st.sampled_from([0, 1, 7, 60]),
    tie=st.sampled_from(["hf", "bytes"]),
    min_frequency=st.sampled_from([0, 1, 2, 5]),
    max_token_length=st.sampled_from([None, 1, 2, 5]),
    sizes=st.sampled_from([None, TINY]),
    workgroup_size=st.sampled_from([64, 256]),
)
def test_merges_are_those_of_the_sequential_algorithm(
    any_device: Device,
    words: dict[bytes, int],
    merges: int,
    tie: str,
    min_frequency: int,
    max_token_length: int | None,
    sizes: Capacities | None,
    workgroup_size: int,
) -> None:
    symbols = byte_symbols(distinct(words), byte_ranks(tie))
    options = TrainingOptions(256, min_frequency=min_frequency, max_token_length=max_token_length)
    with workgroups_of(any_device, workgroup_size):
        trained = batched_gpu.train(
            any_device, symbols, options, MergeTask(merges=merges), first_capacities=sizes
        )
    assert id_pairs(trained, tie) == reference.train(
        documents_of(words), merges, "none", tie, min_frequency, max_token_length
    )
    assert_same(trained, batched_numpy.train(symbols, options, MergeTask(merges=merges)))


def random_words(seed: int, count: int, letters: bytes) -> SymbolWords:
    rng = random.Random(seed)
    words: dict[bytes, int] = {}
    for _ in range(count):
        word = bytes(rng.choices(letters, k=rng.randrange(1, 12)))
        words[word] = words.get(word, 0) + rng.choice([1, 1, 1, 2, 40])
    return byte_symbols(distinct(words), byte_ranks("hf"))


@pytest.mark.slow
@pytest.mark.parametrize("letters", [b"ab", bytes(range(97, 123)), bytes(range(256))])
def test_thousands_of_equal_counts_are_told_apart(device: Device, letters: bytes) -> None:
    words = random_words(1, 20_000, letters)
    trained = batched_gpu.train(device, words, ALL_PAIRS, MergeTask(merges=3000))
    assert_same(trained, batched_numpy.train(words, ALL_PAIRS, MergeTask(merges=3000)))


def listed_pairs(device: Device, counts: NDArray[np.uint32], pairs: NDArray[np.uint32]) -> Any:
    """Refill a hot list on a device; return the slots listed, uint32 (n,).

    counts: uint32 (n,); pairs: left and right symbol, uint32 (n, 2). Pair k is in slot k + 1.
    """
    kernels, size = batched_gpu.compile_kernels(device), 1 + len(counts)
    table = np.zeros(size, struct_dtype("batched/state.wgsl", "Pair"))
    table["left"][1:], table["right"][1:] = pairs.T
    state = np.zeros(1, batched_gpu.STATE)
    state["status"], state["digit_width"] = batched_gpu.REFILL, batched_gpu.NONE
    state["min_frequency"], state["last_count"] = 2, counts.max()
    state["pair_count"] = size
    buffers = {
        "pairs": device.upload("pairs", table),
        "pair_counts": device.upload("pair counts", np.append(np.uint32(0), counts)),
        "state": device.upload("state", state),
        "bins": device.create_buffer("bins", 4 * batched_gpu.BINS),
        "hot_list": device.create_buffer("hot list", batched_gpu.HOT_BYTES * size),
    }
    names = ["lower_threshold", *["count_ranks", "lower_threshold"] * batched_gpu.MAX_DIGITS]
    commands = device.record()
    for name in (*names, "refill_hot_list"):
        commands.dispatch(kernels[name].bind_from(buffers), 1 if name == "lower_threshold" else 8)
    commands.submit()
    listed = device.read(buffers["state"], batched_gpu.STATE.itemsize // 4, np.uint32)
    count = int(listed.view(batched_gpu.STATE)["hot_count"][0])
    return device.read(buffers["hot_list"], 4 * count, np.uint32).reshape(count, 4)[:, 0]


@pytest.mark.parametrize(
    ("least", "most"),
    [(7, 7), (1, 4), (1, 1 << 10), (1200, 1201), (1024, 2048), (1, (1 << 32) - 1)],
)
@pytest.mark.parametrize("size", [1500, 20_000])
def test_the_pairs_of_highest_rank_are_listed(
    device: Device, least: int, most: int, size: int
) -> None:
    """All of few pairs, 512 to 2048 of many, whose ranks differ in counts or in symbols alone."""
    rng = np.random.default_rng(5)
    counts = rng.integers(least, most, size, np.uint32, endpoint=True)
    counts[:300] = most
    keys = rng.choice(1 << 22, size, replace=False)
    pairs = np.column_stack([keys >> 11, keys & 2047]).astype(np.uint32)
    ranking = np.lexsort((pairs[:, 1], pairs[:, 0], -counts.astype(np.int64)))
    ranking = ranking[counts[ranking] >= 2]
    slots = listed_pairs(device, counts, pairs)
    assert len(slots) == len(ranking) if len(ranking) <= 2048 else 512 <= len(slots) <= 2048
    assert sorted(slots.tolist()) == sorted((1 + ranking[: len(slots)]).tolist())


def test_pairs_that_share_no_symbol_are_one_batch(device: Device) -> None:
    words = {bytes([2 * k, 2 * k + 1]): 300 - k for k in range(100)}
    symbols = byte_symbols(distinct(words), byte_ranks("hf"))
    trained = batched_gpu.train(device, symbols, REPEATED, MergeTask(merges=100))
    assert_same(trained, batched_numpy.train(symbols, REPEATED, MergeTask(merges=100)))
    assert trained.batches == 1


def test_hundreds_of_pairs_that_occur_once_are_ranked(device: Device) -> None:
    draw = random.Random(6)
    spelled = [draw.randbytes(6) for _ in range(150)]
    words = byte_symbols(distinct(dict.fromkeys(spelled, 1)), byte_ranks("hf"))
    trained = batched_gpu.train(device, words, ALL_PAIRS, MergeTask(merges=500))
    assert trained.counts[-300] == 1
    assert_same(trained, batched_numpy.train(words, ALL_PAIRS, MergeTask(merges=500)))


def test_new_pairs_whose_places_in_a_table_are_taken(device: Device) -> None:
    """200 new pairs in a table of 1024."""
    words = {bytes([k, 250, 251, 100 + k]): 300 - k for k in range(100)}
    symbols = byte_symbols(distinct(words), byte_ranks("hf"))
    trained = batched_gpu.train(
        device, symbols, REPEATED, MergeTask(merges=150), first_capacities=TINY
    )
    assert_same(trained, batched_numpy.train(symbols, REPEATED, MergeTask(merges=150)))


def test_symbols_beyond_bytes_go_on_from_there(any_device: Device) -> None:
    words = random_words(2, 2000, b"abcd")
    first = batched_numpy.train(words, REPEATED, MergeTask(merges=50))
    results = np.arange(256, 306, dtype=np.uint32)
    halfway = batched_numpy.apply_merges(words, np.column_stack([first.pairs, results]))
    trained = batched_gpu.train(any_device, halfway, REPEATED, MergeTask(merges=40))
    whole = batched_numpy.train(words, REPEATED, MergeTask(merges=90))
    np.testing.assert_array_equal(trained.pairs, whole.pairs[50:])
    assert trained.symbols == whole.symbols


def run_words(lengths: list[int]) -> SymbolWords:
    return byte_symbols(distinct({b"a" * n: 1 for n in lengths}), byte_ranks("hf"))


@pytest.mark.parametrize("length", [2 * 16384 - 1, 2 * 16384, 2 * 16384 + 1, 100_001])
def test_a_run_longer_than_one_walk(device: Device, length: int) -> None:
    words = run_words([length, 7])
    assert_same(
        batched_gpu.train(device, words, ALL_PAIRS, MergeTask(merges=30)),
        batched_numpy.train(words, ALL_PAIRS, MergeTask(merges=30)),
    )


def test_finished_merges_are_handed_over_in_order(device: Device) -> None:
    words = random_words(3, 3000, b"abcdefgh")
    pieces: list[tuple[NDArray[np.uint32], NDArray[np.int64]]] = []
    trained = batched_gpu.train(
        device,
        words,
        REPEATED,
        MergeTask(merges=500, on_merges=lambda pairs, counts: pieces.append((pairs, counts))),
    )
    np.testing.assert_array_equal(np.concatenate([pairs for pairs, _ in pieces]), trained.pairs)
    np.testing.assert_array_equal(np.concatenate([counts for _, counts in pieces]), trained.counts)


@pytest.mark.slow
def test_compaction_keeps_the_list_short(device: Device) -> None:
    """What is listed again and again takes more room than what is there at a time."""
    words = random_words(4, 2000, b"abcdef")

    def room() -> int:
        sizes = Capacities(list_capacity=len(words.symbols) + 10)
        loop = batched_gpu._BatchedLoop(device, words, MergeTask(merges=150), sizes)
        loop.load(ALL_PAIRS)
        assert len(loop.run().pairs) == 150
        return loop._buffers["position_list"].nbytes

    def keep_all(loop: object, state: NDArray[Any]) -> int:
        return int(state["list_length"][0])

    compacted = room()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched_gpu._BatchedLoop, "_compact_list", keep_all)
        assert compacted < room()


@pytest.mark.slow
def test_a_list_that_can_not_grow_is_compacted(device: Device) -> None:
    """Room for hardly more positions than the words have: merged pairs have to give theirs up."""
    words = random_words(4, 2000, b"abcdef")
    sizes = Capacities(list_capacity=len(words.symbols) + 10)
    assert_same(
        batched_gpu.train(device, words, ALL_PAIRS, MergeTask(merges=1000), first_capacities=sizes),
        batched_numpy.train(words, ALL_PAIRS, MergeTask(merges=1000)),
    )


def test_pairs_of_the_least_count_survive_compaction(device: Device) -> None:
    """Merged until no pair is left, in a list that has to be compacted on the way."""
    words = random_words(4, 600, b"abcdef")
    sizes = Capacities(list_capacity=len(words.symbols) + 10)
    expected = batched_numpy.train(words, REPEATED, MergeTask(merges=1 << 14))
    assert expected.counts[-1] == 2
    found = batched_gpu.train(
        device, words, REPEATED, MergeTask(merges=1 << 14), first_capacities=sizes
    )
    assert_same(found, expected)


def test_counts_of_32_bits_are_exact_up_to_the_last(device: Device) -> None:
    most = (1 << 32) - 1
    words = byte_symbols(distinct({b"ab": most - 5, b"xab": 5, b"cd": most}), byte_ranks("hf"))
    trained = batched_gpu.train(device, words, REPEATED, MergeTask(merges=3))
    assert trained.counts.tolist() == [most, most, 5]


def test_what_does_not_fit_is_refused(portable_device: Device) -> None:
    words = byte_symbols(distinct({b"ab": 1 << 32}), byte_ranks("hf"))
    with pytest.raises(DeviceError, match=r"more than 4294967295 times, the limit of .*"):
        batched_gpu.train(portable_device, words, REPEATED, MergeTask(merges=1))
    with pytest.raises(DeviceError, match="1048577 tokens asked for"):
        batched_gpu.train(
            portable_device, run_words([3]), REPEATED, MergeTask(merges=(1 << 20) - 255)
        )


@pytest.mark.slow
def test_trainings_on_one_device_do_not_disturb_one_another(
    any_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched_gpu, "SUBMIT_SECONDS", 1e-6)  # several, on fast hardware, too
    words, merges = 1500, 400
    first, second = random_words(5, 300, b"abcd"), random_words(6, words, b"abcdefgh")
    alone = [
        batched_gpu.train(any_device, first, REPEATED, MergeTask(merges=20)),
        batched_gpu.train(any_device, second, REPEATED, MergeTask(merges=merges)),
    ]
    nested: list[Merges] = []

    def train_the_other(pairs: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
        # Not each time: what takes long between submissions makes them smaller, and more of them.
        if len(nested) < 3:
            nested.append(
                batched_gpu.train(
                    any_device, first, REPEATED, MergeTask(merges=20), first_capacities=TINY
                )
            )

    together = batched_gpu.train(
        any_device,
        second,
        REPEATED,
        MergeTask(merges=merges, on_merges=train_the_other),
        first_capacities=TINY,
    )
    assert len(nested) >= 2  # so some ran between submissions of the other
    assert_same(together, alone[1])
    for trained in nested:
        assert_same(trained, alone[0])


def test_memory_is_freed_when_training_ends(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles: list[weakref.ref[object]] = []
    create = device.create_handle

    def remember(*arguments: Any) -> object:
        handle = create(*arguments)
        handles.append(weakref.ref(handle))
        return handle

    monkeypatch.setattr(device, "create_handle", remember)
    gc.disable()
    try:
        device._idle_downloads.clear()
        batched_gpu.train(
            device,
            random_words(7, 500, b"abcd"),
            REPEATED,
            MergeTask(merges=20),
            first_capacities=TINY,
        )
        device._idle_downloads.clear()
    finally:
        gc.enable()
    assert len(handles) > 20
    assert [handle() for handle in handles if handle() is not None] == []
