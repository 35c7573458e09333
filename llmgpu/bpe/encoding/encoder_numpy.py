"""The encoder on NumPy: slices cut into words, and each distinct word matched once.

Threads encode slices side by side, with one table of words for all.

- A slice's pre-tokens are cut further where no token can lie across; the parts are its words. Their
  ids come from a table of distinct words. Encoders on
  a device hand over the slices that they cannot do.
- A word of more than LONGEST_KEPT bytes is matched in place. Where a text is cut anywhere, so is a
  word that extends past the slice's main part: its tokens that start in the main part belong to
  this slice, and the next slice starts where the last of them ends.

Cutting a word in two is exact:

- A token lies across a place only if the bytes around the place are neighbours in that token. Where
  they are neighbours in no token, no merge crosses the place and no longest token does, so the text
  before it and the text after it get their tokens independently. Long words become parts that a
  text repeats, which pays off in scripts without spaces.
- A word that is a token may be taken whole even if no merges lead to it. A part of a word may not,
  so no cut yields a part of such a token.
- Only places before a byte of 0xC0 or more are considered, where a character beyond ASCII starts.
  What decides is the byte before, that byte, and the one after.

Words and their ids are cached across slices, for any number of threads:

- Threads look words up in parallel. One at a time numbers words that are new to the table; it then
  matches them while the others continue.
- A thread that comes across new words of another thread waits until they are matched. It matches
  its own new words first, so no two threads wait for each other.
- Once the table is too large, the next slice starts a new one; slices in progress keep theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, ranges
from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.encoder_host import HostEncoder, require_tokens
from llmgpu.bpe.encoding.matching import BpeMatcher, Matcher, Words
from llmgpu.bpe.plain.greedy_matching import GreedyMatcher
from llmgpu.bpe.pretokens.pattern import start_mask
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.word_table import LONGEST_HASHED, WordTable

MAX_TABLE_WORDS = 1 << 20
MAX_TABLE_BYTES = 64 << 20
MAX_TABLE_IDS = 16 << 20
_SPAN = 1 << 16  # words looked up before the new ones among them are numbered
_COPIED = 1 << 15  # words whose ids are copied at a time
_FEW_IDS = 4  # most words have no more


class EncodedWords:
    """Returns the ids of words. Memory: up to about 350 MB, and twice that while threads change
    from one table to the next.
    """

    def __init__(self, matcher: Matcher) -> None:
        """Start with no words; `matcher` finds the tokens of new ones."""
        self._matcher = matcher
        self._lock = threading.Lock()
        self._kept = _Kept()

    def encode(
        self, padded: NDArray[np.uint8], words: Words
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
        """Return the ids of all words in order, and how many each has.

        padded: uint8, the words' text and PADDING bytes after it.
        """
        with self._lock:
            if self._kept.is_full():
                self._kept = _Kept()
            kept = self._kept
        return kept.encode(self._matcher, padded, words)


class _Kept:
    """A table of words, and the ids of those that are matched."""

    def __init__(self) -> None:
        self._table = WordTable()
        self._ids = GrowableArray(np.uint32)  # of word k: ids[firsts[k] : firsts[k] + counts[k]]
        self._firsts = GrowableArray(np.uint32)
        self._counts = GrowableArray(np.uint16)  # a word has no more ids than bytes
        self._changed = threading.Condition()  # its holder may change all of these
        self._unmatched: set[int] = set()  # first numbers of words that are being matched
        self._error: BaseException | None = None  # why some words will never be matched

    def is_full(self) -> bool:
        """Return whether it is time for a new table."""
        table = self._table
        full = len(table) > MAX_TABLE_WORDS or len(table.data) > MAX_TABLE_BYTES
        return full or len(self._ids) > MAX_TABLE_IDS or self._error is not None

    def encode(
        self, matcher: Matcher, padded: NDArray[np.uint8], words: Words
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
        """Do what `EncodedWords.encode` says."""
        numbers = np.empty(len(words.starts), np.int64)
        try:
            new, end = self._number(padded, words, numbers)
            self._match(matcher, new)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            raise
        with self._changed:
            self._changed.wait_for(lambda: self._error or min(self._unmatched, default=end) >= end)
            if self._error is not None:
                raise self._error
            ids, firsts, counts = self._ids.values, self._firsts.values, self._counts.values
        return _copy(ids, firsts, counts, numbers)

    def _number(
        self, padded: NDArray[np.uint8], words: Words, numbers: NDArray[np.int64]
    ) -> tuple[list[tuple[int, int]], int]:
        """Write the numbers of words; return the ranges of new ones, and the number of all.

        A few words at a time, so that most repeats of a new word are found.
        """
        new = []
        for first in range(0, len(numbers), _SPAN):
            span = slice(first, first + _SPAN)
            starts, limits = words.starts[span], words.limits[span]
            numbers[span], missing = self._table.find(padded, starts, limits)
            if len(missing.which):
                with self._changed:
                    known = len(self._table)
                    self._table.insert(padded, missing, numbers[span])
                    if known < len(self._table):
                        self._unmatched.add(known)
                        new.append((known, len(self._table)))
        with self._changed:
            end = len(self._table)
            room = np.zeros(end - len(self._firsts), np.uint16)
            self._firsts.append(room)
            self._counts.append(room)
        return new, end

    def _match(self, matcher: Matcher, new: list[tuple[int, int]]) -> None:
        """Find the ids of ranges of words."""
        if not new:
            return
        numbers = np.concatenate([np.arange(first, last) for first, last in new])
        with self._changed:
            data, offsets = self._table.data, self._table.offsets
        starts, ends = offsets[numbers], offsets[numbers + 1]
        matches = matcher.match(data, Words(starts, ends, ends))
        with self._changed:
            firsts = len(self._ids) + np.cumsum(matches.counts) - matches.counts
            self._firsts.values[numbers] = firsts
            self._counts.values[numbers] = matches.counts
            self._ids.append(matches.ids)
            self._unmatched.difference_update(first for first, _ in new)
            self._changed.notify_all()


def _copy(
    ids: NDArray[np.uint32],
    firsts: NDArray[np.uint32],
    counts: NDArray[np.uint16],
    numbers: NDArray[np.int64],
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Return the ids of words by their numbers, end to end, and how many each has."""
    counts = np.take(counts, numbers, mode="clip")
    result = np.empty(int(counts.sum(dtype=np.int64)), np.uint32)
    done = 0
    # Block by block: intermediate arrays stay in the processor's cache.
    for first in range(0, len(numbers), _COPIED):
        block = slice(first, first + _COPIED)
        done += _copy_block(ids, np.take(firsts, numbers[block]), counts[block], result[done:])
    return result, counts


