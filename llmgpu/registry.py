"""Tables of what there is to choose from: its names, and where each is defined.

``--help`` lists the names; what a name stands for is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


@cache
def imported(place: str) -> Any:
    """Import what is defined at ``package.module:name``; without a name, the module."""
    module, _, name = place.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


class Entry(NamedTuple):
    """Where something is defined, see `imported`.

    summary: a description for --help. fields: arguments of the class at `place`, of which the thing
    is an object; None if the thing itself is there.
    """

    place: str
    summary: str = ""
    fields: Mapping[str, Any] | None = None


class Registry(Mapping[str, T]):
    """Things by name, in the order of the table, each imported when it is asked for."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        """Take a table."""
        self._entries = dict(entries)
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            entry = self._entries[name]
            found = imported(entry.place)
            self._made[name] = found if entry.fields is None else found(**entry.fields)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def describe(self) -> str:
        """Return all names and what they are, for --help."""
        return ", ".join(f"{name} ({entry.summary})" for name, entry in self._entries.items())

    @property
    def summaries(self) -> dict[str, str]:
        """What each is, by name."""
        return {name: entry.summary for name, entry in self._entries.items()}
