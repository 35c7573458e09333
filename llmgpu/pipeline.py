"""Jobs in threads: many jobs with their results in order, or one job in the background.

`in_order` overlaps reading with computing, and computing with writing, for the whole package. The
threads belong to the generator: a thread starts when a job needs it, and all threads end with the
generator, however the generator ends.

Threads share only queues and locks of CPython's C code, and lists that change in one step. So an
interrupt of the caller leaves no lock locked.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from math import inf
from queue import SimpleQueue
from sys import is_finalizing
from typing import Generic, NoReturn, TypeVar, cast

from llmgpu.closing import Closing
from llmgpu.machine import has_room_for_thread

Job = TypeVar("Job")
Result = TypeVar("Result")

PATIENCE_SECONDS = 0.1  # longer than any read from a file; a read from a pipe may last forever


def in_order(
    jobs: Iterable[Job],
    do: Callable[[Job], Result],
    ahead: int,
    *,
    threads: int | None = None,
    reader_thread: bool = False,
) -> Generator[Result, None, None]:
    """Yield `do(job)` for each job, in the order of the jobs; `do` runs in several threads.

    At most `ahead` jobs are waiting, running, or have a result that the caller has not used up. A
    result is used up when the caller asks for the next result. With `ahead` below 2, the caller's
    thread runs each job when the caller asks for the result.

    threads: the most threads that run jobs; None: `ahead`. With 0, jobs run in the thread that
        iterates over `jobs`.
    reader_thread: iterate over `jobs` in a separate thread, so that finished results are yielded
        while `jobs` waits for a pipe. Otherwise the caller's thread iterates over `jobs`.

    Raises the error of a job, or of `jobs`, in place of the result: after all earlier results, and
    before any later job begins. When the generator is closed or interrupted, jobs that have not
    begun are dropped, and the generator waits for running jobs. The wait for a reader thread ends
    after PATIENCE_SECONDS; jobs that the reader takes later are dropped. If `jobs` is a generator,
    `jobs` is closed, too, so the last generator of a chain closes all earlier generators.

    If the system can't start a thread, fewer threads run jobs; without any thread, jobs run in the
    thread that iterates over `jobs`. A generator that goes on in a forked process raises
    RuntimeError.
    """
    if ahead < 2:
        try:
            yield from map(do, jobs)
        finally:
            _close(jobs)
        return
    process = os.getpid()
    pipeline = _Pipeline(iter(jobs), do, ahead, ahead if threads is None else threads)
    try:
        if reader_thread:
            pipeline.start_reader()
        while (box := pipeline.next_box()) is not None:
            yield _take(box)
            if os.getpid() != process:
                raise RuntimeError("the threads of this generator are in the process that forked")
    finally:
        # Only the process that started the threads has them, and none run when the interpreter
        # ends. Waiting for missing threads would never end.
        if os.getpid() == process and not is_finalizing():
            pipeline.close()


class Begun(Generic[Job, Result]):
    """The results of `in_order`; `begin` may compute the first few results early.

    `begin` runs jobs in the calling thread. Iterate only after the last call of `begin`.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        do: Callable[[Job], Result],
        ahead: int,
        *,
        threads: int | None = None,
    ) -> None:
        """Store the arguments of `in_order` without starting a job."""
        self._jobs, self._do = iter(jobs), do
        self._first: deque[Result] = deque()
        self._error: Exception | None = None
        self._rest = in_order(self._jobs, do, ahead, threads=threads)

    def begin(self, count: int) -> None:
        """Run the first `count` jobs; iterating raises a job's error in place of its result."""
        try:
            self._first.extend(map(self._do, islice(self._jobs, count)))
        except Exception as error:
            self._error = error

    def __iter__(self) -> Iterator[Result]:
        while self._first:
            yield self._first.popleft()
        if self._error is not None:
            raise self._error
        yield from self._rest

    def close(self) -> None:
        """Drop the results, and wait for running jobs, but not for a thread that iterates."""
        self._first.clear()
        _close(self._rest)
        _close(self._jobs)
        self._do = _never  # dropping the bound method of the owner breaks a cycle of references


class Background(Closing):
    """Runs jobs, one at a time, in a thread while the caller continues; a context manager.

    An error of a job is raised by the next call of any method except `close`.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []  # at most one
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Wait for the previous job, and start `job`.

        If the system can't start a thread, `job` runs in the caller's thread.
        """
        self.wait()

        def do() -> None:
            try:
                job()
            except BaseException as error:
                self._error = error

        if not start_thread(do, self._threads):
            job()

    def check(self) -> None:
        """Raise the error of the job, if the job has failed."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait for the running job. Raise its error, if any."""
        self._join()
        self.check()

    def close(self) -> None:
        """Wait for the running job, and drop its error."""
        self._join()
        self._error = None

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._threads.clear()


def start_thread(target: Callable[[], None], threads: list[threading.Thread]) -> bool:
    """Start a thread, and add it to `threads`; return False if the system can't start one."""
    if not has_room_for_thread():
        return False
    # A daemon thread, so that a process can end while the thread waits for a pipe or a disk.
    thread = threading.Thread(target=target, name="llmgpu-job", daemon=True)
    threads.append(thread)  # listed first: an interrupt may arrive while the thread starts
    try:
        thread.start()
    except (MemoryError, RuntimeError):
        threads.remove(thread)
        return False
    return True


