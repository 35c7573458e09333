"""Counting words on an adapter against the NumPy counter, which has an oracle of its own."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.pretokens import slices
from llmgpu.bpe.words import count_gpu
from llmgpu.bpe.words.count_gpu import COUNT_LIMIT, MAX_WORD, GpuWordCounter
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.bpe.words.spilling import WordAccumulator
from llmgpu.errors import InputError
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes
from tests.reference import bpe as reference

PARTS = [
    *[b"a", b"b", b" the", b"  ", b"\n", b"!", b"\x00", b"\xff", b"'s", b"9"],
    *[b"abababababab", b"abababababac"],  # of more bytes than a key holds
    "\u6f22".encode(),
    *[b"word" * 5, b"word" * 255 + b"xyz", b"word" * 256, b"word" * 256 + b"x", b"word" * 900],
]
DOCUMENT = st.lists(st.sampled_from(PARTS), max_size=60).map(b"".join)


def as_counter(words: DistinctWords) -> Counter[bytes]:
    data, offsets = words.data.tobytes(), words.offsets.tolist()
    spelled = [data[a:b] for a, b in pairwise(offsets)]
    assert len(set(spelled)) == len(spelled)
    return Counter(dict(zip(spelled, words.counts.tolist(), strict=True)))


def expected(documents: list[bytes], pattern: str) -> Counter[bytes]:
    return Counter(word for text in documents for word in reference.pre_tokens(text, pattern))


@given(
    documents=st.lists(DOCUMENT, max_size=4),
    pattern=st.sampled_from(["class", "gpt2", "none"]),
    slice_bytes=st.sampled_from([1100, 1500, 4096, 1 << 16]),
    first_words=st.sampled_from([64, 4096]),
    table_bytes=st.sampled_from([1 << 14, 1 << 30]),
)
def test_counts_are_those_of_the_expression(
    any_device: Device,
    documents: list[bytes],
    pattern: str,
    slice_bytes: int,
    first_words: int,
    table_bytes: int,
) -> None:
    counter = GpuWordCounter(
        any_device,
        pattern,
        WordAccumulator(1 << 26),
        slice_bytes=slice_bytes,
        first_words=first_words,
        table_bytes=table_bytes,
    )
    words = counter.count(corpus_from_bytes(documents))
    assert as_counter(words) == expected(documents, pattern)


def test_words_that_differ_in_one_byte(any_device: Device) -> None:
    words = [b"a" * length for length in range(1, 18)]
    words += [word[:k] + b"b" + word[k + 1 :] for word in words for k in range(len(word))]
    counter = GpuWordCounter(any_device, "class", WordAccumulator(1 << 26))
    found = counter.count(corpus_from_bytes([word for word in words for _ in range(2)]))
    assert as_counter(found) == dict.fromkeys(words, 2)


def test_many_words_make_the_table_grow_and_spill(device: Device) -> None:
    rng = np.random.default_rng(11)
    numbers = rng.zipf(1.3, 60_000) % 40_000
    text = " ".join(f"w{number:x}" * (1 + number % 4) for number in numbers).encode()
    for table_bytes in (1 << 30, 1 << 20):
        counter = GpuWordCounter(
            device,
            "gpt2",
            WordAccumulator(1 << 26),
            slice_bytes=1 << 15,
            first_words=256,
            table_bytes=table_bytes,
        )
        assert as_counter(counter.count(corpus_from_bytes(text))) == expected([text], "gpt2")


def test_a_word_of_many_slices(device: Device) -> None:
    long = b"x" * 300_001
    documents = [b"a " + long + b" b", long, long[: MAX_WORD + 1], b"a"]
    counter = GpuWordCounter(device, "class", WordAccumulator(1 << 26), slice_bytes=1 << 14)
    words = as_counter(counter.count(corpus_from_bytes(documents)))
    assert words == expected(documents, "class")
    assert words[b" " + long] == 1


@pytest.mark.parametrize("pattern", ["cl100k", "o200k"])
def test_words_of_runs_that_the_host_cuts_are_counted_once(device: Device, pattern: str) -> None:
    """A run of digits is longer than a kernel walks back to a certain start of a pre-token."""
    documents = [b"It's 12 words. " + b"1" * 20_000 + b" x", b"a 1"]
    counter = GpuWordCounter(device, pattern, WordAccumulator(1 << 26))
    words = counter.count(corpus_from_bytes(documents))
    assert as_counter(words) == expected(documents, pattern)


def test_counts_move_to_the_host_before_they_overflow(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 4000 bytes instead of 2^32, counts are carried many times."""
    monkeypatch.setattr(count_gpu, "COUNT_LIMIT", 4000)
    text = b"a b a c " * 4000
    counter = GpuWordCounter(device, "class", WordAccumulator(1 << 26), slice_bytes=2000)
    assert as_counter(counter.count(corpus_from_bytes(text))) == expected([text], "class")


def test_counts_near_the_last_of_32_bits_are_carried(device: Device) -> None:
    """As after 2^32 - 5000 bytes of text in which each of the words came as often."""
    counted = COUNT_LIMIT - 5000
    counter = GpuWordCounter(device, "class", WordAccumulator(1 << 26), slice_bytes=2000)
    counts = counter.table.buffers["counts"]
    device.write(counts, np.full(counts.nbytes // 4, counted, np.uint32))
    counter.expect(counted)
    text = b"a b a c " * 4000 + b"a"
    words = as_counter(counter.count(corpus_from_bytes(text)))
    assert words == {word: counted + n for word, n in expected([text], "class").items()}
    assert max(words.values()) > COUNT_LIMIT


def test_a_word_too_long_to_hold_is_an_error(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MAX_WORD_BYTES", 50_000)
    counter = GpuWordCounter(device, "none", WordAccumulator(1 << 26), slice_bytes=1 << 14)
    with pytest.raises(InputError, match="pre-token"):
        counter.count(corpus_from_bytes(b"x" * 100_000))
