"""Writing to files on a RAM disk, where most time goes to getting new pages of memory.

Several threads get pages, or one thread does before the first ids are written.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from ctypes import c_int
from typing import BinaryIO

import numpy as np

from llmgpu.cpu.library import address_of, library
from llmgpu.memory import free_memory
from llmgpu.processors import usable_processors

_LEAST_SHARED = 4 << 20  # bytes that are worth starting threads for
_MOST_OF_FREE = 4  # reserve up to 1/4 of the free memory for a file
_WRITE_THREADS = min(4, usable_processors() // 2)  # beyond 4, a file is written no faster


class Reservation:
    """Memory for a file on a RAM disk, reserved by a thread before the first ids are written.

    Files on other disks get none.
    """

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        """Begin to reserve memory for the first `nbytes` of a file; its length stays unchanged.

        At most 1/4 of the free memory is reserved. Raises OSError and RuntimeError if the process
        may have no more files or threads.
        """
        self._descriptor = os.dup(file.fileno())  # the file may be closed by another thread
        self._has_ended = c_int()
        self._reserved = 0
        self._thread = threading.Thread(
            target=self._reserve, args=(nbytes,), name="llmgpu-reserve", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._descriptor)
            raise

    def _reserve(self, nbytes: int) -> None:
        free, loaded = free_memory(), library()
        if loaded is not None:
            most = nbytes if free is None else free // _MOST_OF_FREE
            self._reserved = loaded.llmgpu_reserve(
                self._descriptor, min(nbytes, most), self._has_ended
            )

    def end(self) -> None:
        """Stop reserving, and free the memory beyond the end of the file."""
        self._has_ended.value = True
        self._thread.join()
        with suppress(OSError):  # then the file keeps it
            if self._reserved:
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)
        os.close(self._descriptor)


def write_in_parts(file: BinaryIO, content: memoryview) -> None:
    """Write to a file of this process alone; several threads write 4 MiB or more to a RAM disk."""
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
