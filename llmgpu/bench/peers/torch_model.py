"""The same model in PyTorch: what training is compared with, in values and in speed.

Written with PyTorch's own operations, eagerly, as its users would; weights go by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.models.training_steps import CHECKED_STEPS, LEARNING_RATE, StepJob
from llmgpu.bench.peers.torch import Torch
from llmgpu.bench.timing import timed
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.layers import rotary_tables
from llmgpu.lm.options import TrainOptions


class TorchLlama:
    """A Llama-style model and its AdamW in PyTorch.

    parameters: by Hugging Face's names, as `ModelConfig.weights` lists them.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, NDArray[Any]],
        *,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Copy the weights to a device of PyTorch's."""
        import torch

        self._torch = torch
        self.config = config
        self.device = device
        kind = getattr(torch, dtype)
        self.parameters = {
            name: torch.nn.Parameter(torch.tensor(values, dtype=kind, device=device))
            for name, values in weights.items()
        }
        cosines, sines = rotary_tables(config.seq_len, config.head_dim, config.rope_theta)
        # Both halves of a head turn by the same angles.
        self._cosines = torch.tensor(np.tile(cosines, 2), dtype=kind, device=device)
        self._sines = torch.tensor(np.tile(sines, 2), dtype=kind, device=device)

    def logits(self, tokens: Any) -> Any:
        """Return the logits (B, T, V) of ids (B, T)."""
        functional = self._torch.nn.functional
        w = self.parameters
        x = functional.embedding(tokens, w["model.embed_tokens.weight"])
        for layer in range(self.config.layers):
            prefix = f"model.layers.{layer}"
            x = x + self._attention(prefix, self._norm(x, f"{prefix}.input_layernorm.weight"))
            normed = self._norm(x, f"{prefix}.post_attention_layernorm.weight")
            x = x + self._feed_forward(f"{prefix}.mlp", normed)
        head = "model.embed_tokens.weight" if self.config.tied else "lm_head.weight"
        return functional.linear(self._norm(x, "model.norm.weight"), w[head])

    def loss(self, tokens: Any, targets: Any, label_smoothing: float, z_loss: float) -> Any:
        """Return the mean loss of targets (B, T); negative ones are ignored."""
        logits = self.logits(tokens).flatten(0, 1)
        targets = targets.flatten()
        loss = self._torch.nn.functional.cross_entropy(
            logits, targets, ignore_index=-1, label_smoothing=label_smoothing
        )
        if z_loss:
            log_sum_exp = self._torch.logsumexp(logits, dim=-1)[targets >= 0]
            loss = loss + z_loss * (log_sum_exp**2).mean()
        return loss

    def optimizer(self, options: TrainOptions, **settings: Any) -> Any:
        """Return PyTorch's AdamW over all parameters, with decay on matrices only."""
        decaying = {weight.name for weight in self.config.weights() if weight.decays}
        groups = [
            {
                "params": [
                    p for name, p in self.parameters.items() if (name in decaying) == decays
                ],
                "weight_decay": options.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]
        return self._torch.optim.AdamW(
            groups,
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            **settings,
        )

    def train_step(
        self,
        optimizer: Any,
        options: TrainOptions,
        batches: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]],
        learning_rate: float,
    ) -> Any:
        """Take one step on batches of ids and targets (B, T), all valid; return the mean loss."""
        torch = self._torch
        total = 0.0
        for tokens, targets in batches:
            ids, wanted = (
                torch.tensor(array.astype(np.int64), device=self.device)
                for array in (tokens, targets)
            )
            loss = self.loss(ids, wanted, options.label_smoothing, options.z_loss) / len(batches)
            loss.backward()
            total = total + loss.detach()
        if options.grad_clip:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), options.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    def _norm(self, x: Any, name: str) -> Any:
        epsilon = self.config.norm_epsilon
        return self._torch.nn.functional.rms_norm(
            x, (self.config.dim,), self.parameters[name], epsilon
        )

    def _project(self, x: Any, name: str) -> Any:
        return self._torch.nn.functional.linear(x, self.parameters[f"{name}.weight"])

    def _attention(self, prefix: str, x: Any) -> Any:
        config, attention = self.config, f"{prefix}.self_attn"

        def heads(name: str, count: int) -> Any:
            projected = self._project(x, f"{attention}.{name}")
            return projected.view(*x.shape[:2], count, config.head_dim).transpose(1, 2)

        q = self._rotate(heads("q_proj", config.heads))
        k = self._rotate(heads("k_proj", config.kv_heads))
        v = heads("v_proj", config.kv_heads)
        mixed = self._torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=config.kv_heads != config.heads
        )
        return self._project(mixed.transpose(1, 2).flatten(2), f"{attention}.o_proj")

    def _rotate(self, x: Any) -> Any:
        length, half = x.shape[-2], self.config.head_dim // 2
        turned = self._torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self._cosines[:length] + turned * self._sines[:length]

    def _feed_forward(self, prefix: str, x: Any) -> Any:
        functional = self._torch.nn.functional
        up = self._project(x, f"{prefix}.up_proj")
        if self.config.activation == "gelu":
            inner = functional.gelu(up, approximate="tanh")
        else:
            inner = functional.silu(self._project(x, f"{prefix}.gate_proj")) * up
        return self._project(inner, f"{prefix}.down_proj")


class TorchSteps:
    """torch that takes the steps of a job, eagerly in float32."""

    def __init__(self, job: StepJob, torch: Torch) -> None:
        """Make the model on torch's device."""
        self._torch = torch
        self._options = job.options("f32")
        self._model = TorchLlama(job.config, job.weights(), device=torch.device)
        self._optimizer = self._model.optimizer(self._options, fused=torch.is_cuda)
        self._batches = job.batches()
        self._step = 0

    def losses(self) -> list[float]:
        """Take the first CHECKED_STEPS steps; return their losses."""
        return [float(self._take()) for _ in range(CHECKED_STEPS)]

    def time(self, count: int) -> float:
        """Take `count` more steps; return the seconds for each."""

        def take_all() -> None:
            for _ in range(count):
                self._take()
            if self._torch.is_cuda:
                self._torch.module.cuda.synchronize()

        return timed(take_all)[0] / count

    def _take(self) -> Any:
        batch = self._batches[self._step % len(self._batches)]
        self._step += 1
        return self._model.train_step(self._optimizer, self._options, [batch], LEARNING_RATE)
