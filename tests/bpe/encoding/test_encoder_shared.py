"""Host and device together: the ids are those of the host alone, however the text is divided."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding import encoder_shared
from llmgpu.bpe.encoding.encoder import (
    Allocate,
    CollectedIds,
    EncodedSlice,
    Encoder,
    new_ids,
)
from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder
from llmgpu.bpe.encoding.encoder_host import HostEncoder, Task, Workers
from llmgpu.bpe.encoding.encoder_shared import DeviceSlices, SharedEncoder, _DeviceShare
from llmgpu.bpe.encoding.open import open_host_encoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, SliceSource, UnreadSlice
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import DeviceError, InputError
from llmgpu.gpu import Device
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from llmgpu.tokens import process_encoders
from tests.bpe.encoding.test_encoder_gpu import encode, hostile_text, train, with_pattern

HOST, DEVICE = False, True


@pytest.fixture(autouse=True)
def _both_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host rest for the first slice alone, so that both sides take slices at all times."""
    monkeypatch.setattr(encoder_shared, "MUCH_FASTER", np.inf)
    monkeypatch.setattr(encoder_shared, "RATED_SECONDS", 0)


class Delays:
    """Sleeps for random times, so that now one side is ahead, now the other."""

    def __init__(self, seed: int, longest: float) -> None:
        self._random, self._longest = random.Random(seed), longest

    def __call__(self) -> None:
        time.sleep(self._random.choice([0, 0, 0.2, 1]) * self._longest)


class DelayedHost:
    """Host slices that take random times, or as long as `delay` does."""

    def __init__(self, host: HostEncoder, delay: Callable[[], object]) -> None:
        self._slices, self._delay = host.slices, delay
        self.is_parallel = host.slices.is_parallel

    def encode(
        self, piece: Slice | UnreadSlice, entry: int, memory: NDArray[np.uint32] | None = None
    ) -> tuple[EncodedSlice, int]:
        self._delay()
        return self._slices.encode(piece, entry, memory)

    def match_words(self, words: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint32]]:
        return self._slices.match_words(words)


class DelayedDevice:
    """A device's encoder that takes random times, and fails after some slices if asked to."""

    def __init__(self, encoder: DeviceSlices, delay: Delays, slices: int | None = None) -> None:
        self._encoder, self._delay, self._left = encoder, delay, slices

    def encode_slices(
        self, reader: SliceSource, allocate: Allocate
    ) -> Generator[EncodedSlice, None, None]:
        for encoded in self._encoder.encode_slices(reader, allocate):
            if self._left == 0:
                raise DeviceError("the device was unplugged")
            self._delay()
            yield encoded
            self._left = self._left and self._left - 1


class Shares:
    """Adds up what each side encoded."""

    def __init__(self) -> None:
        self.text_bytes = {HOST: 0, DEVICE: 0}

    def __call__(self, text_bytes: int, on_device: bool) -> None:
        self.text_bytes[on_device] += text_bytes


def shared(
    device: Device, vocabulary: Vocabulary, seed: int, fail_after: int | None = None
) -> tuple[Encoder, Shares]:
    """Return an encoder whose sides take turns at random, and what counts their shares."""
    host = open_host_encoder(vocabulary, 2048, threads=1 + seed % 3)
    host.slices = DelayedHost(host, Delays(seed, 0.02))
    shares = Shares()

    def open_device() -> DeviceSlices:
        encoders = {"bpe": GpuEncoder, "greedy": GpuGreedyEncoder}
        encoder = encoders[vocabulary.match](device, vocabulary, 4096)
        return DelayedDevice(encoder, Delays(seed + 100, 0.01), fail_after)

    return SharedEncoder(host, [open_device], shares), shares


def documents(seed: int) -> list[bytes]:
    """Return documents of all lengths, and one word that no slice holds."""
    text = hostile_text(seed, 60_000) + b"a" * 9_000 + hostile_text(seed + 1, 60_000)
    cuts = sorted(random.Random(seed).sample(range(len(text)), 40))
    return [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])] + [b"", b""]


