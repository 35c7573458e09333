"""A checkpoint of training: a folder from which a killed run is resumed.

A run is one execution of ``bpe-train`` here.

- ``run.json`` has the inputs and options of the training. A run with other inputs or options is
  refused, and the error names the difference.
- ``counts`` is the word counts file, written when counting is done.
- ``merges`` is a log to which merges are appended as they are made. A block has a head (number of
  merges, CRC-32 of the content) and a content: the pairs as symbols, then their counts. A kill or a
  full disk may leave an incomplete block at the end; reading the log cuts this block off.
- Appended blocks reach the disk about once a second. A power failure therefore loses the merges of
  about one second more than a kill.
- ``lock`` is locked by the run that writes the folder, see `llmgpu.files`.
- ``options.toml`` has the options of the command, see `llmgpu.cli.option_files`.
- A run creates and owns the folder. After the results are written, only ``run.json`` and the
  options remain, and ``run.json`` names the results. While the results are unchanged, resuming the
  same run does nothing, and another run may begin in the folder.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.training.options import UNICODE_FACT
from llmgpu.closing import undoing
from llmgpu.errors import InputError, OutputError
from llmgpu.files import FileLock, atomic_output, file_size, output_errors, require_name, sync
from llmgpu.input_files import read_whole
from llmgpu.resume_key import Run, check_same_run, file_facts
from llmgpu.spelling import spelled

FORMAT_NAME = "llmgpu training checkpoint"
FORMAT_VERSION = 1
SYNC_SECONDS = 1.0

_RUN, _COUNTS, _MERGES, _LOCK = "run.json", "counts", "merges", "lock"
_OPTIONS = "options.toml"
_WHOLE = f"{_RUN}|{_COUNTS}|{_OPTIONS}"  # files that are written atomically
_OWN_FILES = re.compile(rf"{_WHOLE}|{_MERGES}|{_LOCK}|\.({_WHOLE})\.[0-9a-f]+\.tmp")
_HEAD = np.dtype([("merges", "<u4"), ("crc", "<u4")])


def checkpoint_files(folder: str | Path) -> list[Path]:
    """Return the folder of a checkpoint, then all files that may be in it."""
    return [Path(folder, name) for name in ("", _RUN, _COUNTS, _MERGES, _LOCK, _OPTIONS)]


class Checkpoint:
    """The folder of one run.

    counts_path: the path of the word counts.
    """

    def __init__(self, folder: Path) -> None:
        """Lock a folder that `begin` or `resume` has checked."""
        self.folder = folder
        self._lock = FileLock(folder / _LOCK, str(folder))
        self.counts_path = folder / _COUNTS
        self._synced = 0.0  # time at which the log last reached the disk

    @classmethod
    def begin(cls, path: str | Path, run: Run) -> Checkpoint:
        """Create the folder of a new run, or take over the folder of a finished run.

        Raises OutputError if `path` is another existing file or folder, or can't be created.
        """
        require_name(path)
        folder = Path(path)
        is_finished = _outputs_of(folder) is not None
        if os.path.lexists(folder) and not is_finished:
            raise OutputError(
                f"{folder} exists already: use {spelled('--resume')} to continue from it, or "
                "remove it"
            )
        with output_errors(str(folder)):
            folder.mkdir(exist_ok=is_finished)
        sync(folder.absolute().parent)
        checkpoint = cls(folder)
        with undoing(checkpoint.remove):
            checkpoint._clear()  # remove the files of a finished run
            checkpoint._write_run(run)
        return checkpoint

    @classmethod
    def resume(cls, path: str | Path, run: Run) -> Checkpoint | None:
        """Open the folder of an interrupted run; None if `path` has no interrupted run.

        Raises InputError if the folder is no checkpoint, or belongs to another run. The message
        then names the difference between the runs.
        """
        folder = Path(path)
        if not str(path) or not os.path.lexists(folder) or _outputs_of(folder) is not None:
            return None
        is_unused = _is_unused(folder)
        if not is_unused:  # check before writing, because the folder may belong to another program
            begun = _read_content(folder)["run"]
            check_same_run(f"{folder} is the checkpoint of another run", begun, run)
        checkpoint = cls(folder)
        with undoing(checkpoint.close):
            if is_unused:
                checkpoint._write_run(run)
        return checkpoint

    @classmethod
    def unicode_of(cls, path: str | Path) -> str | None:
        """Return the Unicode version of the interrupted run; None if its pattern has no classes.

        Raises InputError if the folder is no checkpoint.
        """
        folder = Path(path)
        if not os.path.lexists(folder) or _is_unused(folder) or _outputs_of(folder) is not None:
            return None
        version = _read_content(folder)["run"].get(UNICODE_FACT)
        return None if version is None else str(version)

    @classmethod
    def may_have_made(cls, path: str | Path, output: str) -> bool:
        """Whether the run of a folder may have written `output`; True if the run is unfinished."""
        made = _outputs_of(Path(path))
        if made is None:
            return os.path.isdir(path)
        return any(facts[:1] == [os.path.abspath(output)] for facts in made)

    @classmethod
    def is_done(cls, path: str | Path, run: Run, outputs: Iterable[str]) -> bool:
        """Whether the folder records `run` as finished, and the `outputs` are unchanged since."""
        made = _outputs_of(Path(path))
        if made is None or _read_content(Path(path))["run"] != json.loads(json.dumps(run)):
            return False
        names = [os.path.abspath(name) for name in outputs]
        return all(map(os.path.exists, names)) and made == list(map(file_facts, names))

    @property
    def has_counts(self) -> bool:
        """Whether counting is done."""
        return file_size(str(self.counts_path)) is not None

    @property
    def is_empty(self) -> bool:
        """Whether the folder has neither word counts nor merges to resume from."""
        return not (self.has_counts or (self.folder / _MERGES).exists())

    def read_merges(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Read the merges logged so far, and truncate the log after the last whole block.

        Returns pairs of symbols, uint32 (M, 2), and counts, int64 (M,), in the order of the merges.
        """
        path = self.folder / _MERGES
        if file_size(str(path)) is None:
            return np.empty((0, 2), np.uint32), np.empty(0, np.int64)
        with output_errors(str(path)):
            pairs, counts, length = _parse_log(read_whole(path, "log of merges"))
            os.truncate(path, length)
        return pairs, counts

    def add_merges(self, pairs: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
        """Append merges to the log: pairs of symbols (k, 2), and counts (k,)."""
        content = pairs.astype("<u4").tobytes() + counts.astype("<i8").tobytes()
        head = np.array([(len(counts), zlib.crc32(content))], _HEAD).tobytes()
        path = self.folder / _MERGES
        with output_errors(str(path)), open(path, "ab") as log:
            log.write(head + content)
            log.flush()
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                os.fsync(log.fileno())
                self._synced = time.monotonic()

    def close(self) -> None:
        """Unlock the folder. The files remain."""
        self._lock.close()

    def finish(self, run: Run, outputs: Iterable[str]) -> None:
        """Record the results of the finished run, and remove all files that only resuming needs."""
        with output_errors(str(self.folder)):
            self._write_run(run, outputs=[file_facts(os.path.abspath(path)) for path in outputs])
        self._clear(keep=(_RUN, _OPTIONS))
        self._lock.remove()

    def remove(self) -> None:
        """Remove the checkpoint's files, and the folder unless it has any other file."""
        self._clear()
        self._lock.remove()
        with suppress(OSError):
            self.folder.rmdir()

    def _clear(self, keep: Sequence[str] = ()) -> None:
        """Remove the files of a checkpoint, except the lock and the files named in `keep`."""
        with output_errors(str(self.folder)):
            for name in os.listdir(self.folder):
                if name not in (_LOCK, *keep) and _OWN_FILES.fullmatch(name):
                    (self.folder / name).unlink()

    def _write_run(self, run: Run, **finished: object) -> None:
        content = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "run": run, **finished}
        with atomic_output(self.folder / _RUN) as stream:
            stream.write(json.dumps(content, indent=1).encode() + b"\n")


