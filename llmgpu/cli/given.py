"""Which options the command at work was given, and refusing those that would have no effect."""

from __future__ import annotations

from collections.abc import Container

import click
from click.core import ParameterSource

# Where what somebody asked for comes from; the rest are defaults.
ASKED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def was_given(name: str) -> bool:
    """Whether a parameter of the command at work was given on the command line."""
    context = click.get_current_context()
    return context.get_parameter_source(name) == ParameterSource.COMMANDLINE


def refuse_given(names: Container[str], reason: str) -> None:
    """Raise click.UsageError if one of some parameters was given; reason: what its flag is."""
    for flag in flags_given(names):
        raise click.UsageError(f"{flag} {reason}")


def flags_given(names: Container[str]) -> list[str]:
    """Return the flags of those of some parameters that were given."""
    options = click.get_current_context().command.params
    found = [each for each in options if each.name in names and was_given(str(each.name))]
    return [max(each.opts, key=len) for each in found]
