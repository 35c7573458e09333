"""A device that ``auto`` chose: where it fails, the CPU goes on, and the ids are the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, CollectedIds, EncodedSlice, Encoder, new_ids
from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder
from llmgpu.bpe.encoding.encoder_host import HostEncoder
from llmgpu.bpe.encoding.open import (
    DeviceEncoder,
    OptionalDeviceEncoder,
    _InFlight,
    open_host_encoder,
)
from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, SliceSource
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import DeviceError, InputError
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import Corpus, TextSource, corpus_from_bytes
from tests.bpe.encoding.test_encoder_gpu import (
    encode,
    hostile_text,
    long_runs,
    train,
    with_pattern,
)

GONE = "the device was unplugged; the CPU does the rest"


class FailingDevice:
    """A device's encoder that fails for good after some slices, None: never."""

    def __init__(self, encoder: DeviceEncoder, slices: int | None) -> None:
        self._encoder, self._left = encoder, slices

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Generator[EncodedSlice]:
        raise AssertionError("slices are kept until they are encoded")

    def encode_slices(
        self, reader: SliceSource, allocate: Allocate = new_ids
    ) -> Generator[EncodedSlice, None, None]:
        for encoded in self._encoder.encode_slices(reader, allocate):
            if self._left == 0:
                raise DeviceError("the device was unplugged")
            yield encoded
            self._left = self._left and self._left - 1


def optional(
    device: Device, vocabulary: Vocabulary, fail_after: int | None, threads: int = 2
) -> OptionalDeviceEncoder:
    encoders = {"bpe": GpuEncoder, "greedy": GpuGreedyEncoder}
    encoder = encoders[vocabulary.match](device, vocabulary, 4096)
    return OptionalDeviceEncoder(
        FailingDevice(encoder, fail_after),
        vocabulary,
        lambda: open_host_encoder(vocabulary, 2048, threads),
    )


def host_of(encoder: OptionalDeviceEncoder) -> HostEncoder | None:
    """Return the encoder on the CPU, None where the device has not failed."""
    return encoder._host


def documents(seed: int) -> list[bytes]:
    """Return documents of all lengths, and one word that no slice holds."""
    text = hostile_text(seed, 60_000) + b"a" * 9_000 + hostile_text(seed + 1, 60_000)
    cuts = sorted(random.Random(seed).sample(range(len(text)), 40))
    return [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])] + [b"", b""]


@pytest.mark.parametrize("match", ["bpe", "greedy"])
@pytest.mark.parametrize("slices", [0, 1, 3, 20, None])
def test_the_cpu_takes_over_from_a_device_that_fails(
    device: Device, slices: int | None, match: str, logged: list[str]
) -> None:
    texts = documents(slices or 7)
    vocabulary = train(texts[0]).with_match(match)
    encoder = optional(device, vocabulary, slices, threads=1 + (slices or 0) % 3)
    expected = encode(open_host_encoder(vocabulary, threads=1), texts)
    assert encode(encoder, texts) == expected
    assert logged == ([] if slices is None else [GONE])
    assert encode(encoder, texts) == expected  # the next text
    assert (host_of(encoder) is None) == (slices is None)
    assert len(logged) == (slices is not None)


@pytest.mark.parametrize(
    "allocate", [lambda ids: ids, lambda ids: ids.__call__], ids=["in any order", "in order"]
)
@pytest.mark.parametrize("slices", [2, None])
def test_ids_are_put_where_the_caller_says(
    device: Device, slices: int | None, allocate: Callable[[CollectedIds], Allocate]
) -> None:
    text = b"".join(documents(7))
    vocabulary = train(text)
    collected = CollectedIds(len(text) + (1 << 22))
    encoder = optional(device, vocabulary, slices)
    for piece in encoder.encode(corpus_from_bytes([text]), allocate(collected)):
        collected.append(piece.ids)
    host = open_host_encoder(vocabulary, threads=1)
    expected = np.concatenate([piece.ids for piece in host.encode(corpus_from_bytes([text]))])
    np.testing.assert_array_equal(collected.take(), expected)


