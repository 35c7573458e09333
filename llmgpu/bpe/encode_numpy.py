"""The encoder on NumPy: greedy matching of a text's distinct words, then a copy of their ids.

- A slice's pre-tokens ("words") are looked up in a table of distinct words; new ones are matched
  once, together. The ids of the text are then copied from those of the words. The table is kept
  over slices, and started anew before a slice when it has grown too large.
- A word of more than LONGEST_KEPT bytes is matched where it stands, and so is one that goes on
  behind the slice's main part: its tokens up to there belong to this slice, and the place where the
  last of them ends is where the next slice starts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges
from llmgpu.bpe.encoding import EncodedSlice, no_token_error, token_spans
from llmgpu.bpe.long_words import match_long
from llmgpu.bpe.matching import Matches, TrieMatcher, Words
from llmgpu.bpe.pattern import LOOKAHEAD, start_mask
from llmgpu.bpe.slices import Slice, SliceReader, TextSource
from llmgpu.bpe.trie import NO_TOKEN
from llmgpu.bpe.vocabulary import Vocabulary
from llmgpu.bpe.word_table import LONGEST_HASHED, WordTable

SLICE_BYTES = 4 << 20
LONGEST_KEPT = LONGEST_HASHED  # bytes of a word that is kept in the table
MAX_TABLE_WORDS = 1 << 20
MAX_TABLE_BYTES = 64 << 20


class NumpyEncoder:
    """Encodes texts with a vocabulary, one text at a time.

    Memory: up to about 250 MB for the table of words, and 100 bytes for each byte of a slice.
    """

    def __init__(self, vocabulary: Vocabulary, slice_bytes: int = SLICE_BYTES) -> None:
        """Prepare for encoding with `vocabulary`, `slice_bytes` (1 or more) at a time."""
        self._vocabulary = vocabulary
        self._slice_bytes = slice_bytes
        self._lookahead = vocabulary.trie.longest + LOOKAHEAD
        self._matcher = TrieMatcher(vocabulary.trie, vocabulary.unknown_token)
        self._words = _EncodedWords(self._matcher)

    def encode(self, source: TextSource) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order, each slice's as soon as it is read and done.

        Raises:
            InputError: a byte has no token and the vocabulary no unknown token; or the source's.
        """
        reader = SliceReader(source, self._lookahead)
        buffer = np.empty(self._slice_bytes + self._lookahead, np.uint8)
        entry = offset = 0
        while (piece := reader.read(buffer)) is not None:
            text = buffer[: piece.length]
            words = _words_of(text, piece, entry, self._vocabulary.pattern)
            ids, counts, stopped = self._encode_words(text, words, piece.main_end)
            self._require_tokens(text, ids, entry, offset)
            entry = max(stopped, entry) - piece.main_end
            offset += piece.main_end
            starts = _document_starts(piece, words, counts)
            yield EncodedSlice(ids, starts, piece.main_end, piece.closed)

    def _encode_words(
        self, text: NDArray[np.uint8], words: Words, main_end: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], int]:
        """Return the ids of the words, how many each has, and where the last token ends."""
        if len(words.starts) == 0:
            return np.empty(0, np.uint32), np.empty(0, np.int64), 0
        apart = words.limits - words.starts > LONGEST_KEPT
        apart[-1] |= words.limits[-1] > main_end
        if not apart.any():
            ids, counts = self._words.encode(text, words, None)
            return ids, counts, main_end
        matches = match_long(self._matcher, text, words.take(apart))
        ids, counts = self._words.encode(text, words, (apart, matches))
        return ids, counts, int(matches.exits[-1]) if apart[-1] else main_end

    def _require_tokens(
        self, text: NDArray[np.uint8], ids: NDArray[np.uint32], entry: int, offset: int
    ) -> None:
        """Raise an InputError for the first byte that has no token.

        entry: position of the first token in `text`. offset: of `text` in the whole text.
        """
        if ids.max(initial=0) != NO_TOKEN:
            return
        before = ids[: np.argmax(ids == NO_TOKEN)]
        position = entry + int(token_spans(self._vocabulary)[before].sum())
        raise no_token_error(int(text[position]), offset + position)


class _EncodedWords:
    """Words and their ids, kept over slices."""

    def __init__(self, matcher: TrieMatcher) -> None:
        self._matcher = matcher
        self._clear()

    def _clear(self) -> None:
        self._table = WordTable()
        self._ids = GrowableArray(np.uint32)  # of word k: ids[firsts[k] : firsts[k] + counts[k]]
        self._firsts = GrowableArray(np.int64)
        self._counts = GrowableArray(np.int64)

    def encode(
        self,
        text: NDArray[np.uint8],
        words: Words,
        apart: tuple[NDArray[np.bool_], Matches] | None,
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of all words in order, and how many each has.

        apart: which words are matched already, and their tokens.
        """
        if apart is None:
            numbers = self._number(text, words)
            firsts, counts = self._firsts.values[numbers], self._counts.values[numbers]
            return concatenate_ranges(self._ids.values, firsts, counts), counts
        matched, matches = apart
        numbers = self._number(text, words.take(~matched))
        firsts, counts = np.empty((2, len(matched)), np.int64)
        firsts[~matched], counts[~matched] = (
            self._firsts.values[numbers],
            self._counts.values[numbers],
        )
        # The ids of the words apart lie behind the others while all are copied.
        kept = len(self._ids)
        counts[matched] = matches.counts
        firsts[matched] = kept + np.cumsum(matches.counts) - matches.counts
        self._ids.append(matches.ids)
        ids = concatenate_ranges(self._ids.values, firsts, counts)
        self._ids.truncate(kept)
        return ids, counts

    def _number(self, text: NDArray[np.uint8], words: Words) -> NDArray[np.int64]:
        """Return the numbers of words, having matched those that are new."""
        if len(self._table) > MAX_TABLE_WORDS or len(self._table.data) > MAX_TABLE_BYTES:
            self._clear()
        known = len(self._table)
        numbers = self._table.number(text, words.starts, words.limits)
        starts, ends = self._table.offsets[known:-1], self._table.offsets[known + 1 :]
        matches = self._matcher.match(self._table.data, Words(starts, ends, ends))
        self._firsts.append(len(self._ids) + np.cumsum(matches.counts) - matches.counts)
        self._counts.append(matches.counts)
        self._ids.append(matches.ids)
        return numbers


def _words_of(text: NDArray[np.uint8], piece: Slice, entry: int, pattern: str) -> Words:
    """Return the words of a slice from position `entry` on, where a token starts."""
    mask = start_mask(text, pattern, piece.boundaries, piece.context, closed=piece.closed)
    bounds = np.flatnonzero(mask)
    bounds = np.append(bounds[np.searchsorted(bounds, entry, side="right") :], len(text))
    starts = np.concatenate([np.array([entry]), bounds[:-1]])
    count = int(np.searchsorted(starts, piece.main_end, side="left"))
    limits = bounds[:count]
    return Words(starts[:count], np.minimum(limits, piece.main_end), limits)


def _document_starts(piece: Slice, words: Words, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn a slice's document starts, positions in its text, into positions in its ids."""
    before = np.zeros(len(counts) + 1, np.int64)  # tokens in front of each word
    np.cumsum(counts, out=before[1:])
    return before[np.searchsorted(words.starts, piece.document_starts, side="left")]
