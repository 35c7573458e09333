"""Encoding on the host and on a device together: both take slices from one text.

The host's threads start at once; the device joins them when it is open, if there is text left. Each
slice has a number in the order of the text, and ids are yielded in that order, so they don't depend
on who encoded what. A device that fails gives its slices back to the host.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, new_ids
from llmgpu.bpe.encoding.encoder_host import HostEncoder
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, SliceSource
from llmgpu.errors import DeviceError
from llmgpu.text.corpus import TextSource

AHEAD_BYTES = 256 << 20  # text that the host may have encoded before an earlier slice is done
_log = logging.getLogger("llmgpu")


class DeviceSlices(Protocol):
    """Encodes the slices that it reads."""

    def encode_slices(
        self, reader: SliceSource, allocate: Allocate
    ) -> Generator[EncodedSlice, None, None]:
        """Yield the ids of all slices that `reader` gives, in its order; see `Encoder.encode`."""
        ...


# Opens a device for encoding; None where there is none. It is called in a thread.
OpenDevice = Callable[[], DeviceSlices | None]
# Takes how many bytes of text were encoded, and whether on the device.
OnShare = Callable[[int, bool], None]


class SharedEncoder:
    """Encodes texts on the host and on a device, with one vocabulary, one text at a time."""

    def __init__(
        self,
        host: HostEncoder,
        open_device: OpenDevice,
        on_share: OnShare,
        join_from: int = 0,
    ) -> None:
        """Encode with the threads of `host` and with what `open_device` returns.

        join_from: bytes of a text that the host is given before the device is opened.
        """
        self._host = host
        self._open_device, self._on_share = open_device, on_share
        self._join_from = join_from

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        queue = _Queue(SliceReader(source, self._host.pattern))
        works = [self._work_on_host] * self._host.threads + [self._work_on_device]
        workers = [threading.Thread(target=work, args=(queue,)) for work in works]
        for worker in workers:
            worker.start()
        try:
            for encoded, on_device in queue.results(allocate):
                self._on_share(encoded.text_bytes, on_device)
                yield encoded
        finally:
            queue.stop()
            for worker in workers[:-1]:  # the last may still be opening the device
                worker.join()

    def _work_on_host(self, queue: _Queue) -> None:
        buffer = np.empty(self._host.slice_bytes + PADDING, np.uint8)
        while (found := queue.read(buffer, ahead=AHEAD_BYTES)) is not None:
            self._encode_on_host(queue, *found)

    def _encode_on_host(self, queue: _Queue, number: int, piece: Slice) -> None:
        try:
            encoded = self._host.slices.encode(piece, 0)[0]
            # The ids may be a part of a larger array, which need not be kept.
            queue.put(number, replace(encoded, ids=encoded.ids.copy()))
        except BaseException as error:
            queue.put(number, error)

    def _work_on_device(self, queue: _Queue) -> None:
        share = _DeviceShare(queue)
        try:
            device = self._open_device() if queue.has_given(self._join_from) else None
            if device is None or queue.is_stopped:
                return
            with closing(device.encode_slices(share, share.allocate)) as slices:
                for encoded in slices:
                    queue.put(share.finish(), encoded, on_device=True)
        except _StoppedError:
            pass
        except DeviceError as error:
            _log.warning("%s; the CPU does the rest", error)
            for number, piece in share.close():
                self._encode_on_host(queue, number, piece)
        except BaseException as error:
            share.fail(error)


class _StoppedError(Exception):
    """Nobody waits for the ids any more."""


class _Queue:
    """The slices of a text, numbered and given to whoever asks, and their ids, taken in order."""

    def __init__(self, reader: SliceReader) -> None:
        self._reader = reader
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._done: dict[int, tuple[EncodedSlice | BaseException, bool]] = {}
        self._given = 0  # slices
        self._given_bytes = self._taken_bytes = 0  # of text
        self._wanted = -1  # the slice that is waited for
        self._allocate: Allocate = new_ids
        self._ended = False
        self.is_stopped = False

    def read(self, buffer: NDArray[np.uint8], ahead: int | None = None) -> tuple[int, Slice] | None:
        """Return the next slice and its number, None at the end.

        ahead: bytes of text that may be given before an earlier slice is taken; None: any number.
        """
        with self._changed:
            while not self._may_give(ahead):
                self._changed.wait()
        with self._reading:
            if self.is_stopped or self._ended:
                return None
            try:
                piece = self._reader.read(buffer)
            except BaseException as error:
                self.put(self.end(), error)
                return None
            if piece is None:
                self.end()
                return None
            number = self._given
            with self._changed:
                self._given += 1
                self._given_bytes += piece.main_end
                self._ended |= piece.end
                self._changed.notify_all()
            return number, piece

    def has_given(self, nbytes: int) -> bool:
        """Wait until this many bytes of text were given; return False if there are not as many."""
        with self._changed:
            while not (self.is_stopped or self._ended or self._given_bytes >= nbytes):
                self._changed.wait()
            return self._given_bytes >= nbytes and not self.is_stopped

    def _may_give(self, ahead: int | None) -> bool:
        if self.is_stopped or self._ended or ahead is None:
            return True
        return self._given_bytes - self._taken_bytes < ahead

    def end(self) -> int:
        """Give no more slices; return the number that the next one would have had."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            return self._given

    def put(
        self, number: int, encoded: EncodedSlice | BaseException, *, on_device: bool = False
    ) -> None:
        """Hand in the ids of a slice, or the error that is raised in their place."""
        with self._changed:
            self._done[number] = encoded, on_device
            self._changed.notify_all()

    def wait_for_turn(self, number: int) -> Allocate:
        """Wait until a slice is the next to be taken; return what gives memory for its ids."""
        with self._changed:
            while self._wanted != number:
                if self.is_stopped:
                    raise _StoppedError
                self._changed.wait()
            return self._allocate

    def results(self, allocate: Allocate) -> Iterator[tuple[EncodedSlice, bool]]:
        """Yield the ids of all slices in order, and whether they were encoded on the device."""
        self._allocate = allocate
        number = 0
        while (found := self._take(number)) is not None:
            encoded, on_device = found
            if isinstance(encoded, BaseException):
                raise encoded
            yield encoded, on_device
            number += 1

    def _take(self, number: int) -> tuple[EncodedSlice | BaseException, bool] | None:
        with self._changed:
            self._wanted = number
            self._changed.notify_all()
            while number not in self._done:
                if self._ended and number == self._given:
                    return None
                self._changed.wait()
            self._wanted = -1
            found = self._done.pop(number)
            if isinstance(found[0], EncodedSlice):
                self._taken_bytes += found[0].text_bytes
            return found

    def stop(self) -> None:
        """Give no more slices."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()


class _DeviceShare:
    """The slices that the device takes, kept until it has encoded them."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self._kept: deque[tuple[int, Slice]] = deque()
        self._spare: list[NDArray[np.uint8]] = []  # memory of slices that are done
        self._closed = False
        self._lock = threading.Lock()

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice that is not empty, see `SliceSource`; None after `close`, too."""
        with self._lock:
            while not self._closed and (found := self._queue.read(buffer)) is not None:
                number, piece = found
                if piece.main_end or len(piece.document_starts):
                    self._kept.append((number, self._copy(piece)))
                    return piece
                none = np.empty(0, np.uint32)
                self._queue.put(number, EncodedSlice(none, np.empty(0, np.int64), 0, piece.closed))
            return None

    def _copy(self, piece: Slice) -> Slice:
        memory = self._spare.pop() if self._spare else np.empty(0, np.uint8)
        if len(memory) < piece.length + PADDING:
            memory = np.empty(len(piece.buffer), np.uint8)
        text = memory[: piece.length]
        text[:] = piece.text
        return replace(piece, text=text, buffer=memory)

    def allocate(self, count: int) -> NDArray[np.uint32]:
        """Return memory for the ids of the device's next slice, once it is that slice's turn."""
        return self._queue.wait_for_turn(self._kept[0][0])(count)

    def finish(self) -> int:
        """Forget the slice that was encoded; return its number."""
        number, piece = self._kept.popleft()
        self._spare.append(piece.buffer)
        return number

    def close(self) -> list[tuple[int, Slice]]:
        """Take no more slices; return those that were not encoded."""
        self._closed = True
        with self._lock:
            return list(self._kept)

    def fail(self, error: BaseException) -> None:
        """Take no more slices; `error` is raised in place of the first that was not encoded."""
        for number in [number for number, _ in self.close()] or [self._queue.end()]:
            self._queue.put(number, error)
