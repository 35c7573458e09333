"""Forks while other threads are busy."""

from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from llmgpu import forking
from llmgpu.forking import cached_property, delaying_forks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
SECONDS = 5  # after which a lock is not expected to become free


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests that need the limit say so: others would pass by it."""
    monkeypatch.setattr(forking, "LONGEST_WAIT", math.inf)


def block() -> None:
    with delaying_forks():
        pass


def fork_finds_free(*locks: threading.Lock) -> bool:
    """Whether a forked process finds locks free, and threads of its own can begin blocks."""
    child = os.fork()
    if not child:
        free = all(lock.acquire(timeout=SECONDS) for lock in locks)
        thread = threading.Thread(target=block, daemon=True)
        thread.start()
        thread.join(SECONDS)
        os._exit(not free or thread.is_alive())
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_waits_for_the_blocks_of_other_threads() -> None:
    begun = threading.Barrier(3)
    locks = [threading.Lock(), threading.Lock()]

    def work(lock: threading.Lock, seconds: float) -> None:
        with delaying_forks(), lock:
            block()
            begun.wait()
            time.sleep(seconds)

    threads = [
        threading.Thread(target=work, args=(lock, seconds))
        for lock, seconds in zip(locks, (0.1, 0.4), strict=True)
    ]
    for thread in threads:
        thread.start()
    begun.wait()
    with delaying_forks():  # its own block is not waited for
        assert fork_finds_free(*locks)
    for thread in threads:
        thread.join()


def test_a_block_that_fails_delays_no_fork() -> None:
    def fail() -> None:
        with pytest.raises(ZeroDivisionError), delaying_forks():
            raise ZeroDivisionError

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert fork_finds_free()


def test_blocks_begin_again_after_a_fork() -> None:
    assert fork_finds_free()
    thread = threading.Thread(target=block, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_an_interrupt_is_raised_after_the_fork_that_waits() -> None:
    begun, lock = threading.Event(), threading.Lock()

    def work() -> None:
        with delaying_forks(), lock:
            begun.set()
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    raised, in_time = threading.Event(), []
    reading, writing = os.pipe()

    def end_the_read() -> None:
        in_time.append(raised.wait(12 * SECONDS))
        os.close(writing)

    thread, forked = threading.Thread(target=work), []
    ending = threading.Thread(target=end_the_read)
    thread.start()
    begun.wait()
    with pytest.raises(KeyboardInterrupt):
        forked.append(fork_finds_free(lock))
        ending.start()
        os.read(reading, 1)  # waits until the interrupt comes
    raised.set()
    thread.join()
    if forked:
        ending.join()
        os.close(reading)
        assert in_time == [True]
    assert forked == [True] or not forked  # raised while waiting for the child
    assert fork_finds_free()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_computes_cached_values_although_a_thread_of_its_parent_was_computing_one() -> None:
    begun, end = threading.Event(), threading.Event()

    class Values:
        @cached_property
        def value(self) -> int:
            if not begun.is_set():
                begun.set()
                end.wait()
            return 7

    values = Values()
    thread = threading.Thread(target=lambda: values.value)
    thread.start()
    begun.wait()
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)  # ends a child that waits for a lock
        os._exit(Values().value != 7)
    status = os.waitpid(child, 0)[1]
    end.set()
    thread.join()
    assert status == 0
    assert values.__dict__ == {"value": 7}
    assert isinstance(Values.value, functools.cached_property)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "LONGEST_WAIT", 0.2)
    begun, forked = threading.Event(), threading.Event()

    def work() -> None:
        with delaying_forks():
            begun.set()
            forked.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun.wait()
    assert fork_finds_free()
    forked.set()
    thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_block_may_start_threads_and_log_while_a_fork_waits() -> None:
    code = (
        "import os, threading, time\n"
        "from llmgpu.forking import delaying_forks\n"
        "begun = threading.Event()\n"
        "def work():\n"
        "    with delaying_forks():\n"
        "        begun.set()\n"
        "        time.sleep(0.5)\n"
        "        import concurrent.futures, logging\n"
        "        with concurrent.futures.ThreadPoolExecutor(1) as threads:\n"
        "            threads.submit(logging.getLogger('a').warning, 'done').result()\n"
        "threading.Thread(target=work).start()\n"
        "begun.wait()\n"
        "import concurrent.futures.thread, logging\n"
        "child = os.fork()\n"
        "os._exit(0 if not child else os.waitpid(child, 0)[1])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "done\n")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_threads_that_begin_blocks_all_the_time_do_not_starve_a_fork() -> None:
    """Without holding back new blocks there would hardly be a moment without any."""
    has_ended, lock = threading.Event(), threading.Lock()

    def work() -> None:
        while not has_ended.is_set():
            with delaying_forks():
                time.sleep(0.02)
                with lock:
                    block()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(16)]
    for thread in threads:
        thread.start()
    try:
        assert all(fork_finds_free(lock) for _ in range(5))
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_block_may_wait_for_a_thread_that_begins_one_while_a_fork_waits() -> None:
    begun, lock = threading.Event(), threading.Lock()

    def work() -> None:
        with delaying_forks(), lock:
            begun.set()
            time.sleep(0.2)
            thread = threading.Thread(target=block, daemon=True)
            thread.start()
            thread.join()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    assert fork_finds_free(lock)
    thread.join()
