"""Moving many tensors at a time between a backend and the host, while it computes.

On a device each transfer goes through staging memory that is kept, and is queued among the programs
that were run; the host waits only for what it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmgpu.lm.ops.tensor import FloatArray, Tensor

if TYPE_CHECKING:
    from llmgpu.gpu import Device, Download, Staging

STAGED = 5  # uploads whose memory the device may still read


class Transfers(ABC):
    """Reads and writes float32 tensors end to end, as (n,) arrays."""

    @abstractmethod
    def start_reading(self, tensors: Sequence[Tensor]) -> Callable[[FloatArray], None]:
        """Start after everything that was run; return what waits and moves the numbers to `out`."""

    @abstractmethod
    def start_writing(self, tensors: Sequence[Tensor]) -> tuple[FloatArray, Callable[[], None]]:
        """Return an (n,) array to fill, and what then writes it, before what runs later.

        The array may be slow to read. Write one before starting with the next.
        """


class NumpyTransfers(Transfers):
    """Copies of arrays."""

    def start_reading(self, tensors: Sequence[Tensor]) -> Callable[[FloatArray], None]:
        values = np.concatenate([tensor.array.reshape(-1) for tensor in tensors])
        return lambda out: np.copyto(out, values)

    def start_writing(self, tensors: Sequence[Tensor]) -> tuple[FloatArray, Callable[[], None]]:
        values = np.empty(sum(tensor.size for tensor in tensors), np.float32)

        def write() -> None:
            first = 0
            for tensor in tensors:
                own = values[first : first + tensor.size]
                tensor.array[...] = own.reshape(tensor.shape)
                first += tensor.size

        return values, write


class GpuTransfers(Transfers):
    """Copies through memory that the device and the host have in turns."""

    def __init__(self, device: Device, numbers: int) -> None:
        """Allocate nothing yet; numbers: how many a transfer has at most."""
        self._device = device
        self._nbytes = 4 * numbers
        self._idle: list[Download] = []
        self._staged: deque[Staging] = deque()  # in the order in which the device reads them

    def start_reading(self, tensors: Sequence[Tensor]) -> Callable[[FloatArray], None]:
        from llmgpu.gpu import Download

        download = self._idle.pop() if self._idle else Download(self._device)
        download.reserve(self._nbytes)
        download.start_all([(tensor.buffer, tensor.nbytes) for tensor in tensors])

        def read(out: FloatArray) -> None:
            download.finish(out.view(np.uint8))
            self._idle.append(download)

        return read

    def start_writing(self, tensors: Sequence[Tensor]) -> tuple[FloatArray, Callable[[], None]]:
        from llmgpu.gpu import Staging

        is_full = len(self._staged) == STAGED
        staging = self._staged.popleft() if is_full else Staging(self._device, self._nbytes)
        size = sum(tensor.nbytes for tensor in tensors)

        def write() -> None:
            commands = self._device.record()
            offset = 0
            for tensor in tensors:
                staging.copy_to(commands, tensor.buffer, tensor.nbytes, source_offset=offset)
                offset += tensor.nbytes
            commands.submit()
            self._staged.append(staging)

        return staging.array()[:size].view(np.float32), write
