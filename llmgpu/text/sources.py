"""The sources of a corpus: the files that the user's names select, and the formats of files.

- A name is a file, a folder, a glob, or ``-`` for standard input. A folder selects all files in it
  and its subfolders, in byte order of their relative names. A glob selects the files that it
  matches and the files of matching folders, each file once, in byte order. If a file exists under a
  name that looks like a glob, the name selects this file. A URL is a file, folder or glob of
  another machine, see `llmgpu.text.remote`.
- In a folder, names that start with a dot, links to folders and special files are left out and
  counted.
- ``--exclude`` has globs. A glob without a slash is matched with the names of files and folders, a
  glob with a slash with the path relative to the named folder. A matching folder is not entered.
- ``--gitignore`` reads .gitignore files as git does: in the folder, in its subfolders, and in the
  folders above up to the root of the repository. A later line overrules an earlier one, and a
  deeper file overrules a higher one; the content of an ignored folder stays ignored.
- The suffix of a file decides its format, unless the options name a format. A file without a known
  suffix is read as text, and refused if its first bytes are of a binary format
  (`llmgpu.text.streams.check_text`). In a folder, such a file is left out with a note, and so is a
  compressed file whose first bytes can't be decompressed. A file whose rows lack the usual field is
  left out unless the user has named a field or the folder has no other file. To add a format, write
  a `llmgpu.text.streams.DocumentFile` in a module and add a line to FORMATS.
- All errors that can be known beforehand are raised before the first byte is read.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from typing import NamedTuple

from llmgpu.errors import InputError
from llmgpu.file_kinds import TOKEN_FILE, kind_of
from llmgpu.input_files import STANDARD_INPUT, input_errors, listed, number_of, quote, read_error
from llmgpu.spelling import spelled
from llmgpu.text.compressions import COMPRESSIONS, PACKAGES
from llmgpu.text.documents import MissingFieldError
from llmgpu.text.jsonl import JsonlFile
from llmgpu.text.remote import find_remote, is_listing, is_remote, shown_url
from llmgpu.text.streams import (
    ARROW,
    AUTO,
    UTF_16,
    DocumentFile,
    Source,
    as_bytes,
    binary_format,
    check_text,
    head_of,
    look_at_text,
)
from llmgpu.text.tables import ArrowFile, ParquetFile

# Formats of files that contain several documents, by suffix.
FORMATS: dict[str, type[DocumentFile]] = {
    ".jsonl": JsonlFile,
    ".ndjson": JsonlFile,
    ".parquet": ParquetFile,
    ".arrow": ArrowFile,
}


# Suffixes of text. The first bytes of these files are checked only when the files are read.
_TEXTS = (
    ".c .cc .cfg .conf .cpp .cs .css .csv .cu .go .h .hpp .htm .html .ini .java .js .json .jsx .kt "
    ".log .lua .m .md .php .pl .py .pyi .r .rb .rs .rst .scala .sh .sql .srt .swift .tex .toml .ts "
    ".tsv .tsx .txt .wgsl .xml .yaml .yml"
)
_OF_TEXT = frozenset(_TEXTS.split())
# Names of files that only describe a data set, and the words that name its subsets in paths.
_CARD_NAMES = (
    "README.md LICENSE LICENSE.md LICENSE.txt dataset_info.json dataset_infos.json "
    "dataset_dict.json state.json"
)
_CARDS = frozenset(_CARD_NAMES.split())
SUBSETS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_OF_TOKENS = (".bin", ".idx", ".json", ".npy")  # suffixes of token files and of files beside them
_ALL_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


@dataclass(frozen=True)
class Selection:
    """The files to read, and their formats.

    input_format: "auto" to decide by suffix; otherwise the format of all files: "text", "jsonl"
        (lines of JSON), "parquet" or "arrow" (tables), or "bytes". "bytes" accepts any file, and
        does not decompress standard input.
    of_input: the format of standard input alone, if input_format is "auto".
    exclude, gitignore: see `llmgpu.text.sources`.
    skips_binaries: whether to leave out binary files of folders, globs and lists, with a note.
    lists_skipped: whether the note names each file that was left out.
    listed: names from a list, treated like names of files in a folder.
    usual_field: leave out files of folders, globs and lists whose rows lack this field, with a
        note; None to keep all files.
    subset: a key of SUBSETS, None for all files. A file in a folder, a glob or at a URL belongs to
        the subset that its path names. If several folders of the path name one, the last decides.
    may_be_tokens: whether files may be token files. Resolving names then accepts binary files, but
        reading them as text does not.
    """

    input_format: str = AUTO
    of_input: str = AUTO
    exclude: tuple[str, ...] = ()
    gitignore: bool = False
    skips_binaries: bool = False
    lists_skipped: bool = False
    listed: frozenset[str] = frozenset()
    may_be_tokens: bool = False
    usual_field: str | None = None
    subset: str | None = None


class _Reason(NamedTuple):
    """A reason for leaving files out, as texts of a note: a noun for the files, reason, remedy."""

    noun: str
    words: str = ""
    remedy: str = ""

    def note(self, paths: Sequence[str], *, names_all: bool) -> str:
        """Return the note about the files that were left out."""
        names = ", ".join(map(quote, paths)) if names_all else listed(paths)
        return f"{number_of(len(paths), self.noun)}{self.words} skipped: {names}{self.remedy}"


_BINARY, _DAMAGED = _Reason("binary file"), _Reason("damaged compressed file")
_IN_UTF_16 = _Reason("file", " in UTF-16", "; iconv converts text to UTF-8")
_EVERYTHING = Selection()
_ITERATED = "use train_from_iterator, or encode"  # advice for callers of the Python API


class Sources(NamedTuple):
    """The files of a corpus.

    files: in reading order. left_out: the number of folder entries that were left out. notes:
    remarks about the files for the user.

    Resolving names walks folders, so names are resolved once and the result is passed on.
    """

    files: list[Source]
    left_out: int
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int | None:
        """Bytes to read in all files; None if the length of a file is unknown, as of a pipe."""
        lengths = (source.length for source in self.files)
        known = [length for length in lengths if length is not None]
        return sum(known) if len(known) == len(self.files) else None

    @property
    def plain_bytes(self) -> int | None:
        """`total_bytes` if all files are uncompressed plain text; else None."""
        if any(format_of(source) or source.compression for source in self.files):
            return None
        return self.total_bytes


def format_of(source: Source) -> type[DocumentFile] | None:
    """Return the format of a file in FORMATS; None if the file is text."""
    if source.format != AUTO:
        return FORMATS.get(f".{source.format}")
    suffix = source.suffix
    if suffix not in COMPRESSIONS:
        return FORMATS.get(suffix)
    found = FORMATS.get(source._replace(path=source.path[: -len(suffix)]).suffix)
    return found if found and found.has_lines else None


def resolve_sources(names: Sequence[str] | Sources, selection: Selection = _EVERYTHING) -> Sources:
    """Return the files of `names`; a resolved `Sources` is returned unchanged.

    Raises InputError for no names, a missing or unreadable path, a folder or glob without files, a
    format without its package, a file that is surely not text, or standard input named twice.
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
        what = "is not text" if found.not_text else "is excluded"
        if selection.subset is not None:
            what += f", or not of subset {selection.subset}"
        raise InputError(f"all of {listed(list(names))} {what}: no file is left")
    return found.resolved()


