"""The encoder on NumPy: slices are cut into words, and each distinct word is matched once.

All threads share a table with the ids of the words of earlier slices. A slice has a main part and
lookahead, the text after the main part (`llmgpu.bpe.pretokens.slices`). In greedy matching
with pattern none, a slice may end within a word, and the word goes on in the lookahead. Tokens that
start in the main part belong to this slice, and the next slice starts at the end of the last such
token.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges
from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.encoder_host import HostEncoder, require_tokens
from llmgpu.bpe.encoding.matching import BpeMatcher, GreedyMatcher, Matcher, PieceMatcher
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.distinct_words import number_words

MAX_TABLE_BYTES = 256 << 20  # the largest table of words
_WORD_BYTES = 250  # memory of a word in bytes, besides its text and its ids
SLICE_BYTES = 4 << 20
# The ids of all words in order, uint32, and the number of ids of each word, int64 (words,).
Matches = tuple[NDArray[np.uint32], NDArray[np.int64]]


class _Table:
    """A table of words and their ids."""

    def __init__(self) -> None:
        self._known: dict[bytes, array[int]] = {}
        self.nbytes = 0

    def encode(
        self, matcher: Matcher, padded: NDArray[np.uint8], bounds: NDArray[np.int64]
    ) -> Matches:
        """Return the ids of the words between bounds, and the number of ids of each word.

        padded: uint8, the text and PADDING bytes. bounds: int64 (words + 1,): word k is at
        bounds[k] to bounds[k + 1].
        """
        # ids, counts: the ids of the distinct words of the text, and the number of ids of each.
        words, which = number_words(padded, bounds)
        ids, counts = array("I"), np.empty(len(words), np.int64)
        for number, word in enumerate(words):
            found = self._known.get(word)
            if found is None:
                found = self._known[word] = array("I", matcher.match_word(word))
                self.nbytes += len(word) + _WORD_BYTES + found.itemsize * len(found)
            ids += found
            counts[number] = len(found)
        firsts = np.cumsum(counts) - counts
        every, counts = np.frombuffer(ids, np.uint32), counts[which]
        return concatenate_ranges(every, firsts[which], counts), counts


class SliceEncoder:
    """Encodes slices in any number of threads, with one table of words for all threads."""

    is_parallel = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._matcher: Matcher
        if vocabulary.piece_symbols is not None:
            self._matcher = PieceMatcher(vocabulary.piece_symbols)
        else:
            make = GreedyMatcher if vocabulary.match == "greedy" else BpeMatcher
            self._matcher = make(vocabulary)
        self._lock = threading.Lock()
        self._table: _Table | None = None

    def encode(
        self, piece: Slice, entry: int, memory: NDArray[np.uint32] | None = None
    ) -> tuple[EncodedSlice, int]:
        """Return the ids of a slice, and the position at which the last token ends.

        entry: the position at which the first token starts.

        Raises NoTokenError for a byte without a token if the vocabulary has no unknown token.
        """
        bounds = self._word_bounds(piece, entry)
        (ids, counts), stopped = self._encode_words(piece, bounds)
        require_tokens(self._vocabulary, piece, ids, entry)
        # before[k]: number of ids before word k, int64 (words + 1,).
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        starts = before[np.searchsorted(bounds[:-1], piece.document_starts, side="left")]
        return EncodedSlice(ids, starts, piece.main_end, piece.closed), stopped

    def match_words(self, words: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint32]]:
        """Return the ids of each word; `words` is not empty."""
        return [np.array(self._matcher.match_word(each.tobytes()), np.uint32) for each in words]

    def _word_bounds(self, piece: Slice, entry: int) -> NDArray[np.int64]:
        """Return the starts of the words that start in the main part, then the last word's end.

        entry: position of the first token and word. Earlier words belong to the previous slice.
        """
        cut = self._vocabulary.cut
        mask = cut.start_mask(piece.text, piece.starts, continues=piece.continues)
        mask[:entry] = False
        mask[entry : entry + 1] = True
        bounds = np.append(np.flatnonzero(mask), piece.length)
        return bounds[: np.searchsorted(bounds[:-1], piece.main_end, side="left") + 1]

    def _encode_words(self, piece: Slice, bounds: NDArray[np.int64]) -> tuple[Matches, int]:
        """Return the ids of the words between bounds, and the end of the last token."""
        if bounds[-1] <= piece.main_end or len(bounds) == 1:
            return self._look_up(piece, bounds), piece.main_end
        assert isinstance(self._matcher, GreedyMatcher)  # only greedy matching cuts text anywhere
        begin, end = bounds[-2:].tolist()
        ids, counts = self._look_up(piece, bounds[:-1])
        word = piece.text[begin:end].tobytes()
        last, stopped = self._matcher.match_until(word, piece.main_end - begin)
        return (np.append(ids, last), np.append(counts, len(last))), begin + stopped

    def _look_up(self, piece: Slice, bounds: NDArray[np.int64]) -> Matches:
        """Return the ids of the words between bounds, and the number of ids of each word."""
        with self._lock:
            # Take the table away while it is changed, so that after an error no incomplete table is
            # used.
            table, self._table = self._table or _Table(), None
            matches = table.encode(self._matcher, piece.buffer, bounds)
            if table.nbytes < MAX_TABLE_BYTES:
                self._table = table
        return matches


class NumpyEncoder(HostEncoder):
    """Encodes texts with a vocabulary, one text at a time.

    Memory: twice MAX_TABLE_BYTES and, for each thread, 60 bytes for each byte of a slice.
    """

    def __init__(
        self, vocabulary: Vocabulary, slice_bytes: int = SLICE_BYTES, threads: int = 1
    ) -> None:
        """Prepare for encoding with `vocabulary`; see `HostEncoder`."""
        super().__init__(vocabulary, SliceEncoder(vocabulary), slice_bytes, threads)
