"""Where a corpus comes from: names turned into files, and the formats of files.

- A source is a file, a folder (walked; its files in byte order of their relative names), a glob
  (the files it matches, with matching folders walked, each file once, in byte order) or ``-`` for
  standard input. A name that exists is that file even if it looks like a glob. A URL is a file,
  folder or glob of another machine, see `llmgpu.text.remote`.
- In folders, names that start with a dot, links to folders and special files are left out and
  counted.
- A format goes by suffix; a file that has none of them is text. To add one, write a
  `llmgpu.text.streams.DocumentFile` in a module and add a line to FORMATS.
- Everything that can be known to fail is checked before the first byte is read.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Sequence
from typing import NamedTuple

from llmgpu.errors import InputError
from llmgpu.text.jsonl import JsonlFile
from llmgpu.text.parquet import ParquetFile
from llmgpu.text.remote import find_remote, is_remote
from llmgpu.text.streams import COMPRESSIONS, STANDARD_INPUT, DocumentFile, Source

# Formats whose files have documents inside, by suffix.
FORMATS: dict[str, type[DocumentFile]] = {
    ".jsonl": JsonlFile,
    ".ndjson": JsonlFile,
    ".parquet": ParquetFile,
}


class Sources(NamedTuple):
    """The files of a corpus in the order they are read, and how many folder entries were left out.

    Resolving names walks folders, so it is done once and handed on.
    """

    files: list[Source]
    left_out: int

    @property
    def total_bytes(self) -> int | None:
        """Bytes on disk that are read of all files, None if one of them is not a regular file."""
        known = [source.length for source in self.files if source.length is not None]
        return sum(known) if len(known) == len(self.files) else None


def format_of(source: Source) -> type[DocumentFile] | None:
    """Return the format in FORMATS that a file is of; None if it is text."""
    name = source.path.lower()
    for suffix, file_type in FORMATS.items():
        if name.endswith(suffix):
            return file_type
        if file_type.may_be_compressed and name.removesuffix(source.compression).endswith(suffix):
            return file_type
    return None


def resolve_sources(names: Sequence[str] | Sources) -> Sources:
    """Return the files that `names` stand for; what is resolved already is returned as it is.

    Raises InputError for no names, a missing or unreadable path, a folder or glob without files, a
    format that needs a package which is missing, or standard input named twice.
    """
    if isinstance(names, Sources):
        return names
    if not names:
        raise InputError("no corpus given: name a file, a folder, a glob or - for standard input")
    if list(names).count(STANDARD_INPUT) > 1:
        raise InputError("standard input (-) is named twice, but can be read only once")
    sources: list[Source] = []
    remotes: dict[str, str] = {}
    left_out = 0
    for name in names:
        if is_remote(name) and not os.path.lexists(name):
            for found in find_remote(name):
                if remotes.setdefault(found.path, found.url) != found.url:
                    raise InputError(f"{found.path} is named by two URLs that are shown alike")
                sources.append(_check_format(Source(found.path, found.size, remote=found)))
            continue
        paths, skipped = _expand(name)
        sources += [_check(path) for path in paths]
        left_out += skipped
    return Sources(sources, left_out)


def _expand(name: str) -> tuple[list[str], int]:
    if name == STANDARD_INPUT:
        return [name], 0
    if os.path.isdir(name):
        return _walk(name)
    if os.path.lexists(name):
        return [name], 0
    if not glob.has_magic(name):
        hint = "; if it is the text itself, pipe it in" if " " in name.strip() else ""
        raise InputError(f"no such file or folder: {name!r}{hint}")
    _check_searched(name)
    paths: set[str] = set()
    left_out = 0
    for match in glob.glob(name, recursive=True):
        found, skipped = _walk(match) if os.path.isdir(match) else ([match], 0)
        paths.update(os.path.normpath(path) for path in found)
        left_out += skipped
    if not paths:
        raise InputError(f"no file matches {name!r}")
    return sorted(paths, key=os.fsencode), left_out


def _check_searched(pattern: str) -> None:
    """Raise InputError for a folder that a glob has to look into and can't.

    `glob.glob` leaves such folders out.
    """
    begin = pattern
    while glob.has_magic(begin):
        begin, last = os.path.split(begin)
        inside = os.path.join(begin, "**", "") if last == "**" else os.path.join(begin, "")
        for folder in [begin or os.curdir, *glob.glob(inside, recursive=True)]:
            needed = os.X_OK | (os.R_OK if glob.has_magic(last) else 0)
            if os.path.isdir(folder) and not os.access(folder, needed):
                raise InputError(f"can't read the folder {folder}: permission denied")


def _walk(folder: str) -> tuple[list[str], int]:
    def fail(error: OSError) -> None:
        raise InputError(f"can't read the folder {error.filename}: {error.strerror}") from error

    paths: list[str] = []
    left_out = 0
    for parent, folders, files in os.walk(folder, onerror=fail):
        entered = [
            name
            for name in folders
            if not (name.startswith(".") or os.path.islink(os.path.join(parent, name)))
        ]
        left_out += len(folders) - len(entered)
        folders[:] = entered
        found = [os.path.join(parent, name) for name in files if not name.startswith(".")]
        regular = [path for path in found if os.path.isfile(path)]
        left_out += len(files) - len(regular)
        paths += regular
    if not paths:
        raise InputError(f"no files in the folder {folder!r} ({left_out} entries left out)")
    return sorted(paths, key=os.fsencode), left_out


def _check(path: str) -> Source:
    if path == STANDARD_INPUT:
        return Source(path, _standard_input_size())
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from error
    if not os.access(path, os.R_OK):
        raise InputError(f"can't read {path}: permission denied")
    is_regular = stat.S_ISREG(status.st_mode)
    size = status.st_size if is_regular else None
    return _check_format(Source(path, size, status.st_mtime_ns))


def _check_format(source: Source) -> Source:
    """Return a source; InputError for a format that can't be read."""
    compression = COMPRESSIONS.get(source.compression)
    if compression and compression.package:
        compression.package.require(source.path)
    file_type = format_of(source)
    if file_type:
        file_type.check(source)
    return source


def _standard_input_size() -> int | None:
    """Bytes left in a file that standard input was redirected from; None for anything else."""
    try:
        descriptor = sys.stdin.fileno()
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return max(0, status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR))
    except (AttributeError, OSError, ValueError):
        return None