@pytest.mark.parametrize(("seed", "match"), [(0, "bpe"), (1, "bpe"), (2, "bpe"), (3, "greedy")])
def test_ids_do_not_depend_on_who_encodes_what(device: Device, seed: int, match: str) -> None:
    texts = documents(seed)
    vocabulary = train(texts[0]).with_match(match)
    encoder, shares = shared(device, vocabulary, seed)
    assert encode(encoder, texts) == encode(open_host_encoder(vocabulary, threads=1), texts)
    assert min(shares.text_bytes.values()) > 0
    assert sum(shares.text_bytes.values()) == sum(map(len, texts))


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_several_devices_take_slices_of_one_text(
    device: Device, portable_device: Device, seed: int
) -> None:
    """Each has a word table of its own; one of them fails in the middle."""
    texts = documents(seed)
    vocabulary = train(texts[0])
    host = open_host_encoder(vocabulary, 2048, threads=1)
    host.slices = DelayedHost(host, Delays(seed, 0.02))
    shares: Counter[int] = Counter()

    def open_device(number: int) -> DeviceSlices:
        encoder = GpuEncoder((device, portable_device)[number - 1], vocabulary, 2048)
        fails = 4 if seed == number == 2 else None
        return DelayedDevice(encoder, Delays(seed + number, 0.01), fails)

    def on_share(text_bytes: int, number: int) -> None:
        shares[number] += text_bytes

    opens = [partial(open_device, number) for number in (1, 2)]
    ids = encode(SharedEncoder(host, opens, on_share), texts)
    assert ids == encode(open_host_encoder(vocabulary, threads=1), texts)
    assert sorted(shares) == [0, 1, 2] and shares.total() == sum(map(len, texts))


@pytest.mark.parametrize("allocate", [lambda ids: ids, lambda ids: ids.allocate], ids=["any", "in"])
def test_ids_are_put_where_the_caller_says(
    device: Device, allocate: Callable[[CollectedIds], Allocate]
) -> None:
    text = b"".join(documents(7))
    vocabulary = train(text)
    encoder, _ = shared(device, vocabulary, 7)
    collected = CollectedIds(len(text) + (1 << 22))
    for piece in encoder.encode(corpus_from_bytes([text]), allocate(collected)):
        collected.append(piece.ids)
    host = open_host_encoder(vocabulary, threads=1)
    expected = np.concatenate([piece.ids for piece in host.encode(corpus_from_bytes([text]))])
    np.testing.assert_array_equal(collected.take(), expected)


def test_what_a_failed_device_took_from_a_file_is_read_again(
    device: Device, tmp_path: Path
) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"".join(documents(6)).replace(b"a" * 300, b" letters"))
    vocabulary = with_pattern(train(path.read_bytes()), "gpt2")
    expected = ids_of_file(open_host_encoder(vocabulary, threads=1), path)
    for slices in (0, 3):
        encoder, shares = shared(device, vocabulary, slices, fail_after=slices)
        np.testing.assert_array_equal(ids_of_file(encoder, path), expected)
        assert shares.text_bytes[HOST] > 0


def ids_of_file(encoder: Encoder, path: Path) -> NDArray[np.uint32]:
    with Corpus([str(path)]) as corpus:
        return np.concatenate([piece.ids for piece in encoder.encode(corpus)])


@pytest.mark.parametrize(
    ("much_faster", "seconds", "rests"),
    [(np.inf, 1e9, True), (0, 0, True), (np.inf, 0, False)],
    ids=["not rated yet", "faster", "slower"],
)
def test_the_host_rests_while_a_device_is_rated_and_after_that_if_it_is_much_faster(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    much_faster: float,
    seconds: float,
    rests: bool,
) -> None:
    monkeypatch.setattr(encoder_shared, "MUCH_FASTER", much_faster)
    monkeypatch.setattr(encoder_shared, "RATED_SECONDS", seconds)
    monkeypatch.setattr(encoder_shared, "RATED_BYTES", 1)
    texts = documents(9)
    vocabulary = train(texts[0])
    host, shares = open_host_encoder(vocabulary, 2048, threads=2), Shares()
    host.slices = DelayedHost(host, Delays(9, 0.02))
    host.slices.is_parallel = False  # else its threads would take turns to wait
    opened = DelayedDevice(GpuEncoder(device, vocabulary, 2048), Delays(9, 0.1))
    ids = encode(SharedEncoder(host, [lambda: opened], shares), texts)
    assert ids == encode(open_host_encoder(vocabulary, threads=1), texts)
    assert (shares.text_bytes[HOST] < shares.text_bytes[DEVICE]) == rests


