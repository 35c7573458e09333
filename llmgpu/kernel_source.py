"""The text of kernels: WGSL files put together, and what they declare.

A file may include another with a line ``//!include NAME``; its text is not changed otherwise. NAME
is a path below wgsl/, or the name of a choice that the device makes (``scan``: with or without
subgroup operations). Each file is included once, and a file that is not included holds one kernel.

WGSL is the one source of what host and kernels share: bindings, the fields of structs
(`struct_dtype`) and constants (`constant`) are read from the text, on machines without a GPU, too.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np

from llmgpu.errors import DeviceError

_INCLUDE = re.compile(r"^//!include\s+(\S+)\s*$")
_BINDING = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(uniform|storage)\s*(?:,\s*(read|read_write)\s*)?>"
    r"\s*(\w+)\s*:"
)
_ENTRY = re.compile(r"@compute\s+@workgroup_size\(([^)]*)\)\s*fn\s+(\w+)\s*\(")
_WORKGROUP_VAR = re.compile(r"var<workgroup>\s*\w+\s*:\s*([^;]+);")
_COMMENT = re.compile(r"//.*")
_CONSTANT = re.compile(r"^(?:override|const)\s+(\w+)\s*:\s*u32\s*=\s*([^;]+);", re.MULTILINE)
_STRUCT = re.compile(r"^struct\s+(\w+)\s*\{([^}]*)\}", re.MULTILINE)
_FIELD = re.compile(r"^\s*(\w+)\s*:\s*(.+?),?\s*$", re.MULTILINE)
_ATOMIC = re.compile(r"^atomic<\s*(\w+)\s*>$")
_VECTOR = re.compile(r"^vec([234])<\s*(\w+)\s*>$")
_ARRAY = re.compile(r"^array<\s*(.+?)\s*,\s*([^,]+)>$")
_SCALARS = {"f16": "<f2", "u32": "<u4", "i32": "<i4", "f32": "<f4"}
_TOKEN = re.compile(r"0x[0-9a-fA-F]+u?|[0-9]+u?|\w+|\S")  # of arithmetic
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
_PRECEDENCE = ("+-", "*/")


Line = tuple[str, str, int]  # of a kernel's text, and the file and line it came from


@dataclass(frozen=True)
class Binding:
    """One entry of a kernel's bind group; access is "read", "read_write" or "uniform"."""

    index: int
    name: str
    access: str


@dataclass(frozen=True)
class KernelSource:
    """A kernel's whole text and what it declares.

    lines: for each line of the text, the file and line it came from; file "" of generated text.
    """

    entry: str
    text: str
    bindings: tuple[Binding, ...]
    lines: tuple[tuple[str, int], ...]

    def workgroup(self, constants: Mapping[str, int]) -> tuple[int, int]:
        """Return the threads of a workgroup in x, and its memory in bytes.

        constants: values of overrides; the others keep their defaults.
        """
        declared = _Declared(self.text, constants)
        threads = declared.evaluate(_ENTRY.findall(self.text)[0][0].split(",")[0])
        memory = [declared.layout(kind)[0].itemsize for kind in _WORKGROUP_VAR.findall(self.text)]
        return threads, sum(memory)


@cache
def _root() -> Traversable:
    packaged = files("llmgpu") / "wgsl"
    return packaged if packaged.is_dir() else files("llmgpu") / ".." / "wgsl"


def read_wgsl(name: str) -> str:
    """Return the text of a file below wgsl/; DeviceError if there is none."""
    path = _root() / name
    if not path.is_file():
        raise DeviceError(f"kernel source wgsl/{name} is missing; reinstall llmgpu")
    return path.read_text(encoding="utf-8")


def constant(file: str, name: str) -> int:
    """Return the u32 constant `name` that a WGSL file declares; of an override, its default.

    file: its path below wgsl/; what it includes does not count. DeviceError if it declares none.
    """
    constants = _declared(file).constants
    if name not in constants:
        raise DeviceError(f"wgsl/{file} declares no u32 constant {name}")
    return constants[name]


def struct_dtype(file: str, name: str) -> np.dtype[np.void]:
    """Return the structured dtype of the struct `name` that a WGSL file declares.

    Offsets and size follow WGSL's specification, section "Alignment and Size"; a vector or array
    is a subarray, an atomic its integer.

    file: its path below wgsl/; what it includes does not count. DeviceError if it declares no such
        struct, or a field's type has no fixed layout.
    """
    declared = _declared(file)
    if name not in declared.structs:
        raise DeviceError(f"wgsl/{file} declares no struct {name}")
    return declared.layout(name)[0]


@cache
def _declared(file: str) -> _Declared:
    return _Declared(read_wgsl(file), {})


