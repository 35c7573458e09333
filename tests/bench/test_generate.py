"""Tokens a second of generating: what is measured, and that the ids are compared first."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import GENERATE, BenchOptions, models
from llmgpu.bench.engines import Engine, cpu_engine
from llmgpu.gpu.device import Device
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.model import Model
from llmgpu.progress import no_progress
from tests.reference.lm.llama import Llama

OPTIONS = BenchOptions(runs=2, quick=True)
SMALL = [
    models.GenerateJob("tiny", preset("tiny", 512, layers=1, seq_len=32), sequences, 3)
    for sequences in (1, 3)
]


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ENGINE_SECONDS", float("inf"))  # on a busy machine, too
    monkeypatch.setattr(models, "QUICK_ENGINE_SECONDS", float("inf"))
    monkeypatch.setattr(models, "choose_sequences", lambda *_, quick: SMALL)


@pytest.mark.slow
def test_a_sequence_alone_and_a_batch(device: Device) -> None:
    engines = [Engine(NUMPY, 0.0), Engine(Backend(device, "the device"), 0.0)]
    results = list(models.measure_generate(engines, OPTIONS, no_progress))
    assert [r.engine for r in results] == 2 * [cpu_engine()] + 2 * [engines[1].name]
    for result, job in zip(results, 2 * SMALL, strict=True):
        assert (result.what, result.job, result.correct) == (GENERATE, str(job), True)
        assert result.tokens == 3 * job.sequences
        assert result.seconds is not None and len(result.seconds.runs) == 2
        assert result.tokens_per_second == 3 * job.sequences / result.median
    assert [r.speed_up is not None for r in results] == [False, False, True, True]


def test_what_engines_are_compared_with_is_what_the_float64_model_gives() -> None:
    ids = models._likeliest(Engine(NUMPY, 0.0))
    alone = [token for _, token in ids[: models.COMPARED_TOKENS]]
    model = models._model(Engine(NUMPY, 0.0), models.COMPARED)
    weights = {name: tensor.array.astype(np.float64) for name, tensor in model.weights.items()}
    sequence = [*models.PROMPT, *(token for token in alone if token is not None)]
    logits = Llama(models.COMPARED, weights).forward(np.array([sequence], np.uint32))[0]
    assert len(set(alone)) > 3
    assert alone == logits[len(models.PROMPT) - 1 : -1, :512].argmax(1).tolist()


def test_wrong_ids_have_no_times(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    engines = [Engine(NUMPY, 0.0), Engine(Backend(device, "the device"), 0.0)]
    original = models._model

    def with_other_weights(engine: Engine, config: ModelConfig) -> Model:
        model = original(engine, config)
        model.initialise(2 if engine.backend is NUMPY else 1)
        return model

    monkeypatch.setattr(models, "_model", with_other_weights)
    monkeypatch.setattr(models, "choose_sequences", lambda *_, quick: SMALL[:1])
    _, wrong = models.measure_generate(engines, OPTIONS, no_progress)
    assert wrong.correct is False
    assert wrong.seconds is None
    assert wrong.answer == f"NOT the ids of {cpu_engine()}"
