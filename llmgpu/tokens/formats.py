"""The formats of token ids, the layouts of token files, and the names of a token file's files.

Each format is one line in FORMATS. Ids are written slice by slice, and read in blocks of bounded
size with documents end to end. An id is a number from 0 to 2^32 - 1; the decoder checks whether the
vocabulary has the id.

A layout is the form of a token file (format ``bin``): its header, its index and the width of its
numbers. Each layout is one entry of LAYOUTS:

- ``raw``: no header.
- ``llmc``: the header of llm.c's token files, 256 int32, of which the first three are used: magic,
  version, and the number of tokens. The magic number differs for uint16 and uint32.
- ``megatron``: no header; an index of Megatron-LM, NAME.idx, describes NAME.bin.
- ``nanogpt``: no header, and always uint16.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmgpu.errors import InputError
from llmgpu.file_kinds import (
    DECIMAL_IDS,
    JSONL_IDS,
    NPY,
    SIDE_FILE,
    TOKEN_FILE,
    TOKEN_INDEX,
    kind_of,
)
from llmgpu.files import file_size, writes_directly
from llmgpu.input_files import require_known
from llmgpu.outputs import Output, check_outputs
from llmgpu.registry import imported
from llmgpu.spelling import spelled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
    from llmgpu.tokens.sinks import TokenWriter

_LLMC_HEADER = struct.Struct("<3i1012x")
_LLMC_KINDS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}  # magic number, version
_MASK_ENDING = ".mask.npy"


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
    "npy": TokenFormat("one NumPy array", ".npy", NPY, "sinks:read_npy", "sinks:NpyWriter"),
    "bin": TokenFormat(
        "raw numbers with a side file .json", ".bin", TOKEN_FILE, "bin:read_bin", "bin:BinWriter"
    ),
}


_OTHER_ENDINGS = ".arrow .bz2 .csv .gz .h5 .json .npz .parquet .pkl .pt .pth .safetensors .xz .zst"
SHOWN = "tokens"  # readable text, see `llmgpu.tokens.ids`; llmgpu does not read this format


def describe(table: Mapping[str, TokenFormat | Layout]) -> str:
    """Return names and descriptions of all formats or layouts, for --help."""
    return ", ".join(f"{name} ({entry.description})" for name, entry in table.items())


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


@dataclass(frozen=True)
class Layout:
    """A layout: its header, and its limits.

    description: text for --help. header_bytes: length of the header, which is llm.c's; 0 if there
        is none.
    max_tokens: largest number of tokens in a file, None for any number.
    max_ids: largest number of ids in a vocabulary, None for any number.
    has_index: whether an index of Megatron-LM is written, see `llmgpu.tokens.bin`.
    """

    name: str
    description: str
    header_bytes: int = 0
    max_tokens: int | None = None
    max_ids: int | None = None
    has_index: bool = False

    def make_header(self, kind: str, count: int) -> bytes:
        """Return the header of `count` tokens; kind: uint16 or uint32."""
        return _LLMC_HEADER.pack(*_LLMC_KINDS[kind], count) if self.header_bytes else b""

    def parse_header(self, data: bytes, name: str) -> tuple[str, int]:
        """Return type and number of the tokens, for a layout with a header.

        name: of the file, for errors. Raises InputError for an invalid header.
        """
        if len(data) < self.header_bytes:
            raise InputError(f"{name}: {len(data)} bytes, but a header takes {self.header_bytes}")
        magic, version, count = _LLMC_HEADER.unpack_from(data)
        for kind, known in _LLMC_KINDS.items():
            if known == (magic, version) and count >= 0:
                return kind, count
        raise InputError(
            f"{name}: not a header of llm.c tokens (magic {magic}, version {version}, {count} "
            "tokens)"
        )


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("raw", "numbers only"),
        Layout("llmc", "with the header of llm.c", _LLMC_HEADER.size, max_tokens=2**31 - 1),
        Layout("megatron", "with an .idx for Megatron-LM", has_index=True),
        Layout("nanogpt", "uint16 only", max_ids=1 << 16),
    )
}


def get_layout(name: str) -> Layout:
    """Return a layout by its name; InputError for an unknown name."""
    require_known("layout", name, LAYOUTS)
    return LAYOUTS[name]


def side_path(path: str | Path) -> str:
    """Return the name of the side file of the ``bin`` file `path`."""
    return f"{path}.json"


def has_side_file(path: str | Path) -> bool:
    """Whether a ``bin`` file has a side file; InputError if the system can't tell.

    A pipe or a device has none, whatever file has the name.
    """
    return not writes_directly(str(path)) and file_size(side_path(path)) is not None


def mask_path(path: str | Path) -> str:
    """Return the name of the loss mask of the ``bin`` file `path`."""
    return f"{path}{_MASK_ENDING}"


def masked_file(path: str) -> str | None:
    """Return the ``bin`` file of which `path` is the loss mask; None if `path` is no mask."""
    file = path.removesuffix(_MASK_ENDING)
    return file if file != path and os.path.isfile(side_path(file)) else None


def index_name(path: str | Path) -> str:
    """Return the name of a token file's index; InputError if the file's name has no .bin."""
    stem, ending = os.path.splitext(str(path))
    if ending != ".bin":
        raise InputError(f"{path}: Megatron's token files end in .bin, beside an .idx")
    return f"{stem}.idx"


def outputs(
    path: str | Path, format: str, layout: str = "raw", *, masked: bool = False
) -> list[Output]:
    """Return the files that a writer of ids creates.

    Raises InputError unless `format` is in FORMATS, and if the layout needs an index that can't be
    written beside `path`.
    """
    ids = Output(str(path), _get_format(format).kind)
    if ids.kind != TOKEN_FILE:
        return [ids]
    if writes_directly(ids.path):
        if get_layout(layout).has_index:
            raise InputError(
                f"{path}: layout {layout} is two files, so it can't be a pipe or device"
            )
        return [ids]
    side = [ids, Output(side_path(path), SIDE_FILE)]
    if masked:
        side.append(Output(mask_path(path), NPY))
    if get_layout(layout).has_index:
        side.append(Output(index_name(path), TOKEN_INDEX))
    return side


def open_writer(
    path: str | Path,
    format: str,
    vocabulary: Vocabulary,
    *,
    layout: str = "raw",
    masked: bool = False,
    continues: bool = False,
    force: bool = False,
) -> TokenWriter:
    """Open `path` ("-": standard output) for the ids of a vocabulary in one of FORMATS.

    layout: one of LAYOUTS, for ``bin``. masked: whether slices have a loss mask, which
    only ``bin`` stores. continues: see `BinWriter`. force: replace even a file of another kind.

    Raises InputError for an unknown format or layout, OutputError if `path` can't be written.
    """
    check_outputs(outputs(path, format, layout, masked=masked), force=force)
    make, is_bin = imported(f"{_ROOM}.{_get_format(format).writer}"), format == "bin"
    options = {"layout": layout, "continues": continues, "masked": masked} if is_bin else {}
    writer: TokenWriter = make(path, vocabulary, **options)
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
