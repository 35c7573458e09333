"""Filters of ids: functions from slices to slices, between an encoder and a sink.

- A filter can cut documents into chunks. With chunks of N ids that overlap by K, chunk k of a
  document begins with id k (N - K) of the document and has up to N ids; the last chunk ends with
  the document. Each chunk becomes a document. A document without ids stays a document.
- A filter can shuffle documents.
- A `SplitSink` divides documents among several sinks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.special_options import SpecialOptions, ids_around
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.texts import replaced_bytes
from llmgpu.errors import InputError
from llmgpu.files import output_errors
from llmgpu.text.chat import Chat
from llmgpu.text.corpus import Corpus
from llmgpu.tokens.conversations import lengths_in_conversations
from llmgpu.tokens.sinks import TokenSink

_PIECE_IDS = 1 << 20
_SHUFFLING = 1 << 63  # added to the seed, so that shuffling and --split draw independently
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio
_NO_STARTS, _START = np.zeros(0, np.int64), np.zeros(1, np.int64)  # starts of a slice's documents

Slices = Iterator[EncodedSlice]
Filter = Callable[[Slices], Slices]


def masking(chat: Chat | None, vocabulary: Vocabulary) -> list[Filter]:
    """Return a list with the filter that limits the loss to the assistant's tokens, if any."""
    return [partial(with_masks, conversations=chat, vocabulary=vocabulary)] if chat else []


def with_masks(slices: Slices, conversations: Chat, vocabulary: Vocabulary) -> Slices:
    """Add masks to slices: an id counts in the loss if the assistant wrote any byte of it.

    The conversations of the slices come after all conversations so far, such as another corpus's.
    """
    lengths = lengths_in_conversations(vocabulary)
    position = conversations.text_bytes
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
            starts = piece.document_starts
            yield _slice_of(piece, slice(left), starts[starts < left], spans, closed=True)
            return
        left -= len(piece.ids)
        yield piece


