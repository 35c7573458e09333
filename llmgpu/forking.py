"""Forks that wait for what other threads are doing.

A child process has none of its parent's other threads, but it has their locks as they were: those
of a module being imported, say, would never be free there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module

_changed = threading.Condition()
_delaying: list[int] = []  # ids of the threads in a block of `delaying_forks`


@contextmanager
def delaying_forks() -> Iterator[None]:
    """Let a fork in another thread wait for the end of the block, which must not wait for it."""
    _watch_forks()
    thread = threading.get_ident()
    with _changed:
        _delaying.append(thread)
    try:
        yield
    finally:
        with _changed:
            _delaying.remove(thread)
            _changed.notify_all()


@cache
def _watch_forks() -> None:
    # What is registered last comes first. A fork takes the locks of these modules as well, and it
    # must not do so before it waits for blocks that need them.
    for name in ("concurrent.futures.thread", "logging"):
        import_module(name)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_begin_fork, after_in_parent=_changed.release, after_in_child=_changed.release
        )


def _begin_fork() -> None:
    thread = threading.get_ident()
    _changed.acquire()  # no block begins before the fork is done
    _changed.wait_for(lambda: all(other == thread for other in _delaying))
