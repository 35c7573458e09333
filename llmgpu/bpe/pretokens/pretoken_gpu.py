"""Marking the starts of pre-tokens on a device: kernels in wgsl/pretoken, one for each family.

Whether a pre-token starts may depend on a long run of characters. A kernel looks only `reach` bytes
back and ahead, so it may leave a segment of SEGMENT_BYTES bytes undecided. The kernels list these
segments in `undecided`. The host then processes the slice, or marks its starts.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.custom_regex import HostPattern
from llmgpu.bpe.pretokens.neighbours import NeighboursPattern
from llmgpu.bpe.pretokens.pattern import as_pattern, start_mask
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.pretokens.unicode_classes import code_point_classes
from llmgpu.gpu.adapters import Buffer
from llmgpu.gpu.commands import Commands
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose, constant, struct_dtype

PARAMS = struct_dtype("pretoken/params.wgsl", "PretokenParams")
SEGMENT_BYTES = 32  # bytes of text that one thread marks
# Bytes that a thread looks back and ahead, see walk.wgsl. The number is low on a software adapter,
# because the host marks undecided segments faster than such an adapter walks.
REACH, SOFTWARE_REACH = constant("pretoken/walk.wgsl", "REACH"), 256
# The table of classes has two levels. An entry of the first level is for this many code points; a
# u32 of the second level has the classes of 8 code points.
BLOCK = 8 * constant("pretoken/unicode.wgsl", "BLOCK_WORDS")


class GpuPretokenizer:
    """Marks the pre-token starts of slices under one pattern on one device.

    start_bits: buffer on the device with a bit for each byte of the slice recorded last, lowest bit
        first.
    reach: bytes that the kernel looks back and ahead.
    undecided: buffer of u32 on the device: the number of undecided segments of this slice, then the
        indices of these segments. Their bits in `start_bits` are not valid. If there are any, call
        `mark_on_host`.
    """

    def __init__(
        self,
        device: Device,
        pattern: str | Pattern,
        text: Buffer,
        capacity: int,
        *,
        reach: int | None = None,
    ) -> None:
        """Compile the pattern's kernel and allocate the buffers.

        text: buffer for the text of slices, with a multiple of SEGMENT_BYTES bytes.
        capacity: bytes of the largest slice.
        reach: bytes that the kernel looks back and ahead; None: REACH, or SOFTWARE_REACH on a
            software adapter.
        """
        found = as_pattern(pattern)
        self._device, self._pattern = device, found
        self._by_host = isinstance(found, HostPattern)
        # Only kernels that include walk.wgsl have a reach.
        self.reach = reach or (SOFTWARE_REACH if device.is_software else REACH)
        file = f"pretoken/{found.kernel}_starts.wgsl"
        walks = "override REACH:" in compose(file, device.source_choices).text
        walking = {"REACH": self.reach} if walks else {}
        self._kernel = device.kernel(file, WORKGROUP_SIZE=256, **found.constants, **walking)
        size = -(-capacity // SEGMENT_BYTES) * 4
        self.start_bits = device.create_buffer("start bits", size)
        self._document_bits = device.create_buffer("document bits", size)
        self._params = device.create_uniform("pretoken params", PARAMS.itemsize)
        buffers = {
            "text": text,
            "params": self._params,
            "document_bits": self._document_bits,
            "start_bits": self.start_bits,
        }
        # Only some kernels read character classes, read pairs, or list undecided segments.
        names = {binding.name for binding in self._kernel.bindings}
        if found.unicode is not None:
            packed = pack_classes(found.unicode)
            buffers["unicode_classes"] = device.upload("Unicode classes", packed)
        if isinstance(found, NeighboursPattern):
            buffers["neighbours"] = device.upload("neighbours", found.bits.view(np.uint32))
        lists_undecided = "undecided" in names
        self.undecided = device.create_buffer("undecided", 4 + lists_undecided * size)
        if lists_undecided:
            buffers["undecided"] = self.undecided
        self._bound = self._kernel.bind(**buffers)

    def record(self, commands: Commands, piece: Slice) -> None:
        """Upload a slice's parameters and document starts; record commands that mark its starts.

        Bits near the slice's end are not final unless a document ends there, see
        `pattern.start_mask`.
        """
        inner = piece.starts[(piece.starts > 0) & (piece.starts < piece.length)]
        params = np.zeros(1, PARAMS)
        params["length"] = piece.length
        params["has_documents"] = len(inner) > 0
        params["continues"] = piece.continues
        self._device.write(self._params, params)
        if len(inner):
            starts = np.zeros(piece.length, np.bool_)
            starts[inner] = True
            self._device.write(self._document_bits, _pack_bits(starts))
        self._device.write(self.undecided, np.full(1, self._by_host, np.uint32))
        groups = -(-piece.length // (SEGMENT_BYTES * self._kernel.workgroup_size))
        commands.dispatch(self._bound, groups)

    def mark_on_host(self, piece: Slice, text: NDArray[np.uint8]) -> None:
        """Mark all starts of the slice recorded last on the host; text: uint8 (n,)."""
        mask = start_mask(text, self._pattern, piece.starts, closed=piece.closed)
        self._device.write(self.start_bits, _pack_bits(mask))
        self._device.write(self.undecided, np.zeros(1, np.uint32))


def _pack_bits(flags: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return a bit for each flag, lowest bit of a byte first, padded to whole segments."""
    padded = np.zeros(-(-len(flags) // SEGMENT_BYTES) * SEGMENT_BYTES, np.bool_)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little")


@cache
def pack_classes(unicode: str) -> NDArray[np.uint32]:
    """Return the table for wgsl/pretoken/unicode.wgsl: first level, then second level, as uint32.

    The first level has the index of a block for every BLOCK code points. The second level has the
    blocks, with the classes of BLOCK code points each, 4 bits a class.

    unicode: the version of the classes.
    """
    halves = code_point_classes(unicode).reshape(-1, BLOCK // 2, 2)
    numbers: dict[bytes, int] = {}
    packed = (block.tobytes() for block in halves[..., 0] | halves[..., 1] << 4)
    by_block = np.array([numbers.setdefault(block, len(numbers)) for block in packed], "<u4")
    return np.concatenate([by_block, np.frombuffer(b"".join(numbers), "<u4")])
