"""Types of the values that options take."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from llmgpu.amounts import BYTE_EXAMPLES, BYTE_UNITS, parse_amount
from llmgpu.bpe.pretokens.names import ALIASES, PATTERNS
from llmgpu.errors import InputError
from llmgpu.input_files import quote

if TYPE_CHECKING:
    from llmgpu.text.parts import Part

_THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class Text(click.ParamType[str]):
    """A text; the system may pass bytes that are none."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; refuse bytes that are not UTF-8."""
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{quote(text)} is not valid UTF-8", param, ctx)
        return text


TEXT = Text()
THREADS = click.IntRange(min=1, max=1024)


class Amount(click.ParamType[int]):
    """A number with a unit, rounded down."""

    units: dict[str, int]
    one: str
    examples: str

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse an amount."""
        if isinstance(value, int):
            return value
        try:
            return parse_amount(str(value), self.units, self.name, self.one, self.examples)
        except InputError as error:
            self.fail(str(error), param, ctx)


class ByteSize(Amount):
    """A number of bytes: 4096, 100MB (powers of 1000), 2GiB (powers of 1024)."""

    name, one, units = "size", "byte", BYTE_UNITS
    examples = BYTE_EXAMPLES


class TokenCount(Amount):
    """A number of tokens: 4096, 250K, 100M, 1B."""

    name, one, units = "number of tokens", "token", _THOUSANDS
    examples = "4096, 100M or 1B"


class Count(Amount):
    """How many of something: 500, 8k, 1Ki."""

    name, one, units = "number", "", {"": 1, "K": 1000, "KI": 1024, "M": 10**6}
    examples = "500, 8k or 1Ki"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what stands for the number in --help."""
        return "N"


class Percentage(click.ParamType[float]):
    """A share of 0 or more: 10%, or 10 for the same."""

    name = "percentage"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a percentage, into a part of one."""
        if isinstance(value, float):
            return value
        try:
            percent = float(str(value).strip().removesuffix("%"))
        except ValueError:
            percent = math.nan
        if not 0 <= percent < math.inf:
            shown = quote(str(value))
            self.fail(f"{shown} is not a percentage of 0 or more; write 10%", param, ctx)
        return percent / 100


COUNT = Count()


class PatternName(click.Choice[str]):
    """The name of a pattern, or another name that it goes by."""

    def __init__(self) -> None:
        """Take all names there are."""
        super().__init__([*PATTERNS, *ALIASES])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the pattern's own name."""
        if value not in self.choices:
            from llmgpu.bpe.interchange.published import pattern_of

            if pattern := pattern_of(str(value)):
                self.fail(f"{quote(value)} is not a pattern; its pattern is {pattern}", param, ctx)
        name = super().convert(value, param, ctx)
        return ALIASES.get(name, name)


class PatternExpression(click.ParamType[str]):
    """A regular expression; its value is the name of the pattern that cuts by it."""

    name = "expression"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the pattern's name."""
        from llmgpu.bpe.pretokens.pattern import pattern_of_expression

        return pattern_of_expression(TEXT.convert(value, param, ctx))

    def spell(self, value: str) -> str:
        """Return the expression of a pattern; see `llmgpu.cli.option_files.Spelled`."""
        from llmgpu.bpe.pretokens.pattern import get_pattern

        return get_pattern(value).expression


class VocabularySize(Amount):
    """A number of ids: 8192, 50k (powers of 1000), 8Ki (powers of 1024)."""

    name, one, units = "vocabulary size", "id", {"": 1, "K": 1000, "KI": 1024, "M": 10**6}
    examples = "32768, 50k or 32Ki"


class VocabularySizes(click.ParamType[tuple[int, ...]]):
    """One `VocabularySize`, or several with commas between them: 8192,32Ki."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Parse the sizes, and return them ascending."""
        if isinstance(value, (tuple, list)):
            return tuple(value)
        parts = str(value).split(",")
        if len(parts) > 1 and "" in map(str.strip, parts):
            shown = quote(str(value))
            self.fail(f"{shown} is not a vocabulary size; write 32768, or 8192,32768", param, ctx)
        return tuple(sorted({VocabularySize().convert(part, param, ctx) for part in parts}))

    def spell(self, value: Sequence[int]) -> str:
        """Return sizes as they are given; see `llmgpu.cli.option_files.Spelled`."""
        return ",".join(map(str, value))


class Share(click.ParamType[tuple[str, float]]):
    """A part's name and its share: val=0.01, or val=1%."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Parse the name and the share."""
        if isinstance(value, tuple):
            return value
        form = r"([A-Za-z][A-Za-z0-9_-]*)=([0-9]{0,9}\.?[0-9]{0,18})(%?)"
        match = re.fullmatch(form, str(value))
        share = float(match[2]) / (100 if match[3] else 1) if match and match[2].strip(".") else 0.0
        if match is None or not 0 < share < 1:
            shown = quote(str(value))
            self.fail(f"{shown} is not a name and a share below 1; write val=0.01", param, ctx)
        return match[1], share


class SpecialToken(click.ParamType[tuple[str, int]]):
    """A special token's text and id: <|end|>=50256. The last = counts."""

    name = "special token"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Parse the text and the id."""
        if isinstance(value, tuple):
            return value
        text, _, number = TEXT.convert(value, param, ctx).rpartition("=")
        if not text or not re.fullmatch(r"[0-9]{1,10}", number):
            shown = quote(str(value))
            self.fail(f"{shown} is not a text and an id; write '<|end|>=50256'", param, ctx)
        return text, int(number)


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
