"""The GPU layer: the only package of llmgpu that imports wgpu.

::

    wgsl/*.wgsl --compose--> source --compile--> Kernel --bind(buffers)--> BoundKernel
                                                                             |
    Device --record()--> Commands <--dispatch / dispatch_indirect / copy-----+
       |                     |
       +------submit(Commands) -> its number --wait()-> results in buffers --download--> NumPy

Modules import only those before them in the order declarations, native, adapters, kernel, commands,
device. Importing this package imports wgpu; `llmgpu.backend` decides whether to.
"""

from llmgpu.gpu.adapters import (
    WEBGPU_DEFAULT_LIMITS,
    AdapterInfo,
    Buffer,
    list_adapters,
    select_adapter,
)
from llmgpu.gpu.commands import Commands, Download, Staging
from llmgpu.gpu.device import Device, paced_states
from llmgpu.gpu.kernel import BoundKernel, Kernel, constant, struct_dtype
from llmgpu.gpu.native import is_usable

__all__ = [
    "WEBGPU_DEFAULT_LIMITS",
    "AdapterInfo",
    "BoundKernel",
    "Buffer",
    "Commands",
    "Device",
    "Download",
    "Kernel",
    "Staging",
    "constant",
    "is_usable",
    "list_adapters",
    "paced_states",
    "select_adapter",
    "struct_dtype",
]
