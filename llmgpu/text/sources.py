"""Where a corpus comes from: names turned into files, and the formats of files.

- A source is a file, a folder (walked; its files in byte order of their relative names), a glob
  (the files it matches, with matching folders walked, each file once, in byte order) or ``-`` for
  standard input. A name that exists is that file even if it looks like a glob. A URL is a file,
  folder or glob of another machine, see `llmgpu.text.remote`.
- Of a folder, names that start with a dot, links to folders and special files are left out and
  counted.
- ``--exclude`` takes globs: a glob without a slash is matched with the names of files and folders,
  a glob with a slash with paths from the named folder. A folder that matches is not entered.
- ``--gitignore`` reads the files .gitignore as git does: those of the folder, of folders within,
  and of the folders above it up to the root of the repository. A later line wins, and a deeper
  file; the content of an ignored folder stays ignored.
- A format goes by suffix, unless one is asked for. A file with none of the suffixes is text, and
  refused if its first bytes say that it is not (`llmgpu.text.streams.check_text`). To add a format,
  write a `llmgpu.text.streams.DocumentFile` in a module and add a line to FORMATS.
- Everything that can be known to fail is checked before the first byte is read.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from llmgpu.errors import InputError
from llmgpu.input_files import input_errors, listed, number_of, quote, read_error, read_head
from llmgpu.outputs import TOKEN_FILE, kind_of
from llmgpu.spelling import spelled
from llmgpu.text.compressions import COMPRESSIONS
from llmgpu.text.jsonl import JsonlFile, find_field, parse_json_object
from llmgpu.text.parquet import ParquetFile
from llmgpu.text.remote import find_remote, is_remote
from llmgpu.text.streams import (
    ARROW,
    AUTO,
    BYTES,
    HEAD_BYTES,
    STANDARD_INPUT,
    TEXT,
    DocumentFile,
    Source,
    as_bytes,
    binary_format,
    check_text,
    has_zero_bytes,
)

# Formats whose files have documents inside, by suffix.
FORMATS: dict[str, type[DocumentFile]] = {
    ".jsonl": JsonlFile,
    ".ndjson": JsonlFile,
    ".parquet": ParquetFile,
}


# Files of these names are looked at when they are read, and not before: there may be many.
_TEXTS = (
    ".c .cc .cfg .conf .cpp .cs .css .csv .cu .go .h .hpp .htm .html .ini .java .js .json .jsx .kt "
    ".log .lua .m .md .php .pl .py .pyi .r .rb .rs .rst .scala .sh .sql .srt .swift .tex .toml .ts "
    ".tsv .tsx .txt .wgsl .xml .yaml .yml"
)
_OF_TEXT = frozenset(_TEXTS.split())
_ALL_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
INPUT_FORMATS = (AUTO, TEXT, "jsonl", "parquet", BYTES)  # see `Selection`


@dataclass(frozen=True)
class Selection:
    """Which files are read, and as what.

    input_format: by the name ("auto"), text for any name ("text"), lines of JSON ("jsonl"), a
        table ("parquet"), or bytes ("bytes"), which are not refused for what they are; nor is
        standard input decompressed then.
    of_input: the same for standard input alone, if input_format is "auto".
    exclude, gitignore: see `llmgpu.text.sources`.
    lenient_field: if given, files of folders that are not text are left out, and lines of JSON
        there without a field of this name are text as they are.
    listed: names that stand in a list, which are taken as those of a folder's files.
    may_be_tokens: files need not be text; reading them as text raises the error.
    """

    input_format: str = AUTO
    of_input: str = AUTO
    exclude: tuple[str, ...] = ()
    gitignore: bool = False
    lenient_field: str | None = None
    listed: frozenset[str] = frozenset()
    may_be_tokens: bool = False


_EVERYTHING = Selection()
_ITERATED = "use train_from_iterator, or encode"  # of the Python API


class Sources(NamedTuple):
    """The files of a corpus in the order they are read, and how many folder entries were left out.

    notes: remarks for the user on the files.

    Resolving names walks folders, so it is done once and handed on.
    """

    files: list[Source]
    left_out: int
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int | None:
        """Bytes on disk that are read of all files, None if one of them is not a regular file."""
        lengths = (source.length for source in self.files)
        known = [length for length in lengths if length is not None]
        return sum(known) if len(known) == len(self.files) else None

    @property
    def plain_bytes(self) -> int | None:
        """The same, which is how much text there is; None if a file is not text as it is."""
        if any(format_of(source) or source.compression for source in self.files):
            return None
        return self.total_bytes


def format_of(source: Source) -> type[DocumentFile] | None:
    """Return the format in FORMATS that a file is of; None if it is text."""
    if source.format != AUTO:
        return FORMATS.get(f".{source.format}")
    suffix = source.suffix
    if suffix not in COMPRESSIONS:
        return FORMATS.get(suffix)
    found = FORMATS.get(source._replace(path=source.path[: -len(suffix)]).suffix)
    return found if found and found.may_be_compressed else None


def resolve_sources(names: Sequence[str] | Sources, selection: Selection = _EVERYTHING) -> Sources:
    """Return the files that `names` stand for; what is resolved already is returned as it is.

    Raises InputError for no names, a missing or unreadable path, a folder or glob without files, a
    format that needs a package which is missing, a file that is surely not text, or standard input
    named twice.
    """
    if isinstance(names, Sources):
        return names
    if not names:
        raise InputError("no corpus given: name a file, a folder, a glob or - for standard input")
    if list(names).count(STANDARD_INPUT) > 1:
        raise InputError("standard input (-) is named twice, but can be read only once")
    found = _Found(selection)
    for name in names:
        if is_remote(name) and not os.path.lexists(name):
            found.add_remote(name)
        else:
            found.add_local(name)
    if not found.sources and not selection.listed:
        what = "is not text" if found.binaries else "is excluded"
        raise InputError(f"all of {listed(list(names))} {what}: no file is left")
    return found.resolved()


class _Found:
    """The files that names stand for, so far.

    binaries: those left out that are not text.
    """

    def __init__(self, selection: Selection) -> None:
        self.sources: list[Source] = []
        self.binaries: list[str] = []
        self._left_out = 0
        self._notes: list[str] = []
        self._selection = selection
        self._remotes: dict[str, str] = {}

    def resolved(self) -> Sources:
        """Return them all."""
        skipped = f"{number_of(len(self.binaries), 'binary file')} skipped: {listed(self.binaries)}"
        notes = [*self._notes, *([skipped] if self.binaries else [])]
        return Sources(self.sources, self._left_out, tuple(notes))

    def add_remote(self, name: str) -> None:
        """Add the files that a URL stands for."""
        for found in find_remote(name):
            if self._remotes.setdefault(found.path, found.url) != found.url:
                raise InputError(f"{found.path} is named by two URLs that are shown alike")
            source = Source(found.path, found.size, remote=found, format=self._format_of("url"))
            if not is_excluded(found.path, self._selection.exclude):
                self.sources.append(_check_format(source))

    def add_local(self, name: str) -> None:
        """Add the files that a name stands for."""
        chosen = self._selection
        if os.path.isdir(name):
            folder = f"{name.rstrip('/')}/"
            self._notes += [
                f"--exclude {quote(glob)} is matched with paths within {folder}: try "
                f"{quote(glob.removeprefix(folder))}"
                for glob in chosen.exclude
                if glob.startswith(folder) and glob != folder
            ]
        paths, skipped = _expand(name, chosen)
        self._left_out += skipped
        is_named = paths == [name] and name not in chosen.listed
        for path in paths:
            source = _check(path, self._format_of(path))
            if self._is_binary(source, is_named):
                self.binaries.append(path)
            else:
                self.sources.append(source if is_named else self._as_text(source))

    def _format_of(self, path: str) -> str:
        chosen = self._selection
        is_input = path == STANDARD_INPUT and chosen.input_format == AUTO
        return chosen.of_input if is_input else chosen.input_format

    def _is_binary(self, source: Source, is_named: bool) -> bool:
        """Whether a file is to be left out because it is not text."""
        chosen = self._selection
        leaves_out = chosen.lenient_field is not None and not is_named
        if (source.suffix in _OF_TEXT and not leaves_out) or not source.size:
            return False
        if source.path == STANDARD_INPUT or source.compression:  # is looked at when it is read
            return False
        if chosen.may_be_tokens or source.format != AUTO or format_of(source) is not None:
            return False
        head = read_head(source.path, HEAD_BYTES)
        kind = binary_format(head)
        if leaves_out and kind != ARROW:  # leaving out the texts of a data set would go unseen
            return kind is not None or has_zero_bytes(head)
        check_text(head, source.path)
        if has_zero_bytes(head) and kind_of(source.path) == TOKEN_FILE:
            raise InputError(
                f"{source.path} is a token file: tokenize {spelled('--decode')} gives its text; "
                f"or {as_bytes()}"
            )
        return False

    def _as_text(self, source: Source) -> Source:
        """Return a file of a folder: as text, if it has lines of JSON without the field."""
        name = self._selection.lenient_field
        if name is None or source.compression or format_of(source) is not JsonlFile:
            return source
        line = read_head(source.path, HEAD_BYTES).partition(b"\n")[0]
        try:
            find_field(parse_json_object(line, source.path), source.path, name)
        except InputError:
            return source._replace(format=TEXT)
        return source


def _expand(name: str, selection: Selection) -> tuple[list[str], int]:
    """Return the files that a name stands for, and how many entries of folders were left out."""
    exclude = selection.exclude
    if name == STANDARD_INPUT:
        return [name], 0
    if os.path.isdir(name):
        return walk_folder(name, exclude, gitignore=selection.gitignore)
    if os.path.lexists(name):
        return [] if is_excluded(name, exclude) else [name], 0
    if not glob.has_magic(name):
        hint = (
            f"; if it is the text itself, {spelled('pipe it in', _ITERATED)}"
            if " " in name.strip()
            else ""
        )
        raise InputError(f"no such file or folder: {name!r}{hint}")
    _check_searched(name)
    paths: set[str] = set()
    left_out = 0
    matches = glob.glob(name, recursive=True)
    for match in matches:
        found, skipped = [match], 0
        if is_excluded(match, exclude):
            continue
        if os.path.isdir(match):
            found, skipped = walk_folder(match, exclude, gitignore=selection.gitignore)
        paths.update(os.path.normpath(path) for path in found)
        left_out += skipped
    if not matches:
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


def _check(path: str, format: str) -> Source:
    if path == STANDARD_INPUT:
        return _check_format(Source(path, _standard_input_size(), format=format))
    try:
        status = os.stat(path)
    except OSError as error:
        raise read_error(path, error) from error
    if status.st_mode & _ALL_READ != _ALL_READ and not os.access(path, os.R_OK):
        raise InputError(f"can't read {path}: permission denied")
    is_regular = stat.S_ISREG(status.st_mode)
    size = status.st_size if is_regular else None
    return _check_format(Source(path, size, status.st_mtime_ns, format=format))


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


_IGNORE = ".gitignore"


@dataclass(frozen=True)
class Rule:
    """A line of a .gitignore.

    folder: of the .gitignore. expression: matches names, or paths from the folder on.
    ignores: not the opposite.
    """

    folder: str
    expression: re.Pattern[str]
    is_for_names: bool
    is_for_folders: bool
    ignores: bool

    def matches(self, path: str, is_folder: bool) -> bool:
        """Whether the line is about a path, which is below the folder."""
        if self.is_for_folders and not is_folder:
            return False
        if self.is_for_names:
            return self.expression.fullmatch(os.path.basename(path)) is not None
        below = os.path.relpath(path, self.folder).replace(os.sep, "/")
        return self.expression.fullmatch(below) is not None


def walk_folder(
    folder: str, exclude: Sequence[str] = (), *, gitignore: bool = False
) -> tuple[list[str], int]:
    """Return the files of a folder in byte order, and how many entries were left out.

    Those that `exclude` or `gitignore` leave out were meant to be, and are not counted.

    Raises InputError for a folder or .gitignore that can't be read, and if there are no files.
    """

    paths: list[str] = []
    left_out = unwanted = 0
    entered = [(folder, _rules_above(folder) if gitignore else ())]
    while entered:
        parent, rules = entered.pop()
        rules += read_rules(parent) if gitignore else ()
        with input_errors(f"the folder {parent}"), os.scandir(parent) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                is_file = entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path)
                if entry.name.startswith(".") or not (is_folder or is_file):
                    left_out += 1
                elif (exclude and _is_unwanted(folder, entry.path, exclude)) or (
                    rules and is_ignored(rules, entry.path, is_folder)
                ):
                    unwanted += 1
                elif is_folder:
                    entered.append((entry.path, rules))
                else:
                    paths.append(entry.path)
    if not paths:
        excluded = f", {unwanted} excluded" if unwanted else ""
        raise InputError(
            f"no files in the folder {folder!r} ({left_out} entries skipped{excluded})"
        )
    return sorted(paths, key=os.fsencode), left_out


def is_excluded(path: str, exclude: Sequence[str]) -> bool:
    """Whether one of some globs is about a path, or about its last name if it has no slash."""
    name = os.path.basename(path)
    globs = (glob.rstrip("/") for glob in exclude)
    return any(fnmatchcase(path if "/" in glob else name, glob.lstrip("/")) for glob in globs)


def _is_unwanted(folder: str, path: str, exclude: Sequence[str]) -> bool:
    """Whether globs leave out an entry of `folder`, or of a folder within it."""
    return is_excluded(os.path.relpath(path, folder).replace(os.sep, "/"), exclude)


def is_ignored(rules: Sequence[Rule], path: str, is_folder: bool) -> bool:
    """Whether the last rule that is about an entry of a folder ignores it."""
    found = (rule.ignores for rule in reversed(rules) if rule.matches(path, is_folder))
    return next(found, False)


def read_rules(folder: str) -> tuple[Rule, ...]:
    """Return the rules of a folder's .gitignore; InputError if it is there and can't be read."""
    name = os.path.join(folder, _IGNORE)
    lines = []
    with (
        input_errors(name),
        suppress(FileNotFoundError, IsADirectoryError),
        open(name, encoding="utf-8", errors="surrogateescape") as file,
    ):
        lines = file.read().split("\n")
    return tuple(rule for line in lines if (rule := parse_rule(line.rstrip("\r"), folder)))


def parse_rule(line: str, folder: str) -> Rule | None:
    """Return the rule in a line of a folder's .gitignore; None if it is empty or a comment."""
    if line.startswith("#"):
        return None
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    ignores = not line.startswith("!")
    pattern = line if ignores else line[1:]
    is_for_folders = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    if not pattern:
        return None
    try:
        expression = re.compile(_expression_of(pattern.removeprefix("/")), re.DOTALL)
    except re.error:  # a class such as [z-a], which matches nothing
        return None
    return Rule(folder, expression, "/" not in pattern, is_for_folders, ignores)


