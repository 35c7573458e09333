"""The whole model in float64: forward, loss and backward, for one batch of sequences.

Weights go by their names in a checkpoint. Shapes: B sequences, T tokens each, C width, H heads,
K key/value heads, D head width, F feed-forward width, V rows of the table. A projection is
x weight^T; a backward function returns its gradients in the order of the forward's arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.config import ModelConfig, RopeScaling
from tests.reference.lm import activation

Array = NDArray[np.float64]
Weights = dict[str, Array]
Cache = dict[str, Any]


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """x (..., C), weight (C,)."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def rms_norm_backward(
    x: Array, weight: Array, epsilon: float, grad_out: Array
) -> tuple[Array, Array]:
    scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    grad_weight = (grad_out * x * scale).reshape(-1, x.shape[-1]).sum(0)
    weighted = grad_out * weight
    grad_x = scale * weighted - scale**3 * x * (weighted * x).mean(-1, keepdims=True)
    return grad_x, grad_weight


def angles(length: int, config: ModelConfig) -> Array:
    """Return by how much the pairs of numbers turn at each position: (T, D / 2)."""
    turns = []
    for pair in range(config.head_dim // 2):
        frequency = config.rope_theta ** (-2 * pair / config.head_dim)
        turns.append(np.arange(length) * _stretched(frequency, config.rope_scaling))
    return np.stack(turns, axis=1)


def _stretched(frequency: float, scaling: RopeScaling | None) -> float:
    """As transformers' modeling_rope_utils.py has it, a case at a time."""
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    wavelength = 2 * np.pi / frequency
    longest = scaling.original_max_position_embeddings / scaling.low_freq_factor
    shortest = scaling.original_max_position_embeddings / scaling.high_freq_factor
    if wavelength < shortest:
        return frequency
    if wavelength > longest:
        return frequency / scaling.factor
    smooth = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def rotate(x: Array, turns: Array) -> Array:
    """Turn the pairs (i, i + D/2) of heads (B, T, heads, D) by (T, D / 2); back by -turns."""
    first, second = np.split(x, 2, axis=-1)
    cosines, sines = np.cos(turns)[:, None], np.sin(turns)[:, None]
    return np.concatenate(
        [first * cosines - second * sines, second * cosines + first * sines], axis=-1
    )


def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """q (B, T, H, D), k and v (B, T, K, D); return the result (B, T, H, D) and the probabilities.

    Query head h reads key/value head h // (H / K). Probabilities are (B, H, T, T), row by query.
    """
    length, heads, head_dim = q.shape[1:]
    k, v = (np.repeat(x, heads // x.shape[2], axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(head_dim)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", probabilities, v), probabilities


def attention_backward(
    q: Array, k: Array, v: Array, probabilities: Array, grad_out: Array
) -> tuple[Array, Array, Array]:
    batch, length, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    k_all, v_all = (np.repeat(x, heads // kv_heads, axis=2) for x in (k, v))
    grad_probabilities = np.einsum("bqhd,bkhd->bhqk", grad_out, v_all)
    mean = (grad_probabilities * probabilities).sum(-1, keepdims=True)
    grad_scores = probabilities * (grad_probabilities - mean) / np.sqrt(head_dim)
    grad_q = np.einsum("bhqk,bkhd->bqhd", grad_scores, k_all)
    grad_k = np.einsum("bhqk,bqhd->bkhd", grad_scores, q)
    grad_v = np.einsum("bhqk,bqhd->bkhd", probabilities, grad_out)
    grouped = (batch, length, kv_heads, heads // kv_heads, head_dim)
    return grad_q, grad_k.reshape(grouped).sum(3), grad_v.reshape(grouped).sum(3)


def loss(
    logits: Array,
    targets: NDArray[np.integer],
    *,
    smoothing: float = 0.0,
    z_weight: float = 0.0,
) -> tuple[float, Array]:
    """Return the mean loss over targets (B, T) that are ids, and its gradient by logits (B, T, V).

    A target of V or more is ignored: no loss, no gradient, not counted. smoothing: share of the
    target distribution that is spread evenly over all V. z_weight: of the squared log of the sum of
    exponentials.
    """
    vocab = logits.shape[-1]
    valid = targets < vocab
    count = max(int(valid.sum()), 1)
    highest = logits.max(-1, keepdims=True)
    log_sum = highest + np.log(np.exp(logits - highest).sum(-1, keepdims=True))
    wanted = np.eye(vocab)[np.where(valid, targets, 0)] * (1 - smoothing) + smoothing / vocab
    losses = log_sum[..., 0] - (wanted * logits).sum(-1) + z_weight * log_sum[..., 0] ** 2
    probabilities = np.exp(logits - log_sum)
    grad = probabilities - wanted + 2 * z_weight * log_sum * probabilities
    return float(losses[valid].sum() / count), np.where(valid[..., None], grad / count, 0.0)


def _split(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1)


def _join(x: Array) -> Array:
    return x.reshape(*x.shape[:2], -1)


def _matrix_gradient(grad_out: Array, x: Array) -> Array:
    return np.einsum("bto,bti->oi", grad_out, x)


class Llama:
    """A model of given sizes and weights, all taken as float64."""

    def __init__(self, config: ModelConfig, weights: dict[str, NDArray[Any]]) -> None:
        self.config = config
        self.weights: Weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}

    def forward(self, tokens: NDArray[np.integer]) -> Array:
        """Return logits (B, T, ids) of tokens (B, T), positions from 0."""
        return self._run(tokens)[0]

    def loss_and_gradients(
        self,
        tokens: NDArray[np.integer],
        targets: NDArray[np.integer],
        *,
        smoothing: float = 0.0,
        z_weight: float = 0.0,
    ) -> tuple[float, Weights]:
        """Return the loss, see `loss`, and its gradient by each weight."""
        logits, caches = self._run(tokens)
        value, grad_logits = loss(logits, targets, smoothing=smoothing, z_weight=z_weight)
        return value, self._backward(tokens, caches, grad_logits)

    @property
    def _head(self) -> str:
        return "model.embed_tokens.weight" if self.config.tied else "lm_head.weight"

    @property
    def _head_rows(self) -> Array:
        """The rows of the output layer that stand for ids."""
        return self.weights[self._head][: self.config.vocab_size]

    def _run(self, tokens: NDArray[np.integer]) -> tuple[Array, list[Cache]]:
        x = self.weights["model.embed_tokens.weight"][tokens]
        caches: list[Cache] = []
        for layer in range(self.config.layers):
            cache: Cache = {}
            x = self._attend(f"model.layers.{layer}", x, cache)
            x = self._feed_forward(f"model.layers.{layer}", x, cache)
            caches.append(cache)
        normed = rms_norm(x, self.weights["model.norm.weight"], self.config.norm_epsilon)
        caches.append({"x": x, "normed": normed})
        return normed @ self._head_rows.T, caches

    def _attend(self, prefix: str, x: Array, cache: Cache) -> Array:
        config, names = self.config, f"{prefix}.self_attn"
        norm = self.weights[f"{prefix}.input_layernorm.weight"]
        normed = rms_norm(x, norm, config.norm_epsilon)
        turns = angles(x.shape[1], config)
        q, k, v = (normed @ self.weights[f"{names}.{p}_proj.weight"].T for p in "qkv")
        if config.qkv_bias:
            q, k, v = (
                part + self.weights[f"{names}.{p}_proj.bias"]
                for p, part in (("q", q), ("k", k), ("v", v))
            )
        q, k, v = _split(q, config.heads), _split(k, config.kv_heads), _split(v, config.kv_heads)
        cache["raw"] = {"q": q, "k": k}
        if config.qk_norm:
            epsilon = config.norm_epsilon
            q = rms_norm(q, self.weights[f"{names}.q_norm.weight"], epsilon)
            k = rms_norm(k, self.weights[f"{names}.k_norm.weight"], epsilon)
        q, k = rotate(q, turns), rotate(k, turns)
        mixed, probabilities = attention(q, k, v)
        cache["attention"] = x, normed, q, k, v, probabilities, mixed
        return x + _join(mixed) @ self.weights[f"{names}.o_proj.weight"].T

    def _attend_backward(self, prefix: str, grad: Array, cache: Cache, grads: Weights) -> Array:
        config, names = self.config, f"{prefix}.self_attn"
        x, normed, q, k, v, probabilities, mixed = cache["attention"]
        out = f"{names}.o_proj.weight"
        grads[out] = _matrix_gradient(grad, _join(mixed))
        grad_mixed = _split(grad @ self.weights[out], config.heads)
        grad_q, grad_k, grad_v = attention_backward(q, k, v, probabilities, grad_mixed)
        turns = angles(x.shape[1], config)
        grad_normed = np.zeros_like(x)
        parts = {"q": rotate(grad_q, -turns), "k": rotate(grad_k, -turns), "v": grad_v}
        if config.qk_norm:
            for p, raw in cache["raw"].items():
                parts[p] = self._norm_backward(f"{names}.{p}_norm.weight", raw, parts[p], grads)
        for p, part in parts.items():
            if config.qkv_bias:
                grads[f"{names}.{p}_proj.bias"] = _join(part).sum((0, 1))
            name = f"{names}.{p}_proj.weight"
            grads[name] = _matrix_gradient(_join(part), normed)
            grad_normed += _join(part) @ self.weights[name]
        return grad + self._norm_backward(f"{prefix}.input_layernorm.weight", x, grad_normed, grads)

    def _feed_forward(self, prefix: str, x: Array, cache: Cache) -> Array:
        names = f"{prefix}.mlp"
        norm = self.weights[f"{prefix}.post_attention_layernorm.weight"]
        normed = rms_norm(x, norm, self.config.norm_epsilon)
        matrices = {p: self.weights.get(f"{names}.{p}_proj.weight") for p in ("gate", "up")}
        products = {p: normed @ matrix.T for p, matrix in matrices.items() if matrix is not None}
        inner = activation.forward(self.config.activation, *products.values())
        cache["ffn"] = x, normed, products, inner
        return x + inner @ self.weights[f"{names}.down_proj.weight"].T

    def _feed_forward_backward(
        self, prefix: str, grad: Array, cache: Cache, grads: Weights
    ) -> Array:
        names = f"{prefix}.mlp"
        x, normed, products, inner = cache["ffn"]
        down = f"{names}.down_proj.weight"
        grads[down] = _matrix_gradient(grad, inner)
        grad_inner = grad @ self.weights[down]
        found = activation.backward(self.config.activation, *products.values(), grad_inner)
        parts = dict(zip(products, found, strict=True))
        grad_normed = np.zeros_like(x)
        for p, part in parts.items():
            name = f"{names}.{p}_proj.weight"
            grads[name] = _matrix_gradient(part, normed)
            grad_normed += part @ self.weights[name]
        return grad + self._norm_backward(
            f"{prefix}.post_attention_layernorm.weight", x, grad_normed, grads
        )

    def _norm_backward(self, name: str, x: Array, grad_out: Array, grads: Weights) -> Array:
        grad_x, grads[name] = rms_norm_backward(
            x, self.weights[name], self.config.norm_epsilon, grad_out
        )
        return grad_x

    def _backward(
        self, tokens: NDArray[np.integer], caches: list[Cache], grad_logits: Array
    ) -> Weights:
        grads: Weights = {}
        last = caches[-1]
        grads[self._head] = np.zeros_like(self.weights[self._head])
        grads[self._head][: self.config.vocab_size] = _matrix_gradient(grad_logits, last["normed"])
        grad_normed = grad_logits @ self._head_rows
        grad = self._norm_backward("model.norm.weight", last["x"], grad_normed, grads)
        for layer in reversed(range(self.config.layers)):
            prefix = f"model.layers.{layer}"
            grad = self._feed_forward_backward(prefix, grad, caches[layer], grads)
            grad = self._attend_backward(prefix, grad, caches[layer], grads)
        table = "model.embed_tokens.weight"
        grads.setdefault(table, np.zeros_like(self.weights[table]))
        np.add.at(grads[table], tokens, grad)
        return grads
