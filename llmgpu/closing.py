"""Closing objects at the end of a ``with`` block, or after the last reference is gone."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self


class Closing(ABC):
    """An object with resources, which the end of a ``with`` block releases."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def close_with(
    owner: Any, close: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Call `close` when `owner` is freed or the process ends, but not in a forked process.

    A forked process lacks the threads and processes for which `close` may wait. Returns a
    finalizer: calling the finalizer closes at once.
    """
    return weakref.finalize(owner, _call_in, os.getpid(), close, arguments)


def _call_in(process: int, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    if process == os.getpid():
        function(*arguments)
