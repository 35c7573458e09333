"""The forward and the backward pass of a layer.

::

    x -> norm -> heads -> attention -> + -> norm -> inner products -> activation -> +

The heads are queries, keys and values. The inner products are gate and up, or only up in a network
without gate. The operands of products are weights, activations, and the gradients of products. In a
mixed model operands are float16, otherwise float32. The residual stream and the scales of norms are
always float32. Shape letters are those of `llmgpu.lm.ops`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmgpu.lm.config import ModelConfig
from llmgpu.lm.model import LayerWeights, Model
from llmgpu.lm.ops.activations import ActivationTensors
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    HeadTensors,
    Norm,
    PackedGradient,
    Rotation,
    Tensor,
)

ROLES = ("queries", "keys", "values")


@dataclass(frozen=True)
class Sequences:
    """The sequences of a batch. Rows of tensors are the sequences' tokens.

    rotation: the angles of the tokens. starts, shape: see `Operations.attention`.
    cache: keys and values of earlier tokens, if any; the pass appends the tokens' own, and `starts`
        are `NewRows.places`.
    """

    rotation: Rotation
    starts: Tensor
    shape: AttentionShape
    cache: Tensor | None = None


class RowTensors:
    """Creates tensors of `rows` rows on a model's backend, with names that start with `prefix`.

    mixed: operands of products are float16.
    """

    def __init__(self, model: Model, rows: int, prefix: str, *, mixed: bool) -> None:
        self._operations, self._rows, self._prefix = model.operations, rows, prefix
        self.mixed = mixed

    def single(self, role: str, *widths: int) -> Tensor:
        """Create a float32 tensor (rows, *widths)."""
        return self._operations.tensor(f"{self._prefix} {role}", (self._rows, *widths))

    def operand(self, role: str, width: int) -> Tensor:
        """Create an operand of products, (rows, width)."""
        name, dtype = f"{self._prefix} {role}", np.float16 if self.mixed else np.float32
        return self._operations.tensor(name, (self._rows, width), dtype)

    def heads(self, config: ModelConfig, *, together: int, half: bool = False) -> list[Tensor]:
        """Create tensors of queries, keys and values.

        together: number of tensors, the last ones, that one buffer holds, because kernels on
            matrix units bind them as a whole.
        """
        widths = zip(ROLES, (config.query_dim, config.kv_dim, config.kv_dim), strict=True)
        shapes = [(f"{self._prefix} {role}", (self._rows, width)) for role, width in widths]
        dtype, alone = np.float16 if half else np.float32, len(shapes) - together
        tensors = [self._operations.tensor(*each, dtype) for each in shapes[:alone]]
        return [*tensors, *self._operations.side_by_side(dict(shapes[alone:]), dtype).values()]

    def operand_of(self, tensor: Tensor) -> Tensor:
        """Return `tensor`, or in a mixed model a new float16 tensor for its rounded numbers."""
        if tensor.is_half or not self.mixed:
            return tensor
        return self._operations.tensor(f"{tensor.name} in half", tensor.shape, np.float16)


@dataclass(frozen=True)
class HeadNorm:
    """Tensors that the backward pass of a norm of heads reads, for queries or for keys."""

    x: Tensor  # (N, heads*D) before the norm
    inverse_rms: Tensor  # (N, heads)

    def of(self, weight: Tensor, out: Tensor) -> Norm:
        """Return the norm of each head, with scales `weight` (D,) and output `out` (N, heads*D)."""
        width = weight.shape[0]
        rows = out.size // width
        x, out = (tensor.reshaped(rows, width) for tensor in (self.x, out))
        return Norm(x, weight, out, self.inverse_rms.reshaped(rows))


@dataclass(frozen=True)
class LayerGradients:
    """Gradients inside a layer, in memory that all layers share.

    An operand is what matrix products read in place of a gradient: in a model of mixed precision a
    float16 copy, otherwise the gradient itself.
    """

    residual: Tensor  # (N, C), float32
    residual_operand: Tensor  # (N, C)
    # Gradient of a norm's output, (N, C): float16 in a mixed model if no product adds to it.
    normed: Tensor
    attended: Tensor  # gradient of attention's output, (N, H*D)
    single_heads: tuple[Tensor, ...]  # float32 queries, keys and values; () with one operand
    heads: tuple[Tensor, ...]  # operands of queries, keys and values, or one operand of all three
    # Gradients of queries and keys before head norms; () without head norms.
    before_norms: tuple[Tensor, ...]
    activated: Tensor  # (N, F)
    # Gradients of gate and up or only up, each (N, F), or both in one (N, R).
    inner: tuple[Tensor, ...]

    def add_through_norm(self, operations: Operations, norm: Norm, grad_weight: Tensor) -> None:
        """Record the gradients of a norm whose output has the gradient `normed`.

        The gradient of the norm's input is added to `residual`, and the operand of `residual` is
        updated.
        """
        gradients = self.normed, self.residual, grad_weight
        if self.residual_operand is self.residual:
            operations.rms_norm_backward(norm, *gradients)
        else:
            operations.rms_norm_backward_to_half(norm, *gradients, self.residual_operand)


@dataclass(frozen=True)
class Backward:
    """The weights and gradients of a layer's backward pass.

    weights: the weights of the layer. of_weights: the gradients of the weights. inside: gradients
        inside the layer. The pass replaces the gradient of the layer's output, in
        `inside.residual` and its operand, by the gradient of the layer's input.
    accumulate: add to the gradients of matrices instead of overwriting them. The pass always adds
        to the gradients of biases and norms.
    """

    weights: LayerWeights
    of_weights: LayerWeights
    inside: LayerGradients
    accumulate: bool


class SeparateHeads:
    """Queries, keys and values by one product each, with biases and norms of heads, if any."""

    def __init__(self, model: Model, new: RowTensors, heads: AttentionTensors) -> None:
        """Allocate queries and keys before the rotation; heads: the tensors after the rotation."""
        self._ops, self._config, self._heads = model.operations, model.config, heads
        self._products: tuple[Tensor, ...] = heads.q, heads.k, heads.v  # float32
        if heads.q.is_half:
            pairs = zip(ROLES, self._products, strict=True)
            self._products = tuple(self._ops.scratch(role, head.shape) for role, head in pairs)
        self._norms: tuple[HeadNorm, ...] = ()
        if model.config.qk_norm:
            counts = model.config.heads, model.config.kv_heads
            self._norms = tuple(
                HeadNorm(
                    new.single(f"{role} before their norm", product.shape[1]),
                    new.single(f"scale of the norm of {role}", count),
                )
                for product, count, role in zip(self._products, counts, ROLES, strict=False)
            )

    def record(self, w: LayerWeights, x: Tensor, rotation: Rotation) -> None:
        """Record rotated queries and keys, and values; x: output of a norm, (N, C)."""
        ops, heads = self._ops, self._heads
        for k, (matrix, out) in enumerate(zip(w.heads.parts, self._products, strict=True)):
            norm = self._norms[k] if k < len(self._norms) else None
            product = out if norm is None else norm.x
            ops.linear(x, matrix, product)
            if w.biases:
                ops.add_bias(product, w.biases[k])
            if norm is not None:
                ops.rms_norm(norm.of(w.head_norms[k], out), self._config.norm_epsilon)
        # Rotate queries and keys by their positions, but not values.
        query, key, value = self._products
        for single, rotated in ((query, heads.q), (key, heads.k)):
            ops.rotary(single, rotation, None if rotated is single else rotated)
        round_operand(ops, value, heads.v)

    def record_backward(self, pass_: Backward, x: Tensor, rows: Sequences) -> None:
        """Record the gradients of attention, of the weights, and of `x`, the output of a norm."""
        ops, w, d, g = self._ops, pass_.weights, pass_.of_weights, pass_.inside
        query, key, value = g.single_heads
        gradients = AttentionGradients(query, key, value, g.attended)
        ops.attention_backward(self._heads, gradients, rows.starts, rows.shape)
        # Undo the rotation, the norm and the bias of queries, keys and values.
        for k, gradient in enumerate(g.single_heads):
            of_product = gradient
            if k < 2:
                ops.rotary(gradient, rows.rotation, inverse=True)
            if k < len(self._norms):
                of_product = g.before_norms[k]
                ops.fill_zero(of_product)  # `rms_norm_backward` adds to this gradient
                norm = self._norms[k].of(w.head_norms[k], gradient)  # `out` holds the gradient here
                grad_x = of_product.reshaped(*norm.x.shape)
                ops.rms_norm_backward(norm, norm.out, grad_x, d.head_norms[k])
            if d.biases:
                ops.bias_backward(of_product, d.biases[k])
            round_operand(ops, of_product, g.heads[k])
        # Compute the gradients of the matrices and of their common input.
        for k, operand in enumerate(g.heads):
            ops.linear_backward_weight(operand, x, d.heads.parts[k], accumulate=pass_.accumulate)
            ops.linear_backward_input(operand, w.heads.parts[k], g.normed, accumulate=k > 0)


class PackedHeads:
    """Queries, keys and values by a single product, side by side in half precision.

    The model has neither biases nor norms of heads. `SeparateHeads` documents the
    methods.
    """

    def __init__(self, model: Model, heads: AttentionTensors) -> None:
        """Allocate the tensor of the product, which all layers share."""
        self._ops, self._heads = model.operations, heads
        shape = (heads.q.shape[0], model.layers[0].heads.tensor.shape[0])
        self._product = self._ops.scratch("heads side by side", shape, np.float16)

    def record(self, w: LayerWeights, x: Tensor, rotation: Rotation) -> None:
        self._ops.linear(x, w.heads.tensor, self._product)
        self._ops.split_heads(self._product, w.heads.starts, rotation, self._heads)

    def record_backward(self, pass_: Backward, x: Tensor, rows: Sequences) -> None:
        ops, w, d, g = self._ops, pass_.weights, pass_.of_weights, pass_.inside
        (gradient,) = g.heads
        of_heads = PackedGradient(g.attended, gradient, w.heads.starts, rows.rotation)
        ops.attention_backward_to_packed(self._heads, of_heads, rows.starts, rows.shape)
        packed, d_packed = w.heads.tensor, d.heads.tensor
        ops.linear_backward_weight(gradient, x, d_packed, accumulate=pass_.accumulate)
        ops.linear_backward_input(gradient, packed, g.normed, accumulate=False)


class Layer:
    """The forward and backward pass of a layer, and the tensors that the backward pass reads.

    With half-precision operands, all layers share the memory of the activation, which the backward
    pass computes again.
    """

    def __init__(self, model: Model, rows: int, name: str, *, mixed: bool) -> None:
        """Allocate the tensors.

        name: prefix of their names. mixed: operands are float16.
        """
        new, config = RowTensors(model, rows, name, mixed=mixed), model.config
        self._ops, self._epsilon, self._mixed = model.operations, config.norm_epsilon, mixed
        # Attention reads half precision if the device has matrix units for heads of this width.
        in_half = mixed and model.operations.attends_in_half(config.head_dim)
        q, k, v = new.heads(config, together=3 if in_half else 1, half=in_half)
        self.attention = AttentionTensors(
            q=q,
            k=k,
            v=v,
            out=(new.operand if in_half else new.single)("attention", config.query_dim),
            log_sum_exp=new.single("attention's normaliser", config.heads),
        )
        self._attended = new.operand_of(self.attention.out)
        self._heads: SeparateHeads | PackedHeads
        if in_half and config.has_plain_heads:
            self._heads = PackedHeads(model, self.attention)
        else:
            self._heads = SeparateHeads(model, new, self.attention)
        # The norm before attention, the residual stream after attention, and the norm after it.
        self._attention_normed = new.operand("attention norm", config.dim)
        self._attention_scale = new.single("attention norm's scale")
        self._middle = new.single("residual after attention", config.dim)
        self._ffn_normed = new.operand("feed-forward norm", config.dim)
        self._ffn_scale = new.single("feed-forward norm's scale")
        # The feed-forward network.
        inner = _inner(model, new, "gate")
        if mixed:
            activated = self._ops.scratch("activation", (rows, config.ffn_dim), np.float16)
        else:
            activated = new.single("activation", config.ffn_dim)
        self._activation = ActivationTensors(model.activation, inner, activated)

    def record(
        self, w: LayerWeights, x: Tensor, out: Tensor, rows: Sequences, *, again: bool = False
    ) -> None:
        """Record the forward pass from `x` (N, C) to `out`, which may be the same tensor.

        again: compute only the tensors that the backward pass reads, and do not write `out`.
        """
        ops = self._ops
        # Attention adds to the residual stream.
        ops.rms_norm(self._attention_norm(w, x), self._epsilon)
        self._heads.record(w, self._attention_normed, rows.rotation)
        if rows.cache is None:
            ops.attention(self.attention, rows.starts, rows.shape)
        else:
            self._attend_over(rows.cache, rows)
        attended = round_operand(ops, self.attention.out, self._attended)
        ops.linear(attended, w.attention_out, self._middle, residual=x)
        # The feed-forward network adds to the residual stream, too.
        ops.rms_norm(self._ffn_norm(w), self._epsilon)
        products = self._activation.inner
        for weight, product in reversed([*zip(self._inner_of(w), products, strict=True)]):
            ops.linear(self._ffn_normed, weight, product)
        if not (again and self._mixed):
            ops.activate(self._activation)
        if not again:
            ops.linear(self._activation.out, w.down, out, residual=self._middle)

    def _attend_over(self, cache: Tensor, rows: Sequences) -> None:
        """Record the copy of keys and values to a cache, and attention over the cache."""
        heads = self.attention
        for x, column in ((heads.k, 0), (heads.v, heads.k.shape[1])):
            self._ops.cache_append(x, cache, rows.starts, column)
        cached = HeadTensors(heads.q, cache)
        self._ops.attention_cached(cached, rows.starts, heads.out, rows.shape)

    def record_backward(self, pass_: Backward, x: Tensor, rows: Sequences) -> None:
        """Record the backward pass from the layer's output to its input `x` (N, C)."""
        ops, w, d, g = self._ops, pass_.weights, pass_.of_weights, pass_.inside
        accumulate = pass_.accumulate
        # From the layer's output to the residual stream after attention.
        residual = g.residual_operand
        ops.linear_backward_input(residual, w.down, g.activated, accumulate=False)
        backward = ops.activate_and_backward if self._mixed else ops.activate_backward
        backward(self._activation, g.activated, g.inner)
        ops.linear_backward_weight(residual, self._activation.out, d.down, accumulate=accumulate)
        for gradient, of_weight in zip(g.inner, self._inner_of(d), strict=True):
            ops.linear_backward_weight(gradient, self._ffn_normed, of_weight, accumulate=accumulate)
        # Start with the gradient of the up projection: the order of the terms decides the bits.
        backwards = reversed([*zip(g.inner, self._inner_of(w), strict=True)])
        for k, (gradient, weight) in enumerate(backwards):
            ops.linear_backward_input(gradient, weight, g.normed, accumulate=k > 0)
        g.add_through_norm(ops, self._ffn_norm(w), d.ffn_norm)
        # From the residual stream after attention to the layer's input.
        out = d.attention_out
        ops.linear_backward_weight(residual, self._attended, out, accumulate=accumulate)
        ops.linear_backward_input(residual, w.attention_out, g.attended, accumulate=False)
        self._heads.record_backward(pass_, self._attention_normed, rows)
        g.add_through_norm(ops, self._attention_norm(w, x), d.attention_norm)

    def _attention_norm(self, w: LayerWeights, x: Tensor) -> Norm:
        return Norm(x, w.attention_norm, self._attention_normed, self._attention_scale)

    def _ffn_norm(self, w: LayerWeights) -> Norm:
        return Norm(self._middle, w.ffn_norm, self._ffn_normed, self._ffn_scale)

    def _inner_of(self, weights: LayerWeights) -> tuple[Tensor, ...]:
        """Return the weights of the inner products, or their gradients."""
        inner = weights.inner
        return (inner.tensor,) if self._activation.are_packed else inner.parts


