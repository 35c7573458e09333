"""The options of training and of generating, apart from the sizes of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from llmgpu.errors import InputError
from llmgpu.input_files import quote
from llmgpu.lm.optimizers import OPTIMIZERS
from llmgpu.option_fields import (
    OPTIMIZER,
    OUTPUT,
    check_ranges,
    flag_of,
    machines_option,
    option,
    rare_option,
)

if TYPE_CHECKING:
    from llmgpu.lm.optimizers.adamw import Optimizer

Precision = Literal["f32", "f16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Schedule = Literal["cosine", "linear", "wsd"]
Initialisation = Literal["normal", "fan-in"]
DriverName = Literal["wgpu", "dawn"]
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

F16_VERSION = 7  # see `TrainOptions.f16_version`


# The first keys of stored options, in the order of the file. All other fields of `TrainOptions`
# follow. A stored run may lack some of these other fields, which then have their defaults.
STORED_FIRST = (
    *("batch_size", "grad_accum", "steps", "learning_rate", "min_learning_rate", "warmup_steps"),
    *("schedule", "decay_steps", "initialisation", "beta1", "beta2", "epsilon", "weight_decay"),
    *("grad_clip", "label_smoothing", "z_loss", "seed", "precision", "optimizer"),
    *("sparse_embedding", "evaluation_fraction", "evaluation_batches", "evaluation_parts"),
    *("lora_rank", "lora_alpha", "lora_targets", "driver", "f16_version", "document_mask"),
    *("recompute", "corpus_weights", "sync_every", "outer_learning_rate", "outer_momentum"),
    *("table_rate", "output_rate"),
)


@dataclass(frozen=True)
class TrainOptions:
    """The options that decide the results of a run: equal options and tokens make equal runs.

    steps: number of optimizer steps.
    batch_size: number of sequences in a batch. grad_accum: number of batches in a step.
    learning_rate: the peak, which is reached after warmup_steps. The rate then falls to
        min_learning_rate: by a cosine or linearly over all other steps, or with schedule "wsd"
        (warm-up, stable, decay) over the last decay_steps.
    table_rate: multiple of learning_rate for the embedding table.
    output_rate: multiple of learning_rate for an output layer that is not the embedding table.
    table_decay: multiple of weight_decay for the embedding table and the output layer.
    table_beta1: beta1 of the embedding table and the output layer; 0: the same as beta1.
    momentum, momentum_start, momentum_steps: see `momentum_of`.
    initialisation: see `llmgpu.lm.model.initial_values`.
    weight_decay: applies to matrices only.
    grad_clip: largest global norm of gradients; 0 disables clipping.
    precision: "f16" rounds the factors of matrix products to half precision and scales the loss, so
        that small gradients are not lost; sums, weights and moments are float32.
    optimizer: a name of `OPTIMIZERS`.
    sparse_embedding: update only the embedding rows of ids in the step's batches (not with a tied
        table).
    evaluation_fraction: share of the text that is held out for evaluation, in at most
        evaluation_parts places.
    evaluation_batches: the most batches of an evaluation.
    driver: the WebGPU driver; drivers differ in rounding.
    document_mask: attention does not reach back beyond the token between documents, if any.
    recompute: do not store activations inside layers; the backward pass computes them again, to the
        same bits.
    lora_rank: the rank of adapters that are trained in place of the model's weights; 0: no
        adapters.
    lora_alpha: adapters are scaled by lora_alpha / lora_rank.
    lora_targets: the adapted matrices, names from `LORA_TARGETS` with commas between them.
    sync_every: number of steps in a round. In a round, each worker updates its weights with its own
        batches only. Then an outer step, with outer_learning_rate and outer_momentum, makes the
        weights of all workers equal, see `llmgpu.lm.workers.LocalSteps`. 0: workers add up their
        gradients in every step.
    corpus_weights: shares of sequences to draw from each corpus, with commas between the shares;
        empty for a single corpus.
    f16_version: version of the arithmetic in half precision, which fixes the numbers that are
        rounded and the order of sums.
    """

    section: ClassVar[str] = OPTIMIZER

    # fmt: off
    steps: int = option(
        1000, "count", "Number of optimizer steps.", may_change=True,
        by_preset={"tiny": 500})  # one or two minutes on two CPU cores
    batch_size: int = option(
        8, "count", "Sequences per batch.",
        by_preset={"small": 32, "base": 16})  # 8192 tokens, enough to keep a GPU busy
    grad_accum: int = option(
        1, "count", "Batches per step; more tokens per step in the same memory.")
    learning_rate: float = option(
        6e-4, float, "Peak learning rate.", "--lr",
        default_words="0.06 / sqrt(--dim) with muon, else 0.5 / --dim; up to 0.01")
    min_learning_rate: float = option(
        6e-5, float, "Final learning rate.", "--min-lr", default_words="0")
    table_rate: float = option(
        1.0, float, "Learning rate of the embedding table, as a multiple of --lr.",
        default_words="83 / sqrt(--dim) with muon, twice that with --untied, else 1; 1 with --init")
    output_rate: float = option(
        1.0, float, "Learning rate of the output layer with --untied, as a multiple of --lr.",
        default_words="a quarter of --table-rate with muon, else --table-rate")
    momentum: float = rare_option(0.95, float, "Decay of Muon's mean of gradients.", below=1)
    momentum_start: float = rare_option(
        0.95, float, "Value of --momentum in the first step.", below=1,
        default_words="0.85 with muon, 0.95 with --init")
    momentum_steps: int = rare_option(
        0, int, "Steps in which --momentum-start rises to --momentum.", least=0,
        default_words="300 with muon, 0 with --init")
    schedule: Schedule = option(
        "cosine", get_args(Schedule),
        "Learning-rate schedule: cosine or linear decay, or constant until the last --decay-steps "
        "(wsd).", default_words="linear with muon, else cosine; cosine with --init")
    decay_steps: int = option(
        0, "count", "Length of the decay, for wsd.", least=0, may_change=True,
        default_words="a fifth of --steps")
    initialisation: Initialisation = option(
        "normal", get_args(Initialisation),
        "Initial weights: one scale for all, or scaled by fan-in, output projections zero.")
    sync_every: int = machines_option(
        0, int,
        "Steps each worker takes alone between exchanges of weights; 0: exchange gradients in "
        "every step.", least=0)
    outer_learning_rate: float = machines_option(
        0.7, float, "With --sync-every, learning rate of the outer step.", "--outer-lr")
    outer_momentum: float = machines_option(
        0.9, float, "With --sync-every, momentum of the outer step.", below=1)
    warmup_steps: int = option(
        100, int, "Linear warm-up steps.", least=0,
        default_words="a tenth of --steps, up to 100")
    weight_decay: float = option(0.1, float, "Weight decay, applied to matrices only.")
    beta1: float = rare_option(0.9, float, "Decay of the mean of gradients.", below=1)
    beta2: float = rare_option(
        0.95, float, "Decay of the mean of squared gradients.", below=1,
        default_words="0.99 with muon, else 0.95; 0.95 with --init")
    table_decay: float = option(
        1.0, float,
        "Weight decay of the embedding table and the output layer, as a multiple of "
        "--weight-decay.", default_words="0 with muon, else 1; 1 with --init")
    table_beta1: float = rare_option(
        0.0, float, "--beta1 of the embedding table and the output layer; 0: the same.", below=1,
        default_words="0.8 with muon, else 0; 0 with --init")
    grad_clip: float = option(
        1.0, float, "Clip the global gradient norm to this; 0 disables it.")
    label_smoothing: float = rare_option(
        0.0, float, "Share of each target's probability to spread over all tokens.", below=1)
    z_loss: float = rare_option(
        1e-4, float, "Weight of the penalty on the squared log-sum-exp of logits.")
    optimizer: str = option(
        "adamw", OPTIMIZERS,
        f"{'; '.join(f'{name} {text}' for name, text in OPTIMIZERS.summaries.items())}.",
        default_words="muon; adamw with --init")
    lora_rank: int = option(
        0, int, "With --init, train adapters of this rank instead of the weights; 0: no adapters.",
        least=0)
    lora_alpha: float = option(
        0.0, float, "Scale adapters by this divided by --lora-rank.",
        default_words="twice --lora-rank")
    lora_targets: str = option(
        "", "text", f"Matrices to adapt, separated by commas: {', '.join(LORA_TARGETS)}.",
        default_words="all")
    precision: Precision = option(
        "f32", PRECISIONS, "f16 uses half-precision matrix products (needs shader-f16).",
        default_words="f16 for all but small models on matrix units (llmgpu[dawn]), else f32")
    corpus_weights: str = option(
        "", "text", "Share of the sequences to draw from each name in CORPUS: 0.7,0.3.",
        "--weights", default_words="")
    seed: int = option(
        1337, int, "Random seed for the initial weights and the order of the text.", least=0,
        below=1 << 63)
    evaluation_fraction: float = option(
        0.01, float, "Share of the text to hold out for evaluation.", "--eval-fraction", below=1)
    evaluation_parts: int = option(
        32, "count", "Take the held-out text from up to this many places.", "--eval-parts")
    evaluation_batches: int = option(
        20, "count", "Evaluate on at most this many batches.", "--eval-batches", least=0,
        may_change=True)
    sparse_embedding: bool = option(
        False, bool,
        "Update only the embedding rows of tokens in the batch (needs --untied).")
    document_mask: bool = option(
        True, bool, "Keep attention within documents.", "--document-mask/--no-document-mask")
    recompute: bool = option(
        False, bool,
        "Recompute activations in the backward pass: less memory, more time, same result.",
        may_change=True)
    # fmt: on
    epsilon: float = 1e-8
    driver: DriverName = "wgpu"
    f16_version: int = F16_VERSION

    def __post_init__(self) -> None:
        """Raise InputError for invalid values, and for values that do not fit together."""
        self._check_types()
        check_ranges(self)
        if not 0 <= self.epsilon < math.inf:
            raise InputError(f"epsilon is {self.epsilon}, but must be finite and at least 0")
        if self.driver not in get_args(DriverName):
            known = ", ".join(get_args(DriverName))
            raise InputError(f"--driver is {self.driver}; use one of {known}")
        if self.decay_steps and self.schedule != "wsd":
            raise InputError("--decay-steps needs --schedule wsd")
        if self.lora_rank:
            self._check_lora()
        self._check_weights()
        self._require_optimizer("sparse_embedding", lambda each: each.make_rows)
        self._require_optimizer("sync_every", lambda each: not each.keeps_codes)
        for name in ("outer_learning_rate", "outer_momentum"):
            if not self.sync_every and getattr(self, name) != getattr(TrainOptions, name):
                raise InputError(f"{flag_of(name, TrainOptions)} needs --sync-every, such as 50")
        for name in ("momentum", "momentum_start", "momentum_steps"):
            self._require_optimizer(name, lambda each: each.make_hidden)
        if self.min_learning_rate > self.learning_rate:
            raise InputError(
                f"--min-lr is {self.min_learning_rate}, but must not be above --lr, "
                f"{self.learning_rate}"
            )

    def _require_optimizer(self, name: str, supports: Callable[[Optimizer], object]) -> None:
        """Raise InputError if an option is set that the chosen optimizer does not support.

        supports: whether an optimizer supports the option; the message names all that do.
        """
        has_default = getattr(self, name) == getattr(TrainOptions, name)
        if not (has_default or supports(OPTIMIZERS[self.optimizer])):
            able = " or ".join(name for name, each in OPTIMIZERS.items() if supports(each))
            flag = flag_of(name, TrainOptions)
            raise InputError(f"{flag} needs --optimizer {able}, not {self.optimizer}")

    def _check_lora(self) -> None:
        for name in self.targets:
            if name not in LORA_TARGETS:
                known = ", ".join(LORA_TARGETS)
                raise InputError(f"--lora-targets has {quote(name)}; use some of {known}")
        if not self.lora_alpha:
            raise InputError("--lora-alpha is 0, so adapters would change nothing; use 16")
        if self.sparse_embedding:
            raise InputError("--sparse-embedding can't be combined with --lora-rank")
        if OPTIMIZERS[self.optimizer].make_hidden is not None:
            raise InputError(f"--optimizer {self.optimizer} can't be combined with --lora-rank")

    def _check_weights(self) -> None:
        for text in self.corpus_weights.split(",") if self.corpus_weights else ():
            try:
                weight = float(text)
            except ValueError:
                weight = 0.0
            if not 0 < weight < math.inf:
                raise InputError(
                    f"--weights has {quote(text)}; use numbers above 0, such as 0.7,0.3"
                )

    def stored(self) -> dict[str, Any]:
        """Return the values by name, in the order in which a run's files list them."""
        first = {name: getattr(self, name) for name in STORED_FIRST}
        return first | asdict(self)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each corpus; (1.0,) for a single corpus."""
        return tuple(map(float, self.corpus_weights.split(","))) if self.corpus_weights else (1.0,)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of matrices that have adapters."""
        return tuple(name.strip() for name in self.lora_targets.split(","))

    def _check_types(self) -> None:
        """Raise InputError for values of wrong types, which a stored run may have."""
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            fitting = (int, float) if kind is float else kind
            if not isinstance(value, fitting) or isinstance(value, bool) != (kind is bool):
                raise InputError(f"{field.name} is of type {type(value).__name__}")

    @property
    def is_mixed(self) -> bool:
        """Whether products read half-precision factors, and the loss is scaled."""
        return self.precision == "f16"

    @property
    def sequences(self) -> int:
        """Number of sequences in a step."""
        return self.batch_size * self.grad_accum

    @property
    def decay_start(self) -> int | None:
        """The first step of the decay of "wsd"; None for a schedule without a constant part."""
        if self.schedule != "wsd":
            return None
        return max(self.warmup_steps, self.steps - self.decay_steps)

    def ends_round(self, step: int) -> bool:
        """Whether all workers have the same weights after `step` steps."""
        if not self.sync_every:
            return True
        # End a round where the decay begins, because a run of more steps may continue from there.
        return not step % self.sync_every or step in (self.decay_start, self.steps)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, then the schedule.

        Step 0 is the first. The decay of "wsd" is 1 - sqrt(finished share of the decay) (A. Haegele
        et al., arXiv 2405.18392). Steps from `steps` on have the minimum, unless they are in the
        warm-up.
        """
        peak, minimum, warmup = self.learning_rate, self.min_learning_rate, self.warmup_steps
        if step < warmup:
            return peak * (step + 1) / warmup
        if step >= self.steps:
            return minimum
        begin = warmup if self.decay_start is None else self.decay_start
        if step < begin:
            return peak
        progress = (step - begin) / (self.steps - begin)
        if self.schedule == "wsd":
            height = 1 - math.sqrt(progress)
        elif self.schedule == "linear":
            height = 1 - progress
        else:
            height = (1 + math.cos(math.pi * progress)) / 2  # falls from 1 to 0
        return minimum + (peak - minimum) * height

    def momentum_of(self, step: int) -> float:
        """Return Muon's momentum in a step; step 0 is the first.

        The momentum changes linearly for `momentum_steps` steps, and is constant after them.
        """
        if step >= self.momentum_steps:
            return self.momentum
        change = self.momentum - self.momentum_start
        return self.momentum_start + change * step / self.momentum_steps


@dataclass(frozen=True)
class Intervals:
    """The numbers of steps between two log lines, two evaluations, two checkpoints, two samples.

    keep: number of newest checkpoints to keep. sample: 0 for no samples. peak_teraflops: peak speed
    of the device, with which the log computes the share in use; 0 if unknown.
    """

    section: ClassVar[str] = OUTPUT

    # fmt: off
    log: int = option(10, "count", "Log every N steps.", "--log-interval")
    evaluation: int = option(100, "count", "Evaluate every N steps.", "--eval-interval")
    save: int = option(100, "count", "Save a checkpoint every N steps.", "--save-interval")
    keep: int = option(2, "count", "Keep this many of the newest checkpoints.")
    sample: int = option(
        0, "count", "Generate a sample every N steps (also written to samples.jsonl).",
        "--sample-every", default_words="")
    peak_teraflops: float = option(
        0, "above 0", "Peak speed of the device, in TFLOPS; logs the share in use (mfu).",
        "--peak-tflops", metavar="FLOAT", default_words="")
    # fmt: on

    def check(self, options: TrainOptions) -> None:
        """Raise InputError if the peak speed is not finite, or an interval ends inside a round."""
        if not math.isfinite(self.peak_teraflops):
            raise InputError(f"--peak-tflops is {self.peak_teraflops}, but must be finite")
        for name in ("evaluation", "save", "sample"):
            steps = getattr(self, name)
            if options.sync_every and steps % options.sync_every:
                flag = flag_of(name, Intervals)
                raise InputError(
                    f"{flag} is {steps}, but workers have the same weights only every "
                    f"{options.sync_every} steps (--sync-every): use a multiple, such as "
                    f"{flag} {-(-steps // options.sync_every) * options.sync_every}"
                )

    def unread_steps(self, steps: int) -> int:
        """Return for how many steps the device stores results before the host reads them."""
        return min(self.log, self.evaluation, self.save, steps)


@dataclass(frozen=True)
class SamplingOptions:
    """The options of sampling ids.

    temperature: divides the logits; 0 always chooses the most likely id.
    top_k: sample from this many of the most likely ids; 0: from all ids.
    top_p: sample from the most likely ids whose probabilities add up to at least this
        (A. Holtzman et al., arXiv 1904.09751).
    repetition_penalty: see `llmgpu.lm.sampling`; 1: no penalty.
    log_probabilities: whether to store the log-probabilities of drawn ids.
    """

    # fmt: off
    temperature: float = option(
        0.8, float, "Lower values are more predictable; 0 always takes the most likely token.")
    top_k: int = option(
        200, int, "Sample from this many of the most likely tokens; 0: from all tokens.")
    top_p: float = option(
        1.0, float, "Sample from the most likely tokens that add up to this probability.")
    seed: int = option(
        1337, int, "Random seed; the same seed gives the same text on the same device.")
    repetition_penalty: float = option(
        1.0, float,
        "Penalize tokens that occurred before: 1.1 slightly; 1: no penalty.", least=1)
    log_probabilities: bool = option(
        False, bool,
        "Include the log-probability of each token in the output of --prompts or --json.",
        "--logprobs")
    # fmt: on

    def __post_init__(self) -> None:
        """Raise InputError for a value out of range."""
        check_ranges(self)
        if self.top_k < 0:
            raise InputError(f"--top-k is {self.top_k}, but must be 0 (all) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"--top-p is {self.top_p}, but must be above 0 and at most 1")
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"--seed is {self.seed}, but must be from 0 to 2^63 - 1")

    def numbered(self, number: int) -> SamplingOptions:
        """Return these options with the seed for text `number`."""
        return replace(self, seed=(self.seed + number) % (1 << 63))