def _is_unused(folder: Path) -> bool:
    """Whether the folder has only files of a checkpoint and no run.json, as after an early kill."""
    if not folder.is_dir():
        return False
    names = os.listdir(folder)
    return _RUN not in names and all(map(_OWN_FILES.fullmatch, names))


def _outputs_of(folder: Path) -> list[list[Any]] | None:
    """Return the facts of a finished run's output files; None if the folder has no finished run."""
    try:
        outputs = _read_content(folder).get("outputs")
    except InputError:
        return None
    is_list = isinstance(outputs, list) and all(isinstance(each, list) for each in outputs)
    return outputs if is_list else None


def _read_content(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_whole(folder / _RUN, "description of a run"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{folder} is not a checkpoint of training: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT_NAME:
        raise InputError(f"{folder} is not a checkpoint of training")
    if content.get("version") != FORMAT_VERSION or not isinstance(content.get("run"), dict):
        raise InputError(
            f"{folder}: version {content.get('version')} of the format, but this llmgpu reads "
            f"version {FORMAT_VERSION}"
        )
    return content


def _parse_log(data: bytes) -> tuple[NDArray[np.uint32], NDArray[np.int64], int]:
    """Return the pairs and counts of all whole blocks, and the end of the last whole block."""
    pairs = [np.empty((0, 2), np.uint32)]
    counts = [np.empty(0, np.int64)]
    position = 0
    while len(data) - position >= _HEAD.itemsize:
        number, checksum = np.frombuffer(data, _HEAD, 1, position)[0].tolist()
        first = position + _HEAD.itemsize
        end = first + 16 * number  # a pair and a count of 8 bytes each for every merge
        if number == 0 or end > len(data) or zlib.crc32(data[first:end]) != checksum:
            break
        block = np.frombuffer(data, "<u4", 2 * number, first)
        pairs.append(block.astype(np.uint32).reshape(-1, 2))
        counts.append(np.frombuffer(data, "<i8", number, first + 8 * number).astype(np.int64))
        position = end
    return np.concatenate(pairs), np.concatenate(counts), position
