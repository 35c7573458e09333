"""Checks of outputs: a command overwrites no input, no other output, no file of another kind.

- Files are compared by device and inode, so that a file is recognized under all spellings of its
  path, and through hard and symbolic links. Paths without a file are compared by folder and name.
- An existing file is replaced if it is of the output's kind, of no known kind, or empty. Plain text
  may be a user's own, so even an output of text does not replace plain text. Neither does an
  output replace a tokenizer.json of another tool or a GGUF file with the tensors of a model.
- A vocabulary is not written under a name with the ending of another tool's file.
- Binary files are not written to a terminal.
- An output to standard output, another descriptor, a pipe or a device replaces no file. A command
  may name a device twice, but not standard output or a pipe.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from llmgpu.errors import OutputError
from llmgpu.file_kinds import (
    COUNTS,
    ENDINGS,
    GGUF,
    NPY,
    TEXT,
    TOKEN_FILE,
    TOKEN_INDEX,
    TOKENIZER_JSON,
    VOCABULARY,
    file_head,
    kind_of,
)
from llmgpu.files import STANDARD_OUTPUT, is_descriptor, output_errors, require_name
from llmgpu.input_files import STANDARD_INPUT, source_name
from llmgpu.spelling import spelled

_BINARY = (VOCABULARY, COUNTS, NPY, TOKEN_FILE, TOKEN_INDEX, GGUF)
# llmgpu indents a tokenizer.json by one space; other tools indent by two spaces, or not at all.
_OWN_TOKENIZER_JSON = b'{\n "version"'
_GGUF_TENSORS = slice(8, 16)  # bytes of the number of tensors, uint64


@dataclass(frozen=True)
class Output:
    """A file to be written.

    path: name. kind: one of the kinds in `llmgpu.file_kinds`; None if the writer itself checks the
    replaced file. is_chosen: whether the user chose the name. A file of the same kind may then be
    replaced.
    """

    path: str
    kind: str | None
    is_chosen: bool = True


def check_outputs(
    outputs: Collection[Output], inputs: Iterable[str | None] = (), *, force: bool = False
) -> None:
    """Raise OutputError if writing `outputs` would destroy a file.

    inputs: the files read by the command; "-" is standard input, and None is skipped.
    force: allow replacing files of another kind, but never an input.
    """
    # An output must be neither an input nor another output. A new file is not an input: for 100 000
    # inputs, examining each takes 0.3 s.
    exist = any(each.path == STANDARD_OUTPUT or os.path.exists(each.path) for each in outputs)
    known = {_identity(path, is_input=True): path for path in inputs if path} if exist else {}
    taken: dict[object, Output] = {}
    for output in outputs:
        require_name(output.path)
        identity = _identity(output.path, is_input=False)
        if identity is not None and identity in known:
            raise OutputError(
                f"{output.path} is an input{_also(known[identity], output.path)}: writing it would "
                "destroy it; choose another output"
            )
        other = taken.get(identity) if identity is not None else None
        if other and (output.kind, other.kind) != (None, None):
            raise OutputError(
                f"{output.path} is given for two outputs{_also(other.path, output.path)}: "
                "choose a file for each"
            )
        taken[identity] = output
    # Refuse bytes to a terminal, and files of another kind.
    for output in () if force else outputs:
        if output.kind in _BINARY and _is_terminal(output.path):
            name = "standard output" if output.path == STANDARD_OUTPUT else output.path
            raise OutputError(
                f"{output.kind} is binary, and {name} is a terminal: name a file, or redirect "
                "the output"
            )
        if output.kind == VOCABULARY and output.path.lower().endswith(tuple(ENDINGS)):
            raise OutputError(
                f"{output.path} would be a vocabulary of llmgpu, not what its name says: name it "
                f"v.bin and export that as {os.path.basename(output.path)}, or use "
                f"{spelled('--force (in Python, force=True)', 'force=True')}"
            )
        _check_replaceable(output)


def _also(other: str, path: str) -> str:
    return "" if other == path else f", the same file as {source_name(other)}"


def _check_replaceable(output: Output) -> None:
    path = output.path
    if path == STANDARD_OUTPUT or is_descriptor(path) or output.kind is None:
        return
    there = kind_of(path)
    other = output.kind
    if there == other:
        there = _describe_kept(path, there)
        other = "other text" if there == TEXT else f"another {other.partition(' ')[2]}"
    if there is not None:
        raise OutputError(
            f"{path} is {there}, and {other} would replace it: choose another output, or "
            f"use {spelled('--force (in Python, force=True)', 'force=True')}"
        )
    if not output.is_chosen and os.path.isfile(path):
        raise OutputError(
            f"{path} exists already: use {spelled('--force')} to replace it, or name a file: -o"
        )


def _describe_kept(path: str, kind: str) -> str | None:
    """Describe an existing file that even an output of the same kind may not replace.

    Returns None for any other file.
    """
    head = file_head(path)
    tensors = int.from_bytes(head[_GGUF_TENSORS], "little")
    if kind == TOKENIZER_JSON and not head.startswith(_OWN_TOKENIZER_JSON):
        return "a tokenizer.json of another tool"
    if kind == GGUF and tensors:
        return f"a GGUF file with {tensors:,} tensors"
    return TEXT if kind == TEXT else None


def _is_terminal(path: str) -> bool:
    with suppress(OSError, ValueError, AttributeError):  # opening the output will raise the error
        if path == STANDARD_OUTPUT:
            return sys.stdout.isatty()
        if stat.S_ISCHR(os.stat(path).st_mode):
            with open(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK), "wb", 0) as file:
                return file.isatty()
    return False


def _identity(path: str, *, is_input: bool) -> object:
    """Return a key that all names of a file share; None for a device or a piped input."""
    try:
        if path in (STANDARD_INPUT, STANDARD_OUTPUT):
            stream = sys.stdin if is_input else sys.stdout
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None if is_input else STANDARD_OUTPUT
        else:
            status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        with output_errors(path):  # the working folder may have been deleted
            folder, name = os.path.split(os.path.realpath(path))
        try:
            parent = os.stat(folder)
        except OSError:
            return os.path.realpath(path)
        return (parent.st_dev, parent.st_ino, name)
    # A missing stream or an invalid name. Opening the file will raise the error.
    except (OSError, ValueError, AttributeError):
        return STANDARD_OUTPUT if path == STANDARD_OUTPUT and not is_input else None
    return None if stat.S_ISCHR(status.st_mode) else (status.st_dev, status.st_ino)