class _Found:
    """Collects the files of a corpus while names are resolved.

    not_text: files that were left out because they contain no text to read, by the reason.
    """

    def __init__(self, selection: Selection) -> None:
        self.sources: list[Source] = []
        self.not_text: dict[_Reason, list[str]] = {}
        self._of_other_subsets: list[str] = []  # files of other subsets, named by the user
        self._left_out = 0
        self._notes: list[str] = []
        self._selection = selection
        self._remotes: dict[str, str] = {}

    def resolved(self) -> Sources:
        """Return all files found."""
        notes = [*self._notes]
        for why, paths in sorted(self.not_text.items()):
            notes.append(why.note(paths, names_all=self._selection.lists_skipped))
        if others := self._of_other_subsets:
            count = number_of(len(others), "file")
            notes.append(f"{count} of other subsets left out: {listed(others)}")
        return Sources(self.sources, self._left_out, tuple(notes))

    def add_remote(self, name: str) -> None:
        """Add the files of a URL."""
        remotes = find_remote(name)
        is_named = [found.url for found in remotes] == [name]
        if is_named and is_listing(name):
            page = shown_url(name).rstrip("/")
            self._notes.append(
                f"{page}/ is read as the page that the server sends: {quote(page + '/*')} reads "
                "the files that the page links to"
            )
        chosen = {*self._chosen([found.path for found in remotes], name)}
        kept = [found for found in remotes if found.path in chosen]
        for found in kept:
            if self._remotes.setdefault(found.path, found.url) != found.url:
                raise InputError(f"{found.path} is named by two URLs that are shown alike")
        format, exclude = self._selection.input_format, self._selection.exclude
        sources = [Source(found.path, found.size, remote=found, format=format) for found in kept]
        self._add((_check_format(s) for s in sources if not is_excluded(s.path, exclude)), is_named)

    def add_local(self, name: str) -> None:
        """Add the files of a path, folder or glob."""
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
        if not is_named:
            paths = self._chosen(paths, name)
        elif chosen.subset is not None and subset_of(name) not in (None, chosen.subset):
            self._of_other_subsets.append(name)
            return
        is_input = name == STANDARD_INPUT and chosen.input_format == AUTO
        format = chosen.of_input if is_input else chosen.input_format
        found = (_check(path, format) for path in paths)
        self._add(found, is_named, may_be_none=name in chosen.listed)

    def _add(self, sources: Iterable[Source], is_named: bool, *, may_be_none: bool = False) -> None:
        """Add files, except those without text that come from a folder or a glob.

        may_be_none: allow leaving out all of the files. If False and no file remains, files whose
        reason has a remedy are added after all, such as files without the usual field. Reading
        these files raises the error.
        """
        kept: list[Source] = []
        left_out: dict[_Reason, list[Source]] = {}
        for source in sources:
            why = self._why_left_out(source, is_named)
            (kept if why is None else left_out.setdefault(why, [])).append(source)
        if not kept and not may_be_none:
            others = [why for why in left_out if why.remedy]
            returned = chain.from_iterable(map(left_out.pop, others))
            kept = sorted(returned, key=lambda source: os.fsencode(source.path))
        self.sources += kept
        for why, without_text in left_out.items():
            self.not_text.setdefault(why, []).extend(source.path for source in without_text)

    def _chosen(self, paths: list[str], name: str) -> list[str]:
        """Return the files of the wanted subset, without files that only describe the data set.

        paths: all files of a folder, glob or URL. name: the folder, glob or URL. A file named like
        a description is left out only if all other files have a format with several documents.
        """
        chosen = self._selection
        cards = [path for path in paths if os.path.basename(path) in _CARDS]
        if 0 < len(cards) < len(paths) and chosen.input_format == AUTO:
            others = [path for path in paths if path not in {*cards}]
            if all(format_of(Source(path, None)) for path in others):
                card = number_of(len(cards), "file")
                self._notes.append(f"{card} beside the data left out: {listed(cards)}")
                paths = others
        if chosen.subset is None:
            return paths
        found = [path for path in paths if subset_of(path.removeprefix(name)) == chosen.subset]
        if not found:
            raise InputError(
                f"{name} has no file with {' or '.join(SUBSETS[chosen.subset])} in its name, for "
                f"{spelled('--subset')} {chosen.subset}"
            )
        return found

    def _why_left_out(self, source: Source, is_named: bool) -> _Reason | None:
        """Return the reason for leaving a file out; None to read the file."""
        chosen = self._selection
        leaves_out = chosen.skips_binaries and not is_named
        field, kind = chosen.usual_field, format_of(source)
        if leaves_out and field is not None and _lacks_field(source, kind, field):
            remedy = f"; {spelled('--text-field')} names another field"
            return _Reason("file", f" without field {quote(field)}", remedy)
        suffix, is_compressed = source.suffix, bool(source.compression)
        # Most remote files are checked when they are read, which saves a request now.
        if source.remote is not None:
            inside = source._replace(path=source.path.removesuffix(source.compression))
            is_unclear = kind is None and inside.suffix not in _OF_TEXT
            if not (leaves_out and is_unclear):
                return None
        # Only the first bytes of a compressed file are checked. Damage further on raises an error
        # when it is read, because the text before the damage may already have been used.
        is_packed = is_compressed and leaves_out and source.size is not None
        has_format = source.format != AUTO or kind is not None
        # Texts are not checked here: with many small files, this would take as long as reading all
        # their bytes.
        is_known = has_format or suffix in _OF_TEXT
        may_be_tokens = chosen.may_be_tokens and (not leaves_out or suffix in _OF_TOKENS)
        later = not source.size or source.path == STANDARD_INPUT or is_compressed
        if not is_packed and (is_known or may_be_tokens or later):
            return None
        head = head_of(source)
        if head is None or (is_packed and has_format):
            return _DAMAGED if head is None else None
        # An Arrow file is not left out: an error is safer than missing data.
        if is_packed or (leaves_out and binary_format(head) != ARROW):
            return _why_binary(source, head)
        check_text(head, source.path)
        if b"\0" in head and kind_of(source.path) == TOKEN_FILE:
            raise InputError(
                f"{source.path} is a token file: tokenize {spelled('--decode')} gives its text; "
                f"or {as_bytes()}"
            )
        return None


