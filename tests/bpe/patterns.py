"""Starts of pre-tokens by a pattern, given by its name or as an object."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pattern import as_pattern


def start_mask(
    text: NDArray[np.uint8],
    pattern: str | Pattern,
    document_starts: NDArray[np.int64],
    *,
    continues: bool = False,
) -> NDArray[np.bool_]:
    """Mark the starts of pre-tokens, see `Pattern.start_mask`."""
    return as_pattern(pattern).start_mask(text, document_starts, continues=continues)


def last_start(
    text: NDArray[np.uint8], pattern: str | Pattern, document_starts: NDArray[np.int64]
) -> int:
    """Return the last start in a text, see `Pattern.last_start`."""
    begin = int(document_starts[document_starts < len(text)].max(initial=0))
    return as_pattern(pattern).last_start(text, begin)
