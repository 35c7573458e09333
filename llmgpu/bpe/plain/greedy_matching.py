"""Greedy matching on NumPy: the longest token first.

Long words are matched block by block, all blocks at once. The tokens of a block depend on its
bytes, on those after it that a token may reach, and on the offset at which the first token starts.
The offset is known only when the block before is done, so:

- Matching starts at the first byte of every block, as a guess. Where the tokens of a block end
  after it, they give an offset in the next; such offsets are tried in all blocks, since a text
  that repeats itself enters its blocks alike. Most paths soon meet an earlier one and end there.
  After a few guesses the remaining offsets are tried all together.
- No position of a block is matched twice, and blocks of equal bytes are matched once. So a long
  run is cheap, and no text takes more than a match at every position.
- Finally each word is followed from path to path, a few steps per block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges
from llmgpu.bpe.encoding.matching import Matches, TrieMatcher, Words
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

BLOCK = 256  # bytes
GUESSES = 4  # rounds of the offsets met so far, before all are tried


class GreedyMatcher:
    """Finds the tokens of words by taking the longest one again and again."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare for the tokens of a vocabulary."""
        self._trie = TrieMatcher(vocabulary.trie, vocabulary.unknown_token)

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Match words, each from its start to its stop."""
        return self._trie.match(text, words)

    def match_long(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Match words of any length, one or more, each from its start to its stop.

        Memory: about 30 bytes for each byte from the first word's start to the last one's limit.
        """
        first, last = int(words.starts[0]), int(words.limits[-1])
        words = Words(words.starts - first, words.stops - first, words.limits - first)
        text = text[first:last]
        blocks = _cut(words)
        distinct, which = _distinct(blocks, text, self._trie.longest_token)
        paths = _Paths(self._trie, text, blocks.take(distinct))
        paths.follow_all()
        matches = _chain(paths, words, blocks.counts, which.tolist())
        return Matches(matches.ids, matches.counts, matches.exits + first)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Blocks of words, ascending.

    starts, ends: int64 (blocks,).
    limits: int64 (blocks,), of each block's word: no token ends after it.
    counts: int64 (words,), blocks of each word; empty if only some blocks of words are here.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    limits: NDArray[np.int64]
    counts: NDArray[np.int64]

    def take(self, which: NDArray[np.int64]) -> _Blocks:
        none = np.empty(0, np.int64)
        return _Blocks(self.starts[which], self.ends[which], self.limits[which], none)


