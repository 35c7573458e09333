"""Choosing where to compute: a GPU adapter, a software adapter, or NumPy; and by which driver.

Only this module knows what ``--device`` means. It loads a WebGPU driver only when an adapter may be
used: the one that LLMGPU_DRIVER names, or Dawn where a command gains by matrix units and Dawn is
installed and lists them, or else wgpu.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from llmgpu.amounts import parse_bytes
from llmgpu.errors import DeviceError, InputError
from llmgpu.forking import delaying_forks
from llmgpu.memory import Growth
from llmgpu.processors import usable_processors

if TYPE_CHECKING:
    from concurrent.futures import Future

    from llmgpu.gpu import AdapterInfo, Device


# Bytes of text from which ``auto`` opens an adapter: the CPU takes as long for them as that does.
TOKENIZING_FROM = 64_000_000 * usable_processors()
TRAINING_FROM = 32_000_000

_log = logging.getLogger("llmgpu")
T = TypeVar("T")


@dataclass(frozen=True)
class Backend:
    """Where to compute.

    device: None stands for the CPU.
    description: one line for messages.
    joining: waits for the device that helps the CPU from when it is open; returns the backend of
        the CPU alone where there is none. None if nothing joins.
    others: the same for further devices, which join, too.
    join_from: bytes of text from which it is worth joining, if that is not known to be so already.
    shares: bytes of text worked on, by the description of who did, where a device may join.
    """

    device: Device | None
    description: str
    joining: Callable[[], Backend] | None = None
    others: tuple[Callable[[], Backend], ...] = ()
    join_from: int = 0
    shares: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def is_software(self) -> bool:
        """Whether the CPU does the work."""
        return self.device is None or self.device.is_software

    @property
    def driver(self) -> str:
        """The name of the WebGPU driver, wgpu also where there is no device."""
        return "wgpu" if self.device is None else self.device.webgpu.name


NUMPY = Backend(None, "the CPU")
ALL = "all"


@delaying_forks()
def select_backend(
    wanted: str,
    *,
    matrices: bool = False,
    driver: str | None = None,
    note: Callable[[str], None] | None = None,
) -> Backend:
    """Return the backend for ``auto``, ``cpu``, ``gpu`` or part of an adapter's name.

    auto: a hardware adapter, or else NumPy, which is faster than a software adapter.
    matrices: take Dawn for its matrix units, if it is installed and lists them. driver: that of a
        run to be resumed, unless LLMGPU_DRIVER names one. note: is told where Dawn can't be used
        although it was to be, by default the log; wgpu takes its place, except for a run to be
        resumed.

    DeviceError if nothing matches (the message lists the adapters), or it can't be opened.
    """
    if not isinstance(wanted, str):
        raise TypeError(f"a device is named by a str such as gpu, not {type(wanted).__name__}")
    if wanted == "cpu":
        return NUMPY
    if wanted == ALL:
        raise DeviceError("device all is only for tokenizing and counting tokens: choose one")
    from llmgpu.gpu import chosen_driver

    chosen = chosen_driver()
    driver = None if chosen else driver
    chosen = chosen or driver
    if _may_take_dawn(matrices, driver):
        try:
            backend = _open("dawn", wanted, only_matrices=chosen is None)
        except Exception as error:  # wgpudawn is young: what it raises is not known
            if driver == "dawn":
                raise DeviceError(
                    f"the run was started with Dawn, which can't be used here: {error}; install "
                    "llmgpu[dawn], or use --device cpu or LLMGPU_DRIVER=wgpu, which round "
                    "differently"
                ) from error
            (note or _log.warning)(f"Dawn can't be used, so wgpu takes its place: {error}")
        else:
            if backend is not None:
                return backend
    if _has_wgpu():
        return _open("wgpu", wanted) or NUMPY
    if wanted == "auto":
        return NUMPY
    raise DeviceError("can't import wgpu; use --device cpu, or run pip install wgpu")


def _open(driver: str, wanted: str, *, only_matrices: bool = False) -> Backend | None:
    """Open an adapter of a driver, if need be only one with matrix units; None: there is none."""
    from llmgpu.gpu import list_adapters, load_driver, select_adapter

    webgpu = load_driver(driver)
    if wanted == "auto" and not webgpu.is_usable():  # forked: without adapters
        return None
    if only_matrices and not any(info.matrix_shapes for info in list_adapters(webgpu)):
        return None
    if wanted == "auto":
        adapter = next((info for info in list_adapters(webgpu) if not info.is_software), None)
    else:
        adapter = select_adapter(wanted, webgpu)
    if adapter is None or (only_matrices and not adapter.matrix_shapes):
        return None
    return _opened(adapter)


@delaying_forks()
def _opened(adapter: AdapterInfo) -> Backend:
    """Open an adapter; NumPy, which all else needs, may be imported meanwhile."""
    from llmgpu.gpu import OpenedAdapter

    opened = OpenedAdapter(adapter)
    from llmgpu.gpu import Device

    return Backend(Device(opened), str(adapter))


_early: dict[str, Future[Backend]] = {}
_early_all: list[Future[Callable[[], Backend]]] = []  # what `_start_all` returns
_begun: list[Future[Any]] = []
_kept: dict[str, Future[Backend]] = {}  # by what was wanted, see `keep_devices`
_keeps = False
_growth: list[Growth] = []  # since before a device was selected early


@delaying_forks()
def select_early(wanted: str, *, auto: bool = False, matrices: bool = False) -> None:
    """Begin to select a backend in a thread, for `start_selecting` to take, if it is a device.

    So an adapter is opened while the command's own modules are imported. The driver is imported
    before: two threads that import keep each other waiting, and the adapter takes longer. Nothing
    begins where it may be Dawn that is selected, see `_selecting`, or where it has begun already.

    auto: whether ``auto`` will take a device. matrices: see `select_backend`.
    """
    if wanted == "cpu" or (wanted == "auto" and not auto) or wanted in _early:
        return
    _growth[:] = [Growth()]
    with suppress(DeviceError, ImportError, OSError, RuntimeError):  # it is raised again later
        if _may_take_dawn(matrices):
            return
        from llmgpu.gpu import load_driver

        load_driver("wgpu")
    if wanted == ALL:
        _early_all.append(_in_thread(_start_all))
    else:
        _early[wanted] = _selecting(wanted, matrices=matrices)


@contextmanager
def selecting_early(wanted: str, *, auto: bool = False) -> Iterator[None]:
    """Select a backend early, see `select_early`, for a block that takes it.

    If the block fails before, the device is closed: nobody may take it, least of all a process
    that is forked from this one, which can't use it.
    """
    if wanted != ALL:  # which no single block takes
        select_early(wanted, auto=auto)
    try:
        yield
    except BaseException:
        _early.pop(wanted, None)
        raise


def keep_devices() -> None:
    """Let all commands from here on that want the same device share it."""
    global _keeps
    _keeps = True


def _selecting(
    wanted: str, *, matrices: bool = False, note: Callable[[str], None] | None = None
) -> Future[Backend]:
    """Select a backend in a thread, or at once where it may be Dawn.

    While Dawn lists adapters, what anybody writes to standard error is held back; it would be lost
    if the command failed meanwhile, and would seem to go to a file.
    """
    if wanted in _kept:
        return _kept[wanted]
    begin = _at_once if _may_take_dawn(matrices) else _in_thread
    selecting = begin(lambda: select_backend(wanted, matrices=matrices, note=note))
    if _keeps:
        _kept[wanted] = selecting
    return selecting


def _may_take_dawn(matrices: bool, driver: str | None = None) -> bool:
    """Whether `select_backend` tries Dawn first; DeviceError if LLMGPU_DRIVER can't be followed."""
    from llmgpu.gpu import chosen_driver, has_dawn

    chosen = chosen_driver() or driver
    return chosen == "dawn" or (chosen is None and matrices and has_dawn())


