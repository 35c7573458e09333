"""Measuring training steps of a language model: tokens per second, and the time of each kernel.

A job fixes the model, its first weights and the batches, so that losses can be compared; times are
given only after that. Ids are random, but as unevenly frequent as words are. Steps that would take
NumPy minutes are compared with it on a cut model, of the same width and vocabulary, and with torch
as they are.

Where torch is installed, it takes the same steps from the same weights, in turns with the engine,
with a model of PyTorch's own operations, eagerly, as its users would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bench import TRAIN, BenchOptions
from llmgpu.bench.engines import Engine, cpu_engine
from llmgpu.bench.peers.torch import Torch, first_line, missing_torch
from llmgpu.bench.results import Result, Times
from llmgpu.bench.timing import kernel_times, measure_limits, runs_within, timed
from llmgpu.errors import LlmgpuError
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.data.batches import Batch
from llmgpu.lm.model import initial_values, scaled_frequencies
from llmgpu.lm.ops.layers import rotary_tables
from llmgpu.lm.ops.operations import open_operations
from llmgpu.lm.options import Precision, TrainOptions
from llmgpu.lm.trainer import Trainer
from llmgpu.progress import Progress

SEED = 1
CHECKED_STEPS = 3
LEARNING_RATE = 1e-4
SMALL_OPERATIONS = 50e9  # of a step that NumPy and torch take on a CPU in a moment
CUT_LAYERS, CUT_TOKENS = 2, 64  # of a larger job, for a comparison with NumPy
TOLERANCE = 1e-3  # of a loss, relative
VARIANTS: dict[Precision, str] = {"f32": "float32", "f16": "mixed precision"}
RUN_SECONDS = 0.5  # that a run takes about, if a step is shorter
RUN_STEPS = 10  # in the longest run
ENGINE_SECONDS, QUICK_ENGINE_SECONDS = 15.0, 2.0  # after which no further run starts


@dataclass(frozen=True)
class StepJob:
    """Training steps: the same weights and the same batches for llmgpu and torch.

    name: of the preset. sequences: in a batch, of which a step takes one.
    """

    name: str
    config: ModelConfig
    sequences: int

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.sequences * self.config.seq_len

    @property
    def operations(self) -> int:
        """Additions and multiplications of a step, forward and backward."""
        return self.config.training_operations(self.tokens)

    @property
    def is_small(self) -> bool:
        """Whether a CPU takes a step quickly."""
        return self.operations <= SMALL_OPERATIONS

    def options(self, precision: Precision) -> TrainOptions:
        """Return the options of a trainer."""
        return TrainOptions(
            batch_size=self.sequences, learning_rate=LEARNING_RATE, precision=precision, seed=SEED
        )

    def batches(self) -> list[Batch]:
        """Return the batches of the first steps: ids and the ids that follow them."""
        generator = np.random.default_rng(SEED)
        shape = (CHECKED_STEPS, self.sequences, self.config.seq_len + 1)
        ids = uneven_ids(generator, self.config.vocab_size, shape)
        return [(step[:, :-1].copy(), step[:, 1:].copy()) for step in ids]

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the first weights, those of `Model.initialise`."""
        return {
            weight.name: initial_values(SEED, index, weight)
            for index, weight in enumerate(self.config.weights())
        }

    def cut(self) -> StepJob:
        """Return the same with few layers and tokens, which NumPy can do; itself if it is small."""
        if self.is_small:
            return self
        layers, seq_len = min(self.config.layers, CUT_LAYERS), min(self.config.seq_len, CUT_TOKENS)
        return StepJob(self.name, replace(self.config, layers=layers, seq_len=seq_len), 1)

    def __str__(self) -> str:
        """Say the sizes."""
        config, tokens = self.config, f"{self.sequences} x {self.config.seq_len:,} tokens"
        sizes = f"{config.layers} layers, {config.dim} wide, {config.vocab_size:,} ids"
        return f"{self.name}: {config.parameters / 1e6:,.1f} M parameters ({sizes}), {tokens}"