def in_chunks(slices: Slices, most: int, overlap: int, spans: NDArray[np.int64]) -> Slices:
    """Cut documents into chunks of up to `most` ids; yield closed slices of whole chunks.

    most: 1 or more. overlap: ids that a chunk shares with the chunk before; 0 or more, below
    `most`. spans: number of text bytes that each id replaces, (vocabulary size,).
    """
    step = most - overlap
    # The last chunk of an open document, which may grow. Without an open document, no starts.
    held = EncodedSlice(np.empty(0, np.uint32), _NO_STARTS, mask=np.empty(0, np.bool_))
    for piece in slices:
        ids = np.concatenate([held.ids, piece.ids])
        mask = None if piece.mask is None else np.concatenate([held.mask, piece.mask])
        starts = np.concatenate([held.document_starts, piece.document_starts + len(held.ids)])
        joined = EncodedSlice(ids, starts, mask=mask)
        # counts: chunks of each document, without the last chunk of an open document.
        is_open = len(starts) > 0 and not piece.closed
        lengths = np.diff(np.append(starts, len(ids)))
        counts = np.maximum(0, -(-(lengths - most) // step))
        counts[: len(starts) - is_open] += 1
        if counts.any():
            yield _cut(joined, counts, most, step, spans)
        rest = int(starts[-1] + step * counts[-1]) if is_open else len(ids)
        held = _slice_of(joined, slice(rest, None), _START if is_open else _NO_STARTS, spans)
    if len(held.document_starts):
        yield replace(held, closed=True)


def _cut(
    piece: EncodedSlice, counts: NDArray[np.int64], most: int, step: int, spans: NDArray[np.int64]
) -> EncodedSlice:
    """Return the first chunks of the documents that start in a slice; counts: of each document."""
    starts = piece.document_starts
    # numbers: index of each chunk in its document; begins, ends: positions in the slice's ids.
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.repeat(starts, counts) + numbers * step
    ends = np.minimum(begins + most, np.repeat(np.append(starts[1:], len(piece.ids)), counts))
    sizes = ends - begins
    places = np.cumsum(sizes) - sizes  # starts of the chunks in the new slice
    at = np.arange(sizes.sum()) + np.repeat(begins - places, sizes)
    return _slice_of(piece, at, places, spans, closed=True)


def _slice_of(
    piece: EncodedSlice,
    at: slice | NDArray[Any],
    starts: NDArray[np.int64],
    spans: NDArray[np.int64],
    *,
    closed: bool = False,
) -> EncodedSlice:
    """Return a slice of selected ids and their mask.

    at: NumPy index of the ids. starts: document starts of the new slice. spans: number of text
    bytes that each id replaces. closed: see EncodedSlice.
    """
    ids, mask = piece.ids[at], None if piece.mask is None else piece.mask[at]
    return EncodedSlice(ids, starts, replaced_bytes(spans, ids), closed, mask)


def shuffled(
    slices: Slices,
    seed: int,
    spans: NDArray[np.int64],
    folder: str | None = None,
) -> Slices:
    """Yield documents in an order that depends only on the seed and the documents' numbers.

    Slices are stored before any document is yielded: ids in a temporary file, 4 bytes each, masks
    in a second file, and the starts of documents in memory.

    seed: 0 or more. spans: number of text bytes that each id replaces, (vocabulary size,). folder:
    folder of the temporary files.

    Raises OutputError if a temporary file can't be made or written.
    """
    import tempfile

    name = os.path.join(folder or tempfile.gettempdir(), "a temporary file")
    starts, count, has_mask = [_NO_STARTS], 0, False
    with ExitStack() as opened:
        with output_errors(name):
            ids = opened.enter_context(tempfile.TemporaryFile(dir=folder))
            masks = opened.enter_context(tempfile.TemporaryFile(dir=folder))
        # Store all slices.
        for piece in slices:
            with output_errors(name):
                ids.write(np.ascontiguousarray(piece.ids, np.uint32).data)
                if piece.mask is not None:
                    masks.write(piece.mask.tobytes())
                    has_mask = True
            starts.append(piece.document_starts + count)
            count += len(piece.ids)
        with output_errors(name):
            ids.flush()
            masks.flush()
        # Map the files into memory, and yield the documents in the drawn order.
        mask = _mapped(masks, np.bool_, count) if has_mask else None
        kept = EncodedSlice(_mapped(ids, np.uint32, count), np.concatenate(starts), mask=mask)
        yield from _drawn_order(kept, seed, spans)


def _mapped(file: Any, kind: type, count: int) -> NDArray[Any]:
    return np.memmap(file, kind, "r") if count else np.empty(0, kind)  # no empty file can be mapped


def _drawn_order(piece: EncodedSlice, seed: int, spans: NDArray[np.int64]) -> Slices:
    """Yield the documents of a slice in the drawn order, in slices of bounded size."""
    # lengths: ids of each document, by old number. order: old numbers in the drawn order.
    # begins, ends: positions of documents in the drawn order.
    starts, size = piece.document_starts, len(piece.ids)
    lengths = np.diff(np.append(starts, size))
    numbers = np.arange(len(starts), dtype=np.uint64)
    order = np.argsort(uniform(seed + _SHUFFLING, numbers), kind="stable")
    ends = np.cumsum(lengths[order])
    begins = ends - lengths[order]
    # The old position of an id minus its new position, for each document.
    shifts = starts[order] - begins
    for begin in range(0, size, _PIECE_IDS):
        end = min(size, begin + _PIECE_IDS)
        low, high = np.searchsorted(ends, begin, "right"), np.searchsorted(begins, end, "left")
        # inside: ids of each document in this slice. at: old position of each id of the slice.
        inside = np.minimum(ends[low:high], end) - np.maximum(begins[low:high], begin)
        at = np.arange(begin, end) + np.repeat(shifts[low:high], np.maximum(inside, 0))
        first = np.searchsorted(begins, begin, "left")
        yield _slice_of(piece, at, begins[first:high] - begin, spans)
    # Yield the documents without ids at the end, which begin after the last id.
    empty = len(begins) - int(np.searchsorted(begins, size, "left"))
    yield _slice_of(piece, slice(0), np.zeros(empty, np.int64), spans)


def uniform(seed: int, numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return a value in [0, 1) for each number, by SplitMix64 of the seed and the number."""
    mixed = numbers * np.uint64(_GOLDEN) + np.uint64((seed * 0xD1B54A32D192ED03 + _GOLDEN) & _MASK)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def spans_without(vocabulary: Vocabulary, special: SpecialOptions) -> NDArray[np.int64]:
    """Return how many text bytes each id replaces; 0 for the tokens around documents.

    Raises VocabularyError for a token that the vocabulary does not have.
    """
    spans = vocabulary.token_spans.copy()
    for ids in ids_around(vocabulary, special):
        spans[ids] = 0
    return spans


def split_name(output: str, split: str) -> str:
    """Return the name of the file of a split.

    For "val", this is val.bin beside train.bin, and x-val.bin beside x.bin.
    """
    folder, name = os.path.split(output)
    stem, ending = os.path.splitext(name)
    begin = re.sub(r"train$", "", stem)
    return os.path.join(folder, f"{begin if begin != stem else f'{stem}-'}{split}{ending}")


# A function that gets numbers of documents, uint64 (n,), and returns the index of each document's
# sink, int64 (n,).
Owners = Callable[[NDArray[np.uint64]], NDArray[np.int64]]


def drawn_owners(shares: Sequence[float], seed: int) -> Owners:
    """Return a function that draws the sink of each document by a seed.

    shares: shares of documents for the sinks after the first, each above 0, their sum below 1. The
    first sink gets all other documents. seed: 0 or more.
    """
    edges = np.cumsum(shares)

    def owners(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        drawn = np.searchsorted(edges, uniform(seed, numbers), side="right") + 1
        drawn[drawn > len(edges)] = 0
        return drawn

    return owners


def owners_by_file(text: Corpus, firsts: Sequence[int]) -> Owners:
    """Return a function that chooses the sink of each document by the document's file.

    firsts: for each sink after the first, the number of its first file in the corpus, ascending.
    """

    def owners(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        begun = [text.begun[first].documents for first in firsts if first < len(text.begun)]
        return np.searchsorted(np.array(begun, np.uint64), numbers, side="right")

    return owners


class SplitSink(TokenSink):
    """Divides documents among several sinks.

    The sink of a document depends only on the document's number, not on slices or devices.
    """

    def __init__(
        self,
        sinks: Sequence[TokenSink],
        owners: Owners,
        spans: NDArray[np.int64],
    ) -> None:
        """Write documents to the sinks that `owners` chooses.

        spans: number of text bytes that each id replaces, (vocabulary size,).
        """
        super().__init__()
        self.sinks = sinks
        self._owners = owners
        self._spans = spans
        self._open = 0  # index of the sink of the current document

    def _write(self, piece: EncodedSlice) -> None:
        # numbers: of the documents that start in the slice. drawn: their sinks, int64 (starts,).
        # owners: `drawn` after the sink of the open document. of_id: the sink of each id.
        starts, size = piece.document_starts, len(piece.ids)
        numbers = np.arange(self.documents, self.documents + len(starts), dtype=np.uint64)
        drawn = self._owners(numbers)
        owners = np.concatenate([[self._open], drawn])
        of_id = np.repeat(owners, np.diff(np.concatenate([[0], starts, [size]])))
        self._open = int(owners[-1])
        for number, sink in enumerate(self.sinks):
            mine, own = of_id == number, drawn == number
            if not (mine.any() or own.any()):
                continue
            # before: the number of the sink's ids before each position of the slice.
            before = np.concatenate([[0], np.cumsum(mine)])
            closed = piece.closed and self._open == number
            sink.write(_slice_of(piece, mine, before[starts[own]], self._spans, closed=closed))

    def close(self) -> None:
        """Close all sinks. If closing a sink fails, abort the remaining sinks."""
        with ExitStack() as stack:
            for sink in reversed(self.sinks):
                stack.push(sink)

    def abort(self) -> None:
        """Abort all sinks."""
        for sink in self.sinks:
            sink.abort()


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise InputError if the shares of the splits leave no documents for the output itself."""
    total = sum(shares.values())
    if total >= 1:
        raise InputError(
            f"the splits take {100 * total:g}% of the documents: leave some for the rest"
        )
