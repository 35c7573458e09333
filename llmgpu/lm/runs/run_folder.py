"""The folder of a training run, which only one run at a time may write.

- The file ``run.lock`` marks a run folder. A run that writes the folder has this file locked, see
  `llmgpu.locks`. It stays after the run, as the mark.
- Nothing is ever removed from a folder that is not a run folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from llmgpu.closing import Closing
from llmgpu.errors import InputError, OutputError
from llmgpu.files import output_errors, require_name
from llmgpu.locks import FileLock

LOCK_NAME = "run.lock"
TOKENS_NAME = "tokens"


class RunFolder(Closing):
    """A folder that this process has locked; a context manager that unlocks it.

    path: the folder. log: see `llmgpu.lm.runs.records`. loss_curve: the chart of the losses.
    tokens: the folder with the tokens of texts, see `llmgpu.lm.data.inputs`.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        """Take a folder and its lock from `open_run_folder`."""
        self.path = path
        self.log = path / "log.jsonl"
        self.loss_curve = path / "loss.svg"
        self.tokens = path / TOKENS_NAME
        self._lock = lock

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()


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
    require_name(path)
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
    run = RunFolder(folder, FileLock(folder / LOCK_NAME, str(folder)))
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
