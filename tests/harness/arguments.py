"""Arguments of commands that tests put together."""

from __future__ import annotations


def overridden(*arguments: str) -> list[str]:
    """Return arguments without the options, with their values, that are given again later.

    A command refuses a second, different value of an option; tests change those of a common list.
    """
    kept: list[str] = []
    for place, argument in enumerate(arguments):
        is_value = place > 0 and arguments[place - 1].startswith("--")
        name = arguments[place - 1] if is_value and not argument.startswith("-") else argument
        if not (name.startswith("--") and name in arguments[place + 1 :]):
            kept.append(argument)
    return kept
