"""Loss and gradients of a batch: the forward pass and the backward pass.

The logits of all rows would often be the largest tensor by far, so the output layer, the loss and
their gradients are taken in blocks of rows. Shape letters are those of `llmgpu.lm.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.config import EMBEDDING, FINAL_NORM, OUTPUT, ModelConfig
from llmgpu.lm.data.batches import document_starts
from llmgpu.lm.model import (
    HeadNorm,
    LayerActivations,
    LayerWeights,
    Model,
    PackedWidths,
    packs_heads,
    packs_inner,
    round_operand,
)
from llmgpu.lm.ops.embedding import group_tokens
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import (
    AttentionGradients,
    AttentionTensors,
    Groups,
    Losses,
    Norm,
    Packed,
    Rotation,
    Tensor,
)

LOGITS_BYTES = 2_000_000_000  # of one block of rows, where a tensor may be as large
MIXED_LOGITS_BYTES = 500_000_000  # where their gradient in half precision takes memory, too
ROW_ALIGNMENT = 64  # float32 rows of one number: a block of so many starts at a multiple of 256 B


class LayerGradients:
    """Gradients inside a layer, in memory that all layers share."""

    def __init__(
        self,
        operations: Operations,
        config: ModelConfig,
        rows: int,
        packed: PackedWidths | None = None,
    ) -> None:
        """Make the tensors for `rows` rows.

        packed: those of the model if products take half-precision operands.
        """
        mixed = packed is not None

        def tensor(role: str, width: int, *, half: bool = False) -> Tensor:
            kind = np.float16 if half else np.float32
            return operations.tensor(f"gradient of {role}", (rows, width), kind)

        self.residual = tensor("the residual stream", config.dim)
        self.normed = tensor("a norm's output", config.dim)
        self._in_half = mixed and operations.attends_in_half(config.head_dim)
        self.attention = AttentionGradients(
            out=tensor("attention", config.query_dim, half=self._in_half),
            q=tensor("queries", config.query_dim),
            k=tensor("keys", config.kv_dim),
            v=tensor("values", config.kv_dim),
        )
        self.activated = tensor("the activation", config.ffn_dim, half=mixed)
        self.inner = self.gate = self.up = None
        if packed is not None and packs_inner(config):
            self.inner = tensor("gate and up", packed.inner, half=True)
        else:
            self.up = tensor("up", config.ffn_dim, half=mixed)
            self.gate = tensor("the gate", config.ffn_dim, half=mixed) if config.is_gated else None
        self.heads = None
        if packed is not None and packs_heads(operations, config):
            self.heads = tensor("queries, keys and values", packed.heads, half=True)
        heads = self.attention
        self._operations = operations
        rounded = [self.residual]
        if self.heads is None:
            rounded += [heads.q, heads.k, heads.v]
        # Where there are norms of heads: gradients of what these take.
        self._before_norm = {
            normed: tensor(f"{role} before their norm", normed.shape[1])
            for normed, role in ((heads.q, "queries"), (heads.k, "keys"))
            if config.qk_norm
        }
        rounded += self._before_norm.values()
        self._halves = {
            single: operations.tensor(f"{single.name} in half", single.shape, np.float16)
            for single in rounded
            if mixed
        }

    def operand(self, gradient: Tensor) -> Tensor:
        """Return what products take of a gradient, after recording its rounding if there is any."""
        return round_operand(self._operations, gradient, self._halves.get(gradient, gradient))

    def of_product(
        self,
        gradient: Tensor,
        rotation: Rotation | None = None,
        norm: HeadNorm | None = None,
        norm_weights: tuple[Tensor | None, Tensor | None] = (None, None),
        bias_gradient: Tensor | None = None,
    ) -> Tensor:
        """Record the backward pass from queries, keys or values to the product they come from.

        norm_weights: the weight of the norm and its gradient. Returns what products take of it.
        """
        ops = self._operations
        if rotation is not None:
            if self._in_half and norm is None and bias_gradient is None:
                half = self._halves[gradient]
                ops.rotary(gradient, rotation, half, inverse=True)
                return half
            ops.rotary(gradient, rotation, inverse=True)
        weight, weight_gradient = norm_weights
        if norm is not None and weight is not None and weight_gradient is not None:
            gradient = self._of_norm_input(gradient, norm, weight, weight_gradient)
        if bias_gradient is not None:
            ops.bias_backward(gradient, bias_gradient)
        return self.operand(gradient)

    def _of_norm_input(
        self, gradient: Tensor, norm: HeadNorm, weight: Tensor, weight_gradient: Tensor
    ) -> Tensor:
        """Record the gradient of what the norm of heads takes; return it."""
        found = self._before_norm[gradient]
        self._operations.fill_zero(found)  # backward norms add to it
        heads = norm.of(weight, gradient)  # backward norms read no output
        self._operations.rms_norm_backward(
            heads, heads.out, found.reshaped(*heads.x.shape), weight_gradient
        )
        return found


class LossGraph:
    """The loss of a batch of B sequences of T tokens.

    With `gradients` (by weight name) it can also add the loss's gradients to them; those of tables,
    which no other gradient follows from, may be left out. The host writes each batch by
    `write_batch`, and `write_loss_params` before each step.

    separator: attention does not reach back beyond this id; None: to the first token of the
    sequence. recompute: the backward pass computes what is inside
    layers again, so that only their outputs are kept. logits_bytes: of one block of rows. losses:
    of the last run, (N,) each. likeliest: with `find_likeliest`, the most probable id of each row,
    uint32 (N,).
    """

    def __init__(
        self,
        model: Model,
        batch: int,
        seq: int,
        gradients: Mapping[str, Tensor] | None = None,
        packed_gradients: Mapping[str, Packed] | None = None,
        *,
        separator: int | None = None,
        logits_bytes: int | None = None,
        find_likeliest: bool = False,
        recompute: bool = False,
    ) -> None:
        """Make the activations of all layers, or of only one if there are no gradients to find."""
        self.model = model
        self._separator, self._recompute = separator, recompute
        self.rows = batch * seq
        ops, config = model.operations, model.config
        self._shape = model.attention_shape(batch, seq)
        self.tokens = self._ids("tokens")
        self.targets = self._ids("targets")
        self.groups = Groups(
            self._ids("order of tokens"),
            ops.tensor("starts of equal tokens", (self.rows + 1,), np.uint32),
            self._ids("distinct tokens"),
        )
        self.positions = self._ids("positions")
        ops.write_computed(
            (self.positions,), lambda: [np.tile(np.arange(seq, dtype=np.uint32), batch)]
        )
        self._starts = self._ids("starts of documents")
        self._loss_params = ops.parameters("loss parameters", (4,))
        names = ("losses", "label smoothing", "z-losses")
        self.losses = Losses(*(ops.tensor(name, (self.rows,)) for name in names))
        self.embedded = self._activation("embedded", config.dim)
        half = np.float16 if model.mixed else np.float32
        self.final_normed = ops.tensor("final norm", (self.rows, config.dim), half)
        self.final_inverse_rms = ops.tensor("final norm's scale", (self.rows,))
        if logits_bytes is None:
            logits_bytes = MIXED_LOGITS_BYTES if model.mixed else LOGITS_BYTES
        self.block_rows = logits_block_rows(ops, config, self.rows, logits_bytes)
        if model.mixed:  # blocks of a size, none too small to keep a device busy
            blocks = -(-self.rows // self.block_rows)
            self.block_rows = -(-self.rows // (blocks * ROW_ALIGNMENT)) * ROW_ALIGNMENT
        self.logits = ops.tensor("logits", (self.block_rows, config.padded_vocab_size))
        # What products take of the logits' gradient; in float32 it takes their place.
        self._logits_gradient = self.logits
        self.likeliest = self._ids("likeliest tokens") if find_likeliest else None
        if gradients is not None and model.mixed:
            name = "gradient of logits"
            self._logits_gradient = ops.tensor(name, self.logits.shape, np.float16)
        self._gradients = gradients
        self._packed_gradients = packed_gradients or {}
        self._activations = list(self._layer_activations(keep_all=gradients is not None))
        if gradients is not None:
            self._inside = LayerGradients(ops, config, self.rows, model.packed_widths)
            self._of_weights = [LayerWeights.of(gradients, k) for k in range(config.layers)]

    def _ids(self, name: str) -> Tensor:
        return self.model.operations.tensor(name, (self.rows,), np.uint32)

    def _activation(self, name: str, width: int) -> Tensor:
        return self.model.operations.tensor(name, (self.rows, width))

    def _layer_activations(self, *, keep_all: bool) -> Iterator[LayerActivations]:
        ops, config, packed = self.model.operations, self.model.config, self.model.packed_widths
        make = partial(LayerActivations.make, ops, config, self.rows, packed=packed)
        # A layer reads its input for the last time before it writes its output.
        shared = None if keep_all and not self._recompute else make("layer", self.embedded)
        for layer in range(config.layers):
            if shared is not None and not keep_all:
                yield shared
                continue
            out = self._activation(f"layer {layer} residual", config.dim)
            yield replace(shared, out=out) if shared else make(f"layer {layer}", out)

    def write_batch(
        self,
        tokens: NDArray[np.uint32],
        targets: NDArray[np.uint32],
        rows: NDArray[np.uint32] | None = None,
    ) -> None:
        """Write ids and targets, both (B, T) and checked, for the next run.

        rows: ids, ascending, whose rows the gradient of the embedding table has; None: all.
        """
        ops = self.model.operations
        ops.write(self.tokens, tokens)
        ops.write(self.targets, targets)
        if self._separator is not None:
            ops.write(self._starts, document_starts(tokens, self._separator))
        if self._gradients is not None:
            tensors = (self.groups.order, self.groups.starts, self.groups.rows)
            ids = tokens.reshape(-1)
            if rows is not None:
                ids = np.searchsorted(rows, ids).astype(np.uint32)
            for tensor, array in zip(tensors, group_tokens(ids), strict=True):
                ops.write(tensor, array)

    def write_loss_params(
        self, count: int, label_smoothing: float, z_loss: float, scale: float = 1.0
    ) -> None:
        """Write the weights of the loss's parts for a step of `count` targets that count.

        scale: factor of all gradients.
        """
        share = scale / count if count else 0.0
        params = [share, label_smoothing, z_loss, 1 / self.model.config.vocab_size]
        self.model.operations.write(self._loss_params, np.array(params, np.float32))

    def record_losses(self) -> None:
        """Record the forward pass up to `losses` (N,)."""
        self._record_forward()
        for start, stop in self._blocks():
            self._record_block_loss(start, stop)

    def record_gradients(self, final: Callable[[str], None] = lambda start: None) -> None:
        """Record both passes: write `losses`, and add the gradients to the tensors given.

        final: called with how the names of weights start whose gradients nothing changes that is
            recorded later.
        """
        self._record_forward()
        assert self._gradients is not None
        ops, model, inside = self.model.operations, self.model, self._inside
        # A tied table gets gradients from both ends: as output layer here, as embedding below.
        head = self._gradients.get(EMBEDDING if model.config.tied else OUTPUT)
        for start, stop in self._blocks():
            logits = self._record_block_loss(start, stop)
            hidden, gradient = (t.rows(start, stop) for t in (self.final_normed, inside.normed))
            if head is not None:
                ops.linear_backward_weight(logits, hidden, head)
            ops.linear_backward_input(logits, model.output_weight, gradient, accumulate=False)
        if not model.config.tied:
            final(OUTPUT)
        # Backward norms add to the gradient of their input: the residual stream collects them.
        ops.fill_zero(inside.residual)
        ops.rms_norm_backward(
            self._final_norm(), inside.normed, inside.residual, self._gradients[FINAL_NORM]
        )
        # Backwards through the layers, each of which leaves its part in the residual gradient.
        last = model.config.layers - 1
        for layer in reversed(range(model.config.layers)):
            if self._recompute and layer < last:  # what is inside the last layer is still there
                self._record_layer(layer, again=True)
            self._record_ffn_backward(layer)
            self._record_attention_backward(layer)
            final(f"model.layers.{layer}.")
        # What is left is the gradient of the embedding's output.
        if EMBEDDING in self._gradients:
            table = self._gradients[EMBEDDING]
            ops.embed_backward_grouped(self.groups, inside.residual, table)

    def _record_forward(self) -> None:
        ops, model = self.model.operations, self.model
        ops.embed_lookup(self.tokens, model.working[EMBEDDING], self.embedded)
        for layer in range(model.config.layers):
            self._record_layer(layer)
        ops.rms_norm(self._final_norm(), model.config.norm_epsilon)

    def _record_layer(self, layer: int, *, again: bool = False) -> None:
        x, a = self._layer_input(layer), self._activations[layer]
        self.model.record_layer(layer, x, self.positions, a, self._record_attention, again=again)

    def _layer_input(self, layer: int) -> Tensor:
        return self._activations[layer - 1].out if layer else self.embedded

    def _final_norm(self) -> Norm:
        last, weight = self._activations[-1].out, self.model.weights[FINAL_NORM]
        return Norm(last, weight, self.final_normed, self.final_inverse_rms)

    def _record_attention(self, tensors: AttentionTensors) -> None:
        self.model.operations.attention(tensors, self._starts, self._shape)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self.rows, self.block_rows):
            yield start, min(start + self.block_rows, self.rows)

    def _record_block_loss(self, start: int, stop: int) -> Tensor:
        """Record logits and losses of a block of rows; return the logits' gradient."""
        ops, tokens = self.model.operations, self.model.config.vocab_size
        logits = self.logits.rows(0, stop - start)
        gradient = self._logits_gradient.rows(0, stop - start)
        ops.linear(self.final_normed.rows(start, stop), self.model.output_weight, logits)
        if self.likeliest is not None:
            ops.argmax(logits, self.likeliest.rows(start, stop), tokens)
        ops.cross_entropy(
            logits,
            self.targets.rows(start, stop),
            self.losses.rows(start, stop),
            self._loss_params,
            tokens=tokens,
            gradient=gradient if gradient.is_half else None,
        )
        return gradient

    def _record_ffn_backward(self, layer: int) -> None:
        """Record the backward pass from a layer's output to its middle."""
        ops, a, g = self.model.operations, self._activations[layer], self._inside
        w, d = self.model.layers[layer], self._of_weights[layer]
        residual = g.operand(g.residual)
        if self.model.mixed:
            self.model.record_activation(a)
        ops.linear_backward_weight(residual, a.activated, d.down)
        ops.linear_backward_input(residual, w.down, g.activated, accumulate=False)
        if a.inner is not None and g.inner is not None:
            ops.activate_backward(self.model.activation, [a.inner], g.activated, [g.inner])
            self._record_packed_backward("mlp", layer, g.inner, a.ffn_normed)
        elif a.up is not None and g.up is not None:
            if a.gate is None or g.gate is None or d.gate is None:
                ops.activate_backward(self.model.activation, [a.up], g.activated, [g.up])
            else:
                inner, gradients = [a.gate, a.up], [g.gate, g.up]
                ops.activate_backward(self.model.activation, inner, g.activated, gradients)
                ops.linear_backward_weight(g.gate, a.ffn_normed, d.gate)
            ops.linear_backward_weight(g.up, a.ffn_normed, d.up)
            ops.linear_backward_input(g.up, w.up, g.normed, accumulate=False)
            if w.gate is not None and g.gate is not None:
                ops.linear_backward_input(g.gate, w.gate, g.normed, accumulate=True)
        norm = Norm(a.middle, w.ffn_norm, a.ffn_normed, a.ffn_inverse_rms)
        ops.rms_norm_backward(norm, g.normed, g.residual, d.ffn_norm)

    def _record_attention_backward(self, layer: int) -> None:
        """Record the backward pass from a layer's middle to its input."""
        ops, a, g = self.model.operations, self._activations[layer], self._inside
        w, d = self.model.layers[layer], self._of_weights[layer]
        heads = g.attention
        residual = g.operand(g.residual)
        ops.linear_backward_weight(residual, a.attended, d.attention_out)
        ops.linear_backward_input(residual, w.attention_out, heads.out, accumulate=False)
        ops.attention_backward(a.attention, heads, self._starts, self._shape)
        if g.heads is None:
            self._record_heads_backward(layer)
        else:
            rotation, starts = (
                self.model.rotation(self.positions),
                self.model.packed_heads[layer].starts,
            )
            ops.join_heads(heads, rotation, g.heads, starts)
            self._record_packed_backward("self_attn", layer, g.heads, a.attention_normed)
        x = self._layer_input(layer)
        norm = Norm(x, w.attention_norm, a.attention_normed, a.attention_inverse_rms)
        ops.rms_norm_backward(norm, g.normed, g.residual, d.attention_norm)

    def _record_heads_backward(self, layer: int) -> None:
        """Record the backward pass from queries, keys and values to a norm's output."""
        ops, a, g = self.model.operations, self._activations[layer], self._inside
        w, d = self.model.layers[layer], self._of_weights[layer]
        heads, rotation = g.attention, self.model.rotation(self.positions)
        norms = a.projections
        of_queries = g.of_product(
            heads.q, rotation, norms.q_norm, (w.query_norm, d.query_norm), d.query_bias
        )
        of_keys = g.of_product(
            heads.k, rotation, norms.k_norm, (w.key_norm, d.key_norm), d.key_bias
        )
        triples = (
            (of_queries, w.query, d.query),
            (of_keys, w.key, d.key),
            (g.of_product(heads.v, bias_gradient=d.value_bias), w.value, d.value),
        )
        for index, (operand, weight, weight_gradient) in enumerate(triples):
            ops.linear_backward_weight(operand, a.attention_normed, weight_gradient)
            ops.linear_backward_input(operand, weight, g.normed, accumulate=index > 0)

    def _record_packed_backward(self, role: str, layer: int, gradient: Tensor, x: Tensor) -> None:
        """Record both gradients of the product of `x` and weights that lie side by side."""
        ops, model = self.model.operations, self.model
        packed = model.packed_inner if role == "mlp" else model.packed_heads
        together = self._packed_gradients[f"model.layers.{layer}.{role}"]
        ops.linear_backward_weight(gradient, x, together.tensor)
        ops.linear_backward_input(
            gradient, packed[layer].tensor, self._inside.normed, accumulate=False
        )


def logits_block_rows(
    operations: Operations, config: ModelConfig, rows: int, most_bytes: int
) -> int:
    """Return how many rows' logits are held at a time, in up to `most_bytes` bytes."""
    fitting = min(most_bytes, operations.max_tensor_bytes) // (4 * config.padded_vocab_size)
    if fitting >= rows:
        return rows
    return max(ROW_ALIGNMENT, fitting // ROW_ALIGNMENT * ROW_ALIGNMENT)
