"""The settings of a run, from the user's options or from the checkpoint that the run resumes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from llmgpu.backend import NUMPY, Backend
from llmgpu.errors import CheckpointError, InputError
from llmgpu.lm.checkpoints.checkpoint import Checkpoint
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.ops.matrix_units import trains_on_units
from llmgpu.lm.options import (
    F16_VERSION,
    LORA_TARGETS,
    STORED_FIRST,
    TrainOptions,
)
from llmgpu.option_fields import flag_of, own_options

# Options that may change when a run is resumed.
MAY_CHANGE = {name for name, one in own_options(TrainOptions).items() if one.may_change}
# Learning rates for a trained model. They are low, because its weights are already good. The rate
# of adapters is higher, because adapters start from 0.
FINE_TUNING_RATE, ADAPTER_RATE = 2e-5, 2e-4
FINE_TUNING_LENGTH = 1024  # most tokens of a sequence with --init, unless --seq-len is given
# The default learning rate times the width. With AdamW, for widths of 64 and 128, the best rate was
# about 1 / width (docs/recipes.md). Half that rate costs 1 % and is safer.
RATE_TIMES_WIDTH = 0.5
LARGEST_RATE = 1e-2
# The default learning rate with Muon, multiplied by the root of the width. The best rate falls more
# slowly with the width than AdamW's, because all singular values of a step are equal. Tables are
# updated by AdamW, and their rate falls with the width itself.
MUON_RATE_TIMES_ROOT = 0.06
MUON_TABLE_RATE_TIMES_WIDTH = 5.0
# Most rows of a table have no gradient in most steps, so the mean of squares must cover many steps.
MUON_BETA2 = 0.99
# Rows of frequent ids follow their gradients faster with a shorter mean.
MUON_TABLE_BETA1 = 0.8
# A short momentum follows the first gradients, which change fast.
MUON_MOMENTUM_START, MUON_MOMENTUM_STEPS = 0.85, 300
# Operations of a batch from which half precision is the default on matrix units. On an H200, half
# precision was 1.4 times as slow as float32 for a batch of 1e10 operations, and twice as fast for a
# batch of 7e11.
HALF_FROM = 1e11
DECAY_SHARE = 5  # the decay of the schedule "wsd" is 1 / DECAY_SHARE of all steps


@dataclass(frozen=True)
class RunSettings:
    """The sizes of the model, and the options of its training."""

    config: ModelConfig
    options: TrainOptions


_OPTION_NAMES = frozenset(field.name for field in fields(TrainOptions))


def new_settings(
    asked: Mapping[str, Any],
    vocab_size: int,
    model: ModelConfig | None = None,
    backend: Backend = NUMPY,
) -> RunSettings:
    """Return the settings of a new run.

    asked: "preset", and values that replace the preset's sizes and the options' defaults, by the
    names of `ModelConfig` and `TrainOptions`; None replaces nothing. model: sizes of the model
    whose weights the run begins with, instead of a preset; only `seq_len` may be replaced. backend:
    trains the model. On matrix units, the default precision is f16 unless the model is small.

    Raises:
        InputError: sizes or options are not valid.
    """
    sizes = {name: value for name, value in asked.items() if name not in _OPTION_NAMES}
    name = sizes.pop("preset")
    if model is None:
        config = preset(name, vocab_size, **sizes)
    else:
        name, config = "", _shortened(model, sizes)
    options = _with_defaults(asked, name, config, is_new=model is None)
    if options.get("lora_rank") and model is None:
        raise InputError("--lora-rank needs a trained model: use --init FOLDER")
    settings = RunSettings(config, TrainOptions(**options))
    has_units = trains_on_units(backend.device, config.head_dim)
    if asked.get("precision") is None and has_units and gains_by_halves(settings):
        settings = replace(settings, options=replace(settings.options, precision="f16"))
    _check_together(settings.options)
    if settings.options.sparse_embedding and config.tied:
        raise InputError(
            "--sparse-embedding updates only the rows of tokens in the batch, but a tied table is "
            "also the output layer, where every row has a gradient; use --untied"
        )
    return settings


def gains_by_halves(settings: RunSettings) -> bool:
    """Whether a batch is so large that half precision on matrix units is faster than float32."""
    config, options = settings.config, settings.options
    return config.training_operations(options.batch_size * config.seq_len) >= HALF_FROM


def _shortened(model: ModelConfig, sizes: Mapping[str, Any]) -> ModelConfig:
    """Return the config of a trained model with the `seq_len` of `sizes`, or the default length.

    Raises InputError if `sizes` has other sizes.
    """
    for name, value in sizes.items():
        if name != "seq_len" and value is not None:
            flag = flag_of(name, ModelConfig)
            raise InputError(
                f"{flag} is {value}, but --init sets the size of the model; drop {flag}"
            )
    longest = model.max_positions or model.seq_len
    length = sizes.get("seq_len") or min(longest, FINE_TUNING_LENGTH)
    if length == longest:
        return replace(model, seq_len=length, max_positions=None)
    return replace(model, seq_len=length, max_positions=longest)


def _with_defaults(
    asked: Mapping[str, Any], preset: str, config: ModelConfig, *, is_new: bool
) -> dict[str, Any]:
    """Return the options in `asked`, and defaults that follow from other options.

    preset: "" for none. is_new: whether the run begins with new weights.
    """
    declared = own_options(TrainOptions)
    made = {
        name: one.by_preset[preset] for name, one in declared.items() if preset in one.by_preset
    }
    made |= {
        name: value for name, value in asked.items() if name in _OPTION_NAMES and value is not None
    }
    steps = made.setdefault("steps", TrainOptions.steps)
    rank = made.get("lora_rank", 0)
    if is_new:
        # For new weights, Muon is better at equal tokens and equal time (docs/recipes.md).
        takes_muon = made.setdefault("optimizer", "muon") == "muon"
        made = (_muon_defaults(config) if takes_muon else {}) | made
        # An embedding table apart from the output layer gets a higher rate than the output layer.
        if takes_muon and not config.tied:
            made.setdefault("output_rate", made["table_rate"] / 4)
        made.setdefault("learning_rate", min(LARGEST_RATE, RATE_TIMES_WIDTH / config.dim))
    else:
        made.setdefault("learning_rate", ADAPTER_RATE if rank else FINE_TUNING_RATE)
    made.setdefault("output_rate", made.get("table_rate", TrainOptions.table_rate))
    made.setdefault("min_learning_rate", 0.0)
    made.setdefault("warmup_steps", min(TrainOptions.warmup_steps, steps // 10))
    is_wsd = made.get("schedule") == "wsd"
    made.setdefault("decay_steps", -(-steps // DECAY_SHARE) if is_wsd else 0)
    if not rank:
        return made | {"lora_alpha": 0.0, "lora_targets": ""}
    return {"lora_alpha": 2.0 * rank, "lora_targets": ",".join(LORA_TARGETS), **made}


def _muon_defaults(config: ModelConfig) -> dict[str, Any]:
    """Return the options whose defaults for a new model differ between Muon and AdamW."""
    rate = MUON_RATE_TIMES_ROOT / math.sqrt(config.dim)
    table_rate = MUON_TABLE_RATE_TIMES_WIDTH / config.dim / rate
    return {
        "learning_rate": min(LARGEST_RATE, rate),
        "table_rate": table_rate if config.tied else 2 * table_rate,
        "schedule": "linear",
        "beta2": MUON_BETA2,
        "table_decay": 0.0,
        "table_beta1": MUON_TABLE_BETA1,
        "momentum_start": MUON_MOMENTUM_START,
        "momentum_steps": MUON_MOMENTUM_STEPS,
    }


def _check_together(options: TrainOptions) -> None:
    """Raise InputError for options that are valid alone, but not together."""
    taken = options.warmup_steps + options.decay_steps
    if taken > options.steps:
        decay = f" and a decay of {options.decay_steps}" if options.decay_steps else ""
        raise InputError(
            f"a warm-up of {options.warmup_steps}{decay} steps can't fit in --steps "
            f"{options.steps}: use a smaller --warmup-steps or more --steps"
        )
    if not options.beta2:
        raise InputError(
            "--beta2 is 0, which makes every step as large as the learning rate for any gradient; "
            "use more, such as 0.95"
        )


def step_to_resume_from(checkpoint: Checkpoint, steps: int | None) -> int:
    """Return the step of the checkpoint from which a run is continued.

    checkpoint: the newest checkpoint. steps: the new number of steps; None: unchanged. With the
    schedule "wsd" a run of more steps begins its decay later. So such a run is continued from the
    checkpoint before the old decay.
    """
    options, step = _stored_options(checkpoint), checkpoint.state.step
    if options.schedule == "wsd" and steps is not None and steps > options.steps:
        return min(step, options.stable_end)
    return step


def explain_schedule(checkpoint: Checkpoint, options: TrainOptions) -> str | None:
    """Return a note on how a change of --steps affects the learning rate; None if it does not."""
    before, step = _stored_options(checkpoint), checkpoint.state.step
    if step in (0, options.steps) or before.rate(step - 1) == options.rate(step - 1):
        return None
    return (
        f"{options.steps:,} steps instead of {before.steps:,} change the learning rate: that of "
        f"step {step + 1:,} is {options.rate(step):.2e}, after {before.rate(step - 1):.2e}. The "
        f"weights are not those of a run planned for {options.steps:,} steps; runs with --schedule "
        "wsd can be extended without that"
    )


def resumed_settings(checkpoint: Checkpoint, asked: Mapping[str, Any]) -> RunSettings:
    """Return the settings with which a checkpoint's run is resumed.

    asked: the user's options. Only the options in `MAY_CHANGE` may differ from the stored options,
    so that the run stays the same.

    Raises:
        InputError: another option differs. CheckpointError: a stored option is missing or unknown.
    """
    options = _stored_options(checkpoint)
    wanted, config = dict(asked), checkpoint.config
    name = wanted.pop("preset", None)
    if name is not None:  # the preset's sizes must equal the run's sizes, too
        sizes = {key: value for key, value in asked.items() if hasattr(config, key)}
        wanted = asdict(preset(name, config.vocab_size, **sizes)) | wanted
    before = asdict(config) | asdict(options)
    for key, value in wanted.items():
        if key not in MAY_CHANGE and value != before[key]:
            flag = flag_of(key, TrainOptions, ModelConfig)
            what = flag if key in asked else f"{flag} of --preset {name}"
            run = checkpoint.folder.parent
            weights = "" if hasattr(config, key) else f" from its weights (--init {run})"
            raise InputError(
                f"{what} is {value}, but the run in {run} has {before[key]}: drop it to resume "
                f"that run, or start a new one{weights}"
            )
    options = replace(options, **{key: value for key, value in asked.items() if key in MAY_CHANGE})
    if options.steps < checkpoint.state.step:
        raise InputError(
            f"--steps is {options.steps}, but {checkpoint.folder} has already done "
            f"{checkpoint.state.step}"
        )
    return RunSettings(checkpoint.config, options)


def _stored_options(checkpoint: Checkpoint) -> TrainOptions:
    stored = checkpoint.state.options
    if missing := sorted(set(STORED_FIRST) - stored.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: its options lack {', '.join(missing)}, as in unreleased "
            "versions of llmgpu: resume it with the one that wrote it, or start a new run"
        )
    try:
        options = TrainOptions(**stored)
    except (TypeError, InputError) as error:
        raise CheckpointError(f"{checkpoint.folder}: its options don't fit: {error}") from error
    if options.is_mixed and options.f16_version != F16_VERSION:
        raise CheckpointError(
            f"{checkpoint.folder} was trained in f16 by another version of llmgpu, which rounds "
            f"differently (arithmetic {options.f16_version}, not {F16_VERSION}): resume it with "
            "that version, or start a new run"
        )
    return options
