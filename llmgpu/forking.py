"""Forks wait while another thread opens a device, an encoder or the tables of a vocabulary.

A child process has copies of its parent's locks, but only one thread. A lock that another thread
held during the fork, such as the lock of a module being imported, stays locked in the child.

This module uses no locks of its own, since an interrupt could leave a lock locked. Its lists
are changed by single operations that no other thread can interrupt.
"""

from __future__ import annotations

# These two modules register fork hooks that take locks. A block of `delaying_forks` may need these
# locks, so the hook of this module must run before their hooks. Hooks run in reverse order of
# registration, so the two modules are imported first.
import concurrent.futures.thread  # noqa: F401
import functools
import logging  # noqa: F401
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property  # noqa: TID251
else:

    class cached_property(functools.cached_property):  # noqa: N801, TID251
        """A `functools.cached_property` without its lock, as in Python 3.12.

        All instances share that lock. A child process that is forked while a thread computes a
        value of any instance would wait for the lock forever.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value


LONGEST_WAIT = 10.0  # seconds; a driver may hang
_PAUSE = 1e-3  # seconds
_INTERRUPT_AFTER = 0.05  # time in seconds after which all hooks of the fork have returned
# Threads in a block of `delaying_forks`, one entry for each block.
_delaying: list[threading.Thread] = []
_forking: list[threading.Thread] = []  # forking threads; no block begins while one is listed
_interrupted: list[threading.Thread] = []  # forking threads that an interrupt has reached


@contextmanager
def delaying_forks() -> Iterator[None]:
    """Make forks in other threads wait for the end of the block, up to LONGEST_WAIT.

    The block must not wait for a forking thread. A fork in the thread of the block does not wait.
    """
    thread, end = threading.current_thread(), time.monotonic() + LONGEST_WAIT
    is_nested = thread in _delaying  # the fork already waits for the outer block
    _delaying.append(thread)
    try:
        while not is_nested and _others(_forking, thread) and time.monotonic() < end:
            _delaying.remove(thread)
            time.sleep(_PAUSE)
            _delaying.append(thread)
        yield
    finally:
        with suppress(ValueError):
            _delaying.remove(thread)


def _others(threads: Sequence[threading.Thread], thread: threading.Thread) -> bool:
    """Whether `threads` lists a running thread other than `thread`."""
    return any(other is not thread and other.is_alive() for other in [*threads])


def _let_blocks_begin(thread: threading.Thread) -> None:
    while thread in _forking:
        _forking.remove(thread)


def _begin_fork() -> None:
    """Wait until no other thread is in a `delaying_forks` block.

    New blocks are held back, but only for some time: a running block may wait for a thread that
    has yet to enter a block. The time doubles with each round, so threads that keep entering blocks
    delay the fork by about twice their longest block.
    """
    thread, end = threading.current_thread(), time.monotonic() + LONGEST_WAIT
    hold = _PAUSE
    while True:
        try:
            _forking.append(thread)
            released = min(end, time.monotonic() + hold)
            while (is_delayed := _others(_delaying, thread)) and time.monotonic() < released:
                time.sleep(_PAUSE)
            if not is_delayed or released == end:
                return
            _let_blocks_begin(thread)
            time.sleep(_PAUSE)
            hold *= 2
        except KeyboardInterrupt:  # Python would drop an exception raised here, and fork at once
            _interrupted.append(thread)


def _end_fork_in_parent() -> None:
    thread = threading.current_thread()
    _let_blocks_begin(thread)
    if thread in _interrupted:
        _interrupted.clear()
        # A signal also interrupts a waiting system call; `_thread.interrupt_main` does not.
        threading.Timer(_INTERRUPT_AFTER, os.kill, (os.getpid(), signal.SIGINT)).start()


def _end_fork_in_child() -> None:
    thread = threading.current_thread()
    _delaying[:] = [own for own in _delaying if own is thread]
    _forking.clear()
    _interrupted.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_begin_fork,
        after_in_parent=_end_fork_in_parent,
        after_in_child=_end_fork_in_child,
    )
