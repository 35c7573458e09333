"""Workers: processes that train one model together, started by ``mpiexec -n N llmgpu train ...``.

Each worker has the whole model on its own device. The workers divide the batches of a step among
themselves, add up their gradients, and all apply the same update. So their weights stay equal. Only
the first worker writes files and reports.

Gradients are added up in the order of the workers, so sums have the same bits in every run.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from llmgpu.errors import InputError, LlmgpuError
from llmgpu.input_files import listed
from llmgpu.lm.exchange import Sums, open_sums
from llmgpu.processors import usable_processors

T = TypeVar("T")
# Environment variables with the number of processes: Open MPI, MPICH or Intel MPI, MVAPICH.
_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


class Workers:
    """The processes that train a model together, as seen from one of them.

    number: the number of this process, from 0. count: number of processes. local_number,
    local_count: the same among the processes of this machine.
    """

    def __init__(self, communicator: Any = None) -> None:
        """Join the processes of an MPI communicator; None: this process is the only worker."""
        self._mpi = communicator
        self.number: int = 0 if communicator is None else communicator.rank
        self.count: int = 1 if communicator is None else communicator.size
        self.local_number, self.local_count = 0, 1
        if communicator is not None:
            local = communicator.Split_type(importlib.import_module("mpi4py.MPI").COMM_TYPE_SHARED)
            self.local_number, self.local_count = local.rank, local.size

    @property
    def is_first(self) -> bool:
        """Whether this worker writes files and reports."""
        return self.number == 0

    def own(self, batches: int) -> range:
        """Return the numbers of this worker's batches in a step of `batches` batches."""
        return range(self.number, batches, self.count)

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

    def wait(self) -> None:
        """Wait until all workers have called this method."""
        if self._mpi is not None:
            self._mpi.Barrier()

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Run the block on the first worker, and then on all other workers."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

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
        return open_sums(self._mpi, self.local_count)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Continue after the block only if the block succeeds on all workers.

        After a failure the first worker raises its own error, or else InputError with the error of
        the failed worker. All other workers raise SystemExit and print nothing.
        """
        if self._mpi is None:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        said = self._mpi.allgather(error and (str(error) or repr(error)))
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
