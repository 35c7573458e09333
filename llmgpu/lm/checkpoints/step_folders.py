"""The checkpoints in the folder of a run: one folder each, named by its step.

- A checkpoint is written under a temporary name beside the others, forced to the disk and renamed,
  so a folder that has a step's name is complete, whatever a kill or a power cut left elsewhere.
- Old ones are renamed before they are removed, for the same reason.
- What killed runs left under temporary names is removed when the next run begins.
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
    """Whether a checkpoint's folder may be called `name`."""
    return bool(_STEP.fullmatch(name))


def list_checkpoints(run_folder: str | Path) -> dict[int, Path]:
    """Return the folders of a run's checkpoints by step, ascending; none if there is no folder."""
    folder = Path(run_folder)
    if not folder.is_dir():
        return {}
    found = ((_STEP.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return dict(sorted((int(match["step"]), path) for match, path in found if match))


def prepare_step_folders(run_folder: str | Path, step: int = 0) -> None:
    """Make the folder of a run that goes on from `step` (0: begins), or clean up the one there is.

    Raises OutputError if it can't be made, or has checkpoints behind `step`, which those of this
    run would be mixed with.
    """
    folder = Path(run_folder)
    with output_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    steps = list_checkpoints(folder)
    if steps and max(steps) > step:
        raise OutputError(
            f"{folder} has a checkpoint of step {max(steps)}, and this run begins at step {step}: "
            "go on from that one, remove it, or choose another folder"
        )
    with output_errors(str(folder)):
        for path in folder.iterdir():
            if _TEMPORARY.fullmatch(path.name):
                shutil.rmtree(path)


@contextmanager
def new_checkpoint(run_folder: str | Path, step: int) -> Iterator[Path]:
    """Give a folder to write a checkpoint in; when the block ends, it gets the step's name.

    On any exception it is removed. Raises OutputError if the step has a checkpoint already, or it
    can't be written.
    """
    target = Path(run_folder) / step_folder_name(step)
    if os.path.lexists(target):
        raise OutputError(f"{target} is there already")
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
