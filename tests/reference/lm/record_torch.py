"""Train the recorded run with torch: ``python -m tests.reference.lm.record_torch``.

Writes what `recorded_run.RECORDED` holds: for each step the loss before its update, the norm of all
gradients before clipping, and the learning rate; in float32, and in float64 to tell rounding.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from llmgpu.lm.config import ModelConfig
from tests.reference.lm.recorded_run import RECORDED, ReferenceSetup, reference_setup

Weights = Mapping[str, torch.Tensor]


def logits_of(config: ModelConfig, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Return logits (B, T, V) of tokens (B, T) in the weights' dtype."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, (config.dim,), weights[name], config.norm_epsilon)

    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}"
        normed = norm(x, f"{prefix}.input_layernorm.weight")
        x = x + _attention(config, weights, f"{prefix}.self_attn", normed)
        normed = norm(x, f"{prefix}.post_attention_layernorm.weight")
        x = x + _feed_forward(config, weights, f"{prefix}.mlp", normed)
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    return functional.linear(norm(x, "model.norm.weight"), weights[head])


def _attention(config: ModelConfig, weights: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    batch, length, _ = x.shape
    q, k, v = (
        functional.linear(x, weights[f"{prefix}.{p}_proj.weight"])
        .reshape(batch, length, -1, config.head_dim)
        .transpose(1, 2)
        for p in "qkv"
    )
    half = config.head_dim // 2
    frequencies = config.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
    turns = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    units = torch.polar(torch.ones_like(turns), turns)

    def turn(part: torch.Tensor) -> torch.Tensor:
        pairs = torch.complex(part[..., :half], part[..., half:]) * units.to(
            torch.complex64 if part.dtype == torch.float32 else torch.complex128
        )
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    mixed = functional.scaled_dot_product_attention(
        turn(q), turn(k), v, is_causal=True, enable_gqa=True
    )
    joined = mixed.transpose(1, 2).reshape(batch, length, -1)
    return functional.linear(joined, weights[f"{prefix}.o_proj.weight"])


def _feed_forward(
    config: ModelConfig, weights: Weights, prefix: str, x: torch.Tensor
) -> torch.Tensor:
    inner = functional.linear(x, weights[f"{prefix}.up_proj.weight"])
    if config.activation == "swiglu":
        gate = functional.linear(x, weights[f"{prefix}.gate_proj.weight"])
        inner = functional.silu(gate) * inner
    else:
        inner = functional.gelu(inner, approximate="tanh")
    return functional.linear(inner, weights[f"{prefix}.down_proj.weight"])


def train(
    setup: ReferenceSetup, dtype: torch.dtype, steps: int | None = None
) -> tuple[list[float], list[float]]:
    """Return the losses and gradient norms of the run, or of its first steps."""
    options = setup.hyperparameters
    weights = {
        name: torch.from_numpy(array).to(dtype, copy=True).requires_grad_()
        for name, array in setup.weights.items()
    }
    groups: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for weight in setup.config.weights():
        groups[weight.decays].append(weights[weight.name])
    optimizer = torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": options.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        betas=(options.beta1, options.beta2),
        eps=options.epsilon,
    )
    losses, norms = [], []
    for step, (tokens, targets) in enumerate(setup.batches[:steps]):
        for group in optimizer.param_groups:
            group["lr"] = options.rate(step)
        logits = logits_of(setup.config, weights, torch.from_numpy(tokens.astype(np.int64)))
        wanted = torch.from_numpy(targets.astype(np.int64)).reshape(-1)
        loss = functional.cross_entropy(logits.reshape(len(wanted), -1), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), options.clip_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
        norms.append(float(norm))
    return losses, norms


def main() -> None:
    setup = reference_setup()
    torch.use_deterministic_algorithms(True)
    content: dict[str, Any] = {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "machine": platform.machine(),
        },
        "checksum": setup.checksum,
        "learning_rates": [setup.hyperparameters.rate(step) for step in range(len(setup.batches))],
    }
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        losses, norms = train(setup, dtype)
        content[name] = {"losses": losses, "gradient_norms": norms}
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