def make_gradients(model: Model, rows: int) -> LayerGradients:
    """Allocate the gradients inside the layers of a model."""
    new, config = RowTensors(model, rows, "gradient of", mixed=model.mixed), model.config
    in_half = model.mixed and model.operations.attends_in_half(config.head_dim)
    residual = new.single("the residual stream", config.dim)
    # Gradients that attention writes, and gradients before head norms.
    is_packed = in_half and config.has_plain_heads
    of_heads = () if is_packed else tuple(new.heads(config, together=2 if in_half else 1))
    widths = zip(ROLES, (config.query_dim, config.kv_dim), strict=False)
    before_norms = tuple(
        new.single(f"{role} before their norm", width) for role, width in widths if config.qk_norm
    )
    inner = _inner(model, new, "the gate")
    normed = new.operand if is_packed and len(inner) == 1 and config.dim % 4 == 0 else new.single
    # Operands of the gradients of queries, keys and values: one for all three, or one for each.
    if is_packed:
        width = model.layers[0].heads.tensor.shape[0]
        heads: tuple[Tensor, ...] = (new.operand("queries, keys and values", width),)
    else:
        singles = (*before_norms, *of_heads[len(before_norms) :])
        heads = tuple(new.operand_of(single) for single in singles)
    return LayerGradients(
        residual=residual,
        residual_operand=new.operand_of(residual),
        normed=normed("a norm's output", config.dim),
        attended=(new.operand if in_half else new.single)("attention", config.query_dim),
        single_heads=of_heads,
        heads=heads,
        before_norms=before_norms,
        activated=new.operand("the activation", config.ffn_dim),
        inner=inner,
    )


def _inner(model: Model, new: RowTensors, gate: str) -> tuple[Tensor, ...]:
    """Allocate gate and up, or only up.

    In a mixed model, gate and up are one tensor if F is a multiple of 4, as `activate` requires.

    gate: name of the gate's tensor.
    """
    config = model.config
    if new.mixed and config.is_gated and config.ffn_dim % 4 == 0:
        return (new.operand("gate and up", model.layers[0].inner.tensor.shape[0]),)
    roles = (gate, "up") if config.is_gated else ("up",)
    return tuple(new.operand(role, config.ffn_dim) for role in roles)


def round_operand(operations: Operations, single: Tensor, operand: Tensor) -> Tensor:
    """Record an operation that rounds `single` to half precision into `operand`; return `operand`.

    If both are the same tensor, there is nothing to record.
    """
    if operand is not single:
        operations.round_to_half(single, operand)
    return operand