def _why_binary(source: Source, head: bytes) -> _Reason | None:
    """Return why a file that is binary by its first bytes is left out; None for text."""
    kind = binary_format(head)
    if kind == UTF_16:
        return _IN_UTF_16
    is_text = look_at_text(head)[1] and kind_of(source.path) != TOKEN_FILE
    return _BINARY if kind is not None or (b"\0" in head and not is_text) else None


def _lacks_field(source: Source, kind: type[DocumentFile] | None, field: str) -> bool:
    """Whether the rows of a file lack a field, so that reading the file would fail.

    kind: `format_of` the file.
    """
    is_checked = source.format == AUTO and source.remote is None and source.size
    if kind is None or not is_checked:
        return False
    try:
        if kind is JsonlFile:
            # Without a size, the stream does not decompress blocks ahead. Only its first rows are
            # needed.
            JsonlFile(source._replace(size=None), field).check_first_rows()
        else:
            kind(source, field).close()
    except InputError as error:  # other errors are raised when the file is read
        return isinstance(error, MissingFieldError)
    return False


def _expand(name: str, selection: Selection) -> tuple[list[str], int]:
    """Return the files that a name selects, and the number of folder entries left out."""
    exclude = selection.exclude
    # A name of an existing file or folder selects it, even if the name looks like a glob.
    if name == STANDARD_INPUT:
        return [name], 0
    if os.path.isdir(name):
        return walk_folder(name, exclude, gitignore=selection.gitignore)
    if os.path.lexists(name):
        return [] if is_excluded(name, exclude) else [name], 0
    if not glob.has_magic(name):
        hint = f"; if it is the text itself, {spelled('pipe it in', _ITERATED)}"
        raise InputError(f"no such file or folder: {name!r}{hint if ' ' in name.strip() else ''}")
    # A glob. Each file is returned once, even if the glob matches both the file and its folder.
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
    """Raise InputError if a glob has to search an unreadable folder, which `glob.glob` skips."""
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
    except OSError as error:  # `input_errors` takes as long as os.stat
        raise read_error(path, error) from error
    if status.st_mode & _ALL_READ != _ALL_READ and not os.access(path, os.R_OK):
        raise InputError(f"can't read {path}: permission denied")
    is_regular = stat.S_ISREG(status.st_mode)
    size = status.st_size if is_regular else None
    return _check_format(Source(path, size, status.st_mtime_ns, format=format))


