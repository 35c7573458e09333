"""What stands before the numbers of a ``bin`` file.

- ``raw``: nothing.
- ``llmc``: the header of llm.c's token files, 256 int32 of which the first three are used: magic,
  version, and the number of tokens, which are uint16 or uint32 by the magic.
"""

from __future__ import annotations

import numpy as np

from llmgpu.errors import InputError

LAYOUTS = ("raw", "llmc")
LLMC_HEADER_BYTES = 1024
LLMC_MAX_TOKENS = 2**31 - 1

_LLMC_KINDS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}  # magic, version


def require_layout(layout: str) -> None:
    """Raise InputError unless `layout` is one of LAYOUTS."""
    if layout not in LAYOUTS:
        raise InputError(f"unknown layout {layout!r}: use one of {', '.join(LAYOUTS)}")


def header_bytes(layout: str) -> int:
    """Bytes before the numbers of a file of `layout`."""
    return LLMC_HEADER_BYTES if layout == "llmc" else 0


def make_header(layout: str, dtype: np.dtype[np.unsignedinteger], count: int) -> bytes:
    """The bytes before `count` numbers of `dtype` (uint16 or uint32)."""
    if layout == "raw":
        return b""
    header = np.zeros(LLMC_HEADER_BYTES // 4, "<i4")
    header[:3] = *_LLMC_KINDS[dtype.name], count
    return header.tobytes()


def parse_llmc_header(data: bytes, name: str) -> tuple[np.dtype[np.unsignedinteger], int]:
    """Return the type and the number of the tokens behind a header; InputError if it is none."""
    if len(data) < LLMC_HEADER_BYTES:
        raise InputError(f"{name}: {len(data)} bytes, but a header takes {LLMC_HEADER_BYTES}")
    magic, version, count = np.frombuffer(data, "<i4", 3).tolist()
    for kind, known in _LLMC_KINDS.items():
        if known == (magic, version) and count >= 0:
            return np.dtype(kind).newbyteorder("<"), count
    raise InputError(
        f"{name}: not a header of llm.c tokens (magic {magic}, version {version}, {count} tokens)"
    )
