"""PyTorch on one of its devices: tensors, times, and a model of the same weights.

The model is written with PyTorch's own operations, eagerly, as its users would.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.engines import Engine, package_version
from llmgpu.bench.models.training_steps import CHECKED_STEPS, LEARNING_RATE, StepJob
from llmgpu.bench.results import Result
from llmgpu.bench.timing import ProgramTimes, host_times, runs_within, timed, warm_up
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.layers import rotary_tables

NOT_INSTALLED = "not installed: pip install torch"
CACHE_BYTES = 256 << 20  # more than any cache holds


@dataclass(frozen=True)
class Torch:
    """The module, a device of it ("cpu" or "cuda"), and what tables call it there."""

    module: Any
    device: str
    name: str

    @classmethod
    def beside(cls, engine: Engine) -> Torch:
        """Return torch as an engine is compared with it; float32 products without tf32.

        That is on cuda where torch has it and the engine is an NVIDIA GPU, otherwise on the CPU.

        Raises:
            ImportError: torch is not installed.
        """
        module = importlib.import_module("torch")
        module.set_float32_matmul_precision("highest")
        module.backends.cudnn.allow_tf32 = False
        version = package_version("torch")
        if "NVIDIA" in engine.name and module.cuda.is_available():
            return cls(module, "cuda", f"torch {version} ({module.cuda.get_device_name()})")
        return cls(module, "cpu", f"torch {version} (cpu)")

    @classmethod
    def on_gpu(cls, engine: Engine) -> Torch | None:
        """Return torch on the NVIDIA GPU that an engine is, None where that is not possible."""
        with suppress(ImportError):
            if "NVIDIA" in engine.name and (torch := cls.beside(engine)).is_cuda:
                return torch
        return None

    @property
    def is_cuda(self) -> bool:
        """Whether it computes on a GPU."""
        return self.device == "cuda"

    def tensor(self, array: NDArray[Any]) -> Any:
        """Return an array on the device; ids, which torch wants to be signed, as int64.

        On a CPU a tensor shares the memory of an array of another type than uint32.
        """
        if array.dtype == np.uint32:
            array = array.astype(np.int64)
        return self.module.from_numpy(array).to(self.device)

    def times(
        self, function: Callable[[], Any], runs: int, budget: float, *, cold: bool = False
    ) -> ProgramTimes:
        """Time a function after a warm-up, as `time_program` does.

        cold: whether to fill a GPU's caches with other numbers before each run.
        """
        warm_up(lambda: self.finish(function))
        if not self.is_cuda:
            return ProgramTimes("host", host_times(function, runs, budget))
        other = self.module.zeros(CACHE_BYTES // 4, device=self.device) if cold else None
        times = ProgramTimes("gpu")
        for _ in runs_within(runs, budget):
            if other is not None:
                other.sum()
            start, end = (self.module.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            end.synchronize()
            times.seconds.append(float(start.elapsed_time(end)) / 1e3)
        return times

    def free_memory(self) -> None:
        """Release the memory of a GPU that torch keeps for later."""
        if self.is_cuda:
            self.module.cuda.empty_cache()

    def finish(self, function: Callable[[], Any]) -> None:
        """Call a function, and wait for a GPU to do what it asks for."""
        function()
        if self.is_cuda:
            self.module.cuda.synchronize()


def missing_torch(what: str, job: str) -> Result:
    """Return the result of a part in which torch would have been compared."""
    return Result(what, "torch", peer=True, job=job, note=NOT_INSTALLED)


def first_line(error: RuntimeError) -> str:
    """Return why torch could not do something, such as missing memory, in a line."""
    return str(error).partition("\n")[0]


class TorchLlama:
    """A Llama-style model in PyTorch.

    parameters: float32, by Hugging Face's names, as `ModelConfig.weights` lists them.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, NDArray[np.float32]], torch: Torch
    ) -> None:
        """Copy the weights to torch's device."""
        self._functional = torch.module.nn.functional
        self._cat = torch.module.cat
        self.config = config
        self.parameters = {
            name: torch.module.nn.Parameter(torch.tensor(values))
            for name, values in weights.items()
        }
        tables = rotary_tables(config.seq_len, config.head_dim, config.rope_theta)
        # Both halves of a head turn by the same angles.
        self._cosines, self._sines = (torch.tensor(np.tile(table, 2)) for table in tables)

    def logits(self, tokens: Any) -> Any:
        """Return the logits of all tokens, (B, T, vocabulary size), for ids (B, T)."""
        functional, w = self._functional, self.parameters
        x = functional.embedding(tokens, w["model.embed_tokens.weight"])
        for layer in range(self.config.layers):
            prefix = f"model.layers.{layer}"
            x = x + self._attention(prefix, self._norm(x, f"{prefix}.input_layernorm.weight"))
            normed = self._norm(x, f"{prefix}.post_attention_layernorm.weight")
            x = x + self._feed_forward(f"{prefix}.mlp", normed)
        head = "model.embed_tokens.weight" if self.config.tied else "lm_head.weight"
        table = w[head][: self.config.vocab_size]
        return functional.linear(self._norm(x, "model.norm.weight"), table)

    def _norm(self, x: Any, name: str) -> Any:
        epsilon = self.config.norm_epsilon
        return self._functional.rms_norm(x, (self.config.dim,), self.parameters[name], epsilon)

    def _project(self, x: Any, name: str) -> Any:
        return self._functional.linear(x, self.parameters[f"{name}.weight"])

    def _attention(self, prefix: str, x: Any) -> Any:
        config, attention = self.config, f"{prefix}.self_attn"

        def heads(name: str, count: int) -> Any:
            projected = self._project(x, f"{attention}.{name}")
            return projected.view(*x.shape[:2], count, config.head_dim).transpose(1, 2)

        q = self._rotate(heads("q_proj", config.heads))
        k = self._rotate(heads("k_proj", config.kv_heads))
        v = heads("v_proj", config.kv_heads)
        mixed = self._functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=config.kv_heads != config.heads
        )
        return self._project(mixed.transpose(1, 2).flatten(2), f"{attention}.o_proj")

    def _rotate(self, x: Any) -> Any:
        length, half = x.shape[-2], self.config.head_dim // 2
        turned = self._cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self._cosines[:length] + turned * self._sines[:length]

    def _feed_forward(self, prefix: str, x: Any) -> Any:
        functional = self._functional
        up = self._project(x, f"{prefix}.up_proj")
        if self.config.activation == "gelu":
            inner = functional.gelu(up, approximate="tanh")
        else:
            inner = functional.silu(self._project(x, f"{prefix}.gate_proj")) * up
        return self._project(inner, f"{prefix}.down_proj")


