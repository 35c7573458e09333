"""Forward passes over new tokens of several sequences, whose keys and values are kept (a cache)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.model import EMBEDDING, FINAL_NORM, LayerActivations, Model
from llmgpu.lm.ops.arguments import AttentionTensors, HeadTensors, NewRows, Norm
from llmgpu.lm.ops.generating import logits_of
from llmgpu.lm.ops.linear import FEW_ROWS
from llmgpu.lm.ops.operations import Program
from llmgpu.lm.ops.tensor import AnyArray, Tensor

MAX_STEPS = 16  # in a submission
TIES = 55  # ids, beside those with the largest logits, that there is room for


class CachedRows:
    """A forward pass over `rows` new tokens, each of any sequence and at any position.

    With a mixed model, products of more rows than a few take half-precision operands.
    """

    def __init__(self, model: Model, caches: Sequence[Tensor], rows: int, ids: int) -> None:
        """Record the pass; `caches` are each layer's keys and values, (L, 2 * K * D).

        The last row of a cache is that of rows that are not in use. ids: how many of the model's
        first ids stand for tokens.
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
        # Biases, and norms of heads, come between the products and the rotation.
        is_plain = not (config.qkv_bias or config.qk_norm)
        self._is_half = model.mixed and is_plain and rows > FEW_ROWS
        self._shape = model.attention_shape(1, config.seq_len)
        self._x = ops.tensor("residual", (rows, config.dim))
        self._inverse_rms = ops.tensor("norm's scale", (rows,))
        self._normed = self._operand("norm", config.dim)
        self.logits = ops.tensor("logits", (rows, config.padded_vocab_size))
        self._chosen = ops.tensor("chosen ids", (MAX_STEPS, rows), np.uint32)
        with ops.record("keys and values") as self._layers:
            ops.embed_lookup(self._new.tokens, model.working[EMBEDDING], self._x)
            if is_plain:
                self._record_packed_layers(caches)
            else:
                self._record_layers(caches)
        with ops.record("logits") as output:
            ops.rms_norm(self._norm(FINAL_NORM), config.norm_epsilon)
            ops.linear(self._normed, model.output_weight, self.logits)
        self._to_logits = Program("to logits", self._layers.steps + output.steps)
        self._likeliest: dict[int, Program] = {}
        self._largest: dict[int, tuple[Program, Tensor]] = {}

    def _operand(self, name: str, width: int) -> Tensor:
        """Make a tensor that products take."""
        kind = np.float16 if self._is_half else np.float32
        return self._ops.tensor(name, (self.rows, width), kind)

    def _norm(self, weight: str) -> Norm:
        return Norm(self._x, self._model.weights[weight], self._normed, self._inverse_rms)

    def _record_packed_layers(self, caches: Sequence[Tensor]) -> None:
        """Record layers whose queries, keys and values are one product, as gate and up are."""
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
            packed = model.packed_heads[layer]
            ops.heads_to_cache(norm, config.norm_epsilon, packed, rotation, heads)
            ops.attention_cached(heads, self._new.places, attended, self._shape)
            if self._is_half:
                ops.round_to_half(attended, operand)
            ops.linear(operand, weights.attention_out, self._x, residual=self._x)
            norm = self._norm(f"{prefix}.post_attention_layernorm.weight")
            ops.feed_forward(norm, config.norm_epsilon, model.packed_inner[layer], activated)
            ops.linear(activated, weights.down, self._x, residual=self._x)

    def _record_layers(self, caches: Sequence[Tensor]) -> None:
        """Record layers whose queries, keys and values have biases or norms, step by step."""
        model, ops = self._model, self._ops
        activations = LayerActivations.make(ops, model.config, self.rows, "layer", self._x)
        positions = self._new.places.part(0, self.rows)
        for layer, cache in enumerate(caches):
            attend = partial(self._attend, cache)
            model.record_layer(layer, self._x, positions, activations, attend)

    def _attend(self, cache: Tensor, a: AttentionTensors) -> None:
        for x, column in ((a.k, 0), (a.v, a.k.shape[1])):
            self._ops.cache_append(x, cache, self._new.places, column)
        self._ops.attention_cached(HeadTensors(a.q, cache), self._new.places, a.out, self._shape)

    def write(self, tokens: Sequence[int], positions: Sequence[int], starts: Sequence[int]) -> None:
        """Set the first rows: ids, positions, and where their sequences start in the cache."""
        ids = np.zeros(self.rows, np.uint32)
        ids[: len(tokens)] = tokens
        places = np.zeros((2, self.rows), np.uint32)
        places[1] = self._new.idle
        places[:, : len(tokens)] = positions, starts
        self._ops.write(self._new.tokens, ids)
        self._ops.write(self._new.places, places)

    def run(self) -> None:
        """Add keys and values of the rows to the cache."""
        self._ops.run(self._layers)

    def find_logits(self) -> NDArray[np.float32]:
        """Add the rows to the cache; return the logits of what follows each, (rows, tokens)."""
        self._ops.run(self._to_logits)
        # The next ones are recorded while the device is at work.
        self._ops.prepare(self._to_logits)
        return self.read_logits()

    def read_logits(self) -> NDArray[np.float32]:
        """Return the logits that were found last, (rows, tokens)."""
        logits: NDArray[np.float32] = self._ops.read(self.logits)
        return logits[:, : self._ids]

    def find_largest(self, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Add the rows to the cache; return the k largest logits after each, and their ids.

        Returns ids and logits, (rows, k), in descending order, of equal ones the smallest ids. None
        if too many are equal or one is NaN: then `read_logits` has all.
        """
        if k not in self._largest:
            shape = (self.rows, 1 + k + TIES, 2)
            found = self._ops.tensor("largest logits", shape, np.uint32)
            with self._ops.record("largest logits") as choice:
                self._ops.find_largest(self.logits, self._ids, k, found)
            self._largest[k] = Program("step", self._to_logits.steps + choice.steps), found
        program, found = self._largest[k]
        self._ops.run(program)
        self._ops.prepare(program)
        pairs = np.ascontiguousarray(self._ops.read(found)).view("<u8")[..., 0]
        ascending = np.sort(pairs[:, 1:], axis=1)[:, :k]
        has_nan = (ascending[:, 0] >> np.uint64(32) == 0).any()
        if has_nan or (pairs[:, 0] > k + TIES).any():
            return None
        ids = (ascending & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return ids, logits_of((ascending >> np.uint64(32)).astype(np.uint32))

    def take_likeliest(self, steps: int) -> Callable[[], AnyArray]:
        """Start to add the rows to the cache and take the likeliest ids after them, `steps` times.

        Returns what waits for the ids, uint32 (steps, rows).
        """
        if steps not in self._likeliest:
            programs = [self._likeliest_program(step) for step in range(steps)]
            joined = [step for program in programs for step in program.steps]
            self._likeliest[steps] = Program(f"{steps} likeliest ids", joined)
        self._ops.run(self._likeliest[steps])
        finish = self._ops.begin_read(self._chosen)
        return lambda: finish()[:steps]

    def _likeliest_program(self, step: int) -> Program:
        with self._ops.record("likeliest ids") as choice:
            self._ops.take_likeliest(self.logits, self._ids, self._new, self._chosen, step)
        return Program("step", self._to_logits.steps + choice.steps)
