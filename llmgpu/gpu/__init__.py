"""The GPU layer: the only package of llmgpu that imports wgpu or wgpudawn.

::

    wgsl/*.wgsl --compose--> source --compile--> Kernel --bind(buffers)--> BoundKernel
                                                                             |
    Device --record()--> Commands <--dispatch / dispatch_indirect / copy-----+
                             |
                             +--submit()--> its number --Device.wait()--> results in buffers
                                                                             |
                                                         NumPy <--download---+

A module imports only modules before it in this list: declarations, driver, wgpu_driver,
dawn_driver, adapters, kernel, commands, device. `llmgpu.backend` chooses the driver to load.

The modules up to adapters import no NumPy, so adapters are listed while another thread imports
NumPy. Kernel, commands and device are imported when one of their names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from llmgpu.gpu.adapters import (
    ALIGNMENT,
    DRIVERS,
    WEBGPU_DEFAULT_LIMITS,
    AdapterInfo,
    Buffer,
    OpenedAdapter,
    chosen_driver,
    default_driver,
    has_dawn,
    list_adapters,
    load_driver,
    select_adapter,
)
from llmgpu.gpu.driver import MATRIX_FEATURE, Driver, MatrixShape, set_variables

if TYPE_CHECKING:
    from llmgpu.gpu.commands import Commands, Download, Staging, parallel_copy
    from llmgpu.gpu.device import Device, paced_states
    from llmgpu.gpu.kernel import BoundKernel, Kernel

__all__ = [
    "ALIGNMENT",
    "DRIVERS",
    "MATRIX_FEATURE",
    "WEBGPU_DEFAULT_LIMITS",
    "AdapterInfo",
    "BoundKernel",
    "Buffer",
    "Commands",
    "Device",
    "Download",
    "Driver",
    "Kernel",
    "MatrixShape",
    "OpenedAdapter",
    "Staging",
    "chosen_driver",
    "default_driver",
    "has_dawn",
    "list_adapters",
    "load_driver",
    "paced_states",
    "parallel_copy",
    "select_adapter",
    "set_variables",
]


def __getattr__(name: str) -> object:
    """Import a module that needs NumPy when one of its names is first used."""
    for module in ("kernel", "commands", "device") if name in __all__ else ():
        members = vars(import_module(f"{__name__}.{module}"))
        if name in members:
            return members[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
