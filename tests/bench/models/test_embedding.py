"""The embedding part at tiny sizes: its data, its results, and that answers come before times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench.measuring import bandwidth, gpu_times
from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.models import embedding, embedding_variants
from llmgpu.bench.models.embedding import WHAT, measure_embedding
from llmgpu.bench.models.embedding_job import (
    BACKWARD,
    HALF,
    JOBS,
    KINDS,
    LOOKUP,
    POSITIONS,
    REPEATED,
    EmbeddingData,
    EmbeddingJob,
)
from llmgpu.bench.models.embedding_torch import TORCH_WAYS
from llmgpu.bench.models.embedding_variants import GPU_VARIANTS, NUMPY_VARIANTS, Variant
from llmgpu.bench.part import PartOptions
from llmgpu.gpu import WEBGPU_DEFAULT_LIMITS, Device
from llmgpu.progress import no_progress
from tests.conftest import require_adapter

TINY = EmbeddingJob("Tiny", 300, 64, 2, 75)
OPTIONS = PartOptions(runs=2, peers=False)
NUMPY_ENGINE = Engine(NUMPY, 0.0)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "JOBS", (TINY,))
    monkeypatch.setattr(gpu_times, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(bandwidth, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(bandwidth, "HARDWARE_COPY_BYTES", 1 << 20)


def measure(*engines: Engine, **changes: Any) -> list[dict[str, Any]]:
    return list(measure_embedding(engines, replace(OPTIONS, **changes), no_progress))


def own(device: Device) -> Engine:
    return Engine(Backend(device, "under test"), 0.0)


@pytest.fixture(scope="module")
def small_bindings() -> Iterator[Device]:
    require_adapter()
    limits = {**WEBGPU_DEFAULT_LIMITS, "max-storage-buffer-binding-size": 48 << 10}
    yield Device(limits=limits)


def test_the_models_are_those_of_the_exercise() -> None:
    assert [(job.vocab_size, job.width, job.batch, job.seq_len) for job in JOBS] == [
        (50_257, 768, 32, 512),
        (32_000, 4096, 8, 1024),
        (128_256, 4096, 8, 2048),
    ]
    assert JOBS[0].describe() == "GPT-2 Small: table 50,257 x 768, 32 x 512 tokens"
    assert (JOBS[2].table_bytes, JOBS[2].output_bytes) == (2_101_346_304, 268_435_456)


@pytest.mark.parametrize("limit", [10, 3000, 1 << 20, 100 << 20, 1 << 32])
@pytest.mark.parametrize("job", JOBS)
def test_scaling(job: EmbeddingJob, limit: int) -> None:
    scaled = job.scaled_to(limit)
    assert scaled.table_bytes <= limit or scaled.vocab_size == 1
    assert scaled.tokens == max(job.tokens // scaled.scale, 1)
    assert scaled.width == job.width
    assert scaled.scaled_to(limit) == scaled or scaled.vocab_size == 1
    if job.table_bytes <= limit:
        assert scaled == job


def expected(data: EmbeddingData, kind: str) -> np.ndarray[Any, Any]:
    """What a kind of work gives, one row after another in float64."""
    tokens = data.tokens(kind)
    if kind in (BACKWARD, REPEATED):
        table = np.zeros(data.table.shape)
        for s, token in enumerate(tokens):
            table[token] += data.grad_out[s]
        return table
    rows = np.array([(data.half_table if kind == HALF else data.table)[t] for t in tokens])
    if kind == POSITIONS:
        rows = rows + np.array([data.position_table[s % TINY.seq_len] for s in range(TINY.tokens)])
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_right_answers_are_told_from_wrong_ones(kind: str) -> None:
    data = EmbeddingData(TINY)
    answer = expected(data, kind).astype(np.float32)
    assert data.is_right(kind, answer)
    for s in (0, len(answer) - 1):
        wrong = answer.copy()
        wrong[s, -1] += 0.001
        assert not data.is_right(kind, wrong)
    assert not data.is_right(kind, np.full_like(answer, np.nan))


def test_data() -> None:
    data = EmbeddingData(TINY)
    assert len(np.unique(data.table, axis=0)) == TINY.vocab_size
    assert data.tokens(LOOKUP).max() < TINY.vocab_size
    repeated = data.tokens(REPEATED)
    assert np.count_nonzero(repeated == repeated[0]) >= TINY.tokens // 50
    np.testing.assert_array_equal(data.positions, [*range(75), *range(75)])


def test_moved_bytes() -> None:
    data = EmbeddingData(EmbeddingJob("Pair", 1, 8, 1, 2))  # both tokens are the only one
    assert data.moved_bytes(LOOKUP) == 8 + 32 + 64
    assert data.moved_bytes(HALF) == 8 + 16 + 64
    assert data.moved_bytes(POSITIONS) == 8 + 32 + 8 + 64 + 64
    assert data.moved_bytes(BACKWARD) == data.moved_bytes(REPEATED) == 8 + 64 + 2 * 32


def test_numpy() -> None:
    results = measure(NUMPY_ENGINE)
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert [r["variant"] for r in results] == [v.name for v in NUMPY_VARIANTS]
    for result in results:
        assert (result["what"], result["engine"]) == (WHAT, "NumPy")
        assert result["job"] == "Tiny: table 300 x 64, 2 x 75 tokens"
        assert (result["correct"], result["clock"]) == (True, "host")
        assert result["answer"] == "the rows of NumPy"
        assert len(result["seconds"]["runs"]) == 2
        assert result["share_of_copy"] > 0
    assert results[0]["speed_up"] == 1


def test_a_device(any_device: Device) -> None:
    results = [r for r in measure(own(any_device), NUMPY_ENGINE) if r["engine"] != "NumPy"]
    assert [r["variant"] for r in results] == [v.name for v in GPU_VARIANTS]
    for result in results:
        if HALF in result["variant"] and "shader-f16" not in any_device.features:
            assert result["note"] == "the device has no half precision"
            continue
        assert result["correct"] is True
        seconds = result["seconds"]["median"]
        assert result["bytes_per_second"] == result["bytes"] / seconds
        assert result["output_bytes_per_second"] == 4 * 64 * 150 / seconds
        assert result["tokens_per_second"] == 150 / seconds
        assert result["speed_up"] > 0
        assert result["share_of_copy"] > 0
        assert "speed_up_over_torch" not in result


def test_tables_larger_than_a_binding_come_in_parts(small_bindings: Device) -> None:
    assert TINY.table_bytes > small_bindings.max_binding_bytes
    results = measure(own(small_bindings))
    smaller = [r for r in results if r["job"] == "Tiny: table 150 x 64, 1 x 75 tokens"]
    assert len(smaller) == len(GPU_VARIANTS) == len(results) / 2
    assert all(r["correct"] and r["note"].startswith("scaled down: 1/2") for r in smaller)
    for result in results[: len(smaller)]:
        if "16-byte" in result["variant"] or result["variant"].startswith("lookup: one thread an"):
            assert result["correct"] is True
            assert "seconds" in result
        else:
            assert (
                result["note"] == "takes no table in parts, and a binding has at most 49,152 bytes"
            )
            assert "seconds" not in result


def test_outputs_larger_than_a_binding_are_a_note(
    small_bindings: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "JOBS", (replace(TINY, vocab_size=100, batch=9),))
    for result in measure(own(small_bindings)):
        assert "binds at most 49152" in result["note"]
        assert "seconds" not in result


def test_a_wrong_answer_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Variant(LOOKUP, "nothing", lambda place: place.append(lambda: place.out.array.fill(0)))
    monkeypatch.setattr(embedding, "NUMPY_VARIANTS", (wrong,))
    (result,) = measure(NUMPY_ENGINE)
    assert result["correct"] is False
    assert result["answer"] == "NOT the rows of NumPy"
    assert not {"seconds", "speed_up", "bytes_per_second"} & set(result)


def test_quick_is_the_first_model_scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "JOBS", (TINY, replace(TINY, model="Second")))
    monkeypatch.setattr(embedding, "QUICK_TABLE_BYTES", TINY.table_bytes // 2)
    results = measure(NUMPY_ENGINE, quick=True)
    assert {r["job"] for r in results} == {"Tiny: table 150 x 64, 1 x 75 tokens"}
    assert {r["note"] for r in results} == {"scaled down: 1/2 of the model's vocabulary and tokens"}
    assert len({r["job"] for r in measure(NUMPY_ENGINE)}) == 2


def test_software_adapters_do_a_smaller_job(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "SOFTWARE_TABLE_BYTES", TINY.table_bytes // 2)
    jobs = {(r["engine"], r["job"].partition(", ")[2]) for r in measure(NUMPY_ENGINE, own(device))}
    own_job = "1 x 75 tokens" if device.is_software else "2 x 75 tokens"
    assert (device.name, own_job) in jobs
    assert ("NumPy", own_job) in jobs
    assert ("NumPy", "2 x 75 tokens") in jobs


def test_torch() -> None:
    pytest.importorskip("torch")
    results = measure(NUMPY_ENGINE, peers=True)
    peers = [r for r in results if r.get("peer")]
    assert [r["variant"] for r in peers] == [f"{kind}: {way}" for kind, way in TORCH_WAYS]
    for result in peers:
        assert result["engine"].startswith("torch ")
        assert result["engine"].endswith(" (cpu)")
        assert result["correct"] is True
        assert result["speed_up"] > 0


def test_a_device_beside_torch(device: Device) -> None:
    pytest.importorskip("torch")
    results = [r for r in measure(own(device), peers=True) if not r.get("peer")]
    assert len(results) == len(GPU_VARIANTS)
    for result in results:
        assert result["speed_up_over_torch"] > 0
        assert "speed_up" not in result  # NumPy was not measured


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    peers = [r for r in measure(NUMPY_ENGINE, peers=True) if r.get("peer")]
    assert [(r["engine"], r["note"]) for r in peers] == [
        ("torch", "not installed: pip install torch")
    ]


def test_each_kind_is_measured_everywhere() -> None:
    ways = (NUMPY_VARIANTS, embedding_variants.GPU_VARIANTS)
    assert all({variant.kind for variant in variants} == set(KINDS) for variants in ways)
    assert {kind for kind, _ in TORCH_WAYS} == set(KINDS)
