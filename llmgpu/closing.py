"""Objects that release resources at the end of a ``with`` block or after their last reference.

A step that fails is undone by `undoing`.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self


class Closing(ABC):
    """An object whose resources are released at the end of a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def undoing(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        undo()
        raise


def close_with(
    owner: Any, close: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Call `close` when `owner` is freed or the process ends, but not in a forked process.

    In a forked process `close` could wait forever for threads that exist only in the parent. Call
    the returned finalizer to close at once.
    """
    return weakref.finalize(owner, _call_in, os.getpid(), close, arguments)


def _call_in(process: int, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    if process == os.getpid():
        function(*arguments)