@pytest.mark.slow
def test_a_device_that_is_much_faster_is_left_alone(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_shared, "RATED_BYTES", 1)
    monkeypatch.setattr(encoder_shared, "MUCH_FASTER", 0)
    texts = documents(4) * 3
    vocabulary = train(texts[0])
    encoder, shares = shared(device, vocabulary, 4)
    assert encode(encoder, texts) == encode(open_host_encoder(vocabulary, threads=1), texts)
    assert 0 < shares.text_bytes[HOST] < shares.text_bytes[DEVICE]
    failing, shares = shared(device, vocabulary, 4, fail_after=9)
    assert encode(failing, texts) == encode(open_host_encoder(vocabulary, threads=1), texts)
    assert shares.text_bytes[DEVICE] < shares.text_bytes[HOST]


@pytest.mark.parametrize("slices", [0, 1, 3])
def test_the_host_takes_over_from_a_device_that_fails(
    device: Device, slices: int, caplog: pytest.LogCaptureFixture
) -> None:
    texts = documents(slices)
    vocabulary = train(texts[0])
    encoder, shares = shared(device, vocabulary, slices, fail_after=slices)
    with caplog.at_level(logging.WARNING, "llmgpu"):
        assert encode(encoder, texts) == encode(open_host_encoder(vocabulary, threads=1), texts)
    assert caplog.messages == ["the device was unplugged; the CPU does the rest"]
    assert shares.text_bytes[HOST] > 0


def test_a_device_that_does_not_open_leaves_all_to_the_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts = documents(3)
    vocabulary = train(texts[0])
    host = open_host_encoder(vocabulary, 2048, threads=2)

    def refuse() -> DeviceSlices:
        raise DeviceError("no such device")

    assert encode(SharedEncoder(host, [refuse], Shares()), texts) == encode(host, texts)
    assert caplog.messages == ["no such device; the CPU does the rest"]


@pytest.mark.parametrize("seed", range(3))
def test_the_first_byte_without_a_token_is_named(device: Device, seed: int) -> None:
    text = hostile_text(seed, 50_000).replace(b"\xfe", b"").replace(b"\xfd", b"")
    vocabulary = train(text)
    tokens = list(vocabulary.tokens)
    tokens[0xFE] = tokens[0xFD] = b""
    gap = Vocabulary(tokens, vocabulary.merges, vocabulary.pattern, vocabulary.expression)
    broken = text[:30_000] + b" \xfd " + text[30_000:40_000] + b" \xfe " + text[40_000:]
    encoder, _ = shared(device, gap, seed)
    with pytest.raises(InputError, match=r"byte 0xfd at offset 30,?001"):
        encode(encoder, [broken])


def test_a_caller_that_stops_ends_all_threads(device: Device) -> None:
    text = b"".join(documents(5))
    encoder, _ = shared(device, train(text), 5)
    before = set(threading.enumerate())
    slices = encoder.encode(corpus_from_bytes([text]))
    next(iter(slices))
    assert isinstance(slices, Generator)
    slices.close()
    for thread in set(threading.enumerate()) - before:
        while thread.ident is None:  # it is just being started, and can't be joined
            time.sleep(0.001)
        thread.join(20)
        assert not thread.is_alive()


def two_shares(
    text: list[bytes], collected: CollectedIds | None
) -> tuple[Workers, list[_DeviceShare]]:
    host = open_host_encoder(byte_vocabulary("gpt2", "hf"), 2048, threads=1)
    reader = SliceReader(corpus_from_bytes(text), host.pattern)
    workers = Workers(reader, host.slices, host.slice_bytes, 1, collected)
    return workers, [_DeviceShare(workers, number) for number in (1, 2)]


def test_a_device_that_is_not_needed_any_more_waits_for_no_memory() -> None:
    """Neither for its turn, nor for where its ids begin, which another device would say."""
    for collected in (None, CollectedIds(1 << 20)):
        _, shares = two_shares([b"a b " * 3000], collected)
        for share in shares:
            assert share.read(np.empty(2048, np.uint8)) is not None
            share.cancel()
        with pytest.raises(CancelledError):
            shares[1].allocate(5)


