"""Adding up the gradients of all workers while the backward pass computes further gradients.

The last batch of a step runs in stages. Each stage completes some gradients, which are cut into
buckets. Each bucket is read, added up over the workers in the order of their numbers, and written
back. Threads add up a bucket while the next bucket is read. A few copies of buckets are queued on
the device, so the device seldom waits.

With local steps, workers instead add up weights at the end of a round, see `LocalSteps`.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.recording import STAGED, Program
from llmgpu.lm.ops.tensor import FloatArray, Tensor
from llmgpu.lm.options import TrainOptions
from llmgpu.pipeline import in_order
from llmgpu.processors import usable_processors

BUCKET = 1 << 23  # most numbers in a bucket
AHEAD = 3  # buckets that the device copies to the host while the host reads another bucket
_SLOTS = 3  # slots, of one bucket each, in the memory that a worker shares
_START = 64  # parts of a tensor start at multiples of this many numbers, which are 256 bytes
_BLOCK = 1 << 16  # numbers added up at a time, so that they fit in a processor's cache
_TOKEN = 16  # random bytes by which another worker recognizes this worker's memory
_MOST_THREADS = 8  # more threads are no faster, because memory is the limit

Fill = Callable[[FloatArray], None]
Write = Callable[[], None]
# A function that adds up an array over all workers. Arguments: the length of the float32 arrays,
# and a function that fills an array with this worker's numbers. It returns a function that fills an
# array with the sums, which another thread may call. One more call of `Sums` may begin before that
# function has returned, but not two.
Sums = Callable[[int, Fill], Fill]


@dataclass(frozen=True)
class Stage:
    """A program that completes some gradients of a step, and the tensors that it completes."""

    program: Program
    tensors: Sequence[Tensor]


class Exchange:
    """Replaces tensors by their sums over all workers."""

    def __init__(
        self, operations: Operations, open_sums: Callable[[], Sums], stages: Sequence[Stage]
    ) -> None:
        """Divide the tensors of stages into buckets; each tensor belongs to only one stage.

        open_sums: called once on every worker, before the first sum.
        """
        self._operations = operations
        self._open_sums = cache(open_sums)
        self._stages = [(stage.program, list(buckets(stage.tensors))) for stage in stages]
        sizes = [_size(bucket) for _, given in self._stages for bucket in given]
        self._transfers = operations.open_transfers(max(sizes))

    def finish(self) -> int:
        """Run the stages after the first, and replace all tensors by their sums.

        The caller has run the first stage. Programs that run later see the sums. Returns the number
        of stages that were run.
        """
        for write in in_order(self._begun_sums(), _fill, 2, threads=1):
            write()
        return len(self._stages) - 1

    def _begun_sums(self) -> Iterator[tuple[Fill, FloatArray, Write]]:
        """Run the stages; after each bucket is read, yield (fill, array, write).

        fill: writes the sums to the array, float32 (n,). write: copies the array to the tensors of
        the bucket.
        """
        pending: deque[tuple[list[Tensor], Fill]] = deque()
        for number, (program, given) in enumerate(self._stages):
            if number:
                self._operations.run(program)
            for bucket in given:
                pending.append((bucket, self._transfers.start_reading(bucket)))
                if len(pending) > AHEAD:
                    yield self._read(*pending.popleft())
        while pending:
            yield self._read(*pending.popleft())

    def _read(self, bucket: list[Tensor], read: Fill) -> tuple[Fill, FloatArray, Write]:
        fill = self._open_sums()(_size(bucket), read)
        return fill, *self._transfers.start_writing(bucket)


def _fill(sums: tuple[Fill, FloatArray, Write]) -> Write:
    fill, array, write = sums
    fill(array)
    return write


def exchange_memory(parameters: int) -> int:
    """Return an upper bound of a worker's memory for adding up gradients, in bytes."""
    return (_SLOTS + AHEAD + 1 + STAGED) * 4 * min(BUCKET, parameters + BUCKET // 8)


def _size(bucket: Sequence[Tensor]) -> int:
    return sum(tensor.size for tensor in bucket)


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of tensors, or parts of tensors, in order; a list has up to `BUCKET` numbers."""
    bucket: list[Tensor] = []
    room = BUCKET
    for tensor in tensors:
        first = 0
        while first < tensor.size:
            count = min(room, tensor.size - first)
            if first + count < tensor.size:
                count = count // _START * _START
            if count:
                whole = count == tensor.size
                bucket.append(tensor if whole else tensor.part(first, first + count))
            first, room = first + count, room - count
            if room < _START:
                yield bucket
                bucket, room = [], BUCKET
    if bucket:
        yield bucket


class SharedSums:
    """Sums over the workers of one machine, through shared memory.

    A worker writes to its slots in turn. Before the workers read a slot, they wait until all have
    written to this slot. A worker writes to the first slot again only after the wait for the second
    slot. At that wait all workers have finished reading the first slot.
    """

    def __init__(self, communicator: Any, memory: Sequence[mmap.mmap]) -> None:
        """Store the memory of all workers, by number, as `share_memory` returns it."""
        self._communicator = communicator
        arrays = [np.frombuffer(each, np.float32, _SLOTS * BUCKET, _TOKEN) for each in memory]
        self._slots = deque(zip(*(array.reshape(_SLOTS, BUCKET) for array in arrays), strict=True))
        threads = max(1, min(usable_processors() // len(memory), _MOST_THREADS))
        self._scratch = [np.empty(_BLOCK, np.float32) for _ in range(threads)]

    def __call__(self, count: int, read: Fill) -> Fill:
        """Write this worker's numbers to its next slot.

        The returned function waits until all workers have written, and adds up their slots.
        """
        slot = self._slots[0]
        self._slots.rotate(-1)
        read(slot[self._communicator.rank][:count])
        return partial(self._add_up, slot, count)

    def _add_up(self, slot: Sequence[FloatArray], count: int, out: FloatArray) -> None:
        self._communicator.Barrier()
        size = max(_BLOCK, -(-count // len(self._scratch)))
        parts = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        jobs = zip(parts, self._scratch, strict=False)
        for _ in in_order(jobs, partial(_add, slot, out), len(parts)):
            pass


def _add(given: Sequence[FloatArray], out: FloatArray, job: tuple[slice, FloatArray]) -> None:
    """Add up one range of the arrays in `given`, and write the sums to `out`.

    job: the range, and an array that collects a block of sums, because reading `out` may be slow.
    """
    part, total = job
    for first in range(part.start, part.stop, _BLOCK):
        block = slice(first, min(first + _BLOCK, part.stop))
        sums = np.add(given[0][block], given[1][block], out=total[: block.stop - first])
        for other in given[2:]:
            sums += other[block]
        out[block] = sums


def collective_sums(communicator: Any, count: int, read: Fill) -> Fill:
    """Add up an array over workers of several machines; each worker adds up one range of it.

    A worker sends about twice the size of the array, for any number of workers. Arguments and
    result are those of `Sums`.
    """
    workers = communicator.size
    given = np.zeros((workers, -(-count // workers)), np.float32)
    read(given.reshape(-1)[:count])

    def fill(out: FloatArray) -> None:
        taken = np.empty_like(given)
        communicator.Alltoall(given, taken)
        total = taken[0]
        for other in taken[1:]:
            total += other
        communicator.Allgather(total, given)
        out[...] = given.reshape(-1)[:count]

    return fill


def open_sums(communicator: Any, *, one_machine: bool) -> Sums:
    """Return the `Sums` of an MPI communicator; all its workers must call this function.

    communicator: None for a single worker.
    """
    if communicator is None:
        return lambda count, read: read  # the sum is this worker's array itself
    memory = share_memory(communicator) if one_machine else None
    if memory is None:
        return partial(collective_sums, communicator)
    return SharedSums(communicator, memory)


def share_memory(communicator: Any) -> list[mmap.mmap] | None:
    """Return a memory for each worker that all workers can access; None if this is impossible.

    The memory has no name in a file system, so a worker that dies leaves nothing behind.
    """
    nbytes = _TOKEN + _SLOTS * 4 * BUCKET
    # Allocate this worker's memory; random bytes at its start identify it.
    token = os.urandom(_TOKEN)
    try:
        descriptor = os.memfd_create("llmgpu gradients")  # available only on Linux
        os.ftruncate(descriptor, nbytes)
        os.pwrite(descriptor, token, 0)
    except (AttributeError, OSError):
        descriptor = -1
    # Map the memory of all workers. Sharing works only if every worker can map all of it.
    memory = []
    for process, number, expected in communicator.allgather((os.getpid(), descriptor, token)):
        try:
            with open(f"/proc/{process}/fd/{number}", "r+b") as file:
                memory.append(mmap.mmap(file.fileno(), nbytes))
            # The worker is in another container: its process number belongs to another process
            # here.
            if memory[-1][:_TOKEN] != expected:
                memory = []
                break
        except (OSError, ValueError):
            memory = []
            break
    is_shared = all(communicator.allgather(len(memory) == communicator.size))
    if descriptor >= 0:
        os.close(descriptor)
    return memory if is_shared else None


class LocalSteps:
    """Rounds of steps that workers make separately; an outer step ends each round.

    A worker updates its weights with the gradients of its own batches only. At the end of a round,
    the weights at the beginning of the round minus the mean of all workers' weights are the
    gradient of an outer optimizer, SGD with Nesterov's momentum. All workers begin the next round
    with the weights after this outer step (DiLoCo, A. Douillard et al., arXiv 2311.08105). The
    moments of the inner optimizer are averaged over the workers, as in Local Adam (Z. Cheng and M.
    Glasgow, arXiv 2409.13155). So all workers have equal states after a round, and a checkpoint is
    complete.

    momenta: the momentum of the outer optimizer, a tensor for each weight, zeros at first.
    """

    def __init__(
        self,
        operations: Operations,
        options: TrainOptions,
        workers: int,
        open_sums: Callable[[], Sums],
        weights: Sequence[Tensor],
        moments: Sequence[Tensor],
    ) -> None:
        """Create the state of the outer optimizer.

        workers: number of workers. open_sums: called at the end of the first round. weights,
        moments: tensors of the model and of the inner optimizer.
        """
        self._operations, self._options, self._workers = operations, options, workers
        self._open_sums = cache(open_sums)
        self._weights, self._moments = weights, moments
        self.momenta = [
            operations.tensor(f"outer momentum of {weight.name}", weight.shape)
            for weight in weights
        ]
        self._transfers = operations.open_transfers(min(BUCKET, _size([*weights, *moments])))
        self._start: FloatArray | None = None

    def begin(self) -> None:
        """Copy the weights before the first round; all workers have equal weights."""
        if self._start is None:
            pieces = [self._read(bucket) for bucket in buckets(self._weights)]
            self._start = np.concatenate(pieces)

    def end_round(self) -> None:
        """Make the outer step and average the moments. All workers must call this method."""
        assert self._start is not None, "a round has begun"
        rate = np.float32(self._options.outer_learning_rate)
        decay = np.float32(self._options.outer_momentum)
        rest = self._start
        for weights, momenta in zip(buckets(self._weights), buckets(self.momenta), strict=True):
            start, rest = np.split(rest, [_size(weights)])
            gradient = start - self._mean(weights)
            momentum = decay * self._read(momenta) + gradient
            start -= rate * (gradient + decay * momentum)
            self._write(weights, start)
            self._write(momenta, momentum)
        for moments in buckets(self._moments):
            self._write(moments, self._mean(moments))

    def _mean(self, bucket: Sequence[Tensor]) -> FloatArray:
        out = np.empty(_size(bucket), np.float32)
        self._open_sums()(len(out), self._transfers.start_reading(bucket))(out)
        out /= np.float32(self._workers)
        return out

    def _read(self, bucket: Sequence[Tensor]) -> FloatArray:
        out = np.empty(_size(bucket), np.float32)
        self._transfers.start_reading(bucket)(out)
        return out

    def _write(self, bucket: Sequence[Tensor], values: FloatArray) -> None:
        out, write = self._transfers.start_writing(bucket)
        out[...] = values
        write()


def local_memory(parameters: int) -> int:
    """Return an upper bound of the host memory of `LocalSteps`, in bytes.

    The memory in which workers exchange their numbers is not included. parameters: number of
    weights.
    """
    return 4 * parameters + 6 * 4 * BUCKET
