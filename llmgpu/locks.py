"""Locks between processes: who writes a run folder, a checkpoint or the shards of an output.

- A lock is a file that its process has locked, with the process id in it. The operating system
  frees it when the process ends in any way; the file may stay.
- The file may be removed while it is locked. A process that has opened it just before finds, once
  it has the lock, that the name belongs to no file or another one, and tries that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from llmgpu.closing import Closing
from llmgpu.errors import OutputError
from llmgpu.files import output_errors

_LOCKED_BYTE = 1 << 30  # after the process id: on Windows a locked byte can't be read
_MAX_DIGITS = 20


class FileLock(Closing):
    """A locked file; a context manager that unlocks it."""

    def __init__(self, path: str | Path, what: str) -> None:
        """Lock `path`, which is made if needed; what: the output that it locks, for messages.

        Raises OutputError if another process, which is named, has the lock, or it can't be written.
        """
        self._path = str(path)
        with output_errors(self._path):
            while True:
                # Unbuffered: the process id is written at once, and closing has nothing to write.
                self._file: BinaryIO = open(path, "a+b", buffering=0)  # noqa: SIM115
                try:
                    if self._take(what):
                        return
                except BaseException:
                    self._file.close()
                    raise
                self._file.close()

    def close(self) -> None:
        """Unlock it; the file stays."""
        if not self._file.closed:
            with output_errors(self._path):
                self._file.truncate(0)
                self._file.close()  # frees the lock

    def remove(self) -> None:
        """Remove the file and unlock it."""
        if not self._file.closed:
            with output_errors(self._path):
                if os.name == "nt":  # where an open file can't be removed
                    self._file.close()
                Path(self._path).unlink(missing_ok=True)
                self._file.close()

    def _take(self, what: str) -> bool:
        """Lock the open file; False if it was removed in the meantime."""
        if not _try_lock(self._file):
            raise OutputError(
                f"{what} is in use by {_holder(self._file)}: wait until it ends, or choose another "
                "output"
            )
        try:
            if not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno())):
                return False
        except FileNotFoundError:
            return False
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode())
        return True


def _holder(file: BinaryIO) -> str:
    """Return which process has the lock."""
    file.seek(0)
    text = file.read(_MAX_DIGITS)
    return f"process {text.decode()}" if text.isdigit() else "another process"


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: BinaryIO) -> bool:
        """Lock a file until it is closed; False if another process has it."""
        file.seek(_LOCKED_BYTE)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: BinaryIO) -> bool:
        """Lock a file until it is closed; False if another process has it."""
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
