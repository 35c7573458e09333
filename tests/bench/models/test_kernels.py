"""Kernels as a benchmark: answers before times, and the formulas of what they cost."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench.measuring import gpu_times
from llmgpu.bench.measuring.clocks import keep_busy, raise_clocks
from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.measuring.gpu_times import has_timestamps
from llmgpu.bench.models import kernel_costs, kernel_results, kernels, kernels_bpe
from llmgpu.bench.models import kernels_mirror as mirror
from llmgpu.bench.models.kernel_cases import KernelCase, Sizes
from llmgpu.bench.models.kernel_costs import Cost
from llmgpu.bench.models.kernel_results import same_values
from llmgpu.bench.models.kernels import FAMILIES, choose_sizes, measure_kernels, prepare
from llmgpu.bench.models.kernels_torch import TorchProducts
from llmgpu.bench.part import PartOptions
from llmgpu.gpu import Device
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.backends import open_operations
from llmgpu.lm.ops.operations import AttentionShape
from llmgpu.progress import no_progress

CONFIG = ModelConfig(90, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, seq_len=12)
SIZES = Sizes(CONFIG, 3)
QUICK = PartOptions(runs=2, peers=False, quick=True)
CASES = {case.variant: case for family in FAMILIES for case in family(SIZES)}
# What these take of tables and lists depends on what is in them.
BY_CONTENT = {"embed_lookup", "embed_lookup_positions", "embed_backward_grouped"}
BY_CONTENT |= {"adamw_update_rows", "adamw_update_rows_f16", "fill_zero_rows", "attention_cached"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything small, and the figures of engines such that nothing need be measured."""
    monkeypatch.setattr(kernels, "choose_sizes", lambda engine, quick: (SIZES, "small"))
    monkeypatch.setattr(mirror, "model_config", lambda engine, quick: CONFIG)
    monkeypatch.setattr(kernels_bpe, "text_bytes", lambda engine, quick: 3000)
    monkeypatch.setattr(kernels_bpe, "VOCAB_SIZE", 270)
    monkeypatch.setattr(kernel_results, "measured_bandwidth", lambda engine: 1e9)
    monkeypatch.setattr(kernel_results, "measured_rate", lambda engine: 1e10)
    monkeypatch.setattr(gpu_times, "WARM_UP_SECONDS", 0.0)


def engine_of(device: Device | None) -> Engine:
    return Engine(NUMPY if device is None else Backend(device, device.name), 0.0)


@pytest.fixture(scope="module")
def results(device: Device) -> Iterator[list[dict[str, Any]]]:
    """The results of NumPy and of the best adapter."""
    with pytest.MonkeyPatch.context() as patch:
        small.__wrapped__(patch)  # type: ignore[attr-defined]
        yield list(measure_kernels([engine_of(None), engine_of(device)], QUICK, no_progress))


def test_every_kernel_is_compared_and_measured(
    results: list[dict[str, Any]], device: Device
) -> None:
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    done = Counter((r["engine"], r["job"], r["variant"]) for r in results)
    assert set(done.values()) == {1}
    for engine in ("NumPy", device.name):
        variants = {r["variant"] for r in results if r["engine"] == engine}
        assert variants >= {*CASES, mirror.VARIANT}
    for result in results:
        if "seconds" not in result:
            assert "shader-f16" in result["note"]
            assert "shader-f16" not in device.features
            continue
        assert result["correct"] is True
        assert result["seconds"]["median"] >= 0
        assert result["clock"] in ("gpu", "host")


def test_results_say_how_near_the_floor_they_are(results: list[dict[str, Any]]) -> None:
    found = next(r for r in results if r["variant"] == "linear, feed-forward")
    cost, median = CASES["linear, feed-forward"].cost, found["seconds"]["median"]
    assert found["bytes"] == cost.bytes
    assert found["bytes_per_second"] == cost.bytes / median
    assert found["share_of_copy"] == pytest.approx(cost.bytes / 1e9 / median)
    floor = max(cost.bytes / 1e9, cost.operations / 1e10)
    assert found["share_of_floor"] == pytest.approx(floor / median)


def test_kernels_of_tokenizers(results: list[dict[str, Any]], device: Device) -> None:
    if not has_timestamps(device):
        pytest.skip("no timestamps")
    variants = {r["variant"]: r["answer"] for r in results if "share_of_kernels" in r}
    assert variants["batched_select_batch"] == "the merges of NumPy"
    assert variants["encode_merge"] == "the ids of NumPy"


def test_every_kernel_of_a_model_is_there(results: list[dict[str, Any]], device: Device) -> None:
    if not has_timestamps(device) or "shader-f16" not in device.features:
        pytest.skip("kernels are not told apart, or not all there")
    timed = {label for r in results if "kernels" in r for label in r["kernels"]["seconds"]}
    folder = Path(__file__).parents[3] / "wgsl" / "lm"
    texts = "\n".join(path.read_text() for path in folder.glob("*.wgsl"))
    written = set(re.findall(r"@compute\s+@workgroup_size\([^)]*\)\s*fn (\w+)", texts))
    assert len(written) == 40
    # The embedding's own comparison has these; partial sums are for products of other shapes.
    elsewhere = {"embed_lookup", "embed_lookup_w16", "embed_backward", "embed_backward_rows"}
    assert written - timed - elsewhere - {"add_partials"} == set()


def test_both_ways_to_update_mirrors(results: list[dict[str, Any]]) -> None:
    for result in results:
        if result["variant"] == mirror.VARIANT and "seconds" in result:
            assert len(result["separate_seconds"]["runs"]) == 2
            assert result["bytes"] == 30 * CONFIG.parameters


