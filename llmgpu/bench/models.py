"""Measuring language models: training steps, and tokens per second of generating.

A job fixes the model, the first weights and the batches, so that losses are comparable; only
engines with the right losses are timed. Ids are random, but as unevenly frequent as words. If NumPy
would need minutes for a step, the losses of a cut model with the same width and vocabulary are
compared with NumPy's, and the losses of the whole model with torch's. If torch is installed, torch
makes the same steps from the same weights, in turns with the engine.

Before generating is timed, the ids that the engine generates with a tiny model are compared with
NumPy's. The timed model has random weights, and always the likeliest id is chosen. Each step reads
all weights, for one sequence or for a batch. Shares refer to the time for reading the weights,
which is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bench import GENERATE, TRAIN, BenchOptions
from llmgpu.bench.cases import uneven_ids
from llmgpu.bench.engines import Engine, Engines, cpu_engine, kernel_times, runs_within, timed
from llmgpu.bench.peers import Torch, missing_torch
from llmgpu.bench.results import Result, Results, Times
from llmgpu.forking import cached_property
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.data.batches import Batch
from llmgpu.lm.generator import Generator, Request
from llmgpu.lm.model import Model, initial_values, scaled_frequencies
from llmgpu.lm.ops.layers import rotary_tables
from llmgpu.lm.ops.operations import open_operations
from llmgpu.lm.options import Precision, SamplingOptions, TrainOptions
from llmgpu.lm.sampling import Sampler
from llmgpu.lm.trainer import Trainer
from llmgpu.progress import Progress

SEED = 1
CHECKED_STEPS = 3
LEARNING_RATE = 1e-4
SMALL_OPERATIONS = 50e9  # a CPU makes a step of up to this many operations quickly
CUT_LAYERS, CUT_TOKENS = 2, 64  # of a cut model: number of layers, and tokens of a sequence
TOLERANCE = 1e-3  # largest relative difference of a loss
VARIANTS: dict[Precision, str] = {"f32": "float32", "f16": "mixed precision"}
RUN_SECONDS = 0.5  # approximate duration of a run of short steps
RUN_STEPS = 10  # most steps of a run
ENGINE_SECONDS, QUICK_ENGINE_SECONDS = 15.0, 2.0  # seconds after which no further run starts
GENERATING_SECONDS = 10.0  # seconds after which no further run starts
PROMPT = range(16)  # first ids of each sequence
# Not tied, because a model with tied random weights only repeats the last id.
COMPARED = preset("tiny", 512, layers=2, seq_len=64, tied=False)
COMPARED_TOKENS = 24


@dataclass(frozen=True)
class StepJob:
    """Training steps: the same weights and the same batches for llmgpu and torch.

    name: the preset's name. sequences: number of sequences in the batch of a step.
    """

    name: str
    config: ModelConfig
    sequences: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.config.seq_len

    @property
    def operations(self) -> int:
        """Number of additions and multiplications of a step, forward and backward."""
        return self.config.training_operations(self.tokens)

    @property
    def is_small(self) -> bool:
        """Whether a CPU makes a step quickly."""
        return self.operations <= SMALL_OPERATIONS

    def options(self, precision: Precision) -> TrainOptions:
        return TrainOptions(
            batch_size=self.sequences, learning_rate=LEARNING_RATE, precision=precision, seed=SEED
        )

    def batches(self) -> list[Batch]:
        """Return the batches of the first steps: ids, and the id that follows each id."""
        generator = np.random.default_rng(SEED)
        shape = (CHECKED_STEPS, self.sequences, self.config.seq_len + 1)
        ids = uneven_ids(generator, self.config.vocab_size, shape)
        return [(step[:, :-1].copy(), step[:, 1:].copy()) for step in ids]

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the first weights, as `Model.initialise` makes them."""
        weights = enumerate(self.config.weights())
        return {weight.name: initial_values(SEED, index, weight) for index, weight in weights}

    def cut(self) -> StepJob:
        """Return a job with few layers and tokens, for NumPy; a small job is returned unchanged."""
        if self.is_small:
            return self
        layers, seq_len = min(self.config.layers, CUT_LAYERS), min(self.config.seq_len, CUT_TOKENS)
        return StepJob(self.name, replace(self.config, layers=layers, seq_len=seq_len), 1)

    def __str__(self) -> str:
        config, tokens = self.config, f"{self.sequences} x {self.config.seq_len:,} tokens"
        sizes = f"{config.layers} layers, {config.dim} wide, {config.vocab_size:,} ids"
        return f"{self.name}: {config.parameters / 1e6:,.1f} M parameters ({sizes}), {tokens}"


