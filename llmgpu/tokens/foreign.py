"""Token files of other tools, which have no side file: what their numbers are.

llm.c says it in a header, and Megatron-LM in the index beside the file. nanoGPT does not say it:
its numbers are uint16 as a rule, and who reads them has to know. None of them says of which
vocabulary the ids are.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from llmgpu.errors import InputError
from llmgpu.input_files import listed, quote, read_head
from llmgpu.tokens.layouts import LAYOUTS, Layout
from llmgpu.tokens.megatron import MAGIC, index_path

DTYPES = ("uint16", "uint32")

_INDEX = struct.Struct("<9sQB")
_INDEX_TYPES = {8: "uint16", 4: "uint32"}  # int32 that is not negative is the same
_LLMC = LAYOUTS["llmc"]


def numbers_of(path: str, dtype: str | None = None) -> tuple[Layout, np.dtype[np.integer], int]:
    """Return the layout of a token file without a side file, the type and the number of its ids.

    dtype: one of DTYPES, for a file that does not say it.

    Raises InputError for a file that can't be read, or does not say it either, or says otherwise,
    and for one whose length does not fit.
    """
    layout, found, count = LAYOUTS["raw"], _type_in_index(path), None
    with suppress(InputError):  # it has no such header
        assert _LLMC.parse_header is not None
        found, count = _LLMC.parse_header(read_head(path, _LLMC.header_bytes), path)
        layout = _LLMC
    if found and dtype and found != dtype:
        raise InputError(f"{path}: by its header, its numbers are {found}, not {dtype}")
    if not (chosen := found or dtype):
        raise InputError(
            f"{path} has no side file that records its integer type: if another tool made it, use "
            "--token-dtype uint16 (nanoGPT) or uint32"
        )
    kind = np.dtype(chosen).newbyteorder("<")
    size = os.path.getsize(path) - layout.header_bytes
    if size % kind.itemsize or (count is not None and count * kind.itemsize != size):
        wanted = "a whole number" if count is None else str(count)
        raise InputError(
            f"{path} has {size} bytes of ids, not {wanted} of {kind.itemsize} bytes each: it is "
            "cut short, or its numbers are of another type"
        )
    return layout, kind, size // kind.itemsize


def note_of_foreign(names: Sequence[str], vocabulary_name: str) -> str:
    """Return what to tell of files that don't say of which vocabulary their ids are."""
    return f"{listed(names)}: no side file, so the ids are assumed to be those of {vocabulary_name}"


def _type_in_index(path: str) -> str | None:
    """Return the type that Megatron-LM's index of a file says; None if there is none.

    Raises InputError for another type than ids of llmgpu have.
    """
    try:
        with open(index_path(path), "rb") as file:
            data = file.read(_INDEX.size)
    except (InputError, OSError):
        return None
    if len(data) < _INDEX.size or not data.startswith(MAGIC):
        return None
    code = _INDEX.unpack(data)[2]
    if code not in _INDEX_TYPES:
        raise InputError(
            f"{path}: its index says numbers of type {quote(code)}, which are neither uint16 (8) "
            "nor int32 (4)"
        )
    return _INDEX_TYPES[code]