def test_the_seed_of_a_mirror_update_is_a_model_of_110_tensors() -> None:
    config = ModelConfig(90, dim=32, layers=12, heads=4, kv_heads=2, ffn_dim=48)
    assert len(list(config.weights())) == 110


def test_a_device_without_features(portable_device: Device) -> None:
    found = list(measure_kernels([engine_of(portable_device)], QUICK, no_progress))
    assert {r["variant"] for r in found if r["correct"] is None} == {
        variant for variant, case in CASES.items() if case.needs_half
    } | {mirror.VARIANT}
    assert {r["clock"] for r in found if r["correct"]} == {"host"}


def test_wrong_answers_have_no_times(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = kernels.KernelBench(engine_of(device), QUICK, no_progress, {})
    case = CASES["rms_norm"]

    def broken(operations: Any, prepared: KernelCase, arrays: dict[str, Any]) -> Any:
        if operations.__class__.__name__ == "NumpyOperations":
            arrays = arrays | {"x": arrays["x"] * 1.001}
        return prepare(operations, prepared, arrays)

    monkeypatch.setattr(kernels, "prepare", broken)
    (result,) = bench._measure_case(case)
    assert result["correct"] is False
    assert result["answer"] == "NOT the inverse_rms of NumPy"
    assert "seconds" not in result


@pytest.mark.parametrize("variant", CASES)
def test_outputs_are_written_and_bytes_are_those_of_the_tensors(variant: str) -> None:
    case = CASES[variant]
    arrays = case.make()
    prepared = prepare(open_operations(None), case, arrays)
    prepared.run()
    for name in case.outputs:
        after = prepared.operations.read(prepared.tensors[name])
        assert np.isfinite(after).all()
        assert not np.array_equal(after, arrays[name])
    if case.name in BY_CONTENT:
        return
    written = {*case.outputs, "first_codes", "second_codes"} & arrays.keys()
    both = [n for n in written if np.isfinite(arrays[n]).all() and n not in ("x", "stats")]
    if case.name == "rotary":
        both.append("x")
    counted = [name for name in arrays if name not in case.uniforms and name != "stats"]
    nbytes = sum(arrays[name].nbytes for name in [*counted, *both])
    nbytes += 32 if case.name == "finalize_grad_stats" else 0
    assert case.cost.bytes == nbytes


def test_costs_that_depend_on_content() -> None:
    assert kernel_costs.embed_lookup(10, 4, 8, 2) == Cost(40 + 4 * 8 * 2 + 10 * 8 * 4, 0)
    assert kernel_costs.embed_backward_grouped(10, 4, 8).bytes == 40 + 32 + 4 * 8 * (10 + 8)
    assert kernel_costs.adamw_update_rows(3, 8) == Cost(28 * 24 + 12, 15 * 24)


def test_operations_of_products() -> None:
    assert kernel_costs.matrix_product(2, 3, 4).operations == 2 * 2 * 3 * 4
    shape = AttentionShape(batch=2, seq=3, heads=4, kv_heads=2, head_dim=8)
    pairs = 2 * 4 * (1 + 2 + 3)
    assert kernel_costs.attention(shape).operations == pairs * (2 * 8 * 2 + 4)
    assert kernel_costs.attention_backward(shape).operations == pairs * (5 * 8 * 2 + 4)


def test_same_values() -> None:
    wanted = np.array([[1.0, -1.0], [100.0, 100.0]], np.float32)
    assert same_values(wanted, wanted, 0)
    assert same_values(wanted * np.float32(1.00001), wanted, 1e-5)
    assert not same_values(wanted + np.float32(1e-3), wanted, 1e-5)
    assert not same_values(np.where(wanted < 0, np.nan, wanted), wanted, 1e-5)
    assert not same_values(wanted[:1], wanted, 1e-5)
    assert same_values(wanted[:, ::-1], wanted, 1e-5, only_total=True)
    long = np.ones(kernel_results.BLOCK_ELEMENTS + 5, np.float32)
    spoilt = long.copy()
    spoilt[-1] = 2
    assert same_values(long, long, 1e-5)
    assert not same_values(spoilt.reshape(-1, 1), long.reshape(-1, 1), 1e-5)


def test_sizes_where_a_cpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, note = choose_sizes(engine_of(None), quick=False)
    assert sizes.rows == 512
    assert note


def test_a_device_is_kept_busy_until_the_time_is_over(device: Device) -> None:
    operations = open_operations(device)
    device.timing = True
    device.gpu_seconds.clear()
    try:
        keep_busy(operations, threads=256, rounds=4, seconds=0.01)
        raise_clocks(engine_of(None))
    finally:
        device.timing = False
    if has_timestamps(device):
        assert device.gpu_seconds["multiply_add"] > 0


def test_torch_is_for_nvidia_only(device: Device) -> None:
    assert TorchProducts.open(engine_of(None)) is None
    if "NVIDIA" not in device.name:
        assert TorchProducts.open(engine_of(device)) is None


@pytest.mark.parametrize("variant", [case.variant for case in CASES.values() if case.torch])
def test_products_in_torch_are_the_same(variant: str) -> None:
    torch = pytest.importorskip("torch")
    case = CASES[variant]
    arrays = case.make()
    prepared = prepare(open_operations(None), case, arrays)
    prepared.run()
    assert case.torch is not None
    found = case.torch(torch, {name: torch.tensor(array) for name, array in arrays.items()})
    wanted = prepared.operations.read(prepared.tensors[case.outputs[0]])
    assert same_values(found.numpy(), wanted, case.tolerance)
