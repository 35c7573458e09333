"""What a run is to be, from what was asked for or from the checkpoint that it goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from llmgpu.errors import CheckpointError, InputError
from llmgpu.lm.checkpoints.checkpoint import Checkpoint
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.options import TrainOptions

MAY_CHANGE = frozenset({"steps", "evaluation_batches"})  # of a run that goes on
PRESET_STEPS = {"tiny": 500}  # where not given: what two CPU cores do in a minute or two


@dataclass(frozen=True)
class RunSettings:
    """The model and how it is trained."""

    config: ModelConfig
    options: TrainOptions


_OPTION_NAMES = frozenset(field.name for field in fields(TrainOptions))


def new_settings(asked: Mapping[str, Any], vocab_size: int) -> RunSettings:
    """Return the settings of a new run.

    asked: "preset", and what replaces the preset's sizes and the options' defaults, by the names
    that `ModelConfig` and `TrainOptions` have; None stands for nothing.

    Raises:
        InputError: sizes or options that make no sense.
    """
    sizes = {name: value for name, value in asked.items() if name not in _OPTION_NAMES}
    options = {name: value for name, value in asked.items() if name in _OPTION_NAMES}
    name = sizes.pop("preset")
    config = preset(name, vocab_size, **sizes)
    _fill_in(options, PRESET_STEPS.get(name, TrainOptions.steps))
    settings = RunSettings(config, TrainOptions(**options))
    settings.options.schedule()
    if settings.options.sparse_embedding and config.tied:
        raise InputError(
            "sparse_embedding updates the rows that came up, but a tied table is the output layer, "
            "too, where all rows do; use --untied"
        )
    return settings


def _fill_in(options: dict[str, Any], steps: int) -> None:
    """Put numbers in place of None: `steps`, and those that follow from another option."""
    if options.get("steps") is None:
        options["steps"] = steps
    if options.get("warmup_steps") is None:
        options["warmup_steps"] = min(TrainOptions.warmup_steps, options["steps"] // 10)
    if options.get("min_learning_rate") is None:
        options["min_learning_rate"] = options["learning_rate"] / 10


def resumed_settings(checkpoint: Checkpoint, asked: Mapping[str, Any]) -> RunSettings:
    """Return the settings that a checkpoint's run goes on with.

    asked: what was asked for explicitly. The number of steps may be another; everything else must
    be as it was, or the run would not be the one that was begun.

    Raises:
        InputError: something else was asked for. CheckpointError: options that are not known here.
    """
    try:
        options = TrainOptions(**checkpoint.state.options)
    except (TypeError, InputError) as error:
        raise CheckpointError(f"{checkpoint.folder}: its options don't fit: {error}") from error
    _check_preset(checkpoint, asked)
    for name, value in asked.items():
        if name in MAY_CHANGE or name == "preset":
            continue
        before = getattr(options if name in _OPTION_NAMES else checkpoint.config, name)
        if value != before:
            raise InputError(
                f"{name} is {value}, the run in {checkpoint.folder.parent} has {before}: leave it "
                "out to go on with that, or begin a new run"
            )
    changed = {name: value for name, value in asked.items() if name in MAY_CHANGE}
    options = replace(options, **changed)
    if options.steps < checkpoint.state.step:
        raise InputError(
            f"{options.steps} steps were asked for, {checkpoint.folder} has done "
            f"{checkpoint.state.step} already"
        )
    return RunSettings(checkpoint.config, options)


def _check_preset(checkpoint: Checkpoint, asked: Mapping[str, Any]) -> None:
    """Raise an InputError for a preset that, with the sizes asked for, is another model."""
    if "preset" not in asked:
        return
    config = checkpoint.config
    sizes = {name: value for name, value in asked.items() if hasattr(config, name)}
    wanted = preset(asked["preset"], config.vocab_size, **sizes)
    for field in fields(wanted):
        value, before = getattr(wanted, field.name), getattr(config, field.name)
        if value != before and field.name not in sizes:
            raise InputError(
                f"{field.name} of preset {asked['preset']} is {value}, the run in "
                f"{checkpoint.folder.parent} has {before}: leave the preset out to go on with "
                "that, or begin a new run"
            )