def _never(job: object) -> NoReturn:
    raise AssertionError("this is closed")


def _close(jobs: Iterable[object]) -> None:
    """Close a generator, but not while another thread runs it, such as a reader thread."""
    if isinstance(jobs, Generator):
        try:
            jobs.close()
        except ValueError as error:
            if str(error) != "generator already executing":
                raise


# Receives the outcome of a job: its result, or None and its error.
_Box = SimpleQueue[tuple[Result | None, BaseException | None]]


def _take(box: _Box[Result]) -> Result:
    """Wait for the outcome of a job; return the result without keeping it, or raise the error."""
    result, error = box.get()
    try:
        if error is not None:
            raise error
        return cast(Result, result)
    finally:
        del error  # breaks the cycle of the error, its traceback and this frame


class _Pipeline(Generic[Job, Result]):
    """The threads and queues of one `in_order`."""

    def __init__(
        self, jobs: Iterator[Job], do: Callable[[Job], Result], ahead: int, most_threads: int
    ) -> None:
        self._jobs, self._do, self._ahead = jobs, do, ahead
        # Jobs that no thread has started, with their numbers and boxes. None ends a thread, which
        # first puts None back to end the next thread.
        self._waiting: SimpleQueue[tuple[Job, int, _Box[Result]] | None] = SimpleQueue()
        # The boxes of all jobs in their order; None after the last.
        self._order: SimpleQueue[_Box[Result] | None] = SimpleQueue()
        self._undone: SimpleQueue[None] = SimpleQueue()  # an entry for each job that is not done
        # Receives an error of `jobs`. Created now, because the error may be a lack of memory.
        self._last: _Box[Result] = SimpleQueue()
        self._is_last_taken = self._is_closed = False
        self._count = 0  # number of jobs taken
        self._failed: float = inf  # number of the first job known to have failed
        self._threads: list[threading.Thread] = []
        self._most_threads = most_threads
        self._readers: list[threading.Thread] = []  # at most one thread
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for each job that may be read

    def start_reader(self) -> None:
        """Start the reader thread. If this fails, the caller's thread iterates over `jobs`."""
        start_thread(self._read, self._readers)
        for _ in range(self._ahead - 1):
            self._room.put(None)

    def next_box(self) -> _Box[Result] | None:
        """Drop the result of the previous job. Return the box of the next, None after the last."""
        if self._readers:
            self._room.put(None)
        else:
            while not self._is_last_taken and self._order.qsize() < self._ahead:
                self._take_job()
        return self._order.get()

    def close(self) -> None:
        """Drop jobs that have not begun; wait for running jobs."""
        self._is_closed = True
        self._waiting.put(None)
        self._room.put(None)
        # A thread whose start was interrupted may not be alive yet. It will find no job.
        for thread in filter(threading.Thread.is_alive, self._readers):
            thread.join(PATIENCE_SECONDS)
        for thread in filter(threading.Thread.is_alive, [*self._threads]):
            thread.join()
        if not self._readers:
            _close(self._jobs)

    def _read(self) -> None:
        """Run the reader thread: wait for room in `_room`, then take a job from `jobs`."""
        try:
            while not self._is_last_taken:
                self._room.get()
                if self._is_closed:
                    return
                self._take_job()
        except BaseException as error:
            self._fail(error)
        finally:
            _close(self._jobs)

    def _take_job(self) -> None:
        """Take a job and queue its box. The box of an error of `jobs` is queued as the last."""
        try:
            job = next(self._jobs)
            box: _Box[Result] = SimpleQueue()
            self._count += 1
            self._begin(job, self._count, box)
            self._order.put(box)
        except StopIteration:
            self._is_last_taken = True
            self._order.put(None)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._is_last_taken = True
        self._last.put((None, error))
        self._order.put(self._last)
        self._order.put(None)

    def _begin(self, job: Job, number: int, box: _Box[Result]) -> None:
        """Queue a job. Start one more thread if all threads are busy."""
        self._undone.put(None)
        most = min(self._undone.qsize(), self._most_threads)
        if len(self._threads) < most and not start_thread(self._work, self._threads):
            self._most_threads = len(self._threads)
        if self._threads:
            self._waiting.put((job, number, box))
        else:
            self._run(job, number, box)

    def _work(self) -> None:
        """Run queued jobs until None ends the thread."""
        while (task := self._waiting.get()) is not None:
            self._run(*task)
            del task
        self._waiting.put(None)

    def _run(self, job: Job, number: int, box: _Box[Result]) -> None:
        """Run a job, unless the pipeline is closed or an earlier job has failed."""
        if self._is_closed or number > self._failed:
            return
        outcome: tuple[Result | None, BaseException | None]
        try:
            outcome = self._do(job), None
        except BaseException as error:
            outcome = None, error
            self._failed = min(self._failed, number)
        self._undone.get()
        box.put(outcome)
        del outcome  # breaks the cycle of an error, its traceback and this frame