def _check_format(source: Source) -> Source:
    """Return the source; InputError if its format lacks a package, or can't be read from a pipe."""
    if package := PACKAGES.get(source.compression):
        package.require(source.path)
    file_type = format_of(source)
    if file_type:
        file_type.check(source)
    return source


def _standard_input_size() -> int | None:
    """Return the unread bytes of a file that is standard input; None for a pipe or terminal."""
    with suppress(AttributeError, OSError, ValueError):
        descriptor = sys.stdin.fileno()
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return max(0, status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR))
    return None


# A line of a .gitignore: the length of its folder's absolute path, an expression for the rest of a
# path, in which a folder ends with a slash, and False for a line with "!", whose paths are kept.
Rule = tuple[int, re.Pattern[str], bool]


def walk_folder(
    folder: str, exclude: Sequence[str] = (), *, gitignore: bool = False
) -> tuple[list[str], int]:
    """Return the files of a folder in byte order, and the number of entries that were left out.

    The number does not include entries that `exclude` or `gitignore` leave out.

    Raises InputError for a folder or .gitignore that can't be read, and if there are no files.
    """
    paths: list[str] = []
    left_out = unwanted = 0
    # Folders that were found but not read yet, each with the rules of the folders above.
    entered = [(folder, _rules_above(folder) if gitignore else ())]
    while entered:
        parent, rules = entered.pop()
        rules += _read_rules(parent) if gitignore else ()
        place = _with_slash(parent) if rules else ""  # only rules look at whole paths
        with input_errors(f"the folder {parent}"), os.scandir(parent) as entries:
            for entry in entries:
                # A link to a file is a file; a link to a folder is left out.
                is_folder = entry.is_dir(follow_symlinks=False)
                is_file = entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path)
                if entry.name.startswith(".") or not (is_folder or is_file):
                    left_out += 1
                elif (exclude and is_excluded(_below(entry.path, folder), exclude)) or _is_ignored(
                    rules, place + entry.name + "/" * is_folder
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


def subset_of(path: str) -> str | None:
    """Return the subset of a data set that a path belongs to, such as "train"; None if unknown.

    The words in the last folder or file name that contains a word of SUBSETS decide.
    """
    for part in reversed(path.split("/")):
        words = re.split(r"[^a-z]+", part.lower())
        for subset, names in SUBSETS.items():
            if not set(names).isdisjoint(words):
                return subset
    return None


def is_excluded(path: str, exclude: Sequence[str]) -> bool:
    """Whether a glob matches a path; a glob without a slash is compared with the last name only."""
    name = os.path.basename(path)
    globs = (glob.rstrip("/") for glob in exclude)
    return any(fnmatchcase(path if "/" in glob else name, glob.lstrip("/")) for glob in globs)


def _below(path: str, folder: str) -> str:
    """Return the path relative to `folder`, with slashes."""
    return os.path.relpath(path, folder).replace(os.sep, "/")


def _with_slash(folder: str) -> str:
    """Return a folder's absolute path with slashes as separators and a slash at its end."""
    return os.path.join(os.path.abspath(folder), "").replace(os.sep, "/")


def _is_ignored(rules: Sequence[Rule], path: str) -> bool:
    """Whether git would ignore a path: the last rule that matches decides."""
    found = (ignores for begin, rest, ignores in reversed(rules) if rest.fullmatch(path, begin))
    return next(found, False)


def _read_rules(folder: str) -> tuple[Rule, ...]:
    """Return the rules of a folder's .gitignore, if any; InputError if it can't be read."""
    name = os.path.join(folder, ".gitignore")
    lines = []
    with (
        input_errors(name),
        suppress(FileNotFoundError, IsADirectoryError),
        open(name, encoding="utf-8", errors="surrogateescape") as file,
    ):
        lines = file.read().split("\n")
    begin = len(_with_slash(folder)) if lines else 0
    found = (_parse_rule(line.rstrip("\r")) for line in lines)
    return tuple((begin, *rule) for rule in found if rule)


@cache
def _parse_rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Parse a line of a .gitignore; None for an empty line or a comment."""
    if line.startswith("#"):
        return None
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    ignores = not line.startswith("!")
    pattern = line if ignores else line[1:]
    end = "(?<!/)/" if pattern.endswith("/") else "(?<!/)/?"  # the last name is not empty
    pattern = pattern.removesuffix("/")
    if not pattern:
        return None
    inside = "" if "/" in pattern else "(?:.*/)?"  # a name is matched in any folder
    with suppress(re.error):  # an invalid class such as [z-a], which matches no name
        expression = inside + _expression_of(pattern.removeprefix("/")) + end
        return re.compile(expression, re.DOTALL), ignores
    return None


def _expression_of(glob: str) -> str:
    """Translate a glob of git to a regular expression."""
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
            # a bracket at the start belongs to the class
            first = "\\" if inside.startswith("]") else ""
            parts.append(f"(?!/)[{'^' if negated else ''}{first}{inside}]")
        else:
            parts.append(re.escape(token[1:] if token.startswith("\\") else token))
    return "".join(parts)


def _rules_above(folder: str) -> tuple[Rule, ...]:
    """Return the rules of the parent folders of `folder` within the same repository."""
    above: list[str] = []
    here = os.path.abspath(folder)
    while not os.path.exists(os.path.join(here, ".git")):
        parent = os.path.dirname(here)
        if parent == here:  # reached the root of the file system: there is no repository
            return ()
        above.append(here := parent)
    return tuple(rule for name in reversed(above) for rule in _read_rules(name))
