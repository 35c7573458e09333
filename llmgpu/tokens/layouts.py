"""The layouts of token files: headers before the numbers. Each layout is one line in LAYOUTS.

- ``raw``: no header.
- ``llmc``: the header of llm.c's token files, 256 int32, of which the first three are used: magic,
  version, and the number of tokens. The magic number differs for uint16 and uint32.
- ``megatron``: no header; an index of Megatron-LM, NAME.idx, describes NAME.bin.
- ``nanogpt``: no header, and always uint16.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from llmgpu.errors import InputError
from llmgpu.input_files import require_known

_LLMC_HEADER = struct.Struct("<3i1012x")
_LLMC_KINDS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}  # magic number, version


@dataclass(frozen=True)
class Layout:
    """A layout: its header, and its limits.

    description: text for --help. header_bytes: length of the header. max_tokens: largest number of
        tokens in a file, None for any number.
    make_header: given a type, uint16 or uint32, and a count, returns the header.
    parse_header: given the header and the name of the file, returns type and number of the tokens,
        and raises InputError for an invalid header. None for a layout without a header.
    max_ids: largest number of ids in a vocabulary, None for any number.
    has_index: whether an index of Megatron-LM is written, see `llmgpu.tokens.bin`.
    """

    name: str
    description: str
    header_bytes: int = 0
    max_tokens: int | None = None
    make_header: Callable[[str, int], bytes] = lambda kind, count: b""
    parse_header: Callable[[bytes, str], tuple[str, int]] | None = None
    max_ids: int | None = None
    has_index: bool = False


def _make_llmc_header(kind: str, count: int) -> bytes:
    return _LLMC_HEADER.pack(*_LLMC_KINDS[kind], count)


def _parse_llmc_header(data: bytes, name: str) -> tuple[str, int]:
    if len(data) < _LLMC_HEADER.size:
        raise InputError(f"{name}: {len(data)} bytes, but a header takes {_LLMC_HEADER.size}")
    magic, version, count = _LLMC_HEADER.unpack_from(data)
    for kind, known in _LLMC_KINDS.items():
        if known == (magic, version) and count >= 0:
            return kind, count
    raise InputError(
        f"{name}: not a header of llm.c tokens (magic {magic}, version {version}, {count} tokens)"
    )


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("raw", "numbers only"),
        Layout(
            "llmc",
            "with the header of llm.c",
            _LLMC_HEADER.size,
            2**31 - 1,
            _make_llmc_header,
            _parse_llmc_header,
        ),
        Layout("megatron", "with an .idx for Megatron-LM", has_index=True),
        Layout("nanogpt", "uint16 only", max_ids=1 << 16),
    )
}


def describe_layouts() -> str:
    """Return names and descriptions of all layouts, for --help."""
    return ", ".join(f"{layout.name} ({layout.description})" for layout in LAYOUTS.values())


def get_layout(name: str) -> Layout:
    """Return a layout by its name; InputError for an unknown name."""
    require_known("layout", name, LAYOUTS)
    return LAYOUTS[name]
