"""The layout of --help. On a narrow terminal the text of an option is printed below its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import click
from click.formatting import wrap_text

_NARROW = 70  # columns; on a narrower terminal, names and texts are not side by side
_LEAST = 24  # columns of the narrowest layout
_RAW = "\b"  # marks a paragraph whose line breaks are kept
# Words of a command. A quoted text is one word, and so is an option with its value.
_WORD = r"(?:[->]\S*\s+(?=[^\s|-]))?(?:'[^']*'|\"[^\"]*\"|\S)+"


class HelpFormatter(click.HelpFormatter):
    """A formatter whose lines fit the terminal, examples included."""

    def __init__(
        self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None
    ) -> None:
        import shutil  # takes 2 ms; only help and usage need it

        super().__init__(indent_increment, width, max_width)
        columns = shutil.get_terminal_size().columns
        # `_room` is the width for examples, and `width` the width for text, which click limits so
        # that lines stay readable. click's width is at least 50 columns even on a narrower
        # terminal, so limit `width` to the terminal.
        self._room = max(columns, _LEAST) if width is None else width
        self.width = min(self.width, self._room - 2) if width is None else width

    def write_text(self, text: str) -> None:
        """Write paragraphs; break lines of examples that are wider than the terminal."""
        super().write_text(_fitted(text, self._room - self.current_indent))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write names and texts side by side; on a narrow terminal, write a text below its name."""
        edge, inner = " " * self.current_indent, " " * (self.current_indent + 4)
        broken = [(self._fit_name(name, inner), text) for name, text in rows]
        if self.width >= _NARROW:
            super().write_dl(broken, col_max, col_spacing)
            return
        for name, text in broken:
            self.write(f"{edge}{name}\n")
            fitted = _fitted(text, self.width - len(inner))
            self.write(f"{wrap_text(fitted, self.width, inner, inner, True)}\n" if text else "")

    def _fit_name(self, name: str, inner: str) -> str:
        """Break choices such as [a|b] after a bar if the name is wider than the terminal."""
        if len(name) <= self.width - self.current_indent:
            return name
        lines = _joined(re.findall(r"[^|]+\|?", name), self.width - len(inner) - 2, "")
        return f"\n{inner}  ".join(lines)


def _fitted(text: str, width: int) -> str:
    """Break the lines of a text's raw paragraphs at a width in characters."""
    paragraphs = text.split("\n\n")
    for number, paragraph in enumerate(paragraphs):
        if paragraph.lstrip(" \n").startswith(_RAW):
            lines = [_broken(line, width) for line in paragraph.split("\n")]
            paragraphs[number] = "\n".join(lines)
    return "\n\n".join(paragraphs)


def _broken(line: str, width: int) -> str:
    """Break a raw line. The lines of an indented command end with backslashes."""
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    end, inner = (" \\", f"{indent}    ") if indent else ("", "")
    lines = _joined(re.findall(_WORD, line), width - len(indent) - 4 - len(end))
    return indent + f"{end}\n{inner}".join(lines)


def _joined(words: Iterable[str], width: int, between: str = " ") -> Iterator[str]:
    """Join words to lines of at most `width` characters."""
    line = ""
    for word in words:
        if line and len(line) + len(between) + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line}{between}{word}" if line else word
    yield line


class HelpContext(click.Context):
    """A click context whose help is written by `HelpFormatter`."""

    formatter_class = HelpFormatter
