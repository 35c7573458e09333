"""The option ``--part``: one of N parts of the work, see `llmgpu.cli.parts`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from llmgpu.errors import InputError
from llmgpu.input_files import quote

if TYPE_CHECKING:
    from llmgpu.text.parts import Part


class PartNumber(click.ParamType["Part | str"]):
    """A part of the work: I/N, or auto."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Part | str:
        """Take two numbers apart."""
        from llmgpu.text.parts import Part

        if value == "auto" or isinstance(value, Part):
            return value  # type: ignore[no-any-return]
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", value)
        if found is None:
            self.fail(f"{quote(value)} is not a part: use I/N, such as 3/8, or auto", param, ctx)
        try:
            return Part(int(found[1]), int(found[2]))
        except InputError as error:
            self.fail(str(error), param, ctx)


part_option = click.option(
    "--part",
    type=PartNumber(),
    metavar="I/N|auto",
    help="Process part I of N; finished parts are skipped. %P in the output name is replaced by "
    "the part. auto: read I and N from the variables of a Slurm array, of a Kubernetes indexed "
    "job, or RANK and WORLD_SIZE.",
)
