"""Texts in chunks of few enough ids each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray


def chunks_of(
    text: str,
    spans: NDArray[np.int64],
    tokens: int,
    overlap: int,
    count: Callable[[str], int],
) -> Iterator[str]:
    """Yield a text in chunks of up to `tokens` ids, see `Tokenizer.chunks`.

    spans: of characters that each id has a part of, (n, 2). count: ids of a text alone, which may
        be more than those it has within the whole.
    """
    # Ids may be parted where no character is in both.
    parted = np.flatnonzero(spans[1:, 0] >= spans[:-1, 1]) + 1
    cuts = np.array([0, *parted, len(spans)])

    def cut_before(place: int) -> int:
        return int(cuts[np.searchsorted(cuts, place, side="right") - 1])

    begin = 0
    while begin < len(spans):
        following = int(cuts[np.searchsorted(cuts, begin, side="right")])
        end = max(cut_before(min(begin + tokens, len(spans))), following)
        while True:
            chunk = text[spans[begin, 0] : spans[end - 1, 1]]
            over = count(chunk) - tokens
            if over <= 0 or end == following:
                break
            end = max(cut_before(end - over), following)
        yield chunk
        if end == len(spans):
            return
        before = cut_before(end - overlap)
        begin = before if before > begin else end
