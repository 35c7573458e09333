"""The text of kernels: WGSL files with directives, and the declarations read from the text.

A line that begins with ``//!`` is a directive. All other lines are WGSL.

- ``//!include NAME`` inserts a file below wgsl/. A file is inserted once, even if several lines
  include it. NAME may also be a word for which the device chooses a file (``scan``: with or without
  subgroup operations), or the name of a block.
- ``//!override name = DEFAULT`` declares a setting, as ``override`` at the start of a line does in
  WGSL: the host may replace the default by another number (`compose`), after ``//!`` also by a
  word.
- ``//!let name = TEXT`` assigns a text to a name for all later lines, also in included files.
  ``//!let name = TEXT if CONDITION`` assigns nothing if CONDITION is 0.
- ``//!for i in 0..COUNT``, ``//!for side outer in left x, right y``, ``//!end`` repeat lines.
- ``//!if CONDITION``, ``//!else``, ``//!end`` choose lines. If CONDITION is 0, the lines after
  ``//!else`` are used, else the lines before it.
- ``//!block NAME``, ``//!end`` store lines. Every ``//!include NAME`` inserts these lines.

In WGSL and in directives, ``{name}`` is replaced by the text of a name, and ``{4 * i + 1}`` by a
number. Braces that belong to WGSL have blanks or line ends inside. Conditions and other expressions
are spelled as in Python (``not a and b``), but ``/`` divides whole numbers, and a number may end in
``u`` as in WGSL. A kernel's file has one entry point.

The host reads bindings, fields of structs (`struct_dtype`) and constants (`constant`) from the
text, so that every name is declared once. Reading needs no GPU.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import CodeType
from typing import Any

import numpy as np

from llmgpu.errors import DeviceError

_DIRECTIVE = re.compile(r"^\s*//!(\w+)\s*(.*?)\s*$")
_FILLED = re.compile(r"\{([\w!(](?:[^{};]*[\w)])?)\}")  # a name or an expression in braces
_NAMED = re.compile(r"\s*=\s*")  # separates a name from its text
_BINDING = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(uniform|storage)\s*(?:,\s*(read|read_write)\s*)?>"
    r"\s*(\w+)\s*:"
)
_ENTRY = re.compile(r"@compute\s+@workgroup_size\(([^)]*)\)\s*fn\s+(\w+)\s*\(")
_WORKGROUP_VAR = re.compile(r"var<workgroup>\s*\w+\s*:\s*([^;]+);")
_COMMENT = re.compile(r"//.*")
_OVERRIDE = re.compile(r"override\s+(\w+)\s*:\s*u32\s*=\s*([^;]+)")
_CONSTANT = re.compile(r"^(?:override|const)\s+(\w+)\s*:\s*u32\s*=\s*([^;]+);", re.MULTILINE)
_STRUCT = re.compile(r"^struct\s+(\w+)\s*\{([^}]*)\}", re.MULTILINE)
_FIELD = re.compile(r"^\s*(\w+)\s*:\s*(.+?),?\s*$", re.MULTILINE)
_ATOMIC = re.compile(r"^atomic<\s*(\w+)\s*>$")
_VECTOR = re.compile(r"^vec([234])<\s*(\w+)\s*>$")
_ARRAY = re.compile(r"^array<\s*(.+?)\s*,\s*([^,]+)>$")
_SCALARS = {"f16": "<f2", "u32": "<u4", "i32": "<i4", "f32": "<f4"}
_SUFFIX = re.compile(r"\b(0x[0-9a-fA-F]+|[0-9]+)u\b")  # a number of WGSL
_BODIED = ("for", "if", "block")  # directives with a body, which ``//!end`` ends


Line = tuple[str, str, int]  # a line of a kernel's text, its file and its line number
_Read = tuple[Line, re.Match[str] | None]  # a line of a file, and its directive


@dataclass(frozen=True, order=True)
class Binding:
    """One entry of a kernel's bind group; access is "read", "read_write" or "uniform"."""

    index: int
    name: str
    access: str


@dataclass(frozen=True)
class KernelSource:
    """The whole text of a kernel and the declarations in the text.

    lines: file and line number of each line of the text.
    settings: names that ``override`` or ``//!override`` declares; the text has their values.
    """

    entry: str
    text: str
    bindings: tuple[Binding, ...]
    lines: tuple[tuple[str, int], ...]
    settings: frozenset[str] = frozenset()

    def workgroup(self) -> tuple[int, int]:
        """Return the number of threads of a workgroup in x, and its memory in bytes."""
        declared = _Declared(self.text)
        threads = declared.evaluate(_ENTRY.findall(self.text)[0][0].split(",")[0])
        memory = [declared.layout(kind)[0].itemsize for kind in _WORKGROUP_VAR.findall(self.text)]
        return threads, sum(memory)


