"""Signals that ask a run to stop, which it does after the current step."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    _STOP_SIGNALS.append(signal.SIGHUP)


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield the numbers of the signals that asked the run to stop; in the main thread only.

    Ctrl-C asks for it, and so do SIGTERM, which schedulers send before they end a job, and SIGHUP
    unless it is ignored. A second signal does not wait: it does what it does elsewhere.
    """
    asked: list[int] = []
    former: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in former.items():
            if handler is not None:  # one that was not set from Python can't be restored
                signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            restore()
            signal.raise_signal(number)

    if threading.current_thread() is threading.main_thread():
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                former[number] = signal.signal(number, note)
    try:
        yield asked
    finally:
        restore()