def uneven_ids(
    generator: np.random.Generator, vocab_size: int, shape: tuple[int, ...]
) -> NDArray[np.uint32]:
    """Return random ids, id k about as often as 1 / (k + 3), as words of a text are."""
    weights = 1 / (np.arange(vocab_size) + 3.0)
    ends = np.cumsum(weights)
    drawn = np.searchsorted(ends, generator.random(shape) * ends[-1], side="right")
    ids: NDArray[np.uint32] = np.minimum(drawn, vocab_size - 1).astype(np.uint32)
    return ids


def choose_job(engine: Engine, *, quick: bool) -> StepJob:
    """Return the steps for an engine: GPT-2 small on a GPU, a tiny model where a CPU computes."""
    if not engine.backend.is_software:
        if quick:
            return StepJob("small", preset("small", 8192), 4)
        return StepJob("gpt2", preset("gpt2", 50_257), 8)
    if quick:
        return StepJob("tiny", preset("tiny", 512, layers=2, seq_len=32), 2)
    return StepJob("tiny", preset("tiny", 512), 8)


class OwnSteps:
    """The steps of a job by llmgpu on an engine."""

    def __init__(self, engine: Engine, job: StepJob, precision: Precision) -> None:
        """Make the model, for which an engine may have no memory, or no half precision."""
        self.engine, self.job, self.precision = engine, job, precision
        self._operations = open_operations(engine.backend.device, fixed_products=True)
        options = job.options(precision)
        self._trainer = Trainer(self._operations, job.config, options, slots=CHECKED_STEPS)
        self._trainer.model.initialise(SEED)
        self._batches = job.batches()

    @cached_property
    def first_losses(self) -> list[float]:
        """Losses of the first CHECKED_STEPS steps, which are taken when they are asked for."""
        self._take(CHECKED_STEPS)
        return [result.loss for result in self._trainer.results(CHECKED_STEPS)]

    def time(self, count: int) -> float:
        """Take `count` more steps; return the seconds for each."""
        return timed(lambda: self._take(count))[0] / count

    def _take(self, count: int) -> None:
        for _ in range(count):
            batch = self._batches[self._trainer.step % len(self._batches)]
            self._trainer.take_step([batch], LEARNING_RATE)
        self._operations.wait_for_runs(0)


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
        tables = rotary_tables(config.seq_len, scaled_frequencies(config))
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
    """The steps of a job by torch, eagerly in float32.

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


@dataclass
class TrainBench:
    """Engines that take the steps of their jobs, in turns with torch.

    numpy_losses, numpy_seconds: what NumPy found, by the job. reported: which results of torch,
    by its name and the job, there are already.
    """

    options: BenchOptions
    progress: Progress
    numpy_losses: dict[str, list[float]] = field(default_factory=dict)
    numpy_seconds: dict[str, float] = field(default_factory=dict)
    reported: set[tuple[str, str]] = field(default_factory=set)

    def measure_engine(self, engine: Engine, precision: Precision) -> Iterator[Result]:
        """Yield an engine's result, and that of torch on the same job if there is none yet."""
        job = choose_job(engine, quick=self.options.quick)
        result = Result(TRAIN, engine.host_name, job=str(job), variant=VARIANTS[precision])
        self.progress(f"{TRAIN}: {engine.name}, comparing", 0, 1)
        torch_result, theirs = _open_torch(engine, job) if self.options.peers else (None, None)
        seconds: list[list[float]] = []
        try:
            own = OwnSteps(engine, job, precision)
            compared = self._compare(own, theirs)
            if compared["correct"]:
                seconds = self._take_turns(engine.name, [own] if theirs is None else [own, theirs])
                compared |= self._measured(own, seconds)
            result = replace(result, losses=tuple(own.first_losses), **compared)
        except LlmgpuError as error:
            result = replace(result, note=str(error))
        yield result
        if torch_result is None or (torch_result.engine, str(job)) in self.reported:
            return
        self.reported.add((torch_result.engine, str(job)))
        if len(seconds) > 1:
            times = _times(job, seconds[1]) | {"answer": f"the losses of {engine.host_name}"}
            torch_result = replace(torch_result, correct=True, **times)
        yield torch_result

    def _compare(self, own: OwnSteps, torch: TorchSteps | None) -> dict[str, Any]:
        """Compare an engine's losses with NumPy's and torch's; return what a result says of it."""
        compared: list[tuple[str, Sequence[float], Sequence[float]]] = []
        if own.engine.backend is not NUMPY:
            steps, name, cut = own, cpu_engine(), own.job.cut()
            if cut != own.job:
                steps, name = OwnSteps(own.engine, cut, own.precision), f"{name} ({cut})"
            compared.append((name, steps.first_losses, self._numpy_losses(cut)))
        if torch is not None:
            compared.append(("torch", own.first_losses, torch.first_losses))
        wrong = [name for name, found, wanted in compared if not losses_agree(found, wanted)]
        if wrong:
            return {"correct": False, "answer": f"NOT the losses of {' and '.join(wrong)}"}
        names = " and ".join(name for name, _, _ in compared)
        answer = f"the losses of {names}, within {TOLERANCE:g}" if compared else "the reference"
        return {"correct": bool(np.isfinite(own.first_losses).all()), "answer": answer}

    def _numpy_losses(self, job: StepJob) -> list[float]:
        if str(job) not in self.numpy_losses:
            self.numpy_losses[str(job)] = OwnSteps(Engine(NUMPY, 0.0), job, "f32").first_losses
        return self.numpy_losses[str(job)]

    def _measured(self, own: OwnSteps, seconds: list[list[float]]) -> dict[str, Any]:
        """Return what a result says of an engine's times, with torch's after them if it has any."""
        engine, job = own.engine, own.job
        times = _times(job, seconds[0])
        median = times["seconds"].median
        if engine.backend is NUMPY:
            self.numpy_seconds[str(job)] = median
        elif str(job) in self.numpy_seconds:
            times["speed_up"] = self.numpy_seconds[str(job)] / median
        if len(seconds) > 1:
            times["speed_up_over_torch"] = Times.of(seconds[1]).median / median
        limits = measure_limits(engine.backend)
        limit = limits.operations_per_second
        if own.precision == "f16":
            limit = limits.matrix_operations_per_second or limit
        times["share_of_floor"] = job.operations / median / limit
        times["kernels"] = kernel_times(engine.backend.device, lambda: own.time(1))
        return times

    def _take_turns(self, name: str, both: Sequence[OwnSteps | TorchSteps]) -> list[list[float]]:
        """Return the seconds a step of several runs, which alternate."""
        # Short steps are repeated in a run, since a single one says little.
        counts = [max(1, min(RUN_STEPS, int(RUN_SECONDS / steps.time(1)))) for steps in both]
        seconds: list[list[float]] = [[] for _ in both]
        budget = QUICK_ENGINE_SECONDS if self.options.quick else ENGINE_SECONDS
        for run in runs_within(self.options.runs, budget):
            self.progress(f"{TRAIN}: {name}", run, self.options.runs)
            for steps, count, times in zip(both, counts, seconds, strict=True):
                times.append(steps.time(count))
        return seconds


