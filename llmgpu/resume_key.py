"""The resume key: inputs and options of a job, stored with its output, compared by --resume."""

from __future__ import annotations

import json
import os
from itertools import zip_longest
from typing import Any

from llmgpu.errors import InputError
from llmgpu.input_files import STANDARD_INPUT, input_errors
from llmgpu.text.parts import Part
from llmgpu.text.sources import Sources

Run = dict[str, Any]  # a resume key: JSON values by the names used in messages
FILES = "corpus files (name, bytes, time of change)"
PART = "part"  # "number/count", in the key of a job that reads one part of the corpus
CORPUS = "files of all parts (name, bytes)"


def file_facts(path: str) -> list[str | int]:
    """Return name, size in bytes and modification time of a file, to detect changes.

    Standard input only has a name. Raises InputError for a missing file. `Source.facts` has the
    facts of a file of text.
    """
    if path == STANDARD_INPUT:
        return [path]
    with input_errors(path):
        status = os.stat(path)
    return [path, status.st_size, status.st_mtime_ns]


def part_key(run: Run, part: Part, whole: Sources, own: Sources) -> Run:
    """Return the resume key of a job that reads one part of a corpus.

    run: the key without the part. whole: sources of the whole corpus. own: sources of the part.
    """
    files = [[*source.facts, *(source.span or ())] for source in own.files]
    corpus = [[source.path, source.size] for source in whole.files]
    return {**run, FILES: files, CORPUS: corpus, PART: str(part)}


def check_same_run(what: str, begun: Run, asked: Run) -> None:
    """Raise an InputError that names the first difference between two resume keys, if any.

    Folders of corpus files are not compared: a job may be resumed from another folder.

    what: the beginning of the message, such as "... belongs to another run". begun: key of the job
    on disk. asked: key of this command.
    """
    asked = json.loads(json.dumps(asked))
    names = [name for name in {**begun, **asked} if begun.get(name) != asked.get(name)]
    if FILES in names and _without_folders(begun) == _without_folders(asked):
        names.remove(FILES)
    if names:
        name = names[0]
        before, now = _difference(begun.get(name), asked.get(name))
        others = f" (and {', '.join(names[1:])})" if names[1:] else ""
        raise InputError(f"{what}: {name} was {_show(before)} and is {_show(now)} now{others}")


def _without_folders(run: Run) -> Any:
    """Return the facts about the corpus files from a key, with base names in place of paths."""
    files = run.get(FILES)
    if not (isinstance(files, list) and all(isinstance(entry, list) and entry for entry in files)):
        return files
    return [[os.path.basename(str(path)), *facts] for path, *facts in files]


def _difference(before: Any, now: Any) -> tuple[Any, Any]:
    """Return the two values that a message about a difference shows.

    Of two lists of lists, only the first pair of entries that differ is returned, with None for a
    missing entry.
    """
    are_lists = isinstance(before, list) and isinstance(now, list)
    if are_lists and all(isinstance(entry, list) for entry in before + now):
        return next(pair for pair in zip_longest(before, now) if pair[0] != pair[1])
    return before, now


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."
