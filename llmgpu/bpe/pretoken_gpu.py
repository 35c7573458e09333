"""Marking on a device where pre-tokens start: kernels in wgsl/pretoken, one for each pattern."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pattern import CONTEXT, get_pattern
from llmgpu.bpe.slices import Slice
from llmgpu.bpe.unicode_classes import code_point_classes
from llmgpu.gpu import BoundKernel, Buffer, BufferPool, Commands, Device

PARAMS = np.dtype(
    [
        ("length", "<u4"),
        ("has_documents", "<u4"),
        ("context_length", "<u4"),
        ("padding", "<u4"),
        ("context", "u1", (CONTEXT,)),
    ]
)  # PretokenParams in wgsl/pretoken/params.wgsl
SEGMENT_BYTES = 32  # bytes of text that a thread marks
BLOCK = 256  # code points that share an entry of the first level, see wgsl/pretoken/unicode.wgsl


class GpuPretokenizer:
    """Marks the pre-token starts of slices under one pattern on one device.

    start_bits: on the device, a bit for each byte of the slice recorded last, lowest bit first.
    """

    def __init__(
        self,
        device: Device,
        pattern: str,
        capacity: int,
        pool: BufferPool,
        *,
        workgroup_size: int = 256,
    ) -> None:
        """Compile the pattern's kernel.

        capacity: bytes of the largest slice.
        """
        self._device = device
        name = get_pattern(pattern).name
        self._kernel = device.kernel(f"pretoken/{name}_starts.wgsl", WORKGROUP_SIZE=workgroup_size)
        size = -(-capacity // SEGMENT_BYTES) * 4
        self.start_bits = pool.get("start bits", size)
        self._document_bits = pool.get("document bits", size)
        self._params = device.create_uniform("pretoken params", PARAMS.itemsize)
        self._buffers = {
            "params": self._params,
            "document_bits": self._document_bits,
            "start_bits": self.start_bits,
        }
        if any(binding.name == "unicode_classes" for binding in self._kernel.bindings):
            self._buffers["unicode_classes"] = _upload_classes(device)
        self._bound: BoundKernel | None = None

    def bind(self, text: Buffer) -> None:
        """Attach the buffer that slices' texts are in; it holds a whole number of segments."""
        self._bound = self._kernel.bind(text=text, **self._buffers)

    def record(self, commands: Commands, piece: Slice) -> None:
        """Upload what is known of a slice besides its text, and record marking its starts.

        The last LOOKAHEAD bits are undecided unless a document ends there.
        """
        if self._bound is None:
            raise RuntimeError("no text is bound")
        inner = piece.boundaries[piece.boundaries < piece.length]
        params = np.zeros(1, PARAMS)
        params["length"] = piece.length
        params["has_documents"] = len(inner) > 0
        params["context_length"] = CONTEXT if piece.continues else 0
        self._device.write(self._params, params)
        if len(inner):
            starts = np.zeros(-(-piece.length // SEGMENT_BYTES) * SEGMENT_BYTES, np.bool_)
            starts[inner] = True
            self._device.write(self._document_bits, np.packbits(starts, bitorder="little"))
        groups = -(-piece.length // (SEGMENT_BYTES * self._kernel.workgroup_size))
        commands.dispatch(self._bound, groups)


def _upload_classes(device: Device) -> Buffer:
    table = pack_classes()
    buffer = device.pool.get("unicode classes", table.nbytes)
    device.write(buffer, table)
    return buffer


@cache
def pack_classes() -> NDArray[np.uint32]:
    """Return the table of wgsl/pretoken/unicode.wgsl: numbers of blocks, then the blocks."""
    blocks, numbers = np.unique(
        code_point_classes().reshape(-1, BLOCK), axis=0, return_inverse=True
    )
    halves = blocks.reshape(len(blocks), -1, 2)
    packed = (halves[..., 0] | halves[..., 1] << 4).astype(np.uint8)
    return np.concatenate([numbers.reshape(-1).astype("<u4"), packed.reshape(-1).view("<u4")])
