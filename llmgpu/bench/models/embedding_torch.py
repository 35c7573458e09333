"""torch's ways to look rows of a table up and to add to them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.measuring.gpu_times import ProgramTimes, host_times, runs_within, warm_up
from llmgpu.bench.models.embedding_job import (
    BACKWARD,
    HALF,
    LOOKUP,
    POSITIONS,
    REPEATED,
    EmbeddingData,
)

# The first of each kind is what others are compared with.
TORCH_WAYS = (
    (LOOKUP, "nn.Embedding"),
    (HALF, "nn.Embedding, then float"),
    (POSITIONS, "two nn.Embedding, added"),
    *(
        (kind, way)
        for kind in (BACKWARD, REPEATED)
        for way in ("index_add_", "of nn.Embedding, zeros included")
    ),
)


class TorchEmbedding:
    """The tensors of one kind of work on one of torch's devices, "cpu" or "cuda"."""

    def __init__(self, data: EmbeddingData, kind: str, device: str) -> None:
        """Copy the tokens."""
        self._torch = importlib.import_module("torch")
        self._data = data
        self._kind = kind
        self._device = device
        self._tokens = self._tensor(data.tokens(kind).astype(np.int64))

    def prepare(self, way: str) -> Callable[[], Any]:
        """Return a way of `TORCH_WAYS` as a function, which returns its answer."""
        if self._kind in (BACKWARD, REPEATED):
            return self._backward(way)
        tokens = self._tokens
        if self._kind == HALF:
            half = self._embedding(self._data.half_table)
            return lambda: half(tokens).float()
        table = self._embedding(self._data.table)
        if self._kind == LOOKUP:
            return lambda: table(tokens)
        position_table = self._embedding(self._data.position_table)
        positions = self._tensor(self._data.positions.astype(np.int64))
        return lambda: table(tokens) + position_table(positions)

    def answer(self, function: Callable[[], Any]) -> NDArray[Any]:
        """Return what a function of `prepare` computes in its first call."""
        array: NDArray[Any] = function().detach().cpu().numpy()
        return array

    def times(self, function: Callable[[], Any], runs: int, budget: float) -> ProgramTimes:
        """Time a function of `prepare` after a warm-up, as `time_program` does."""
        warm_up(lambda: self._finish(function))
        if self._device == "cpu":
            return ProgramTimes("host", host_times(function, runs, budget))
        spans = [self._cuda_seconds(function) for _ in runs_within(runs, budget)]
        return ProgramTimes("gpu", spans)

    def _backward(self, way: str) -> Callable[[], Any]:
        torch, tokens = self._torch, self._tokens
        grad_out = self._tensor(self._data.grad_out)
        vocab_size = self._data.job.vocab_size
        if way != "index_add_":
            backward = torch.ops.aten.embedding_dense_backward
            return lambda: backward(grad_out, tokens, vocab_size, -1, False)
        grad_table = torch.zeros(self._data.table.shape, device=self._device)
        return lambda: grad_table.index_add_(0, tokens, grad_out)

    def _tensor(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(array).to(self._device)

    def _embedding(self, table: NDArray[Any]) -> Any:
        return self._torch.nn.Embedding.from_pretrained(self._tensor(table))

    def _finish(self, function: Callable[[], Any]) -> None:
        function()
        if self._device != "cpu":
            self._torch.cuda.synchronize()

    def _cuda_seconds(self, function: Callable[[], Any]) -> float:
        event = self._torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
