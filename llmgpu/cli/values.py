"""Types of option values, which parse the texts of the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmgpu.bpe.pretokens.names import ALIASES, PATTERNS
from llmgpu.errors import InputError
from llmgpu.input_files import quote
from llmgpu.spelling import BYTE_EXAMPLES, BYTE_UNITS, parse_amount

if TYPE_CHECKING:
    from llmgpu.text.parts import Part

Value = TypeVar("Value")
_THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_SIZES = {"": 1, "K": 1000, "KI": 1024, "M": 10**6}


class Parsed(click.ParamType[Value]):
    """A type whose values are parsed by a function, which raises InputError for an invalid text."""

    def __init__(
        self, name: str, parse: Callable[[str], Value], spell: Callable[[Value], Any] | None = None
    ) -> None:
        """Store the functions; name: the name of a value in messages.

        spell: returns a value as written on the command line; None if it is written unchanged.
        """
        self.name, self.parse = name, parse
        self.spell = spell or (lambda value: value)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Value:
        """Parse a text; a default that is not a text is returned unchanged."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        try:
            return self.parse(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


def _parse_text(text: str) -> str:
    """Return a text; InputError for bytes that are not UTF-8, which the system may pass."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{quote(text)} is not valid UTF-8") from None
    return text


def _amounts(name: str, one: str, units: Mapping[str, int], examples: str) -> Parsed[int]:
    """Return the type for numbers with a unit; see `parse_amount`."""
    how = partial(parse_amount, units=units, name=name, one=one, examples=examples)
    return Parsed(name, how)


TEXT = Parsed("text", _parse_text)
VOCABULARY_SIZE = _amounts("vocabulary size", "id", _SIZES, "32768, 50k or 32Ki")


def _parse_percentage(text: str) -> float:
    """Parse a percentage of 0 or more, with or without "%": the result for "10%" is 0.1."""
    with suppress(ValueError):
        percent = float(text.strip().removesuffix("%"))
        if 0 <= percent < math.inf:
            return percent / 100
    raise InputError(f"{quote(text)} is not a percentage of 0 or more; write 10%")


def _parse_share(text: str) -> tuple[str, float]:
    """Parse the name of a split and its share: val=0.01, or val=1%."""
    form = r"([A-Za-z][A-Za-z0-9_-]*)=([0-9]{0,9}\.?[0-9]{0,18})(%?)"
    match = re.fullmatch(form, text)
    share = float(match[2]) / (100 if match[3] else 1) if match and match[2].strip(".") else 0.0
    if match is None or not 0 < share < 1:
        raise InputError(f"{quote(text)} is not a name and a share below 1; write val=0.01")
    return match[1], share


def _parse_special_token(text: str) -> tuple[str, int]:
    """Parse a special token's text and id: <|end|>=50256. The last "=" separates the two."""
    token, _, number = _parse_text(text).rpartition("=")
    if not token or not re.fullmatch(r"[0-9]{1,10}", number):
        raise InputError(f"{quote(text)} is not a text and an id; write '<|end|>=50256'")
    return token, int(number)


def _parse_file_weight(text: str) -> tuple[str, int]:
    """Parse a file and the weight of its counts: code.counts=3. The last "=" separates the two."""
    file, _, number = text.rpartition("=")
    if not file or not re.fullmatch(r"0*[1-9][0-9]{0,8}", number):
        raise InputError(f"{quote(text)} is not a file and a number; write code.counts=3")
    return file, int(number)


def _parse_part(text: str) -> Part | str:
    """Parse a part of the work: I/N, or auto."""
    from llmgpu.text.parts import Part

    if text == "auto":
        return text
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise InputError(f"{quote(text)} is not a part: use I/N, such as 3/8, or auto")
    return Part(int(found[1]), int(found[2]))


class Aliased(click.Choice[str]):
    """One of several names, or an alias of a name."""

    def __init__(self, names: Iterable[str], aliases: Mapping[str, str]) -> None:
        super().__init__([*names, *aliases])
        self._aliases = aliases

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; for an alias, return the name of the same choice in llmgpu."""
        name = super().convert(value, param, ctx)
        return self._aliases.get(name, name)


class PatternName(Aliased):
    """The name of a pattern. For the name of an encoding, the error names its pattern."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of the pattern; for an alias, return llmgpu's name for the pattern."""
        if value not in self.choices:
            from llmgpu.bpe.interchange.tiktoken import pattern_of

            if pattern := pattern_of(str(value)):
                self.fail(f"{quote(value)} is not a pattern; its pattern is {pattern}", param, ctx)
        return super().convert(value, param, ctx)


def _parse_expression(text: str) -> str:
    """Return the name of the pattern that cuts by a regular expression."""
    from llmgpu.bpe.pretokens.pattern import pattern_of_expression

    return pattern_of_expression(_parse_text(text))


def _spell_expression(pattern: str) -> str:
    from llmgpu.bpe.pretokens.pattern import get_pattern

    return get_pattern(pattern).expression


def _parse_sizes(text: str) -> tuple[int, ...]:
    """Parse sizes of a vocabulary, separated by commas: 8192,32Ki; return them ascending."""
    parts = text.split(",")
    if len(parts) > 1 and "" in map(str.strip, parts):
        raise InputError(f"{quote(text)} is not a vocabulary size; write 32768, or 8192,32768")
    return tuple(sorted({VOCABULARY_SIZE.parse(part) for part in parts}))


# Types by the names that declared options use, see `llmgpu.option_fields.Option`.
KINDS: dict[str, click.ParamType[Any]] = {
    "above 0": click.FloatRange(min=0, min_open=True),
    "bytes": _amounts("size", "byte", BYTE_UNITS, BYTE_EXAMPLES),
    "count": _amounts("number", "", _SIZES, "500, 8k or 1Ki"),
    "expression": Parsed("expression", _parse_expression, _spell_expression),
    "file weight": Parsed("file weight", _parse_file_weight),
    "part": Parsed("part", _parse_part),
    "pattern": PatternName(PATTERNS, ALIASES),
    "percentage": Parsed("percentage", _parse_percentage),
    "share": Parsed("share", _parse_share),
    "sizes": Parsed("sizes", _parse_sizes, lambda sizes: ",".join(map(str, sizes))),
    "special token": Parsed("special token", _parse_special_token),
    "text": TEXT,
    "threads": click.IntRange(min=1, max=1024),
    "tokens": _amounts("number of tokens", "token", _THOUSANDS, "4096, 100M or 1B"),
    "vocabulary size": VOCABULARY_SIZE,
}
