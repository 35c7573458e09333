"""The options of training and of generating, apart from the sizes of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from llmgpu.errors import InputError
from llmgpu.input_files import quote
from llmgpu.lm.optimizers import OPTIMIZERS

Precision = Literal["f32", "f16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
PRESET_STEPS = {"tiny": 500}  # default: a minute or two on two CPU cores
PRESET_BATCHES = {"small": 32}  # default: enough to keep a GPU busy
Schedule = Literal["cosine", "wsd"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Initialisation = Literal["normal", "fan-in"]
INITIALISATIONS: tuple[Initialisation, ...] = get_args(Initialisation)
DriverName = Literal["wgpu", "dawn"]
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DRIVER_NAMES: tuple[DriverName, ...] = get_args(DriverName)


_FLAGS = {
    "learning_rate": "--lr",
    "min_learning_rate": "--min-lr",
    "outer_learning_rate": "--outer-lr",
    "evaluation_fraction": "--eval-fraction",
    "evaluation_batches": "--eval-batches",
    "evaluation_parts": "--eval-parts",
    "corpus_weights": "--weights",
}
F16_VERSION = 3  # of the arithmetic of `TrainOptions.is_mixed`


def flag_of(name: str) -> str:
    """Return the option on the command line that sets a field or a size."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


@dataclass(frozen=True)
class TrainOptions:
    """Everything that decides what a run computes: equal options and tokens make equal runs.

    batch_size: sequences at a time. grad_accum: batches per step. steps: optimizer steps in all.
    learning_rate rises over warmup_steps and falls to min_learning_rate: by a cosine over all other
    steps, or with schedule "wsd" over the last decay_steps alone (warm-up, stable, decay).
    table_rate: times it, the learning rate of the embedding table and of the output layer.
    initialisation: of the matrices inside layers, see `llmgpu.lm.model.initial_values`.
    weight_decay: on matrices only. grad_clip: global norm that gradients are clipped to; 0 disables
    clipping. precision: "f16" rounds the factors of matrix products to half precision and scales
    the loss, so that small gradients are not lost; sums, weights and moments are float32.
    optimizer: a name of `OPTIMIZERS`. sparse_embedding: update only the embedding rows of ids that
    came up (not with a tied table). evaluation_fraction: of the text, held out of training, from
    up to evaluation_parts places.
    evaluation_batches: the most that an evaluation takes. driver: the WebGPU driver that a GPU is
    reached by; another gives other roundings.

    document_mask: attention does not reach back beyond the token between documents, if any.

    recompute: activations inside layers are computed again in the backward pass, to the same bits,
    and not kept.

    lora_rank: the rank of adapters that are trained in place of the model's weights, 0: none.
    lora_alpha: they count lora_alpha / lora_rank times. lora_targets: the matrices that have one,
    from `LORA_TARGETS`, with commas between them.

    sync_every: steps that each worker takes with its own batches alone, before their weights are
    brought together by a step of outer_learning_rate and outer_momentum, see
    `llmgpu.lm.local_steps`; 0: workers add up their gradients in every step.

    corpus_weights: shares in which sequences are drawn from several corpora, with commas between
    them; none where all is one corpus.

    f16_version: which numbers are rounded to half precision, and in which order sums are made.
    """

    batch_size: int = 8
    grad_accum: int = 1
    steps: int = 1000
    learning_rate: float = 6e-4
    min_learning_rate: float = 6e-5
    warmup_steps: int = 100
    schedule: Schedule = "cosine"
    decay_steps: int = 0
    initialisation: Initialisation = "normal"
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    label_smoothing: float = 0.0
    z_loss: float = 1e-4
    seed: int = 1337
    precision: Precision = "f32"
    optimizer: str = "adamw"
    sparse_embedding: bool = False
    evaluation_fraction: float = 0.01
    evaluation_batches: int = 20
    evaluation_parts: int = 32
    lora_rank: int = 0
    lora_alpha: float = 0.0
    lora_targets: str = ""
    driver: DriverName = "wgpu"
    f16_version: int = F16_VERSION
    document_mask: bool = True
    recompute: bool = False
    corpus_weights: str = ""
    sync_every: int = 0
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    table_rate: float = 1.0

    def __post_init__(self) -> None:
        """Check each value, and that they fit together."""
        self._check_types()
        for name, least in (
            ("batch_size", 1),
            ("grad_accum", 1),
            ("steps", 1),
            ("warmup_steps", 0),
            ("decay_steps", 0),
            ("lora_rank", 0),
            ("evaluation_parts", 1),
            ("sync_every", 0),
        ):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise InputError(f"{flag_of(name)} is {value}, but must be at least {least}")
        for name in ("beta1", "beta2", "label_smoothing", "evaluation_fraction", "outer_momentum"):
            if getattr(self, name) >= 1:
                value = getattr(self, name)
                raise InputError(f"{flag_of(name)} is {value}, but must be less than 1")
        for name, choices in (
            ("precision", PRECISIONS),
            ("driver", DRIVER_NAMES),
            ("schedule", SCHEDULES),
            ("initialisation", INITIALISATIONS),
            ("optimizer", OPTIMIZERS),
        ):
            if getattr(self, name) not in choices:
                given = getattr(self, name)
                raise InputError(f"{flag_of(name)} is {given}; use one of {', '.join(choices)}")
        if self.decay_steps and self.schedule != "wsd":
            raise InputError("--decay-steps needs --schedule wsd")
        if self.lora_rank:
            self._check_lora()
        self._check_weights()
        if self.sparse_embedding and OPTIMIZERS[self.optimizer].make_rows is None:
            able = " or ".join(name for name, each in OPTIMIZERS.items() if each.make_rows)
            raise InputError(f"--sparse-embedding needs --optimizer {able}, not {self.optimizer}")
        self._check_rounds()
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"--seed is {self.seed}, but must be from 0 to 2^63 - 1")
        if self.min_learning_rate > self.learning_rate:
            raise InputError(
                f"--min-lr is {self.min_learning_rate}, but must not be above --lr, "
                f"{self.learning_rate}"
            )

    def _check_rounds(self) -> None:
        """Check the options of local steps."""
        if self.sync_every and OPTIMIZERS[self.optimizer].keeps_codes:
            able = " or ".join(name for name, each in OPTIMIZERS.items() if not each.keeps_codes)
            raise InputError(f"--sync-every needs --optimizer {able}, not {self.optimizer}")
        for name in ("outer_learning_rate", "outer_momentum"):
            if not self.sync_every and getattr(self, name) != getattr(TrainOptions, name):
                raise InputError(f"{flag_of(name)} needs --sync-every, such as 50")

    def _check_lora(self) -> None:
        """Check the options of adapters."""
        for name in self.targets:
            if name not in LORA_TARGETS:
                known = ", ".join(LORA_TARGETS)
                raise InputError(f"--lora-targets has {quote(name)}; use some of {known}")
        if not self.lora_alpha:
            raise InputError("--lora-alpha is 0, so adapters would change nothing; use 16")
        for name, clashes in (
            ("--sparse-embedding", self.sparse_embedding),
            (f"--optimizer {self.optimizer}", OPTIMIZERS[self.optimizer].make_hidden is not None),
        ):
            if clashes:
                raise InputError(f"{name} can't be combined with --lora-rank")

    def _check_weights(self) -> None:
        """Check the weights of corpora."""
        for text in self.corpus_weights.split(",") if self.corpus_weights else ():
            try:
                weight = float(text)
            except ValueError:
                weight = 0.0
            if not 0 < weight < math.inf:
                raise InputError(
                    f"--weights has {quote(text)}; use numbers above 0, such as 0.7,0.3"
                )

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights of corpora; one if all is one corpus."""
        return tuple(map(float, self.corpus_weights.split(","))) if self.corpus_weights else (1.0,)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of matrices that have adapters."""
        return tuple(name.strip() for name in self.lora_targets.split(","))

    def _check_types(self) -> None:
        """Check types, which a stored run may have wrong, and that numbers are finite."""
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            fitting = (int, float) if kind is float else kind
            if kind in (bool, int, float, str) and (
                not isinstance(value, fitting) or isinstance(value, bool) != (kind is bool)
            ):
                raise InputError(f"{field.name} is of type {type(value).__name__}")
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{flag_of(field.name)} is {value}, but must be 0 or more")

    @property
    def is_mixed(self) -> bool:
        """Whether products take half-precision factors, and the loss is scaled."""
        return self.precision == "f16"

    @property
    def sequences(self) -> int:
        """Sequences that a step takes."""
        return self.batch_size * self.grad_accum

    @property
    def stable_end(self) -> int:
        """The first step of the decay; with a cosine that of all steps after the warm-up."""
        if self.schedule == "wsd":
            return max(self.warmup_steps, self.steps - self.decay_steps)
        return self.warmup_steps

    def ends_round(self, step: int) -> bool:
        """Whether all workers have the same weights after `step` steps."""
        if not self.sync_every:
            return True
        # A run of more steps may continue from where the decay begins.
        begins_decay = self.schedule == "wsd" and step == self.stable_end
        return not step % self.sync_every or begins_decay or step == self.steps

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, 0 for the first: linear warm-up, then the schedule.

        The decay of "wsd" is 1 - sqrt of what is done of it (A. Haegele et al., arXiv 2405.18392).
        Step `steps`, and where that is in the warm-up the first step after it, has the minimum.
        """
        peak, minimum, warmup = self.learning_rate, self.min_learning_rate, self.warmup_steps
        if step < warmup:
            return peak * (step + 1) / warmup
        if step >= self.steps:
            return minimum
        if step < self.stable_end:
            return peak
        progress = (step - self.stable_end) / (self.steps - self.stable_end)
        if self.schedule == "wsd":
            height = 1 - math.sqrt(progress)
        else:
            height = (1 + math.cos(math.pi * progress)) / 2  # of the cosine, from 1 down to 0
        return minimum + (peak - minimum) * height


@dataclass(frozen=True)
class Intervals:
    """Numbers of steps between two lines of the log, evaluations, checkpoints and samples.

    keep: how many of the newest checkpoints are kept. sample: 0 for no samples. peak_teraflops:
    what the device can do, for the share of it that is logged; 0 if unknown.
    """

    log: int = 10
    evaluation: int = 100
    save: int = 100
    keep: int = 2
    sample: int = 0
    peak_teraflops: float = 0.0

    def check(self, options: TrainOptions) -> None:
        """Raise InputError for no real speed, or steps at which the workers' weights differ."""
        if not math.isfinite(self.peak_teraflops):
            raise InputError(f"--peak-tflops is {self.peak_teraflops}, but must be finite")
        for name, steps in (
            ("eval_interval", self.evaluation),
            ("save_interval", self.save),
            ("sample_every", self.sample),
        ):
            if options.sync_every and steps % options.sync_every:
                flag = flag_of(name)
                raise InputError(
                    f"{flag} is {steps}, but workers have the same weights only every "
                    f"{options.sync_every} steps (--sync-every): use a multiple, such as "
                    f"{flag} {-(-steps // options.sync_every) * options.sync_every}"
                )

    def unread_steps(self, steps: int) -> int:
        """Return the largest number of steps whose results are read at once."""
        return min(self.log, self.evaluation, self.save, steps)


