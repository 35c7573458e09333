"""Training steps as a benchmark: what is compared before a time is given, and with whom."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import BenchOptions, models
from llmgpu.bench.cases import uneven_ids
from llmgpu.bench.engines import Engine, cpu_engine
from llmgpu.bench.models import (
    OwnSteps,
    StepJob,
    choose_job,
    losses_agree,
    measure_train,
)
from llmgpu.bench.results import Limits
from llmgpu.gpu.device import Device
from llmgpu.lm.config import preset
from llmgpu.progress import no_progress
from tests.bench.conftest import given
from tests.lm.samples import read_weights

NUMPY_ENGINE = Engine(NUMPY, 0.0)
SMALL = StepJob("small", preset("tiny", 96, layers=1, seq_len=16), 2)
QUICK = BenchOptions(runs=2, peers=False, quick=True)


@pytest.fixture(autouse=True)
def small_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all engines take steps that take no time."""
    monkeypatch.setattr(models, "choose_job", lambda engine, quick: SMALL)
    monkeypatch.setattr(models, "RUN_SECONDS", 0.01)
    monkeypatch.setattr(models, "QUICK_ENGINE_SECONDS", float("inf"))  # on a busy machine, too
    monkeypatch.setattr(Engine, "limits", Limits(1e9, 1e9))


def engines_with(device: Device) -> list[Engine]:
    return [NUMPY_ENGINE, Engine(Backend(device, device.name), 0.0)]


def test_engines_are_compared_and_measured(device: Device) -> None:
    results = list(measure_train(engines_with(device), QUICK, no_progress))
    assert [r.engine for r in results if r.variant == "float32"] == [cpu_engine(), device.name]
    for result in results:
        assert result.what == "train"
        assert result.correct is True
        assert len(given(result.seconds).runs) == 2
        assert given(result.tokens_per_second) > 0
        assert result.operations == SMALL.config.training_operations(2 * 16)
    assert results[0].answer == "the reference"
    assert results[1].answer == f"the losses of {cpu_engine()}, within 0.001"
    if "timestamp-query" in device.features:
        assert given(results[1].kernels).seconds.keys() >= {"linear", "attention", "adamw_update"}


def test_torch_takes_the_same_steps() -> None:
    pytest.importorskip("torch")
    engines = [NUMPY_ENGINE, NUMPY_ENGINE]
    results = list(measure_train(engines, BenchOptions(runs=1, quick=True), no_progress))
    own, torch, again = (result.engine for result in results)
    assert (own, torch.split()[0], again) == (cpu_engine(), "torch", cpu_engine())
    assert [result.correct for result in results] == [True] * 3
    assert results[0].answer == "the losses of torch, within 0.001"
    assert results[1].peer
    assert given(results[1].tokens_per_second) > 0
    assert given(results[0].speed_up_over_torch) > 0


def test_torch_that_is_missing_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ours, torch = measure_train([NUMPY_ENGINE], BenchOptions(runs=1, quick=True), no_progress)
    assert ours.correct is True
    assert torch.note == "not installed: pip install torch"
    assert torch.seconds is None


def test_wrong_losses_have_no_times(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "numpy_losses", lambda job: [0.0, 0.0, 0.0])
    result = next(measure_train(engines_with(device)[1:], QUICK, no_progress))
    assert result.correct is False
    assert result.answer == f"NOT the losses of {cpu_engine()}"
    assert result.seconds is None


def test_losses_agree_within_the_tolerance() -> None:
    assert losses_agree([1.0005, 2.0], [1.0, 2.0])
    assert not losses_agree([1.002, 2.0], [1.0, 2.0])
    assert not losses_agree([float("nan")], [1.0])
    assert not losses_agree([float("inf")], [float("inf")])


def test_a_large_job_is_cut_for_numpy() -> None:
    large = StepJob("gpt2", preset("gpt2", 50_257), 8)
    assert not large.is_small
    assert 120e6 < large.config.parameters < 130e6
    cut = large.cut()
    assert cut.is_small
    assert (cut.config.dim, cut.config.padded_vocab_size) == (768, 50_304)
    assert cut.cut() == cut
    assert SMALL.cut() == SMALL


def test_jobs_are_the_same_for_all_who_take_them() -> None:
    steps = OwnSteps(NUMPY_ENGINE, SMALL, "f32")
    weights = SMALL.weights()
    for name, values in read_weights(steps._trainer.model).items():
        np.testing.assert_array_equal(values, weights[name])
    for (tokens, targets), (again, _) in zip(SMALL.batches(), SMALL.batches(), strict=True):
        np.testing.assert_array_equal(tokens, again)
        np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])


def test_where_a_cpu_computes_the_model_is_tiny(device: Device) -> None:
    for engine in engines_with(device):
        if engine.backend.is_software:
            assert choose_job(engine, quick=False).name == "tiny"
            assert choose_job(engine, quick=True).is_small


def test_ids_are_uneven_and_in_range() -> None:
    ids = uneven_ids(np.random.default_rng(0), 500, (20_000,))
    counts = np.bincount(ids, minlength=500)
    assert len(counts) == 500
    assert counts[0] > 5 * counts[50] > 5 * counts[499]
    assert len(SMALL.batches()) == models.CHECKED_STEPS
