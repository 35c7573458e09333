"""The GPU layer: the only package of llmgpu that imports wgpu.

::

    wgsl/*.wgsl --compose--> source --compile--> Kernel --bind(buffers)--> BoundKernel
                                                                             |
    Device --record()--> Commands <--dispatch / dispatch_indirect / copy-----+
       |                     |
       +------submit(Commands) -> Submission --wait()-> results in buffers --download--> NumPy

Importing this package imports wgpu; `llmgpu.backend` is what decides whether that is wanted.
"""

from llmgpu.gpu.adapters import AdapterInfo, list_adapters, select_adapter
from llmgpu.gpu.buffers import Buffer, BufferPool
from llmgpu.gpu.commands import MAX_TIMED, Commands
from llmgpu.gpu.device import WEBGPU_DEFAULT_LIMITS, Device
from llmgpu.gpu.kernel import BoundKernel, Kernel
from llmgpu.gpu.native import is_usable
from llmgpu.gpu.source import constant, struct_dtype
from llmgpu.gpu.transfer import Download, Staging

__all__ = [
    "MAX_TIMED",
    "WEBGPU_DEFAULT_LIMITS",
    "AdapterInfo",
    "BoundKernel",
    "Buffer",
    "BufferPool",
    "Commands",
    "Device",
    "Download",
    "Kernel",
    "Staging",
    "constant",
    "is_usable",
    "list_adapters",
    "select_adapter",
    "struct_dtype",
]