@cache
def _root() -> Traversable:
    packaged = files("llmgpu") / "wgsl"
    return packaged if packaged.is_dir() else files("llmgpu") / ".." / "wgsl"


@cache
def read_wgsl(name: str) -> str:
    """Return the text of a file below wgsl/; raise DeviceError for a missing file."""
    path = _root() / name
    if not path.is_file():
        raise DeviceError(f"kernel source wgsl/{name} is missing; reinstall llmgpu")
    return path.read_text(encoding="utf-8")


def constant(file: str, name: str) -> int:
    """Return the value of a u32 constant in a WGSL file, or the default of a u32 override.

    file: a path below wgsl/; included files are not read.

    Raises ValueError if the file does not declare `name`.
    """
    return _declared(file).evaluate(name)


def struct_dtype(file: str, name: str) -> np.dtype[np.void]:
    """Return the structured dtype of the struct `name` in a WGSL file.

    Offsets and size follow WGSL's specification, section "Alignment and Size". A vector or an array
    becomes a subarray, an atomic becomes its integer.

    file: a path below wgsl/; included files are not read.

    Raises DeviceError if the file does not declare the struct, or if a field's type has no fixed
    layout.
    """
    return _declared(file).layout(name)[0]


@cache
def _declared(file: str) -> _Declared:
    return _Declared(read_wgsl(file))


@cache
def _compiled(expression: str) -> CodeType:
    return compile(_SUFFIX.sub(r"\1", expression).replace("/", "//").strip(), "wgsl", "eval")


def _evaluate(expression: str, names: Mapping[str, int]) -> int:
    """Return the value of arithmetic of whole numbers or of a condition; 1 is true and 0 false.

    Raises ValueError for any other expression. The text is part of this package, as Python is.
    """
    try:
        return int(operator.index(eval(_compiled(expression), {}, names)))
    except (ArithmeticError, NameError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"the host can't compute {expression!r} in WGSL: {error}") from error


class _Texts(dict[str, Any]):
    """Texts by name, which are numbers in expressions."""

    def __getitem__(self, name: str) -> int:
        return int(super().__getitem__(name).removesuffix("u"), 0)


class _Declared:
    """The u32 constants and the structs that a WGSL text declares, and the layout of its types."""

    def __init__(self, text: str) -> None:
        text = _COMMENT.sub("", text)
        self.structs = dict(_STRUCT.findall(text))
        self.constants: dict[str, int] = {}
        for name, expression in _CONSTANT.findall(text):
            self.constants[name] = self.evaluate(expression)

    def evaluate(self, expression: str) -> int:
        """Return the value of an expression of declared constants; see `_evaluate`."""
        return _evaluate(expression, self.constants)

    def layout(self, kind: str) -> tuple[np.dtype[np.void], int]:
        """Return the dtype of a WGSL type and its alignment in bytes.

        Raises DeviceError for an unknown type, and for an array whose elements need padding.
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
        # Pad the size, so that every element of an array of such structs is aligned.
        size = -(-end // largest) * largest
        layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
        return np.dtype(layout), largest  # type: ignore[call-overload]


def compose(name: str, given: Mapping[str, int | str]) -> KernelSource:
    """Return the source of a kernel after all directives are carried out.

    name: the kernel's file.
    given: values of settings, and the file for each word that ``//!include`` may name. Other
        settings keep their defaults. Names that the kernel does not declare are ignored.

    Raises DeviceError for a missing file or a wrong directive, or unless there is exactly one
    kernel.
    """
    expansion = _Expansion(given)
    expansion.include(name)
    return kernel_source(expansion.lines, name, frozenset(expansion.settings))


def kernel_source(
    lines: list[Line], file: str, settings: frozenset[str] = frozenset()
) -> KernelSource:
    """Return the source of a kernel from its lines; DeviceError unless it has one entry point."""
    text = "\n".join(line for line, _, _ in lines)
    entries = _ENTRY.findall(text)
    if len(entries) != 1:
        raise DeviceError(f"wgsl/{file} has {len(entries)} entry points instead of one")
    bindings = sorted(
        Binding(int(index), name, "uniform" if space == "uniform" else access or "read")
        for index, space, access, name in _BINDING.findall(text)
    )
    places = tuple((name, number) for _, name, number in lines)
    return KernelSource(entries[0][1], text, tuple(bindings), places, settings)


@cache
def _read(file: str, text: str) -> list[_Read]:
    lines = enumerate(text.splitlines(), 1)
    return [((line, file, number), _DIRECTIVE.match(line)) for number, line in lines]


def _take_body(verb: str, lines: Iterator[_Read]) -> tuple[list[_Read], list[_Read]]:
    """Take the lines of a directive's body: those before ``//!else``, and those after it."""
    body: list[_Read] = []
    chosen, otherwise, depth = body, list[_Read](), 1
    for line in lines:
        if found := line[1]:
            depth += (found[1] in _BODIED) - (found[1] == "end")
            if depth == 0:
                return body, otherwise
            if (verb, found[1], depth) == ("if", "else", 1):
                chosen = otherwise
                continue
        chosen.append(line)
    raise ValueError(f"//!{verb} has no //!end")


