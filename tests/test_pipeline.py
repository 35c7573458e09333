"""Jobs in threads, ended in every state: by errors, by closing, by interrupts, in forks."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from queue import SimpleQueue
from typing import Any

import pytest

from llmgpu.pipeline import PATIENCE_SECONDS, Background, Begun, in_order

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

LONG = 20.0  # seconds, by when a test has failed
by_either = pytest.mark.parametrize("reader_thread", [False, True], ids=["caller", "reader"])


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(LONG if thread.name == "reads a pipe" else 0)
    assert not [thread for thread in left if thread.is_alive()]


def square(number: int) -> int:
    return number * number


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(1e-3)


class Gate:
    """Jobs that wait until the test lets them go on."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.open = threading.Event()

    def __call__(self, number: int) -> int:
        self.begun.append(number)
        assert self.open.wait(LONG)
        self.ended.append(number)
        return number


@by_either
@pytest.mark.parametrize("ahead", [0, 1, 2, 5, 50])
def test_results_are_in_the_order_of_the_jobs(ahead: int, reader_thread: bool) -> None:
    def do(number: int) -> int:
        time.sleep(1e-3 * (number % 3))
        return number * number

    found = in_order(range(30), do, ahead, reader_thread=reader_thread)
    assert list(found) == [number * number for number in range(30)]
    assert list(in_order([], do, ahead, reader_thread=reader_thread)) == []


@by_either
def test_jobs_run_in_several_threads_at_a_time(reader_thread: bool) -> None:
    together = threading.Barrier(3)

    def do(number: int) -> int:
        together.wait(LONG)
        return threading.get_ident()

    found = list(in_order(range(6), do, 3, reader_thread=reader_thread))
    assert len(set(found)) == 3 and threading.get_ident() not in found


@by_either
def test_one_thread_does_one_job_after_the_other(reader_thread: bool) -> None:
    running, found = threading.Lock(), []

    def do(number: int) -> int:
        assert running.acquire(blocking=False)
        time.sleep(1e-3)
        found.append(number)
        running.release()
        return threading.get_ident()

    threads = set(in_order(range(20), do, 5, threads=1, reader_thread=reader_thread))
    assert found == [*range(20)]
    assert len(threads) == 1 and threading.get_ident() not in threads


@by_either
def test_without_threads_jobs_are_done_where_they_are_taken(reader_thread: bool) -> None:
    def jobs() -> Iterator[int]:
        for _ in range(9):
            yield threading.get_ident()

    def do(taken_in: int) -> bool:
        return taken_in == threading.get_ident()

    before = threading.active_count()
    with closing(in_order(jobs(), do, 3, threads=0, reader_thread=reader_thread)) as results:
        assert next(results)
        assert threading.active_count() == before + reader_thread
        assert all(results)


@by_either
@pytest.mark.parametrize("threads", [0, 1])
def test_no_job_begins_after_one_that_failed(threads: int, reader_thread: bool) -> None:
    done: list[int] = []

    def do(number: int) -> None:
        if number == 3:
            raise ValueError
        done.append(number)

    for jobs, work in ((range(20), do), (map(do, range(20)), id)):  # a map goes on after errors
        done.clear()
        with pytest.raises(ValueError):
            for _ in in_order(jobs, work, 6, threads=threads, reader_thread=reader_thread):
                time.sleep(0.01)
        assert done == [0, 1, 2]


@by_either
@pytest.mark.parametrize("ahead", [0, 1])
def test_without_jobs_ahead_the_caller_does_each(ahead: int, reader_thread: bool) -> None:
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(3):
            taken.append(threading.get_ident())
            yield number

    own = threading.get_ident()
    results = in_order(jobs(), lambda _: threading.get_ident(), ahead, reader_thread=reader_thread)
    assert next(results) == own and taken == [own]
    assert list(results) == [own, own] and taken == [own] * 3


def test_jobs_are_taken_in_the_callers_thread_or_in_one_other() -> None:
    def jobs() -> Iterator[int]:
        for _ in range(5):
            yield threading.get_ident()

    assert set(in_order(jobs(), int, 2)) == {threading.get_ident()}
    (reader,) = set(in_order(jobs(), int, 2, reader_thread=True))
    assert reader != threading.get_ident()


@by_either
def test_no_more_jobs_are_taken_than_may_be_ahead(reader_thread: bool) -> None:
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            yield number

    most = 4
    for number in in_order(jobs(), square, most, reader_thread=reader_thread):
        time.sleep(5e-3)
        used = int(number**0.5)  # results before the one in hand
        assert len(taken) <= used + most


