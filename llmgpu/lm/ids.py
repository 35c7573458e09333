"""Token ids given as arrays, checked before anything is looked up by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.errors import InputError

NAMED_IDS = 5  # invalid ids that a message names


def check_ids(ids: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return ids of any shape and any integer type as uint32, none wrapped around.

    Raises:
        InputError: they are not integers, or some are negative or not below `vocab_size`; the
            message names the first of them with their positions.
    """
    numbers = np.asarray(ids)
    if numbers.size == 0:
        return np.zeros(numbers.shape, np.uint32)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"ids must be whole numbers of up to 64 bits, not {numbers.dtype}")
    bad = (numbers < 0) | (numbers >= vocab_size)
    if bad.any():
        raise InputError(_describe(numbers, bad, vocab_size))
    return numbers.astype(np.uint32)


def _describe(ids: NDArray[np.integer], bad: NDArray[np.bool_], vocab_size: int) -> str:
    positions = [tuple(int(k) for k in index) for index in np.argwhere(bad)[:NAMED_IDS]]
    named = ", ".join(f"{ids[position]} at {position}" for position in positions)
    count = int(np.count_nonzero(bad))
    more = ", ..." if count > len(positions) else ""
    verb = "id is" if count == 1 else "ids are"
    return f"{count} {verb} not in the vocabulary of {vocab_size} tokens: {named}{more}"
