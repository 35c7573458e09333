"""The formats of token ids; each format is one line in FORMATS.

Ids are written slice by slice, and read in blocks of bounded size with documents end to end. An id
is a number from 0 to 2^32 - 1; the decoder checks whether the vocabulary has the id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmgpu.errors import InputError
from llmgpu.input_files import require_known
from llmgpu.outputs import DECIMAL_IDS, JSONL_IDS, NPY, TOKEN_FILE, Output, check_outputs, kind_of
from llmgpu.registry import imported
from llmgpu.spelling import spelled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmgpu.tokens.sinks import TokenWriter


@dataclass(frozen=True)
class TokenFormat:
    """A format: a description for --help, and the functions of `read_tokens` and `open_writer`.

    ending: suffix of file names. kind: kind of the files, see `llmgpu.outputs`. reader, writer: the
    two functions as ``module:name``, with the module in `llmgpu.tokens`.
    """

    description: str
    ending: str
    kind: str
    reader: str
    writer: str


_ROOM = "llmgpu.tokens"
FORMATS = {
    "ids": TokenFormat(
        "decimal ids, one line per document",
        ".txt",
        DECIMAL_IDS,
        "ids:read_decimals",
        "ids:TextWriter",
    ),
    "jsonl": TokenFormat("JSON lines", ".jsonl", JSONL_IDS, "ids:read_jsonl", "ids:JsonlWriter"),
    "npy": TokenFormat("one NumPy array", ".npy", NPY, "npy:read_npy", "npy:NpyWriter"),
    "bin": TokenFormat(
        "raw numbers with a side file .json", ".bin", TOKEN_FILE, "bin:read_bin", "bin:BinWriter"
    ),
}


_OTHER_ENDINGS = ".arrow .bz2 .csv .gz .h5 .json .npz .parquet .pkl .pt .pth .safetensors .xz .zst"
SHOWN = "tokens"  # readable text, see `llmgpu.tokens.ids`; llmgpu does not read this format


def describe_formats() -> str:
    """Return names and descriptions of all formats, for --help."""
    return ", ".join(f"{name} ({format.description})" for name, format in FORMATS.items())


def format_by_name(path: str | Path) -> str:
    """Return the format of a file by the ending of its name; ``ids`` for an unknown ending."""
    ending = Path(path).suffix.lower()
    return next((name for name, format in FORMATS.items() if format.ending == ending), "ids")


def check_ending(path: str | Path) -> None:
    """Raise InputError for an output whose name ends like a file of another kind (x.parquet)."""
    ending = Path(path).suffix.lower()
    if ending in _OTHER_ENDINGS.split():
        known = ", ".join(format.ending for format in FORMATS.values())
        raise InputError(
            f"{path}: can't write ids as {ending}; use {known}, or choose a format with "
            f"{spelled('--format')}"
        )


def recognize_format(path: str | Path) -> str:
    """Return the format of a file of ids by its content and side file, or else by its name."""
    kind = kind_of(str(path))
    found = (name for name, format in FORMATS.items() if format.kind == kind)
    return next(found, format_by_name(path))


def _get_format(name: str) -> TokenFormat:
    require_known("format", name, FORMATS)
    return FORMATS[name]


def outputs(
    path: str | Path, format: str, layout: str = "raw", *, masked: bool = False
) -> list[Output]:
    """Return the files that a writer of ids creates; InputError unless `format` is in FORMATS."""
    ids = Output(str(path), _get_format(format).kind)
    if ids.kind != TOKEN_FILE:
        return [ids]
    from llmgpu.tokens.bin import bin_outputs

    return bin_outputs(path, layout, masked=masked)


def open_writer(
    path: str | Path,
    format: str,
    *,
    vocabulary_size: int,
    fingerprint: str,
    layout: str = "raw",
    match_facts: Mapping[str, str] | None = None,
    masked: bool = False,
    force: bool = False,
) -> TokenWriter:
    """Open `path` ("-": standard output) for ids in one of FORMATS.

    vocabulary_size: number of ids. fingerprint, match_facts: of the vocabulary, for side files.
    layout: one of LAYOUTS, for ``bin``. masked: whether slices have a loss mask, which
    only ``bin`` stores. force: replace even a file of another kind.

    Raises InputError for an unknown format or layout, OutputError if `path` can't be written.
    """
    check_outputs(outputs(path, format, layout, masked=masked), force=force)
    make, is_bin = imported(f"{_ROOM}.{_get_format(format).writer}"), format == "bin"
    options = {"fingerprint": fingerprint, "layout": layout, "masked": masked} if is_bin else {}
    writer: TokenWriter = make(path, vocabulary_size, **options)
    writer.match_facts = match_facts or {}
    return writer


def read_tokens(path: str | Path, format: str) -> Iterator[NDArray[np.int64]]:
    """Return an iterator over the ids in `path` ("-": standard input), int64, block by block.

    For a ``bin`` stream without a side file, such as a pipe, use `llmgpu.tokens.bin.read_bin`.

    Raises InputError for an unknown format, for a file that can't be read, and for content other
    than ids, with file and line or position.
    """
    chosen, name = _get_format(format), str(path)
    if name != "-" and not os.path.exists(name):
        hint = "; pipe ids into standard input" if name.isdecimal() else ""
        raise InputError(f"no such file: {name!r}{hint}")
    blocks: Iterator[NDArray[np.int64]] = imported(f"{_ROOM}.{chosen.reader}")(name)
    return blocks