def _cut(words: Words) -> _Blocks:
    """Cut words into blocks, from their starts on."""
    counts = -(-(words.stops - words.starts) // BLOCK)
    in_word = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(words.starts, counts) + in_word * BLOCK
    ends = np.minimum(starts + BLOCK, np.repeat(words.stops, counts))
    return _Blocks(starts, ends, np.repeat(words.limits, counts), counts)


def _distinct(
    blocks: _Blocks, text: NDArray[np.uint8], reach: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the blocks that differ in their bytes, or in the up to `reach` bytes after them.

    Returns the blocks to match, and for each block which of those it equals.
    """
    contents_end = np.minimum(blocks.ends + reach, blocks.limits)
    spans = zip(blocks.starts.tolist(), blocks.ends.tolist(), contents_end.tolist(), strict=True)
    data = text.tobytes()
    known: dict[tuple[bytes, int], int] = {}
    numbers = [
        known.setdefault((data[start:content_end], end - start), len(known))
        for start, end, content_end in spans
    ]
    _, distinct, which = np.unique(numbers, return_index=True, return_inverse=True)
    return distinct, which


class _Paths:
    """Sequences of tokens, each inside a block.

    A path ends where its block does, or where it comes upon another path.
    """

    def __init__(self, matcher: TrieMatcher, text: NDArray[np.uint8], blocks: _Blocks) -> None:
        self.blocks = blocks
        self.ends = GrowableArray(np.int64)  # by path
        self._matcher = matcher
        self._text = text
        # At each position: the token that starts there, and 1 + the path it belongs to (0: none).
        self._tokens = np.empty(len(text), np.uint32)
        self._owners = np.zeros(len(text), np.int32)

    def owner(self, position: int) -> int:
        """Return the path that has a token at this position."""
        return int(self._owners[position]) - 1

    def follow_all(self) -> None:
        """Find paths at every offset at which a block may be entered."""
        tried = np.zeros(BLOCK, np.bool_)
        offsets = np.zeros(1, np.int64)
        for guess in range(GUESSES + 2):
            if guess > GUESSES:
                offsets = np.flatnonzero(~tried[: self._matcher.longest_token])
            if len(offsets) == 0:
                break
            tried[offsets] = True
            offsets = self._follow(offsets)
            offsets = offsets[~tried[offsets]]

    def _follow(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Start paths at these offsets of every block; return the offsets in the next they lead to.

        A token may reach over a whole block, so offsets count from the start of the last one it
        enters.
        """
        blocks = self.blocks
        at = (blocks.starts[:, np.newaxis] + offsets).ravel()
        block = np.repeat(np.arange(len(blocks.starts)), len(offsets))
        fresh = at < blocks.ends[block]
        fresh[fresh] = self._owners[at[fresh]] == 0
        at, block = at[fresh], block[fresh]
        known = len(self.ends)
        self.ends.append(at)
        paths = np.arange(known, known + len(at), dtype=np.int32)
        self._owners[at] = paths + 1
        self._advance(paths, at, block)
        beyond = self.ends.values[known:] - blocks.ends[block]
        return np.unique(beyond[beyond >= 0] % BLOCK)

    def _advance(
        self, paths: NDArray[np.int32], at: NDArray[np.int64], block: NDArray[np.int64]
    ) -> None:
        """Follow paths, each from a distinct position of a block, until they end."""
        ends, limits = self.blocks.ends[block], self.blocks.limits[block]
        while len(at):
            self._tokens[at], lengths = self._matcher.longest(self._text, at, limits)
            at = at + lengths
            self.ends.values[paths] = at
            more = at < ends
            more[more] = self._owners[at[more]] == 0
            at, ends, limits, paths = at[more], ends[more], limits[more], paths[more]
            # Of several paths that meet here, one is written and continues.
            self._owners[at] = paths + 1
            more = self._owners[at] == paths + 1
            at, ends, limits, paths = at[more], ends[more], limits[more], paths[more]

    def tokens(
        self, paths: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the tokens of paths, each from the position where it is entered, and their number.

        paths, entries: int64 (n,), in any order, with repeats.
        """
        positions = np.flatnonzero(self._owners)
        keys = (self._owners[positions].astype(np.int64) - 1) * len(self._owners) + positions
        order = np.argsort(keys)
        keys = keys[order]
        firsts = np.searchsorted(keys, paths * len(self._owners) + entries)
        counts = np.searchsorted(keys, (paths + 1) * len(self._owners)) - firsts
        return concatenate_ranges(self._tokens[positions[order]], firsts, counts), counts


def _chain(paths: _Paths, words: Words, blocks: NDArray[np.int64], which: list[int]) -> Matches:
    """Go through the words from path to path.

    blocks: int64 (words,), blocks of each word. which: by block, the one that stands for it.
    """
    starts, ends = paths.blocks.starts.tolist(), paths.blocks.ends.tolist()
    path_ends = paths.ends.values.tolist()
    taken: list[int] = []
    entries: list[int] = []
    first_taken: list[int] = []  # by word
    offsets: list[int] = []  # by word, of its last token's end after its stop
    first = 0
    for last in np.cumsum(blocks).tolist():
        first_taken.append(len(taken))
        offset = 0
        for block in which[first:last]:
            at = starts[block] + offset
            while at < ends[block]:
                path = paths.owner(at)
                taken.append(path)
                entries.append(at)
                at = path_ends[path]
            offset = at - ends[block]
        offsets.append(offset)
        first = last
    ids, counts = paths.tokens(np.array(taken, np.int64), np.array(entries, np.int64))
    return Matches(ids, np.add.reduceat(counts, first_taken), words.stops + np.array(offsets))
