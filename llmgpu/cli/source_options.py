"""The options that say which files are read and as what; `take_selection` takes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from llmgpu.cli.given import refuse_given, was_given
from llmgpu.cli.options import option_group
from llmgpu.cli.values import TEXT
from llmgpu.errors import InputError

if TYPE_CHECKING:
    from llmgpu.text.sources import Selection, Sources
    from llmgpu.text.streams import Source

STANDARD_INPUT = "-"
INPUT_FORMATS = ("auto", "text", "jsonl", "parquet", "bytes")
SOURCE_OPTIONS = ("input_format", "exclude", "gitignore", "files_from")


source_options = option_group(
    click.option("--input-format", type=click.Choice(INPUT_FORMATS), default="auto",
                 show_default=True,
                 help="Format of the input; auto goes by the file name. text is plain text, bytes "
                 "reads any file as raw bytes."),
    click.option("--exclude", type=TEXT, multiple=True, metavar="GLOB",
                 help="Exclude files and folders with this name ('*.min.js'), or with this path "
                 "inside a folder ('docs/old/*'). Repeatable."),
    click.option("--gitignore", is_flag=True,
                 help="Skip files in folders that .gitignore ignores."),
    click.option("--files-from", metavar="FILE|-",
                 help="Read more file names from FILE or standard input, one per line or separated "
                 "by NUL bytes (find -print0)."),
)  # fmt: skip


def named_files(paths: Sequence[str], files_from: str | None) -> tuple[str, ...]:
    """Return the names of files, those in a list after the others; InputError if it is empty."""
    names = listed_files(paths, files_from)
    if files_from is not None and not names:
        name = "standard input" if files_from == STANDARD_INPUT else files_from
        raise InputError(f"--files-from: {name} names no files")
    return (*paths, *names)


def listed_files(paths: Sequence[str], files_from: str | None) -> tuple[str, ...]:
    """Return the names in a list of files, if there is one; paths: those named besides it."""
    if files_from is None:
        return ()
    if files_from == STANDARD_INPUT and STANDARD_INPUT in paths:
        raise click.UsageError("standard input can't be both the text and the list of --files-from")
    name = "standard input" if files_from == STANDARD_INPUT else files_from
    try:
        if files_from == STANDARD_INPUT:
            data = sys.stdin.buffer.read()
        else:
            with open(files_from, "rb") as file:
                data = file.read()
    except (OSError, AttributeError) as error:
        raise InputError(f"can't read {name}: {getattr(error, 'strerror', error)}") from error
    listed = data.split(b"\0") if b"\0" in data else [*map(_unquoted, data.splitlines())]
    return tuple(line.decode("utf-8", "surrogateescape") for line in listed if line)


def _unquoted(name: bytes) -> bytes:
    """Return a name without the quotes and escapes that git adds to special characters."""
    if not (len(name) > 2 and name.startswith(b'"') and name.endswith(b'"')):
        return name
    try:
        plain = name[1:-1].decode("unicode_escape").encode("latin-1")  # escapes are of bytes
    except UnicodeError:
        return name
    return name if os.path.lexists(name) else plain


def lists_of_files() -> list[str]:
    """Return the lists of files that the current command reads."""
    return [*filter(None, [click.get_current_context().params.get("files_from")])]


def resolve_texts(names: Sequence[str], selection: Selection) -> Sources:
    """Return the files of text that names stand for; see `resolve_sources`, `check_text_field`."""
    from llmgpu.text.sources import resolve_sources

    found = resolve_sources(names, selection)
    check_text_field(found.files)
    return found


def take_selection(reading: dict[str, Any]) -> Selection:
    """Take the options that select files, except for --files-from; return the selection."""
    from llmgpu.text.sources import Selection

    selection = Selection(
        input_format=reading.pop("input_format"),
        exclude=reading.pop("exclude"),
        gitignore=reading.pop("gitignore"),
    )
    if was_given("text_field"):  # it has no other meaning for a pipe
        selection = replace(selection, of_input="jsonl")
    return selection


def check_text_field(files: Sequence[Source]) -> None:
    """Raise click.UsageError for a --text-field if no file has fields."""
    from llmgpu.text.sources import format_of

    if not any(format_of(source) for source in files):
        first = files[0].path if files else "nothing"
        refuse_given(
            ("text_field",),
            f"is for .jsonl and .parquet files, but {first} is read as text; if it has JSON lines, "
            "use --input-format jsonl",
        )