@pytest.mark.parametrize(("is_helped", "times"), [(False, 16), (True, 8)])
def test_slices_are_large_until_a_device_takes_one(
    tmp_path: Path, is_helped: bool, times: int
) -> None:
    (tmp_path / "text").write_bytes(b"low lower " * 400_000)
    host = open_host_encoder(byte_vocabulary("gpt2", "hf"), threads=4)
    with Corpus([str(tmp_path / "text")]) as source:
        reader, nbytes = SliceReader(source, host.pattern), 1 << 16
        workers = Workers(reader, host.slices, nbytes, 0, CollectedIds(5_000_000))
        if is_helped:
            workers.expect_help([lambda: None], 10**9)
        buffer = np.empty(nbytes, np.uint8)

        def take(task_device: int) -> int:
            task = Task(device=task_device)
            taken = workers.fill(task, workers.take(task, buffer), np.empty(1 << 21, np.uint8))
            assert taken is not None
            return taken.length

        assert take(0) <= nbytes  # which opens the file
        assert times - 1 < take(0) / nbytes <= times
        assert 0 < take(1) / nbytes <= 1
        assert 0 < take(0) / nbytes <= 1
        workers.stop()


def test_a_slice_without_text_is_done_by_who_reads_it() -> None:
    workers, (share, _) = two_shares([], None)
    assert share.read(np.empty(2048, np.uint8)) is None
    ((encoded, device),) = workers.results(new_ids)
    assert (len(encoded.ids), encoded.text_bytes, device) == (0, 0, 1)


@pytest.mark.parametrize(("join_from", "opened"), [(10**9, 0), (20_000, 1)])
def test_a_device_is_opened_once_there_is_text_enough(
    device: Device, join_from: int, opened: int
) -> None:
    texts = documents(8)
    vocabulary = train(texts[0])
    opens = []

    def open_device() -> DeviceSlices:
        opens.append(True)
        return GpuEncoder(device, vocabulary, 4096)

    host = open_host_encoder(vocabulary, 2048, threads=2)
    encoder = SharedEncoder(host, [open_device], Shares(), join_from)
    assert encode(encoder, texts) == encode(host, texts)
    assert len(opens) == opened


def test_a_device_is_opened_at_once_for_a_text_that_is_known_to_be_long(device: Device) -> None:
    texts = documents(8)
    vocabulary = train(texts[0])
    opens = []

    def open_device() -> None:
        opens.append(True)

    host = open_host_encoder(vocabulary, 2048, threads=2)
    encoder = SharedEncoder(host, [open_device], Shares(), join_from=10**9)
    for nbytes, opened in ((10**9 - 1, 0), (None, 0), (10**9, 1), (None, 1)):
        if nbytes is not None:
            encoder.expect(nbytes)
        assert encode(encoder, texts) == encode(host, texts)
        assert len(opens) == opened


def test_a_device_knows_how_long_the_text_is(device: Device) -> None:
    texts = documents(8)
    vocabulary = train(texts[0])
    told = []
    is_told = threading.Event()

    class Told(GpuEncoder):
        def expect(self, text_bytes: int | None) -> None:
            told.append(text_bytes)
            super().expect(text_bytes)
            is_told.set()

    host = open_host_encoder(vocabulary, 2048, threads=2)
    host.slices = DelayedHost(host, lambda: is_told.wait(60))  # else it may be done before
    encoder = SharedEncoder(host, [cache(lambda: Told(device, vocabulary, 4096))], Shares())
    for nbytes in 10**10, None, 10**9:
        is_told.clear()
        if nbytes is not None:
            encoder.expect(nbytes)
        assert encode(encoder, texts) == encode(host, texts)
    assert told == [None, 10**10, None, 10**9]


@pytest.mark.parametrize(("size", "opened"), [("1GB", False), ("10KB", True)])
def test_the_environment_says_from_where_a_device_joins_a_process(
    monkeypatch: pytest.MonkeyPatch, size: str, opened: bool
) -> None:
    monkeypatch.setenv("LLMGPU_GPU_FROM", size)
    asked = threading.Event()

    class Encoders(process_encoders.ProcessEncoders):
        @cached_property
        def backend(self) -> Backend:
            asked.set()
            return NUMPY

    texts = documents(5)
    Encoders(train(texts[0]), "auto").encode_documents(texts, SpecialOptions())
    assert asked.wait(20 if opened else 0) == opened


def test_a_process_keeps_a_device_that_joined(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_encoders, "TOKENIZING_FROM", 0)
    texts = documents(5)
    vocabulary = train(texts[0])
    encoders = process_encoders.ProcessEncoders(vocabulary, "auto")
    encoders.__dict__["backend"] = Backend(device, "a device")  # auto takes no software adapter
    host = process_encoders.ProcessEncoders(vocabulary, "cpu")
    for _ in range(2):
        for found, expected in zip(
            *(kept.encode_documents(texts, SpecialOptions()) for kept in (encoders, host)),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected)
