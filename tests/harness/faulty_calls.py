"""Calls to the file system of which the nth fails, or ends the process."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = ("fsync", "rename", "replace", "rmdir", "unlink", "mkdir", "truncate", "preadv")
LOOKING = ("stat", "lstat", "open", "listdir", "scandir", "readlink")  # of files in the folder
KILLED = 78  # exit code
READING = "EIO-reading"
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}


class Faults:
    """Counts calls, and makes the nth one fail.

    fault: "kill", a signal that comes then, or the name of an error as EIO; READING: EIO, of calls
        that read or look only.
    named: the file of the call that failed, as far as it is known.
    """

    def __init__(self, fault: str, nth: int) -> None:
        self.fault, self.left, self.named = fault, nth, ""

    def count(self, name: Any = "", *, reads: bool = False) -> None:
        """Count a call; fail or end if it is the one."""
        if self.fault == READING and not reads:
            return
        self.left -= 1
        if self.left == 0:
            if self.fault == "kill":
                os._exit(KILLED)
            if self.fault in SIGNALS:
                os.kill(os.getpid(), SIGNALS[self.fault])
                return
            self.named = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else ""
            number = getattr(errno, self.fault.partition("-")[0])
            raise OSError(number, os.strerror(number), *([self.named] if self.named else []))

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is counted."""

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count()
            return call(*arguments, **named)

        return counted

    def wrap_looking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is counted for files of the folder."""

        def counted(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            if not isinstance(path, int) and not _is_elsewhere(path):
                self.count(path, reads=True)
            return call(path, *arguments, **named)

        return counted

    def install(self) -> None:
        """Count from here on, in this process."""
        _CountedFile.faults = self
        for name in CALLS:
            setattr(os, name, self.wrap(getattr(os, name)))
        for name in LOOKING if self.fault == READING else ():
            setattr(os, name, self.wrap_looking(getattr(os, name)))
        opened = _open_counted(open)
        builtins.open = io.open = opened  # type: ignore[assignment]
        os.fdopen = opened


def _is_elsewhere(path: Any) -> bool:
    """Tell whether a path is not below the current folder."""
    whole = os.path.abspath(os.fsdecode(path))
    return not whole.startswith(os.getcwd() + os.sep)


class _CountedFile(io.FileIO):
    faults: Faults

    def write(self, data: Any, /) -> int:
        if self.faults.fault == "kill" and self.faults.left == 1:  # in the midst of writing
            super().write(memoryview(data)[: len(data) // 2])
        self.faults.count()
        return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        self.faults.count()
        return super().truncate(size)

    def readinto(self, buffer: Any, /) -> int:
        self.faults.count(self.name, reads=True)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.faults.count(self.name, reads=True)
        return super().readall()


def _open_counted(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return `open` for which binary files below the current folder are counted."""

    def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if not isinstance(file, int) and _is_elsewhere(file):
            return plain(file, mode, buffering, *rest, **named)
        if _CountedFile.faults.fault == READING and not isinstance(file, int):
            _CountedFile.faults.count(file, reads=True)
        if "b" not in mode:
            return plain(file, mode, buffering, *rest, **named)
        raw = _CountedFile(file, mode.replace("b", ""), **named)
        if buffering == 0:
            return raw
        if "+" in mode:
            return io.BufferedRandom(raw)
        return io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)

    return opened
