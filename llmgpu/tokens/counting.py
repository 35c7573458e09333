"""The numbers of tokens in the files of a corpus, counted in one pass over the corpus.

A slice that an encoder returns may cover many small files, or a stretch of a large file. Each file
begins a document, so the positions at which files begin are among the document starts of the
slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Encoder, ReusedMemory
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus
from llmgpu.tokens.filters import Filter
from llmgpu.tokens.tokenizing import encode_corpus


@dataclass(frozen=True)
class FileCount:
    """A file of a corpus: bytes of the text that was extracted from it, and number of tokens."""

    path: str
    text_bytes: int
    tokens: int


class DocumentLengths:
    """Counts documents by their number of tokens; `add` is called for each slice, in order."""

    def __init__(self) -> None:
        self._documents: Counter[int] = Counter()  # number of documents for each number of tokens
        # Tokens so far of the current document; None between documents.
        self._open: int | None = None

    def add(self, starts: NDArray[np.int64], count: int) -> None:
        """Count the documents in the next `count` ids; they begin at `starts`, ascending."""
        if self._open is not None:
            self._open += int(starts[0]) if len(starts) else count
        if len(starts):
            self.close()
            lengths, documents = np.unique(np.diff(starts), return_counts=True)
            self._documents.update(dict(zip(lengths.tolist(), documents.tolist(), strict=True)))
            self._open = count - int(starts[-1])

    def close(self) -> None:
        """End the last document."""
        if self._open is not None:
            self._documents[self._open] += 1
        self._open = None

    def summary(self) -> dict[str, Any]:
        """Return statistics of the numbers of tokens in documents, by name.

        pN: the smallest number such that N % of the documents have no more tokens. above: for each
        power of two from 128 on, the number of documents with more tokens.
        """
        self.close()
        lengths = sorted(self._documents)
        if not lengths:
            return {"documents": 0}
        documents = np.cumsum([self._documents[length] for length in lengths])
        total = int(documents[-1])
        ranks = {"median": 50, "p90": 90, "p99": 99}
        found = {
            name: lengths[int(np.searchsorted(documents, -(-total * rank // 100)))]
            for name, rank in ranks.items()
        }
        powers = (1 << bits for bits in range(7, lengths[-1].bit_length()))
        above = {
            str(power): sum(n for length, n in self._documents.items() if length > power)
            for power in powers
        }
        return {"documents": total, "min": lengths[0], **found, "max": lengths[-1], "above": above}


def count_files(
    encoder: Encoder,
    text: Corpus,
    progress: Progress = no_progress,
    *,
    used: NDArray[np.int64] | None = None,
    lengths: DocumentLengths | None = None,
    filters: Sequence[Filter] = (),
) -> list[FileCount]:
    """Return the counts of the files of a corpus, in reading order.

    progress: called with the bytes read from the sources, phase "tokenizing". used: int64
        (vocabulary size,); the occurrences of each id are added to it.
    lengths: collects the number of tokens of each document.

    Raises the errors of the encoder and of the corpus.
    """
    tokens: list[int] = []  # tokens so far of each file that has begun
    documents = 0
    for piece in encode_corpus(encoder, text, ReusedMemory(), filters):
        starts, begun = piece.document_starts, text.begun
        counted = 0
        # Divide the slice's ids among the files that begin in the slice.
        while len(tokens) < len(begun) and begun[len(tokens)].documents < documents + len(starts):
            position = int(starts[begun[len(tokens)].documents - documents])
            if tokens:
                tokens[-1] += position - counted
            tokens.append(0)
            counted = position
        if tokens:
            tokens[-1] += len(piece.ids) - counted
        documents += len(starts)
        if used is not None:
            used += np.bincount(piece.ids, minlength=len(used))
        if lengths is not None:
            lengths.add(starts, len(piece.ids))
        progress("tokenizing", text.bytes_read, text.total_bytes)
    tokens += [0] * (len(text.begun) - len(tokens))  # files without a document at the end
    ends = [*(begin.offset for begin in text.begun), text.text_bytes]
    return [
        FileCount(begin.path, end - first, count)
        for begin, (first, end), count in zip(text.begun, pairwise(ends), tokens, strict=True)
    ]
