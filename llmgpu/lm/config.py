"""The sizes of a model, the shapes of its weights, and the operations of a training step.

The names of the weights are those of Hugging Face's Llama, so that a checkpoint needs no table of
names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from llmgpu.errors import InputError
from llmgpu.option_fields import MODEL, option

Activation = Literal["swiglu", "gelu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
RopeScalingKind = Literal["linear", "llama3"]
UNGATED: tuple[Activation, ...] = ("gelu",)  # activations of networks without a gate

HEAD_DIM_MULTIPLE = 4  # head rows are read 16 bytes at a time
SHORT_CONTEXT = 2048  # keys and values of this many tokens need little memory
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head.weight"
VOCAB_MULTIPLE = 64  # rows of tables are padded to a multiple of this


@dataclass(frozen=True)
class Weight:
    """The name and the shape of a weight, its initial values and its decay.

    deviation: standard deviation of the random initial values; 0: zeros; None: ones.
    decays: whether weight decay applies. It applies to matrices, not to norms and biases.
    unused_rows: number of rows at the end of a table that belong to no token; these rows are zeros.
    """

    name: str
    shape: tuple[int, ...]
    deviation: float | None
    decays: bool
    unused_rows: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_hidden(self) -> bool:
        """Whether the weight is a matrix inside a layer."""
        return self.decays and self.name.startswith("model.layers.")

    @property
    def is_table(self) -> bool:
        """Whether the weight is the embedding table or the output layer, with a row for each id."""
        return self.decays and not self.is_hidden

    @property
    def is_residual(self) -> bool:
        """Whether the weight is a matrix that writes into the residual stream."""
        return self.name.endswith((".o_proj.weight", ".down_proj.weight"))

    @property
    def used_shape(self) -> tuple[int, ...]:
        """The shape without the rows that belong to no token."""
        return (self.shape[0] - self.unused_rows, *self.shape[1:])


@dataclass(frozen=True)
class RopeScaling:
    """The stretching of rotary positions, for sequences longer than in the original training.

    Numbers have their names in Hugging Face's config.json.

    kind: "linear" divides all frequencies by `factor`. "llama3" divides frequencies that turn fewer
    than `low_freq_factor` times in `original_max_position_embeddings` tokens, keeps frequencies
    that turn more than `high_freq_factor` times, and interpolates in between (A. Grattafiori et
    al., The Llama 3 Herd of Models, arXiv 2407.21783, as Hugging Face computes it).
    """

    kind: RopeScalingKind
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        """Raise InputError for an unknown kind, and for numbers out of range."""
        known = get_args(RopeScalingKind)
        low, high = self.low_freq_factor, self.high_freq_factor
        if not (
            self.kind in known
            and 1 <= self.factor < math.inf
            and 0 < low < high < math.inf
            and self.original_max_position_embeddings >= 1
        ):
            raise InputError(
                f"rope_scaling is {vars(self)}, but kind must be one of {', '.join(known)}, factor "
                "and original_max_position_embeddings at least 1, low_freq_factor between 0 and "
                "high_freq_factor"
            )


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Llama-style model.

    vocab_size: number of the tokenizer's ids.
    dim: width of the residual stream (C). layers: number of layers.
    heads, kv_heads: number of query heads (H) and of key/value heads (K).
    ffn_dim: width inside the feed-forward network (F).
    seq_len: longest sequence (T).
    tied: whether the output layer is the embedding table.
    activation: "swiglu", or "gelu" for a network without gate.
    head_width: width of a head (D); None: dim / heads.
    qkv_bias: whether queries, keys and values have a bias (Qwen2).
    qk_norm: whether each head of queries and keys has an RMS norm (Qwen3).
    max_positions: the longest sequence that the model supports; None: seq_len.
    """

    section: ClassVar[str] = MODEL

    vocab_size: int
    # fmt: off
    dim: int = option(256, "count", "Width of the model.", default_words="")
    layers: int = option(4, "count", "Number of layers.", default_words="")
    heads: int = option(4, "count", "Attention heads; must divide --dim.", default_words="")
    kv_heads: int = option(4, "count", "Key/value heads.", default_words="same as --heads")
    ffn_dim: int = option(704, "count", "Width of the feed-forward network.", default_words="")
    seq_len: int = option(256, "count", "Tokens per sequence.", default_words="")
    tied: bool = option(
        True, bool, "Use the embedding table as the output layer.", "--tied/--untied",
        default_words="tied")
    activation: Activation = option(
        "swiglu", ACTIVATIONS,
        "Activation function. Other tools can't open gelu models (no gate).", default_words="")
    # fmt: on
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    head_width: int | None = None
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    max_positions: int | None = None

    def __post_init__(self) -> None:
        """Raise InputError for sizes that are too small or do not fit together."""
        for name in ("vocab_size", "dim", "layers", "heads", "kv_heads", "ffn_dim", "seq_len"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.qkv_bias + self.qk_norm + (not self.is_gated) > 1:
            ungated = " or ".join(UNGATED)
            raise InputError(f"qkv_bias, qk_norm and {ungated} can't be combined; use one of them")
        if self.max_positions is not None and self.max_positions < self.seq_len:
            raise InputError(
                f"seq_len is {self.seq_len}, but the model takes at most {self.max_positions}"
            )
        if self.head_width is None and self.dim % self.heads:
            raise InputError(f"dim {self.dim} is not a multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise InputError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.head_dim < 1 or self.head_dim % HEAD_DIM_MULTIPLE:
            origin = "" if self.head_width else f"dim {self.dim} / heads {self.heads} = "
            raise InputError(
                f"{origin}{self.head_dim} numbers per head; it must be a multiple of "
                f"{HEAD_DIM_MULTIPLE}"
            )

    def generating(self, tokens: int) -> ModelConfig:
        """Return the config with a `seq_len` for `tokens` tokens, to keep caches small.

        `seq_len` becomes at least `SHORT_CONTEXT`, and at most the model's longest sequence.
        """
        longest = self.max_positions or self.seq_len
        return replace(self, seq_len=min(longest, max(tokens, SHORT_CONTEXT)))

    @property
    def head_dim(self) -> int:
        """Width of a head (D)."""
        return self.dim // self.heads if self.head_width is None else self.head_width

    @property
    def query_dim(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key heads, or of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward network has a gate."""
        return self.activation not in UNGATED

    @property
    def has_plain_heads(self) -> bool:
        """Whether queries, keys and values have neither biases nor norms."""
        return not (self.qkv_bias or self.qk_norm)

    @property
    def padded_vocab_size(self) -> int:
        """Number of rows of the embedding table and of the output layer (V)."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def weights(self) -> Iterator[Weight]:
        """Yield all weights in the order of a forward pass.

        Matrices are (outputs, inputs). Initial values are normal with deviation 0.02. The two
        projections that write into the residual stream have 0.02 / sqrt(2 * layers), so that the
        variance of the stream does not grow with depth (GPT-2, section 2.3). Norms start as ones,
        biases as zeros.
        """
        table = (self.padded_vocab_size, self.dim)
        unused = self.padded_vocab_size - self.vocab_size
        yield Weight(EMBEDDING, table, 0.02, True, unused)
        for layer in range(self.layers):
            yield from self._layer_weights(f"model.layers.{layer}")
        yield Weight(FINAL_NORM, (self.dim,), None, False)
        if not self.tied:
            yield Weight(OUTPUT, table, 0.02, True, unused)

    def _layer_weights(self, prefix: str) -> Iterator[Weight]:
        small = 0.02 / math.sqrt(2 * self.layers)
        attention, ffn = f"{prefix}.self_attn", f"{prefix}.mlp"
        heads = ("q", self.query_dim), ("k", self.kv_dim), ("v", self.kv_dim)
        yield Weight(f"{prefix}.input_layernorm.weight", (self.dim,), None, False)
        for role, width in heads:
            yield Weight(f"{attention}.{role}_proj.weight", (width, self.dim), 0.02, True)
        yield Weight(f"{attention}.o_proj.weight", (self.dim, self.query_dim), small, True)
        if self.qkv_bias:
            for role, width in heads:
                yield Weight(f"{attention}.{role}_proj.bias", (width,), 0.0, False)
        if self.qk_norm:
            yield Weight(f"{attention}.q_norm.weight", (self.head_dim,), None, False)
            yield Weight(f"{attention}.k_norm.weight", (self.head_dim,), None, False)
        yield Weight(f"{prefix}.post_attention_layernorm.weight", (self.dim,), None, False)
        if self.is_gated:
            yield Weight(f"{ffn}.gate_proj.weight", (self.ffn_dim, self.dim), 0.02, True)
        yield Weight(f"{ffn}.up_proj.weight", (self.ffn_dim, self.dim), 0.02, True)
        yield Weight(f"{ffn}.down_proj.weight", (self.dim, self.ffn_dim), small, True)

    @property
    def parameters(self) -> int:
        return self._sum_of_sizes(matrices_only=False)

    def _sum_of_sizes(self, *, matrices_only: bool) -> int:
        """Return the number of elements of all weights, or of all matrices.

        The time does not depend on the number of layers.
        """

        def size_of(weights: Iterator[Weight]) -> int:
            return sum(each.size for each in weights if each.decays or not matrices_only)

        more = (self.layers - 1) * size_of(self._layer_weights(""))  # all layers are alike
        return size_of(replace(self, layers=1).weights()) + more

    def training_operations(self, tokens: int) -> int:
        """Return the number of additions and multiplications of both passes over `tokens` tokens.

        A token takes six operations for each parameter of a matrix. Attention takes 12 * layers *
        query_dim * seq_len for a token, half of which a causal mask saves.
        """
        matrices = self._sum_of_sizes(matrices_only=True)
        if not self.tied:
            # The embedding table is only looked up, not multiplied.
            matrices -= self.padded_vocab_size * self.dim
        return tokens * (6 * matrices + 6 * self.layers * self.query_dim * self.seq_len)


# Presets, all of the Llama kind. gpt2 has the sizes of GPT-2 small (12 layers, 768 wide). Its
# feed-forward network is gated and 2/3 as wide, which gives the same number of parameters.
# gpt2-medium has the sizes of GPT-2 medium (24 layers, 1024 wide). Widths of gated networks are
# multiples of 128.
PRESETS: dict[str, ModelConfig] = {
    # vocab_size, dim, layers, heads, kv_heads, ffn_dim, seq_len
    "tiny": ModelConfig(1, 128, 4, 4, 4, 384, 128),
    "small": ModelConfig(1, 384, 6, 6, 6, 1024, 256),
    "base": ModelConfig(1, 512, 8, 8, 8, 1408, 512),
    "gpt2": ModelConfig(1, 768, 12, 12, 12, 2048, 1024),
    "gpt2-medium": ModelConfig(1, 1024, 24, 16, 16, 2816, 1024),
}


def preset(name: str, vocab_size: int, **sizes: object) -> ModelConfig:
    """Return a preset for a vocabulary, with some sizes replaced.

    sizes: by the names of `ModelConfig`; None keeps the preset's size. If only heads is given,
    kv_heads is set to the same number.
    """
    given = {key: value for key, value in sizes.items() if value is not None}
    if "heads" in given:
        given.setdefault("kv_heads", given["heads"])
    return replace(PRESETS[name], vocab_size=vocab_size, **given)  # type: ignore[arg-type]
