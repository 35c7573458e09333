"""Forward passes over new tokens of several sequences, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.config import EMBEDDING, FINAL_NORM
from llmgpu.lm.layers import Layer, Sequences
from llmgpu.lm.model import Model
from llmgpu.lm.ops.generating import logits_of
from llmgpu.lm.ops.linear import FEW_ROWS
from llmgpu.lm.ops.recording import Program
from llmgpu.lm.ops.tensor import AnyArray, AttentionTensors, HeadTensors, NewRows, Norm, Tensor

MAX_STEPS = 16  # most steps of a submission
TIES = 55  # room for ids whose logits equal the k-th largest
PAIRS = 32  # pairs of 8 bytes in 256 bytes, as a device binds memory only at multiples of 256 bytes


@dataclass(frozen=True)
class Largest:
    """The largest logits of a step's rows, and the ids that the device drew from these logits.

    drawn: (rows,), ids. ids, logits: (rows, k), the k largest logits of each row, descending; of
    equal logits the smallest ids. decides: (rows,), whether these logits determine the draw; False
    if there was no room for all equal logits, or if a logit is NaN.
    """

    drawn: AnyArray
    ids: NDArray[np.int64]
    logits: NDArray[np.float32]
    decides: NDArray[np.bool_]


@dataclass(frozen=True)
class _CachedSequences(Sequences):
    """New rows of sequences in a cache.

    starts: `NewRows.places`. cache: keys and values of a layer.
    """

    cache: Tensor

    def attend(self, heads: AttentionTensors) -> None:
        """Record the copy of keys and values to the cache, and attention over the cache."""
        for x, column in ((heads.k, 0), (heads.v, heads.k.shape[1])):
            self.operations.cache_append(x, self.cache, self.starts, column)
        cached = HeadTensors(heads.q, self.cache)
        self.operations.attention_cached(cached, self.starts, heads.out, self.shape)


class CachedRows:
    """A forward pass over `rows` new tokens, each of any sequence and at any position.

    In a mixed model, products of more than `FEW_ROWS` rows read half-precision operands.
    """

    def __init__(self, model: Model, caches: Sequence[Tensor], rows: int, ids: int) -> None:
        """Record the pass.

        caches: keys and values of each layer, (L, 2 * K * D); unused rows of the pass write to the
        last row of a cache. ids: number of ids with a token; later ids are never chosen.
        """
        self._model, self._ops = model, model.operations
        self.rows, self._ids = rows, ids
        ops, config = model.operations, model.config
        idle = caches[0].shape[0] - 1
        self._new = NewRows(
            ops.tensor("tokens", (rows,), np.uint32),
            ops.tensor("places", (2, rows), np.uint32),
            idle,
        )
        # Models with biases or norms of heads use the float32 tensors of `Layer`.
        self._is_half = model.mixed and config.has_plain_heads and rows > FEW_ROWS
        # Allocate the tensors of a pass, which all layers share.
        self._shape = model.attention_shape(1, config.seq_len)
        self._x = ops.tensor("residual", (rows, config.dim))
        self._inverse_rms = ops.tensor("norm's scale", (rows,))
        self._normed = self._operand("norm", config.dim)
        self.logits = ops.tensor("logits", (rows, config.padded_vocab_size))
        self._chosen = ops.tensor("chosen ids", (MAX_STEPS, rows), np.uint32)
        # Record two programs: `_layers` fills the cache, `_to_logits` also computes the logits.
        with ops.record("keys and values") as self._layers:
            ops.embed_lookup(self._new.tokens, model.working[EMBEDDING], self._x)
            if config.has_plain_heads:
                self._record_packed_layers(caches)
            else:
                self._record_layers(caches)
        with ops.record("logits") as output:
            ops.rms_norm(self._norm(FINAL_NORM), config.norm_epsilon)
            ops.linear(self._normed, model.output_weight, self.logits)
        self._to_logits = Program("to logits", self._layers.steps + output.steps)
        self._draws = ops.tensor("draws", (MAX_STEPS, rows, 4))
        self._found: dict[int, Tensor] = {}  # results of `find_largest`, by k
        self._programs: dict[tuple[object, ...], Program] = {}

    def _operand(self, name: str, width: int) -> Tensor:
        """Create an operand of products, (rows, width)."""
        kind = np.float16 if self._is_half else np.float32
        return self._ops.tensor(name, (self.rows, width), kind)

    def _norm(self, weight: str) -> Norm:
        return Norm(self._x, self._model.weights[weight], self._normed, self._inverse_rms)

    def _record_packed_layers(self, caches: Sequence[Tensor]) -> None:
        """Record layers with one product for queries, keys and values, and one for gate and up."""
        model, ops, config = self._model, self._ops, self._model.config
        q, attended = (
            ops.tensor(name, (self.rows, config.query_dim)) for name in ("queries", "heads")
        )
        operand = self._operand("heads in half", config.query_dim) if self._is_half else attended
        activated = self._operand("activation", config.ffn_dim)
        rotation = model.rotation(self._new.places)
        for layer, cache in enumerate(caches):
            prefix, weights = f"model.layers.{layer}", model.layers[layer]
            norm, heads = self._norm(f"{prefix}.input_layernorm.weight"), HeadTensors(q, cache)
            packed = weights.packed_heads
            ops.heads_to_cache(norm, config.norm_epsilon, packed, rotation, heads)
            ops.attention_cached(heads, self._new.places, attended, self._shape)
            if self._is_half:
                ops.round_to_half(attended, operand)
            ops.linear(operand, weights.attention_out, self._x, residual=self._x)
            norm = self._norm(f"{prefix}.post_attention_layernorm.weight")
            inner, activation = weights.packed_inner, model.activation
            ops.feed_forward(norm, config.norm_epsilon, inner, activation, activated)
            ops.linear(activated, weights.down, self._x, residual=self._x)

    def _record_layers(self, caches: Sequence[Tensor]) -> None:
        """Record layers whose queries, keys and values have biases or norms of heads."""
        layer = Layer(self._model, self.rows, "layer", mixed=False)
        rotation = self._model.rotation(self._new.places.part(0, self.rows))
        for weights, cache in zip(self._model.layers, caches, strict=True):
            rows = _CachedSequences(self._ops, rotation, self._new.places, self._shape, cache)
            layer.record(weights, self._x, self._x, rows)

    def write(self, tokens: Sequence[int], positions: Sequence[int], starts: Sequence[int]) -> None:
        """Set the first rows of the next pass; the remaining rows are not used.

        starts: for each token, the cache row at which its sequence starts.
        """
        ids = np.zeros(self.rows, np.uint32)
        ids[: len(tokens)] = tokens
        places = np.zeros((2, self.rows), np.uint32)
        places[1] = self._new.idle
        places[:, : len(tokens)] = positions, starts
        self._ops.write(self._new.tokens, ids)
        self._ops.write(self._new.places, places)

    def run(self) -> None:
        """Add the keys and values of the rows to the cache."""
        self._ops.run(self._layers)

    def find_logits(self) -> NDArray[np.float32]:
        """Add the rows to the cache; return the logits of each row's next id, (rows, tokens)."""
        self._ops.run(self._to_logits)
        # Prepare the next run while the device computes.
        self._ops.prepare(self._to_logits)
        logits: NDArray[np.float32] = self._ops.read(self.logits)
        return logits[:, : self._ids]

    def take_drawn(self, k: int, draws: AnyArray) -> Callable[[], list[Largest]]:
        """Start `len(draws)` steps: each adds the rows to the cache and draws the next ids.

        k: number of largest logits to find. draws: float32 (steps, rows, 4), see
        `Operations.draw_largest`. Returns a function that waits for the steps and returns the
        result of each step.
        """
        found = self._found_of(k)

        def record(step: int) -> None:
            part = found.rows(step, step + 1).reshaped(*found.shape[1:])
            self._ops.find_largest(self.logits, self._ids, k, part)
            self._ops.draw_largest(part, self._draws, self._new, step)

        steps = len(draws)
        padded = np.zeros(self._draws.shape, np.float32)
        padded[:steps] = draws
        self._ops.write(self._draws, padded)
        self._run_steps(("drawn", k), steps, record)
        finish = self._ops.begin_read(found.rows(0, steps))
        return lambda: [_largest_of(pairs, k) for pairs in finish()]

    def _found_of(self, k: int) -> Tensor:
        if k not in self._found:
            # The pairs of a step take a multiple of 256 bytes, because a device binds a part of a
            # tensor only at such offsets.
            pairs = -(-(1 + k + TIES) // PAIRS) * PAIRS
            shape = (MAX_STEPS, self.rows, pairs, 2)
            self._found[k] = self._ops.tensor("largest logits", shape, np.uint32)
        return self._found[k]

    def take_likeliest(self, steps: int) -> Callable[[], AnyArray]:
        """Start `steps` steps: each adds the rows to the cache and chooses the likeliest next ids.

        Returns a function that waits for the steps and returns the ids, uint32 (steps, rows).
        """

        def record(step: int) -> None:
            self._ops.take_likeliest(self.logits, self._ids, self._new, self._chosen, step)

        self._run_steps(("likeliest",), steps, record)
        finish = self._ops.begin_read(self._chosen)
        return lambda: finish()[:steps]

    def _run_steps(
        self, kind: tuple[object, ...], steps: int, record: Callable[[int], None]
    ) -> None:
        """Run `steps` passes; the operations of `record(step)` follow each pass."""
        key = (*kind, steps)
        if key not in self._programs:
            joined = []
            for step in range(steps):
                with self._ops.record("choice") as choice:
                    record(step)
                joined += self._to_logits.steps + choice.steps
            self._programs[key] = Program(f"{steps} ids", joined)
        self._ops.run(self._programs[key])


def _largest_of(pairs: AnyArray, k: int) -> Largest:
    """Decode the pairs (rows, 1 + capacity, 2) of `find_largest` and `draw_largest`."""
    drawn = pairs[:, 0, 1]
    # Read as 64-bit numbers, the pairs are in descending order of logits, then in ascending order
    # of ids.
    ascending = np.sort(np.ascontiguousarray(pairs).view("<u8")[:, 1:, 0], axis=1)[:, :k]
    inverted = (ascending >> np.uint64(32)).astype(np.uint32)
    ids = (ascending & np.uint64(0xFFFFFFFF)).astype(np.int64)
    decides = (pairs[:, 0, 0] < pairs.shape[1]) & (inverted[:, 0] != 0)
    return Largest(drawn, ids, logits_of(inverted), decides)
