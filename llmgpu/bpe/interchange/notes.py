"""What a reader or writer has to say that is no error: lines for people, through a callback."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmgpu.bpe.interchange.input_files import quote

Note = Callable[[str], None]

_LISTED = 3


def no_notes(text: str) -> None:
    """Take a note and drop it."""


def listed(texts: Sequence[str]) -> str:
    """Return the first few texts, quoted, and how many more there are."""
    shown = ", ".join(map(quote, texts[:_LISTED]))
    rest = len(texts) - _LISTED
    return f"{shown} and {rest:,} more" if rest > 0 else shown
