"""The help of every command, compared with stored text.

After a change of help that is meant, ``python -m tests.cli.test_help`` writes the text anew: the
change of ``help.txt`` then belongs to the commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from llmgpu.cli import COMMANDS, cli

STORED = Path(__file__).with_name("help.txt")
WIDTH = 100  # columns of the terminal


def help_of_all_commands() -> Iterator[str]:
    """Yield the help of llmgpu and of each command, with a heading."""
    for command in ("", *COMMANDS):
        arguments = [*filter(None, [command]), "--help"]
        if command:  # click keeps the option --help of a command that ran before, without -h
            found = cli.get_command(click.Context(cli), command)
            vars(found)["_help_option"] = None
        done = CliRunner().invoke(cli, arguments, prog_name="llmgpu", terminal_width=WIDTH)
        assert done.exit_code == 0, done.output
        yield f"==== {' '.join(['llmgpu', *arguments])}\n{done.stdout}"


def test_help_is_the_stored_text() -> None:
    assert "".join(help_of_all_commands()) == STORED.read_text(encoding="utf-8")


def test_options_stand_under_headings() -> None:
    """The headings come in one order, and the main commands first."""
    texts = dict(zip(("", *COMMANDS), help_of_all_commands(), strict=True))
    heads = ["Options", "Model", "Training and optimizer", "Output", "Input"]
    heads += ["Several machines", "Common", "Rarely needed"]
    found = re.findall(r"^(\w.*):$", texts["train"], re.MULTILINE)
    assert found == heads
    for option, head in (("--dim", "Model"), ("--lr", heads[2]), ("--debug", heads[-1])):
        assert f"\n  {option} " in texts["train"].split(f"\n{head}:")[1].split("\n\n")[0]
    for text in texts.values():
        own = [head for head in re.findall(r"^(\w.*):$", text, re.MULTILINE) if head in heads]
        assert own == [head for head in heads if head in own]
    assert texts[""].index("\n  train ") < texts[""].index("\n  bench ")


if __name__ == "__main__":
    STORED.write_text("".join(help_of_all_commands()), encoding="utf-8")
