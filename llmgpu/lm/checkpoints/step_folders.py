"""The checkpoints in a run folder: one folder each, named by its step.

- A checkpoint is written under a temporary name beside the others, forced to the disk and renamed,
  so a folder with a step's name is complete, even after a kill or a power cut.
- Old ones are renamed before they are removed, for the same reason.
- Temporary folders that killed runs left are removed when the next run begins.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgpu.errors import OutputError
from llmgpu.files import output_errors, sync

_STEP = re.compile(r"step-(?P<step>[0-9]{8,})")
_TEMPORARY = re.compile(r"\.step-[0-9]{8,}\.[0-9a-f]{12}\.tmp")


def step_folder_name(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"


def is_step_folder_name(name: str) -> bool:
    """Whether `name` is the name of a checkpoint's folder."""
    return bool(_STEP.fullmatch(name))


def list_checkpoints(run_folder: str | Path) -> dict[int, Path]:
    """Return the folders of a run's checkpoints by step, ascending; none if there is no folder."""
    folder = Path(run_folder)
    if not folder.is_dir():
        return {}
    found = ((_STEP.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return dict(sorted((int(match["step"]), path) for match, path in found if match))


def prepare_step_folders(run_folder: str | Path, step: int = 0) -> None:
    """Make the folder of a run that resumes from `step` (0: begins), or clean up an existing one.

    Raises OutputError if it can't be made, or has checkpoints after `step`, which would be mixed
    with those of this run.
    """
    folder = Path(run_folder)
    with output_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    steps = list_checkpoints(folder)
    if steps and max(steps) > step:
        raise OutputError(
            f"{folder} has a checkpoint of step {max(steps)}, but this run begins at step {step}: "
            "resume from that one, remove it, or choose another folder"
        )
    with output_errors(str(folder)):
        for path in folder.iterdir():
            if _TEMPORARY.fullmatch(path.name):
                shutil.rmtree(path)


@contextmanager
def new_checkpoint(run_folder: str | Path, step: int) -> Iterator[Path]:
    """Yield a folder to write a checkpoint in, which gets the step's name when the block ends.

    On any exception it is removed. Raises OutputError if the step already has a checkpoint, or it
    can't be written.
    """
    target = Path(run_folder) / step_folder_name(step)
    if os.path.lexists(target):
        raise OutputError(f"{target} already exists")
    temporary = _temporary_name(target)
    try:
        with output_errors(str(temporary)):
            temporary.mkdir()
        yield temporary
        with output_errors(str(target)):
            for path in temporary.iterdir():
                sync(path)
            sync(temporary)
            temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(target.parent)


def remove_old_checkpoints(run_folder: str | Path, keep: int) -> None:
    """Remove all but a run's `keep` newest checkpoints; OutputError if that can't be done."""
    for path in list(list_checkpoints(run_folder).values())[:-keep]:
        temporary = _temporary_name(path)
        with output_errors(str(path)):
            path.rename(temporary)
            shutil.rmtree(temporary)


def _temporary_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