@by_either
def test_a_thread_starts_only_if_all_are_at_work(reader_thread: bool) -> None:
    done: list[int] = []
    before = threading.active_count()

    def jobs() -> Iterator[int]:
        for number in range(20):
            wait_until(lambda number=number: len(done) == number)
            time.sleep(2e-3)  # now the thread is idle
            yield number

    with closing(in_order(jobs(), done.append, 16, reader_thread=reader_thread)) as results:
        for _ in range(19):
            next(results)
            assert threading.active_count() <= before + 1 + reader_thread


@by_either
@pytest.mark.parametrize("ahead", [0, 2, 4, 9])
def test_an_error_of_a_job_comes_in_place_of_its_result(ahead: int, reader_thread: bool) -> None:
    def do(number: int) -> int:
        if number == 5:
            raise ValueError("five")
        time.sleep(1e-3 * (5 - number) if number < 5 else 0)
        return number

    found: list[int] = []
    with pytest.raises(ValueError, match="five"):
        for number in in_order(range(9), do, ahead, reader_thread=reader_thread):
            found.append(number)
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("error", "reader_thread"),
    [
        (ValueError, False),
        (ValueError, True),
        (MemoryError, False),
        (MemoryError, True),
        (SystemExit, True),  # which ends the caller's thread at once
    ],
)
@pytest.mark.parametrize("ahead", [0, 2, 9])
def test_an_error_of_the_iterator_of_jobs_comes_after_earlier_results(
    ahead: int, error: type[BaseException], reader_thread: bool
) -> None:
    def jobs() -> Iterator[int]:
        yield from range(3)
        raise error("no more")

    def do(number: int) -> int:
        time.sleep(5e-3)
        return number

    found: list[int] = []
    with pytest.raises(error, match="no more"):
        for number in in_order(jobs(), do, ahead, reader_thread=reader_thread):
            found.append(number)
    assert found == [0, 1, 2]


@by_either
def test_a_job_that_ends_an_iteration_or_the_process_ends_neither(reader_thread: bool) -> None:
    for error in (StopIteration, SystemExit, KeyboardInterrupt):

        def do(number: int, error: type[BaseException] = error) -> int:
            raise error

        # Python makes a RuntimeError of a StopIteration that leaves a generator.
        with pytest.raises(RuntimeError if error is StopIteration else error):
            next(in_order(range(3), do, 2, reader_thread=reader_thread))


@by_either
def test_an_error_of_the_caller_ends_the_threads(reader_thread: bool) -> None:
    with pytest.raises(ZeroDivisionError):
        for number in in_order(range(100), square, 4, reader_thread=reader_thread):
            _ = 1 // (number - 4)


