"""Which options the current command was given; refusing those that would have no effect."""

from __future__ import annotations

from collections.abc import Container

import click
from click.core import ParameterSource

# Where what somebody asked for comes from; the rest are defaults.
_ASKED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def was_given(name: str) -> bool:
    """Whether a parameter of the current command was given on the command line."""
    return _source_of(name) == ParameterSource.COMMANDLINE


def was_asked(name: str) -> bool:
    """Whether a parameter was given on the command line, in the environment or in a file."""
    return _source_of(name) in _ASKED


def _source_of(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)


def refuse_given(names: Container[str], reason: str) -> None:
    """Raise click.UsageError if one of these was given; reason: what to say after its flag."""
    for flag in flags_given(names):
        raise click.UsageError(f"{flag} {reason}")


def flags_given(names: Container[str]) -> list[str]:
    """Return the flags of those of these parameters that were given."""
    parameters = click.get_current_context().command.params
    found = [each for each in parameters if each.name in names and was_given(str(each.name))]
    return [
        str(each.name).upper() if isinstance(each, click.Argument) else max(each.opts, key=len)
        for each in found
    ]
