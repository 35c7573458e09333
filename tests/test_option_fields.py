"""Options declared as fields of dataclasses: their flags, ranges, and the object a command gets."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar

import click
import pytest
from click.testing import CliRunner

from llmgpu.cli.console import Reporter
from llmgpu.cli.options import command
from llmgpu.errors import InputError
from llmgpu.lm.options import STORED_FIRST, TrainOptions
from llmgpu.option_fields import argument, check_ranges, flag_of, group, option


@dataclass(frozen=True)
class Sizes:
    layers: int = option(4, "count", "Layers.")
    rate: float = option(0.5, float, "Rate.", "--pace", below=1, default_words="half of it")
    kind: str = option("a", ("a", "b"), "Kind.", "--kind", "-k")
    not_declared: int = 7


@command("ask", "nowhere:ask")
class Asked:
    click_command: ClassVar[click.Command]
    files: tuple[str, ...] = argument(many=True)
    output: str = option(MISSING, str, "Output.")
    sizes: Sizes = group(Sizes)
    given: dict[str, Any] = group(TrainOptions, as_values=True)


def asked_by(*arguments: str) -> Asked:
    """Return the object that a command receives."""
    found: list[Asked] = []

    def keep(asked: Asked, report: Reporter) -> None:
        found.append(asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmgpu.cli.options.imported", lambda place: keep)
        done = CliRunner().invoke(Asked.click_command, arguments)
    assert done.exit_code == 0, done.output
    return found[0]


def test_a_command_receives_an_object_with_its_groups() -> None:
    asked = asked_by("x", "y", "--output", "z", "--layers", "1Ki", "-k", "b")
    assert (asked.files, asked.output) == (("x", "y"), "z")
    assert asked.sizes == Sizes(layers=1024, rate=0.5, kind="b")


def test_values_whose_default_follows_from_others_are_none_unless_given() -> None:
    given = asked_by("--output", "z", "--min-lr", "0.1").given
    assert (given["min_learning_rate"], given["learning_rate"], given["seed"]) == (0.1, None, 1337)
    assert "epsilon" not in given


def test_flags() -> None:
    assert [flag_of(name, Sizes) for name in ("layers", "rate", "kind")] == [
        "--layers",
        "--pace",
        "--kind",
    ]
    assert flag_of("not_declared", Sizes) == "--not-declared"
    assert flag_of("document_mask", Sizes, TrainOptions) == "--document-mask"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (Sizes(layers=0), "--layers is 0, but must be at least 1"),
        (Sizes(rate=1.0), "--pace is 1.0, but must be less than 1"),
        (Sizes(rate=-0.5), "--pace is -0.5, but must be at least 0"),
        (Sizes(rate=math.nan), "--pace is nan, but must be at least 0"),
        (Sizes(kind="c"), "--kind is c; use one of a, b"),
    ],
)
def test_ranges(sizes: Sizes, message: str) -> None:
    check_ranges(Sizes())
    with pytest.raises(InputError, match=message):
        check_ranges(sizes)


def test_an_option_that_is_required() -> None:
    (output,) = (each for each in Asked.click_command.params if each.name == "output")
    assert isinstance(output, click.Option) and output.required


def test_stored_options_have_the_order_of_the_first_release() -> None:
    """Files of runs have the same bytes whatever the order in which options are declared."""
    names = list(TrainOptions().stored())
    assert names[:4] == ["batch_size", "grad_accum", "steps", "learning_rate"]
    assert names[34:36] == ["table_rate", "output_rate"]
    later = ["momentum", "momentum_start", "momentum_steps", "table_decay", "table_beta1"]
    assert [name for name in names[36:] if name in later] == later
    assert set(names[:36]) == set(STORED_FIRST)


@command("chunk", "nowhere:chunk")
class Chunked:
    click_command: ClassVar[click.Command]
    tokens: int | None = option(None, int, "Tokens.")
    overlap: int = option(0, int, "Overlap.", needs=("tokens",))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--overlap", "1"], 2), (["--overlap", "1", "--tokens", "2"], 0), ([], 0)],
)
def test_an_option_without_effect_is_refused(arguments: list[str], code: int) -> None:
    def work(asked: Chunked, report: Reporter) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmgpu.cli.options.imported", lambda place: work)
        done = CliRunner().invoke(Chunked.click_command, arguments)
    assert (done.exit_code, "--overlap needs --tokens" in done.output) == (code, code == 2)