def begin_growth() -> Growth:
    """Return what measures a job's memory, from before a device of it is opened."""
    return _growth.pop() if _growth else Growth()


def gpu_from(least: int) -> int:
    """Return from how many bytes of text ``auto`` opens an adapter: LLMGPU_GPU_FROM, or `least`.

    Raises InputError if LLMGPU_GPU_FROM is not a size.
    """
    value = os.environ.get("LLMGPU_GPU_FROM")
    if not value:
        return least
    try:
        return parse_bytes(value)
    except InputError as error:
        raise InputError(f"LLMGPU_GPU_FROM: {error}") from error


def is_for_gpu(text_bytes: int | None) -> bool:
    """Whether ``auto`` opens an adapter at once to tokenize so much text; None: not known."""
    return text_bytes is not None and text_bytes >= gpu_from(TOKENIZING_FROM)


def _in_thread(select: Callable[[], T]) -> Future[T]:
    from concurrent.futures import ThreadPoolExecutor

    from llmgpu.gpu import set_variables

    set_variables()
    thread = ThreadPoolExecutor(1, thread_name_prefix="llmgpu-open")
    selecting = thread.submit(select)
    _begun.append(selecting)
    selecting.add_done_callback(_begun.remove)  # it would keep the device
    thread.shutdown(wait=False)
    return selecting


