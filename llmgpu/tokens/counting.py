"""Tokens of each file of a corpus, counted in one pass over all of them.

Slices of text that encoders work on hold many small files, or a part of a large one. Each file
begins a document, so the encoder's document starts tell where in the ids a file begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Encoder, ReusedMemory
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus
from llmgpu.tokens.tokenizing import encode_corpus


@dataclass(frozen=True)
class FileCount:
    """What a file holds: its text, decompressed and without what surrounds it, and its tokens."""

    path: str
    text_bytes: int
    tokens: int


def count_files(
    encoder: Encoder,
    text: Corpus,
    progress: Progress = no_progress,
    *,
    used: NDArray[np.int64] | None = None,
) -> list[FileCount]:
    """Return the counts of the files of a corpus, in the order they are read.

    progress: called with the bytes read from the sources, phase "tokenizing". used: int64
        (vocabulary size,), to which the number of times that each id occurs is added.

    Raises what the encoder and the corpus raise.
    """
    tokens: list[int] = []  # of the files that have begun
    documents = 0
    for piece in encode_corpus(encoder, text, ReusedMemory()):
        starts, begun = piece.document_starts, text.begun
        counted = 0
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
        progress("tokenizing", text.bytes_read, text.total_bytes)
    tokens += [0] * (len(text.begun) - len(tokens))  # files without a document, at the end
    ends = [*(begin.offset for begin in text.begun), text.text_bytes]
    return [
        FileCount(begin.path, end - first, count)
        for begin, (first, end), count in zip(text.begun, pairwise(ends), tokens, strict=True)
    ]
