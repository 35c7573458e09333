"""Jobs in threads: their results in order, or one job beside the caller's work.

`in_order` is where the package overlaps work: reading with computing, computing with writing. Its
threads belong to the generator: a thread starts when there is a job for it, and all of them end
with the generator, however the generator ends.

Threads share only queues and locks of CPython's C code, and lists that change in one step. So an
interrupt of the caller leaves no lock taken.
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

Job = TypeVar("Job")
Result = TypeVar("Result")

PATIENCE_SECONDS = 0.1  # reading a file takes less; only a read that waits for a pipe takes longer


def in_order(
    jobs: Iterable[Job],
    do: Callable[[Job], Result],
    ahead: int,
    *,
    threads: int | None = None,
    reader_thread: bool = False,
) -> Generator[Result, None, None]:
    """Yield `do(job)` for each job, in the order of the jobs; `do` runs in several threads.

    At most `ahead` jobs are taken from `jobs` whose results the caller has not used up: a result
    is used up when the next one is asked for. With `ahead` below 2 the caller's thread does each
    job when its result is asked for.

    threads: the jobs run in up to this many threads, None: up to `ahead`. In one thread they run
        one after the other; 0: where `jobs` is iterated over.
    reader_thread: iterate over `jobs` in a thread of its own, so that finished results are yielded
        while `jobs` waits for a pipe. Otherwise the caller's thread iterates over `jobs`.

    Raises the error of a job, or of `jobs`, in place of its result; all earlier results come
    first, and no later job begins. When the generator is closed, or the caller is interrupted in
    it, jobs that have not begun are dropped, and jobs that run are waited for. A reader thread is
    waited for up to PATIENCE_SECONDS; no job that it takes later is done. If `jobs` is a generator,
    it is closed, too: so a chain of generators ends from its end to its beginning.

    Where the system can't start a thread, there are fewer threads; without any, jobs are done
    where `jobs` is iterated over. A generator that goes on in a forked process raises RuntimeError.
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
        while (task := pipeline.next_task()) is not None:
            yield task.take_result()
            if os.getpid() != process:
                raise RuntimeError("the threads of this generator are in the process that forked")
    finally:
        # Threads exist neither in a forked process nor when the interpreter ends.
        if os.getpid() == process and not is_finalizing():
            pipeline.close()


class Begun(Generic[Job, Result]):
    """Results as of `in_order`; the first few may be made before their turn.

    A job is taken and done at once in whichever thread calls `begin`. Iterating comes after that.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        do: Callable[[Job], Result],
        ahead: int,
        *,
        threads: int | None = None,
    ) -> None:
        """Take the arguments of `in_order`."""
        self._jobs, self._do = iter(jobs), do
        self._first: deque[Result] = deque()
        self._error: Exception | None = None
        self._rest = in_order(self._jobs, do, ahead, threads=threads)

    def begin(self, count: int) -> None:
        """Do the first `count` jobs. What they raise is raised in place of their results."""
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
        """Drop the results; wait for the jobs that run."""
        self._first.clear()
        self._rest.close()
        _close(self._jobs)
        self._do = _never  # may be a method of the owner, which would refer to itself


class Background(Closing):
    """Does jobs in a thread while the caller goes on, one at a time; a context manager.

    The error of a job is raised by the next call of another method than `close`.
    """

    def __init__(self) -> None:
        """Start no thread yet."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Wait for the job before, and start this one.

        Where the system can't start a thread, the job is done here.
        """
        self.wait()

        def do() -> None:
            try:
                job()
            except BaseException as error:
                self._error = error

        # A daemon: a process that ends for another reason does not wait for a disk.
        self._thread = threading.Thread(target=do, name="llmgpu-background", daemon=True)
        try:
            self._thread.start()
        except (MemoryError, RuntimeError):
            self._thread = None
            job()

    def check(self) -> None:
        """Raise the error of a job that has ended."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait for the job that runs."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def close(self) -> None:
        """Wait for the job that runs; its error is dropped."""
        if self._thread is not None:
            self._thread.join()
        self._thread = self._error = None


def _never(job: object) -> NoReturn:
    raise AssertionError("this is closed")


def _close(jobs: Iterable[object]) -> None:
    if isinstance(jobs, Generator):
        jobs.close()


