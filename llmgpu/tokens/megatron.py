"""The index beside Megatron-LM's token files, NAME.idx for NAME.bin.

Little-endian: ``MMIDIDX`` and two zero bytes, version 1 (u64), the type of the numbers (u8: 8 is
uint16, 4 is int32), how many sequences and how many document bounds there are (u64 each); then the
tokens of each sequence (i32), the byte at which each begins (i64), and the sequence with which each
document begins, with the number of sequences at the end (i64).

Here a document is one sequence, and documents without ids are left out. Ids are below 2^31, so that
uint32 and int32 are the same bytes.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import InputError, OutputError

MAGIC = b"MMIDIDX\0\0"
VERSION = 1

_ENDING = ".bin"
_COUNTS = struct.Struct("<QBQQ")
_TYPES = {"uint16": (8, 2), "uint32": (4, 4)}  # code, bytes
_MAX_LENGTH = 2**31 - 1


def index_path(path: str | Path) -> str:
    """Return the name of the index of a token file; InputError unless that ends in .bin."""
    stem, ending = os.path.splitext(str(path))
    if ending != _ENDING:
        raise InputError(f"{path}: Megatron's token files end in {_ENDING}, beside an .idx")
    return f"{stem}.idx"


def make_index(kind: str, starts: NDArray[np.int64], count: int) -> bytes:
    """Return the index of `count` ids of a type, uint16 or uint32.

    starts: positions at which documents begin, ascending (n,); ids before the first belong to a
        document of the previous file.

    Raises OutputError for a document of more than 2^31 - 1 ids.
    """
    inside = starts[(starts > 0) & (starts < count)]
    bounds = np.unique(np.concatenate([np.array([0, count], np.int64), inside]))
    lengths = np.diff(bounds)
    if lengths.max(initial=0) > _MAX_LENGTH:
        raise OutputError(f"a document of {lengths.max()} ids: Megatron's limit is {_MAX_LENGTH}")
    code, width = _TYPES[kind]
    sequences = len(lengths)
    return b"".join(
        [
            MAGIC,
            _COUNTS.pack(VERSION, code, sequences, sequences + 1),
            lengths.astype("<i4").tobytes(),
            (bounds[:-1] * width).astype("<i8").tobytes(),
            np.arange(sequences + 1, dtype="<i8").tobytes(),
        ]
    )
