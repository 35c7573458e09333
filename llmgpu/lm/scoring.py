"""The likelihood of texts: the log-likelihood of each id after the ids before it.

A text longer than a window is scored in overlapping windows. Each window begins up to `stride` ids
after the previous window, and scores only ids that no earlier window has scored. So every id beyond
the first window has at least `window - stride` ids of context.

Windows of several texts are scored together; windows of similar lengths form a batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.errors import InputError, TrainingError
from llmgpu.lm.data.batches import IGNORED_TARGET
from llmgpu.lm.gradients import LossGraph
from llmgpu.lm.model import Model
from llmgpu.lm.ops.recording import Program
from llmgpu.text.corpus import Corpus
from llmgpu.tokens.tokenizing import encode_corpus

BATCH_IDS = 1024  # most ids of a batch; a longer window is a batch of its own
SHORTEST = 16  # shortest length of sequences; other lengths are powers of two, or the window
LOGITS_BYTES = 1 << 27  # most bytes of the logits of a block of rows
TOGETHER = 1 << 16  # texts are collected up to this many ids before they are divided into batches


@dataclass(frozen=True)
class Request:
    """A text to be scored.

    ids: uint32 (n,). first: index of the first id to score, 1 or more.
    """

    ids: NDArray[np.uint32]
    first: int = 1


@dataclass(frozen=True, kw_only=True)
class Document(Request):
    """A document of a corpus, after the ids of its context.

    path: file of the document. number: number among the documents of all files, from 0.
    """

    path: str
    number: int


R = TypeVar("R", bound=Request)


@dataclass(frozen=True)
class Score(Generic[R]):
    """The scores of the ids of a request from index `first` on, (n - first,).

    log_likelihoods: natural logarithms of the ids' probabilities. likeliest: whether each id was
    the most probable.
    """

    request: R
    log_likelihoods: NDArray[np.float32]
    likeliest: NDArray[np.bool_]


# A score that receives results, and a window over the targets of its request, see `windows`.
_Piece = tuple[Score[Any], tuple[int, int, int]]


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield windows over `count` targets: begin, end, and the first target to score."""
    end = scored = min(count, window)
    if count > 0:
        yield 0, end, 0
    while end < count:
        end = min(end + stride, count)
        yield end - window, end, scored
        scored = end


class Scorer:
    """Scores ids with a model.

    window: most targets in a window. stride: most targets between the starts of two successive
    windows.
    """

    def __init__(self, model: Model, window: int, stride: int) -> None:
        """Raise InputError if the window is too long for the model, or the stride for the window.

        Both must be at least 1.
        """
        longest = model.config.seq_len
        if not 1 <= window <= longest:
            raise InputError(
                f"--window is {window}, but must be from 1 to {longest}, the longest the model "
                "takes"
            )
        if not 1 <= stride <= window:
            raise InputError(f"--stride is {stride}, but must be from 1 to --window, {window}")
        self._model, self.window, self.stride = model, window, stride
        self._graphs: dict[int, tuple[LossGraph, Program]] = {}

    def scores(self, requests: Iterable[R]) -> Iterator[Score[R]]:
        """Yield the score of each request, in order; many requests are scored together.

        Raises TrainingError for a model whose logits are not finite.
        """
        waiting: list[R] = []
        size = 0
        for request in requests:
            waiting.append(request)
            size += len(request.ids)
            if size >= TOGETHER:
                yield from self._score(waiting)
                waiting, size = [], 0
        yield from self._score(waiting)

    def _score(self, requests: Sequence[R]) -> list[Score[R]]:
        found: list[Score[R]] = []
        pieces: dict[int, list[_Piece]] = {}  # by sequence length
        for request in requests:
            count = max(0, len(request.ids) - request.first)
            score = Score(request, np.zeros(count, np.float32), np.zeros(count, np.bool_))
            found.append(score)
            for begin, end, scored in windows(len(request.ids) - 1, self.window, self.stride):
                if end >= request.first:
                    piece = begin, end, max(scored, request.first - 1)
                    pieces.setdefault(self._length(end - begin), []).append((score, piece))
        # Run the windows of each length in batches.
        for length, alike in pieces.items():
            size = max(1, BATCH_IDS // length)
            for start in range(0, len(alike), size):
                self._run(length, alike[start : start + size])
        return found

    def _length(self, ids: int) -> int:
        """Return the sequence length of the batch for a window of this many ids."""
        return min(self.window, max(SHORTEST, 1 << (ids - 1).bit_length()))

    def _graph(self, length: int) -> tuple[LossGraph, Program]:
        if length not in self._graphs:
            operations = self._model.operations
            size = max(1, BATCH_IDS // length)
            graph = LossGraph(
                self._model, size, length, logits_bytes=LOGITS_BYTES, find_likeliest=True
            )
            graph.write_loss_params(0, 0.0, 0.0)
            with operations.record("losses") as program:
                graph.record_losses()
            self._graphs[length] = graph, program
        return self._graphs[length]

    def _run(self, length: int, pieces: Sequence[_Piece]) -> None:
        """Run one batch of windows, and write the results to the scores of their requests."""
        graph, program = self._graph(length)
        operations = self._model.operations
        # Fill the batch: a row for each window. Targets that are not scored are set to be ignored.
        shape = (graph.rows // length, length)
        tokens = np.zeros(shape, np.uint32)
        targets = np.full(shape, IGNORED_TARGET, np.uint32)
        for row, (score, (begin, end, scored)) in enumerate(pieces):
            ids = score.request.ids
            tokens[row, : end - begin] = ids[begin:end]
            targets[row, scored - begin : end - begin] = ids[scored + 1 : end + 1]
        graph.write_batch((tokens, targets))
        operations.run(program)
        losses = operations.read(graph.losses.cross_entropy).reshape(shape)
        if not np.isfinite(losses).all():
            raise TrainingError("the model's logits are not finite: its weights are too large")
        assert graph.likeliest is not None  # `_graph` sets `find_likeliest`
        likeliest = operations.read(graph.likeliest).reshape(shape)
        # Copy the results of each window to the scores of its request.
        for row, (score, (begin, end, scored)) in enumerate(pieces):
            inside = slice(scored - begin, end - begin)
            first = score.request.first - 1
            place = slice(scored - first, end - first)
            score.log_likelihoods[place] = -losses[row, inside]
            score.likeliest[place] = likeliest[row, inside] == targets[row, inside]


def read_documents(
    encoder: Encoder, text: Corpus, context: NDArray[np.uint32]
) -> Iterator[Document]:
    """Yield the documents of a corpus, each as soon as all ids of the document are known.

    context: ids that precede each document, and are not scored, uint32. Without context, the first
    id of a document is not scored.
    """
    held = [context]
    begun = 0  # number of documents that have begun

    def document() -> Document:
        ids, number = np.concatenate(held), begun - 1
        file = bisect_right(text.begun, number, key=lambda begin: begin.documents) - 1
        first = max(1, len(context))
        return Document(ids, first, path=text.begun[file].path, number=number)

    for piece in encode_corpus(encoder, text):
        borders = [0, *map(int, piece.document_starts), len(piece.ids)]
        for index, (start, stop) in enumerate(pairwise(borders)):
            if index and begun:
                yield document()
                held = [context]
            begun += index > 0
            held.append(np.array(piece.ids[start:stop], np.uint32))
    if begun:
        yield document()
