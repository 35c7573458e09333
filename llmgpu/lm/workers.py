"""Workers: processes that train one model together, started by ``mpiexec -n N llmgpu train ...``.

Each worker has the whole model on its own device. The workers divide the batches of a step among
themselves, add up their gradients, and all apply the same update. So their weights stay equal. Only
the first worker writes files and reports.

Gradients are added up in the order of the workers, so sums have the same bits in every run.
Tensors are cut into buckets. Each bucket is read, added up over the workers, and written back.
Threads add up a bucket while the next bucket is read. A few copies of buckets are queued on the
device, so the device seldom waits. `BucketSums` does this for two uses:

- The last batch of a step runs in stages, each of which completes some gradients. Sums replace the
  gradients while the backward pass computes further gradients, see `llmgpu.lm.trainer`.
- `LocalSteps`: at the end of a round, workers add up weights and moments. An outer step computes
  the new weights.
"""

from __future__ import annotations

import importlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial, reduce
from itertools import cycle
from typing import Any, NamedTuple, TypeVar

import numpy as np

from llmgpu.errors import InputError, LlmgpuError
from llmgpu.input_files import listed
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.recording import STAGED, Read
from llmgpu.lm.ops.tensor import FloatArray, Tensor
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.updates import Updates
from llmgpu.machine import usable_processors
from llmgpu.pipeline import in_order

T = TypeVar("T")
# Environment variables with the number of processes: Open MPI, MPICH or Intel MPI, MVAPICH.
_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
BUCKET = 1 << 23  # most numbers in a bucket
AHEAD = 3  # buckets that the device copies to the host while the host reads another bucket
_SLOTS = 3  # slots, of one bucket each, in the memory that a worker shares
# Parts of a tensor, and shares of threads, start at multiples of this many numbers (256 bytes).
_START = 64
_BLOCK = 1 << 16  # numbers added up at a time, so that they fit in a processor's cache
_MOST_THREADS = 8  # more threads are no faster, because memory is the limit

# A function that receives a range of an array, and the sums over all workers of each number in it.
# It does not change the sums.
Use = Callable[[slice, FloatArray], None]
# A function `add_up(use)`, which calls `use` for ranges of sums, in several threads. Any thread may
# call it.
AddUp = Callable[[Use], None]
# A function that adds up an array over all workers. The argument is this worker's array, float32
# (n,), which must not change until `add_up` has returned. At most one more call of `Sums` may begin
# before `add_up` has returned.
Sums = Callable[[FloatArray], AddUp]


