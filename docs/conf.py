"""How Sphinx builds the guide: `make docs`.

Everything is local: no fonts, scripts or inventories are downloaded, so the build needs no network.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import click
from docutils import nodes
from docutils.parsers.rst import Directive

from llmgpu import __version__
from llmgpu.cli import cli

project = "llmgpu"
author = "llmgpu maintainers"
copyright = "llmgpu maintainers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["recorded"]
html_theme = "furo"
html_title = f"llmgpu {version}"
html_copy_source = False

myst_heading_anchors = 3  # headings that links may name: page.md#heading
default_role = "code"  # `text` in a docstring is code, as it is in Markdown
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
add_module_names = False

_FIELD = re.compile(r"((?:[a-z_]+, )*[a-z_]+): (.+)")


def _parameters(obj: Any) -> set[str]:
    try:
        return set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return set()


def format_parameters(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn lines such as ``text: what it is`` into fields, where `text` is a parameter.

    A line that follows without a blank line in between continues the field.
    """
    known = _parameters(obj)
    formatted: list[str] = []
    in_field = False
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field and known.issuperset(field[1].split(", ")):
            if not in_field:
                formatted.append("")
            formatted.append(f":{field[1]}: {field[2]}")
            in_field = True
        elif in_field and line.strip():
            formatted.append(f"    {line.strip()}")
        else:
            formatted.append(line)
            in_field = False
    lines[:] = formatted


class CommandHelp(Directive):
    """The directive ``command-help``: what ``llmgpu COMMAND --help`` prints on 80 columns."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the help of the command that the argument names."""
        name = self.arguments[0]
        command = cli.get_command(click.Context(cli), name)
        if command is None:
            raise self.error(f"llmgpu has no command {name!r}")
        context = click.Context(
            command,
            info_name=f"llmgpu {name}",
            terminal_width=80,
            help_option_names=["-h", "--help"],
        )
        text = command.get_help(context)
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Any) -> None:
    """Connect what is above."""
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-docstring", format_parameters)
