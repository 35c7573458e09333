"""The folder of a training run, which only one run at a time may write.

- The file ``run.lock`` marks a run folder. A run that writes the folder has this file locked, with
  its process id in it. The operating system frees the lock when the process ends in any way.
- The file stays after the run: if it were removed, two runs could lock two files of that name.
- Nothing is ever removed from a folder that is not a run folder.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from llmgpu.closing import Closing
from llmgpu.errors import InputError, OutputError
from llmgpu.files import output_errors

LOCK_NAME = "run.lock"
TOKENS_NAME = "tokens"

_LOCKED_BYTE = 1 << 30  # after the process id: on Windows a locked byte can't be read
_MAX_DIGITS = 20


class RunFolder(Closing):
    """A folder that this process has locked; a context manager that unlocks it.

    path: the folder. log: see `llmgpu.lm.runs.records`. loss_curve: the chart of the losses.
    tokens: the folder with the tokens of texts, see `llmgpu.lm.data.inputs`.
    """

    def __init__(self, path: Path, lock: BinaryIO) -> None:
        """Take a folder and its locked file from `open_run_folder`."""
        self.path = path
        self.log = path / "log.jsonl"
        self.loss_curve = path / "loss.svg"
        self.tokens = path / TOKENS_NAME
        self._lock = lock

    def close(self) -> None:
        """Unlock the folder."""
        if not self._lock.closed:
            with output_errors(self._lock.name):
                self._lock.truncate(0)
                self._lock.close()  # frees the lock


def open_run_folder(
    path: str | Path, *, resume: bool = False, force: bool = False, replaced: Sequence[str] = ()
) -> RunFolder:
    """Make the folder of a new run, or open that of an earlier one, and lock it.

    resume: continue the run in it. force: replace the run in it; files and folders that match one
    of the glob patterns `replaced` are removed. A run that ended before its log was started has
    nothing but tokens, which a new run may use.

    Raises InputError if there is no run to resume; OutputError if the folder holds a run (neither
    `resume` nor `force`) or anything else, if another process has it locked, or if it can't be
    written.
    """
    folder = Path(path)
    if resume and not (folder / LOCK_NAME).is_file():
        raise InputError(f"{folder} has no run to resume")
    with output_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        names = os.listdir(folder)
    if names and LOCK_NAME not in names:
        raise OutputError(
            f"{folder} is not empty and is not a run folder: choose a new or an empty folder"
        )
    run = RunFolder(folder, _lock(folder))
    try:
        _prepare(folder, resume, force, replaced)
    except BaseException:
        run.close()
        raise
    return run


def _prepare(folder: Path, resume: bool, force: bool, replaced: Sequence[str]) -> None:
    """Check that a locked folder may be used as asked, and remove what is replaced."""
    if resume:
        return
    with output_errors(str(folder)):
        names = set(os.listdir(folder))
        if not force:
            if names <= {LOCK_NAME, TOKENS_NAME}:
                return
            raise OutputError(
                f"{folder} already has a run: use --resume to continue it, --force to replace it, "
                "or another folder"
            )
        for pattern in replaced:
            for found in set(folder.glob(pattern)) - {folder / LOCK_NAME}:
                if found.is_dir() and not found.is_symlink():
                    shutil.rmtree(found)
                else:
                    found.unlink()


def _lock(folder: Path) -> BinaryIO:
    """Lock a folder; OutputError, with the process that has the lock, if that fails."""
    path = folder / LOCK_NAME
    with output_errors(str(path)):
        # Unbuffered: the process id is written at once, and closing has nothing left to write.
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed with the run folder)
        try:
            if not _try_lock(file):
                raise OutputError(
                    f"{folder} is in use by {_holder(file)}: wait until it ends, or choose another "
                    "folder"
                )
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        except BaseException:
            file.close()
            raise
    return file


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
