"""The GPU layer: the only package of llmgpu that imports wgpu or wgpudawn.

::

    wgsl/*.wgsl --compose--> source --compile--> Kernel --bind(buffers)--> BoundKernel
                                                                             |
    Device --record()--> Commands <--dispatch / dispatch_indirect / copy-----+
       |                     |
       +------submit(Commands) -> its number --wait()-> results in buffers --download--> NumPy

Modules import only those before them in the order declarations, driver, wgpu_driver, dawn_driver,
drivers, adapters, kernel, commands, device. `llmgpu.backend` decides which driver is loaded.
"""

from llmgpu.gpu.adapters import (
    ALIGNMENT,
    WEBGPU_DEFAULT_LIMITS,
    AdapterInfo,
    Buffer,
    list_adapters,
    select_adapter,
)
from llmgpu.gpu.commands import Commands, Download, Staging, parallel_copy
from llmgpu.gpu.device import Device, paced_states
from llmgpu.gpu.driver import MATRIX_FEATURE, Driver, MatrixShape
from llmgpu.gpu.drivers import DRIVERS, chosen_driver, default_driver, has_dawn, load_driver
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
    "Staging",
    "chosen_driver",
    "default_driver",
    "has_dawn",
    "list_adapters",
    "load_driver",
    "paced_states",
    "parallel_copy",
    "select_adapter",
]
