"""Calls to the file system of which the nth fails, or ends the process."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from typing import Any

CALLS = ("fsync", "rename", "replace", "rmdir", "unlink", "mkdir", "truncate", "preadv")
KILLED = 78  # exit code


class Faults:
    """Counts calls, and makes the nth one fail; fault: "kill", or the name of an error as EIO."""

    def __init__(self, fault: str, nth: int) -> None:
        self.fault, self.left = fault, nth

    def count(self) -> None:
        """Count a call; fail or end if it is the one."""
        self.left -= 1
        if self.left == 0:
            if self.fault == "kill":
                os._exit(KILLED)
            number = getattr(errno, self.fault)
            raise OSError(number, os.strerror(number))

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is counted."""

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count()
            return call(*arguments, **named)

        return counted

    def install(self) -> None:
        """Count from here on, in this process."""
        _CountedFile.faults = self
        for name in CALLS:
            setattr(os, name, self.wrap(getattr(os, name)))
        opened = _open_counted(open)
        builtins.open = io.open = opened  # type: ignore[assignment]
        os.fdopen = opened


class _CountedFile(io.FileIO):
    faults: Faults

    def write(self, data: Any, /) -> int:
        self.faults.count()
        return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        self.faults.count()
        return super().truncate(size)

    def readinto(self, buffer: Any, /) -> int:
        self.faults.count()
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.faults.count()
        return super().readall()


def _open_counted(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return `open` for which binary files below the current folder are counted."""

    def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if "b" not in mode or (not isinstance(file, int) and os.path.isabs(os.fspath(file))):
            return plain(file, mode, buffering, *rest, **named)
        raw = _CountedFile(file, mode.replace("b", ""), **named)
        if buffering == 0:
            return raw
        if "+" in mode:
            return io.BufferedRandom(raw)
        return io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)

    return opened
