"""Signals that end a command: SIGINT, SIGTERM and SIGHUP, with exit codes 130, 143 and 129.

- The main thread raises KeyboardInterrupt with the signal's number, so that what it does is cleaned
  up.
- Python handles a signal between two of its instructions, so a long call of NumPy or of a driver
  would delay it, and so would waiting for a thread. Another thread learns of the signal at once.
  After GRACE_SECONDS it removes temporary files and ends the process, if that is still there.
- A command that handles signals in its own way, as training does, is left alone, and a signal that
  is ignored, as under nohup, stays so.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from llmgpu.files import remove_unfinished

GRACE_SECONDS = 0.7
_SHOW_CURSOR = "\x1b[?25h"
SIGNALS = {signal.SIGINT, signal.SIGTERM}
if sys.platform != "win32":
    SIGNALS.add(signal.SIGHUP)

_last_acts: list[Callable[[], None]] = []
_saying = threading.Lock()
_was_said = threading.Event()
_holding = threading.Event()
_held: list[int] = []


@contextmanager
def handled_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt for signals that come in the block; in the main thread only.

    It is raised again at the end of the block: code that can't raise, such as a destructor, drops
    the first one, and cleaning up after it may fail with another error.

    After a signal, threads that the block started may still be running, and the process would wait
    for them at its end: it is still ended in time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in SIGNALS}
    handled = {number for number, handler in former.items() if handler != signal.SIG_IGN}
    told, telling = socket.socketpair()
    telling.setblocking(False)
    came: list[int] = []
    done = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _holding.is_set():
            _held.append(number)
        elif not came:  # later ones would disturb the cleaning up
            came.append(number)
            # A driver's object that was being made fails to be deleted, which is nobody's concern.
            sys.unraisablehook = lambda unraisable: None
            raise KeyboardInterrupt(number)

    def watch() -> None:
        with told:
            while data := told.recv(1):
                if signal.getsignal(data[0]) is interrupt and not done.wait(GRACE_SECONDS):
                    end_process(128 + data[0])

    threading.Thread(target=watch, name="llmgpu-signals", daemon=True).start()
    former_descriptor = signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        if came:
            raise KeyboardInterrupt(*came)
        done.set()
        for number in handled:
            signal.signal(number, former[number] or signal.SIG_DFL)
        signal.set_wakeup_fd(former_descriptor)
        telling.close()


@contextmanager
def last_act(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` if the process is ended within the block, which then can't do it itself."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back signals until the end of the block: for what can't be left half done."""
    _holding.set()
    try:
        yield
    finally:
        _holding.clear()
        while _held:
            signal.raise_signal(_held.pop())


def code_of(error: BaseException) -> int:
    """Return the exit code for a KeyboardInterrupt, or for what was raised because of one."""
    cause = error.__cause__ or error
    return 128 + int(next(iter(cause.args), signal.SIGINT))


def say_interrupted() -> None:
    """Say so once, and show the cursor if there is a terminal.

    Not through sys.stderr, which another thread may be using.
    """
    is_free = _saying.acquire(timeout=GRACE_SECONDS)  # not if another thread can't write
    if is_free and not _was_said.is_set() and sys.stderr is not None:  # else 2 may be another file
        _was_said.set()
        with suppress(OSError):
            os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}interrupted\n".encode())
    if is_free:
        _saying.release()


def end_process(code: int) -> None:
    """End the process without waiting for its main thread, or for what Python does at its end."""
    for act in _last_acts:
        with suppress(Exception):
            act()
    remove_unfinished()
    say_interrupted()
    os._exit(code)
