"""The encoder on NumPy: a text's distinct words are matched once, then their ids are copied.

- A slice's pre-tokens, cut further where no token can lie across, are its words. They are looked up
  in a table of distinct words, which all threads share; new ones are matched together. The ids of
  the text are then copied from those of the words.
- A word of more than LONGEST_KEPT bytes is matched where it stands. So is, where a text is cut
  anywhere, a word that goes on behind the slice's main part: its tokens up to there belong to this
  slice, and where the last of them ends the next slice starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.bpe_matching import BpeMatcher
from llmgpu.bpe.encoding.encoder import (
    Allocate,
    EncodedSlice,
    NoTokenError,
    new_ids,
    token_spans,
)
from llmgpu.bpe.encoding.matching import Matcher, Words
from llmgpu.bpe.encoding.safe_cuts import SafeCuts
from llmgpu.bpe.encoding.word_cache import EncodedWords
from llmgpu.bpe.plain.greedy_matching import GreedyMatcher
from llmgpu.bpe.pretokens.pattern import start_mask
from llmgpu.bpe.pretokens.slices import Slice, SliceReader
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.word_table import LONGEST_HASHED
from llmgpu.text.corpus import TextSource

SLICE_BYTES = 4 << 20
LONGEST_KEPT = LONGEST_HASHED  # bytes of a word that is kept in the table


class NumpyEncoder:
    """Encodes texts with a vocabulary, one text at a time.

    Memory: what `EncodedWords` takes and, for each thread, 60 bytes for each byte of a slice.
    """

    def __init__(
        self, vocabulary: Vocabulary, slice_bytes: int = SLICE_BYTES, threads: int = 1
    ) -> None:
        """Prepare for encoding with `vocabulary`, `slice_bytes` (1 or more) at a time.

        The ids depend neither on that nor on the number of threads.
        """
        self._vocabulary = vocabulary
        self._slice_bytes = slice_bytes
        matcher = make_matcher(vocabulary)
        self._lookahead = stream_lookahead(vocabulary)
        if self._lookahead is not None:
            threads = 1  # a slice needs to know where the last token of the one before ends
        self._threads = threads
        self._slices = SliceEncoder(vocabulary, matcher)

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order, each slice's as soon as it is read and done.

        Raises:
            InputError: a byte has no token and the vocabulary no unknown token; or the source's.
        """
        if self._threads == 1:
            yield from self._encode_alone(source)
            return
        reader = SliceReader(source, self._vocabulary.pattern)
        room = self._slice_bytes + PADDING
        buffers = [np.empty(room, np.uint8) for _ in range(self._threads + 1)]
        offset = 0
        pending: deque[tuple[Future[tuple[EncodedSlice, int]], NDArray[np.uint8]]] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            while (piece := reader.read(buffers.pop())) is not None:
                encoded = pool.submit(self._slices.encode, piece, 0, offset)
                pending.append((encoded, piece.buffer))
                offset += piece.main_end
                # A short slice is what a pipe had: who writes to it may wait for the answer.
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
            entry = max(stopped, entry) - piece.main_end
            offset += piece.main_end
            yield encoded


class SliceEncoder:
    """Encodes slices, in any number of threads, with one table of words for all of them."""

    def __init__(self, vocabulary: Vocabulary, matcher: Matcher) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        unmerged = (
            matcher.unmerged_tokens() if isinstance(matcher, BpeMatcher) else np.empty(0, np.int64)
        )
        self._safe_cuts = SafeCuts(vocabulary, unmerged)
        self._words = EncodedWords(matcher)

    def encode(self, piece: Slice, entry: int, offset: int) -> tuple[EncodedSlice, int]:
        """Return the ids of a slice, and where the last token ends.

        entry: position of the first token in the slice. offset: of the slice in the whole text.
        """
        words = self._words_of(piece, entry)
        ids, counts, stopped = self._encode_words(piece, words)
        self._require_tokens(piece.text, ids, entry, offset)
        starts = _document_starts(piece, words, counts)
        return EncodedSlice(ids, starts, piece.main_end, piece.closed), stopped

    def _words_of(self, piece: Slice, entry: int) -> Words:
        """Return the words of a slice from position `entry` on, where a token starts."""
        mask = start_mask(
            piece.text,
            self._vocabulary.pattern,
            piece.boundaries,
            continues=piece.continues,
            closed=piece.closed,
        )
        self._safe_cuts.mark(piece.text, mask)
        mask[:entry] = False
        mask[entry : entry + 1] = True
        bounds = np.append(np.flatnonzero(mask), piece.length)
        count = int(np.searchsorted(bounds[:-1], piece.main_end, side="left"))
        starts, limits = bounds[:count], bounds[1 : count + 1]
        stops = limits
        if count and limits[-1] > piece.main_end:
            stops = np.minimum(limits, piece.main_end)
        return Words(starts, stops, limits)

    def _encode_words(
        self, piece: Slice, words: Words
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16] | NDArray[np.int64], int]:
        """Return the ids of the words, how many each has, and where the last token ends."""
        if len(words.starts) == 0:
            return np.empty(0, np.uint32), np.empty(0, np.int64), 0
        apart = words.limits - words.starts > LONGEST_KEPT
        apart[-1] |= words.limits[-1] > piece.main_end
        if not apart.any():
            return *self._words.encode(piece.buffer, words), piece.main_end
        matches = self._matcher.match_long(piece.text, words.take(apart))
        kept_ids, kept_counts = self._words.encode(piece.buffer, words.take(~apart))
        counts = np.empty(len(apart), np.int64)
        counts[apart], counts[~apart] = matches.counts, kept_counts
        ids = np.empty(int(counts.sum()), np.uint32)
        of_apart = np.repeat(apart, counts)
        ids[of_apart], ids[~of_apart] = matches.ids, kept_ids
        return ids, counts, int(matches.exits[-1]) if apart[-1] else piece.main_end

    def _require_tokens(
        self, text: NDArray[np.uint8], ids: NDArray[np.uint32], entry: int, offset: int
    ) -> None:
        """Raise an InputError for the first byte that has no token."""
        if ids.max(initial=0) != NO_TOKEN:
            return
        before = ids[: np.argmax(ids == NO_TOKEN)]
        position = entry + int(token_spans(self._vocabulary)[before].sum())
        raise NoTokenError(int(text[position]), offset + position)


def make_matcher(vocabulary: Vocabulary) -> Matcher:
    """Return the matcher of a vocabulary's rule."""
    if vocabulary.match == "greedy":
        return GreedyMatcher(vocabulary)
    return BpeMatcher(vocabulary)


def stream_lookahead(vocabulary: Vocabulary) -> int | None:
    """Return the lookahead of slices that are cut anywhere, None if they are cut between words."""
    cut_anywhere = vocabulary.pattern == "none" and vocabulary.match == "greedy"
    return vocabulary.trie.longest if cut_anywhere else None


def _document_starts(
    piece: Slice, words: Words, counts: NDArray[np.uint16] | NDArray[np.int64]
) -> NDArray[np.int64]:
    """Turn a slice's document starts, positions in its text, into positions in its ids."""
    if len(piece.document_starts) == 0:
        return np.empty(0, np.int64)
    before = np.zeros(len(counts) + 1, np.int64)  # tokens in front of each word
    np.cumsum(counts, out=before[1:])
    return before[np.searchsorted(words.starts, piece.document_starts, side="left")]