class Workers:
    """The processes that train a model together, as seen from one of them.

    number: the number of this process, from 0. count: number of processes. local_number,
    local_count: the same among the processes of this machine. is_first: whether this worker writes
    files and reports.
    """

    def __init__(self, communicator: Any = None) -> None:
        """Join the processes of an MPI communicator; None: this process is the only worker."""
        self._mpi = communicator
        self.number, self.count = self.local_number, self.local_count = 0, 1
        if communicator is not None:
            self.number, self.count = communicator.rank, communicator.size
            local = communicator.Split_type(importlib.import_module("mpi4py.MPI").COMM_TYPE_SHARED)
            self.local_number, self.local_count = local.rank, local.size
        self.is_first = self.number == 0

    def check(self, grad_accum: int) -> None:
        """Raise InputError unless a step's batches can be divided evenly among the workers."""
        if grad_accum % self.count:
            raise InputError(
                f"--grad-accum is {grad_accum}, which {self.count} workers can't share: use a "
                f"multiple of {self.count}, such as --grad-accum {self.count}"
            )

    def device(self, wanted: str, adapters: int) -> str:
        """Return the value of ``--device`` for this worker: workers of a machine use separate GPUs.

        wanted: the value given by the user. adapters: number of GPUs of this machine.

        Raises InputError if the machine has fewer GPUs than workers.
        """
        if self.count == 1 or wanted not in ("auto", "gpu"):
            return wanted
        if wanted == "auto" and not adapters:
            return "cpu"
        if adapters < self.local_count:
            raise InputError(
                f"{self.local_count} workers on a machine with {adapters} GPUs: start one for each "
                "GPU, or choose with --device"
            )
        return f"gpu:{self.local_number}"

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Run the block on the first worker, and then on all other workers."""
        if not self.is_first:
            self.gather(None)
        yield
        if self.is_first:
            self.gather(None)

    def gather(self, value: T) -> list[T]:
        """Return the values of all workers, by number; all workers must call this method."""
        values: list[T] = [value] if self._mpi is None else self._mpi.allgather(value)
        return values

    def require_same(self, what: str, value: str) -> None:
        """Raise InputError unless all workers pass equal values.

        All workers must call this method.
        """
        values = self.gather(value)
        if len(set(values)) > 1:
            raise InputError(
                f"the workers' {what} differ: {listed([*dict.fromkeys(values)])}; use the same "
                "packages, drivers and --device for all"
            )

    def open_sums(self) -> Sums:
        """Return the `Sums` over all workers; all workers must call this method."""
        threads = BlockThreads(self.local_count)
        if self.count == 1:  # the sum is this worker's array itself
            return lambda own: partial(threads.run, len(own), own.__getitem__)
        memory = share_memory(self._mpi) if self.local_count == self.count else None
        if memory is None:
            return partial(collective_sums, self._mpi, threads)
        return partial(shared_sums, self._mpi, threads, cycle(zip(*memory, strict=True)))

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Continue after the block only if the block succeeds on all workers.

        After a failure the first worker raises its own error, or else InputError with the error of
        the failed worker. All other workers raise SystemExit and print nothing.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        said = self.gather(error and (str(error) or repr(error)))
        failed = [number for number, text in enumerate(said) if text is not None]
        if not failed:
            return
        if not self.is_first:
            raise SystemExit(1)
        raise error or InputError(f"worker {failed[0]}: {said[failed[0]]}")

    @contextmanager
    def together(self, say: Callable[[str], None]) -> Iterator[None]:
        """End all workers if the block fails on one; call `say` with a line about the failure."""
        try:
            yield
        except BaseException as error:
            if self._mpi is None or isinstance(error, KeyboardInterrupt):
                raise
            what = str(error) if isinstance(error, LlmgpuError) else repr(error)
            say(f"worker {self.number}: {what}")
            self._mpi.Abort(1)


ALONE = Workers()


def start_workers(environment: Mapping[str, str] = os.environ) -> Workers:
    """Return the workers that mpiexec started with this process, or `ALONE`.

    Raises InputError if mpiexec started several processes, but mpi4py is missing.
    """
    counts = [environment[name] for name in _COUNTS if name in environment]
    if not any(count.isdigit() and int(count) > 1 for count in counts):
        return ALONE
    _take_processors()
    try:
        communicator = importlib.import_module("mpi4py.MPI").COMM_WORLD
    except (ImportError, RuntimeError) as error:
        raise InputError(
            "training by several processes needs the package mpi4py: pip install 'llmgpu[mpi]' "
            f"({error})"
        ) from error
    return Workers(communicator)


def _take_processors() -> None:
    """If this process is bound to a single processor, use the processors of the parent process.

    Open MPI binds each of two workers to one processor, where the threads that feed a worker's
    device could not run side by side.
    """
    with suppress(AttributeError, OSError):  # only Linux has `sched_setaffinity`
        if usable_processors() == 1:
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))


class Change(NamedTuple):
    """A change of tensors that is computed from sums over all workers.

    tensors: the tensors that are read and written, end to end as one array (n,). summed: the first
    `summed` numbers of the array are added up over the workers; the other numbers are not. compute:
    receives the old array (n,), the new array (n,), a range of the first `summed` numbers, and the
    sums of this range. It writes to the new array.
    """

    tensors: Sequence[Tensor]
    summed: int
    compute: Callable[[FloatArray, FloatArray, slice, FloatArray], None]


def replace_by_sums(old: FloatArray, new: FloatArray, block: slice, sums: FloatArray) -> None:
    """Compute a `Change` of tensors to their sums over all workers."""
    new[block] = sums


class BucketSums:
    """Changes tensors, one bucket after another, with their sums over all workers."""

    def __init__(self, operations: Operations, workers: Workers, numbers: int) -> None:
        """Open the transfers of the tensors. The first change opens `Sums`.

        numbers: limit of the numbers in one change, which also has at most `BUCKET` numbers.
        """
        self._open_sums = cache(workers.open_sums)
        self._transfers = operations.open_transfers(min(BUCKET, numbers))

    def make(self, changes: Iterable[Change]) -> None:
        """Make the changes. A change is computed while the tensors of later changes are read.

        All workers must call this method.
        """

        def start_reading(change: Change) -> tuple[Change, Read]:
            return change, self._transfers.start_reading(change.tensors)

        reading = in_order(changes, start_reading, AHEAD + 1, threads=0)
        begun = (self._begin(*each) for each in reading)
        for release, write in in_order(begun, lambda compute: compute(), 2, threads=1):
            release()
            write()

    def _begin(
        self, change: Change, read: Read
    ) -> Callable[[], tuple[Callable[[], None], Callable[[], None]]]:
        """Return a function that computes a change and returns two functions.

        Call the first to free the memory of the old numbers, then the second to copy the new
        numbers to the tensors.
        """
        old, release = read()
        add_up = self._open_sums()(old[: change.summed])
        new, write = self._transfers.start_writing(change.tensors)

        def compute() -> tuple[Callable[[], None], Callable[[], None]]:
            add_up(partial(change.compute, old, new))
            return release, write

        return compute


def exchange_memory(parameters: int) -> int:
    """Return an upper bound of a worker's memory for adding up gradients, in bytes."""
    return (_SLOTS + AHEAD + 2 + STAGED) * 4 * min(BUCKET, parameters + BUCKET // 8)


def numbers_of(tensors: Sequence[Tensor]) -> int:
    """Return how many numbers tensors have together."""
    return sum(tensor.size for tensor in tensors)


def buckets(tensors: Sequence[Tensor], most: int | None = None) -> Iterator[list[Tensor]]:
    """Yield lists of tensors, or parts of tensors, in order; a list has up to `most` numbers.

    most: limit of the numbers in a list; by default, `BUCKET`.
    """
    bucket: list[Tensor] = []
    most = room = BUCKET if most is None else most
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
                bucket, room = [], most
    if bucket:
        yield bucket


class BlockThreads:
    """Threads that work on blocks of arrays; a block fits in a processor's cache."""

    def __init__(self, workers: int) -> None:
        """Divide this machine's processors among its workers; the threads start later."""
        self._count = max(1, min(usable_processors() // workers, _MOST_THREADS))
        self._pool = ThreadPoolExecutor(self._count, "sums")

    def run(self, count: int, sums_of: Callable[[slice], FloatArray], use: Use) -> None:
        """Call `use` for the blocks of an array of `count` numbers, and for the sums of each."""
        size = max(_BLOCK, -(-count // (self._count * _START)) * _START)
        shares = [range(first, min(first + size, count)) for first in range(0, count, size)]

        def over_blocks(share: range) -> None:
            for start in share[::_BLOCK]:
                block = slice(start, min(start + _BLOCK, share.stop))
                use(block, sums_of(block))

        list((self._pool.map if len(shares) > 1 else map)(over_blocks, shares))


def shared_sums(
    communicator: Any, threads: BlockThreads, slots: Iterator[Sequence[FloatArray]], own: FloatArray
) -> AddUp:
    """Add up an array over the workers of one machine, through shared memory.

    A worker writes to its slots in turn. Before the workers read a slot, they wait until all have
    written to this slot. A worker writes to the first slot again only after the wait for the second
    slot. At that wait all workers have finished reading the first slot.

    slots: yields without end the next slot of each worker, float32 (BUCKET,), indexed by worker.
    own: this worker's array, as for `Sums`.
    """
    slot = next(slots)
    slot[communicator.rank][: len(own)] = own

    def sums_of(block: slice) -> FloatArray:
        return reduce(np.add, (each[block] for each in slot))

    def add_up(use: Use) -> None:
        communicator.Barrier()
        threads.run(len(own), sums_of, use)

    return add_up


def collective_sums(communicator: Any, threads: BlockThreads, own: FloatArray) -> AddUp:
    """Add up an array over workers of several machines; each worker adds up one range of it.

    A worker sends about twice the size of the array, for any number of workers. own: this worker's
    array, as for `Sums`.
    """
    workers, count = communicator.size, len(own)
    given = np.zeros((workers, -(-count // workers)), np.float32)
    given.reshape(-1)[:count] = own

    def add_up(use: Use) -> None:
        taken = np.empty_like(given)
        communicator.Alltoall(given, taken)
        communicator.Allgather(reduce(np.add, taken), given)
        threads.run(count, given.reshape(-1).__getitem__, use)

    return add_up


def share_memory(communicator: Any) -> list[FloatArray] | None:
    """Return each worker's slots (_SLOTS, BUCKET) in shared memory; None if it can't be shared.

    The memory has no name in a file system, so a worker that dies leaves nothing behind.
    """
    nbytes = _SLOTS * 4 * BUCKET
    # Allocate this worker's memory, which its inode identifies.
    descriptor, own = -1, None
    with suppress(AttributeError, OSError):  # only Linux has `memfd_create`
        descriptor = os.memfd_create("llmgpu gradients")
        os.ftruncate(descriptor, nbytes)
        own = os.fstat(descriptor)
    # Map the memory of all workers. Sharing works only if every worker can map all of it.
    memory: list[FloatArray] = []
    descriptors = communicator.allgather((os.getpid(), descriptor, own))
    with suppress(OSError, ValueError):
        for process, number, expected in descriptors:
            with open(f"/proc/{process}/fd/{number}", "r+b") as file:
                # If a worker is in another container, its process number belongs to another
                # process here.
                if expected and os.path.samestat(expected, os.fstat(file.fileno())):
                    mapped = np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.float32)
                    memory.append(mapped.reshape(_SLOTS, BUCKET))
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
        self, operations: Operations, options: TrainOptions, workers: Workers, inner: Updates
    ) -> None:
        """Create the state of the outer optimizer; inner: the updates inside a round."""
        self._read, self._options, self._count = operations.read, options, np.float32(workers.count)
        self._weights = weights = [*inner.trained.values()]
        self._moments = [each for state in inner.states.values() for each in state.tensors]
        self.momenta = [
            operations.tensor(f"outer momentum of {weight.name}", weight.shape)
            for weight in weights
        ]
        most = max(2 * numbers_of(weights), numbers_of(self._moments))
        self._sums = BucketSums(operations, workers, most)
        self._start: FloatArray | None = None

    def begin(self) -> None:
        """Copy the weights before the first round; all workers have equal weights."""
        if self._start is None:
            rest = self._start = np.empty(numbers_of(self._weights), np.float32)
            for weight in self._weights:
                own, rest = np.split(rest, [weight.size])
                own[...] = self._read(weight).reshape(-1)

    def end_round(self) -> None:
        """Make the outer step and average the moments. All workers must call this method."""
        assert self._start is not None, "a round has begun"
        self._sums.make(self._changes(self._start))

    def _changes(self, start: FloatArray) -> Iterator[Change]:
        # A bucket has weights in its first half and their momenta in its second.
        halves = (buckets(tensors, BUCKET // 2) for tensors in (self._weights, self.momenta))
        for weights, momenta in zip(*halves, strict=True):
            own, start = np.split(start, [numbers_of(weights)])
            yield Change([*weights, *momenta], len(own), partial(self._make_outer_step, own))
        for moments in buckets(self._moments):
            yield Change(moments, numbers_of(moments), self._take_mean)

    def _make_outer_step(
        self, start: FloatArray, old: FloatArray, new: FloatArray, block: slice, sums: FloatArray
    ) -> None:
        """Compute weights and momenta, and the weights at the beginning of the next round."""
        rate = np.float32(self._options.outer_learning_rate)
        decay = np.float32(self._options.outer_momentum)
        momenta = slice(len(start) + block.start, len(start) + block.stop)
        gradient = start[block] - sums / self._count
        momentum = decay * old[momenta] + gradient
        start[block] -= rate * (gradient + decay * momentum)
        new[block], new[momenta] = start[block], momentum

    def _take_mean(self, old: FloatArray, new: FloatArray, block: slice, sums: FloatArray) -> None:
        new[block] = sums / self._count


def local_memory(parameters: int) -> int:
    """Return an upper bound of the host memory of `LocalSteps`, in bytes.

    The memory in which workers exchange their numbers is included. parameters: number of weights.
    """
    blocks = 6 * _MOST_THREADS * 4 * _BLOCK  # an outer step has up to 6 arrays in each thread
    return 4 * parameters + exchange_memory(2 * parameters) + blocks
