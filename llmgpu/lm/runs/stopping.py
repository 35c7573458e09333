"""Ending a long run in good order: Ctrl-C asks for it, a second Ctrl-C does not wait."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """Whether the user has asked to stop, while the block lasts; in the main thread only."""

    def __init__(self) -> None:
        """Begin without a request."""
        self.requested = False
        self._former: Any = None

    def __enter__(self) -> StopRequest:
        """Take over SIGINT."""
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        """Give SIGINT back."""
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
