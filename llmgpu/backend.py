"""Choosing where to compute: a GPU adapter, a software adapter, or NumPy.

Only this module knows what ``--device`` means. It imports wgpu only when an adapter may be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgpu.errors import DeviceError

if TYPE_CHECKING:
    from llmgpu.gpu import AdapterInfo, Device


@dataclass(frozen=True)
class Backend:
    """Where to compute.

    device: None stands for NumPy.
    description: one line for messages.
    """

    device: Device | None
    description: str

    @property
    def is_software(self) -> bool:
        """Whether the CPU does the work."""
        return self.device is None or self.device.is_software


NUMPY = Backend(None, "the CPU")


def select_backend(wanted: str) -> Backend:
    """Return the backend for ``auto``, ``cpu``, ``gpu`` or part of an adapter's name.

    auto: a hardware adapter, or else NumPy, which is faster than a software adapter.

    DeviceError if nothing matches (the message lists the adapters), or it can't be opened.
    """
    if wanted == "cpu":
        return NUMPY
    adapter = auto_adapter() if wanted == "auto" else None
    if wanted == "auto" and adapter is None:
        return NUMPY
    if not _has_wgpu():
        raise DeviceError("can't import wgpu; use --device cpu, or run pip install wgpu")
    from llmgpu.gpu import Device, select_adapter

    adapter = adapter or select_adapter(wanted)
    return Backend(Device(adapter), str(adapter))


def start_selecting(
    wanted: str, text_bytes: int | None = None, least: int = 0
) -> Callable[[], Backend]:
    """Select a backend in a thread, so that a device opens while a command reads its files.

    text_bytes: how much text there is, None if that isn't known. least: bytes of text from which
        ``auto`` opens an adapter; NumPy is done with less before one is open.

    Returns what waits for the backend, and raises what `select_backend` raises.
    """
    is_small = text_bytes is not None and text_bytes < least
    if wanted == "cpu" or (wanted == "auto" and is_small):
        return lambda: NUMPY
    from concurrent.futures import ThreadPoolExecutor

    thread = ThreadPoolExecutor(1, thread_name_prefix="llmgpu-open")
    selecting = thread.submit(select_backend, wanted)
    thread.shutdown(wait=False)
    return selecting.result


def list_adapters() -> list[AdapterInfo]:
    """Return all adapters, best first.

    There are none if wgpu or a driver is missing, or if the process was forked from one that had
    used adapters.
    """
    if not _has_wgpu():
        return []
    from llmgpu import gpu

    return gpu.list_adapters() if gpu.is_usable() else []


def auto_adapter() -> AdapterInfo | None:
    """Return the adapter that ``auto`` selects, None for NumPy."""
    return next((info for info in list_adapters() if not info.is_software), None)


def _has_wgpu() -> bool:
    try:
        import llmgpu.gpu
    except (ImportError, OSError, RuntimeError):  # wgpu's native library is missing or unfit
        return False
    return bool(llmgpu.gpu)
