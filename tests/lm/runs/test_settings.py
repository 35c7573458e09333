"""Settings of a run: defaults that follow from others, and what may change when it resumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmgpu.backend import Backend
from llmgpu.errors import CheckpointError, InputError, LlmgpuError
from llmgpu.gpu.device import Device
from llmgpu.lm.config import PRESETS
from llmgpu.lm.options import STORED_FIRST, Intervals, TrainOptions
from llmgpu.lm.runs.settings import (
    RunSettings,
    gains_by_halves,
    new_settings,
    resumed_settings,
)

NOTHING_GIVEN = {"preset": "tiny", "steps": None, "learning_rate": 6e-4, "warmup_steps": None}


def new(**asked: Any) -> RunSettings:
    return new_settings(NOTHING_GIVEN | asked, vocab_size=300)


def test_steps_are_those_of_the_preset_unless_given() -> None:
    assert new().options.steps == 500
    assert new(preset="small").options.steps == 1000
    assert new(steps=1000).options.steps == 1000
    assert new(preset="small", steps=500).options.steps == 500
    assert new().options.warmup_steps == 50


def test_the_batch_is_that_of_the_preset_and_the_optimizer_by_where_weights_come_from() -> None:
    of_presets = {name: new(preset=name).options.batch_size for name in PRESETS}
    assert of_presets == {"tiny": 8, "small": 32, "base": 16, "gpt2": 8, "gpt2-medium": 8}
    assert new(preset="small", batch_size=4).options.batch_size == 4
    assert new().options.optimizer == "muon" and new(optimizer="adamw").options.optimizer == "adamw"
    assert new(optimizer="adamw").options.table_rate == 1
    assert new(table_rate=2.0).options.table_rate == 2
    model = replace(new().config, max_positions=1024)
    for asked in ({}, {"lora_rank": 2}):
        tuned = new_settings({"preset": "tiny", **asked}, 300, model)
        assert (tuned.options.optimizer, tuned.options.batch_size) == ("adamw", 8)
        assert tuned.options.table_rate == tuned.options.output_rate == 1
        assert (tuned.options.schedule, tuned.options.beta2) == ("cosine", 0.95)


def test_the_learning_rate_is_by_width_unless_given() -> None:
    for sizes, rate in (({"dim": 128}, 0.5 / 128), ({"dim": 768}, 0.5 / 768), ({"dim": 16}, 0.01)):
        options = new(learning_rate=None, optimizer="adamw", **sizes).options
        assert (options.learning_rate, options.min_learning_rate) == (rate, 0)
        assert (options.schedule, options.beta2) == ("cosine", 0.95)
    assert new(learning_rate=2e-3).options.learning_rate == 2e-3


def test_the_recipe_of_muon_is_by_width_unless_given() -> None:
    for width in (64, 768):
        options = new(dim=width, learning_rate=None).options
        assert options.learning_rate == pytest.approx(0.06 / width**0.5)
        assert options.learning_rate * options.table_rate == pytest.approx(5 / width)
        assert options.output_rate == options.table_rate
        assert (options.schedule, options.beta2) == ("linear", 0.99)
        assert (options.table_decay, options.table_beta1) == (0, 0.8)
        momenta = [options.momentum_of(step) for step in (0, 150, 300, 301)]
        assert momenta == pytest.approx([0.85, 0.9, 0.95, 0.95])
        untied = new(dim=width, tied=False, learning_rate=None).options
        assert untied.table_rate == 2 * options.table_rate
        assert untied.output_rate == options.table_rate / 2
    given = {"schedule": "cosine", "beta2": 0.9, "output_rate": 3.0}
    given |= {"table_decay": 0.2, "table_beta1": 0.7, "momentum_start": 0.5, "momentum_steps": 2}
    options = new(tied=False, **given).options
    assert {name: getattr(options, name) for name in given} == given


def test_other_runs_have_one_decay_for_all_matrices_and_a_constant_momentum() -> None:
    given = {"weight_decay": 0.2, "beta1": 0.85}
    model = replace(new().config, max_positions=1024)
    tuned = new_settings({"preset": "tiny", "optimizer": "muon", **given}, 300, model).options
    for options in (new(optimizer="adamw", **given).options, tuned):
        assert (options.table_decay, options.table_beta1) == (1, 0)
        assert {options.momentum_of(step) for step in range(400)} == {0.95}


LATER_OPTIONS = {each.name for each in fields(TrainOptions)} - set(STORED_FIRST)


def test_runs_of_earlier_versions_resume_with_the_values_of_their_version() -> None:
    begun = new(table_rate=10.0, output_rate=10.0, tied=False)
    assert resume(begun) == begun
    stored = {"weight_decay": 0.2, "beta1": 0.85}
    resumed = resume(begun, stored | dict.fromkeys(LATER_OPTIONS, ...)).options
    assert (resumed.table_decay, resumed.table_beta1) == (1, 0)
    assert {resumed.momentum_of(step) for step in range(400)} == {0.95}


def test_learning_rates_that_do_not_fit_together_are_refused_at_once() -> None:
    with pytest.raises(LlmgpuError, match=r"--min-lr is 1\.0, but must not be above --lr, 0\.0006"):
        new(min_learning_rate=1.0)


def resume(
    settings: RunSettings, stored: Mapping[str, Any] | None = None, **asked: Any
) -> RunSettings:
    """Resume a run of these settings; only what a checkpoint says of them is needed.

    stored: changes of its options; `...` removes one.
    """
    options = asdict(settings.options) | dict(stored or {})
    options = {name: value for name, value in options.items() if value is not ...}
    state = SimpleNamespace(options=options, step=3)
    checkpoint: Any = SimpleNamespace(
        state=state, config=settings.config, folder=Path("run/step-00000003")
    )
    return resumed_settings(checkpoint, asked)


def test_a_preset_that_is_another_model_is_refused_when_a_run_resumes() -> None:
    begun = new(preset="small", layers=2, heads=12)
    assert resume(begun) == begun
    assert resume(begun, preset="small", layers=2, heads=12) == begun
    with pytest.raises(
        InputError, match="--dim of --preset gpt2 is 768, but the run in run has 384"
    ):
        resume(begun, preset="gpt2", layers=2, heads=12)
    with pytest.raises(InputError, match="layers is 3"):
        resume(begun, preset="small", layers=3, heads=12)


def test_room_for_results_is_what_is_taken_between_two_readings() -> None:
    assert Intervals().unread_steps(1000) == 10
    assert Intervals(log=10**12).unread_steps(1000) == 100
    assert Intervals(log=10**12, evaluation=10**12, save=10**12).unread_steps(7) == 7


def test_an_option_that_is_not_known_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"its options don't fit: .*padded_loss"):
        resume(new(), {"padded_loss": False})


def test_the_precision_is_that_of_the_matrix_units_unless_given(device: Device) -> None:
    """Software adapters have no units, and hardware has some through Dawn alone."""

    def chosen(**asked: Any) -> str:
        asked = NOTHING_GIVEN | asked
        return new_settings(asked, 300, backend=Backend(device, "")).options.precision

    large = {"preset": "small", "batch_size": 64}
    assert new(**large).options.precision == "f32"
    assert chosen(**large) == ("f16" if device.matrix_shapes else "f32")
    assert [chosen(precision=given) for given in ("f32", "f16")] == ["f32", "f16"]
    assert chosen() == "f32"  # a small model, where starting kernels takes longer than products
    assert chosen(**large, heads=96) == "f32"  # heads of 4, which no units are narrow enough for
    assert gains_by_halves(new(**large)) and not gains_by_halves(new())


def test_runs_in_f16_keep_their_arithmetic_or_are_refused() -> None:
    begun = new(precision="f16")
    assert resume(begun) == begun
    with pytest.raises(CheckpointError, match=r"rounds differently \(arithmetic 6, not 7\)"):
        resume(begun, {"f16_version": 6})


@pytest.mark.parametrize(
    "name", [each.name for each in fields(TrainOptions) if each.name not in LATER_OPTIONS]
)
def test_an_option_that_a_checkpoint_lacks_is_never_filled_in(name: str) -> None:
    """All runs that may be resumed have the first options."""
    with pytest.raises(CheckpointError, match=f"step-00000003: its options lack {name}, as in un"):
        resume(new(), {name: ...})


def test_a_checkpoint_of_the_first_commits_names_all_that_it_lacks() -> None:
    lacking = dict.fromkeys(["table_rate", "document_mask", "f16_version"], ...)
    with pytest.raises(
        CheckpointError, match="its options lack document_mask, f16_version, table_rate"
    ):
        resume(new(), lacking)