class _Declared:
    """The u32 constants and structs of a text, and the layout of types made of them."""

    def __init__(self, text: str, given: Mapping[str, int]) -> None:
        text = _COMMENT.sub("", text)
        self.structs = dict(_STRUCT.findall(text))
        self.constants: dict[str, int] = {}
        for name, expression in _CONSTANT.findall(text):
            self.constants[name] = given[name] if name in given else self.evaluate(expression)

    def evaluate(self, expression: str) -> int:
        """Return the value of plain u32 arithmetic with the constants declared so far.

        Python's own parser, `ast`, fails now and then where several threads use it, as those do
        that compile kernels.

        DeviceError for what is more than + - * / and parentheses.
        """
        tokens = [*_TOKEN.findall(expression), ""]

        def operand() -> int:
            token = tokens.pop(0)
            if token == "(":
                value = chain(_PRECEDENCE)
                if tokens.pop(0) != ")":
                    raise ValueError("a parenthesis is not closed")
                return value
            known = self.constants.get(token)
            return int(token.removesuffix("u"), 0) if known is None else known

        def chain(operators: tuple[str, ...]) -> int:
            """Take operands joined by the first of the operators, and by those that bind closer."""
            if not operators:
                return operand()
            value = chain(operators[1:])
            while tokens[0] and tokens[0] in operators[0]:
                value = _OPERATORS[tokens.pop(0)](value, chain(operators[1:]))
            return value

        try:
            value = chain(_PRECEDENCE)
            if tokens != [""]:
                raise ValueError(f"{tokens[0]} is not expected")
        except (IndexError, ValueError, ZeroDivisionError) as error:
            raise DeviceError(f"the host can't compute {expression!r} in WGSL: {error}") from error
        return value

    def layout(self, kind: str) -> tuple[np.dtype[np.void], int]:
        """Return the dtype of a WGSL type and its alignment in bytes.

        DeviceError for an unknown type, and for an array whose elements need padding.
        """
        kind = _ATOMIC.sub(r"\1", kind.strip())
        if kind in self.structs:
            return self._struct_layout(kind)
        if kind in _SCALARS:
            scalar: np.dtype[np.void] = np.dtype(_SCALARS[kind])
            return scalar, scalar.itemsize
        if vector := _VECTOR.match(kind):
            count, (scalar, size) = int(vector[1]), self.layout(vector[2])
            return np.dtype((scalar, (count,))), size * (2 if count == 2 else 4)
        if array := _ARRAY.match(kind):
            element, alignment = self.layout(array[1])
            if element.itemsize % alignment == 0:
                return np.dtype((element, (self.evaluate(array[2]),))), alignment
        raise DeviceError(f"the WGSL type {kind} has no layout that the host knows")

    def _struct_layout(self, name: str) -> tuple[np.dtype[np.void], int]:
        names, formats, offsets = [], [], []
        end = largest = 0
        for field, kind in _FIELD.findall(self.structs[name]):
            dtype, alignment = self.layout(kind)
            offset = -(-end // alignment) * alignment
            names.append(field)
            formats.append(dtype)
            offsets.append(offset)
            end, largest = offset + dtype.itemsize, max(largest, alignment)
        # The size is padded, so that elements of an array of these are aligned, too.
        size = -(-end // largest) * largest
        layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
        return np.dtype(layout), largest  # type: ignore[call-overload]


def compose(name: str, choices: Mapping[str, str]) -> KernelSource:
    """Return the source of a kernel with its includes.

    name: the kernel's file.
    choices: what an include that names no file stands for, as `Device.source_choices` has it.

    DeviceError if there is no such file, or it does not hold one kernel.
    """
    lines: list[Line] = []
    _append(name, choices, set(), lines)
    return kernel_source(lines, name)


def kernel_source(lines: list[Line], file: str) -> KernelSource:
    """Return the source of the one kernel of a text."""
    text = "\n".join(line for line, _, _ in lines)
    entries = _ENTRY.findall(text)
    if len(entries) != 1:
        raise DeviceError(f"wgsl/{file} has {len(entries)} entry points instead of one")
    places = tuple((name, number) for _, name, number in lines)
    return KernelSource(entries[0][1], text, _bindings(text), places)


def _append(name: str, choices: Mapping[str, str], seen: set[str], lines: list[Line]) -> None:
    seen.add(name)
    for number, line in enumerate(read_wgsl(name).splitlines(), 1):
        include = _INCLUDE.match(line)
        if include is None:
            lines.append((line, name, number))
            continue
        included = choices.get(include[1], include[1])
        if included not in seen:
            _append(included, choices, seen, lines)


def _bindings(text: str) -> tuple[Binding, ...]:
    found = [
        Binding(int(index), name, "uniform" if space == "uniform" else access or "read")
        for index, space, access, name in _BINDING.findall(text)
    ]
    return tuple(sorted(found, key=lambda binding: binding.index))
