"""Ideas switched off: answers before times, and what is not measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import BenchOptions, cases, engines, ideas
from llmgpu.bench.cases import Sizes
from llmgpu.bench.embedding import make_lab
from llmgpu.bench.engines import Engine
from llmgpu.bench.ideas import GREEDY_IDEAS, NOT_MEASURED, RECOUNT_IDEAS, measure_ideas
from llmgpu.bench.results import Limits, Result
from llmgpu.bench.tokenizers import encode_all
from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose
from llmgpu.lm.config import ModelConfig
from llmgpu.progress import no_progress
from tests.bench.conftest import SMALL_PERIOD, given

CONFIG = ModelConfig(90, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, seq_len=12)
LAB = make_lab("small", 60, 32, 2, 50)
QUICK = BenchOptions(runs=2, peers=False, quick=True, limit=3000, vocab_size=280)
FILES = {
    name: {replaced: file for replaced, file in settings.items() if isinstance(file, str)}
    for each in (RECOUNT_IDEAS, GREEDY_IDEAS)
    for idea, ways in each.items()
    for name, settings in ((f"{idea}: {way}", settings) for way, settings in ways.items())
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything small, and the limits of engines such that none need be measured."""
    monkeypatch.setattr(ideas, "choose_sizes", lambda engine, quick: (Sizes(CONFIG, 3), "small"))
    monkeypatch.setattr(ideas, "_lab", lambda engine, quick: LAB)
    monkeypatch.setattr(ideas, "SOFTWARE_MERGES", 4)
    monkeypatch.setattr(cases, "PERIOD", SMALL_PERIOD)
    monkeypatch.setattr(cases, "QUICK_CASE_SECONDS", 0.0)
    monkeypatch.setattr(Engine, "limits", Limits(1e9, 1e10))
    monkeypatch.setattr(engines, "WARM_UP_SECONDS", 0.0)


def engine_of(device: Device) -> Engine:
    return Engine(Backend(device, device.name), 0.0)


@pytest.fixture(scope="module")
def results(device: Device) -> Iterator[list[Result]]:
    """The results of the best adapter."""
    with pytest.MonkeyPatch.context() as patch:
        small.__wrapped__(patch)  # type: ignore[attr-defined]
        yield list(measure_ideas([engine_of(device)], QUICK, no_progress))


def of_idea(results: list[Result], idea: str) -> dict[str, Result]:
    """The results of an idea by their ways."""
    found = [r for r in results if r.kind_and_way[0] == idea]
    return {result.kind_and_way[1]: result for result in found}


def test_every_way_is_compared_and_measured(results: list[Result], device: Device) -> None:
    for result in results:
        if result.seconds is None:
            lacks = ("shader-f16" in result.note, "shader-float32-atomic" in result.note)
            assert result.kind_and_way[0] == "not measured" or any(lacks)
            continue
        assert result.correct is True and result.answer
    names = [(r.job, r.variant, r.engine) for r in results]
    assert len(set(names)) == len(names)
    for listed in (RECOUNT_IDEAS, GREEDY_IDEAS):
        for idea, ways in listed.items():
            assert [*of_idea(results, idea)] == [*ways]
            for result in of_idea(results, idea).values():
                assert len(given(result.seconds).runs) == QUICK.runs


def test_ideas_without_a_switch_are_listed_with_reasons(results: list[Result]) -> None:
    listed = of_idea(results, "not measured")
    assert {idea: result.note for idea, result in listed.items()} == NOT_MEASURED


def test_gradients_are_compared_at_each_share_of_repeated_tokens(results: list[Result]) -> None:
    for share in ("0", "2", "10", "50"):
        found = of_idea(results, f"gradients of rows, {share} % of the tokens the same")
        assert {"grouped", "grouped, distinct rows alone"} < found.keys()
        assert found["atomic, one thread an element"].correct is True


def test_float_additions_are_measured_where_the_driver_has_them(
    results: list[Result], device: Device
) -> None:
    name = "float32 additions of the device"
    found = of_idea(results, "gradients of rows, 50 % of the tokens the same")[name]
    if ideas.FLOAT_ATOMICS in device.adapter.features:
        assert found.correct is True and found.seconds is not None
    else:
        assert ideas.FLOAT_ATOMICS in found.note


@pytest.mark.parametrize("way", [way for way, files in FILES.items() if files])
def test_replaced_files_change_the_kernels(way: str) -> None:
    scan = {"scan": "common/scan_subgroup.wgsl"}
    files = ["recount/08_merge_reduce.wgsl", "trie/03_tokenizer_chunked.wgsl", *FILES[way]]
    kernels = [file for file in files if file.startswith(("recount/", "trie/0"))]
    chosen = (scan, scan | FILES[way])
    texts = [[compose(file, choices).text for file in kernels] for choices in chosen]
    assert texts[0] != texts[1]


def test_a_wrong_answer_has_no_time(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"trie/05_tokenizer_compact.wgsl": "bench/compact_by_threads.wgsl"}
    one: dict[str, Any] = {"copy": {"nothing": {}, "wrong": wrong}}
    monkeypatch.setattr(ideas, "GREEDY_IDEAS", one)
    monkeypatch.setattr(ideas, "RECOUNT_IDEAS", {})
    monkeypatch.setattr(ideas, "_case_results", lambda *arguments: iter(()))

    def wrong_on_the_cpu(encoder: object, corpus: object) -> object:
        ids = encode_all(encoder, corpus)  # type: ignore[arg-type]
        return ids if isinstance(encoder, GpuGreedyEncoder) else ids[:-1]

    monkeypatch.setattr(ideas, "encode_all", wrong_on_the_cpu)
    found = of_idea(list(measure_ideas([engine_of(device)], QUICK, no_progress)), "copy")
    assert [(r.correct, r.seconds) for r in found.values()] == [(False, None)] * 2


def test_a_cpu_has_no_kernels() -> None:
    (result,) = measure_ideas([Engine(NUMPY, 0.0)], QUICK, no_progress)
    assert result.note == "has no kernels" and result.correct is None


def test_a_device_without_subgroups(
    portable_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ideas, "_case_results", lambda *arguments: iter(()))
    monkeypatch.setattr(ideas, "GREEDY_IDEAS", {})  # whose results are not looked at here
    found = list(measure_ideas([engine_of(portable_device)], QUICK, no_progress))
    (scan,) = of_idea(found, "scan of marks").values()
    assert scan.note == "no subgroups" and scan.seconds is None
    slots = of_idea(found, "counting in workgroup memory")
    assert {result.clock for result in slots.values()} == {"host"}
