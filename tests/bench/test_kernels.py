"""Kernels as a benchmark: answers before times, and the formulas of what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import BenchOptions, cases, engines, kernels, tokenizers
from llmgpu.bench.cases import (
    CaseBench,
    KernelCase,
    Prepared,
    Sizes,
    prepare,
    same_values,
    wrong_outputs,
)
from llmgpu.bench.engines import Engine, cpu_engine, has_timestamps, raise_clocks
from llmgpu.bench.kernels import FAMILIES, choose_sizes, measure_kernels
from llmgpu.bench.peers import Torch
from llmgpu.bench.results import Limits, Result, load_record
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.progress import no_progress
from tests.bench.conftest import SMALL_PERIOD, given
from tests.test_kernel_source import COMPILED, SCAN

RECORDED = Path(__file__).parents[2] / "docs" / "recorded"
CONFIG = ModelConfig(90, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, seq_len=12)
SIZES = Sizes(CONFIG, 3)
QUICK = BenchOptions(runs=2, peers=False, quick=True)
CASES = {case.variant: case for family in FAMILIES for case in family(SIZES)}
ALL_WEIGHTS = "adamw_update_f16, all weights"
SEPARATELY = "adamw_update, all weights, then cast"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything small, and the figures of engines such that nothing need be measured."""
    monkeypatch.setattr(kernels, "choose_sizes", lambda engine, quick: (SIZES, "small"))
    monkeypatch.setattr(tokenizers, "kernel_text_bytes", lambda engine, quick: 3000)
    monkeypatch.setattr(tokenizers, "KERNELS_VOCAB_SIZE", 270)
    monkeypatch.setattr(Engine, "limits", Limits(1e9, 1e10))
    monkeypatch.setattr(cases, "PERIOD", SMALL_PERIOD)
    monkeypatch.setattr(engines, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(cases, "QUICK_CASE_SECONDS", float("inf"))  # on a busy machine, too


def engine_of(device: Device | None) -> Engine:
    return Engine(NUMPY if device is None else Backend(device, device.name), 0.0)


def measure(device: Device, case: KernelCase) -> Result:
    bench, engine = CaseBench("kernels", QUICK, no_progress, cold=True), engine_of(device)
    (result,) = bench.measure_cases([case], engine)
    return result


@pytest.fixture(scope="module")
def results(device: Device) -> Iterator[list[Result]]:
    """The results of NumPy and of the best adapter."""
    with pytest.MonkeyPatch.context() as patch:
        small.__wrapped__(patch)  # type: ignore[attr-defined]
        yield list(measure_kernels([engine_of(None), engine_of(device)], QUICK, no_progress))


def test_every_kernel_is_compared_and_measured(results: list[Result], device: Device) -> None:
    done = Counter((r.engine, r.job, r.variant) for r in results)
    assert set(done.values()) == {1}
    for engine in ("NumPy", device.name):
        variants = {r.variant for r in results if r.engine == engine}
        assert variants >= CASES.keys()
    for result in results:
        if result.seconds is None:
            if "has no matrix units" in result.note:
                assert not device.matrix_shapes
                continue
            assert "shader-f16" in result.note
            assert "shader-f16" not in device.features
            continue
        assert result.correct is True
        assert given(result.seconds).median >= 0
        assert result.clock in ("gpu", "host")


def test_results_say_how_near_the_floor_they_are(results: list[Result]) -> None:
    found = next(r for r in results if r.variant == "linear, feed-forward")
    case, median = CASES["linear, feed-forward"], given(found.seconds).median
    moved = 4 * (SIZES.rows * 32 + 48 * 32 + SIZES.rows * 48)
    assert found.bytes == moved
    assert found.bytes_per_second == moved / median
    assert found.share_of_copy == pytest.approx(moved / 1e9 / median)
    assert case.operations is not None
    floor = max(moved / 1e9, case.operations / 1e10)
    assert found.share_of_floor == pytest.approx(floor / median)


def test_kernels_of_tokenizers(results: list[Result], device: Device) -> None:
    if not has_timestamps(device):
        pytest.skip("no timestamps")
    variants = {r.variant: r.answer for r in results if r.share_of_kernels is not None}
    assert variants["batched_select_batch"] == f"the merges of {cpu_engine()}"
    assert variants["encode_merge"] == f"the ids of {cpu_engine()}"


def test_every_kernel_of_a_model_is_there(results: list[Result], device: Device) -> None:
    if not has_timestamps(device) or "shader-f16" not in device.features:
        pytest.skip("kernels are not told apart, or not all there")
    timed = {label for r in results if r.kernels is not None for label in r.kernels.seconds}
    of_models = [each for each in COMPILED if each[0].startswith("lm/")]
    written = {compose(file, {**SCAN, **settings}).entry for file, settings in of_models}
    written.remove("matrix_product")  # has the name of an operation in each program
    assert len(written) == 68
    # The embedding's own comparison has these; partial sums, and products of one row that is not of
    # whole vectors, are for other shapes; some are for matrix units.
    elsewhere = {"embed_lookup", "embed_lookup_w16", "embed_backward", "embed_backward_rows"}
    elsewhere |= {"add_partials", "linear_few_rows", "linear_few_rows_half"}
    assert written - timed - elsewhere - {"round_to_half"} == set()


def test_both_ways_to_update_half_precision_copies(results: list[Result]) -> None:
    found = [result for result in results if ", all weights" in result.variant]
    assert [result.variant for result in found] == [ALL_WEIGHTS, SEPARATELY] * 2
    for result in found:
        if result.seconds is not None:
            assert len(result.seconds.runs) == 2
            assert result.bytes == 30 * CONFIG.parameters


def test_the_seed_of_a_mirror_update_is_a_model_of_110_tensors() -> None:
    config = ModelConfig(90, dim=32, layers=12, heads=4, kv_heads=2, ffn_dim=48)
    assert len(list(config.weights())) == 110


def test_a_device_without_features(portable_device: Device) -> None:
    found = list(measure_kernels([engine_of(portable_device)], QUICK, no_progress))
    assert {r.variant for r in found if r.correct is None} == {
        variant for variant, case in CASES.items() if case.needs_half
    }
    assert {r.clock for r in found if r.correct} == {"host"}


def test_wrong_answers_have_no_times(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["rms_norm"]

    def broken(operations: Any, prepared: KernelCase, arrays: dict[str, Any]) -> Any:
        if type(operations) is Operations:
            arrays = arrays | {"x": arrays["x"] * 1.001}
        return prepare(operations, prepared, arrays)

    monkeypatch.setattr(cases, "prepare", broken)
    result = measure(device, case)
    assert result.correct is False
    assert result.answer == "NOT the inverse_rms of NumPy"
    assert result.seconds is None


@pytest.mark.parametrize("variant", CASES)
def test_outputs_are_written(variant: str) -> None:
    case = CASES[variant]
    arrays = case.make()
    prepared = prepare(open_operations(None), case, arrays)
    prepared.run()
    for name in case.outputs:
        after = prepared.read(name)
        assert np.isfinite(after).all()
        assert not np.array_equal(after, arrays[name])


@pytest.mark.slow
def test_costs_are_those_of_a_recorded_run() -> None:
    """Bytes and operations, which a formula for each gave when the run was recorded."""
    in_single, joined = ("swiglu", "cross_entropy"), ("join_heads",)
    recorded = {
        (result.variant, result.job): (result.bytes, result.operations)
        for result in load_record(str(RECORDED / "two-cpu-cores.json")).results
        if result.what == "kernels"
        and result.bytes is not None
        # They read single precision then, or are parts of other kernels today.
        and ("half" not in result.variant or not result.variant.startswith((*in_single, *joined)))
    }
    sizes, _ = choose_sizes(engine_of(None), quick=False)
    found = {}
    for case in (case for family in FAMILIES for case in family(sizes)):
        found[case.variant, case.sizes] = (case.moved_bytes(case.make()), case.operations)
    assert len(recorded) > 30
    assert recorded.items() <= found.items()


def test_operations_of_products() -> None:
    rows, pairs = SIZES.rows, 3 * 4 * (12 * 13 // 2)
    assert CASES["linear, feed-forward"].operations == 2 * rows * 32 * 48
    assert CASES["attention"].operations == pairs * (2 * 8 * 2 + 4)
    assert CASES["attention_backward"].operations == pairs * (5 * 8 * 2 + 4)


def test_a_copy_that_is_no_copy_is_wrong() -> None:
    case = CASES["adamw_update_f16"]
    prepared, expected = (prepare(open_operations(None), case, case.make()) for _ in range(2))
    prepared.run()
    expected.run()
    assert wrong_outputs(case, prepared, expected) == []

    def spoilt(name: str) -> Any:
        found = prepared.read(name).copy()
        if name == "mirror":
            found[0, 0] += 1
        return found

    assert wrong_outputs(case, Prepared(prepared.run, spoilt), expected) == ["mirror"]


def test_both_ways_give_the_same_bytes(device: Device) -> None:
    operations = open_operations(device)
    if not operations.has_half_precision:
        pytest.skip("no half precision")
    fused, separate = (
        prepare(operations, CASES[name], CASES[name].make()) for name in (ALL_WEIGHTS, SEPARATELY)
    )
    fused.run()
    separate.run()
    for name in (*CASES[ALL_WEIGHTS].outputs, *CASES[ALL_WEIGHTS].copies):
        np.testing.assert_array_equal(fused.read(name), separate.read(name))


def test_an_update_of_one_weight_that_differs_is_wrong(device: Device) -> None:
    case = CASES[ALL_WEIGHTS]

    def differs(ops: Any, t: Any) -> None:
        case.record_on(ops, t)
        ops.fill_zero(t["parameter_0"])

    if not open_operations(device).has_half_precision:
        pytest.skip("no half precision")
    changed = replace(case, record=differs, reference=case.record or case.name)
    result = measure(device, changed)
    wrong = "NOT the parameter_0 and mirror_0 of NumPy"
    assert (result.correct, result.answer) == (False, wrong)


def test_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "BLOCK_ELEMENTS", 1 << 12)
    wanted = np.array([[1.0, -1.0], [100.0, 100.0]], np.float32)
    assert same_values(wanted, wanted, 0)
    assert same_values(wanted * np.float32(1.00001), wanted, 1e-5)
    assert not same_values(wanted + np.float32(1e-3), wanted, 1e-5)
    assert not same_values(np.where(wanted < 0, np.nan, wanted), wanted, 1e-5)
    assert not same_values(wanted[:1], wanted, 1e-5)
    assert same_values(wanted[:, ::-1], wanted, 1e-5, only_total=True)
    long = np.ones(cases.BLOCK_ELEMENTS + 5, np.float32)
    spoilt = long.copy()
    spoilt[-1] = 2
    assert same_values(long, long, 1e-5)
    assert not same_values(spoilt.reshape(-1, 1), long.reshape(-1, 1), 1e-5)


def test_sizes_where_a_cpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, note = choose_sizes(engine_of(None), quick=False)
    assert sizes.rows == 512
    assert note


def test_a_device_is_kept_busy_until_the_time_is_over(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hardware(Backend):
        is_software = False

    monkeypatch.setattr(engines, "BUSY_SECONDS", 0.01)
    for name in ("SOFTWARE_THREADS", "HARDWARE_THREADS"):
        monkeypatch.setattr(engines, name, 256)
    device.timing = True
    device.gpu_seconds.clear()
    try:
        raise_clocks(Hardware(device, device.name))
        raise_clocks(NUMPY)
    finally:
        device.timing = False
    if has_timestamps(device):
        assert device.gpu_seconds["multiply_add"] > 0


def test_torch_is_on_cuda_for_nvidia_only(device: Device) -> None:
    pytest.importorskip("torch")
    for engine in (engine_of(None), engine_of(device)):
        torch = Torch.beside(engine)
        assert torch is not None
        assert "NVIDIA" in engine.name or not torch.is_cuda


@pytest.mark.parametrize("variant", [case.variant for case in CASES.values() if case.torch])
def test_products_in_torch_are_the_same(variant: str) -> None:
    torch = pytest.importorskip("torch")
    case = CASES[variant]
    arrays = case.make()
    prepared = prepare(open_operations(None), case, arrays)
    prepared.run()
    assert case.torch is not None
    found = case.torch(torch, {name: torch.tensor(array) for name, array in arrays.items()})
    wanted = prepared.read(case.outputs[0])
    assert same_values(found.numpy(), wanted, case.tolerance)
