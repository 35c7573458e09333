"""The embedding part at tiny sizes: its data, its results, and that answers come before times."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import BenchOptions, cases, embedding, engines
from llmgpu.bench.cases import NO_HALF_PRECISION, in_parts, prepare, same_values
from llmgpu.bench.embedding import (
    BACKWARD,
    COMPACT,
    GRADIENTS,
    HALF,
    KINDS,
    LABS,
    LOOKUP,
    POSITIONS,
    REPEATED,
    Lab,
    embedding_bytes,
    make_lab,
    measure_embedding,
)
from llmgpu.bench.engines import Engine
from llmgpu.bench.results import Result
from llmgpu.gpu.adapters import WEBGPU_DEFAULT_LIMITS
from llmgpu.gpu.device import Device
from llmgpu.lm.ops.operations import open_operations
from llmgpu.progress import no_progress
from tests.bench.conftest import SMALL_PERIOD, given
from tests.conftest import require_adapter
from tests.harness.devices import open_device

TINY = make_lab("Tiny", 300, 64, 2, 75)
OPTIONS = BenchOptions(runs=2, peers=False)
NUMPY_ENGINE = Engine(NUMPY, 0.0)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "LABS", (TINY,))
    monkeypatch.setattr(cases, "PERIOD", SMALL_PERIOD)
    monkeypatch.setattr(cases, "CASE_SECONDS", float("inf"))  # on a busy machine, too
    monkeypatch.setattr(cases, "QUICK_CASE_SECONDS", float("inf"))
    monkeypatch.setattr(engines, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(engines, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(engines, "HARDWARE_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(engines, "SOFTWARE_THREADS", 256)
    monkeypatch.setattr(engines, "HARDWARE_THREADS", 256)


def measure(*engines: Engine, **changes: Any) -> list[Result]:
    return list(measure_embedding(engines, replace(OPTIONS, **changes), no_progress))


def own(device: Device) -> Engine:
    return Engine(Backend(device, "under test"), 0.0)


@pytest.fixture(scope="module")
def small_bindings() -> Iterator[Device]:
    require_adapter()
    limits = {**WEBGPU_DEFAULT_LIMITS, "max-storage-buffer-binding-size": 48 << 10}
    yield open_device(limits)


def test_the_sizes_of_the_models() -> None:
    sizes = [(*lab.shape("VC"), lab.sequences, lab.config.seq_len) for lab in LABS]
    assert sizes == [
        (50_257, 768, 32, 512),
        (32_000, 4096, 8, 1024),
        (128_256, 4096, 8, 2048),
        (128_256, 8192, 8, 2048),
    ]
    assert LABS[0].describe() == "GPT-2 Small: table 50,257 x 768, 32 x 512 tokens"
    assert (LABS[2].table_bytes, LABS[2].rows) == (2_101_346_304, 16_384)


@pytest.mark.parametrize("limit", [10, 3000, 1 << 20, 100 << 20, 1 << 32])
@pytest.mark.parametrize("job", LABS)
def test_scaling(job: Lab, limit: int) -> None:
    scaled = job.scaled_to(limit)
    assert scaled.table_bytes <= limit or scaled.vocabulary == 1
    assert scaled.rows == max(job.rows // scaled.scale, 1)
    assert scaled.config.dim == job.config.dim
    assert scaled.scaled_to(limit) == scaled or scaled.vocabulary == 1
    if job.table_bytes <= limit:
        assert scaled == job


def names(engine: str) -> list[str]:
    return [f"{name}: {way}" for name, kind in KINDS.items() for way in getattr(kind, engine)]


def expected(arrays: dict[str, Any], kind: str) -> np.ndarray[Any, Any]:
    """What a kind of work gives, one row after another in float64."""
    tokens = arrays["tokens"]
    if kind in GRADIENTS:
        table = np.zeros(TINY.shape("VC"))
        for s, token in enumerate(tokens):
            table[token] += arrays["grad_out"][s]
        distinct = np.unique(tokens)
        missing = np.zeros((len(tokens) - len(distinct), TINY.config.dim))
        return np.concatenate([table[distinct], missing]) if kind == COMPACT else table
    rows = np.array([arrays["table"][t] for t in tokens]).astype(np.float32)
    if kind == POSITIONS:
        table = arrays["position_table"]
        rows = rows + np.array([table[s % TINY.config.seq_len] for s in range(TINY.rows)])
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_references_are_right_and_told_from_wrong_answers(kind: str) -> None:
    case = TINY.way(kind, "a way", KINDS[kind].reference)
    arrays = case.make()
    prepared = prepare(open_operations(None), case, arrays)
    prepared.run()
    (output,) = case.outputs
    answer, right = prepared.read(output), expected(arrays, kind).astype(np.float32)
    assert same_values(answer, right, case.tolerance)
    for s in (0, len(answer) - 1):
        wrong = answer.copy()
        wrong[s, -1] += 0.001
        assert not same_values(wrong, right, case.tolerance)
    assert not same_values(np.full_like(answer, np.nan), right, case.tolerance)


def arrays_of(kind: str) -> dict[str, Any]:
    return TINY.way(kind, "a way", KINDS[kind].reference).make()


def test_data() -> None:
    arrays = arrays_of(POSITIONS)
    assert len(np.unique(arrays["table"], axis=0)) == TINY.vocabulary
    assert TINY.token_ids(LOOKUP).max() < TINY.vocabulary
    repeated = TINY.token_ids(REPEATED)
    assert np.count_nonzero(repeated == repeated[0]) >= TINY.rows // 50
    np.testing.assert_array_equal(arrays["positions"], [*range(75), *range(75)])
    arrays = arrays_of(HALF)
    cut = in_parts(arrays, 1000)
    parts = [array for name, array in cut.items() if "table" in name]
    assert max(part.nbytes for part in parts) <= 1000
    np.testing.assert_array_equal(np.concatenate(parts), arrays["table"])
    assert cut.keys() - arrays.keys() == {f"table_{k}" for k in range(len(parts))}


def test_moved_bytes() -> None:
    pair = make_lab("Pair", 1, 8, 1, 2)  # both tokens are the only one
    moved = {kind: embedding_bytes(kind, pair, pair.token_ids(kind)) for kind in KINDS}
    assert moved[LOOKUP] == 8 + 32 + 64
    assert moved[HALF] == 8 + 16 + 64
    assert moved[POSITIONS] == 8 + 32 + 8 + 64 + 64
    assert moved[COMPACT] == 8 + 64 + 64
    assert moved[BACKWARD] == moved[REPEATED] == 8 + 64 + 2 * 32


def test_numpy() -> None:
    results = measure(NUMPY_ENGINE)
    assert [r.variant for r in results] == names("numpy")
    for result in results:
        assert (result.what, result.engine) == ("embedding", "NumPy")
        assert result.job == "Tiny: table 300 x 64, 2 x 75 tokens"
        assert (result.correct, result.clock) == (True, "host")
        assert result.answer.startswith("the rows of NumPy")
        assert len(given(result.seconds).runs) == 2
        assert given(result.share_of_copy) > 0
    assert results[0].speed_up == 1


def test_a_device(any_device: Device) -> None:
    results = [r for r in measure(own(any_device), NUMPY_ENGINE) if r.engine != "NumPy"]
    assert [r.variant for r in results] == names("gpu")
    for result in results:
        if HALF in result.variant and "shader-f16" not in any_device.features:
            assert result.note == NO_HALF_PRECISION
            continue
        assert result.correct is True
        seconds = given(result.seconds).median
        assert result.bytes_per_second == given(result.bytes) / seconds
        assert result.output_bytes_per_second == 4 * 64 * 150 / seconds
        assert result.tokens_per_second == 150 / seconds
        assert given(result.speed_up) > 0
        assert given(result.share_of_copy) > 0
        assert result.speed_up_over_torch is None


def test_tables_larger_than_a_binding_come_in_parts(small_bindings: Device) -> None:
    assert TINY.table_bytes > small_bindings.max_binding_bytes
    results = measure(own(small_bindings))
    smaller = [r for r in results if r.job == "Tiny: table 150 x 64, 1 x 75 tokens"]
    assert len(smaller) == len(names("gpu")) == len(results) / 2
    assert all(r.correct and r.note.startswith("scaled down: 1/2") for r in smaller)
    for result in results[: len(smaller)]:
        way = result.variant.partition(": ")[2]
        is_lookup = result.variant.startswith(LOOKUP)
        in_parts = is_lookup and way in ("16-byte loads", "one thread an element")
        if in_parts or result.variant.startswith(COMPACT):
            assert result.correct is True
            assert result.seconds is not None
        else:
            assert result.note == "takes a table in one binding, which has at most 49,152 bytes"
            assert result.seconds is None


def test_outputs_larger_than_a_binding_are_a_note(
    small_bindings: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "LABS", (make_lab("Tiny", 100, 64, 9, 75),))
    for result in measure(own(small_bindings)):
        assert "binds at most 49152" in result.note
        assert result.seconds is None


def test_a_wrong_answer_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(ops: Any, t: Any) -> None:
        ops.append(lambda: t["out"].array.fill(0))

    monkeypatch.setitem(KINDS, LOOKUP, KINDS[LOOKUP]._replace(numpy={"nothing": nothing}))
    result = measure(NUMPY_ENGINE)[0]
    assert result.correct is False
    assert result.answer == "NOT the rows of NumPy"
    assert result.seconds is result.speed_up is result.bytes_per_second is None


def test_quick_is_the_first_model_scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "LABS", (TINY, replace(TINY, model="Second")))
    monkeypatch.setattr(embedding, "QUICK_TABLE_BYTES", TINY.table_bytes // 2)
    results = measure(NUMPY_ENGINE, quick=True)
    assert {r.job for r in results} == {"Tiny: table 150 x 64, 1 x 75 tokens"}
    assert {r.note for r in results} == {"scaled down: 1/2 of the model's vocabulary and tokens"}
    assert len({r.job for r in measure(NUMPY_ENGINE)}) == 2


def test_software_adapters_do_a_smaller_job(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "SOFTWARE_TABLE_BYTES", TINY.table_bytes // 2)
    jobs = {(r.engine, r.job.partition(", ")[2]) for r in measure(NUMPY_ENGINE, own(device))}
    own_job = "1 x 75 tokens" if device.is_software else "2 x 75 tokens"
    assert (device.name, own_job) in jobs
    assert ("NumPy", own_job) in jobs
    assert ("NumPy", "2 x 75 tokens") in jobs


def test_torch() -> None:
    pytest.importorskip("torch")
    results = measure(NUMPY_ENGINE, peers=True)
    peers = [r for r in results if r.peer]
    assert [r.variant for r in peers] == names("torch")
    for result in peers:
        assert result.engine.startswith("torch ")
        assert result.engine.endswith(" (cpu)")
        assert result.correct is True
        assert given(result.speed_up) > 0


def test_a_device_beside_torch(device: Device) -> None:
    pytest.importorskip("torch")
    results = [r for r in measure(own(device), peers=True) if not r.peer]
    assert len(results) == len(names("gpu"))
    for result in results:
        assert given(result.speed_up_over_torch) > 0
        assert result.speed_up is None  # NumPy was not measured


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    peers = [r for r in measure(NUMPY_ENGINE, peers=True) if r.peer]
    assert [(r.engine, r.note) for r in peers] == [("torch", "not installed: pip install torch")]


def test_each_kind_is_measured_everywhere() -> None:
    for kind in KINDS.values():
        assert kind.numpy and kind.gpu and kind.torch
