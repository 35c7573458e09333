"""Greedy matching on the host: the longest token first, by the nodes of the trie."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.matching import Matches
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary


class GreedyMatcher:
    """Splits words into tokens; at each position it chooses the longest token that matches."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie = vocabulary.trie
        unknown = vocabulary.unknown_token
        # The id of a byte at which no token begins.
        self._unknown = NO_TOKEN if unknown is None else unknown
        # By node: the id of the token that ends there, or NO_TOKEN.
        self._tokens = trie.nodes[:, 2].tolist()
        parents = np.repeat(np.arange(len(trie.nodes)), trie.nodes[:, 1])
        keys = parents << 8 | trie.edges[:, 0]  # an edge's node and byte, as one number
        self._children = dict(zip(keys.tolist(), trie.edges[:, 1].tolist(), strict=True))

    def match(self, words: Sequence[bytes]) -> Matches:
        """Return the ids of words end to end, and the number of ids of each word.

        A byte at which no token begins gets the unknown token's id, or NO_TOKEN if there is none.
        """
        ids = array("I")
        counts = np.empty(len(words), np.int64)
        for number, word in enumerate(words):
            before = len(ids)
            self._match(word, len(word), ids)
            counts[number] = len(ids) - before
        return np.frombuffer(ids, np.uint32), counts

    def match_until(self, text: bytes, stop: int) -> tuple[NDArray[np.uint32], int]:
        """Return the ids, uint32, of tokens that start before `stop`, and the last token's end."""
        ids = array("I")
        end = self._match(text, stop, ids)
        return np.frombuffer(ids, np.uint32), end

    def _match(self, text: bytes, stop: int, ids: array[int]) -> int:
        """Append the ids of tokens that start before `stop`; return the last token's end."""
        tokens, children = self._tokens, self._children
        at, size = 0, len(text)
        while at < stop:
            token, end = self._unknown, at + 1
            node, next_at = children.get(text[at]), at + 1  # the root is node 0
            while node is not None:
                # Keep the longest token so far.
                if tokens[node] != NO_TOKEN:
                    token, end = tokens[node], next_at
                if next_at == size:
                    break
                node = children.get(node << 8 | text[next_at])
                next_at += 1
            ids.append(token)
            at = end
        return at
