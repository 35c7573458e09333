"""Locks between processes: who writes a run folder, a checkpoint or the shards of an output.

- A lock is a file that its process has locked, with the process id in it. The operating system
  frees it when the process ends in any way; the file may stay.
- The file may be removed while it is locked. A process that has opened it just before finds, once
  it has the lock, that the name belongs to no file or another one, and tries that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from llmgpu.closing import Closing
from llmgpu.errors import OutputError
from llmgpu.files import has_name, output_errors, try_lock

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
        if not try_lock(self._file.fileno()):
            raise OutputError(
                f"{what} is in use by {_holder(self._file)}: wait until it ends, or choose another "
                "output"
            )
        if not has_name(self._file.fileno(), self._path):
            return False
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode())
        return True


def _holder(file: BinaryIO) -> str:
    """Return which process has the lock."""
    file.seek(0)
    text = file.read(_MAX_DIGITS)
    return f"process {text.decode()}" if text.isdigit() else "another process"
