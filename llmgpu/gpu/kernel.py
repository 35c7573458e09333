"""A compiled kernel, and a kernel bound to buffers.

This module checks for mistakes that would end the process or give a wrong answer: names and number
of bindings, sizes beyond the adapter's limits, and workgroup memory, which the compiler does not
check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import Buffer, OpenedAdapter
from llmgpu.kernel_source import KernelSource
from llmgpu.spelling import spelled

_BINDING_TYPES = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel with its buffers, to be dispatched many times."""

    label: str
    pipeline: Any
    bind_group: Any
    buffers: tuple[Buffer, ...]


class Kernel:
    """A compiled kernel. `Device.kernel` creates and caches kernels."""

    def __init__(self, opened: OpenedAdapter, source: KernelSource) -> None:
        """Compile `source`.

        Raises DeviceError if the text does not compile (the message names file and line), or if the
        kernel needs more than the adapter's limits.
        """
        self.label = source.entry
        self.bindings = source.bindings
        self._opened = opened
        self.workgroup_size, memory = source.workgroup()
        self._check_limits(source, memory)
        try:
            self._compile(source)
        except opened.webgpu.errors as error:
            raise opened.lost(error) or DeviceError(_locate(str(error), source)) from error

    def _check_limits(self, source: KernelSource, memory: int) -> None:
        needs = {
            "max-compute-invocations-per-workgroup": self.workgroup_size,
            "max-compute-workgroup-storage-size": memory,
            "max-storage-buffers-per-shader-stage": sum(
                binding.access != "uniform" for binding in source.bindings
            ),
        }
        for limit, needed in needs.items():
            if needed > self._opened.limits[limit]:
                raise DeviceError(
                    f"kernel {self.label} needs a {limit} of {needed}, but {self._opened.name} "
                    f"has {self._opened.limits[limit]}; use {spelled('--device cpu')}"
                )

    def _compile(self, source: KernelSource) -> None:
        handle, label = self._opened.handle, self.label
        module = self._opened.webgpu.create_shader_module(handle, source.text, label)
        self._layout = handle.create_bind_group_layout(
            label=label,
            entries=[
                {
                    "binding": binding.index,
                    "visibility": "COMPUTE",
                    "buffer": {"type": _BINDING_TYPES[binding.access]},
                }
                for binding in source.bindings
            ],
        )
        layout = handle.create_pipeline_layout(label=label, bind_group_layouts=[self._layout])
        compute = {"module": module, "entry_point": source.entry}
        self._pipeline = handle.create_compute_pipeline(label=label, layout=layout, compute=compute)

    def bind_from(self, buffers: Mapping[str, Buffer]) -> BoundKernel:
        """Attach the buffers that the kernel binds, see `bind`; ignore all others."""
        names = {binding.name for binding in self.bindings}
        return self.bind(**{name: buffers[name] for name in names & buffers.keys()})

    def bind(self, **buffers: Buffer) -> BoundKernel:
        """Attach buffers to the kernel's bindings by name; TypeError for missing or other names."""
        names = {binding.name for binding in self.bindings}
        if names != set(buffers):
            raise TypeError(f"{self.label} binds {sorted(names)}, not {sorted(buffers)}")
        ordered = tuple(buffers[binding.name] for binding in self.bindings)
        ranges = ({"buffer": b.handle, "offset": b.offset, "size": b.nbytes} for b in ordered)
        entries = [
            {"binding": binding.index, "resource": resource}
            for binding, resource in zip(self.bindings, ranges, strict=True)
        ]
        create = self._opened.handle.create_bind_group
        group = self._opened.call(create, label=self.label, layout=self._layout, entries=entries)
        return BoundKernel(self.label, self._pipeline, group, ordered)


def _locate(message: str, source: KernelSource) -> str:
    """Add file and line of the source to a compiler message."""
    # Naga, wgpu's compiler, writes "wgsl:LINE:COLUMN"; Tint writes " :LINE:COLUMN".
    position = re.search(r"(?:wgsl|\s):(\d+):(\d+)", message)
    where = ""
    if position is not None:
        name, line = source.lines[int(position[1]) - 1]
        where = f" at wgsl/{name}:{line}"
    return f"kernel {source.entry} does not compile{where}: {message}"
