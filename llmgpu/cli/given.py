"""Which options the command at work was given, and refusing those that would have no effect."""

from __future__ import annotations

from collections.abc import Container

import click
from click.core import ParameterSource

# Where what somebody asked for comes from; the rest are defaults.
_ASKED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def was_given(name: str) -> bool:
    """Whether a parameter of the command at work was given on the command line."""
    return _source_of(name) == ParameterSource.COMMANDLINE


def was_asked(name: str) -> bool:
    """Whether a parameter was given there, in the environment or in a file: it is no default."""
    return _source_of(name) in _ASKED


def _source_of(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)


def refuse_given(names: Container[str], reason: str) -> None:
    """Raise click.UsageError if one of some parameters was given; reason: what its flag is."""
    for flag in flags_given(names):
        raise click.UsageError(f"{flag} {reason}")


def flags_given(names: Container[str]) -> list[str]:
    """Return the flags of those of some parameters that were given."""
    parameters = click.get_current_context().command.params
    found = [each for each in parameters if each.name in names and was_given(str(each.name))]
    return [
        str(each.name).upper() if isinstance(each, click.Argument) else max(each.opts, key=len)
        for each in found
    ]
