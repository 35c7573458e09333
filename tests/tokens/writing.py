"""A stand-in for vocabularies, for tests of writers of ids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def sized(size: int, fingerprint: str = "f00d") -> Any:
    """Return the facts of a vocabulary that writers need, without its tokens."""
    return SimpleNamespace(size=size, fingerprint=fingerprint, match_facts={})
