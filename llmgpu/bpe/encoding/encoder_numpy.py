"""The encoder on NumPy: threads encode slices side by side, with one table of words for all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.bpe_matching import BpeMatcher
from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, new_ids
from llmgpu.bpe.encoding.matching import Matcher
from llmgpu.bpe.encoding.slice_encoder import SliceEncoder, stream_lookahead
from llmgpu.bpe.plain.greedy_matching import GreedyMatcher
from llmgpu.bpe.pretokens.slices import SliceReader
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import TextSource

SLICE_BYTES = 4 << 20


class NumpyEncoder:
    """Encodes texts with a vocabulary, one text at a time.

    Memory: that of `EncodedWords` and, for each thread, 60 bytes for each byte of a slice.
    """

    def __init__(
        self, vocabulary: Vocabulary, slice_bytes: int = SLICE_BYTES, threads: int = 1
    ) -> None:
        """Prepare for encoding with `vocabulary`, `slice_bytes` (1 or more) at a time.

        The ids depend neither on that nor on the number of threads.
        """
        self._vocabulary = vocabulary
        self._slice_bytes = slice_bytes
        self._lookahead = stream_lookahead(vocabulary)
        if self._lookahead is not None:
            threads = 1  # a slice needs to know where the last token of the one before ends
        self._threads = threads
        self._slices = SliceEncoder(vocabulary, _make_matcher(vocabulary))

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        if self._threads == 1:
            yield from self._encode_alone(source)
            return
        reader = SliceReader(source, self._vocabulary.pattern)
        room = self._slice_bytes + PADDING
        # One buffer more than threads: the next slice is read while all of them work.
        buffers = [np.empty(room, np.uint8) for _ in range(self._threads + 1)]
        offset = 0
        pending: deque[tuple[Future[tuple[EncodedSlice, int]], NDArray[np.uint8]]] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            while (piece := reader.read(buffers.pop())) is not None:
                encoded = pool.submit(self._slices.encode, piece, 0, offset)
                pending.append((encoded, piece.buffer))
                offset += piece.main_end
                # A short slice is all that a pipe held, and its writer may wait for the answer: do
                # not keep its ids back until the buffers are used up.
                patient = piece.length > self._slice_bytes // 2
                while pending and not (patient and buffers):
                    encoded, buffer = pending.popleft()
                    yield encoded.result()[0]
                    buffers.append(buffer)
            for encoded, _ in pending:
                yield encoded.result()[0]

    def _encode_alone(self, source: TextSource) -> Iterator[EncodedSlice]:
        reader = SliceReader(source, self._vocabulary.pattern, self._lookahead)
        buffer = np.empty(self._slice_bytes + (self._lookahead or 0) + PADDING, np.uint8)
        entry = offset = 0
        while (piece := reader.read(buffer)) is not None:
            encoded, stopped = self._slices.encode(piece, entry, offset)
            # The last token may reach into the next slice, whose first token then starts later.
            entry = max(stopped, entry) - piece.main_end
            offset += piece.main_end
            yield encoded


def _make_matcher(vocabulary: Vocabulary) -> Matcher:
    return GreedyMatcher(vocabulary) if vocabulary.match == "greedy" else BpeMatcher(vocabulary)