class TorchSteps:
    """torch that takes the steps of a job, eagerly in float32.

    first_losses: of the first CHECKED_STEPS steps, which are taken at once.
    """

    def __init__(self, job: StepJob, torch: Torch) -> None:
        """Make the model on torch's device, and PyTorch's AdamW with decay on matrices only."""
        self._torch = torch
        self._options = options = job.options("f32")
        self._model = TorchLlama(job.config, job.weights(), torch)
        groups: dict[float, list[Any]] = {options.weight_decay: [], 0.0: []}
        for weight in job.config.weights():
            decay = options.weight_decay if weight.decays else 0.0
            groups[decay].append(self._model.parameters[weight.name])
        self._optimizer = torch.module.optim.AdamW(
            [{"params": group, "weight_decay": decay} for decay, group in groups.items()],
            lr=LEARNING_RATE,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            fused=torch.is_cuda,
        )
        self._batches = [tuple(map(torch.tensor, batch)) for batch in job.batches()]
        self._step = 0
        self.first_losses = [float(self._take()) for _ in range(CHECKED_STEPS)]

    def time(self, count: int) -> float:
        """Take `count` more steps; return the seconds for each."""

        def take_all() -> None:
            for _ in range(count):
                self._take()

        return timed(lambda: self._torch.finish(take_all))[0] / count

    def _take(self) -> Any:
        """Take a step on the next batch; return its mean cross-entropy."""
        module = self._torch.module
        tokens, targets = self._batches[self._step % len(self._batches)]
        self._step += 1
        logits = self._model.logits(tokens).flatten(0, 1)
        loss = module.nn.functional.cross_entropy(logits, targets.flatten())
        log_sum_exp = module.logsumexp(logits, dim=-1)
        (loss + self._options.z_loss * (log_sum_exp**2).mean()).backward()
        if self._options.grad_clip:
            parameters = self._model.parameters.values()
            module.nn.utils.clip_grad_norm_(parameters, self._options.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()