@dataclass(frozen=True)
class SamplingOptions:
    """How ids are sampled.

    temperature: divides the logits; 0 always takes the most likely id. top_k: sample from this many
    of the most likely ids, or from all if 0. top_p: sample from the most likely ids that together
    have at least this probability (A. Holtzman et al., arXiv 1904.09751). repetition_penalty: see
    `llmgpu.lm.generating.sampling`; 1 for none. log_probabilities: whether to keep those of ids.
    """

    temperature: float = 0.8
    top_k: int = 200
    top_p: float = 1.0
    seed: int = 1337
    repetition_penalty: float = 1.0
    log_probabilities: bool = False

    def __post_init__(self) -> None:
        """Check each value."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"--temperature is {self.temperature}, but must be 0 or more")
        if self.top_k < 0:
            raise InputError(f"--top-k is {self.top_k}, but must be 0 (all) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"--top-p is {self.top_p}, but must be above 0 and at most 1")
        if not 1 <= self.repetition_penalty < math.inf:
            raise InputError(
                f"--repetition-penalty is {self.repetition_penalty}, but must be 1 (none) or more"
            )
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"--seed is {self.seed}, but must be from 0 to 2^63 - 1")

    def numbered(self, number: int) -> SamplingOptions:
        """Return these options with the seed of text `number`."""
        return replace(self, seed=(self.seed + number) % (1 << 63))
