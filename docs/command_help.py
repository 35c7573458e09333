"""The directive ``command-help``: the help of a command with a heading and an anchor an option.

Everything comes from the declarations of the options, as in ``llmgpu COMMAND --help``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from docutils import nodes
from docutils.parsers.rst import Directive

from llmgpu.cli import cli
from llmgpu.option_fields import COMMON, SECTIONS

# Options, variables, quoted text and braces keep the characters that typography would replace.
_CODE = re.compile(r"--[a-z][\w-]*|\$[A-Z_]+|'\S[^']*'(?!\w)|\{[^ ]*\}+|\\[nt]")


def anchor_of(command: str, option: click.Parameter) -> str:
    """Return the anchor of an option on the page: ``tokenize--vocab``."""
    return f"{command}{max(option.opts, key=len)}"


class CommandHelp(Directive):
    """The directive ``command-help``, whose argument names the command."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the usage, the description, and a section for each heading of --help."""
        name = self.arguments[0]
        command = cli.get_command(click.Context(cli), name)
        if command is None:
            raise self.error(f"llmgpu has no command {name!r}")
        context = click.Context(
            command, info_name=f"llmgpu {name}", help_option_names=["-h", "--help"]
        )
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        found: list[nodes.Node] = [
            _block(usage),
            *_paragraphs(inspect.cleandoc(command.help or "")),
        ]
        sections: dict[str, list[click.Parameter]] = {each: [] for each in SECTIONS}
        for parameter in command.get_params(context):
            if isinstance(parameter, click.Option) and not parameter.hidden:
                sections[getattr(parameter, "section", COMMON)].append(parameter)
        for title, options in sections.items():
            if options:
                part = nodes.section(ids=[nodes.make_id(f"{name}-{title or 'options'}")])
                part += nodes.title("", title or "Options")
                part += [self._section(name, option, context) for option in options]
                found.append(part)
        return found

    def _section(self, name: str, option: click.Parameter, context: click.Context) -> nodes.section:
        """Return the section of an option, and register its anchor for links."""
        anchor = anchor_of(name, option)
        flags = [*sorted(option.opts, key=len, reverse=True), *option.secondary_opts]
        heading = nodes.title()
        for number, flag in enumerate(flags):
            heading += [nodes.Text(", ")] * bool(number) + [nodes.literal(flag, flag)]
        spelled, text = option.get_help_record(context) or ("", "")
        has_value = sorted(re.split("[ ,/]+", spelled)) != sorted(flags)
        section = nodes.section(ids=[anchor], names=[anchor], classes=["option"])
        section += [heading, *[_block(spelled)] * has_value, *_paragraphs(text)]
        domain = self.state.document.settings.env.get_domain("std")
        document = self.state.document.settings.env.docname
        domain.anonlabels[anchor] = document, anchor
        domain.labels[anchor] = document, anchor, f"{name} {max(option.opts, key=len)}"
        return section


def _block(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def _paragraphs(text: str) -> Iterator[nodes.Node]:
    """Yield the paragraphs of a help text; lines after a backspace stay as they are."""
    for paragraph in re.split(r"\n\s*\n", text):
        if not paragraph.startswith("\b"):
            yield nodes.paragraph("", "", *_inline(" ".join(paragraph.split())))
            continue
        head, *lines = [line for line in paragraph.splitlines()[1:] if line.strip()]
        if all(line.startswith("  ") for line in lines) and lines:  # "Examples:", and commands
            yield nodes.paragraph("", "", *_inline(head))
            yield _block("\n".join(line.strip() for line in lines))
        else:
            lines = [nodes.line("", "", *_inline(line)) for line in (head, *lines)]
            yield nodes.line_block("", *lines)


def _inline(text: str) -> Iterator[nodes.Node]:
    """Yield a line of help, with options and other code as literals."""
    end = 0
    for found in _CODE.finditer(text):
        yield nodes.Text(text[end : found.start()])
        yield nodes.literal(found[0], found[0])
        end = found.end()
    yield nodes.Text(text[end:])