@pytest.mark.parametrize("slices", [2, 8, 15, None])
def test_a_device_may_fail_before_between_and_after_slices_that_it_is_bad_at(
    device: Device, slices: int | None
) -> None:
    good = hostile_text(3, 100_000)
    texts = [good, long_runs(200_000), good[:70_000], b"", long_runs(100_000) + good]
    vocabulary = train(good)
    encoder = OptionalDeviceEncoder(
        FailingDevice(GpuEncoder(device, vocabulary, 1 << 15, threads=8), slices),
        vocabulary,
        lambda: open_host_encoder(vocabulary, 2048, 2),
    )
    assert encode(encoder, texts) == encode(open_host_encoder(vocabulary, threads=1), texts)
    assert (host_of(encoder) is None) == (slices is None)


def ids_of_file(encoder: Encoder, path: Path) -> NDArray[np.uint32]:
    with Corpus([str(path)]) as corpus:
        return np.concatenate([piece.ids for piece in encoder.encode(corpus)])


@pytest.mark.parametrize("slices", [0, 3, None])
def test_what_a_failed_device_took_from_a_file_is_read_again(
    device: Device, tmp_path: Path, slices: int | None
) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"".join(documents(6)).replace(b"a" * 300, b" letters"))
    vocabulary = with_pattern(train(path.read_bytes()), "gpt2")
    expected = ids_of_file(open_host_encoder(vocabulary, threads=1), path)
    encoder = optional(device, vocabulary, slices)
    np.testing.assert_array_equal(ids_of_file(encoder, path), expected)


@pytest.mark.parametrize("slices", [0, 4, None])
def test_the_first_byte_without_a_token_is_named(device: Device, slices: int | None) -> None:
    text = hostile_text(1, 50_000).replace(b"\xfe", b"").replace(b"\xfd", b"")
    vocabulary = train(text)
    tokens = list(vocabulary.tokens)
    tokens[0xFE] = tokens[0xFD] = b""
    gap = Vocabulary(tokens, vocabulary.merges, vocabulary.pattern, vocabulary.expression)
    broken = text[:30_000] + b" \xfd " + text[30_000:40_000] + b" \xfe " + text[40_000:]
    with pytest.raises(InputError, match=r"byte 0xfd at offset 30,?001"):
        encode(optional(device, gap, slices), [broken])


@pytest.mark.parametrize("slices", [1, None])
def test_a_caller_that_stops_ends_all_threads(device: Device, slices: int | None) -> None:
    text = b"".join(documents(5))
    encoder = optional(device, train(text), slices)
    before = set(threading.enumerate())
    found = encoder.encode(corpus_from_bytes([text]))
    for _ in range(3):
        next(iter(found))
    assert isinstance(found, Generator)
    found.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


class SlowText:
    """A text whose second read waits."""

    def __init__(self, text: bytes) -> None:
        self._inner, self._reads = corpus_from_bytes([text]), 0
        self.waits, self.proceed = threading.Event(), threading.Event()

    def read_into(self, buffer: NDArray[np.uint8]) -> object:
        self._reads += 1
        if self._reads == 2:
            self.waits.set()
            assert self.proceed.wait(20)
        return self._inner.read_into(buffer)


def test_a_slice_that_is_being_read_when_the_device_fails_is_kept() -> None:
    source = SlowText(b"low lower " * 1000)
    reader = _InFlight(SliceReader(source, "gpt2"))  # type: ignore[arg-type]
    first = reader.read(np.empty(4096, np.uint8))
    assert first is not None
    taker = threading.Thread(target=reader.read, args=(np.empty(4096, np.uint8),))
    taker.start()
    assert source.waits.wait(20)
    threading.Timer(0.1, source.proceed.set).start()
    kept = reader.end()
    assert [taken.offset for taken in kept] == [0, first.main_end]
    assert reader.read(np.empty(4096, np.uint8)) is None
    for taken in kept:
        assert isinstance(taken, Slice)
    taker.join(20)
