"""The declarations of a WGSL text: which there are, and which of them a kernel uses.

A declaration begins at the start of a line and ends where its braces are closed and a ``;`` or a
``}`` has come. Comments and empty lines between declarations belong to none and are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"\b(?:fn|struct|alias|const|override|var(?:<[^>]*>)?)\s+(\w+)")
_DIRECTIVE = re.compile(r"^enable\s+(\w+);")
_IDENTIFIER = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # not the fields of structs and vectors


@dataclass(frozen=True)
class Line:
    """One line of a kernel's text, and the file and line it came from."""

    text: str
    file: str
    number: int


@dataclass(frozen=True)
class Declaration:
    """A function, variable, constant, struct or alias; name "" for a directive."""

    name: str
    lines: tuple[Line, ...]

    @property
    def identifiers(self) -> set[str]:
        """All names in its text, those of what it uses among them."""
        return set(_IDENTIFIER.findall("\n".join(_code(line.text) for line in self.lines)))


def keep_used(lines: list[Line], entry: str) -> list[Line]:
    """Return the lines of what the kernel `entry` uses, in order.

    Pipeline constants are kept, used or not, since a pipeline may set any of them. A directive is
    kept where what it enables is named.
    """
    declarations = split(lines)
    by_name = {declaration.name: declaration for declaration in declarations}
    wanted = [entry, *(d.name for d in declarations if d.lines[0].text.startswith("override"))]
    used: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in by_name and name not in used:
            used.add(name)
            wanted += by_name[name].identifiers
    named = set().union(*(by_name[name].identifiers for name in used))
    return [
        line
        for declaration in declarations
        if declaration.name in used or (not declaration.name and _enabled(declaration) in named)
        for line in declaration.lines
    ]


def split(lines: list[Line]) -> list[Declaration]:
    """Return the declarations and directives of a text, in order."""
    found: list[Declaration] = []
    open_lines: list[Line] = []
    depth = 0
    for line in lines:
        code = _code(line.text)
        if not open_lines and not code.strip():
            continue
        open_lines.append(line)
        depth += code.count("{") - code.count("}")
        if depth == 0 and code.rstrip().endswith((";", "}")):
            text = "\n".join(_code(part.text) for part in open_lines)
            name = None if _DIRECTIVE.match(text) else _NAME.search(text)
            found.append(Declaration(name[1] if name else "", tuple(open_lines)))
            open_lines = []
    return found


def _code(text: str) -> str:
    return text.partition("//")[0]


def _enabled(directive: Declaration) -> str:
    match = _DIRECTIVE.match(directive.lines[0].text)
    return match[1] if match else ""
