"""The choice of a backend (a GPU adapter, a software adapter or the CPU) and of a WebGPU driver.

Only this module interprets ``--device``. A driver is loaded only when an adapter may be used.
LLMGPU_DRIVER names the driver. Without the variable, Dawn is loaded for commands that run faster
on matrix units, if Dawn is installed and finds an adapter with matrix units. In all other cases
wgpu is loaded.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from glob import glob
from itertools import compress
from typing import TYPE_CHECKING, Any

from llmgpu.closing import Closing, undoing
from llmgpu.errors import DeviceError, InputError
from llmgpu.forking import delaying_forks
from llmgpu.input_files import naming
from llmgpu.machine import has_limited_address_space, usable_processors
from llmgpu.pipeline import Background
from llmgpu.spelling import parse_bytes, spelled

if TYPE_CHECKING:
    from llmgpu.gpu.adapters import AdapterInfo
    from llmgpu.gpu.device import Device


# Size of a text, in bytes, from which ``auto`` trains a vocabulary on a GPU. The CPU finishes a
# smaller text before a GPU is even open.
TRAINING_FROM = 32_000_000
# Size of a text, in bytes, from which an open GPU encodes faster than the CPU; see
# `encodes_on_gpu`.
ENCODING_FROM_OPENED = 1 << 20

_log = logging.getLogger("llmgpu")
# Device files of GPU drivers. A discrete GPU has at least one of these; /dev/dxg is WSL's.
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dri/renderD*", "/dev/dxg")


@dataclass(frozen=True)
class Backend:
    """The device that computes: a GPU, a software adapter, or the CPU without WebGPU.

    device: the opened adapter; None for the CPU.
    description: one line for messages.
    is_optional: whether ``auto`` chose the device to encode text. If such a device fails, the CPU
        encodes.
    encoders: cache of encoders for later commands, by the arguments that opened each encoder; None
        if encoders are not cached.
    """

    device: Device | None
    description: str
    is_optional: bool = False
    encoders: dict[object, Any] | None = field(default=None, compare=False)

    @property
    def is_software(self) -> bool:
        """Whether the CPU does all the work: there is no device, or a software adapter."""
        return self.device is None or self.device.is_software

    @property
    def driver(self) -> str:
        """The name of the WebGPU driver; without a device, wgpu."""
        return "wgpu" if self.device is None else self.device.webgpu.name


NUMPY = Backend(None, "the CPU")


@delaying_forks()
def select_backend(
    wanted: str,
    *,
    matrices: bool = False,
    driver: str | None = None,
    note: Callable[[str], None] | None = None,
    only_discrete: bool = False,
) -> Backend:
    """Return the backend for ``auto``, ``cpu``, ``gpu`` or part of an adapter's name.

    wanted: ``auto`` opens a hardware adapter. If there is none, it chooses NumPy, because software
        adapters are slower than NumPy.
    matrices: use Dawn for its matrix units, if Dawn is installed and finds an adapter with matrix
        units.
    driver: the driver with which the run to be resumed was started. LLMGPU_DRIVER overrides it.
    note: receives a message if wgpu replaces Dawn because Dawn fails; by default the message is
        logged. For a run that was started with Dawn, the failure is an error.
    only_discrete: ``auto`` opens only a discrete GPU.

    Raises DeviceError if no adapter matches (the message lists all), or if the adapter can't be
    opened.
    """
    if not isinstance(wanted, str):
        raise TypeError(f"a device is named by a str such as gpu, not {type(wanted).__name__}")
    if wanted == "cpu":
        return NUMPY
    if wanted == "all":
        raise DeviceError(
            "there is no device all: choose one; to encode a text on several GPUs, start a process "
            f"for each with {spelled('--part I/N', 'part=(I, N)')} {spelled('--device gpu:K')}"
        )
    from llmgpu.gpu.adapters import chosen_driver

    named = chosen_driver()  # overrules the driver of a run
    # Try Dawn. Unless a driver is named, Dawn is used only for an adapter with matrix units.
    if _may_take_dawn(matrices, driver):
        try:
            backend = _open("dawn", wanted, only_discrete, only_matrices=not (named or driver))
        except Exception as error:  # Dawn's package documents no exceptions
            if driver == "dawn" and not named:
                raise DeviceError(
                    f"the run was started with Dawn, which can't be used here: {error}; install "
                    f"llmgpu[dawn], or use {spelled('--device cpu')} or LLMGPU_DRIVER=wgpu, which "
                    "round differently"
                ) from error
            (note or _log.warning)(f"Dawn can't be used, so wgpu takes its place: {error}")
        else:
            if backend is not None:
                return backend
    if _has_wgpu():
        return _open("wgpu", wanted, only_discrete) or NUMPY
    if wanted == "auto":
        return NUMPY
    raise DeviceError(f"can't import wgpu; use {spelled('--device cpu')}, or run pip install wgpu")


def _open(
    driver: str, wanted: str, only_discrete: bool, *, only_matrices: bool = False
) -> Backend | None:
    """Open an adapter of a driver. Return None if no adapter matches.

    only_matrices: accept only an adapter with matrix units. For the other arguments see
    `select_backend`.

    `Device` needs NumPy, which another thread may still be importing. So `Device` is imported last,
    when the wait for that import is shortest.
    """
    from llmgpu.gpu.adapters import OpenedAdapter, list_adapters, load_driver, select_adapter

    webgpu = load_driver(driver)
    if wanted == "auto" and not webgpu.is_usable():  # a forked process can't use adapters
        return None
    if only_matrices and not any(info.matrix_shapes for info in list_adapters(webgpu)):
        return None
    if wanted == "auto":
        listed = list_adapters(webgpu)
        usable = (each.is_discrete if only_discrete else not each.is_software for each in listed)
        adapter = next(compress(listed, usable), None)
    else:
        adapter = select_adapter(wanted, webgpu)
    if adapter is None or (only_matrices and not adapter.matrix_shapes):
        return None
    opened = OpenedAdapter(adapter)
    from llmgpu.gpu.device import Device

    return Backend(Device(opened), str(adapter))


def _may_take_dawn(matrices: bool, driver: str | None = None) -> bool:
    """Whether `select_backend` tries Dawn first.

    Raises DeviceError if LLMGPU_DRIVER names an unknown or missing driver.
    """
    from llmgpu.gpu.adapters import chosen_driver, has_dawn

    chosen = chosen_driver() or driver
    return chosen == "dawn" or (chosen is None and matrices and has_dawn())


class Opening(Closing):
    """Opens a device in a thread while a command imports its modules and reads its files.

    Forks in other threads wait until the device is open, see `llmgpu.forking`.

    wanted: a value of --device.
    """

    def __init__(
        self,
        wanted: str,
        *,
        matrices: bool = False,
        encodes: bool = False,
        keeps_encoders: bool = False,
    ) -> None:
        """Store the choice of the device; `begin` or `backend` opens the device.

        matrices: see `select_backend`. encodes: the command encodes text, so ``auto`` chooses a
        discrete GPU or the CPU. keeps_encoders: cache encoders, see `Backend.encoders`.
        """
        self.wanted = wanted
        self._matrices, self._is_optional = matrices, encodes and wanted == "auto"
        self._encoders: dict[object, Any] | None = {} if keeps_encoders else None
        self._is_begun = self._is_declined = False
        self._opening = Background()
        self._selected: Backend | None = None

    @delaying_forks()
    def begin(self) -> None:
        """Start opening the device in a thread. Do nothing in later calls, and if `wanted` is cpu.

        The driver is imported before the thread starts, because two threads that import modules
        wait for each other. Opening the adapter takes longer than this import.

        In two cases no thread is started, and the later call of `backend` opens the device:

        - Dawn may be selected. Standard error is redirected while Dawn lists adapters, so the
          output of other threads would be delayed.
        - The address space is limited. Loading NumPy may then fail: OpenBLAS ends the process if it
          can't allocate its memory. The ending process holds the lock for loading libraries and
          waits for the lock of Vulkan's loader. A thread that is opening a device may hold the lock
          of Vulkan's loader and wait for the lock for loading libraries. Then the process would
          never end.
        """
        if self.wanted == "cpu" or self._is_begun:
            return
        self._is_begun = True
        if self._is_optional and not _may_have_gpu():
            self._selected = replace(NUMPY, encoders=self._encoders)
            return
        # Drop the error here. `backend` tries again, and raises it.
        with suppress(DeviceError, ImportError, OSError, RuntimeError):
            if has_limited_address_space() or _may_take_dawn(self._matrices):
                return
            from llmgpu.gpu.adapters import load_driver
            from llmgpu.gpu.driver import set_variables

            set_variables()
            load_driver("wgpu")
            self._opening.start(self._select)

    def begin_encoding(self, text_bytes: int | None, *, at_start: bool = True) -> bool:
        """Call `begin` for a text to be encoded, unless ``auto`` encodes the text on the CPU.

        text_bytes: size of the text, None if unknown. at_start: see `encoding_from`.

        Returns whether `begin` was called. If it was not, `backend` returns the CPU until a later
        call of `begin_encoding` calls `begin`.
        """
        is_open = self._selected is not None and self._selected.device is not None
        is_wanted = self.wanted != "auto" or encodes_on_gpu(
            text_bytes, is_open=is_open, at_start=at_start
        )
        self._is_declined = not is_wanted
        if is_wanted:
            self.begin()
        return is_wanted

    def backend(self, note: Callable[[str], None] | None = None) -> Backend:
        """Wait for the device and return its backend; the CPU if `begin` was not called.

        note: see `select_backend`. Each call raises the error of `select_backend`, if any.
        """
        if not self._is_begun or self._is_declined:
            return replace(NUMPY, encoders=self._encoders)
        self._opening.wait()
        if self._selected is None:  # no thread was started, or its error has been raised before
            self._select(note)
        assert self._selected is not None
        return self._selected

    def _select(self, note: Callable[[str], None] | None = None) -> None:
        how: dict[str, Any] = {"matrices": self._matrices, "only_discrete": self._is_optional}
        try:
            selected = select_backend(self.wanted, note=note, **how)
        except DeviceError as error:
            if not self._is_optional:
                raise
            _log.warning("%s; using the CPU", error)
            selected = NUMPY
        is_optional = self._is_optional and selected.device is not None
        self._selected = replace(selected, is_optional=is_optional, encoders=self._encoders)

    def close(self) -> None:
        """Wait for the thread, and release the device."""
        self._opening.close()
        self._selected = None
        self._is_begun = False


@contextmanager
def opening_device(device: str, *, encodes: bool = True) -> Iterator[Opening]:
    """Open a device while the block reads a vocabulary or text; close it if the block fails.

    With ``auto``, the device is opened later, when the first long text is to be encoded. encodes:
    see `Opening`.
    """
    opening = Opening(device, encodes=encodes)
    with undoing(opening.close):
        if device != "auto":
            opening.begin()
        yield opening


def encodes_on_gpu(text_bytes: int | None, *, is_open: bool, at_start: bool) -> bool:
    """Whether ``auto`` encodes a text on a discrete GPU, for `tokenize`, `count` and `Tokenizer`.

    A GPU that has to be opened first wins from `encoding_from` bytes on, which explains at_start.
    An open GPU wins from 1 MB on: an H200 encodes 1 MB in 1.6 ms, 16 processors in 2.8 ms; for
    128 MB the times are 25 ms and 58 ms. LLMGPU_GPU_FROM sets another size for opening. A text of
    unknown size (None) is encoded on the CPU. An integrated GPU is used only if it is named: no
    record shows a win.
    """
    least = gpu_from(encoding_from(usable_processors(), at_start=at_start))
    if is_open:
        least = min(least, ENCODING_FROM_OPENED)  # LLMGPU_GPU_FROM may be smaller
    return text_bytes is not None and text_bytes >= least


def encoding_from(processors: int, *, at_start: bool = True) -> int:
    """Return the size of a text, in bytes, from which a discrete GPU beats this many processors.

    at_start: the GPU opens while a command imports modules and reads a vocabulary. A `Tokenizer`
        has done both before it knows the size of a text, so it waits 0.1 s longer for the GPU. In
        this time each processor encodes 40 MB.

    The sizes are those for which whole processes took equally long on an H200 and on the CPU of its
    host (docs/recorded/commands/nvidia-h200-cpu-or-gpu.json). For commands these were 64 MB with 2
    or 4 processors, 128 MB with 8 and 512 MB with 16: opening the GPU takes 0.2 s, and with more
    processors the GPU saves less time per byte. For `Tokenizer.encode_file` they were about 90,
    180, 430 and 1050 MB.
    """
    squared = 2 * processors**2
    return max(64, squared if at_start else squared + 40 * processors) * 1_000_000


def gpu_from(least: int) -> int:
    """Return the size, in bytes, of the shortest text for which ``auto`` opens an adapter.

    The size is the value of LLMGPU_GPU_FROM, or `least` if the variable is not set.

    Raises InputError if LLMGPU_GPU_FROM is not a size.
    """
    value = os.environ.get("LLMGPU_GPU_FROM")
    if not value:
        return least
    with naming("LLMGPU_GPU_FROM", InputError):
        return parse_bytes(value)


def _may_have_gpu() -> bool:
    """Whether this machine seems to have a discrete GPU, judged by its device files.

    Listing the adapters would be certain but takes 0.15 s.
    """
    return not sys.platform.startswith("linux") or any(map(glob, _GPU_FILES))


def list_adapters(driver: str = "") -> list[AdapterInfo]:
    """Return all adapters of a driver, best first.

    driver: by default the driver that LLMGPU_DRIVER names, or wgpu.

    The list is empty if the driver's package or the system's driver is missing, or if this process
    was forked after its parent had used adapters.
    """
    from llmgpu.gpu.adapters import chosen_driver, has_dawn, list_adapters, load_driver

    driver = driver or chosen_driver() or "wgpu"
    if not (has_dawn() if driver == "dawn" else _has_wgpu()):
        return []
    webgpu = load_driver(driver)
    return list_adapters(webgpu) if webgpu.is_usable() else []


def list_all_adapters() -> list[AdapterInfo]:
    """Return the adapters of all installed drivers, wgpu's first."""
    from llmgpu.gpu.adapters import DRIVERS

    return [info for name in DRIVERS for info in list_adapters(name)]


def _has_wgpu() -> bool:
    with suppress(ImportError, OSError, RuntimeError):  # wgpu's library is missing or unusable
        from llmgpu.gpu.adapters import load_driver

        load_driver("wgpu")
        return True
    return False