def choose_job(engine: Engine, *, quick: bool) -> StepJob:
    """Return the training job for an engine: GPT-2 small on a GPU, a tiny model on a CPU."""
    if engine.backend.is_software:
        config = preset("tiny", 512, layers=2, seq_len=32) if quick else preset("tiny", 512)
        return StepJob("tiny", config, 2 if quick else 8)
    if quick:
        return StepJob("small", preset("small", 8192), 4)
    return StepJob("gpt2", preset("gpt2", 50_257), 8)


class OwnSteps:
    """The steps of a job, made by llmgpu on an engine.

    seconds: the mean seconds of a step in each run.
    """

    def __init__(self, engine: Engine, job: StepJob, precision: Precision) -> None:
        """Create the model; LlmgpuError if memory or half precision is missing."""
        self.engine, self.job, self.precision = engine, job, precision
        self._operations = open_operations(engine.backend.device, fixed_products=True)
        options = job.options(precision)
        self._trainer = Trainer(self._operations, job.config, options, slots=CHECKED_STEPS)
        self._trainer.model.initialise(SEED)
        self._batches = cycle(job.batches())
        self.seconds: list[float] = []

    @cached_property
    def first_losses(self) -> list[float]:
        """Losses of the first CHECKED_STEPS steps, which are made at the first access."""
        self.take(CHECKED_STEPS)
        return [result.loss for result in self._trainer.results(CHECKED_STEPS)]

    def take(self, count: int) -> None:
        """Make `count` more steps, and wait until they are done."""
        for _ in range(count):
            self._trainer.take_step([next(self._batches)], LEARNING_RATE)
        self._operations.wait_for_runs(0)