class _Expansion:
    """Writes the text of a kernel line by line.

    _names: the text of each setting, of each name assigned by ``//!let``, and of each loop
    variable.
    """

    def __init__(self, given: Mapping[str, int | str]) -> None:
        self.lines: list[Line] = []
        self.settings: set[str] = set()
        self._given = {
            name: value if isinstance(value, str) else str(int(value))
            for name, value in given.items()
        }
        self._names = _Texts()
        self._blocks: dict[str, list[_Read]] = {}
        self._included: set[str] = set()

    def include(self, name: str) -> None:
        """Write the lines of a block, or of a file that was not included before."""
        if name in self._blocks:
            self._write(self._blocks[name])
            return
        file = self._given.get(name, name)
        if file not in self._included:
            self._included.add(file)
            self._write(_read(file, read_wgsl(file)))

    def _write(self, lines: Iterable[_Read]) -> None:
        following = iter(lines)
        for (line, file, number), found in following:
            written = line
            try:
                if found:
                    self._obey(found[1], self._filled(found[2]), following)
                    continue
                if line.startswith("override "):
                    written = _OVERRIDE.sub(self._overridden, line)
                elif "{" in line and not line.lstrip().startswith("//"):
                    written = self._filled(line)
            except ValueError as error:
                raise DeviceError(f"wgsl/{file}:{number}: {error}") from error
            self.lines.append((written, file, number))

    def _overridden(self, declared: re.Match[str]) -> str:
        """Return a declaration of WGSL's ``override`` with the given value, if any."""
        name, default = declared.groups()
        self.settings.add(name)
        return f"override {name}: u32 = {self._given.get(name, default)}"

    def _obey(self, verb: str, rest: str, following: Iterator[_Read]) -> None:
        """Carry out a directive.

        rest: the text after the verb. following: the lines after the directive; those of its body
        are taken.
        """
        body, otherwise = _take_body(verb, following) if verb in _BODIED else ([], [])
        match verb:
            case "let":
                name, value = _NAMED.split(rest, 1)
                value, _, condition = value.partition(" if ")
                if not condition or self._number(condition):
                    self._names[name] = value
            case "override":
                name, value = _NAMED.split(rest, 1)
                self.settings.add(name)
                self._names[name] = self._given.get(name, value)
            case "include":
                self.include(rest)
            case "block":
                self._blocks[rest] = body
            case "if":
                self._write(body if self._number(rest) else otherwise)
            case "for":
                for values in self._rounds(rest):
                    self._names.update(values)
                    self._write(body)
            case _:
                raise ValueError(f"//!{verb} {rest}".rstrip() + " has no meaning here")

    def _rounds(self, rest: str) -> Iterator[dict[str, str]]:
        """Yield the values of a loop's variables in each round of the loop.

        rest: the text after ``//!for``, such as ``i in 0..4`` or ``i j in 0 a, 1 b``.
        """
        variables, _, values = rest.partition(" in ")
        first, dots, end = values.partition("..")
        rows = [row.split() for row in values.split(",")]
        if dots:
            rows = [[str(number)] for number in range(self._number(first), self._number(end))]
        for row in rows:
            yield dict(zip(variables.split(), row, strict=True))

    def _filled(self, text: str) -> str:
        """Return a text with names and expressions in braces replaced, inner braces first."""
        while (filled := _FILLED.sub(self._value, text)) != text:
            text = filled
        return text

    def _value(self, braces: re.Match[str]) -> str:
        known = self._names.get(braces[1])
        return str(self._number(braces[1])) if known is None else str(known)

    def _number(self, expression: str) -> int:
        return _evaluate(expression, self._names)
