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

from llmgpu.bpe.encoding import encoder, encoder_host
from llmgpu.bpe.encoding.encoder import RESERVED_FROM, CollectedIds, new_ids
from llmgpu.bpe.encoding.encoder_c import CpuEncoder
from llmgpu.bpe.encoding.encoder_host import HostEncoder
from llmgpu.bpe.encoding.open import open_host_encoder
from llmgpu.bpe.pretokens.pattern import get_pattern
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


def encoded_in_time(make: Callable[..., HostEncoder], text: bytes) -> int | Exception:
    """Return how many ids a text of bytes has, or the error, instead of waiting for ever."""
    found: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

    def encode() -> None:
        try:
            pieces = make(VOCABULARY, 64, 4).encode(corpus_from_bytes(text))
            found.put(sum(len(piece.ids) for piece in pieces))
        except Exception as error:
            found.put(error)

    threading.Thread(target=encode, daemon=True).start()
    return found.get(timeout=60)


@host_encoders
@pytest.mark.parametrize("most", [1, 2, 3])
def test_fewer_slices_are_in_flight_where_there_is_little_memory(
    host_encoder: Callable[..., HostEncoder], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = itertools.count(1)

    class Short(encoder_host._Memory):
        def __init__(self, slice_bytes: int) -> None:
            if next(made) > most:
                raise MemoryError
            super().__init__(slice_bytes)

    monkeypatch.setattr(encoder_host, "_Memory", Short)
    assert encoded_in_time(host_encoder, b" letters" * 1000) == 8000


@host_encoders
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_threads_that_there_are_encode_where_no_more_can_start(
    host_encoder: Callable[..., HostEncoder],
    error: Exception,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, started = threading.Thread.start, itertools.count(-1)  # -1 is the test's own thread

    def limited(thread: threading.Thread) -> None:
        if next(started) >= most:
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert encoded_in_time(host_encoder, b" letters" * 1000) == 8000


@host_encoders
def test_encoding_ends_where_there_is_no_memory_for_the_next_slice(
    host_encoder: Callable[..., HostEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, started = encoder_host._Text._next, itertools.count()

    def short(*given: Any) -> Any:
        if next(started) > 10:
            raise MemoryError
        return read(*given)

    monkeypatch.setattr(encoder_host._Text, "_next", short)
    assert isinstance(encoded_in_time(host_encoder, b" letters" * 1000), MemoryError)


@pytest.mark.skipif(library() is None, reason="there is no CPU engine")
def test_slices_are_large_where_their_ids_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes, text = 1 << 16, b"low lower " * 400_000
    (tmp_path / "text").write_bytes(text)
    host, lengths = CpuEncoder(VOCABULARY, nbytes, threads=4), list[int]()
    encode = host.slices.encode

    def seen(piece: Any, *given: Any) -> Any:
        lengths.append(piece.length)
        return encode(piece, *given)

    monkeypatch.setattr(host.slices, "encode", seen)
    for collected, most in (CollectedIds(len(text) + (1 << 22)), 16 * nbytes), (None, nbytes):
        lengths.clear()
        with Corpus([str(tmp_path / "text")]) as source:
            pieces = host.encode(source, new_ids if collected is None else collected)
            assert sum(len(piece.ids) for piece in pieces) == len(text)
        assert lengths[0] <= nbytes  # of the slice that opens the file
        assert max(lengths) > most * 15 // 16
        assert max(lengths) < most * 17 // 16


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
