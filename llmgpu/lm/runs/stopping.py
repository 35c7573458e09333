"""Stopping a long run cleanly.

Ctrl-C asks for it, and so does SIGTERM, which schedulers send before they end a job. A second
Ctrl-C does not wait.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the run was asked to stop during the block; in the main thread only."""

    def __init__(self) -> None:
        """Begin without a request."""
        self.requested = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        """Take over the signals."""
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the former handlers, except those that were not set from Python."""
        for number, handler in self._former.items():
            if handler is not None:
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
