"""Options, declared as fields of frozen dataclasses.

A field made by `option` or `argument` declares the flag, the kind of value, the help, the range and
the default in words. From these fields the command line makes its options and reads files of
options; a command receives one object with all values. The library checks ranges and compares
resumed jobs by the same fields. This module imports neither NumPy nor click.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from functools import cache, partial
from typing import Any, NamedTuple

from llmgpu.errors import InputError

_KEY = "option"

# Headings of --help, in this order. Options without a heading come first.
INPUT, OUTPUT, MODEL, OPTIMIZER = "Input", "Output", "Model", "Training and optimizer"
SEVERAL_MACHINES, RARE, COMMON = "Several machines", "Rarely needed", "Common"
SECTIONS = ("", MODEL, OPTIMIZER, OUTPUT, INPUT, SEVERAL_MACHINES, COMMON, RARE)


class Option(NamedTuple):
    """The declaration of an option or argument.

    flags: spellings of the option; a field without flags is an argument of the command.
    kind: int, float, bool, str, the allowed names, a key of `llmgpu.cli.values.KINDS` ("count",
        "text"), or a type of click.
    many: whether the option is repeatable. Its value is then a tuple.
    least, most: smallest and largest number allowed. below: a number must be less than this bound.
    default_words: describes a default that follows from other options; may be "". The value is None
        until the default is computed.
    by_preset: defaults of the presets that have a default of their own.
    needs: the option has no effect unless one of these options is given.
    may_change: whether a resumed run may have another value.
    section: heading in --help, by default the heading of the class.
    settings: further arguments for click.
    """

    flags: tuple[str, ...]
    kind: Any
    help: str = ""
    metavar: str | None = None
    many: bool = False
    least: int | None = None
    most: int | None = None
    below: int | None = None
    default_words: str | None = None
    by_preset: Mapping[str, Any] = {}
    needs: tuple[str, ...] = ()
    may_change: bool = False
    section: str = ""
    settings: Mapping[str, Any] = {}

    @property
    def flag(self) -> str:
        """The longest flag. Of a pair such as --x/--no-x, the flag that switches the option on."""
        return max(self.flags, key=len).split("/")[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """The names to choose from; empty for any other kind of value."""
        has_names = hasattr(self.kind, "__iter__") and not isinstance(self.kind, (str, type))
        return tuple(self.kind) if has_names else ()


class Group(NamedTuple):
    """The declaration of a field that holds the options of another dataclass.

    as_values: whether the field holds a dictionary of values by field name in place of an object of
    the class. Such a group has defaults that are computed later from other options.
    """

    kind: type
    as_values: bool = False


def option(default: Any, kind: Any, help: str, *flags: str, **how: Any) -> Any:
    """Declare an option, see `Option`; the flag is ``--`` and the field's name unless given.

    default: MISSING for an option that is required.
    """
    if by_preset := how.get("by_preset"):
        words = (str(default), *(f"{name}: {value}" for name, value in by_preset.items()))
        how["default_words"] = "; ".join(words)
    return field(default=default, metadata={_KEY: Option(flags, kind, help, **how)})


# Declare an option under one of the headings of `SECTIONS`.
output_option = partial(option, section=OUTPUT)
machines_option = partial(option, section=SEVERAL_MACHINES)
rare_option = partial(option, section=RARE)


def argument(metavar: str | None = None, *, many: bool = False, **settings: Any) -> Any:
    """Declare an argument of a command. An argument has no flag."""
    found = Option((), str, metavar=metavar, many=many, settings=settings)
    return field(metadata={_KEY: found, "argument": True})


def group(kind: type, *, as_values: bool = False) -> Any:
    """Declare a field that holds the options of another dataclass, see `Group`."""
    return field(metadata={_KEY: Group(kind, as_values)})


@cache
def declared(kind: type) -> dict[str, Option | Group]:
    """Return the options and groups that the fields of a dataclass declare, in their order."""
    found: dict[str, Option | Group] = {}
    for each in fields(kind):
        one = each.metadata.get(_KEY)
        if isinstance(one, Option) and not (one.flags or "argument" in each.metadata):
            one = one._replace(flags=(f"--{each.name.replace('_', '-')}",))
        if isinstance(one, Option) and not one.section:
            one = one._replace(section=getattr(kind, "section", ""))
        if one is not None:
            found[each.name] = one
    return found


def own_options(kind: type) -> dict[str, Option]:
    """Return the options of a dataclass, without the options of its groups."""
    return {name: one for name, one in declared(kind).items() if isinstance(one, Option)}


def flag_of(name: str, *kinds: type) -> str:
    """Return the flag of an option for messages.

    kinds: dataclasses, one of which declares the option `name`.
    """
    found = (own_options(kind)[name].flag for kind in kinds if name in own_options(kind))
    return next(found, f"--{name.replace('_', '-')}")


def default_of(kind: type, name: str) -> Any:
    """Return the default of a field, MISSING for a field without default."""
    return getattr(kind, name, MISSING)


def check_ranges(options: Any) -> None:
    """Raise InputError for a value outside of its range or choices. None is always allowed.

    An option of kind float must be finite, and at least 0 unless the option has another bound.
    """
    own = own_options(type(options))
    given = {name: value for name in own if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        kind, least, below = own[name].kind, own[name].least, own[name].below
        if least is None and kind in ("count", float):
            least = int(kind == "count")
        if least is not None and not value >= least:
            raise InputError(f"{own[name].flag} is {value}, but must be at least {least}")
        limit = math.inf if below is None and kind is float else below
        if limit is not None and not value < limit:
            raise InputError(f"{own[name].flag} is {value}, but must be less than {limit}")
        if own[name].choices and value not in own[name].choices:
            known = ", ".join(own[name].choices)
            raise InputError(f"{own[name].flag} is {value}; use one of {known}")
