"""Documents cut into chunks of a number of ids, which may overlap: for retrieval, or a context.

Chunk k of a document has its ids from k (N - K) on, N of them at most; the last one ends where the
document does. Each becomes a document of its own, a document without ids one without.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, new_ids
from llmgpu.text.corpus import TextSource


class Chunks:
    """An encoder that cuts the documents of another into chunks.

    documents: chunks so far. text_bytes: of text in them, that of overlaps as often as it is there.
    """

    def __init__(self, encoder: Encoder, most: int, overlap: int, spans: NDArray[np.int64]) -> None:
        """Make chunks of up to `most` ids, the last `overlap` of which begin the next one.

        most: 1 or more. overlap: 0 or more, below `most`. spans: bytes of text of each id.
        """
        self._encoder, self._most, self._step = encoder, most, most - overlap
        self._spans = spans
        self.text_bytes = self.documents = 0

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        ids, mask = np.empty(0, np.uint32), None  # of the chunk that is not decided yet
        is_open = False
        for piece in self._encoder.encode(source, allocate):
            held = len(ids)
            ids = np.concatenate([ids, piece.ids])
            if piece.mask is not None:
                before = np.empty(0, np.bool_) if mask is None else mask
                mask = np.concatenate([before, piece.mask])
            starts = piece.document_starts + held
            if is_open or (len(ids) and not (len(starts) and starts[0] == 0)):
                starts = np.concatenate([np.zeros(1, np.int64), starts])
            yield from self._cut(ids, mask, starts, len(starts) - (not piece.closed))
            is_open = len(starts) > 0 and not piece.closed
            rest = self._rest_of(int(starts[-1]), len(ids)) if is_open else len(ids)
            ids, mask = ids[rest:], None if mask is None else mask[rest:]
        if is_open:
            yield from self._cut(ids, mask, np.zeros(1, np.int64), 1)

    def _rest_of(self, start: int, end: int) -> int:
        """Return where what is left of a document begins that may have more ids."""
        return start + self._count_before_last(np.array([end - start])).item() * self._step

    def _count_before_last(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many chunks documents of some lengths have before their last one."""
        return np.maximum(0, -(-(lengths - self._most) // self._step))

    def _cut(
        self,
        ids: NDArray[np.uint32],
        mask: NDArray[np.bool_] | None,
        starts: NDArray[np.int64],
        closed: int,
    ) -> Iterator[EncodedSlice]:
        """Yield the chunks of documents that begin at `starts`; the first `closed` of them end."""
        lengths = np.diff(np.append(starts, len(ids)))
        counts = self._count_before_last(lengths)
        counts[: max(closed, 0)] += 1
        if not counts.any():
            return
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = np.repeat(starts, counts) + numbers * self._step
        ends = np.minimum(begins + self._most, np.repeat(starts + lengths, counts))
        sizes = ends - begins
        places = np.cumsum(sizes) - sizes  # of the chunks among the ids that are returned
        at = np.arange(sizes.sum()) + np.repeat(begins - places, sizes)
        found = ids[at]
        text_bytes = int(self._spans[found].sum())
        self.documents += len(begins)
        self.text_bytes += text_bytes
        chosen = None if mask is None else mask[at]
        yield EncodedSlice(found, places, text_bytes, closed=True, mask=chosen)
