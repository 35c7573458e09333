"""Greedy matching on NumPy: the longest token first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.matching import Matches, TrieMatcher, Words
from llmgpu.bpe.plain.greedy_long_words import match_long
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary


class GreedyMatcher:
    """Finds the tokens of words by taking the longest one again and again."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare for the tokens of a vocabulary."""
        self._trie = TrieMatcher(vocabulary.trie, vocabulary.unknown_token)

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Match words, each from its start to its stop."""
        return self._trie.match(text, words)

    def match_long(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Match words of any length, one or more, each from its start to its stop."""
        return match_long(self._trie, text, words)
