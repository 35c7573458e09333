"""A device: an opened adapter with its kernels, buffers and submissions, and loops on the device.

No buffer is destroyed explicitly: dropping the last reference to a buffer is always safe.

A loop runs many rounds in one submission, with two submissions in flight. The host reads only the
state after a submission, so the device never waits for the host. The host limits the rounds of the
next submission, so that it can report progress and handle Ctrl-C in between.

The key of the hash tables on devices, see wgsl/common/hash.wgsl, is random numbers of this process:
words and pairs that were chosen to collide in one process don't collide in another. No result
depends on the key, and no file contains a number that was computed from the key.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import CapacityError, DeviceError
from llmgpu.gpu.adapters import Buffer, OpenedAdapter, aligned
from llmgpu.gpu.commands import Commands, Download, Staging, parallel_copy
from llmgpu.gpu.kernel import BoundKernel, Kernel
from llmgpu.kernel_source import compose, constant
from llmgpu.machine import has_limited_address_space, usable_processors
from llmgpu.spelling import spelled

# Most loop iterations of a thread in a dispatch, nested loops included. Mesa's software driver
# silently ends a thread's loops after 65 535; on hardware the limit avoids watchdogs.
SOFTWARE_LOOP_ITERATIONS = 60_000
HARDWARE_LOOP_ITERATIONS = 1 << 22
SMALL_UPLOAD = 1 << 20  # bytes up to which writing through the queue is as fast as staging
UPLOAD_PIECE = 64 << 20  # bytes of staging memory for larger uploads
# Most downloads kept for later reads, since allocating one takes longer than copying into it.
# Downloads for much more than UPLOAD_PIECE are not kept.
IDLE_DOWNLOADS = 2
HALVES = "lm/four_halves.wgsl"  # the kernels' rounding to half precision
MOST_COMPILERS = 16  # threads that compile kernels at the same time

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Device(OpenedAdapter):
    """An opened adapter with kernels, buffers and submissions.

    gpu_seconds: seconds of each kernel, by label, added up while `timing` is on.
    workgroup_size: threads of a workgroup of the kernels of `prepare`.
    """

    workgroup_size = constant("common/workgroup.wgsl", "WORKGROUP_SIZE")
    _make_kernel = Kernel

    def __init__(self, opened: OpenedAdapter) -> None:
        """Take over an opened adapter."""
        vars(self).update(vars(opened))
        self.timing = False
        self.gpu_seconds: dict[str, float] = defaultdict(float)
        self._kernels: dict[tuple[object, ...], Future[Kernel]] = {}
        self._compilers = threading.BoundedSemaphore(min(MOST_COMPILERS, usable_processors()))
        self._idle_downloads: list[Download] = []  # memory for the next reads
        self._idle_staging: list[Staging] = []  # memory for the next large write
        self.source_choices = {"scan": "common/scan_shared.wgsl"}
        self.subgroup_size = self._probe_subgroups() if "subgroup" in self.features else 0
        if self.subgroup_size:
            self.source_choices = {"scan": "common/scan_subgroup.wgsl"}

    @property
    def max_loop_iterations(self) -> int:
        """Most loop iterations of a thread in a dispatch."""
        return SOFTWARE_LOOP_ITERATIONS if self.is_software else HARDWARE_LOOP_ITERATIONS

    def kernel(self, file: str, **constants: int | str) -> Kernel:
        """Return the kernel in a file; a pair of file and constants is compiled only once.

        file: a path below wgsl/. constants: values of WGSL overrides and of `//!override`.

        Raises DeviceError if the kernel does not compile.
        """
        return self.begin_kernel(file, constants, in_thread=False).result()

    def begin_kernel(
        self, file: str, constants: Mapping[str, int | str], *, in_thread: bool = True
    ) -> Future[Kernel]:
        """Start compiling a kernel in a thread; return a future whose result is the kernel.

        in_thread: if False, the calling thread compiles the kernel. With a limited address space,
        the calling thread always compiles, because stacks of threads take too much of it.
        """
        key = (file, *sorted(constants.items()))
        mine: Future[Kernel] = Future()
        # A second thread that requests the kernel waits for the first.
        kernel = self._kernels.setdefault(key, mine)
        if kernel is not mine:
            return kernel

        def compile_() -> None:
            try:
                with self._compilers:
                    source = compose(file, {**self.source_choices, **constants})
                    if unknown := constants.keys() - source.settings:
                        where = f"kernel {source.entry} does not compile"
                        raise DeviceError(f"{where}: it declares no {min(unknown)}")
                    mine.set_result(self._make_kernel(self, source))
            except BaseException as error:
                del self._kernels[key]
                mine.set_exception(error)

        if in_thread and not has_limited_address_space():
            thread = threading.Thread(target=compile_, name="llmgpu-compiler", daemon=True)
            with suppress(MemoryError, RuntimeError):  # the system can't start a thread
                thread.start()
                return mine
        compile_()
        return mine

    def prepare(self, files: Mapping[str, Mapping[str, int]]) -> dict[str, Kernel]:
        """Compile several kernels in threads.

        files: constants by file, a path below wgsl/ without the ending. A kernel takes the
            constants that it declares, and `workgroup_size` as its WORKGROUP_SIZE unless the
            constants have another. Each constant is declared by at least one of the kernels.

        Returns the kernels by the names of their files, without folder and number.
        """
        begun, declared = {}, set[str]()
        for file, constants in files.items():
            path, given = f"{file}.wgsl", {"WORKGROUP_SIZE": self.workgroup_size, **constants}
            settings = compose(path, {**self.source_choices, **given}).settings
            declared |= settings
            taken = {name: given[name] for name in settings & given.keys()}
            begun[file.split("_", 1)[1]] = self.begin_kernel(path, taken)
        if unknown := set[str]().union(*files.values()) - declared:
            raise DeviceError(f"no kernel of {', '.join(files)} declares {min(unknown)}")
        return {name: kernel.result() for name, kernel in begun.items()}

    def create_buffer(self, label: str, nbytes: int) -> Buffer:
        """Allocate at least `nbytes` bytes for kernels, filled with zeros.

        Raises CapacityError if the adapter can't bind so many bytes, or is out of memory.
        """
        size = aligned(nbytes)
        if size > self.max_binding_bytes:
            raise CapacityError(
                f"{label} needs {size} bytes, but {self.name} binds at most "
                f"{self.max_binding_bytes}; use less text ({spelled('--limit')}) or "
                f"{spelled('--device cpu')}"
            )
        usage = "STORAGE | UNIFORM | INDIRECT | COPY_SRC | COPY_DST"
        return Buffer(label, size, self.create_handle(label, size, usage))

    def upload(self, label: str, array: NDArray[Any]) -> Buffer:
        """Allocate a buffer with the contents of an array."""
        buffer = self.create_buffer(label, array.nbytes)
        self.write(buffer, array)
        return buffer

    def record(self) -> Commands:
        """Begin a list of commands."""
        return Commands(self, self.gpu_seconds if self.timing else None)

    def dispatch(self, kernel: BoundKernel, groups: int) -> None:
        """Submit `groups` workgroups of a kernel, see `Commands.dispatch`."""
        commands = self.record()
        commands.dispatch(kernel, groups)
        commands.submit()

    def wait(self, submission: object) -> None:
        """Block until a submission has finished; None: until all submissions have finished."""
        self.webgpu.wait(self.handle, submission)

    def write(self, buffer: Buffer, array: NDArray[Any]) -> None:
        """Copy an array to the start of a buffer; later submissions see the new contents.

        Raises ValueError if the array is larger than the buffer.
        """
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if len(flat) > buffer.nbytes:
            raise ValueError(
                f"{len(flat)} bytes don't fit in {buffer.label}, which has {buffer.nbytes}"
            )
        if not len(flat):
            return  # the queue refuses empty writes
        if len(flat) <= SMALL_UPLOAD:
            padded = np.zeros(-(-len(flat) // 4) * 4, np.uint8)
            padded[: len(flat)] = flat
            self.call(self.handle.queue.write_buffer, buffer.handle, buffer.offset, padded)
            return
        self._write_staged(buffer, flat)

    def _write_staged(self, buffer: Buffer, flat: NDArray[np.uint8]) -> None:
        size = min(len(flat), UPLOAD_PIECE)
        staging: Staging | None = None
        with suppress(IndexError):  # another thread is using the idle memory
            staging = self._idle_staging.pop()
        if staging is None or staging.nbytes < size:
            staging = Staging(self, size)
        for start in range(0, len(flat), UPLOAD_PIECE):
            piece = flat[start : start + UPLOAD_PIECE]
            parallel_copy(staging.array()[: len(piece)], piece)
            commands = self.record()
            staging.copy_to(commands, buffer, len(piece), target_offset=start)
            commands.submit()
        self._idle_staging = [staging]

    def read(self, buffer: Buffer, count: int, dtype: type[_Scalar]) -> NDArray[_Scalar]:
        """Return the first `count` elements of a buffer as they are after all submitted work."""
        return self.begin_read(buffer, count, dtype)()

    def begin_read(
        self, buffer: Buffer, count: int, dtype: type[_Scalar]
    ) -> Callable[[], NDArray[_Scalar]]:
        """Submit the copy for `read`; return a function that waits and returns the elements.

        The function must be called exactly once.
        """
        out = np.empty(count, dtype)
        try:
            download = self._idle_downloads.pop()
        except IndexError:  # none is idle, or another thread has taken it
            download = Download(self)
        download.start((buffer, out.nbytes))

        def finish() -> NDArray[_Scalar]:
            download.finish(out.view(np.uint8))
            if len(self._idle_downloads) < IDLE_DOWNLOADS and out.nbytes <= UPLOAD_PIECE:
                self._idle_downloads.append(download)
            return out

        return finish

    def choose_halves(self) -> None:
        """Use the device's own conversion to half precision if it rounds to nearest, ties to even.

        The conversion is tested with all half-precision numbers, the numbers midway between
        neighbours, and the float32 numbers just below and just above each midpoint.
        """
        if HALVES in self.source_choices:
            return
        halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
        middles = (halves[1:] + halves[:-1]) / 2  # exact
        near = (np.nextafter(middles, np.float32(bound)) for bound in (0, np.inf))
        # Numbers between the largest half, 65504, and 65520 round to the largest half.
        beyond = np.array([65505, np.nextafter(np.float32(65520), np.float32(0))], np.float32)
        numbers = np.concatenate([halves, middles, *near, beyond])
        numbers = np.concatenate([numbers, -numbers])
        with np.errstate(under="ignore"):
            nearest = numbers.astype(np.float16).view(np.uint16)
        are_nearest = numbers.nbytes <= self.max_binding_bytes  # a smaller device is not tested
        if are_nearest:
            source, target = (self.create_buffer("halves", numbers.nbytes) for _ in range(2))
            self.write(source, numbers)
            kernel = self.kernel("common/probe_halves.wgsl")
            self.dispatch(kernel.bind(numbers=source, halves=target), -(-len(numbers) // 1024))
            are_nearest = np.array_equal(self.read(target, len(nearest), np.uint16), nearest)
        chosen = "lm/packed_halves.wgsl" if are_nearest else HALVES
        self.source_choices = {**self.source_choices, HALVES: chosen}

    def _probe_subgroups(self) -> int:
        """Return the subgroup size; 0 if scans do not support the order of the lanes."""
        size = 256
        kernel = self.kernel("common/probe_subgroups.wgsl")
        lanes = self.create_buffer("probe", 16 * size)
        self.dispatch(kernel.bind(lanes=lanes), 1)
        seen = self.read(lanes, 4 * size, np.uint32).reshape(size, 4)
        local_index, lane, width, subgroup = seen.T.astype(np.int64)
        in_order = bool(np.all(local_index == subgroup * width + lane))
        return int(width[0]) if in_order and bool(np.all(width == width[0])) else 0


IN_FLIGHT = 2  # submissions in flight


def paced_states(
    device: Device,
    buffer: Buffer,
    dtype: np.dtype[np.void],
    record: Callable[[Commands], None],
    *,
    running: Collection[int],
    seconds: float,
    first_rounds: int,
    most_rounds: int,
) -> Iterator[tuple[NDArray[Any], bool]]:
    """Submit rounds of a loop until the loop halts; yield the state after each submission.

    buffer: the state on the device, one element of `dtype` with a field "status".
    record: records one round. Rounds after the loop has halted must do nothing.
    running: the statuses of a loop that has not halted.
    seconds: intended duration of a submission.
    first_rounds: rounds of the first IN_FLIGHT submissions. most_rounds: the most rounds of any
        submission.

    Yields (state, is_idle): an array of shape (1,), and whether nothing is in flight. To resume a
    halted loop, the caller repairs the state on the device and sets the status in `state` to a
    running status.
    """
    pending: deque[Download] = deque()
    spare = [Download(device) for _ in range(IN_FLIGHT)]
    rounds, is_running, last = first_rounds, True, time.perf_counter()
    while True:
        # Keep IN_FLIGHT submissions in flight.
        while spare and is_running:
            download = spare.pop()
            commands = device.record()
            for _ in range(rounds):
                record(commands)
            download.record(commands, (buffer, dtype.itemsize))
            commands.submit()
            pending.append(download)
        if not pending:
            return
        # Wait for the oldest submission. Its duration decides how many rounds the next one gets, so
        # that it takes about `seconds`; the number changes at most by a factor of two.
        download = pending.popleft()
        state = np.empty(1, dtype)
        download.finish(state.view(np.uint8))
        spare.append(download)
        now = time.perf_counter()
        factor = min(2.0, max(0.5, seconds / max(now - last, 1e-4)))
        rounds = min(max(1, int(rounds * factor)), most_rounds)
        last = now
        yield state, not pending
        is_running = int(state["status"][0]) in running


_hash_key = np.frombuffer(os.urandom(16), np.uint32).copy()
_hash_key[-1] |= 1  # an odd factor: an even one would lose bits of a hash


def hash_key() -> NDArray[np.uint32]:
    """Return the key of hash tables, uint32 (4,)."""
    return _hash_key


def hash_key_buffer(device: Device) -> Buffer:
    """Return a new buffer with the key, to which kernels bind `hash_key`."""
    return device.upload("hash key", _hash_key)
