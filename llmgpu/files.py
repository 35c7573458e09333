"""Writing results so that a half-written file never appears under its name; locks of folders.

- A regular file is written under a temporary name in the same folder, and renamed when it is
  complete and on disk. A symbolic link stays a link, and a replaced file keeps its mode.
- Devices and pipes are written directly. ``-`` is standard output; a path of an open descriptor
  (``/dev/stdout``, ``/dev/fd/3``) is written to the same descriptor, so ``>>`` of a shell appends.
- A temporary file is locked while its process lives. An unlocked file was left by a kill, and is
  removed when the next file for the same target is made. Temporary names are numbered, so that no
  folder of many files has to be searched: a new file gets the first unused number, and the next few
  numbers are checked for files left by a kill.
- An interrupt may arrive after a file is made and before the block that would remove the file
  begins. So a process removes its temporary files at its exit, too.
- An error of the operating system becomes an OutputError with the path and the reason. The error
  of a broken pipe stays as it is, since only the caller knows whether a closed reader matters.
- A `FileLock` keeps other processes from writing the same run folder, checkpoint or shards. It is a
  locked file that contains the id of its process. The operating system unlocks the file when the
  process ends, even by a kill. The file itself may remain. A process may remove the file while it
  holds the lock. Another process that opened the file just before the removal then locks a file
  without a name. `FileLock` recognizes this case and tries again.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, cast

from llmgpu.closing import Closing, undoing
from llmgpu.errors import InputError, OutputError

STANDARD_OUTPUT = "-"

_NAME_LENGTH = 40  # characters of the target's name in a temporary name; names have a limit
_LOOKED_AT = 8  # temporary names after the chosen one that are checked for files left by a kill
# Position of the locked byte, far behind the process id: on Windows, a locked byte can't be read.
_LOCKED_BYTE = 1 << 30

_DESCRIPTOR = r"/dev/(?P<name>stdout|stderr)|/(?:dev|proc/self)/fd/(?P<number>[0-9]+)"
_DESCRIPTOR_NUMBERS = {"stdout": 1, "stderr": 2}
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # errors of file systems that can't sync a folder


def is_descriptor(path: str) -> bool:
    """Whether a path names an open descriptor, such as /dev/stdout."""
    return re.fullmatch(_DESCRIPTOR, path) is not None


def writes_directly(path: str) -> bool:
    """Whether `path` is written in place: a descriptor, a pipe or a device, "-" included."""
    if path == STANDARD_OUTPUT or is_descriptor(path):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def require_name(path: str | Path) -> None:
    """Raise an OutputError for an empty name, which would mean the current folder."""
    if not str(path):
        raise OutputError("can't write '': an output needs a name")


@contextmanager
def output_errors(path: str) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError about `path`, except a BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        folder = os.path.dirname(path)
        lacks = isinstance(error, FileNotFoundError) and folder and not os.path.lexists(folder)
        hint = f"; make the folder {folder} first" if lacks else ""
        name = "standard output" if path == STANDARD_OUTPUT else path
        raise OutputError(f"can't write {name}: {error.strerror or error}{hint}") from error


def file_size(path: str) -> int | None:
    """Return the size of a file in bytes, None for a missing file; InputError on other failures."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return None
        raise InputError(f"can't read {path}: {error.strerror}") from error


_unfinished: set[OutputFile] = set()


@atexit.register
def remove_unfinished() -> None:
    """Remove all temporary files of this process."""
    for file in list(_unfinished):
        if file.process == os.getpid():
            with suppress(OSError):
                os.unlink(file.temporary)