@by_either
@pytest.mark.parametrize("ahead", [0, 3])
def test_a_chain_ends_with_its_end(ahead: int, reader_thread: bool) -> None:
    closed, before = threading.Event(), threading.active_count()

    def jobs() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.set()

    source = jobs()
    first = in_order(source, square, ahead, reader_thread=reader_thread)
    second = in_order(first, lambda number: 1 // (9 - number), ahead)
    with pytest.raises(ZeroDivisionError):
        list(second)
    assert closed.wait(LONG if reader_thread else 0)
    # The test still refers to `source` and `first`.
    wait_until(lambda: threading.active_count() == before)


@by_either
def test_closing_drops_waiting_jobs_and_waits_for_running_ones(reader_thread: bool) -> None:
    gate, ended = Gate(), []

    def do(number: int) -> int:
        if number == 0:
            return 0
        if number < 3:
            return gate(number)
        time.sleep(LONG)  # no thread may come so far
        return number

    # Two threads for four jobs: two of the jobs wait.
    real = threading.Thread.start
    with pytest.MonkeyPatch.context() as patched:
        started: list[threading.Thread] = []

        def start(thread: threading.Thread) -> None:
            if len(started) == 2 + reader_thread:
                raise RuntimeError("can't start new thread")
            real(thread)
            started.append(thread)

        patched.setattr(threading.Thread, "start", start)
        results = in_order(range(9), do, 5, reader_thread=reader_thread)
        assert next(results) == 0
        wait_until(lambda: len(gate.begun) == 2)

    def close() -> None:
        results.close()
        ended.append(list(gate.ended))

    closer = threading.Thread(target=close)
    closer.start()
    time.sleep(3 * PATIENCE_SECONDS)
    assert not ended
    gate.open.set()
    closer.join(LONG)
    assert sorted(ended[0]) == [1, 2] and len(gate.begun) == 2


def test_closing_does_not_wait_for_a_pipe_and_drops_what_comes_from_it() -> None:
    read, write = os.pipe()
    done: list[bytes] = []

    def do(block: bytes) -> bytes:
        done.append(block)
        return block

    def jobs() -> Iterator[bytes]:
        threading.current_thread().name = "reads a pipe"
        while block := os.read(read, 10):
            yield block

    results = in_order(jobs(), do, 4, reader_thread=True)
    os.write(write, b"first")
    assert next(results) == b"first"  # while the pipe is empty
    begin = time.monotonic()
    results.close()
    assert time.monotonic() - begin < LONG / 2
    (reader,) = [each for each in threading.enumerate() if each.name == "reads a pipe"]
    os.write(write, b"second")
    os.close(write)
    reader.join(LONG)
    assert not reader.is_alive() and done == [b"first"]
    os.close(read)


@by_either
def test_a_generator_that_nobody_refers_to_ends_its_threads(reader_thread: bool) -> None:
    results = in_order(range(100), square, 4, reader_thread=reader_thread)
    next(results)
    del results  # and the fixture looks for threads


@by_either
def test_nothing_of_what_was_yielded_or_raised_is_kept(reader_thread: bool) -> None:
    class Thing:
        pass

    class NoThingError(Exception):
        pass

    def do(number: int) -> Thing:
        if number == 3:
            raise NoThingError
        return Thing()

    gc.disable()
    try:
        results = in_order(range(4), do, 2, reader_thread=reader_thread)
        for _ in range(3):
            thing = weakref.ref(next(results))
            assert thing() is None
        with pytest.raises(NoThingError) as caught:
            next(results)
        error = weakref.ref(caught.value)
        del caught, results
        wait_until(lambda: error() is None)
    finally:
        gc.enable()


@by_either
def test_a_job_is_dropped_as_soon_as_it_is_done(reader_thread: bool) -> None:
    class Thing:
        pass

    things: list[weakref.ref[Thing]] = []

    def jobs() -> Iterator[Thing]:
        for _ in range(9):
            thing = Thing()
            things.append(weakref.ref(thing))
            yield thing
            del thing

    with closing(in_order(jobs(), lambda _: None, 3, reader_thread=reader_thread)) as results:
        next(results)
        wait_until(lambda: len(things) >= 3 and not any(thing() for thing in things[:2]))


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
@pytest.mark.parametrize("threads", [0, 1, 2, 3])
@by_either
def test_fewer_threads_than_asked_for_do_the_same(
    threads: int, reader_thread: bool, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, started, refused = threading.Thread.start, [], []

    def start(thread: threading.Thread) -> None:
        if len(started) == threads:
            refused.append(thread)
            raise error("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    found = in_order(range(20), square, 5, reader_thread=reader_thread)
    assert list(found) == [number * number for number in range(20)]
    assert len(started) <= threads
    assert len(refused) <= 1 + (threads == 0 and reader_thread)  # it doesn't try again and again


@by_either
def test_no_memory_for_a_job_is_an_error_in_its_place(
    reader_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmgpu import pipeline

    made = 0

    def make_queue() -> SimpleQueue[Any]:
        nonlocal made
        made += 1
        if made == 5 + 4:  # five are made in advance
            raise MemoryError
        return SimpleQueue()

    monkeypatch.setattr(pipeline, "SimpleQueue", make_queue)
    found: list[int] = []
    with pytest.raises(MemoryError):
        for number in in_order(range(9), square, 3, reader_thread=reader_thread):
            found.append(number)
    assert found == [0, 1, 4]


@by_either
def test_an_interrupt_of_the_caller_ends_the_threads(reader_thread: bool) -> None:
    gate, own = Gate(), threading.get_ident()
    results = in_order(range(9), gate, 3, reader_thread=reader_thread)

    def interrupt() -> None:
        wait_until(lambda: len(gate.begun) == 3)
        signal.pthread_kill(own, signal.SIGINT)
        time.sleep(0.05)
        gate.open.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        next(results)
    thread.join(LONG)
    assert sorted(gate.ended) == [0, 1, 2]


def test_an_interrupt_in_the_iterator_of_jobs_comes_at_once() -> None:
    done = []

    def jobs() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for number in in_order(jobs(), square, 3):
            done.append(number)
    assert not done


@pytest.mark.parametrize("count", [0, 2, 5, 9])
@pytest.mark.parametrize("failing", [None, 1, 4, 7])
def test_jobs_may_begin_before_their_turn(count: int, failing: int | None) -> None:
    done: list[int] = []

    def do(number: int) -> int:
        if number == failing:
            raise ValueError
        done.append(number)
        return number

    results, found = Begun(range(9), do, 3), []
    results.begin(count)
    assert done == [*range(min(count, 9 if failing is None else failing))]
    with closing(results):
        if failing is None:
            found = [*results]
        else:
            with pytest.raises(ValueError):
                for number in results:
                    found.append(number)
    assert found == [*range(9 if failing is None else failing)]


@pytest.mark.parametrize("taken", [0, 3])
def test_closing_ends_what_began_before_its_turn(taken: int) -> None:
    jobs, before = (number for number in range(9)), threading.active_count()
    results = Begun(jobs, square, 3)
    results.begin(2)
    found = iter(results)
    assert [next(found) for _ in range(taken)] == [0, 1, 4][:taken]
    results.close()
    assert threading.active_count() == before and [*jobs, *found] == []


def run_script(script: str, *, interrupt: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a script that imports in_order; interrupt it once it has written a line."""
    head = "import os, sys, threading, time\nfrom llmgpu.pipeline import in_order\n"
    with subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline() if interrupt else ""
            if interrupt:
                process.send_signal(signal.SIGINT)
            process.wait(LONG)  # with its standard input open
            out, err = process.communicate(timeout=LONG)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, line + out, err)


@by_either
@pytest.mark.parametrize("times", range(3))
def test_a_process_that_is_interrupted_ends(reader_thread: bool, times: int) -> None:
    done = run_script(
        f"""
        def do(number):
            time.sleep(0.01)
            return number

        try:
            for number in in_order(range(10**6), do, 4, reader_thread={reader_thread}):
                if number == {3 * times}:
                    print("begun", flush=True)
        except KeyboardInterrupt:
            print([each.name for each in threading.enumerate()])
        """,
        interrupt=True,
    )
    assert (done.returncode, done.stdout) == (0, "begun\n['MainThread']\n"), done.stderr


def test_a_process_that_waits_for_a_pipe_is_interrupted() -> None:
    done = run_script(
        """
        blocks = iter(lambda: os.read(0, 10), b"")
        print("begun", flush=True)
        for block in in_order(blocks, len, 4, reader_thread=True):
            pass
        """,
        interrupt=True,
    )
    assert done.returncode == -signal.SIGINT and "KeyboardInterrupt" in done.stderr


@by_either
def test_a_process_ends_with_a_generator_open(reader_thread: bool) -> None:
    done = run_script(
        f"""
        results = in_order(range(9), float, 4, reader_thread={reader_thread})
        print(next(results))
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0.0\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@by_either
def test_a_forked_process_has_its_own(reader_thread: bool) -> None:
    done = run_script(
        f"""
        go = threading.Event()
        go.set()

        def do(number):
            go.wait()
            return number * number

        results = in_order(range(9), do, 4, reader_thread={reader_thread})
        first = next(results)
        go.clear()
        child = os.fork()
        if not child:
            found = list(in_order(range(9), float, 4, reader_thread={reader_thread}))
            assert found == [*map(float, range(9))]
            try:
                next(results)
            except RuntimeError as error:
                print(error, flush=True)
            del results  # which waits for nothing
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        go.set()
        print(os.waitstatus_to_exitcode(status), [first, *results] == [n * n for n in range(9)])
        """
    )
    why = "the threads of this generator are in the process that forked"
    assert (done.returncode, done.stdout) == (0, f"{why}\n7 True\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@by_either
def test_a_forked_process_drops_an_open_generator_at_once(reader_thread: bool) -> None:
    done = run_script(
        f"""
        go = threading.Event()
        results = in_order(range(9), lambda n: n and go.wait(), 4, reader_thread={reader_thread})
        next(results)
        child = os.fork()
        if not child:
            del results
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        go.set()
        """
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_the_caller_goes_on_while_a_job_runs_beside_it() -> None:
    go, done = threading.Event(), list[int]()

    def job(number: int) -> None:
        go.wait()
        done.append(number)

    with Background() as background:
        background.start(lambda: job(1))
        background.check()
        assert not done
        go.set()
        background.start(lambda: job(2))
        assert done[0] == 1  # one job at a time
    assert done == [1, 2]  # closing waits


@pytest.mark.parametrize("ending", ["check", "wait", "start"])
def test_the_error_of_a_job_beside_the_caller_is_raised_once(ending: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with Background() as background:
        background.start(fail)
        for thread in background._threads:
            thread.join()
        with pytest.raises(ZeroDivisionError):
            background.start(fail) if ending == "start" else getattr(background, ending)()
        background.check()
        background.start(fail)  # closing drops the error


def test_a_job_is_done_here_where_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[threading.Thread] = []
    with Background() as background:
        background.start(lambda: done.append(threading.current_thread()))
        assert done == [threading.current_thread()]
        with pytest.raises(ZeroDivisionError):
            background.start(lambda: 1 // 0)


def test_results_are_dropped_while_another_thread_waits_for_one() -> None:
    entered, ready, found = threading.Event(), threading.Event(), list[int]()

    def jobs() -> Iterator[int]:
        entered.set()
        ready.wait()
        yield 7

    results = Begun(jobs(), lambda job: job, 0)
    thread = threading.Thread(target=lambda: found.extend(results))
    thread.start()
    entered.wait()
    try:
        results.close()
    finally:
        ready.set()
        thread.join()
    assert found == [7]
