"""The recount trainer against the sequential algorithm, and against the NumPy trainer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe import train_gpu, train_numpy
from llmgpu.bpe.corpus import corpus_from_bytes
from llmgpu.bpe.merges import TrainedMerges
from llmgpu.bpe.tie import byte_ranks
from llmgpu.bpe.words import count_words
from llmgpu.errors import DeviceError, LlmgpuError
from llmgpu.gpu import Device
from tests.reference import bpe as reference

# Runs, ties, byte 0, boundaries of all kinds.
TEXT = st.lists(st.sampled_from(b"aab \n0!\x00\xc3"), max_size=300).map(bytes)
DOCUMENTS = st.lists(TEXT, min_size=1, max_size=3).filter(any)


def train(
    device: Device, documents: list[bytes], *, merges: int, tie: str = "bytes", **options: object
) -> TrainedMerges:
    lengths = [len(document) for document in documents]
    starts = np.array([0, *itertools.accumulate(lengths)][:-1], np.int64)
    text = np.frombuffer(b"".join(documents), np.uint8)
    return train_gpu.train(
        device,
        text,
        starts,
        merges=merges,
        byte_ranks=byte_ranks(tie),
        **options,  # type: ignore[arg-type]
    )


def words(seed: int, count: int, distinct: int) -> bytes:
    """Text whose words are as unevenly frequent as those of a language."""
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgk", np.uint8)
    listed = [bytes(rng.choice(letters, rng.integers(1, 10))) for _ in range(distinct)]
    picks = np.minimum(rng.zipf(1.3, count) - 1, distinct - 1)
    return b" ".join(listed[pick] for pick in picks)


@given(
    documents=DOCUMENTS,
    pattern=st.sampled_from(["class", "none"]),
    tie=st.sampled_from(["bytes", "hf"]),
    min_frequency=st.sampled_from([0, 1, 2, 3]),
    workgroup_size=st.sampled_from([64, 256]),
    table_slots=st.sampled_from([16, 65_536]),
)
def test_merges_are_those_of_the_sequential_algorithm(
    any_device: Device,
    documents: list[bytes],
    pattern: str,
    tie: str,
    min_frequency: int,
    workgroup_size: int,
    table_slots: int,
) -> None:
    trained = train(
        any_device,
        documents,
        merges=20,
        tie=tie,
        pattern=pattern,
        min_frequency=min_frequency,
        workgroup_size=workgroup_size,
        table_slots=table_slots,
    )
    expected = reference.train(documents, 20, pattern, tie, min_frequency)
    assert [tuple(pair) for pair in trained.merges.tolist()] == expected


@pytest.mark.parametrize("length", [1, 2, 3, 255, 256, 257, 511, 513, 4097, 66_000])
def test_one_run_merges_left_to_right(any_device: Device, length: int) -> None:
    trained = train(any_device, [b"a" * length], merges=3, pattern="none", min_frequency=1)
    assert [tuple(pair) for pair in trained.merges.tolist()] == reference.train(
        [b"a" * length], 3, "none", "bytes", 1
    )


def test_workgroup_and_table_sizes_change_nothing(any_device: Device) -> None:
    documents = [words(1, 4_000, 700), words(2, 4_000, 700)]
    results = [
        train(
            any_device,
            documents,
            merges=150,
            pattern="class",
            workgroup_size=workgroup_size,
            table_slots=table_slots,
        )
        for workgroup_size, table_slots in [(64, 64), (256, 64), (256, 1 << 16), (128, 1 << 12)]
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].merges, other.merges)
        np.testing.assert_array_equal(results[0].counts, other.counts)
        assert results[0].symbols == other.symbols


@pytest.mark.parametrize("tie", ["hf", "bytes"])
def test_numpy_makes_the_same_merges(device: Device, tie: str) -> None:
    text = words(3, 12_000, 3_000)
    on_gpu = train(device, [text], merges=300, tie=tie, pattern="class")
    on_cpu = train_numpy.train(
        count_words(corpus_from_bytes(text), "class"),
        merges=300,
        tie_ranks=byte_ranks(tie),
        min_frequency=2,
    )
    np.testing.assert_array_equal(on_gpu.merges, on_cpu.merges)
    np.testing.assert_array_equal(on_gpu.counts, on_cpu.counts)
    assert on_gpu.symbols == on_cpu.symbols


def test_more_than_65535_blocks_and_2_to_the_24_symbols(device: Device) -> None:
    rng = np.random.default_rng(4)
    size = (1 << 24) + 300_001
    text = rng.choice(np.frombuffer(b"abcd", np.uint8), size, p=[0.4, 0.3, 0.2, 0.1])
    starts = np.zeros(1, np.int64)
    trained = train_gpu.train(
        device, text, starts, pattern="none", merges=2, byte_ranks=byte_ranks("bytes")
    )
    # (a, a) comes first: a run of n makes n // 2 tokens, then (b, a) or the like.
    assert trained.merges[0].tolist() == [97, 97]
    is_a = text == 97
    assert trained.counts[0] == np.count_nonzero(is_a[1:] & is_a[:-1])
    changes = np.flatnonzero(np.diff(np.concatenate([[False], is_a, [False]]).astype(np.int8)))
    runs = changes[1::2] - changes[::2]
    symbols = size - int(np.sum(runs // 2))
    left, right = trained.merges[1].tolist()
    assert trained.symbols < symbols and max(left, right) <= 256
    assert symbols - trained.symbols <= trained.counts[1]


def test_a_second_training_of_the_same_size_allocates_nothing(device: Device) -> None:
    text = words(5, 3_000, 500)
    first = train(device, [text], merges=10, pattern="class")
    allocations = device.pool.allocations
    again = train(device, [text], merges=10, pattern="class")
    assert device.pool.allocations == allocations
    np.testing.assert_array_equal(first.merges, again.merges)


def test_more_tokens_than_16_bits_number_are_refused(device: Device) -> None:
    with pytest.raises(LlmgpuError, match=r"65537 tokens asked for, 65536 at most"):
        train(device, [b"abc"], merges=65_537 - 256, pattern="class")


def test_a_text_larger_than_the_adapter_takes_is_refused() -> None:
    small = Device(limits={"max-storage-buffer-binding-size": 1 << 20})
    with pytest.raises(DeviceError, match=r"more than 262144 bytes.*--limit 262144"):
        train(small, [b"a" * 262_145], merges=1, pattern="none")


def test_progress_is_reported(device: Device) -> None:
    calls: list[tuple[str, int, int | None]] = []
    train(
        device,
        [words(6, 500, 100)],
        merges=12,
        pattern="class",
        progress=lambda *call: calls.append(call),
    )
    assert calls[-1] == ("merging", 12, 12)
