"""Encoding on the host and on devices together: all take slices from one text.

The host's threads start at once; a device joins them when it is open, if there is text left. They
rest while it is rated, and for good if it is much faster, since they would be in its way. Each side
has a word table of its own. The ids are taken in the order of the text, so they don't depend
on who encoded what. A device that fails gives its slices back to the host.
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

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.encoder import (
    Allocate,
    CollectedIds,
    EncodedSlice,
    Expecting,
    new_ids,
)
from llmgpu.bpe.encoding.encoder_host import HostEncoder, Task, Workers
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, SliceSource, UnreadSlice
from llmgpu.errors import DeviceError
from llmgpu.text.corpus import TextSource

_log = logging.getLogger("llmgpu")
MUCH_FASTER = 2.0  # than all threads of the host
RATED_BYTES = 128 << 20  # of text that a device encodes for a rate
RATED_SECONDS = 0.15  # in which one of its rates has to be much higher
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
        self._text_bytes: int | None = None  # of the next text

    def expect(self, text_bytes: int | None) -> None:
        """Say how many bytes the next text has; devices join at the beginning of a long one."""
        self._text_bytes = text_bytes

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        host = self._host
        reader = SliceReader(source, host.pattern)
        collected = allocate if isinstance(allocate, CollectedIds) else None
        workers = Workers(reader, host.slices, host.slice_bytes, host.threads, collected)
        shares = [_DeviceShare(workers, number + 1) for number in range(len(self._open_devices))]
        text_bytes, self._text_bytes = self._text_bytes, None
        helpers = [
            partial(self._work_on_device, share, workers, open_device, text_bytes)
            for share, open_device in zip(shares, self._open_devices, strict=True)
        ]
        is_enough = text_bytes is not None and text_bytes >= self._join_from
        workers.expect_help(helpers, 0 if is_enough else self._join_from)
        try:
            for encoded, device in workers.results(allocate):
                self._on_share(encoded.text_bytes, device)
                yield encoded
        finally:
            workers.stop()
            for share in shares:
                share.cancel()

    def _work_on_device(
        self,
        share: _DeviceShare,
        workers: Workers,
        open_device: OpenDevice,
        text_bytes: int | None,
    ) -> None:
        try:
            device = None if share.is_closed else open_device()
            if device is None:
                return
            self._join_from = min(self._join_from, OPENED_FROM)
            if isinstance(device, Expecting):
                device.expect(text_bytes)
            share.begin()
            with closing(device.encode_slices(share, share.allocate)) as slices:
                for encoded in slices:
                    share.finish(encoded)
        except CancelledError:
            pass  # nobody waits for the ids any more
        except DeviceError as error:
            _log.warning("%s; the CPU does the rest", error)
            for task, taken in share.close():
                self._encode_on_host(task, taken, workers)
        except BaseException as error:
            share.fail(error)
        finally:
            workers.pace.work(share)  # at the end of the text, too, which only reading on shows

    def _encode_on_host(self, task: Task, taken: Slice | UnreadSlice, workers: Workers) -> None:
        try:
            piece = taken
            if isinstance(piece, UnreadSlice):
                piece = piece.read(np.empty(piece.length + PADDING, np.uint8))
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
        self._kept: deque[tuple[Task, Slice | UnreadSlice]] = deque()
        self._lock = threading.Lock()
        self._is_rated = False
        self._begin = self._since = 0.0  # seconds: of the first slice, of the rate being taken
        self._encoded = 0  # bytes of text since then
        self.is_closed = False

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice that is not empty, see `SliceSource`; None after `close`, too.

        What can't be read again is kept in memory of its own: a device that fails loses `buffer`.
        """
        from llmgpu.gpu import parallel_copy

        with self._lock:
            while not self.is_closed:
                task = Task(device=self._number)
                own = np.empty(len(buffer), np.uint8)
                taken = self._workers.take(task, own)
                piece = self._workers.fill(task, taken, buffer)
                if taken is None or piece is None:
                    break
                if not piece.main_end and not len(piece.document_starts):
                    none = np.empty(0, np.uint32), np.empty(0, np.int64)
                    self._workers.finish(task, EncodedSlice(*none, 0, piece.closed))
                    continue
                self._kept.append((task, taken))
                if self.is_closed:  # by `cancel`, which did not see this one
                    _release(task)
                if piece.oversized or piece.buffer is buffer:
                    return piece
                text = buffer[: piece.length]
                parallel_copy(text, piece.text)
                return replace(piece, text=text, buffer=buffer)
            return None

    def allocate(self, count: int) -> NDArray[np.uint32]:
        """Return memory for the ids of the device's next slice; may wait for those before it."""
        return self._workers.allocate(self._kept[0][0], count)

    def begin(self) -> None:
        """Let the host's threads rest while the device is rated."""
        self._begin = self._since = time.perf_counter()
        self._workers.pace.rest(self)

    def finish(self, encoded: EncodedSlice) -> None:
        """Hand in the ids of the device's next slice."""
        task, _ = self._kept.popleft()
        self._workers.finish(task, encoded)
        self._encoded += encoded.text_bytes
        if not self._is_rated:
            self._rate(time.perf_counter())

    def _rate(self, now: float) -> None:
        """Let the host's threads rest for good at the first rate that is much higher than theirs.

        The first rates may be lower, as all words are new.
        """
        if self._encoded >= RATED_BYTES:
            rate = self._encoded / (now - self._since)
            self._is_rated = rate > MUCH_FASTER * self._workers.own_rate
            self._since, self._encoded = now, 0
        if not self._is_rated and now - self._begin > RATED_SECONDS:
            self._is_rated = True
            self._workers.pace.work(self)

    def close(self) -> list[tuple[Task, Slice | UnreadSlice]]:
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
