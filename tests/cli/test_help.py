"""The help of every command, compared with stored text.

After a change of help that is meant, ``python -m tests.cli.test_help`` writes the text anew: the
change of ``help.txt`` then belongs to the commit.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from llmgpu.cli import COMMANDS, cli
from llmgpu.cli.help_formatter import HelpFormatter

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


@pytest.mark.parametrize("columns", [40, 80])
def test_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is wider than the terminal, and broken examples are still the same commands."""
    wide = dict(zip(("", *COMMANDS), help_of_all_commands(), strict=True))
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in ("", *COMMANDS):
        done = CliRunner().invoke(cli, [*filter(None, [command]), "--help"], prog_name="llmgpu")
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= columns, command
        assert [*examples_in(done.stdout)] == [*examples_in(wide[command])]
        _, _, text = wide[command].partition("\n")  # without its heading
        assert re.sub(r"[\s\\]", "", done.stdout) == re.sub(r"[\s\\]", "", text)


def examples_in(text: str) -> Iterator[list[str]]:
    """Yield the words of the commands below "Examples:"."""
    block = text.partition("Examples:\n")[2].partition("\n\n")[0]
    for line in block.replace("\\\n", "").splitlines():
        yield shlex.split(line)


def test_names_and_texts_stand_below_each_other_on_a_narrow_terminal() -> None:
    formatter = HelpFormatter(width=40)
    formatter.write_dl([("--sort [path|tokens|bytes|lines|document]", "Sort by this."), ("-q", "")])
    formatter.write_text("\b\nExamples:\n  llmgpu count -o 'a  b' --vocab v.bin corpus.txt")
    assert formatter.getvalue() == (
        "--sort [path|tokens|bytes|lines|\n"
        "      document]\n"
        "    Sort by this.\n"
        "-q\n"
        "Examples:\n"
        "  llmgpu count -o 'a  b' \\\n"
        "      --vocab v.bin corpus.txt\n"
    )


if __name__ == "__main__":
    STORED.write_text("".join(help_of_all_commands()), encoding="utf-8")
