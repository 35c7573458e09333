"""The files of folders: which are entered, and which are left out.

- Names that start with a dot, links to folders and special files are left out and counted.
- ``--exclude`` takes globs: one without a slash is matched with the names of files and folders, one
  with a slash with paths from the folder that was named. A folder that matches is not entered.
- ``--gitignore`` reads the files .gitignore as git does: those of the folder, of folders within,
  and of those above it up to the root of the repository. A later line wins, and a deeper file; what
  is in an ignored folder stays ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from llmgpu.errors import InputError
from llmgpu.input_files import input_errors

_IGNORE = ".gitignore"


@dataclass(frozen=True)
class Rule:
    """A line of a .gitignore.

    folder: that it is in. expression: what it matches, names or paths from the folder on.
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
