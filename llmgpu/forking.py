"""Forks wait while another thread opens a device, an encoder or the tables of a vocabulary.

A child process has copies of its parent's locks, but only the forking thread. A lock held by
another thread during the fork, such as the lock of a module being imported, is never released in
the child.

This module uses no lock, since an interrupt could leave a lock taken: each list changes in one
step.
"""

from __future__ import annotations

import _thread

# The hooks of these modules take locks that blocks may need, so a fork has to wait for the blocks
# first: hooks are called in reverse order, and this module registers its own after these imports.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

LONGEST_WAIT = 10.0  # seconds; a driver may hang
_PAUSE = 1e-3  # seconds
_INTERRUPT_AFTER = 0.05  # seconds, by when all hooks of the fork have returned
_delaying: list[threading.Thread] = []  # in a block of `delaying_forks`, once for each
_forking: list[threading.Thread] = []  # for which no block begins
_interrupted: list[threading.Thread] = []  # while they waited


@contextmanager
def delaying_forks() -> Iterator[None]:
    """Make forks in other threads wait for the end of the block, up to LONGEST_WAIT.

    The block must not wait for a forking thread. A fork in the thread of the block does not wait.
    """
    thread, end = threading.current_thread(), time.monotonic() + LONGEST_WAIT
    is_nested = thread in _delaying  # the fork waits for the outer block
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
    """Whether another thread is listed and still runs."""
    return any(other is not thread and other.is_alive() for other in [*threads])


def _let_blocks_begin(thread: threading.Thread) -> None:
    while thread in _forking:
        _forking.remove(thread)


def _begin_fork() -> None:
    """Wait until no other thread is in a block.

    A block that is entered must be able to end, and may wait for a thread that has yet to enter
    one. So new blocks are held back for a while only, and then let in. The while doubles each time:
    threads that enter blocks all the time delay the fork by about twice their longest block.
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
        threading.Timer(_INTERRUPT_AFTER, _thread.interrupt_main).start()


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
