"""Options, declared as fields of frozen dataclasses.

A field made by `option` or `argument` says how its value is given: flag, kind of value, help,
range, default in words. The command line makes its options from these fields, reads them from files
of options and passes a command one object with all of them. The library checks ranges and compares
resumed jobs by the same fields. This module imports neither NumPy nor click.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any, NamedTuple

from llmgpu.errors import InputError

_KEY = "option"

# Headings of --help, in their order; options without one come first.
INPUT, OUTPUT, MODEL, OPTIMIZER = "Input", "Output", "Model", "Training and optimizer"
SEVERAL_MACHINES, RARE, COMMON = "Several machines", "Rarely needed", "Common"
SECTIONS = ("", MODEL, OPTIMIZER, OUTPUT, INPUT, SEVERAL_MACHINES, COMMON, RARE)


class Option(NamedTuple):
    """How the value of a field is given.

    flags: how the option is written; without any the field is an argument of the command. kind:
    int, float, bool, str, the names to choose from, a name of a kind that the command line knows
    ("count", "text"), or one of its types. many: the value is a tuple, and the option repeatable.
    least, most: smallest and largest number. below: numbers are less than this. default_words: how
    the default follows from other options, "" for nothing to say; a value that is not given is None
    then. by_preset: defaults of presets that have their own. needs: the option has no effect
    unless one of these is given; needs_words: the message then, after the flag. may_change: a
    resumed run may have another value. section: heading in --help, by default that of the class.
    settings: of the command line alone.
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
    needs_words: str = ""
    may_change: bool = False
    section: str = ""
    settings: Mapping[str, Any] = {}

    @property
    def flag(self) -> str:
        """The longest way to write the option, or to switch it on."""
        return max(self.flags, key=len).split("/")[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """The names to choose from, if there are any."""
        has_names = hasattr(self.kind, "__iter__") and not isinstance(self.kind, (str, type))
        return tuple(self.kind) if has_names else ()


class Group(NamedTuple):
    """A field that holds the options that another dataclass declares.

    as_values: the field is a dictionary of the values, by the names of their fields, and not an
    object of the class: defaults that follow from others are not settled yet.
    """

    kind: type
    as_values: bool = False


def option(default: Any, kind: Any, help: str, *flags: str, **how: Any) -> Any:
    """Declare an option, see `Option`; without flags it is written ``--`` and the field's name.

    default: MISSING for an option that is required.
    """
    if by_preset := how.get("by_preset"):
        words = (str(default), *(f"{name}: {value}" for name, value in by_preset.items()))
        how["default_words"] = "; ".join(words)
    return field(default=default, metadata={_KEY: Option(flags, kind, help, **how)})


def argument(metavar: str | None = None, *, many: bool = False, **settings: Any) -> Any:
    """Declare an argument, which has no flag."""
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
    """Return the options of a dataclass, without those of its groups."""
    return {name: one for name, one in declared(kind).items() if isinstance(one, Option)}


def flag_of(name: str, *kinds: type) -> str:
    """Return the flag, for messages, of an option that one of these dataclasses declares."""
    found = (own_options(kind)[name].flag for kind in kinds if name in own_options(kind))
    return next(found, f"--{name.replace('_', '-')}")


def default_of(kind: type, name: str) -> Any:
    """Return the default of a field, MISSING if it has none."""
    return getattr(kind, name, MISSING)


def check_ranges(options: Any) -> None:
    """Raise InputError for a value outside of its range or choices; None is always allowed."""
    own = own_options(type(options))
    given = {name: value for name in own if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        least, below = own[name].least, own[name].below
        if least is None and own[name].kind == "count":
            least = 1
        if least is not None and value < least:
            raise InputError(f"{own[name].flag} is {value}, but must be at least {least}")
        if below is not None and value >= below:
            raise InputError(f"{own[name].flag} is {value}, but must be less than {below}")
    for name, value in given.items():
        if own[name].choices and value not in own[name].choices:
            known = ", ".join(own[name].choices)
            raise InputError(f"{own[name].flag} is {value}; use one of {known}")
