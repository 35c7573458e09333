"""Places inside of words at which no token can lie across, so that words may be cut there.

- A token lies across a place only if the bytes around it are side by side in that token. Where they
  are in none, no merge goes across and no longest token does: what is before the place and what is
  behind it have their tokens each by itself. So cut, long words become pieces that a text repeats,
  which is much where a script has no spaces.
- A word that is a token may be taken as it is, though no merges lead there. A piece of a word may
  not, so no cut makes a piece of such a token.
- Looked at is only what is in front of a byte from 0xC0 on, where characters beyond ASCII begin:
  the byte before, that byte and the next one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

_FIRST_LEAD = 0xC0  # of the bytes in front of which words are cut
_LEAD_MASK = 0x3F  # what tells those apart
_BLOCK = 1 << 18  # bytes looked at at once


class SafeCuts:
    """Finds the places for one vocabulary. Memory: 4 MB."""

    def __init__(self, vocabulary: Vocabulary, unmerged: NDArray[np.int64]) -> None:
        """Make the table of a vocabulary.

        unmerged: int64, ids of the tokens that words are taken as and no merges lead to.
        """
        # By lead byte, the byte before and the one behind: whether nothing is to be cut there.
        self._joined = np.zeros((_LEAD_MASK + 1, 256, 256), np.bool_)
        # An unknown token's own bytes are not those of the text, nor are those of what it makes.
        self._possible = vocabulary.match == "greedy" or not (
            vocabulary.unknown_token is not None and vocabulary.missing_bytes()
        )
        data, offsets = vocabulary.token_data, vocabulary.token_offsets
        first, last = np.zeros((2, len(data) + 1), np.bool_)
        first[offsets[:-1]] = True
        last[offsets[1:] - 1] = True
        leads = np.flatnonzero((data >= _FIRST_LEAD) & ~first[:-1])
        at_end = last[leads]
        inside, ends = leads[~at_end], leads[at_end]
        self._joined[data[inside] & _LEAD_MASK, data[inside - 1], data[inside + 1]] = True
        self._joined[data[ends] & _LEAD_MASK, data[ends - 1]] = True  # whatever is behind
        self._joined[:, data[offsets[unmerged + 1] - 1]] = True
        begins = offsets[unmerged]
        begins = begins[data[begins] >= _FIRST_LEAD]
        self._joined[data[begins] & _LEAD_MASK, :, data[begins + 1]] = True

    def mark(self, text: NDArray[np.uint8], starts: NDArray[np.bool_]) -> None:
        """Mark these places in a text, beside those where its words start.

        text: uint8 (n,). starts: bool (n,). What follows the text doesn't matter.
        """
        if not self._possible:
            return
        for first in range(0, len(text), _BLOCK):
            block = slice(max(0, first - 2), first + _BLOCK)
            self._mark_block(text[block], starts[block])

    def _mark_block(self, text: NDArray[np.uint8], starts: NDArray[np.bool_]) -> None:
        before = np.flatnonzero(text[1:-1] >= _FIRST_LEAD)
        codes = np.take(text[1:], before).astype(np.int64)
        codes &= _LEAD_MASK
        codes <<= 8
        codes |= np.take(text, before)
        codes <<= 8
        codes |= np.take(text[2:], before)
        cuts = np.flatnonzero(~np.take(self._joined.reshape(-1), codes))
        starts[1:][np.take(before, cuts)] = True
