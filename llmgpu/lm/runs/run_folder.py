"""The folder of a training run. Only one run at a time may write to the folder.

- The file ``run.lock`` marks a run folder. A run locks this file while it writes to the folder, see
  `llmgpu.locks`. The file stays after the run, unless the run wrote nothing else.
- Nothing is ever removed from a folder without ``run.lock``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmgpu.closing import Closing
from llmgpu.errors import InputError, OutputError
from llmgpu.files import output_errors, require_name
from llmgpu.lm.checkpoints.checkpoint import list_checkpoints
from llmgpu.lm.runs.records import Spent, read_log
from llmgpu.locks import FileLock

LOCK_NAME = "run.lock"
TOKENS_NAME = "tokens"
EVALUATION_TOKENS_NAME = "evaluation-tokens"
SAMPLES_NAME = "samples.jsonl"
OPTIONS_NAME = "options.toml"  # the options of the command
_SHOWN_FACTS = ("init", "device", "vocabulary", "parameters", "training_tokens")
_SHOWN_RECORDS = ("step", "loss", "validation_loss", "bits_per_byte", "tokens", "seconds")
_BEFORE_THE_LOG = {LOCK_NAME, TOKENS_NAME, EVALUATION_TOKENS_NAME, OPTIONS_NAME}


class RunFolder(Closing):
    """A run folder that this process has locked; a context manager that unlocks the folder.

    path: the folder. log: see `llmgpu.lm.runs.records`. loss_curve: the chart of the losses.
    tokens, evaluation_tokens: the folders with the tokens of texts, see `llmgpu.lm.data.inputs`.
    samples: JSON lines of step and text.
    """

    def __init__(self, path: Path, lock: FileLock | None = None, *, is_new: bool = False) -> None:
        """Store the arguments; `open_run_folder` locks the folder first.

        lock: None if the folder is only read. is_new: whether the folder was created for this run.
        """
        self.path = path
        self.log = path / "log.jsonl"
        self.loss_curve = path / "loss.svg"
        self.tokens = path / TOKENS_NAME
        self.evaluation_tokens = path / EVALUATION_TOKENS_NAME
        self.samples = path / SAMPLES_NAME
        self._lock, self._is_new = lock, is_new

    def close(self) -> None:
        """Unlock the folder; remove a new folder if its run was refused and wrote nothing."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        with suppress(OSError):  # the folder is gone, or another run begins to use it
            if self._is_new and os.listdir(self.path) == [LOCK_NAME]:
                lock.remove()
                self.path.rmdir()
        lock.close()

    def remove(self, patterns: Sequence[str], kept: Collection[Path] = ()) -> None:
        """Remove files and folders of the earlier run that match glob patterns.

        kept: folders whose own files stay. Folders inside them are removed, unless they are also
        in `kept`.
        """
        with output_errors(str(self.path)):
            for pattern in patterns:
                for found in set(self.path.glob(pattern)) - {self.path / LOCK_NAME}:
                    _remove(found, kept)


def _remove(path: Path, kept: Collection[Path]) -> None:
    """Remove a file or a folder, except for the files of folders in `kept`."""
    if not path.is_dir() or path.is_symlink():
        path.unlink()
    elif path not in kept and not any(path in each.parents for each in kept):
        shutil.rmtree(path)
    else:
        for inside in list(path.iterdir()):
            if path not in kept or inside.is_dir():
                _remove(inside, kept)


def describe_run(path: str | Path) -> dict[str, Any]:
    """Return the facts and the last record of a run's log, by readable names.

    Raises InputError, with file and line, if the log can't be read.
    """
    log = read_log(RunFolder(Path(path)).log)
    last = asdict(log.records[-1]) if log.records else {"step": 0}
    spent = asdict(Spent.until(log.records[-1])) if log.records else {}
    told = {
        **{name: log.facts.get(name) for name in _SHOWN_FACTS},
        **{name: last.get(name) for name in _SHOWN_RECORDS},
        "seconds_beside_steps": {name: round(value, 3) for name, value in spent.items()} or None,
        "checkpoints": ", ".join(found.name for found in list_checkpoints(path).values()) or "none",
        **{name: log.facts.get(name) for name in ("model", "options")},
    }
    return {name.replace("_", " "): fact for name, fact in told.items() if fact is not None}


def require_log(path: str | Path) -> None:
    """Raise InputError, with a remedy, if `path` is not a run folder with a log."""
    folder = Path(path)
    if RunFolder(folder).log.is_file() or not folder.exists():
        return
    run = folder.absolute().parent
    if RunFolder(run).log.is_file():
        shown = os.path.dirname(os.path.normpath(path)) or os.pardir
        raise InputError(f"{path} is a part of the run {shown}, which has the losses: name {shown}")
    what = "a folder without a log.jsonl" if folder.is_dir() else "a file"
    raise InputError(
        f"{path} is {what}, not the folder of a run: name the folder of train's --output"
    )


def open_run_folder(path: str | Path, *, resume: bool = False, force: bool = False) -> RunFolder:
    """Create the folder of a new run, or open the folder of an earlier run, and lock the folder.

    resume: continue the run of the folder. force: allow a folder with a run; the caller removes the
    run's files after all checks of the new run. An earlier run that ended before its log was begun
    left only tokens and options; a new run may use both.

    Raises InputError if there is no run to resume; OutputError if the folder has a run and neither
    `resume` nor `force` is set, if the folder has other files, is locked by another process, or
    can't be written.
    """
    # Refuse a path that can't be a run folder, and create a new folder.
    require_name(path)
    folder = Path(path)
    if resume and not (folder / LOCK_NAME).is_file():
        raise InputError(f"{folder} has no run to resume")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file, not a run folder: choose a new or an empty folder")
    is_new = not folder.exists()
    with output_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        names = os.listdir(folder)
    if names and LOCK_NAME not in names:
        raise OutputError(
            f"{folder} is not empty and is not a run folder: choose a new or an empty folder"
        )
    run = RunFolder(folder, FileLock(folder / LOCK_NAME, str(folder)), is_new=is_new)
    # List the folder again: another run may have ended before this run locked the folder.
    try:
        with output_errors(str(folder)):
            has_run = not set(os.listdir(folder)) <= _BEFORE_THE_LOG
        if has_run and not (resume or force):
            raise OutputError(
                f"{folder} already has a run: use --resume to continue it, --force to replace it, "
                "or another folder"
            )
    except BaseException:
        run.close()
        raise
    return run