def _copy_block(
    ids: NDArray[np.uint32],
    firsts: NDArray[np.uint32],
    counts: NDArray[np.uint16],
    result: NDArray[np.uint32],
) -> int:
    """Write the ids of words, `counts` from `firsts` on each; return their number.

    Most words have one id, and few have more than _FEW_IDS.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1])
    at, source = np.subtract(ends, counts, out=ends), firsts.astype(np.int64)
    # One pass for each of the first ids of a word, then one gather for the rest.
    result[at] = np.take(ids, source, mode="clip")
    for done in range(1, _FEW_IDS):
        more = np.flatnonzero(counts > done)
        at, source, counts = at[more], source[more], counts[more]
        result[at + done] = ids[source + done]
    more = np.flatnonzero(counts > _FEW_IDS)
    left = counts[more].astype(np.int64) - _FEW_IDS
    result[ranges(at[more] + _FEW_IDS, left)] = ids[ranges(source[more] + _FEW_IDS, left)]
    return total


LONGEST_KEPT = LONGEST_HASHED  # bytes of a word that is kept in the table
_FIRST_LEAD = 0xC0  # lead bytes, before which words are cut, start here
_LEAD_MASK = 0x3F  # the bits that tell lead bytes apart
_BLOCK = 1 << 18  # bytes examined at a time


class SliceEncoder:
    """Encodes slices in any number of threads, with one table of words for all of them."""

    def __init__(self, vocabulary: Vocabulary, matcher: Matcher) -> None:
        """Start with an empty table; `matcher` finds the tokens of new words."""
        self._vocabulary = vocabulary
        self._matcher = matcher
        unmerged = (
            matcher.unmerged_tokens() if isinstance(matcher, BpeMatcher) else np.empty(0, np.int64)
        )
        self._safe_cuts = SafeCuts(vocabulary, unmerged)
        self._words = EncodedWords(matcher)

    def encode(
        self, piece: Slice, entry: int, memory: NDArray[np.uint32] | None = None
    ) -> tuple[EncodedSlice, int]:
        """Return the ids of a slice, and where its last token ends.

        entry: where in the slice the first token starts.

        Raises NoTokenError for a byte without a token if the vocabulary has no unknown token.
        """
        words = self._words_of(piece, entry)
        ids, counts, stopped = self._encode_words(piece, words)
        require_tokens(self._vocabulary, piece, ids, entry)
        starts = _document_starts(piece, words, counts)
        return EncodedSlice(ids, starts, piece.main_end, piece.closed), stopped

    def match_words(self, words: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint32]]:
        """Return the ids of each of some words, one or more."""
        lengths = np.array([len(word) for word in words])
        ends = np.cumsum(lengths)
        matches = self._matcher.match_long(np.concatenate(words), Words(ends - lengths, ends, ends))
        return np.split(matches.ids, np.cumsum(matches.counts)[:-1])

    def _words_of(self, piece: Slice, entry: int) -> Words:
        """Return the words of a slice from position `entry` on, where a token starts."""
        mask = start_mask(
            piece.text,
            self._vocabulary.cut,
            piece.starts,
            continues=piece.continues,
            closed=piece.closed,
        )
        self._safe_cuts.mark(piece.text, mask)
        # The token that entered from the slice before ends at `entry`, and a word starts there.
        mask[:entry] = False
        mask[entry : entry + 1] = True
        bounds = np.append(np.flatnonzero(mask), piece.length)
        count = int(np.searchsorted(bounds[:-1], piece.main_end, side="left"))
        starts, limits = bounds[:count], bounds[1 : count + 1]
        # Tokens of the last word may end past the main part, but none may start there.
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
        # Match the words that are kept out of the table, then merge both kinds in text order.
        matches = self._matcher.match_long(piece.text, words.take(apart))
        kept_ids, kept_counts = self._words.encode(piece.buffer, words.take(~apart))
        counts = np.empty(len(apart), np.int64)
        counts[apart], counts[~apart] = matches.counts, kept_counts
        ids = np.empty(int(counts.sum()), np.uint32)
        of_apart = np.repeat(apart, counts)
        ids[of_apart], ids[~of_apart] = matches.ids, kept_ids
        return ids, counts, int(matches.exits[-1]) if apart[-1] else piece.main_end


def _document_starts(
    piece: Slice, words: Words, counts: NDArray[np.uint16] | NDArray[np.int64]
) -> NDArray[np.int64]:
    """Turn a slice's document starts, positions in its text, into positions in its ids."""
    if len(piece.document_starts) == 0:
        return np.empty(0, np.int64)
    before = np.zeros(len(counts) + 1, np.int64)  # tokens before each word
    np.cumsum(counts, out=before[1:])
    return before[np.searchsorted(words.starts, piece.document_starts, side="left")]


