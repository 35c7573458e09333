"""Filters of ids: functions from slices to slices, between an encoder and a sink.

A filter can cut documents into chunks. With chunks of N ids that overlap by K, chunk k of a
document begins with id k (N - K) of the document and has up to N ids; the last chunk ends with the
document. Each chunk becomes a document. A document without ids stays a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.texts import replaced_bytes
from llmgpu.text.chat import Chat
from llmgpu.tokens.conversations import lengths_in_conversations

Slices = Iterator[EncodedSlice]
Filter = Callable[[Slices], Slices]


@dataclass
class Totals:
    """Sums over all slices so far.

    in_loss: number of ids that count in a loss.
    """

    text_bytes: int = 0
    documents: int = 0
    in_loss: int = 0

    def count(self, slices: Slices) -> Slices:
        """Yield slices unchanged, and add up their sizes."""
        for piece in slices:
            self.text_bytes += piece.text_bytes
            self.documents += len(piece.document_starts)
            self.in_loss += 0 if piece.mask is None else int(piece.mask.sum())
            yield piece


def with_masks(slices: Slices, conversations: Chat, vocabulary: Vocabulary) -> Slices:
    """Add masks to slices: an id counts in the loss if the assistant wrote any byte of it."""
    lengths = lengths_in_conversations(vocabulary)
    position = 0
    for piece in slices:
        edges = position + np.concatenate([[0], np.cumsum(lengths[piece.ids])])
        position = int(edges[-1])
        yield replace(piece, mask=conversations.mask(edges))
    if position != conversations.text_bytes:
        raise AssertionError("ids and conversations have different lengths")


def first_tokens(slices: Slices, most: int, spans: NDArray[np.int64]) -> Slices:
    """Yield the first `most` ids (1 or more). The last document may be cut.

    spans: number of text bytes that each id replaces, (vocabulary size,).
    """
    left = most
    for piece in slices:
        if len(piece.ids) >= left:
            ids, starts = piece.ids[:left], piece.document_starts
            mask = None if piece.mask is None else piece.mask[:left]
            text_bytes = replaced_bytes(spans, ids)
            yield EncodedSlice(ids, starts[starts < left], text_bytes, closed=True, mask=mask)
            return
        left -= len(piece.ids)
        yield piece


def in_chunks(slices: Slices, most: int, overlap: int, spans: NDArray[np.int64]) -> Slices:
    """Cut documents into chunks of up to `most` ids; yield closed slices of whole chunks.

    most: 1 or more. overlap: ids that a chunk shares with the chunk before; 0 or more, below
    `most`. spans: number of text bytes that each id replaces, (vocabulary size,).
    """
    step = most - overlap
    ids, mask = np.empty(0, np.uint32), None  # ids and mask of a chunk to which ids may be added
    is_open = False
    for piece in slices:
        # Join the ids left from the previous slice with this slice.
        held = len(ids)
        ids = np.concatenate([ids, piece.ids])
        if piece.mask is not None:
            before = np.empty(0, np.bool_) if mask is None else mask
            mask = np.concatenate([before, piece.mask])
        starts = piece.document_starts + held
        if is_open or (len(ids) and not (len(starts) and starts[0] == 0)):
            starts = np.concatenate([np.zeros(1, np.int64), starts])

        # Yield all chunks but the last of an open document, to which ids may be added.
        yield from _cut(ids, mask, starts, len(starts) - (not piece.closed), most, step, spans)
        is_open = len(starts) > 0 and not piece.closed
        rest = len(ids)
        if is_open:
            start = int(starts[-1])
            rest = start + step * int(_chunks_before_last(np.array(rest - start), most, step))
        ids, mask = ids[rest:], None if mask is None else mask[rest:]
    if is_open:
        yield from _cut(ids, mask, np.zeros(1, np.int64), 1, most, step, spans)


def _chunks_before_last(lengths: NDArray[np.int64], most: int, step: int) -> NDArray[np.int64]:
    """Return how many chunks each document has before its last; lengths: ids of each document."""
    return np.maximum(0, -(-(lengths - most) // step))


def _cut(
    ids: NDArray[np.uint32],
    mask: NDArray[np.bool_] | None,
    starts: NDArray[np.int64],
    closed: int,
    most: int,
    step: int,
    spans: NDArray[np.int64],
) -> Slices:
    """Yield the chunks of documents at `starts` as one slice.

    closed: number of documents that are complete. Of an incomplete document, the last chunk is left
    out.
    """
    lengths = np.diff(np.append(starts, len(ids)))
    counts = _chunks_before_last(lengths, most, step)
    counts[: max(closed, 0)] += 1
    if not counts.any():
        return
    # numbers: index of each chunk in its document; begins, ends: positions in `ids`.
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.repeat(starts, counts) + numbers * step
    ends = np.minimum(begins + most, np.repeat(starts + lengths, counts))
    sizes = ends - begins
    places = np.cumsum(sizes) - sizes  # starts of the chunks in the slice
    at = np.arange(sizes.sum()) + np.repeat(begins - places, sizes)
    found = ids[at]
    chosen = None if mask is None else mask[at]
    yield EncodedSlice(found, places, replaced_bytes(spans, found), closed=True, mask=chosen)
