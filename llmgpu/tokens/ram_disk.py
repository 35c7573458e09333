"""Writing to files on a RAM disk, where it is new pages of memory that take the time.

Several threads get them, or one does before there is anything to write.
"""

from __future__ import annotations

import os
import threading
from ctypes import c_int
from typing import BinaryIO

import numpy as np

from llmgpu.cpu.library import address_of, library
from llmgpu.processors import usable_processors

_LEAST_SHARED = 4 << 20  # bytes that are worth starting threads for
_WRITE_THREADS = min(4, usable_processors() // 2)  # beyond 4, a file is written no faster


class Reservation:
    """Memory for a file on a RAM disk that a thread gets while there is nothing to write yet.

    Files on other disks get none.
    """

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        """Begin to get memory for the first `nbytes` of a file, whose length stays as it is."""
        self._descriptor = os.dup(file.fileno())  # the file may be closed by another thread
        self._has_ended = c_int()
        self._thread = threading.Thread(
            target=self._reserve, args=(nbytes,), name="llmgpu-reserve", daemon=True
        )
        self._thread.start()

    def _reserve(self, nbytes: int) -> None:
        loaded = library()
        if loaded is not None:
            loaded.llmgpu_reserve(self._descriptor, nbytes, self._has_ended)

    def end(self) -> None:
        """Get no more memory, and give back what is beyond the end of the file."""
        self._has_ended.value = True
        self._thread.join()
        os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)
        os.close(self._descriptor)


def write_in_parts(file: BinaryIO, content: memoryview) -> None:
    """Write to a file that only this process has, much with several threads if it is in memory."""
    is_shared = len(content) >= _LEAST_SHARED and _WRITE_THREADS > 1
    loaded = library() if is_shared else None
    count = 0
    if loaded is not None:
        file.flush()
        data = np.frombuffer(content, np.uint8)
        place, begin = address_of(data), file.tell()
        count = loaded.llmgpu_write(file.fileno(), place, len(data), begin, _WRITE_THREADS)
        file.seek(begin + count)
    file.write(content[count:])