class SafeCuts:
    """The places where the words of a vocabulary may be cut. Memory: 4 MB."""

    def __init__(self, vocabulary: Vocabulary, unmerged: NDArray[np.int64]) -> None:
        """Make the table of a vocabulary.

        unmerged: int64, ids of the tokens that are taken whole and that no merges lead to.
        """
        # Indexed by lead byte, the byte before and the byte after: whether a cut is unsafe.
        self._joined = np.zeros((_LEAD_MASK + 1, 256, 256), np.bool_)
        # The bytes of an unknown token are not those of the text, nor are those of its merges.
        self._possible = vocabulary.match == "greedy" or not (
            vocabulary.unknown_token is not None and vocabulary.missing_bytes()
        )
        data, offsets = vocabulary.token_data, vocabulary.token_offsets
        first, last = np.zeros((2, len(data) + 1), np.bool_)
        first[offsets[:-1]] = True
        last[offsets[1:] - 1] = True
        # Every lead byte inside a token joins the bytes around it. At the token's end any byte may
        # follow.
        leads = np.flatnonzero((data >= _FIRST_LEAD) & ~first[:-1])
        at_end = last[leads]
        inside, ends = leads[~at_end], leads[at_end]
        self._joined[data[inside] & _LEAD_MASK, data[inside - 1], data[inside + 1]] = True
        self._joined[data[ends] & _LEAD_MASK, data[ends - 1]] = True
        # No cut may start or end a part that spells a token which is only taken whole.
        self._joined[:, data[offsets[unmerged + 1] - 1]] = True
        begins = offsets[unmerged]
        begins = begins[data[begins] >= _FIRST_LEAD]
        self._joined[data[begins] & _LEAD_MASK, :, data[begins + 1]] = True

    def mark(self, text: NDArray[np.uint8], starts: NDArray[np.bool_]) -> None:
        """Mark the safe places of a text in addition to those where its words start.

        text: uint8 (n,). starts: bool (n,). Text that follows does not matter.
        """
        if not self._possible:
            return
        for first in range(0, len(text), _BLOCK):
            block = slice(max(0, first - 2), first + _BLOCK)
            self._mark_block(text[block], starts[block])

    def _mark_block(self, text: NDArray[np.uint8], starts: NDArray[np.bool_]) -> None:
        before = np.flatnonzero(text[1:-1] >= _FIRST_LEAD)
        # Flat index into the table: lead byte, byte before, byte after.
        codes = np.take(text[1:], before).astype(np.int64)
        codes &= _LEAD_MASK
        codes <<= 8
        codes |= np.take(text, before)
        codes <<= 8
        codes |= np.take(text[2:], before)
        cuts = np.flatnonzero(~np.take(self._joined.reshape(-1), codes))
        starts[1:][np.take(before, cuts)] = True


SLICE_BYTES = 4 << 20


class NumpyEncoder(HostEncoder):
    """Encodes texts with a vocabulary, one text at a time.

    Memory: that of `EncodedWords` and, for each thread, 60 bytes for each byte of a slice.
    """

    def __init__(
        self, vocabulary: Vocabulary, slice_bytes: int = SLICE_BYTES, threads: int = 1
    ) -> None:
        """Prepare for encoding with `vocabulary`; see `HostEncoder`."""
        slices = SliceEncoder(vocabulary, _make_matcher(vocabulary))
        super().__init__(vocabulary, slices, slice_bytes, threads)


def _make_matcher(vocabulary: Vocabulary) -> Matcher:
    return GreedyMatcher(vocabulary) if vocabulary.match == "greedy" else BpeMatcher(vocabulary)
