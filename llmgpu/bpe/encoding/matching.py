"""Matching on NumPy: words in, the tokens of each out, by merges.

A word that is a token is taken whole where the vocabulary says so. Other words are merged many at a
time, in rounds: in each, every word merges its pair of the lowest rank, the leftmost of several,
until it has no pair that merges. That is the definition. For a long word there is a heap, see
`long_words`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import blocks, ranges
from llmgpu.bpe.encoding.long_words import LongWordMerger
from llmgpu.bpe.encoding.pair_ranks import NO_RANK, byte_ids, pair_ranks
from llmgpu.bpe.vocabulary.recovery import ordinary_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

MOST_BYTES = 128  # of a word that is merged in rounds: there may be one for each of its bytes
_BLOCK = 1 << 18  # bytes of words that are merged at a time
_NO_TOKEN = -1  # of a word that is not taken whole

# The tokens of all words in order, uint32, and how many each word has, int64 (words,).
Matches = tuple[NDArray[np.uint32], NDArray[np.int64]]
_Symbols = tuple[NDArray[np.int64], NDArray[np.int32]]  # of which words they are, and their ids


class Matcher(Protocol):
    """Finds the tokens of words by one of the match rules."""

    def match(self, words: Sequence[bytes]) -> Matches:
        """Return the tokens of words; NO_TOKEN for a byte that has none."""
        ...


class BpeMatcher:
    """Finds the tokens of words by merging. Memory: about 100 bytes per pair that merges."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare for the merges of a vocabulary; VocabularyError if there are too many."""
        self._whole = ordinary_ranks(vocabulary) if vocabulary.takes_whole_tokens else {}
        self._pairs = pair_ranks(vocabulary)
        self._byte_ids = byte_ids(vocabulary)
        self._long_words = LongWordMerger(self._pairs, self._byte_ids)

    def match(self, words: Sequence[bytes]) -> Matches:
        """Return the tokens of words; NO_TOKEN for a byte that has none."""
        count = len(words)
        # Words are whole tokens, short, or long; each kind has its own way to ids.
        whole = np.fromiter((self._whole.get(word, _NO_TOKEN) for word in words), np.int32, count)
        lengths = np.fromiter(map(len, words), np.int64, count)
        counts = np.ones(count, np.int64)
        short = np.flatnonzero((whole == _NO_TOKEN) & (lengths <= MOST_BYTES))
        merged = self._merge_short([words[number] for number in short.tolist()], lengths[short])
        counts[short] = merged[1]
        longer = np.flatnonzero((whole == _NO_TOKEN) & (lengths > MOST_BYTES)).tolist()
        long_ids = [self._long_words.merge(np.frombuffer(words[k], np.uint8)) for k in longer]
        counts[longer] = [len(ids) for ids in long_ids]
        # Put the ids of the three kinds together in the order of the words.
        ids = np.repeat(whole.view(np.uint32), counts)
        firsts = np.cumsum(counts) - counts
        ids[ranges(firsts[short], counts[short])] = merged[0]
        for first, of_word in zip(firsts[longer].tolist(), long_ids, strict=True):
            ids[first : first + len(of_word)] = of_word
        return ids, counts

    def _merge_short(self, words: Sequence[bytes], lengths: NDArray[np.int64]) -> Matches:
        """Return the tokens of words of at most MOST_BYTES, of these lengths."""
        parts = [(np.empty(0, np.int64), np.empty(0, np.int32))]
        for block in blocks(lengths, _BLOCK):
            symbols = self._byte_ids[np.frombuffer(b"".join(words[block]), np.uint8)]
            parts += self._merge(
                np.repeat(np.arange(block.start, block.stop), lengths[block]), symbols
            )
        of_words, symbols = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(of_words, kind="stable")
        return symbols[order].view(np.uint32), np.bincount(of_words, minlength=len(words))

    def _merge(self, words: NDArray[np.int64], symbols: NDArray[np.int32]) -> list[_Symbols]:
        """Return the symbols that are left of words, those of a word in order and together.

        words: int64 (n,), ascending, the word of each symbol. symbols: int32 (n,), written to.
        """
        done = []
        ranks = np.full(len(words), NO_RANK, np.int32)  # of each symbol with the next in its word
        self._rank(ranks, words, symbols, np.arange(len(words)))
        while True:
            # Take out the words that are done.
            firsts = np.flatnonzero(np.diff(words, prepend=-1))
            best = np.minimum.reduceat(ranks, firsts)
            best = np.repeat(best, np.diff(firsts, append=len(words)))
            merging = best != NO_RANK
            done.append((words[~merging], symbols[~merging]))
            words, symbols, ranks, best = (
                values[merging] for values in (words, symbols, ranks, best)
            )
            if len(words) == 0:
                return done
            # Merge the leftmost pair of the lowest rank of each of the others.
            places = np.flatnonzero(ranks == best)
            places = places[np.diff(words[places], prepend=-1) > 0]
            symbols[places] = self._pairs.results[ranks[places]]
            words, symbols, ranks = (
                np.delete(values, places + 1) for values in (words, symbols, ranks)
            )
            # The new symbols make new pairs with their neighbours.
            places -= np.arange(len(places))
            ranks[places] = NO_RANK
            self._rank(ranks, words, symbols, np.concatenate([places - 1, places]))

    def _rank(
        self,
        ranks: NDArray[np.int32],
        words: NDArray[np.int64],
        symbols: NDArray[np.int32],
        places: NDArray[np.int64],
    ) -> None:
        """Write the ranks of the pairs that begin at places."""
        places = places[(places >= 0) & (places < len(words) - 1)]
        places = places[words[places] == words[places + 1]]
        ranks[places] = self._pairs.look_up(symbols[places], symbols[places + 1])
