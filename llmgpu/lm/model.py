"""The model: its weights in memory, and a forward pass over them.

::

    ids -> embedding -> layers x [norm, attention, +, norm, feed-forward, +] -> norm -> logits

Each layer adds to the residual stream: attention with rotary positions over grouped key/value
heads, then a feed-forward network (SwiGLU, or GeLU without gate). Llama: H. Touvron et al.,
arXiv 2302.13971. Shape letters are those of `llmgpu.lm.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import DTypeLike, NDArray

from llmgpu.errors import DeviceError
from llmgpu.lm.config import EMBEDDING, OUTPUT, ModelConfig, Weight
from llmgpu.lm.ops.activations import BY_NAME
from llmgpu.lm.ops.layers import rotary_frequencies, rotary_tables
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import (
    AnyArray,
    AttentionShape,
    AttentionTensors,
    Norm,
    Packed,
    Rotation,
    Tensor,
    make_packed,
)
from llmgpu.lm.options import Initialisation


@dataclass(frozen=True)
class LayerWeights:
    """The tensors of one layer, by their role; None: the model has no such weight."""

    attention_norm: Tensor  # (C,)
    query: Tensor  # (H*D, C)
    key: Tensor  # (K*D, C)
    value: Tensor  # (K*D, C)
    attention_out: Tensor  # (C, H*D)
    query_bias: Tensor | None  # (H*D,)
    key_bias: Tensor | None  # (K*D,)
    value_bias: Tensor | None  # (K*D,)
    query_norm: Tensor | None  # (D,)
    key_norm: Tensor | None  # (D,)
    ffn_norm: Tensor  # (C,)
    gate: Tensor | None  # (F, C)
    up: Tensor  # (F, C)
    down: Tensor  # (C, F)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], layer: int) -> LayerWeights:
        """Pick a layer's tensors from all of them, by Hugging Face's names."""
        prefix = f"model.layers.{layer}"
        return cls(
            attention_norm=tensors[f"{prefix}.input_layernorm.weight"],
            query=tensors[f"{prefix}.self_attn.q_proj.weight"],
            key=tensors[f"{prefix}.self_attn.k_proj.weight"],
            value=tensors[f"{prefix}.self_attn.v_proj.weight"],
            attention_out=tensors[f"{prefix}.self_attn.o_proj.weight"],
            query_bias=tensors.get(f"{prefix}.self_attn.q_proj.bias"),
            key_bias=tensors.get(f"{prefix}.self_attn.k_proj.bias"),
            value_bias=tensors.get(f"{prefix}.self_attn.v_proj.bias"),
            query_norm=tensors.get(f"{prefix}.self_attn.q_norm.weight"),
            key_norm=tensors.get(f"{prefix}.self_attn.k_norm.weight"),
            ffn_norm=tensors[f"{prefix}.post_attention_layernorm.weight"],
            gate=tensors.get(f"{prefix}.mlp.gate_proj.weight"),
            up=tensors[f"{prefix}.mlp.up_proj.weight"],
            down=tensors[f"{prefix}.mlp.down_proj.weight"],
        )


@dataclass(frozen=True)
class HeadNorm:
    """What the norm of each head of queries, or of keys, reads and leaves for its gradient."""

    x: Tensor  # (N, heads*D) before the norm
    inverse_rms: Tensor  # (N, heads)

    def of(self, weight: Tensor, out: Tensor) -> Norm:
        """Return the norm of rows of one head each, by a weight (D,), into `out` (N, heads*D)."""
        width = weight.shape[0]
        rows = out.size // width
        x, out = (tensor.reshaped(rows, width) for tensor in (self.x, out))
        return Norm(x, weight, out, self.inverse_rms.reshaped(rows))


@dataclass(frozen=True)
class Projections:
    """Queries, keys and values before positions enter; the tensors of attention, if in float32."""

    q: Tensor  # (N, H*D)
    k: Tensor  # (N, K*D)
    v: Tensor  # (N, K*D)
    q_norm: HeadNorm | None = None
    k_norm: HeadNorm | None = None
    packed: Tensor | None = None  # (N, R) in half precision, side by side, in place of all these


@dataclass(frozen=True)
class PackedWidths:
    """Columns of a layer's queries, keys and values, and of its gate and up, side by side."""

    heads: int
    inner: int