def _at_once(select: Callable[[], T]) -> Future[T]:
    from concurrent.futures import Future

    selecting: Future[T] = Future()
    try:
        selecting.set_result(select())
    except Exception as error:  # for who takes the result, as of a thread
        selecting.set_exception(error)
    return selecting


def is_selecting() -> bool:
    """Whether a thread is selecting a backend, as it may be when a command fails early."""
    return bool(_begun)


def start_selecting(
    wanted: str,
    text_bytes: int | None = None,
    least: int = 0,
    *,
    joins: bool = False,
    matrices: bool = False,
    note: Callable[[str], None] | None = None,
) -> Callable[[], Backend]:
    """Select a backend in a thread, so that a device opens while a command reads its files.

    text_bytes: how much text there is, None if that isn't known. least: bytes of text from which
        ``auto`` opens an adapter; the CPU is done with less before one is open.
    joins: with ``auto``, select the CPU at once, which the device joins when it is open. So do all
        hardware adapters with ``all``, or all software adapters where there are none.
    matrices, note: see `select_backend`.

    Returns what waits for the backend, and raises what `select_backend` raises.
    """
    if wanted == ALL and joins:
        return _early_all.pop().result() if _early_all else _start_all()
    is_small = text_bytes is not None and text_bytes < least
    if wanted == "cpu" or (wanted == "auto" and is_small):
        return lambda: NUMPY
    joins = joins and wanted == "auto"
    if joins and text_bytes is None and wanted not in _early:
        opening = cache(lambda: select_backend(wanted))
        return lambda: Backend(None, NUMPY.description, joining=opening, join_from=least)
    selecting = _early.pop(wanted, None) or _selecting(wanted, matrices=matrices, note=note)
    if joins:
        return lambda: Backend(None, NUMPY.description, joining=selecting.result)
    return selecting.result


@delaying_forks()
def _start_all() -> Callable[[], Backend]:
    """Open adapters of the best kind there is, in a thread each; they join the CPU."""
    adapters = list_adapters()
    chosen = [info for info in adapters if info.is_software == adapters[0].is_software]
    if not chosen:
        return lambda: NUMPY

    from concurrent.futures import ThreadPoolExecutor

    threads = ThreadPoolExecutor(len(chosen), thread_name_prefix="llmgpu-open")
    first, *others = [threads.submit(_opened, info).result for info in chosen]
    threads.shutdown(wait=False)
    return lambda: Backend(None, NUMPY.description, joining=first, others=tuple(others))


def list_adapters() -> list[AdapterInfo]:
    """Return all adapters of the driver that LLMGPU_DRIVER names, or of wgpu, best first.

    There are none if the driver's package or the system's driver is missing, or if the process was
    forked from one that had used adapters.
    """
    from llmgpu.gpu import chosen_driver

    return _adapters(chosen_driver() or "wgpu")


def list_all_adapters() -> list[AdapterInfo]:
    """Return the adapters of all drivers that are installed, those of wgpu first."""
    from llmgpu.gpu import DRIVERS

    return [info for name in DRIVERS for info in _adapters(name)]


def _adapters(driver: str) -> list[AdapterInfo]:
    from llmgpu import gpu

    if not (gpu.has_dawn() if driver == "dawn" else _has_wgpu()):
        return []
    webgpu = gpu.load_driver(driver)
    return gpu.list_adapters(webgpu) if webgpu.is_usable() else []


def auto_adapter() -> AdapterInfo | None:
    """Return the adapter that ``auto`` selects, None for NumPy."""
    return next((info for info in list_adapters() if not info.is_software), None)


def _has_wgpu() -> bool:
    try:
        from llmgpu.gpu import load_driver

        load_driver("wgpu")
    except (ImportError, OSError, RuntimeError):  # wgpu's native library is missing or unfit
        return False
    return True
