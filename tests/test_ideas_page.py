"""The page on ideas: tables, picture and numbers are those of the records."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "ideas.md", ROOT / "docs" / "ideas.svg"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_ideas", ROOT / "scripts" / "draw_ideas.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_page_and_picture_are_those_of_the_records(script: ModuleType) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert script.written(page) == (page, PICTURE.read_text(encoding="utf-8"))


def test_answers_were_equal(script: ModuleType) -> None:
    for records in script.load().values():
        for results in records:
            timed = [result for result in results if "seconds" in result]
            assert timed and all(result["correct"] is True for result in timed)


def test_ratios_in_the_text_are_in_the_table(script: ModuleType) -> None:
    calls = script.load()
    shown = set(re.findall(r"\d+\.\d\d", "\n".join(script.table(script.compare(calls), [*calls]))))
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    prose = " ".join(line for line in lines if not line.startswith("|"))
    said = re.findall(r"\d+\.\d\d(?! ms)", prose)
    assert said and set(said) <= shown


def test_saved_milliseconds_of_casts(script: ModuleType) -> None:
    (fused, apart) = (
        result["seconds"]["median"]
        for result in next(iter(script.load().values()))[0]
        if result["variant"].startswith("half-precision copies")
    )
    steps = json.loads((ROOT / "docs/recorded/precision/nvidia-h200.json").read_text("utf-8"))[
        "steps"
    ]
    step = next(s["milliseconds"]["median"] for s in steps if s["engine"] == "llmgpu, f16")
    saved, page = 1e3 * (apart - fused), " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"The {saved:.2f} ms that they save are {100 * saved / step:.1f} % of a step" in page
    assert f"takes {step} ms on an H200" in page


def result(way: str, runs: list[float], kernel: float) -> dict[str, Any]:
    median = sorted(runs)[len(runs) // 2]
    found: dict[str, Any] = {"engine": "NVIDIA X 1 GB", "variant": f"sums of chunks: {way}"}
    found["seconds"] = {"median": median, "runs": runs}
    return found | {"kernels": {"seconds": {"trie_prefix_sum": kernel, "other": 1.0}}}


@pytest.mark.parametrize(
    ("second", "cells"),
    [
        ([3.0, 4.0], "| 1,000,000 µs | 2.00 2.00 (job 2.00 2.00) |"),
        ([1.0, 4.0], "| 1,000,000 µs | 2.00 2.00, noise (job 2.00 2.00) |"),
    ],
)
def test_overlapping_runs_of_one_call_are_noise(
    script: ModuleType, tmp_path: Path, second: list[float], cells: str
) -> None:
    for call, runs in ((1, [3.0, 4.0]), (2, second)):
        rows = [result("a workgroup", [1.5, 2.0], 1.0), result("one thread", runs, 2.0)]
        (tmp_path / f"x-{call}.json").write_text(json.dumps({"results": rows}))
    calls = script.load(tmp_path)
    assert [*calls] == ["NVIDIA X"]
    (line,) = script.table(script.compare(calls), ["NVIDIA X"])[2:]
    assert line == f"| sums of chunks | a workgroup | one thread {cells}"