def _open_torch(engine: Engine, job: StepJob) -> tuple[Result, TorchSteps | None]:
    """Let torch take the first steps of a job; its result says why if it can't."""
    try:
        torch = Torch.beside(engine)
    except ImportError:
        return missing_torch(TRAIN, str(job)), None
    torch.free_memory()
    result = Result(TRAIN, torch.name, peer=True, job=str(job), variant="float32")
    if not torch.is_cuda and not job.is_small:
        return replace(result, note="left out: no cuda here, and a CPU takes too long"), None
    try:
        return result, TorchSteps(job, torch)
    except RuntimeError as error:
        return replace(result, note=first_line(error)), None


def measure_train(
    engines: Sequence[Engine], options: BenchOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the results of each engine, in single and where it has it in half precision."""
    bench = TrainBench(options, progress)
    for engine in engines:
        for precision in VARIANTS:
            device = engine.backend.device
            if precision == "f32" or (device is not None and "shader-f16" in device.features):
                yield from bench.measure_engine(engine, precision)


def losses_agree(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """Whether losses are the same within TOLERANCE; what is not finite agrees with nothing."""
    return bool(np.isfinite(found).all()) and np.allclose(found, wanted, rtol=TOLERANCE, atol=0)


def _times(job: StepJob, seconds: list[float]) -> dict[str, Any]:
    """Return a result's fields for the seconds of a step."""
    times = Times.of(seconds)
    done = {"tokens": job.tokens, "operations": job.operations}
    rates = {f"{name}_per_second": count / times.median for name, count in done.items()}
    return {"clock": "host", "seconds": times, **done, **rates}