def packs_heads(operations: Operations, config: ModelConfig) -> bool:
    """Whether queries, keys and values are one product where operands are in half precision."""
    is_plain = not (config.qk_norm or config.qkv_bias)
    return is_plain and operations.attends_in_half(config.head_dim)


def packs_inner(config: ModelConfig) -> bool:
    """Whether gate and up are one product where operands are in half precision."""
    return config.is_gated and config.ffn_dim % 4 == 0


def round_operand(operations: Operations, single: Tensor, operand: Tensor) -> Tensor:
    """Record the rounding of what a product takes, where that is another tensor; return it."""
    if operand is not single:
        operations.round_to_half(single, operand)
    return operand


@dataclass(frozen=True)
class LayerActivations:
    """What a layer computes and its gradient needs.

    With half-precision operands, all but the residual stream and what norms leave for their
    gradients is in half precision, and layers share the activation, which the backward pass
    computes again.
    """

    attention_normed: Tensor  # (N, C)
    attention_inverse_rms: Tensor  # (N,)
    projections: Projections
    attention: AttentionTensors
    attended: Tensor  # (N, H*D) what products take of attention's output
    middle: Tensor  # (N, C) residual stream after attention
    ffn_normed: Tensor  # (N, C)
    ffn_inverse_rms: Tensor  # (N,)
    gate: Tensor | None  # (N, F)
    up: Tensor | None  # (N, F)
    inner: Tensor | None  # (N, R) in half precision, gate and up side by side, in place of these
    activated: Tensor  # (N, F)
    out: Tensor  # (N, C) residual stream after the layer

    @classmethod
    def make(
        cls,
        operations: Operations,
        config: ModelConfig,
        rows: int,
        name: str,
        out: Tensor,
        packed: PackedWidths | None = None,
    ) -> LayerActivations:
        """Make the tensors for `rows` rows; `out` may be the tensor that the layer reads.

        packed: those of the model if products take half-precision operands.
        """

        mixed = packed is not None
        in_half = mixed and operations.attends_in_half(config.head_dim)

        def tensor(role: str, *widths: int, half: bool = False) -> Tensor:
            kind = np.float16 if half else np.float32
            return operations.tensor(f"{name} {role}", (rows, *widths), kind)

        attention = AttentionTensors(
            q=tensor("queries", config.query_dim, half=in_half),
            k=tensor("keys", config.kv_dim, half=in_half),
            v=tensor("values", config.kv_dim, half=in_half),
            out=tensor("attention", config.query_dim, half=in_half),
            log_sum_exp=tensor("attention's normaliser", config.heads),
        )
        projections = _make_projections(operations, config, name, attention, packed)
        attended = attention.out
        if mixed and not in_half:
            attended = tensor("attention in half", config.query_dim, half=True)
        inner = up = gate = None
        if packed is not None and packs_inner(config):
            inner = tensor("gate and up", packed.inner, half=True)
        else:
            up = tensor("up", config.ffn_dim, half=mixed)
            gate = tensor("gate", config.ffn_dim, half=mixed) if config.is_gated else None
        return cls(
            attention_normed=tensor("attention norm", config.dim, half=mixed),
            attention_inverse_rms=tensor("attention norm's scale"),
            projections=projections,
            attention=attention,
            attended=attended,
            middle=tensor("residual after attention", config.dim),
            ffn_normed=tensor("feed-forward norm", config.dim, half=mixed),
            ffn_inverse_rms=tensor("feed-forward norm's scale"),
            gate=gate,
            up=up,
            inner=inner,
            activated=operations.scratch("activation", (rows, config.ffn_dim), np.float16)
            if mixed
            else tensor("activation", config.ffn_dim),
            out=out,
        )