class TorchSteps:
    """The steps of a job in torch, eager and in float32, with a Llama-style model as presets are.

    The feed-forward network is SwiGLU, the embedding table is the output layer, and there are as
    many heads of keys as of queries.

    first_losses: losses of the first CHECKED_STEPS steps, which the constructor makes.
    seconds: the mean seconds of a step in each run.
    """

    def __init__(self, job: StepJob, torch: Torch) -> None:
        """Create the model on torch's device, and PyTorch's AdamW, which decays matrices only."""
        self._torch, self._config = torch, job.config
        self._options = options = job.options("f32")
        # By Hugging Face's names, which `ModelConfig.weights` lists.
        parameter, first = torch.module.nn.Parameter, job.weights()
        self._weights = {name: parameter(torch.tensor(first[name])) for name in first}
        matrices: dict[str, Any] = {"params": [], "weight_decay": options.weight_decay}
        others: dict[str, Any] = {"params": [], "weight_decay": 0.0}
        for weight in job.config.weights():
            group = matrices if weight.decays else others
            group["params"].append(self._weights[weight.name])
        self._optimizer = torch.module.optim.AdamW(
            [matrices, others],
            lr=LEARNING_RATE,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            fused=torch.is_cuda,
        )
        tables = rotary_tables(job.config.seq_len, scaled_frequencies(job.config))
        # Both halves of a head are rotated by the same angles.
        self._cosines, self._sines = (torch.tensor(np.tile(table, 2)) for table in tables)
        self._batches = cycle([tuple(map(torch.tensor, batch)) for batch in job.batches()])
        self.first_losses = [float(self._take_one()) for _ in range(CHECKED_STEPS)]
        self.seconds: list[float] = []

    def take(self, count: int) -> None:
        """Make `count` more steps, and wait until they are done."""
        for _ in range(count):
            self._take_one()
        if self._torch.is_cuda:
            self._torch.module.cuda.synchronize()

    def _take_one(self) -> Any:
        """Make a step on the next batch; return the mean cross-entropy."""
        module = self._torch.module
        tokens, targets = next(self._batches)
        logits = self._logits(tokens).flatten(0, 1)
        loss = module.nn.functional.cross_entropy(logits, targets.flatten())
        log_sum_exp = module.logsumexp(logits, dim=-1)
        (loss + self._options.z_loss * (log_sum_exp**2).mean()).backward()
        module.nn.utils.clip_grad_norm_(self._weights.values(), self._options.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _logits(self, tokens: Any) -> Any:
        """Return the logits of all tokens, (B, T, vocabulary size), for ids (B, T)."""
        config, functional = self._config, self._torch.module.nn.functional
        half, table = config.head_dim // 2, self._weights["model.embed_tokens.weight"]

        def norm(x: Any, name: str) -> Any:
            weight = self._weights[f"{name}.weight"]
            return functional.rms_norm(x, (config.dim,), weight, config.norm_epsilon)

        def project(x: Any, name: str) -> Any:
            return functional.linear(x, self._weights[f"{name}_proj.weight"])

        def rotate(x: Any) -> Any:
            turned = self._torch.module.cat((-x[..., half:], x[..., :half]), dim=-1)
            return x * self._cosines + turned * self._sines

        x = functional.embedding(tokens, table)
        for prefix in (f"model.layers.{layer}" for layer in range(config.layers)):
            normed = norm(x, f"{prefix}.input_layernorm")
            q, k, v = (project(normed, f"{prefix}.self_attn.{name}") for name in "qkv")
            q, k, v = (y.view(*x.shape[:2], -1, 2 * half).transpose(1, 2) for y in (q, k, v))
            attend = functional.scaled_dot_product_attention
            mixed = attend(rotate(q), rotate(k), v, is_causal=True).transpose(1, 2)
            x = x + project(mixed.flatten(2), f"{prefix}.self_attn.o")
            normed = norm(x, f"{prefix}.post_attention_layernorm")
            gate, up = (project(normed, f"{prefix}.mlp.{name}") for name in ("gate", "up"))
            x = x + project(functional.silu(gate) * up, f"{prefix}.mlp.down")
        return functional.linear(norm(x, "model.norm"), table[: config.vocab_size])


@dataclass
class TrainBench:
    """Measures training steps on engines and in torch, in turns.

    numpy_seconds: NumPy's median times by job. reported: pairs (torch's name, job) of torch's
    results that have been yielded.
    """

    options: BenchOptions
    progress: Progress
    numpy_seconds: dict[str, float] = field(default_factory=dict)
    reported: set[tuple[str, str]] = field(default_factory=set)

    def measure_engine(self, engine: Engine, precision: Precision) -> Results:
        """Yield the result of an engine, then the result of torch for the same job.

        A result of torch that was yielded before is not yielded again.
        """
        job = choose_job(engine, quick=self.options.quick)
        begun = Result(TRAIN, engine.host_name, job=str(job), variant=VARIANTS[precision])
        self.progress(f"{TRAIN}: {engine.name}, comparing", 0, 1)
        torch_result, theirs = _open_torch(engine, job) if self.options.peers else (None, None)

        def measure() -> Result:
            own = OwnSteps(engine, job, precision)
            result = _compare(begun, own, theirs)
            return self._time(result, own, theirs) if result.correct else result

        yield begun.or_why_not(measure)
        if torch_result is None or (torch_result.engine, str(job)) in self.reported:
            return
        self.reported.add((torch_result.engine, str(job)))
        if theirs is not None and theirs.seconds:
            torch_result = torch_result.compared(True, f"losses of {engine.host_name}")
            torch_result = _with_steps(torch_result, job, theirs.seconds)
        yield torch_result

    def _time(self, result: Result, own: OwnSteps, torch: TorchSteps | None) -> Result:
        """Add times, speed-ups, and the share of the least possible time to a result.

        Runs of llmgpu and of torch take turns, so that changes of the clocks affect both programs.
        """
        engine, job = own.engine, own.job
        both: list[OwnSteps | TorchSteps] = [own] if torch is None else [own, torch]
        # A run repeats short steps, since the times of single short steps vary.
        once = [_mean_seconds(each, 1) for each in both]
        counts = [max(1, min(RUN_STEPS, int(RUN_SECONDS / seconds))) for seconds in once]
        budget = QUICK_ENGINE_SECONDS if self.options.quick else ENGINE_SECONDS
        for run in runs_within(self.options.runs, budget):
            self.progress(f"{TRAIN}: {engine.name}", run, self.options.runs)
            for steps, count in zip(both, counts, strict=True):
                steps.seconds.append(_mean_seconds(steps, count))
        result = _with_steps(result, job, own.seconds)
        if torch is not None:
            ratio = Times.of(torch.seconds).median / result.median
            result = replace(result, speed_up_over_torch=ratio)
        floor = engine.limits.floor(0, job.operations, halves=own.precision == "f16")
        kernels = kernel_times(engine.backend.device, partial(own.take, 1))
        result = replace(result, kernels=kernels, share_of_floor=floor / result.median)
        return _with_speed_up(result, engine, self.numpy_seconds)


def _mean_seconds(steps: OwnSteps | TorchSteps, count: int) -> float:
    """Make `count` more steps; return the mean seconds of a step."""
    return timed(partial(steps.take, count))[0] / count


def _compare(begun: Result, own: OwnSteps, torch: TorchSteps | None) -> Result:
    """Add the comparison of the losses with NumPy's and torch's losses to a result."""
    compared: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    if own.engine.backend is not NUMPY:
        steps, name, cut = own, cpu_engine(), own.job.cut()
        if cut != own.job:
            steps, name = OwnSteps(own.engine, cut, own.precision), f"{name} ({cut})"
        compared[name] = steps.first_losses, numpy_losses(cut)
    if torch is not None:
        compared["torch"] = own.first_losses, torch.first_losses
    wrong = [name for name, losses in compared.items() if not losses_agree(*losses)]
    result = replace(begun, losses=tuple(own.first_losses))
    if wrong:
        return result.compared(False, f"losses of {' and '.join(wrong)}")
    answer = f"losses of {' and '.join(compared)}, within {TOLERANCE:g}"
    result = result.compared(True, answer if compared else "reference")
    return replace(result, correct=bool(np.isfinite(own.first_losses).all()))


@cache
def numpy_losses(job: StepJob) -> list[float]:
    """Return NumPy's losses of the first steps of a job."""
    return OwnSteps(Engine(NUMPY, 0.0), job, "f32").first_losses


def _open_torch(engine: Engine, job: StepJob) -> tuple[Result, TorchSteps | None]:
    """Let torch make the first steps of a job; return a result and the steps.

    If torch can't, the note of the result gives the reason, and the steps are None.
    """
    torch = Torch.beside(engine)
    if torch is None:
        return missing_torch(TRAIN, str(job)), None
    torch.module.cuda.empty_cache()
    result = Result(TRAIN, torch.name, peer=True, job=str(job), variant="float32")
    if not torch.is_cuda and not job.is_small:
        return replace(result, note="left out: no cuda here, and a CPU takes too long"), None
    try:
        return result, TorchSteps(job, torch)
    except RuntimeError as error:
        return replace(result, note=str(error).partition("\n")[0]), None


def measure_train(engines: Engines, options: BenchOptions, progress: Progress) -> Results:
    """Yield the results of each engine in single precision and, if supported, half precision."""
    bench = TrainBench(options, progress)
    for engine in engines:
        for precision in VARIANTS:
            device = engine.backend.device
            if precision == "f32" or (device is not None and "shader-f16" in device.features):
                yield from bench.measure_engine(engine, precision)


def losses_agree(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """Whether the losses found are finite, and within TOLERANCE of the wanted losses."""
    return bool(np.isfinite(found).all()) and np.allclose(found, wanted, rtol=TOLERANCE, atol=0)


def _with_speed_up(result: Result, engine: Engine, numpy_seconds: dict[str, float]) -> Result:
    """Add the speed-up over NumPy, whose median times are stored by job, to a result."""
    if engine.backend is NUMPY:
        numpy_seconds[result.job] = result.median
    elif result.job in numpy_seconds:
        return replace(result, speed_up=numpy_seconds[result.job] / result.median)
    return result


def _with_steps(result: Result, job: StepJob, seconds: list[float]) -> Result:
    """Add the seconds of a step, and the rates of tokens and operations, to a result."""
    done = {"tokens": job.tokens, "operations": job.operations}
    return result.timed(seconds, done, clock="host", **done)


# Generating


@dataclass(frozen=True)
class GenerateJob:
    """A batch of sequences, each of which is continued by `tokens` ids."""

    name: str
    config: ModelConfig
    sequences: int
    tokens: int

    def __str__(self) -> str:
        many = "a sequence alone" if self.sequences == 1 else f"batches of {self.sequences}"
        size = f"{self.config.parameters / 1e6:,.1f} M parameters"
        return f"{self.name}: {size}, {self.tokens} tokens, {many}"


def choose_sequences(engine: Engine, *, quick: bool) -> list[GenerateJob]:
    """Return the generating jobs for an engine: GPT-2 small on a GPU, a tiny model on a CPU."""
    if engine.backend.is_software:
        config, name, many, tokens = preset("tiny", 512), "tiny", 8, 4 if quick else 64
    else:
        config, name, many, tokens = preset("gpt2", 50_257), "gpt2", 64, 64 if quick else 512
    return [GenerateJob(name, config, sequences, tokens) for sequences in (1, many)]


def measure_generate(engines: Engines, options: BenchOptions, progress: Progress) -> Results:
    """Yield two results for each engine: for a single sequence, and for a batch."""
    numpy_seconds: dict[str, float] = {}
    for engine in engines:
        for job in choose_sequences(engine, quick=options.quick):
            progress(f"{GENERATE}: {engine.name}, {job}", 0, None)
            begun = Result(GENERATE, engine.host_name, job=str(job))
            result = begun.or_why_not(partial(_measured, begun, engine, job, options.runs))
            yield _with_speed_up(result, engine, numpy_seconds) if result.seconds else result


def _measured(begun: Result, engine: Engine, job: GenerateJob, runs: int) -> Result:
    """Compare an engine's ids with NumPy's; measure the job if the ids are equal.

    Raises LlmgpuError if there is too little memory.
    """
    right = engine.backend is NUMPY or _likeliest(engine) == _likeliest(Engine(NUMPY, 0.0))
    result = begun.compared(right, f"ids of {cpu_engine()}")
    if not right:
        return result
    generator = Generator(_model(engine, job.config), sequences=job.sequences)
    _continue(generator, job.sequences, min(8, job.tokens))  # compiles the kernels
    continue_all = partial(_continue, generator, job.sequences, job.tokens)
    seconds = [timed(continue_all)[0] for _ in runs_within(runs, GENERATING_SECONDS)]
    tokens = job.sequences * job.tokens
    result = result.timed(seconds, {"tokens": tokens}, clock="host", tokens=tokens)
    # Each step reads all parameters, since the tied table is read as the output layer.
    floor = engine.limits.floor(job.tokens * 4 * job.config.parameters, 0)
    return replace(result, share_of_floor=floor / result.median)


def _model(engine: Engine, config: ModelConfig) -> Model:
    model = Model(open_operations(engine.backend.device, fixed_products=True), config)
    model.initialise(SEED)
    return model


def _continue(generator: Generator, sequences: int, tokens: int) -> list[tuple[int, int | None]]:
    """Continue a different prompt for each sequence by the likeliest ids; return the ids."""
    greedy = SamplingOptions(temperature=0)
    prompts = [[(k + 7 * number) % 499 for k in PROMPT] for number in range(sequences)]
    requests = [Request(prompt, tokens, Sampler(greedy)) for prompt in prompts]
    return list(generator.continue_all(requests))


def _likeliest(engine: Engine) -> list[tuple[int, int | None]]:
    """Return an engine's ids for a few sequences, generated alone and together."""
    model = _model(engine, COMPARED)
    alone = _continue(Generator(model), 1, COMPARED_TOKENS)
    return alone + _continue(Generator(model, sequences=3), 3, COMPARED_TOKENS)
