"""WGSL source: where the files are, how a kernel's text is put together, what it binds.

A file may include another with a line ``//!include NAME``, and nothing else is done to its text.
NAME is a path below wgsl/, or the name of a choice that the device makes (``scan``: with or without
subgroup operations). Each file is included once, and a file that is not included holds one kernel.
A kernel's bindings are read from its text, so they are stated in one place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from llmgpu.errors import DeviceError

_INCLUDE = re.compile(r"^//!include\s+(\S+)\s*$")
_BINDING = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(uniform|storage)\s*(?:,\s*(read|read_write)\s*)?>"
    r"\s*(\w+)\s*:"
)
_ENTRY = re.compile(r"@compute\s+@workgroup_size\(([^)]*)\)\s*fn\s+(\w+)\s*\(")
_WORKGROUP_VAR = re.compile(r"var<workgroup>\s*\w+\s*:\s*([^;]+);")


@dataclass(frozen=True)
class Line:
    """One line of a kernel's text, and the file and line it came from."""

    text: str
    file: str
    number: int


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
    workgroup_size: str
    workgroup_variables: tuple[str, ...]
    lines: tuple[tuple[str, int], ...]


@cache
def _root() -> Traversable:
    packaged = files("llmgpu") / "wgsl"
    return packaged if packaged.is_dir() else files("llmgpu") / ".." / "wgsl"


def read_wgsl(name: str) -> str:
    """Return the text of a file below wgsl/.

    Raises:
        DeviceError: there is no such file.
    """
    path = _root() / name
    if not path.is_file():
        raise DeviceError(f"kernel source wgsl/{name} is missing; reinstall llmgpu")
    return path.read_text(encoding="utf-8")


def compose(name: str, choices: Mapping[str, str]) -> KernelSource:
    """Return the source of a kernel with its includes.

    name: the kernel's file.
    choices: what an include that names no file stands for, as `Device.source_choices` has it.

    Raises:
        DeviceError: there is no such file, or it does not hold one kernel.
    """
    lines: list[Line] = []
    _append(name, choices, set(), lines)
    return kernel_source(lines, name)


def kernel_source(lines: list[Line], file: str) -> KernelSource:
    """Return the source of the one kernel of a text."""
    text = "\n".join(line.text for line in lines)
    entries = _ENTRY.findall(text)
    if len(entries) != 1:
        raise DeviceError(f"wgsl/{file} has {len(entries)} entry points instead of one")
    workgroup_size, entry = entries[0]
    return KernelSource(
        entry=entry,
        text=text,
        bindings=_bindings(text),
        workgroup_size=workgroup_size,
        workgroup_variables=tuple(_WORKGROUP_VAR.findall(text)),
        lines=tuple((line.file, line.number) for line in lines),
    )


def _append(name: str, choices: Mapping[str, str], seen: set[str], lines: list[Line]) -> None:
    seen.add(name)
    for number, line in enumerate(read_wgsl(name).splitlines(), 1):
        include = _INCLUDE.match(line)
        if include is None:
            lines.append(Line(line, name, number))
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
