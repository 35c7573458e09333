"""Signals that end a command: SIGINT, SIGTERM and SIGHUP, with exit codes 130, 143 and 129.

- The main thread raises KeyboardInterrupt with the signal's number, so that all context managers
  clean up.
- Python handles a signal between two of its instructions. A long call of NumPy or of a driver would
  delay the signal, and so would waiting for a thread. Another thread therefore receives the signal
  at once. If the process still runs after GRACE_SECONDS, this thread removes temporary files and
  ends the process.
- A command that sets its own signal handlers, such as training, keeps these handlers. An ignored
  signal, as under nohup, stays ignored.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from llmgpu.errors import interrupted_line
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
    """Raise KeyboardInterrupt for signals during the block. Use it only in the main thread.

    The end of the block raises KeyboardInterrupt again, because the first one may get lost: code
    that can't raise, such as a destructor, drops the exception, and a failing clean-up replaces the
    exception by another error.

    After a signal, threads that the block started may still be running, and Python would wait for
    these threads at exit. So the watching thread keeps running, and ends the process after
    GRACE_SECONDS.
    """
    former = {number: signal.getsignal(number) for number in SIGNALS}
    handled = {number for number, handler in former.items() if handler != signal.SIG_IGN}
    told, telling = os.pipe()
    if os.name == "posix":  # Windows has no such pipes, and needs none
        os.set_blocking(telling, False)
    came: list[int] = []
    done = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _holding.is_set():
            _held.append(number)
        elif not came:  # later signals would disturb the clean-up
            came.append(number)
            # Deleting a driver's half-made object fails, and Python would print a useless warning.
            sys.unraisablehook = lambda unraisable: None
            raise KeyboardInterrupt(number)

    def watch() -> None:
        while data := os.read(told, 1):
            if signal.getsignal(data[0]) is interrupt and not done.wait(GRACE_SECONDS):
                end_process(128 + data[0])
        os.close(told)

    # Python writes the number of each signal to the pipe, which wakes the watching thread.
    threading.Thread(target=watch, name="llmgpu-signals", daemon=True).start()
    former_descriptor = signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
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
        os.close(telling)


@contextmanager
def last_act(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` if `end_process` ends the process during the block.

    `end_process` skips the clean-up of the block, so `act` does the work that must not be skipped.
    """
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


@contextmanager
def held_back() -> Iterator[None]:
    """Delay signals until the end of the block, so that none arrives between its steps."""
    _holding.set()
    try:
        yield
    finally:
        _holding.clear()
        while _held:
            signal.raise_signal(_held.pop())


def code_of(error: BaseException) -> int:
    """Return the exit code for a KeyboardInterrupt, or for an error that was caused by one."""
    cause = error.__cause__ or error
    return 128 + int(next(iter(cause.args), signal.SIGINT))


def say_interrupted(code: int) -> None:
    """Print "interrupted" once, and show the cursor if there is a terminal.

    code: the exit code, for the line of JSON that is printed if errors are JSON.

    The text is written to the descriptor, because another thread may hold the lock of sys.stderr.
    """
    is_free = _saying.acquire(timeout=GRACE_SECONDS)  # False if another thread hangs in a write
    # If sys.stderr is None, descriptor 2 may belong to another file.
    if is_free and not _was_said.is_set() and sys.stderr is not None:
        _was_said.set()
        with suppress(OSError):
            cursor = _SHOW_CURSOR if os.isatty(2) else ""
            os.write(2, f"{cursor}{interrupted_line(code)}\n".encode())
    if is_free:
        _saying.release()


def end_process(code: int) -> None:
    """End the process without waiting for its main thread or for Python's clean-up at exit."""
    for act in _last_acts:
        with suppress(Exception):
            act()
    remove_unfinished()
    say_interrupted(code)
    os._exit(code)