@cache
def _expression_of(glob: str) -> str:
    """Return the regular expression of a glob of git."""
    tokens = re.compile(r"(?s)^\*\*/|/\*\*/|/\*\*$|\*+|\?|\[[!^]?\]?(?:\\.|[^\]])*\]|\\.|.")
    special = {"/**/": "/(?:.*/)?", "**/": "(?:.*/)?", "/**": "/.*", "?": "[^/]"}
    parts = []
    for found in tokens.finditer(glob):
        token = found[0]
        if token in special and (token != "**/" or found.start() == 0):
            parts.append(special[token])
        elif token.startswith("*"):
            parts.append("[^/]*")
        elif token.startswith("[") and len(token) > 1:
            inside = token[1:-1]
            negated = inside[:1] in ("!", "^")
            inside = inside[negated:].replace("[", "\\[")
            first = "\\" if inside.startswith("]") else ""  # a bracket there is a character
            parts.append(f"(?!/)[{'^' if negated else ''}{first}{inside}]")
        else:
            parts.append(re.escape(token[1:] if token.startswith("\\") else token))
    return "".join(parts)


def _rules_above(folder: str) -> tuple[Rule, ...]:
    """Return the rules of the folders above one, if they are of the same repository."""
    above: list[str] = []
    here = os.path.abspath(folder)
    while not os.path.exists(os.path.join(here, ".git")):
        parent = os.path.dirname(here)
        if parent == here:  # there is no repository
            return ()
        above.append(here := parent)
    return tuple(rule for name in reversed(above) for rule in read_rules(name))
