"""Closing things at the end of a ``with`` block, or when nobody refers to them any more."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self


class Closing(ABC):
    """Something to be closed; a context manager that does it."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def close_with(
    owner: Any, close: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Call a function when `owner` goes, but not in a process forked from this one.

    That lacks the threads and processes for which closing may wait. Returns what calls it sooner.
    """
    return weakref.finalize(owner, _call_in, os.getpid(), close, arguments)


def _call_in(process: int, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    if process == os.getpid():
        function(*arguments)
