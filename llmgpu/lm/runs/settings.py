"""The settings of a run, from the options given or from the checkpoint that it resumes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from llmgpu.errors import CheckpointError, InputError
from llmgpu.lm.checkpoints.checkpoint import Checkpoint
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.options import F16_VERSION, PRESET_STEPS, TrainOptions

# Options that runs of earlier versions do not have, and what these runs did.
FORMER_OPTIONS: dict[str, Any] = {
    "padded_loss": True,
    "dense_gradient": True,
    "driver": "wgpu",
    "half_weights_only": True,
    "f16_version": 1,
}

MAY_CHANGE = frozenset({"steps", "evaluation_batches"})  # when a run is resumed


@dataclass(frozen=True)
class RunSettings:
    """The sizes of the model, and how it is trained."""

    config: ModelConfig
    options: TrainOptions


_OPTION_NAMES = frozenset(field.name for field in fields(TrainOptions))


def new_settings(asked: Mapping[str, Any], vocab_size: int) -> RunSettings:
    """Return the settings of a new run.

    asked: "preset", and values that replace the preset's sizes and the options' defaults, by the
    names of `ModelConfig` and `TrainOptions`; None replaces nothing.

    Raises:
        InputError: sizes or options are not valid.
    """
    sizes = {name: value for name, value in asked.items() if name not in _OPTION_NAMES}
    options = {name: value for name, value in asked.items() if name in _OPTION_NAMES}
    name = sizes.pop("preset")
    config = preset(name, vocab_size, **sizes)
    _fill_in(options, PRESET_STEPS.get(name, TrainOptions.steps))
    settings = RunSettings(config, TrainOptions(**options))
    if settings.options.sparse_embedding and config.tied:
        raise InputError(
            "sparse_embedding updates only the rows of tokens in the batch, but a tied table is "
            "also the output layer, where every row has a gradient; use --untied"
        )
    return settings


def _fill_in(options: dict[str, Any], steps: int) -> None:
    """Replace None: `steps`, and the numbers that follow from another option."""
    if options.get("steps") is None:
        options["steps"] = steps
    if options.get("warmup_steps") is None:
        options["warmup_steps"] = min(TrainOptions.warmup_steps, options["steps"] // 10)
    if options.get("min_learning_rate") is None:
        options["min_learning_rate"] = options["learning_rate"] / 10


def resumed_settings(checkpoint: Checkpoint, asked: Mapping[str, Any]) -> RunSettings:
    """Return the settings with which a checkpoint's run is resumed.

    asked: the options given explicitly. The number of steps and of evaluation batches may change;
    everything else must be as it was, so that the run stays the same: an option that the checkpoint
    lacks is that of earlier versions, not today's default.

    Raises:
        InputError: another option differs. CheckpointError: options that are missing, or not known
            here.
    """
    options = _stored_options(checkpoint)
    wanted, config = dict(asked), checkpoint.config
    name = wanted.pop("preset", None)
    if name is not None:  # its sizes, besides those given, must be those of the run, too
        sizes = {key: value for key, value in asked.items() if hasattr(config, key)}
        wanted = asdict(preset(name, config.vocab_size, **sizes)) | wanted
    before = asdict(config) | asdict(options)
    for key, value in wanted.items():
        if key not in MAY_CHANGE and value != before[key]:
            what = key if key in asked else f"{key} of preset {name}"
            raise InputError(
                f"{what} is {value}, but the run in {checkpoint.folder.parent} has {before[key]}: "
                "leave it out to resume that run, or start a new one"
            )
    options = replace(options, **{key: value for key, value in asked.items() if key in MAY_CHANGE})
    if options.steps < checkpoint.state.step:
        raise InputError(
            f"--steps is {options.steps}, but {checkpoint.folder} has already done "
            f"{checkpoint.state.step}"
        )
    return RunSettings(checkpoint.config, options)


def _stored_options(checkpoint: Checkpoint) -> TrainOptions:
    stored = FORMER_OPTIONS | checkpoint.state.options
    missing = [name for name in sorted(_OPTION_NAMES) if name not in stored]
    if missing:
        raise CheckpointError(f"{checkpoint.folder}: its options lack {', '.join(missing)}")
    try:
        options = TrainOptions(**stored)
    except (TypeError, InputError) as error:
        raise CheckpointError(f"{checkpoint.folder}: its options don't fit: {error}") from error
    if options.is_mixed and options.f16_version != F16_VERSION:
        raise CheckpointError(
            f"{checkpoint.folder} was trained in f16 by another version of llmgpu, which rounds "
            f"elsewhere (arithmetic {options.f16_version}, not {F16_VERSION}): resume it with that "
            "version, or start a new run"
        )
    return options