def _remove_left(path: str) -> bool:
    """Remove a file that a killed process left; return whether the name is free."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "rb"):
            if os.name != "nt" and try_lock(descriptor) and has_name(descriptor, path):
                os.unlink(path)
    return not os.path.lexists(path)


def has_name(descriptor: int, path: str) -> bool:
    """Whether `path` names the open file `descriptor`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int) -> bool:
        """Lock a file until its descriptors are closed; False if another process has the lock."""
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Lock a file until its descriptors are closed; False if another process has the lock."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class OutputFile:
    """A file being written: write bytes to `stream`, then call `commit` or `discard`.

    stream: open for writing bytes.
    path: the given name, as text.
    is_direct: whether the file is a device, a pipe or standard output. Bytes written to such a file
        stay, and seeking may be impossible. Any other file appears under its name at `commit`.
    temporary: the name until `commit` or `discard`; "" after them, and for a direct file.
    process: id of the process that made the file.
    """

    def __init__(self, path: str | Path) -> None:
        """Open `path` ("-": standard output); OutputError if that fails."""
        require_name(path)
        self.path = str(path)
        self.temporary = self._target = ""
        self.process = os.getpid()
        self._descriptor = self._lock = -1
        with output_errors(self.path):
            direct = _open_direct(self.path)
            self.stream = self._open_temporary() if direct is None else direct
        self.is_direct = direct is not None

    def finish(self) -> None:
        """Flush the buffer, sync the file and close the stream."""
        with output_errors(self.path):
            if self.path == STANDARD_OUTPUT:
                self.stream.flush()
            elif not self.stream.closed:
                self.stream.flush()
                if self.temporary:
                    os.fsync(self.stream.fileno())
                self.stream.close()

    def remove_old(self) -> None:
        """Remove the file that `commit` will replace, if it exists, and sync the folder."""
        if os.path.lexists(self._target):
            with output_errors(self.path):
                os.unlink(self._target)
            sync(os.path.dirname(self._target))

    def commit(self, *, is_last: bool = True) -> None:
        """Finish the file, and give it its final name.

        is_last: whether to sync the folder. If an output has several files, only the last commit
        needs to sync it.
        """
        with undoing(self.discard):
            self.finish()
            # Another thread has discarded this file. With the error, the caller does not rename the
            # other files of the same output.
            if not (self.is_direct or self.temporary):
                raise OutputError(f"can't write {self.path}: it was given up")
            if self.temporary:
                with output_errors(self.path):
                    os.replace(self.temporary, self._target)
                    self._forget()
                if is_last:
                    sync(os.path.dirname(self._target))

    def discard(self) -> None:
        """Close and remove the unfinished file, ignoring errors."""
        if self.path != STANDARD_OUTPUT:
            with suppress(OSError):
                self.stream.close()
        if self.temporary:
            self._remove()

    def _open_temporary(self) -> BinaryIO:
        """Make a file with a temporary name in the folder of the target."""
        self._target = os.path.realpath(self.path)
        mode = _replaced_mode(self._target)
        folder, name = os.path.split(self._target)
        names = (os.path.join(folder, f".{name[:_NAME_LENGTH]}.{n:012x}.tmp") for n in count())
        try:
            while not self._make(next(names)):
                pass
            for _ in range(_LOOKED_AT):
                _remove_left(next(names))
            if mode is not None:
                os.chmod(self.temporary, mode)
            return os.fdopen(self._descriptor, "wb")
        except BaseException:
            with suppress(OSError):  # no file is open, or an interrupted fdopen has closed it
                os.close(self._descriptor)
            self._remove()
            raise

    def _make(self, path: str) -> bool:
        """Create and lock a file of this name; return False if another process uses the name."""
        if not _remove_left(path):
            return False
        self.temporary = path
        _unfinished.add(self)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except FileExistsError:
            self._forget()
            return False
        if os.name == "nt":  # Windows needs no lock: it can't remove open files
            return True
        # The copy keeps the lock after `finish` has closed the stream.
        self._lock = os.dup(self._descriptor)
        with suppress(OSError):  # the file system may have no locks
            try_lock(self._lock)
        if has_name(self._lock, path):
            return True
        os.close(self._descriptor)  # another process took the file for a leftover and removed it
        self._descriptor = -1
        self._forget()
        return False

    def _remove(self) -> None:
        with suppress(OSError):
            os.unlink(self.temporary)
        self._forget()

    def _forget(self) -> None:
        """Unlock a file that no longer has its temporary name."""
        _unfinished.discard(self)
        self.temporary = ""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextmanager
def atomic_output(path: str | Path) -> Iterator[BinaryIO]:
    """Write `path` atomically: the file gets its name when the block ends without error.

    On any exception, KeyboardInterrupt included, the unfinished file is removed. "-" is standard
    output. An OSError in the block becomes an OutputError about `path`; a BrokenPipeError passes.
    """
    output = OutputFile(path)
    with undoing(output.discard), output_errors(output.path):
        yield output.stream
    output.commit()


def sync(path: str | Path) -> None:
    """Flush a file, or the names in a folder, to disk; OutputError if that fails."""
    with output_errors(str(path)):
        if os.path.isdir(path):
            if os.name == "nt":  # Windows can't open folders; the file system's journal keeps names
                return
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except PermissionError:  # a folder without read permission may still be writable
                return
        else:
            descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise
        finally:
            os.close(descriptor)


def _open_direct(path: str) -> BinaryIO | None:
    """Open a pipe, device or descriptor for writing; None for a regular file or a new name."""
    if path == STANDARD_OUTPUT:
        if sys.stdout is None:
            raise OSError(errno.EBADF, "standard output is closed")
        return cast(BinaryIO, sys.stdout.buffer)
    if descriptor := re.fullmatch(_DESCRIPTOR, path):
        name = descriptor["name"]
        number = _DESCRIPTOR_NUMBERS[name] if name else int(descriptor["number"])
        return os.fdopen(os.dup(number), "wb")
    if not os.path.basename(path):
        raise IsADirectoryError(errno.EISDIR, "that is the name of a folder")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    except ValueError as error:  # the name contains a zero byte
        raise OSError(errno.EINVAL, str(error)) from error
    if stat.S_ISREG(mode):
        return None
    return open(path, "wb")


def _replaced_mode(target: str) -> int | None:
    """Return the permission bits of the file to replace, None if there is no file.

    Raises PermissionError for a write-protected file.
    """
    if not os.path.exists(target):
        return None
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the existing file is write-protected")
    return stat.S_IMODE(os.stat(target).st_mode)


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
                with undoing(self._file.close):
                    if self._take(what):
                        return
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
