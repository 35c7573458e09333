"""Loss and gradients of a batch: the forward pass and the backward pass.

The logits of all rows would often be the largest tensor by far. So the output layer, the loss and
their gradients are computed in blocks of rows. Shape letters are those of `llmgpu.lm.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.config import EMBEDDING, FINAL_NORM, OUTPUT, ModelConfig
from llmgpu.lm.data.batches import Batch, document_starts
from llmgpu.lm.layers import Backward, Layer, Sequences, make_gradients
from llmgpu.lm.model import LayerWeights, Model
from llmgpu.lm.ops.ids import group_tokens
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import (
    Groups,
    Losses,
    Norm,
    Packed,
    Tensor,
)

LOGITS_BYTES = 2_000_000_000  # most bytes of a block's logits, within the device's limit
MIXED_LOGITS_BYTES = 500_000_000  # the same for the float16 logits of mixed models
ROW_ALIGNMENT = 64  # block starts are multiples of this: 256 bytes even in float32 tensors (N,)


class LossGraph:
    """The computation of the loss of a batch of B sequences of T tokens, and of its gradients.

    gradients: by weight name; `record_gradients` writes the loss's gradients to these tensors.
    packed_gradients: the packed matrices of `gradients`, see `make_weights`. Gradients of tables
    may be left out, since no other gradient follows from them. With None as `gradients`, only
    losses can be recorded. The host calls `write_batch` for each batch, and `write_loss_params`
    before each step.

    separator: an id that separates documents; a token attends to the last separator before it and
        to all tokens since. None: tokens attend to all earlier tokens of the sequence. recompute:
        store only the outputs of layers; the backward pass computes the other tensors of layers
        again. logits_bytes: logits are computed in blocks of rows of at most this many bytes.
    losses: losses of the last batch, (N,) each. likeliest: with `find_likeliest`, the most probable
        id of each row, uint32 (N,).
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
        """Allocate all tensors. Without gradients, all layers share one layer's activations."""
        self.model = model
        self._separator, self._recompute = separator, recompute
        self.rows = batch * seq
        ops, config = model.operations, model.config
        # The inputs of a batch, (N,) with N = B * T. Positions and starts of documents count tokens
        # from the start of the sequence.
        self.tokens = self._ids("tokens")
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
        shape = replace(model.attention_shape(batch, seq), saves_memory=recompute)
        self._sequences = Sequences(model.rotation(self.positions), self._starts, shape)
        # The losses, and the tensors outside of layers.
        self._loss_params = ops.tensor("loss parameters", (4,))
        names = ("losses", "label smoothing", "z-losses")
        parts = (ops.tensor(name, (self.rows,)) for name in names)
        self.losses = Losses(self._ids("targets"), *parts)
        self.embedded = ops.tensor("embedded", (self.rows, config.dim))
        half = np.float16 if model.mixed else np.float32
        self.final_normed = ops.tensor("final norm", (self.rows, config.dim), half)
        self.final_inverse_rms = ops.tensor("final norm's scale", (self.rows,))
        # The logits (block_rows, V) of a block of rows; their gradients replace them.
        most = logits_bytes or (MIXED_LOGITS_BYTES if model.mixed else LOGITS_BYTES)
        # `argmax` reads float32 logits.
        of_logits = np.dtype(np.float32 if find_likeliest else half)
        self.block_rows = logits_block_rows(ops, config, self.rows, most, of_logits.itemsize)
        if model.mixed:  # blocks of equal size: a small last block would leave the device idle
            blocks = -(-self.rows // self.block_rows)
            self.block_rows = -(-self.rows // (blocks * ROW_ALIGNMENT)) * ROW_ALIGNMENT
        width = config.padded_vocab_size
        self.logits = ops.tensor("logits", (self.block_rows, width), of_logits)
        self.likeliest = self._ids("likeliest tokens") if find_likeliest else None
        # The layers, and with gradients the tensors of the backward pass.
        self._gradients = gradients
        self._make_layers(keep_all=gradients is not None)
        if gradients is not None:
            self._inside = make_gradients(model, self.rows)
            tensors = gradients, packed_gradients or {}
            self._of_weights = [LayerWeights(*tensors, k) for k in range(config.layers)]

    def _ids(self, name: str) -> Tensor:
        return self.model.operations.tensor(name, (self.rows,), np.uint32)

    def _make_layers(self, *, keep_all: bool) -> None:
        """Create the layers, and the residual stream (N, C) before and after each layer."""
        model, count = self.model, self.model.config.layers
        make = partial(Layer, model, self.rows, mixed=model.mixed)
        # Without gradients one tensor is enough: a layer writes its output after reading its input.
        self._streams = (count + 1) * [self.embedded]
        if keep_all:
            shape = self.embedded.shape
            outs = [model.operations.tensor(f"layer {k} residual", shape) for k in range(count)]
            self._streams[1:] = outs
        if keep_all and not self._recompute:
            self._layers = [make(f"layer {k}") for k in range(count)]
        else:
            self._layers = count * [make("layer")]

    def write_batch(self, batch: Batch, rows: NDArray[np.uint32] | None = None) -> None:
        """Write the ids and targets of the next batch. The caller has checked both.

        rows: ascending ids; the gradient of the embedding table has a row for each. None: all ids.
        """
        ops, (tokens, targets) = self.model.operations, batch
        ops.write(self.tokens, tokens)
        ops.write(self.losses.targets, targets)
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
        """Write the parameters of the loss for a step of `count` valid targets.

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

    @property
    def _head(self) -> str:
        """The name of the output layer's matrix; in a tied model the embedding table."""
        return EMBEDDING if self.model.config.tied else OUTPUT

    def written(self) -> set[str]:
        """Return the names of the gradients that `record_gradients` can overwrite."""
        hidden = {weight.name for weight in self.model.config.weights() if weight.is_hidden}
        return (hidden | {self._head}) & set(self._gradients or ())

    def late(self) -> set[str]:
        """Return the names of the gradients that are complete only after `record_gradients`."""
        # These are the gradients of norms, the weights that start as ones.
        return {each.name for each in self.model.config.weights() if each.deviation is None}

    def record_gradients(
        self, final: Callable[[str], None] = lambda start: None, *, accumulate: bool = True
    ) -> None:
        """Record both passes: write `losses`, and add to the gradients of weights.

        final: called with a prefix of weights' names when the gradients of these weights, except
            those that `late` names, are complete: no operation recorded later changes them.
        accumulate: False: overwrite the gradients that `written` names, instead of adding to them.
        """
        assert self._gradients is not None
        self._record_forward()
        late = {self._gradients[name].name for name in self.late()}
        with self.model.operations.late_norm_sums(len(late)):
            self._record_backward(self._gradients, final, accumulate)

    def _record_backward(
        self, gradients: Mapping[str, Tensor], final: Callable[[str], None], accumulate: bool
    ) -> None:
        ops, model, inside = self.model.operations, self.model, self._inside
        # The gradient of a tied table has two parts: from the output layer here, from the embedding
        # below.
        head = gradients.get(self._head)
        for start, stop in self._blocks():
            logits = self._record_block_loss(start, stop)
            hidden, gradient = (t.rows(start, stop) for t in (self.final_normed, inside.normed))
            if head is not None:
                adds = accumulate or start > 0
                ops.linear_backward_weight(logits, hidden, head, accumulate=adds)
            ops.linear_backward_input(logits, model.output_weight, gradient, accumulate=False)
        if not model.config.tied:
            final(OUTPUT)
        # Norms add to the gradient of their input, so `inside.residual` collects all gradients of
        # the residual stream.
        ops.fill_zero(inside.residual)
        inside.add_through_norm(ops, self._final_norm(), gradients[FINAL_NORM])
        # Go backwards through the layers. Each layer adds its part to `inside.residual`.
        last = model.config.layers - 1
        for k in reversed(range(model.config.layers)):
            if self._recompute and k < last:  # the tensors of the last layer are still in memory
                self._record_layer(k, again=True)
            pass_ = Backward(model.layers[k], self._of_weights[k], inside, accumulate)
            self._layers[k].record_backward(pass_, self._streams[k], self._sequences)
            final(f"model.layers.{k}.")
        # Now `inside.residual` is the gradient of the embedding's output.
        if EMBEDDING in gradients:
            table = gradients[EMBEDDING]
            ops.embed_backward_grouped(self.groups, inside.residual, table)

    def _record_forward(self) -> None:
        ops, model = self.model.operations, self.model
        ops.embed_lookup(self.tokens, model.working[EMBEDDING], self.embedded)
        for layer in range(model.config.layers):
            self._record_layer(layer)
        ops.rms_norm(self._final_norm(), model.config.norm_epsilon)

    def _record_layer(self, k: int, *, again: bool = False) -> None:
        x, out = self._streams[k : k + 2]
        self._layers[k].record(self.model.layers[k], x, out, self._sequences, again=again)

    def _final_norm(self) -> Norm:
        last, weight = self._streams[-1], self.model.weights[FINAL_NORM]
        return Norm(last, weight, self.final_normed, self.final_inverse_rms)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self.rows, self.block_rows):
            yield start, min(start + self.block_rows, self.rows)

    def _record_block_loss(self, start: int, stop: int) -> Tensor:
        """Record logits and losses of a block of rows; return the gradient of the logits."""
        ops, tokens = self.model.operations, self.model.config.vocab_size
        logits = self.logits.rows(0, stop - start)
        ops.linear(self.final_normed.rows(start, stop), self.model.output_weight, logits)
        if self.likeliest is not None:
            ops.argmax(logits, self.likeliest.rows(start, stop), tokens)
        ops.cross_entropy(logits, self.losses.rows(start, stop), self._loss_params, tokens)
        return logits


def logits_block_rows(
    operations: Operations, config: ModelConfig, rows: int, most_bytes: int, logit_bytes: int = 4
) -> int:
    """Return the number of rows in a block whose logits take at most `most_bytes` bytes.

    logit_bytes: bytes of a logit. A block has at least `ROW_ALIGNMENT` rows, or all rows.
    """
    row_bytes = logit_bytes * config.padded_vocab_size
    fitting = min(most_bytes, operations.max_tensor_bytes) // row_bytes
    if fitting >= rows:
        return rows
    return max(ROW_ALIGNMENT, fitting // ROW_ALIGNMENT * ROW_ALIGNMENT)
