"""Encoding on the host and on devices together: all take slices from one text.

The host's threads start at once; a device joins them when it is open, if there is text left. Each
has a word table of its own. The ids are taken in the order of the text, so they don't depend on who
encoded what. A device that fails gives its slices back to the host.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, CollectedIds, EncodedSlice, new_ids
from llmgpu.bpe.encoding.encoder_host import HostEncoder, Task, Workers
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, SliceSource
from llmgpu.errors import DeviceError
from llmgpu.text.corpus import TextSource

_log = logging.getLogger("llmgpu")
MUCH_FASTER = 2.0  # than the host: its threads would rather be in the way of such a device
RATED_FROM = 64 << 20  # bytes of text that a device encodes before its rate is taken
OPENED_FROM = 16 << 20  # bytes of text from which a device that is open already is worth waking


class DeviceSlices(Protocol):
    """Encodes the slices that it reads."""

    def encode_slices(
        self, reader: SliceSource, allocate: Allocate
    ) -> Generator[EncodedSlice, None, None]:
        """Yield the ids of all slices that `reader` gives, in its order; see `Encoder.encode`."""
        ...


# Opens a device for encoding; None where there is none. It is called in a thread.
OpenDevice = Callable[[], DeviceSlices | None]
# Takes how many bytes of text were encoded, and on which device, from 1; 0 is the host.
OnShare = Callable[[int, int], None]


class SharedEncoder:
    """Encodes texts on the host and on devices, with one vocabulary, one text at a time."""

    def __init__(
        self,
        host: HostEncoder,
        open_devices: Sequence[OpenDevice],
        on_share: OnShare,
        join_from: int = 0,
    ) -> None:
        """Encode with the threads of `host` and with what `open_devices` return.

        join_from: bytes of a text that are read before the devices are opened.
        """
        self._host = host
        self._open_devices, self._on_share = open_devices, on_share
        self._join_from = join_from
        self._expects_enough = False

    def expect(self, nbytes: int | None) -> None:
        """Say how many bytes the next text has, if that is known: enough join at its beginning."""
        self._expects_enough = nbytes is not None and nbytes >= self._join_from

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        host = self._host
        reader = SliceReader(source, host.pattern)
        collected = allocate if isinstance(allocate, CollectedIds) else None
        workers = Workers(reader, host.slices, host.slice_bytes, host.threads, collected)
        shares = [_DeviceShare(workers, number + 1) for number in range(len(self._open_devices))]
        begin = time.perf_counter()
        helpers = [
            partial(self._work_on_device, share, workers, open_device, begin)
            for share, open_device in zip(shares, self._open_devices, strict=True)
        ]
        workers.expect_help(helpers, 0 if self._expects_enough else self._join_from)
        self._expects_enough = False
        try:
            for encoded, device in workers.results(allocate):
                self._on_share(encoded.text_bytes, device)
                yield encoded
        finally:
            workers.stop()
            for share in shares:
                share.cancel()

    def _work_on_device(
        self, share: _DeviceShare, workers: Workers, open_device: OpenDevice, begin: float
    ) -> None:
        try:
            device = None if share.is_closed else open_device()
            if device is None:
                return
            self._join_from = min(self._join_from, OPENED_FROM)
            with closing(device.encode_slices(share, share.allocate)) as slices:
                for encoded in slices:
                    share.finish(encoded)
                    host_rate = workers.own_bytes / (time.perf_counter() - begin)
                    if share.rate > MUCH_FASTER * host_rate:
                        workers.rest()
        except CancelledError:
            pass  # nobody waits for the ids any more
        except DeviceError as error:
            _log.warning("%s; the CPU does the rest", error)
            for task, piece in share.close():
                self._encode_on_host(task, piece, workers)
        except BaseException as error:
            share.fail(error)
        finally:
            workers.work()  # at the end of the text, too, which only reading on shows

    def _encode_on_host(self, task: Task, piece: Slice, workers: Workers) -> None:
        try:
            encoded, _ = self._host.slices.encode(piece, 0)
            if encoded.ids.base is not None:  # a part of a larger array, which need not be kept
                encoded = replace(encoded, ids=encoded.ids.copy())
            workers.finish(task, encoded)
        except BaseException as error:
            task.encoded.set_exception(error)


class _DeviceShare:
    """The slices that a device takes, kept until it has encoded them.

    is_closed: the device gets no more of them.
    """

    def __init__(self, workers: Workers, number: int) -> None:
        """Take slices from those of `workers`; number: of the device, from 1."""
        self._workers, self._number = workers, number
        self._kept: deque[tuple[Task, Slice]] = deque()
        self._spare: list[NDArray[np.uint8]] = []  # memory of slices that are done
        self._lock = threading.Lock()
        self._begin = self._encoded = 0.0
        self.is_closed = False

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice that is not empty, see `SliceSource`; None after `close`, too.

        It is read into memory of its own first: reading a device's staging memory takes long.
        """
        from llmgpu.gpu import parallel_copy

        with self._lock:
            memory = self._memory(len(buffer))
            while not self.is_closed:
                task = Task(device=self._number)
                piece = self._workers.read(memory, task)
                if piece is None:
                    break
                if not piece.main_end and not len(piece.document_starts):
                    none = np.empty(0, np.uint32), np.empty(0, np.int64)
                    self._workers.finish(task, EncodedSlice(*none, 0, piece.closed))
                    continue
                self._kept.append((task, piece))
                if self.is_closed:  # by `cancel`, which did not see this one
                    _release(task)
                if piece.oversized:
                    return piece
                text = buffer[: piece.length]
                parallel_copy(text, piece.text)
                return replace(piece, text=text, buffer=buffer)
            return None

    def _memory(self, nbytes: int) -> NDArray[np.uint8]:
        for k, memory in enumerate(self._spare):
            if len(memory) == nbytes:
                return self._spare.pop(k)
        self._spare.clear()  # of the first slices, which are shorter
        return np.empty(nbytes, np.uint8)

    def allocate(self, count: int) -> NDArray[np.uint32]:
        """Return memory for the ids of the device's next slice; may wait for those before it."""
        return self._workers.allocate(self._kept[0][0], count)

    def finish(self, encoded: EncodedSlice) -> None:
        """Hand in the ids of the device's next slice."""
        task, piece = self._kept.popleft()
        self._spare.append(piece.buffer)
        if self._begin:
            self._encoded += encoded.text_bytes
        else:
            self._begin = time.perf_counter()
        self._workers.finish(task, encoded)

    @property
    def rate(self) -> float:
        """Bytes of text a second since the first slice; 0 until there are enough of them."""
        if self._encoded < RATED_FROM:
            return 0.0
        return self._encoded / (time.perf_counter() - self._begin)

    def close(self) -> list[tuple[Task, Slice]]:
        """Take no more slices; return those that were not encoded."""
        self.is_closed = True
        with self._lock:
            return list(self._kept)

    def cancel(self) -> None:
        """Take no more slices, and let the device wait for no memory.

        Nothing is waited for, since a read may wait for a pipe.
        """
        self.is_closed = True
        for task, _ in list(self._kept):
            _release(task)

    def fail(self, error: BaseException) -> None:
        """Take no more slices; `error` is raised in place of those that were not encoded."""
        tasks = [task for task, _ in self.close()]
        for task in tasks or [self._workers.end()]:
            task.encoded.set_exception(error)


def _release(task: Task) -> None:
    """Let a device wait no more for where the ids of a slice go."""
    task.allocate.cancel()
    task.begin.cancel()
