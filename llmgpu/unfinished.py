"""Files under temporary names, until they are complete.

- A file is locked while its process lives. One that isn't was left by a kill: it is removed when
  the next file for the same target is made.
- Names are numbered, so that nobody has to look for them in a folder of many files: the first one
  that is not in use is taken, and the next few are looked at for files that were left.
- An interrupt may come after a file is made and before the block that would remove it, so those of
  this process are removed at exit.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from itertools import count

_NAME_LENGTH = 40  # of the target, so that the temporary name is not too long
_LOOKED_AT = 8  # names after the one that is taken

_unfinished: set[UnfinishedFile] = set()


@atexit.register
def remove_unfinished() -> None:
    """Remove all temporary files of this process."""
    for file in list(_unfinished):
        if file.process == os.getpid():
            with suppress(OSError):
                os.unlink(file.path)


class UnfinishedFile:
    """A new file in the folder of its target.

    path: its temporary name. descriptor: open for writing and reading, for the caller to close.
    process: who made it.
    """

    def __init__(self, target: str) -> None:
        """Make the file; OSError if that fails."""
        self.process = os.getpid()
        self.path = ""
        self.descriptor = self._lock = -1
        folder, name = os.path.split(target)
        names = (os.path.join(folder, f".{name[:_NAME_LENGTH]}.{n:012x}.tmp") for n in count())
        try:
            while not self._make(next(names)):
                pass
        except BaseException:
            if self.descriptor >= 0:
                os.close(self.descriptor)
            self.remove()
            raise
        for _ in range(_LOOKED_AT):
            _remove_left(next(names))

    def rename(self, target: str) -> None:
        """Give the file, which the caller has closed, its name; OSError if that fails."""
        os.replace(self.path, target)
        self._forget()

    def remove(self) -> None:
        """Remove the file, ignoring errors."""
        with suppress(OSError):
            os.unlink(self.path)
        self._forget()

    def _make(self, path: str) -> bool:
        """Make a locked file of this name; False if another process uses the name."""
        if not _remove_left(path):
            return False
        self.path = path
        _unfinished.add(self)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            self.descriptor = os.open(path, flags, 0o666)
        except FileExistsError:
            _unfinished.discard(self)
            return False
        if os.name == "nt":  # nobody can remove a file that is open
            return True
        self._lock = os.dup(self.descriptor)  # outlives the descriptor, until the file has its name
        _lock(self._lock)
        if _has_name(self._lock, path):
            return True
        os.close(self.descriptor)  # it was taken for one that was left, before it was locked
        self.descriptor = -1
        self._forget()
        return False

    def _forget(self) -> None:
        _unfinished.discard(self)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_left(path: str) -> bool:
    """Remove a file that nobody has locked; False if it is in use."""
    if not os.path.lexists(path):
        return True
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        is_left = os.name != "nt" and _lock(descriptor) and _has_name(descriptor, path)
        if is_left:
            os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return is_left


def _has_name(descriptor: int, path: str) -> bool:
    """Whether an open file is what a path leads to."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:
        return False

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Lock a file until it is closed everywhere; False if another process has locked it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
