"""Tables of choices by name. The object of a name is imported when it is first used.

``--help`` lists the names and descriptions without importing the objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


@cache
def imported(place: str) -> Any:
    """Import the object at ``package.module:name``; without a name, the module.

    The name may be one of a class and its attribute: ``Class.attribute``.
    """
    module, _, name = place.partition(":")
    found = import_module(module)
    return attrgetter(name)(found) if name else found


class Entry(NamedTuple):
    """A row of a `Registry`.

    place: the module and the name of the object, as `imported` takes them. summary: a description
    for --help. fields: arguments for the class at `place`; None if the object itself is at
    `place`.
    """

    place: str
    summary: str = ""
    fields: Mapping[str, Any] | None = None


class Registry(Mapping[str, T]):
    """A mapping from names to objects, each imported when its name is first looked up."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
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
        """Return one text with all names and descriptions, for --help."""
        return ", ".join(f"{name} ({entry.summary})" for name, entry in self._entries.items())

    @property
    def summaries(self) -> dict[str, str]:
        """The descriptions by name."""
        return {name: entry.summary for name, entry in self._entries.items()}
