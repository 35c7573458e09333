"""Kernels: a compiled entry point, and the same bound to buffers, ready to be dispatched.

Whatever a wrong call would turn into an abort or into a wrong answer is checked here: names and
number of bindings, sizes against the adapter's limits, workgroup memory (which the compiler does
not check).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import wgpu

from llmgpu.errors import DeviceError
from llmgpu.gpu import native
from llmgpu.gpu.buffers import Buffer
from llmgpu.gpu.source import KernelSource

if TYPE_CHECKING:
    from llmgpu.gpu.device import Device

_BINDING_TYPES = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
_ELEMENT_BYTES = {
    "f16": 2,
    "u32": 4,
    "i32": 4,
    "f32": 4,
    "vec2<u32>": 8,
    "vec2<f32>": 8,
    "vec4<f16>": 8,
    "vec4<u32>": 16,
    "vec4<f32>": 16,
}
_ARRAY = re.compile(r"^array<\s*(.+?)\s*,\s*([^,]+)>$")
_CONSTANT = re.compile(r"^(?:override|const)\s+(\w+)\s*:\s*u32\s*=\s*([^;]+);", re.MULTILINE)
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel with the buffers it works on. Keep it and dispatch it many times."""

    label: str
    pipeline: Any
    bind_group: Any
    buffers: tuple[Buffer, ...]


class Kernel:
    """A compiled kernel. Made by `Device.kernel`, which keeps it."""

    def __init__(self, device: Device, source: KernelSource, constants: Mapping[str, int]) -> None:
        """Compile `source` with these values of its override constants.

        Raises:
            DeviceError: the text does not compile (file and line are named), or the kernel asks
                for more than the adapter has.
        """
        self.label = source.entry
        self.bindings = source.bindings
        self._device = device
        values = _constant_values(source.text, constants)
        self.workgroup_size = _evaluate(source.workgroup_size.split(",")[0], values)
        self._check_limits(source, values)
        try:
            self._compile(source, constants)
        except wgpu.GPUError as error:
            raise DeviceError(_locate(str(error), source)) from error

    def _check_limits(self, source: KernelSource, values: Mapping[str, int]) -> None:
        needs = {
            "max-compute-invocations-per-workgroup": self.workgroup_size,
            "max-compute-workgroup-storage-size": sum(
                _variable_bytes(kind, values) for kind in source.workgroup_variables
            ),
            "max-storage-buffers-per-shader-stage": sum(
                binding.access != "uniform" for binding in source.bindings
            ),
        }
        for limit, needed in needs.items():
            if needed > self._device.limits[limit]:
                raise DeviceError(
                    f"kernel {self.label} needs {limit} of {needed}, "
                    f"{self._device.name} has {self._device.limits[limit]}; use --device cpu"
                )

    def _compile(self, source: KernelSource, constants: Mapping[str, int]) -> None:
        handle = self._device.handle
        module = native.create_shader_module(handle, source.text, self.label)
        self._layout = handle.create_bind_group_layout(
            label=self.label,
            entries=[
                {
                    "binding": binding.index,
                    "visibility": wgpu.ShaderStage.COMPUTE,
                    "buffer": {"type": _BINDING_TYPES[binding.access]},
                }
                for binding in source.bindings
            ],
        )
        self._pipeline = handle.create_compute_pipeline(
            label=self.label,
            layout=handle.create_pipeline_layout(
                label=self.label, bind_group_layouts=[self._layout]
            ),
            compute={
                "module": module,
                "entry_point": source.entry,
                "constants": dict(constants),
            },
        )

    def bind(self, **buffers: Buffer) -> BoundKernel:
        """Attach buffers to the kernel's bindings, by the names its source gives them.

        Raises:
            TypeError: a name is missing or unknown.
        """
        names = {binding.name for binding in self.bindings}
        if names != set(buffers):
            raise TypeError(f"{self.label} binds {sorted(names)}, not {sorted(buffers)}")
        ordered = tuple(buffers[binding.name] for binding in self.bindings)
        group = self._device.handle.create_bind_group(
            label=self.label,
            layout=self._layout,
            entries=[
                {
                    "binding": binding.index,
                    "resource": {
                        "buffer": buffer.handle,
                        "offset": buffer.offset,
                        "size": buffer.nbytes,
                    },
                }
                for binding, buffer in zip(self.bindings, ordered, strict=True)
            ],
        )
        return BoundKernel(self.label, self._pipeline, group, ordered)


def _constant_values(text: str, given: Mapping[str, int]) -> dict[str, int]:
    """Return the values of all u32 constants of a source whose defaults are plain arithmetic."""
    values: dict[str, int] = {}
    for name, expression in _CONSTANT.findall(text):
        values[name] = given[name] if name in given else _evaluate(expression, values)
    return values


def _evaluate(expression: str, values: Mapping[str, int]) -> int:
    def visit(node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return int(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return values[node.id]
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](visit(node.left), visit(node.right))
        raise ValueError(ast.dump(node))

    digits = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)u\b", r"\1", expression.strip())
    return visit(ast.parse(digits, mode="eval").body)


def _variable_bytes(kind: str, values: Mapping[str, int]) -> int:
    kind = re.sub(r"atomic<(\w+)>", r"\1", kind.strip())
    array = _ARRAY.match(kind)
    if array is None:
        return _ELEMENT_BYTES[kind]
    return _variable_bytes(array[1], values) * _evaluate(array[2], values)


def _locate(message: str, source: KernelSource) -> str:
    """Rewrite a compiler message so that it names the file and line of the source."""
    position = re.search(r"wgsl:(\d+):(\d+)", message)
    where = ""
    if position is not None:
        name, line = source.lines[int(position[1]) - 1]
        where = f" at wgsl/{name}:{line}" if name else f" at generated text, line {line}"
    return f"kernel {source.entry} does not compile{where}: {message}"
