"""Encoding on the host: slices of a text, in threads, each encoded by one of the host's engines."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.encoder import (
    Allocate,
    CollectedIds,
    EncodedSlice,
    NoTokenError,
    ReusedMemory,
    new_ids,
)
from llmgpu.bpe.encoding.places import Places
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, UnreadSlice
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import TextSource

_SPARE_MEMORY = 2  # slices whose ids are being used, beside one for each thread
_MOST_AHEAD = 4  # slices encoded elsewhere whose ids wait for those of earlier slices
_FIRST_BYTES = 1 << 16  # of a slice that opens a file, whose others need not be read in turn
_LARGE = 16  # slices that are one, where only their ids take memory
_LARGE_BEFORE_HELP = 8  # while helpers may join, whose first ids wait for the end of such a slice
_PATIENCE_SECONDS = 1.0  # more than it takes to read a slice of a file


class HostSlices(Protocol):
    """Encodes slices in any number of threads.

    is_parallel: it has threads of its own for a slice, and takes those that are not read yet.
    """

    is_parallel: bool

    def encode(
        self, piece: Slice | UnreadSlice, entry: int, memory: NDArray[np.uint32] | None = None
    ) -> tuple[EncodedSlice, int]:
        """Return the ids of a slice, and where its last token ends.

        piece: read, unless `is_parallel`. entry: where in the slice the first token starts.
        memory: the ids may be put there if it has room for PADDING more than the slice has bytes.

        Raises NoTokenError for a byte without a token if the vocabulary has no unknown token,
        InputError for a file that can't be read.
        """
        ...

    def match_words(self, words: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint32]]:
        """Return the ids of each of some words, one or more."""
        ...


class HostEncoder:
    """Encodes texts with a vocabulary, one text at a time.

    pattern: cuts the text. slices: encodes it, `slice_bytes` at a time in each of `threads`.
    """

    def __init__(
        self, vocabulary: Vocabulary, slices: HostSlices, slice_bytes: int, threads: int
    ) -> None:
        """Encode with `slices`, `slice_bytes` (1 or more) at a time in each of `threads`.

        The ids depend neither on that nor on the number of threads.
        """
        self.pattern = vocabulary.cut
        self.slice_bytes = slice_bytes
        self._lookahead = stream_lookahead(vocabulary)
        if self._lookahead is not None:
            threads = 1  # a slice needs to know where the last token of the one before ends
        self.threads = threads
        self.slices = slices

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        if self.threads == 1:
            yield from self._encode_alone(source, allocate)
            return
        reader = SliceReader(source, self.pattern)
        collected = allocate if isinstance(allocate, CollectedIds) else None
        workers = Workers(reader, self.slices, self.slice_bytes, self.threads, collected)
        try:
            for encoded, _ in workers.results(allocate):
                yield encoded
        finally:
            workers.stop()

    def _encode_alone(self, source: TextSource, allocate: Allocate) -> Iterator[EncodedSlice]:
        reader = SliceReader(source, self.pattern, self._lookahead)
        memory = _Memory(self.slice_bytes + (self._lookahead or 0))
        entry = 0
        while (piece := reader.read(memory.text)) is not None:
            encoded, stopped = self.slices.encode(piece, entry, memory.ids)
            # The last token may reach into the next slice, whose first token then starts later.
            entry = max(stopped, entry) - piece.main_end
            yield _settled(encoded, allocate)


class _Memory:
    """Memory for one slice: its text, uint8, and its ids, uint32."""

    def __init__(self, slice_bytes: int) -> None:
        self.text = np.empty(slice_bytes + PADDING, np.uint8)
        self.ids = np.empty(slice_bytes + PADDING, np.uint32)


class Task:
    """The work on one slice: its ids, or the error in their place, once they are there.

    device: number of the helper that encodes the slice, from 1; 0: a thread of `Workers`.
    memory: which the ids are in, if it is to be used again.
    allocate: of a slice that is encoded elsewhere, for ids that are written where they are used; it
        is known at once for a few slices, for others when the ids of all earlier slices are used.
    number: of the slice, from 0.
    begin: of its ids in those of the text, where they are collected.
    """

    def __init__(self, memory: _Memory | None = None, device: int = 0) -> None:
        self.encoded: Future[EncodedSlice] = Future()
        self.device = device
        self.memory = memory
        self.allocate: Future[Allocate] = Future()
        self.number = 0
        self.begin: Future[int] = Future()


class Pace:
    """How fast threads encode, and whether they rest while helpers that are faster do the work."""

    def __init__(self) -> None:
        """Begin at work, with no text encoded."""
        self._lock = threading.Lock()
        self._bytes, self._seconds = 0, 0.0
        self._working = threading.Event()
        self._working.set()
        self._faster: set[object] = set()  # helpers for which the threads rest
        self._has_ended = False

    def add(self, nbytes: int, seconds: float) -> None:
        """Count text that one of the threads has encoded."""
        with self._lock:
            self._bytes += nbytes
            self._seconds += seconds

    @property
    def rate(self) -> float:
        """Bytes of text that a thread encodes in a second of work."""
        with self._lock:
            return self._bytes / max(self._seconds, 1e-9)

    def rest(self, helper: object) -> None:
        """Let the threads rest until `work`, as a helper is so much faster."""
        with self._lock:
            if not self._has_ended:
                self._faster.add(helper)
                self._working.clear()

    def work(self, helper: object) -> None:
        """Let the threads work again, unless they rest for another helper."""
        with self._lock:
            self._faster.discard(helper)
            if not self._faster:
                self._working.set()

    def wait(self) -> None:
        """Wait until it is time to work."""
        self._working.wait()

    def end(self) -> None:
        """Let the threads rest no more."""
        with self._lock:
            self._has_ended = True
            self._working.set()


class Workers:
    """Threads that each read a slice, one at a time, and encode it.

    So a slice is encoded where it was just read, while the caller takes the ids of earlier ones.
    An engine with threads of its own encodes one slice at a time, while the next one is read.
    A helper that wants to read comes next, however many threads wait, since it encodes far more.

    pace: of the threads.
    """

    def __init__(
        self,
        reader: SliceReader,
        slices: HostSlices,
        slice_bytes: int,
        threads: int,
        collected: CollectedIds | None = None,
    ) -> None:
        """Take slices of up to `slice_bytes` from `reader`, and encode them with `slices`.

        collected: where ids are put as soon as it is known how many are before them.
        """
        self._order: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # Memory for slices. That of a slice goes back here once its ids are used.
        self._idle: queue.SimpleQueue[_Memory | None] = queue.SimpleQueue()
        self._reader, self._slices = reader, slices
        self._slice_bytes = slice_bytes
        self._reading = threading.Lock()
        self._at_a_time = 1 if slices.is_parallel else threads
        self._encoding = threading.Semaphore(self._at_a_time)
        self._next = threading.Lock()  # held by who reads next
        self._thread_next = threading.Lock()  # held by the thread that reads or would read next
        self._given = 0  # slices
        self._ahead_of_turn: Allocate | None = None  # allocates in any order of the slices
        self._ahead = 0  # slices encoded elsewhere, with memory for their ids before their turn
        self._lock = threading.Lock()  # of their number
        self._ended = False
        self._is_stopped = False  # nobody takes the ids of slices that were taken
        self._threads: list[threading.Thread] = []
        self._most_threads = threads
        self._helpers: list[Callable[[], None]] = []
        self._helpers_from = self._read_bytes = 0
        self._may_be_helped = self._is_helped = False
        self.pace = Pace()
        self._places = None if collected is None else Places(collected)
        self._no_memory = Task()  # in place of one that there is no memory for

    def expect_help(self, helpers: Sequence[Callable[[], None]], nbytes: int) -> None:
        """Call `helpers` in a thread each when `nbytes` of text were read.

        They take slices with `read`.
        """
        self._helpers, self._helpers_from = list(helpers), nbytes
        self._may_be_helped = bool(helpers)

    @property
    def own_rate(self) -> float:
        """Bytes of text that the threads encode in a second of work, all together."""
        return min(len(self._threads), self._at_a_time) * self.pace.rate

    def _start_thread(self) -> None:
        self._idle.put(_Memory(self._slice_bytes))
        # Daemons: one that waits for a pipe does not keep the process from ending.
        thread = threading.Thread(target=self._run, name="llmgpu-encode", daemon=True)
        thread.start()
        self._threads.append(thread)  # only now: an interrupt may come in between

    def results(self, allocate: Allocate) -> Iterator[tuple[EncodedSlice, int]]:
        """Yield the ids of all slices in order, and the `Task.device` that encoded them.

        A thread is started when there is a slice for the one before.

        allocate: see `llmgpu.bpe.encoding.encoder.Encoder.encode`.
        """
        if allocate is new_ids or isinstance(allocate, ReusedMemory):
            self._ahead_of_turn = allocate
        for _ in range(_SPARE_MEMORY):
            self._idle.put(_Memory(self._slice_bytes))
        with self._reading:  # so that the thread is listed before it starts another
            self._start_thread()
        while (task := self._order.get()) is not None:
            was_ahead = task.allocate.done()
            if not was_ahead:
                task.allocate.set_result(allocate)
            encoded = task.encoded.result()
            if task.memory is None:
                yield encoded, task.device
                with self._lock:
                    self._ahead -= was_ahead
            else:
                yield _settled(encoded, allocate), task.device
                self._idle.put(task.memory)

    def stop(self) -> None:
        """Let the threads end, and wait for them unless one waits for text."""
        self._ended = self._is_stopped = True
        self.pace.end()
        for _ in range(self._most_threads):
            self._idle.put(None)
        if self._reading.acquire(timeout=_PATIENCE_SECONDS):
            self._reading.release()
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while memory := self._idle.get():
            try:
                task = Task(memory)
            except (MemoryError, RuntimeError):  # RuntimeError: no memory for a lock
                self._end_without_memory()
                return
            with self._thread_next:
                self.pace.wait()
                taken = self.take(task, memory.text)
                self._encoding.acquire()  # in the order of the text
            begin = time.perf_counter()
            try:
                if not self._slices.is_parallel:
                    taken = self.fill(task, taken, memory.text)
                if taken is None or self._is_stopped:
                    return
                ids = None
                if self._places is not None:
                    ids = self._places.next(task.number, taken.main_end + PADDING)
                encoded, _ = self._slices.encode(taken, 0, memory.ids if ids is None else ids)
                self.finish(task, encoded)
                self.pace.add(taken.main_end, time.perf_counter() - begin)
            except BaseException as error:
                task.encoded.set_exception(error)
            finally:
                self._encoding.release()

    def _end_without_memory(self) -> None:
        """Give no more slices; raise MemoryError where the ids of the next one would be taken."""
        with self._reading:
            if not self._ended:
                self._ended = True
                self._no_memory.encoded.set_exception(MemoryError())
                self._order.put(self._no_memory)

    def take(self, task: Task, buffer: NDArray[np.uint8]) -> Slice | UnreadSlice | None:
        """Return the next slice, whose ids `task` gets; None at the end.

        Where it can, it leaves reading the text to `fill`, so that others take the next ones. Else
        the text is in `buffer` if it fits.
        """
        with self._next:
            self._reading.acquire()
        try:
            return self._take(task, buffer)
        finally:
            self._reading.release()

    def fill(
        self, task: Task, taken: Slice | UnreadSlice | None, buffer: NDArray[np.uint8]
    ) -> Slice | None:
        """Return what `take` returned, with its text, in `buffer` if it was not read yet.

        None if it can't be read; the text ends there.
        """
        if not isinstance(taken, UnreadSlice):
            return taken
        try:
            return taken.read(buffer)
        except BaseException as error:
            self._ended = True
            task.encoded.set_exception(error)
            return None

    def _take(self, task: Task, buffer: NDArray[np.uint8]) -> Slice | UnreadSlice | None:
        if self._ended:
            return None
        taken: Slice | UnreadSlice | None = None
        self._is_helped |= task.device > 0
        try:
            taken = self._take_unread(task, len(buffer))
            if taken is None:  # of a file that is not open yet, it may be
                is_first = self._slices.is_parallel and not self._given
                taken = self._reader.read(buffer[: _FIRST_BYTES + PADDING] if is_first else buffer)
        except BaseException as error:
            task.encoded.set_exception(error)
            self._order.put(task)
        if taken is None:
            self._ended = True
            self._order.put(None)
            return None
        task.number = self._given
        self._given += 1
        with self._lock:
            allocate = self._ahead_of_turn
            if allocate and task.device and self._ahead < _MOST_AHEAD:
                self._ahead += 1
                task.allocate.set_result(allocate)
        self._order.put(task)
        self._read_bytes += taken.main_end
        self._start_more()
        return taken

    def _take_unread(self, task: Task, nbytes: int) -> UnreadSlice | None:
        """Return the next slice for a buffer of `nbytes` if it need not be read yet.

        For the engine's threads it is larger if there is a place for the ids.
        """
        if task.device or not self._slices.is_parallel:
            return self._reader.take(nbytes)
        if self._places is not None and not self._is_helped:
            large = nbytes * (_LARGE_BEFORE_HELP if self._may_be_helped else _LARGE)
            nbytes = max(nbytes, min(large, self._places.room - self._read_bytes))
        return self._reader.take(nbytes, is_full=False)

    def allocate(self, task: Task, count: int) -> NDArray[np.uint32]:
        """Return memory for the ids of a slice that is encoded elsewhere; may wait for others."""
        if self._places is None:
            return task.allocate.result()(count)
        self._places.give(task.number, count, task.begin.set_result)
        place = self._places.at(task.begin.result(), count)
        return new_ids(count) if place is None else place

    def finish(self, task: Task, encoded: EncodedSlice) -> None:
        """Hand in the ids of a slice; where ids are collected, put them there in their turn."""
        places = self._places
        if places is None or task.begin.done():
            task.encoded.set_result(encoded)
            return

        def put(begin: int) -> None:
            place = places.at(begin, len(encoded.ids))
            if place is None:  # the caller finds another
                task.encoded.set_result(encoded)
                return
            if place.ctypes.data != encoded.ids.ctypes.data:  # not written there already
                place[:] = encoded.ids
            memory, task.memory = task.memory, None
            if memory is not None:
                self._idle.put(memory)
            task.encoded.set_result(replace(encoded, ids=place))

        places.give(task.number, len(encoded.ids), put)

    def end(self) -> Task:
        """Give no more slices; return the task whose outcome comes after those given."""
        task = Task()
        with self._reading:
            if not self._ended:
                self._ended = True
                self._order.put(task)
                self._order.put(None)
        return task

    def _start_more(self) -> None:
        """Start another thread, and the helper if it is time.

        Where there is no memory for another, those that there are do the work: this is called in
        one of them, which an error would end, with the slice that it has just taken.
        """
        try:
            if len(self._threads) < self._most_threads:
                self._start_thread()
            while self._helpers and self._read_bytes >= self._helpers_from:
                # Not a daemon: the process may not end while it is in a driver.
                threading.Thread(target=self._helpers[0], name="llmgpu-help").start()
                del self._helpers[0]
        except (MemoryError, RuntimeError):  # RuntimeError: the system has no thread
            self._most_threads = len(self._threads)
            self._helpers.clear()


def _settled(encoded: EncodedSlice, allocate: Allocate) -> EncodedSlice:
    """Return a slice with its ids in memory of their own, not in part of a larger array."""
    if encoded.ids.base is None:
        return encoded
    ids = allocate(len(encoded.ids))
    ids[:] = encoded.ids
    return replace(encoded, ids=ids)


def stream_lookahead(vocabulary: Vocabulary) -> int | None:
    """Return the lookahead of slices that are cut anywhere; None if they are cut between words."""
    cut_anywhere = vocabulary.pattern == "none" and vocabulary.match == "greedy"
    return vocabulary.trie.longest if cut_anywhere else None


def require_tokens(
    vocabulary: Vocabulary,
    piece: Slice,
    ids: NDArray[np.uint32],
    entry: int,
    read_byte: Callable[[int], int] | None = None,
) -> None:
    """Raise NoTokenError for the first byte of a slice that has no token: its id is NO_TOKEN.

    ids: of the slice. entry: where its first token starts. read_byte: returns a byte of a slice
        whose text is not at hand.
    """
    if ids.max(initial=0) != NO_TOKEN:
        return
    before = ids[: np.argmax(ids == NO_TOKEN)]
    position = entry + int(vocabulary.token_spans[before].sum())
    byte = int(piece.text[position]) if read_byte is None else read_byte(position)
    raise NoTokenError(byte, piece.offset + position)
