"""Rounds of steps that workers take separately, and the outer step that ends each.

A worker updates its weights with the gradients of its own batches alone. At the end of a round the
weights that it began with, less the mean of the workers' weights, are the gradient of an outer
optimizer, SGD with Nesterov's momentum; all begin the next round with the weights that this gives
(DiLoCo, A. Douillard et al., arXiv 2311.08105). The moments of the inner optimizer become their
means over the workers, as in Local Adam (Z. Cheng and M. Glasgow, arXiv 2409.13155). So all workers
are alike after a round, and a checkpoint holds all of their state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from llmgpu.lm.exchange import BUCKET, Sums, buckets
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import FloatArray, Tensor
from llmgpu.lm.options import TrainOptions


class LocalSteps:
    """Ends rounds. momenta: the outer optimizer's, zeros at first, a tensor for each weight."""

    def __init__(
        self,
        operations: Operations,
        options: TrainOptions,
        workers: int,
        open_sums: Callable[[], Sums],
        weights: Sequence[Tensor],
        moments: Sequence[Tensor],
    ) -> None:
        """Prepare for rounds of these weights and these moments of the inner optimizer.

        workers: how many there are. open_sums: called at the end of the first round.
        """
        self._operations, self._options, self._workers = operations, options, workers
        self._open_sums = open_sums
        self._weights, self._moments = weights, moments
        self.momenta = [
            operations.tensor(f"outer momentum of {weight.name}", weight.shape)
            for weight in weights
        ]
        self._transfers = operations.open_transfers(
            min(BUCKET, sum(tensor.size for tensor in (*weights, *moments)))
        )
        self._start: FloatArray | None = None

    @cached_property
    def _sums(self) -> Sums:
        return self._open_sums()

    def begin(self) -> None:
        """Note the weights before the first step; all workers have the same."""
        if self._start is None:
            pieces = [self._read(bucket) for bucket in buckets(self._weights)]
            self._start = np.concatenate(pieces)

    def end_round(self) -> None:
        """Take the outer step, and the means of the moments; all workers call it."""
        assert self._start is not None, "a round has begun"
        rate = np.float32(self._options.outer_learning_rate)
        decay = np.float32(self._options.outer_momentum)
        rest = self._start
        for weights, momenta in zip(buckets(self._weights), buckets(self.momenta), strict=True):
            start, rest = np.split(rest, [sum(tensor.size for tensor in weights)])
            gradient = start - self._mean(weights)
            momentum = decay * self._read(momenta) + gradient
            start -= rate * (gradient + decay * momentum)
            self._write(weights, start)
            self._write(momenta, momentum)
        for moments in buckets(self._moments):
            self._write(moments, self._mean(moments))

    def _mean(self, bucket: Sequence[Tensor]) -> FloatArray:
        out = np.empty(sum(tensor.size for tensor in bucket), np.float32)
        self._sums.give(len(out), self._transfers.start_reading(bucket))(out)
        out /= np.float32(self._workers)
        return out

    def _read(self, bucket: Sequence[Tensor]) -> FloatArray:
        out = np.empty(sum(tensor.size for tensor in bucket), np.float32)
        self._transfers.start_reading(bucket)(out)
        return out

    def _write(self, bucket: Sequence[Tensor], values: FloatArray) -> None:
        out, write = self._transfers.start_writing(bucket)
        out[...] = values
        write()


def local_memory(parameters: int) -> int:
    """Return an upper bound of the bytes of the host that rounds take beside sums."""
    return 4 * parameters + 6 * 4 * BUCKET
