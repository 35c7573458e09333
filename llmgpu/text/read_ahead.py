"""Reading before it is needed, in threads: jobs in order, and files decompressed ahead."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Generic, Protocol, TypeVar

import numpy as np

from llmgpu.processors import usable_processors

THREADS = 16  # that read files, at most
_FILES_AHEAD = 8  # at most
BEGUN = 2  # parts of a file that is not the next one, which are read already
_BLOCK_BYTES = 1 << 20
_AHEAD_BYTES = 8 << 20  # of a file, decompressed before they are needed

Job = TypeVar("Job")
Result = TypeVar("Result")


@cache
def readers(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a forked one has none of its parent's."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="llmgpu-read")


def files_ahead() -> int:
    """Return how many files to read before their turn: none where that would only take turns."""
    processors = min(usable_processors(), _FILES_AHEAD)
    return processors if processors > 1 else 0


class InOrder(Generic[Job, Result]):
    """Jobs in order, each with its result, which threads make for several jobs ahead.

    What `jobs` raises is raised once all jobs before are yielded.
    """

    def __init__(self, jobs: Iterator[Job], do: Callable[[Job], Result], most: int) -> None:
        """Take jobs, up to `most` of them ahead, and do them with `do`."""
        self._jobs, self._do, self._most = jobs, do, most
        self._waiting: deque[tuple[Job, Future[Result]]] = deque()
        self._failure: Exception | None = None
        self._ended = False

    def begin(self, count: int) -> None:
        """Start the first `count` jobs, before the first is asked for, if threads do any."""
        if self._most > 1:
            self._start(count)

    def __iter__(self) -> Iterator[tuple[Job, Result]]:
        """Yield each job with what `do` returned; raise what it raised."""
        if self._most < 2:
            for job in self._jobs:
                yield job, self._do(job)
            return
        try:
            while True:
                self._start(self._most)
                if not self._waiting:
                    break
                job, done = self._waiting.popleft()
                yield job, done.result()
            if self._failure is not None:
                raise self._failure
        finally:
            self.close()

    def close(self) -> None:
        """Drop the jobs that were not yielded; wait for those that are being done."""
        while self._waiting:
            _, done = self._waiting.pop()
            if not done.cancel():
                done.exception()

    def _start(self, most: int) -> None:
        while not self._ended and len(self._waiting) < most:
            try:
                job = next(self._jobs)
            except StopIteration:
                self._ended = True
            except Exception as error:
                self._failure, self._ended = error, True
            else:
                self._waiting.append((job, readers(os.getpid()).submit(self._do, job)))


class Decompressor(Protocol):
    """A file that is decompressed as it is read."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the front of `buffer`; 0 at the end."""

    def close(self) -> None:
        """Drop what is buffered."""


class ReadAhead:
    """A file that is decompressed in threads, up to _AHEAD_BYTES before they are needed.

    A thread works until there is enough and leaves: none waits for who reads.
    position: bytes of the compressed file that were consumed, about.
    """

    def __init__(self, stream: Decompressor, tell: Callable[[], int]) -> None:
        """Start to read; tell: returns how many bytes of the compressed file are read."""
        self._stream, self._tell = stream, tell
        self._blocks: deque[tuple[memoryview, int]] = deque()
        self._bytes = 0  # in blocks
        self._failure: Exception | None = None
        self._ended = self._closed = False
        self._is_filling = False
        self._filling: Future[None] | None = None
        self._changed = threading.Condition()
        self.position = 0
        self._fill_in_thread()

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the front of `buffer`; 0 at the end. Raises what reading the file raised."""
        with self._changed:
            while not self._blocks and not self._ended:
                self._fill_in_thread()
                self._changed.wait()
            if not self._blocks:
                self.position = self._tell()
                if self._failure is not None:
                    raise self._failure
                return 0
            block, position = self._blocks[0]
            count = min(len(buffer), len(block))
            buffer[:count] = block[:count]
            if count == len(block):
                self._blocks.popleft()
                self.position = position
            else:
                self._blocks[0] = block[count:], position
            self._bytes -= count
            if self._bytes <= _AHEAD_BYTES // 2:
                self._fill_in_thread()
            return count

    def close(self) -> None:
        """Stop reading."""
        self._closed = True
        if self._filling is not None and not self._filling.cancel():
            self._filling.result()
        self._blocks.clear()
        self._stream.close()

    def _fill_in_thread(self) -> None:
        if not (self._is_filling or self._ended or self._closed):
            self._is_filling = True
            self._filling = readers(os.getpid()).submit(self._fill)

    def _fill(self) -> None:
        position = self.position
        while True:
            block, count = np.empty(_BLOCK_BYTES, np.uint8).data, 0
            try:
                while count < len(block) and (got := self._stream.readinto(block[count:])):
                    count += got
                position = self._tell()
            except Exception as error:
                self._failure = error
            with self._changed:
                if count:
                    self._blocks.append((block[:count], position))
                    self._bytes += count
                self._ended = count < len(block)
                self._changed.notify()
                if self._ended or self._closed or self._bytes >= _AHEAD_BYTES:
                    self._is_filling = False
                    return