class _Task(Generic[Job, Result]):
    """A job, and its result or error once it is done."""

    def __init__(self, job: Job | None, number: int) -> None:
        self.number = number
        self._job = job
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._undone = threading.Lock()
        self._undone.acquire()

    @property
    def is_done(self) -> bool:
        return not self._undone.locked()

    def run(self, do: Callable[[Job], Result]) -> bool:
        """Do the job; return whether it succeeds."""
        job, self._job = cast(Job, self._job), None
        succeeds = True
        try:
            self._result = do(job)
        except BaseException as error:
            self._error, succeeds = error, False
        self._undone.release()
        return succeeds

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._undone.release()

    def take_result(self) -> Result:
        """Wait until the job is done; return its result and forget it."""
        with self._undone:
            result, self._result = cast(Result, self._result), None
            error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error  # whose traceback would refer to it from this frame


class _Pipeline(Generic[Job, Result]):
    """The threads and queues of one `in_order`."""

    def __init__(
        self, jobs: Iterator[Job], do: Callable[[Job], Result], ahead: int, most_threads: int
    ) -> None:
        self._jobs, self._do, self._ahead = jobs, do, ahead
        # Tasks that no thread has begun. A thread that finds None ends and puts it back.
        self._waiting: SimpleQueue[_Task[Job, Result] | None] = SimpleQueue()
        # All tasks in the order of the jobs; None after the last.
        self._order: SimpleQueue[_Task[Job, Result] | None] = SimpleQueue()
        self._undone: list[_Task[Job, Result]] = []
        self._last: _Task[Job, Result] = _Task(None, 0)  # for an error of `jobs`, such as no memory
        self._is_last_taken = self._is_closed = False
        self._count = 0  # tasks made
        self._failed: float = inf  # number of the first task known to have failed
        self._threads: list[threading.Thread] = []
        self._most_threads = most_threads
        self._readers: list[threading.Thread] = []  # one or none
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for each job the reader may take

    def start_reader(self) -> None:
        """Take jobs in a thread; leave it to the caller's thread if there can't be another."""
        self._start(self._read, self._readers)
        for _ in range(self._ahead - 1):
            self._room.put(None)

    def next_task(self) -> _Task[Job, Result] | None:
        """Return the next task, None after the last; the result of the one before is used up."""
        if self._readers:
            self._room.put(None)
        else:
            while not self._is_last_taken and self._order.qsize() < self._ahead:
                self._take_job()
        return self._order.get()

    def close(self) -> None:
        """Drop the tasks that have not begun; wait for those that run."""
        self._is_closed = True
        self._waiting.put(None)
        self._room.put(None)
        # A thread whose start was interrupted may not be alive yet; it will find nothing to do.
        for thread in filter(threading.Thread.is_alive, self._readers):
            thread.join(PATIENCE_SECONDS)
        for thread in filter(threading.Thread.is_alive, [*self._threads]):
            thread.join()
        if not self._readers:
            _close(self._jobs)

    def _read(self) -> None:
        """Take jobs as there is room for them."""
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
        """Take a job and let a thread do it; an error of `jobs` comes in place of a result."""
        try:
            job = next(self._jobs)
            task: _Task[Job, Result] = _Task(job, self._count)
            self._count += 1
            self._begin(task)
            self._order.put(task)
        except StopIteration:
            self._is_last_taken = True
            self._order.put(None)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._is_last_taken = True
        self._last.fail(error)
        self._order.put(self._last)
        self._order.put(None)

    def _begin(self, task: _Task[Job, Result]) -> None:
        """Hand a task to a thread, to a new one if all are at work."""
        self._undone = [other for other in self._undone if not other.is_done]
        self._undone.append(task)
        most = min(len(self._undone), self._most_threads)
        if len(self._threads) < most and not self._start(self._work, self._threads):
            self._most_threads = len(self._threads)
        if self._threads:
            self._waiting.put(task)
        else:
            self._run(task)

    def _start(self, target: Callable[[], None], threads: list[threading.Thread]) -> bool:
        """Start a thread; return whether the system can."""
        # Daemons: a process can end while a thread waits for a pipe.
        thread = threading.Thread(target=target, name="llmgpu-job", daemon=True)
        threads.append(thread)  # before its start, in which an interrupt may come
        try:
            thread.start()
        except (MemoryError, RuntimeError):
            threads.remove(thread)
            return False
        return True

    def _work(self) -> None:
        """Do tasks as they come."""
        while (task := self._waiting.get()) is not None:
            self._run(task)
            del task
        self._waiting.put(None)

    def _run(self, task: _Task[Job, Result]) -> None:
        """Do a task unless nobody will take its result."""
        if not (self._is_closed or task.number > self._failed or task.run(self._do)):
            self._failed = min(self._failed, task.number)
