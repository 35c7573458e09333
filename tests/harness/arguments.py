"""Arguments of commands that tests put together."""

from __future__ import annotations


def overridden(*arguments: str) -> tuple[str, ...]:
    """Return arguments without the options, with their values, that are given again later.

    A command refuses a second, different value of an option; tests change those of a common list.
    """
    kept: list[str] = []
    for place, argument in enumerate(arguments):
        before = arguments[place - 1] if place else ""
        is_value = before.startswith("-") and not argument.startswith("-")
        name = before if is_value else argument
        if not (name.startswith("-") and name in arguments[place + 1 :]):
            kept.append(argument)
    return tuple(kept)
