"""Locks between processes that write the same run folder, checkpoint or shards.

- A lock is a locked file that contains the id of its process. The operating system unlocks the
  file when the process ends, even by a kill. The file itself may remain.
- A process may remove the file while it holds the lock. Another process that opened the file just
  before the removal then locks a file without a name. `FileLock` recognizes this case and tries
  again.
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
    """A locked file; the end of a `with` block unlocks the file."""

    def __init__(self, path: str | Path, what: str) -> None:
        """Lock the file `path`, creating a missing file; what: name of the output in messages.

        Raises OutputError if another process has the lock (the message has its id), or the file
        can't be written.
        """
        self._path = str(path)
        with output_errors(self._path):
            while True:
                # Unbuffered, so that the process id is written at once and closing has nothing left
                # to write.
                self._file: BinaryIO = open(path, "a+b", buffering=0)  # noqa: SIM115
                try:
                    if self._take(what):
                        return
                except BaseException:
                    self._file.close()
                    raise
                self._file.close()

    def close(self) -> None:
        """Unlock the file without removing it."""
        if not self._file.closed:
            with output_errors(self._path):
                self._file.truncate(0)
                self._file.close()  # closing releases the lock

    def remove(self) -> None:
        """Remove the file, and unlock it."""
        if not self._file.closed:
            with output_errors(self._path):
                if os.name == "nt":  # Windows can't remove an open file
                    self._file.close()
                Path(self._path).unlink(missing_ok=True)
                self._file.close()

    def _take(self, what: str) -> bool:
        """Lock the open file; return False if another process has removed the file meanwhile."""
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
    file.seek(0)
    text = file.read(_MAX_DIGITS)
    return f"process {text.decode()}" if text.isdigit() else "another process"
