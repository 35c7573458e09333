"""The weights of a model in memory. The passes of layers are in `llmgpu.lm.layers`.

::

    ids -> embedding -> layers x [norm, attention, +, norm, feed-forward, +] -> norm -> logits

Each layer adds to the residual stream: attention with rotary positions over grouped key/value
heads, then a feed-forward network (SwiGLU, or GeLU without gate). Llama: H. Touvron et al.,
arXiv 2302.13971. Shape letters are those of `llmgpu.lm.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, groupby

import numpy as np
from numpy.typing import DTypeLike, NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.errors import DeviceError
from llmgpu.lm.checkpoints.huggingface import SavedModel
from llmgpu.lm.config import EMBEDDING, OUTPUT, ModelConfig, Weight
from llmgpu.lm.ops.activations import BY_NAME
from llmgpu.lm.ops.layers import rotary_frequencies, rotary_tables
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.tensor import (
    AnyArray,
    AttentionShape,
    Packed,
    Rotation,
    Tensor,
)
from llmgpu.lm.options import Initialisation, Precision
from llmgpu.machine import has_limited_address_space, usable_processors
from llmgpu.pipeline import in_order

DRAWING_THREADS = 8  # most threads that draw weights
DRAWN_BYTES = 1 << 30  # drawn ahead for a GPU; more if one weight per thread needs more


class LayerWeights:
    """The tensors of one layer by role: operands of products, or gradients of weights."""

    def __init__(
        self, tensors: Mapping[str, Tensor], packed: Mapping[str, Packed], layer: int
    ) -> None:
        """Select the tensors of a layer from the tensors of a model, by Hugging Face's names.

        tensors, packed: the results of `make_weights` for all weights of the model.
        """
        prefix = f"model.layers.{layer}"
        attention, ffn = f"{prefix}.self_attn", f"{prefix}.mlp"

        def there(*names: str) -> tuple[Tensor, ...]:
            return tuple(tensors[name] for name in names if name in tensors)

        self.attention_norm = tensors[f"{prefix}.input_layernorm.weight"]  # (C,)
        self.heads = packed[attention]  # matrices of queries (H*D, C), keys and values (K*D, C)
        # Biases of queries, keys and values; () for a model without biases.
        self.biases = there(*(f"{attention}.{role}_proj.bias" for role in "qkv"))
        # Norms of queries and keys, (D,) each; () for a model without head norms.
        self.head_norms = there(*(f"{attention}.{role}_norm.weight" for role in "qk"))
        self.attention_out = tensors[f"{attention}.o_proj.weight"]  # (C, H*D)
        self.ffn_norm = tensors[f"{prefix}.post_attention_layernorm.weight"]  # (C,)
        self.inner = packed[ffn]  # matrices (F, C) of gate and up, or only of up
        self.down = tensors[f"{ffn}.down_proj.weight"]  # (C, F)


class Model:
    """Weights in the memory of a backend.

    weights: float32, by name.
    half_copies: half-precision copies of the matrices, by name; empty if products read float32.
    working: the operand of each weight, by name: its half-precision copy, or else the weight.
    layers: the operands by layer and role.
    mixed: whether the activations and gradients in products are half precision, too.
    activation: the function of the feed-forward networks.
    """

    def __init__(
        self,
        operations: Operations,
        config: ModelConfig,
        *,
        half: bool = False,
        mixed: bool = False,
    ) -> None:
        """Allocate all weights, zeros at first.

        half: allocate half-precision copies. mixed: see the attribute.

        Raises:
            DeviceError: the device has no half precision, or too little memory.
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
        packed |= packed_halves
        self.layers = [LayerWeights(self.working, packed, k) for k in range(config.layers)]
        positions = config.seq_len + 1  # the last position is for rows that are not in use
        tables = dict.fromkeys(("cosines", "sines"), (positions, config.head_dim // 2))
        self._cosines, self._sines = operations.side_by_side(tables, np.float32).values()
        operations.write_computed(
            (self._cosines, self._sines),
            lambda: rotary_tables(positions, scaled_frequencies(config)),
        )

    @property
    def output_weight(self) -> Tensor:
        """The output layer's matrix, (V, C); in a tied model the embedding table."""
        return self.working[EMBEDDING if self.config.tied else OUTPUT]

    def initialise(self, seed: int) -> None:
        """Write the weights that `initial_weights` draws."""
        self.load(initial_weights(self.config, seed))

    def load(self, values: Callable[[str], AnyArray]) -> None:
        """Write all weights, and update the half-precision copies.

        values: returns a weight by name. Missing rows at the end of a table become zeros.
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

    def rotation(self, positions: Tensor) -> Rotation:
        """Return the rotation of rows at `positions`, uint32 (N,)."""
        return Rotation(self._cosines, self._sines, positions, self.config.head_dim)

    def attention_shape(self, batch: int, seq: int) -> AttentionShape:
        """Return the sizes of attention over `batch` sequences of `seq` tokens."""
        config = self.config
        return AttentionShape(batch, seq, config.heads, config.kv_heads, config.head_dim)


def initial_weights(
    config: ModelConfig,
    seed: int,
    initialisation: Initialisation = "normal",
    backend: Backend = NUMPY,
) -> Callable[[str], NDArray[np.float32]]:
    """Begin to draw the initial weights of a model; return a function of their names.

    The function waits for a weight and returns it. ValueError unless names come in the order of
    `config.weights()`.

    The weights are equal on all backends, because each has its own stream of random numbers.
    Threads draw while the caller creates the model. NumPy draws without Python's lock: the weights
    of preset gpt2 take 0.96 s in two threads, 1.19 s in one.

    backend: the backend that will hold the model. At most `drawn_ahead` weights are in memory
    before they are taken.
    """
    weights = list(config.weights())

    def draw(number: int) -> tuple[str, NDArray[np.float32]]:
        if number < 0:
            return "", np.empty(0, np.float32)
        weight = weights[number]
        return weight.name, initial_values(seed, number, weight, initialisation)

    # The first job does nothing, so that its result comes at once while threads draw weights.
    threads = min(DRAWING_THREADS, usable_processors())
    drawn = in_order(range(-1, len(weights)), draw, drawn_ahead(config, backend), threads=threads)
    next(drawn)

    def take(name: str) -> NDArray[np.float32]:
        found, values = next(drawn)
        if found != name:
            raise ValueError(f"the next weight is {found}, not {name}")
        return values

    return take


def drawn_ahead(config: ModelConfig, backend: Backend) -> int:
    """Return how many weights may be drawn ahead: 1 if the address space is limited."""
    if has_limited_address_space():
        return 1
    ahead = min(DRAWING_THREADS, usable_processors())
    if backend.is_software:
        return ahead  # the model's own tensors need the host's memory
    sizes = sorted((4 * weight.size for weight in config.weights()), reverse=True)
    fitting = sum(together <= DRAWN_BYTES for together in accumulate(sizes))
    return max(fitting, ahead)


def make_weights(
    operations: Operations, weights: Iterable[Weight], dtype: DTypeLike, label: str = "{}"
) -> tuple[dict[str, Tensor], dict[str, Packed]]:
    """Create a tensor for each weight. Matrices of a layer with the same input are packed.

    On a device, weights of one shape are adjacent, see `adjacent_tensors`.

    label: format of a tensor's name, with {} for the weight's name. Returns the tensors by weight
    name, and the packed matrices by the prefix of their names, such as "model.layers.0.mlp".
    """
    packs = {key: list(members) for key, members in groupby(weights, _pack_of)}
    shapes = {
        label.format(name): Packed.layout(each.shape for each in members)[1]
        if is_packed
        else members[0].shape
        for (name, is_packed), members in packs.items()
    }
    kinds = [members[0].shape for members in packs.values()]
    made = operations.adjacent_tensors(shapes, dtype, kinds)
    tensors, packed = {}, {}
    for (prefix, is_packed), whole in zip(packs, made, strict=True):
        if not is_packed:
            tensors[prefix] = whole
            continue
        members = packs[prefix, True]
        named = {label.format(each.name): each.shape for each in members}
        packed[prefix] = Packed.of(whole, named)
        tensors |= zip((each.name for each in members), packed[prefix].parts, strict=True)
    return tensors, packed


def _pack_of(weight: Weight) -> tuple[str, bool]:
    """Return the name of the tensor that stores a weight, and whether it also stores others."""
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
    # Pairs that turn often within the original length keep their frequencies. All other pairs turn
    # more slowly.
    turns = frequencies * scaling.original_max_position_embeddings / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def initial_values(
    seed: int, index: int, weight: Weight, initialisation: Initialisation = "normal"
) -> NDArray[np.float32]:
    """Return the initial values of weight number `index`: random, zeros or ones; see `Weight`.

    Unused rows are zeros.

    initialisation: "normal" draws values with the weight's deviation. With "fan-in" a matrix inside
        a layer has the deviation 1 / sqrt(inputs), so activations have the same size at any width.
        Matrices that write into the residual stream are zeros, so at first a layer changes nothing.
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


def load_model(
    saved: SavedModel, backend: Backend, tokens: int, precision: Precision = "f32"
) -> Model:
    """Load a saved model onto a backend, for texts of about `tokens` tokens.

    tokens: see `ModelConfig.generating`. precision: "f16" rounds matrices to half precision, and on
    matrix units also activations.

    Raises CheckpointError for weights that are not finite, DeviceError as `Model`.
    """
    is_half = precision == "f16"
    has_units = backend.device is not None and bool(backend.device.matrix_shapes)
    model = Model(
        open_operations(backend.device, fixed_products=True),
        saved.config.generating(tokens),
        half=is_half,
        mixed=is_half and has_units,
    )
    model.load(saved.weights.__getitem__)
    return model
