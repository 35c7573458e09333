"""Encoding on the host: slices of a text, in threads, each encoded by one of the host's engines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, NoTokenError, new_ids
from llmgpu.bpe.pretokens.slices import Slice, SliceReader
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import TextSource


class HostSlices(Protocol):
    """Encodes slices in any number of threads."""

    def encode(self, piece: Slice, entry: int) -> tuple[EncodedSlice, int]:
        """Return the ids of a slice, and where its last token ends.

        entry: where in the slice the first token starts.

        Raises NoTokenError for a byte without a token if the vocabulary has no unknown token.
        """
        ...


class HostEncoder:
    """Encodes texts with a vocabulary, one text at a time.

    pattern: cuts the text. slices: encodes it, `slice_bytes` at a time in each of `threads`.
    """

    def __init__(
        self, vocabulary: Vocabulary, slices: HostSlices, slice_bytes: int, threads: int
    ) -> None:
        """Encode with `slices`, `slice_bytes` (1 or more) at a time in each of `threads`.

        The ids depend neither on that nor on the number of threads.
        """
        self.pattern = vocabulary.cut
        self.slice_bytes = slice_bytes
        self._lookahead = stream_lookahead(vocabulary)
        if self._lookahead is not None:
            threads = 1  # a slice needs to know where the last token of the one before ends
        self.threads = threads
        self.slices = slices

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        if self.threads == 1:
            yield from self._encode_alone(source, allocate)
            return
        reader = SliceReader(source, self.pattern)
        room = self.slice_bytes + PADDING
        # One buffer more than threads: the next slice is read while all of them work.
        buffers = [np.empty(room, np.uint8) for _ in range(self.threads + 1)]
        pending: deque[tuple[Future[tuple[EncodedSlice, int]], NDArray[np.uint8]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            while (piece := reader.read(buffers.pop())) is not None:
                encoded = pool.submit(self.slices.encode, piece, 0)
                pending.append((encoded, piece.buffer))
                # A short slice is all that a pipe held, and its writer may wait for the answer: do
                # not keep its ids back until the buffers are used up.
                patient = piece.length > self.slice_bytes // 2
                while pending and not (patient and buffers):
                    encoded, buffer = pending.popleft()
                    yield _settled(encoded.result()[0], allocate)
                    buffers.append(buffer)
            for encoded, _ in pending:
                yield _settled(encoded.result()[0], allocate)

    def _encode_alone(self, source: TextSource, allocate: Allocate) -> Iterator[EncodedSlice]:
        reader = SliceReader(source, self.pattern, self._lookahead)
        buffer = np.empty(self.slice_bytes + (self._lookahead or 0) + PADDING, np.uint8)
        entry = 0
        while (piece := reader.read(buffer)) is not None:
            encoded, stopped = self.slices.encode(piece, entry)
            # The last token may reach into the next slice, whose first token then starts later.
            entry = max(stopped, entry) - piece.main_end
            yield _settled(encoded, allocate)


def _settled(encoded: EncodedSlice, allocate: Allocate) -> EncodedSlice:
    """Return a slice with its ids in memory of their own, not in part of a larger array."""
    if encoded.ids.base is None:
        return encoded
    ids = allocate(len(encoded.ids))
    ids[:] = encoded.ids
    return replace(encoded, ids=ids)


def stream_lookahead(vocabulary: Vocabulary) -> int | None:
    """Return the lookahead of slices that are cut anywhere; None if they are cut between words."""
    cut_anywhere = vocabulary.pattern == "none" and vocabulary.match == "greedy"
    return vocabulary.trie.longest if cut_anywhere else None


def require_tokens(
    vocabulary: Vocabulary, piece: Slice, ids: NDArray[np.uint32], entry: int
) -> None:
    """Raise NoTokenError for the first byte of a slice that has no token: its id is NO_TOKEN.

    ids: of the slice. entry: where its first token starts.
    """
    if ids.max(initial=0) != NO_TOKEN:
        return
    before = ids[: np.argmax(ids == NO_TOKEN)]
    position = entry + int(vocabulary.token_spans[before].sum())
    raise NoTokenError(int(piece.text[position]), piece.offset + position)
