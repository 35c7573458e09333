"""Slices that threads read and encode: their order, errors, and texts that never end."""

from __future__ import annotations

import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding import encoder, encoder_host
from llmgpu.bpe.encoding.encoder import RESERVED_FROM, CollectedIds, EncodedSlice, new_ids
from llmgpu.bpe.encoding.encoder_c import CpuEncoder
from llmgpu.bpe.encoding.encoder_host import HostEncoder, Task, Workers
from llmgpu.bpe.encoding.open import open_host_encoder
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.slices import Slice, SliceReader
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import library
from llmgpu.errors import InputError
from llmgpu.text import streams
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from llmgpu.text.documents import Piece
from llmgpu.text.streams import FileBytes
from tests.bpe.host_encoders import HOST_ENCODERS

BYTES = tuple(bytes([value]) for value in range(256))
VOCABULARY = Vocabulary(
    BYTES, np.empty((0, 3), np.uint32), "cl100k", get_pattern("cl100k").expression
)
host_encoders = pytest.mark.parametrize("host_encoder", HOST_ENCODERS)


class Words:
    """A text of words that fails, or waits, after some of them."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._count, self._then = count, then

    def read_into(self, buffer: NDArray[np.uint8]) -> Piece:
        """Fill the buffer with a word."""
        if self._count == 0:
            self._then()
        self._count -= 1
        buffer[:8] = np.frombuffer(b" letters", np.uint8)
        return Piece(buffer[:8], np.zeros(0, np.int64), closed=False)


@host_encoders
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_slices_before_an_error_are_there(
    host_encoder: Callable[..., HostEncoder], threads: int
) -> None:
    def fail() -> None:
        raise InputError("no more")

    slices = host_encoder(VOCABULARY, 64, threads).encode(Words(100, fail))
    count = 0
    with pytest.raises(InputError, match="no more"):
        for piece in slices:
            assert set(piece.ids.tolist()) <= set(b" letters")
            count += len(piece.ids)
    assert 700 < count <= 800


@host_encoders
def test_threads_end_with_the_text(host_encoder: Callable[..., HostEncoder]) -> None:
    made, before = host_encoder(VOCABULARY, 64, 4), threading.active_count()
    text = b"some words " * 500
    pieces = list(made.encode(corpus_from_bytes(text)))
    assert b"".join(bytes(piece.ids.tolist()) for piece in pieces) == text
    assert threading.active_count() == before
    slices = made.encode(corpus_from_bytes(text))
    next(slices)
    slices.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.mark.skipif(library() is None, reason="there is no CPU engine")
def test_who_stops_waits_for_one_slice_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    host = CpuEncoder(VOCABULARY, 64, threads=4)
    encode, begun, proceed = host.slices.encode, queue.SimpleQueue[int](), threading.Event()

    def held(*given: Any) -> Any:
        begun.put(1)
        if begun.qsize() > 1:  # while another slice waits for its turn
            assert proceed.wait(20)
        return encode(*given)

    monkeypatch.setattr(host.slices, "encode", held)
    slices = host.encode(corpus_from_bytes(b"some words " * 5000))
    next(slices)
    while begun.qsize() < 2:
        time.sleep(0.01)
    time.sleep(0.1)  # for the other thread to take a slice
    threading.Timer(0.1, proceed.set).start()
    slices.close()  # type: ignore[attr-defined]
    assert begun.qsize() == 2


def test_who_stops_does_not_wait_for_a_pipe() -> None:
    program = (
        "import threading\n"
        "from tests.bpe.encoding.test_encoder_host import *\n"
        "slices = HOST_ENCODERS[-1](VOCABULARY, 64, 2).encode(Words(30, threading.Event().wait))\n"
        "next(slices), slices.close()\n"
        "print('done')\n"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@host_encoders
@pytest.mark.parametrize("reserved", [100, RESERVED_FROM, 1 << 24])
def test_ids_are_collected_in_order(
    host_encoder: Callable[..., HostEncoder], reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The array ends in the middle of the ids, or is none, or has room for all.
    monkeypatch.setattr(encoder, "RESERVED_FROM", 100)
    text = b"".join(b"%d word%s " % (k, b"s" * (k % 50)) for k in range(150))
    made = host_encoder(VOCABULARY, 300, 4)
    for most in (reserved, len(text) // 2):
        collected = CollectedIds(most)
        for times in (1, 2):
            for piece in made.encode(corpus_from_bytes(text), collected):
                collected.append(piece.ids)
            assert len(collected) == times * len(text)
        assert bytes(collected.take().tolist()) == text * 2


def test_an_interrupt_while_a_thread_starts_is_raised_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(HOST_ENCODERS[0](VOCABULARY, 64, 2).encode(corpus_from_bytes(b"letters " * 20)))


@host_encoders
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_the_threads_that_there_are_encode_where_no_more_can_start(
    host_encoder: Callable[..., HostEncoder], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(encoder_host._Memory):
        def __init__(self, slice_bytes: int) -> None:
            if threading.current_thread().name == "llmgpu-encode":
                raise error
            super().__init__(slice_bytes)

    monkeypatch.setattr(encoder_host, "_Memory", Short)
    text, found = b" letters" * 1000, queue.SimpleQueue[int]()

    def encode() -> None:
        pieces = host_encoder(VOCABULARY, 64, 4).encode(corpus_from_bytes([text]))
        found.put(sum(len(piece.ids) for piece in pieces))

    # In a thread, since it is waiting for ever that this test is about.
    threading.Thread(target=encode, daemon=True).start()
    assert found.get(timeout=60) == len(text)


@host_encoders
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate lock")])
def test_encoding_ends_where_a_thread_has_no_memory_for_a_task(
    host_encoder: Callable[..., HostEncoder], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = itertools.count()

    class Short(encoder_host.Task):
        def __init__(self, memory: encoder_host._Memory | None = None) -> None:
            if next(made) > 10:
                raise error
            super().__init__(memory)

    monkeypatch.setattr(encoder_host, "Task", Short)
    text, found = b" letters" * 1000, queue.SimpleQueue[Exception | None]()

    def encode() -> None:
        try:
            list(host_encoder(VOCABULARY, 64, 4).encode(corpus_from_bytes(text)))
        except Exception as raised:
            found.put(raised)
        else:
            found.put(None)

    # In a thread, since it is waiting for ever that this test is about.
    threading.Thread(target=encode, daemon=True).start()
    assert isinstance(found.get(timeout=60), MemoryError)


class ReadInTurns(SliceReader):
    """Slices of a text, one of which waits for `proceed`; who read them, by name."""

    def __init__(self, slices: int, waits_at: int) -> None:
        super().__init__(corpus_from_bytes([b" letters" * slices]), VOCABULARY.cut)
        self.names: list[str] = []
        self.waiting, self.proceed = threading.Event(), threading.Event()
        self._waits_at = waits_at

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        self.names.append(threading.current_thread().name)
        if len(self.names) == self._waits_at:
            self.waiting.set()
            assert self.proceed.wait(20)
        return super().read(buffer[: 16 + PADDING])


def test_a_helper_reads_next_and_threads_that_rest_do_not_read() -> None:
    threads, waits_at = 8, 100
    reader = ReadInTurns(2000, waits_at)
    host = open_host_encoder(VOCABULARY, 64, threads)
    workers = Workers(reader, host.slices, 64, threads)
    encoded: list[EncodedSlice] = []
    taker = threading.Thread(
        target=lambda: encoded.extend(piece for piece, _ in workers.results(new_ids))
    )
    taker.start()
    assert reader.waiting.wait(20)
    time.sleep(0.1)  # for the other threads, which wait for their turns
    workers.pace.rest("helper")
    workers.pace.rest("another")

    def help_once() -> None:
        task = Task(device=1)
        piece = workers.take(task, np.empty(64, np.uint8))
        assert isinstance(piece, Slice)
        workers.finish(task, host.slices.encode(piece, 0)[0])

    helper = threading.Thread(target=help_once, name="helper")
    helper.start()
    time.sleep(0.1)  # it waits for its turn as well
    reader.proceed.set()
    helper.join(20)
    time.sleep(0.1)  # for those that should not read
    assert reader.names[waits_at:] == ["helper"]
    workers.pace.work("helper")
    time.sleep(0.1)
    assert reader.names[waits_at:] == ["helper"]
    workers.pace.work("another")
    taker.join(20)
    ids = np.concatenate([piece.ids for piece in encoded])
    assert bytes(ids.astype(np.uint8)) == b" letters" * 2000


@pytest.mark.parametrize("threads", [2, 5])
def test_text_that_threads_cannot_read_is_an_error_in_its_place(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of a file are read by several threads at a time, one of which finds it shorter."""
    path = tmp_path / "text"
    path.write_bytes(b" letters" * 10_000)
    whole = list(open_host_encoder(VOCABULARY, 1000, threads).encode(Corpus([str(path)])))
    assert b"".join(bytes(piece.ids.tolist()) for piece in whole) == path.read_bytes()

    class Shorter(FileBytes):
        def read(self, data: NDArray[np.uint8], first: int) -> None:
            super().read(data, first)
            if self.begin > 40_000:  # the slice itself is read after its end
                os.truncate(path, 10_000)

    monkeypatch.setattr(streams, "FileBytes", Shorter)
    found = []
    with Corpus([str(path)]) as corpus, pytest.raises(InputError, match=r"changed|shorter"):
        for piece in open_host_encoder(VOCABULARY, 1000, threads).encode(corpus):
            found.append(piece)
    assert (
        b"".join(bytes(piece.ids.tolist()) for piece in found)
        == (b" letters" * 10_000)[: sum(len(piece.ids) for piece in found)]
    )