def _make_projections(
    operations: Operations,
    config: ModelConfig,
    name: str,
    heads: AttentionTensors,
    packed: PackedWidths | None,
) -> Projections:
    """Make the tensors before positions enter; heads: those after it, which serve in float32."""
    rows = heads.q.shape[0]
    projections = Projections(heads.q, heads.k, heads.v)
    if packed is not None and packs_heads(operations, config):
        together = operations.scratch("heads side by side", (rows, packed.heads), np.float16)
        projections = replace(projections, packed=together)
    elif heads.q.is_half:
        projections = Projections(
            operations.scratch("queries", heads.q.shape),
            operations.scratch("keys", heads.k.shape),
            operations.scratch("values", heads.v.shape),
        )
    if config.qk_norm:
        q_norm, k_norm = (
            HeadNorm(
                operations.tensor(f"{name} {role} before their norm", (rows, of.shape[1])),
                operations.tensor(f"{name} scale of the norm of {role}", (rows, count)),
            )
            for role, of, count in (
                ("queries", heads.q, config.heads),
                ("keys", heads.k, config.kv_heads),
            )
        )
        projections = replace(projections, q_norm=q_norm, k_norm=k_norm)
    return projections


class Model:
    """Weights in the memory of a backend.

    weights: float32, by name. half_copies: the matrices in half precision, if the model computes
    with those. working: what products read, the half-precision copy of a weight if it has one.
    packed_heads, packed_inner: of each layer the working queries, keys and values in one, and gate
    (if there is one) and up in one. mixed: products take half-precision activations and gradients,
    too.
    """

    def __init__(
        self,
        operations: Operations,
        config: ModelConfig,
        *,
        half: bool = False,
        mixed: bool = False,
    ) -> None:
        """Make all weights, zeros at first.

        Raises:
            DeviceError: half precision on a device without it, or no memory left.
        """
        if half and not operations.has_half_precision:
            raise DeviceError(
                "the device has no half-precision numbers (shader-f16); use --precision f32"
            )
        self.operations = operations
        self.config = config
        self.mixed = mixed
        self.activation = BY_NAME[config.activation]
        self.weights, packed = make_weights(operations, config.weights(), np.float32)
        halves = [weight for weight in config.weights() if half and weight.decays]
        self.half_copies, packed_halves = make_weights(operations, halves, np.float16, "{} in half")
        self.working = {**self.weights, **self.half_copies}
        self.layers = [LayerWeights.of(self.working, k) for k in range(config.layers)]
        packed |= packed_halves
        prefixes = [f"model.layers.{k}" for k in range(config.layers)]
        self.packed_heads = [packed[f"{prefix}.self_attn"] for prefix in prefixes]
        self.packed_inner = [packed[f"{prefix}.mlp"] for prefix in prefixes]
        positions = config.seq_len + 1  # one more for rows that are not in use
        self._cosines = operations.tensor("cosines", (positions, config.head_dim // 2))
        self._sines = operations.tensor("sines", (positions, config.head_dim // 2))
        operations.write_computed(
            (self._cosines, self._sines),
            lambda: rotary_tables(positions, scaled_frequencies(config)),
        )

    @property
    def packed_widths(self) -> PackedWidths | None:
        """What `LayerActivations.make` takes; None if products take float32 operands."""
        packed = (self.packed_heads[0], self.packed_inner[0])
        return PackedWidths(*(each.tensor.shape[0] for each in packed)) if self.mixed else None

    @property
    def output_weight(self) -> Tensor:
        """The output layer's matrix, (V, C); the embedding table where the two are tied."""
        return self.working[EMBEDDING if self.config.tied else OUTPUT]

    def initialise(self, seed: int, initialisation: Initialisation = "normal") -> None:
        """Draw the weights: the same on every backend, each weight from its own random stream."""
        numbered = {weight.name: (k, weight) for k, weight in enumerate(self.config.weights())}
        self.load(lambda name: initial_values(seed, *numbered[name], initialisation))

    def load(self, values: Callable[[str], AnyArray]) -> None:
        """Write all weights, which `values` returns by name, and their copies.

        Tables may lack the rows that stand for no token, which then are zeros.
        """
        for name, tensor in self.weights.items():
            array = values(name)
            lacking = tensor.shape[0] - len(array)
            if lacking:
                array = np.pad(array, ((0, lacking), (0, 0)))
            self.operations.write(tensor, array)
        self.round_weights()

    def round_weights(self) -> None:
        """Update the half-precision copies of the weights, if there are any."""
        with self.operations.record("half copies") as program:
            for name, half_copy in self.half_copies.items():
                self.operations.cast_f32_to_f16(self.weights[name], half_copy)
        self.operations.run(program)

    def record_layer(
        self,
        layer: int,
        x: Tensor,
        positions: Tensor,
        a: LayerActivations,
        attend: Callable[[AttentionTensors], None],
        *,
        again: bool = False,
    ) -> None:
        """Record a layer's forward pass from `x` (N, C) to `a.out`.

        positions: uint32 (N,), where in its sequence each row is.
        attend: records `out` from q, k and v.
        again: `a.out` is there already; all else is wanted.
        """
        ops, w, heads = self.operations, self.layers[layer], a.attention
        norm = Norm(x, w.attention_norm, a.attention_normed, a.attention_inverse_rms)
        ops.rms_norm(norm, self.config.norm_epsilon)
        self._record_projections(layer, a, positions)
        attend(heads)
        attended = round_operand(ops, heads.out, a.attended)
        ops.linear(attended, w.attention_out, a.middle, residual=x)
        norm = Norm(a.middle, w.ffn_norm, a.ffn_normed, a.ffn_inverse_rms)
        ops.rms_norm(norm, self.config.norm_epsilon)
        # The feed-forward network, which adds to the residual stream again.
        if a.inner is not None:
            ops.linear(a.ffn_normed, self.packed_inner[layer].tensor, a.inner)
        if a.up is not None:
            ops.linear(a.ffn_normed, w.up, a.up)
        if w.gate is not None and a.gate is not None:
            ops.linear(a.ffn_normed, w.gate, a.gate)
        if not (again and self.mixed):  # the backward pass computes what layers share
            self.record_activation(a)
        if not again:
            ops.linear(a.activated, w.down, a.out, residual=a.middle)

    def record_activation(self, a: LayerActivations) -> None:
        """Record the activation of a layer's feed-forward network."""
        inner = [each for each in (a.inner, a.gate, a.up) if each is not None]
        self.operations.activate(self.activation, inner, a.activated)

    def _record_projections(self, layer: int, a: LayerActivations, positions: Tensor) -> None:
        """Record queries and keys with their positions, and values, of a layer's normed input."""
        ops, w = self.operations, self.layers[layer]
        normed, projected, heads = a.attention_normed, a.projections, a.attention
        if projected.packed is not None:
            packed = self.packed_heads[layer]
            ops.linear(normed, packed.tensor, projected.packed)
            ops.split_heads(projected.packed, packed.starts, self.rotation(positions), heads)
            return
        query = (w.query, w.query_bias, w.query_norm)
        self._record_heads(normed, query, projected.q_norm, projected.q)
        self._record_heads(normed, (w.key, w.key_bias, w.key_norm), projected.k_norm, projected.k)
        self._record_heads(normed, (w.value, w.value_bias, None), None, projected.v)
        # Positions enter by rotating queries and keys; values stay.
        for single, rotated in ((projected.q, heads.q), (projected.k, heads.k)):
            out = None if rotated is single else rotated
            ops.rotary(single, self.rotation(positions), out)
        round_operand(ops, projected.v, heads.v)

    def _record_heads(
        self,
        x: Tensor,
        weights: tuple[Tensor, Tensor | None, Tensor | None],
        norm: HeadNorm | None,
        out: Tensor,
    ) -> None:
        """Record queries, keys or values from `x` (N, C): product, bias and norm of each head."""
        matrix, bias, norm_weight = weights
        product = out if norm is None else norm.x
        self.operations.linear(x, matrix, product)
        if bias is not None:
            self.operations.add_bias(product, bias)
        if norm is not None and norm_weight is not None:
            self.operations.rms_norm(norm.of(norm_weight, out), self.config.norm_epsilon)

    def rotation(self, positions: Tensor) -> Rotation:
        """Return the angles of rows at `positions`, uint32 (N,)."""
        return Rotation(self._cosines, self._sines, positions, self.config.head_dim)

    def attention_shape(self, batch: int, seq: int) -> AttentionShape:
        """Return the sizes of attention over `batch` sequences of `seq` tokens."""
        config = self.config
        return AttentionShape(batch, seq, config.heads, config.kv_heads, config.head_dim)


def make_weights(
    operations: Operations, weights: Iterable[Weight], dtype: DTypeLike, label: str = "{}"
) -> tuple[dict[str, Tensor], dict[str, Packed]]:
    """Make tensors by name; those of a layer with the same input are adjacent in memory.

    label: makes the name of a tensor of that of its weight. Returns also what the tensors make
    together, by the prefix of their names: "model.layers.0.mlp".
    """
    tensors, packed = {}, {}
    for (prefix, is_packed), members in groupby(weights, _pack_of):
        group = list(members)
        if not is_packed:
            tensors[prefix] = operations.tensor(label.format(prefix), group[0].shape, dtype)
            continue
        shapes = {label.format(weight.name): weight.shape for weight in group}
        packed[prefix], parts = make_packed(operations, label.format(prefix), shapes, dtype)
        tensors |= {weight.name: part for weight, part in zip(group, parts, strict=True)}
    return tensors, packed


def _pack_of(weight: Weight) -> tuple[str, bool]:
    """Return what a weight is packed under and True; its own name and False if it is alone."""
    prefix, _, role = weight.name.removesuffix(".weight").rpartition(".")
    is_packed = role in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    return (prefix, True) if is_packed else (weight.name, False)


def scaled_frequencies(config: ModelConfig) -> NDArray[np.float64]:
    """Return the angle by which each pair of a head's numbers turns per position, (D / 2,)."""
    frequencies = rotary_frequencies(config.head_dim, config.rope_theta)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # What turns often enough within the original length is kept, what seldom turns is slowed down.
    turns = frequencies * scaling.original_seq_len / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def initial_values(
    seed: int, index: int, weight: Weight, initialisation: Initialisation = "normal"
) -> NDArray[np.float32]:
    """Return the first values of weight number `index`: normal, or all ones; unused rows are 0.

    initialisation: "normal" draws them with the weight's deviation. With "fan-in" that of a matrix
    inside a layer is 1 / sqrt(inputs), and those that write into the residual stream are zeros: a
    layer begins as one that changes nothing, with activations of the same size at any width.
    """
    if not weight.deviation:
        return np.full(weight.shape, weight.deviation is None, np.float32)
    deviation = weight.deviation
    if initialisation == "fan-in" and weight.is_hidden:
        deviation = 0.0 if weight.is_residual else weight.shape[1] ** -0.5
    generator = np.random.Generator(np.random.Philox(key=[seed, index]))
    values = generator.standard_normal(weight.shape, np.float32)
    values *= np.float32(deviation)
    values[weight.used_shape[0] :] = 0
    return values
