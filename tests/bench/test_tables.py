"""The numbers of results as cells."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from llmgpu.bench.report import columns_of, facts_of, headlines, lines_below
from llmgpu.bench.results import ResultTable, load_record, read_record
from llmgpu.cli.bench import print_table
from tests.bench.test_compare import record, result

RECORDED = Path(__file__).parents[2] / "docs" / "recorded"


def shown(plain: dict[str, Any]) -> dict[str, Sequence[str]]:
    """Return the cells of a record with one table, by the titles of their columns."""
    (table,) = read_record(plain).tables()
    return {column.title: column.cells for column in columns_of(table)}


def test_measures_of_a_result() -> None:
    rates = {"mb_per_second": 12.3, "tokens_per_second": 4567, "share_of_floor": 0.5}
    cells = shown(record(result("tokenize", **rates), result(speed_up=2, what="tokenize")))
    assert cells["text"] == ["12.3 MB/s", "-"]
    assert cells["tokens/s"] == ["4.57 K", "-"]
    assert cells["of limit"] == ["50 %", "-"]
    assert cells["vs NumPy"] == ["-", "2x"]
    assert cells["min-max"] == ["1-1 s", "1-1 s"]
    assert "memory" not in cells


def test_bars_are_as_long_as_numbers() -> None:
    rates = ({"mb_per_second": 25, "share_of_floor": 0.5}, {"mb_per_second": 100.0}, {})
    (table,) = read_record(record(*(result(**rate) for rate in rates))).tables()
    bars = {column.title: column.bars for column in columns_of(table)}
    assert bars["text"] == [0.25, 1.0, None]
    assert bars["of limit"] == [0.5, None, None]  # of the whole limit


def test_headlines_compare_with_the_fastest_other_program() -> None:
    rows = [
        result("tokenize", "NumPy", 4.0, job="small"),
        result("tokenize", "peer", 1.0, job="small", peer=True),
        result("tokenize", "NumPy", 4.0, job="large"),
        result("tokenize", "a GPU", 1.0, job="large"),
        result("tokenize", "a GPU", 0.1, job="large", variant="greedy"),
        result("tokenize", "wrong", 0.1, job="large", peer=True, correct=False),
        result("tokenize", "slow", 9.0, job="large", peer=True),
        result("tokenize", "fast", 2.5, job="large", peer=True),
        result("train", "NumPy", 3.0),
        result("train", "a GPU", 2.0),
        result("bpe-train", "NumPy", 3.0),
        result("kernels", "NumPy", 3.0),
        result("kernels", "fast", 1.0, peer=True),
    ]
    assert dict(headlines(read_record(record(*rows)))) == {
        "tokenize": "a GPU is 2.5 times as fast as fast, the fastest other program "
        "(1 run, 1-1 s against 1 run, 2.5-2.5 s)",
        "train": "a GPU is 1.5 times as fast as NumPy (1 run, 2-2 s against 1 run, 3-3 s)",
    }


def test_a_headline_tells_what_is_faster() -> None:
    rows = [result("tokenize", "NumPy", 3.0), result("tokenize", "other", 1.5, peer=True)]
    assert dict(headlines(read_record(record(*rows)))) == {
        "tokenize": "NumPy is 0.5 times as fast as other, the fastest other program "
        "(1 run, 3-3 s against 1 run, 1.5-1.5 s)"
    }


def test_runs_and_their_spread_stand_beside_ratios() -> None:
    times = {"median": 2.0, "min": 1.5, "max": 2.5, "runs": [2.5, 2.0, 1.5]}
    rows = [result("train", "NumPy", 4.0), result("train", "a GPU") | {"seconds": times}]
    measured = read_record(record(*rows))
    ratio = "a GPU is 2 times as fast as NumPy"
    assert dict(headlines(measured))["train"] == (
        f"{ratio} (3 runs, 1.5-2.5 s against 1 run, 4-4 s)"
    )
    (table,) = measured.tables()
    assert dict(lines_below(table))["median of"] == "1 to 3 runs; ±%: half of their range"
    (spread,) = (c for c in columns_of(table) if c.title == "±%")
    assert spread.cells == ["0", "25"]
    old = record(result() | {"seconds": {"median": 2.0, "min": 1.5, "max": 2.5}})
    assert "median of" not in dict(lines_below(read_record(old).tables()[0]))


def test_a_quick_run_has_no_ratio_in_its_headline() -> None:
    rows = [result("tokenize", "NumPy", 3.0), result("tokenize", "other", 1.5, peer=True)]
    quick = read_record(record(*rows) | {"smoke": "2 runs of 1 MB"})
    line = "2 runs of 1 MB; the times are too few for a comparison"
    assert dict(headlines(quick)) == {"smoke test": line}
    alone = read_record(record(rows[0]) | {"smoke": "2 runs of 1 MB"})
    assert dict(headlines(alone)) == {"smoke test": line}


def test_times_of_phases_and_kernels_are_below_the_table() -> None:
    kernels = {"seconds": {"one": 1.0, "two": 2.0}, "total": 3.0}
    phase = {"median": 0.5, "min": 0.5, "max": 0.5}
    first = result(kernels=kernels | {"merges": 256}, phases={"read": phase})
    second = result(engine="a GPU", kernels=kernels | {"mb_per_second": 12.3}, start_up={"a": 2})
    third = result(variant="other", kernels={"seconds": {"one": 1.0}, "total": 1.0})
    (table,) = read_record(record(first, second, third)).tables()
    assert [*lines_below(table)][2:] == [
        ("NumPy, phases", "read 500 ms"),
        ("NumPy, kernels, 3 s for the first 256 merges", "one 1 s, two 2 s"),
        ("a GPU, start-up", "a 2 s"),
        ("a GPU, kernels, 3 s, 12 MB/s", "one 1 s, two 2 s"),
    ]


def test_facts_have_warnings_limits_and_missing_programs() -> None:
    limits = {"bytes_per_second": 2e9, "operations_per_second": 8e9}
    limits["matrix_operations_per_second"] = 1e12
    plain = record(result(correct=False), complete=False, limits={"NumPy": limits})
    facts = dict(facts_of(read_record(plain | {"missing_peers": {"torch": "not installed"}})))
    assert facts["limits"] == (
        "NumPy: 2 GB/s copying, 8 GFLOP/s in float32, 1 TFLOP/s on matrix units, measured"
    )
    assert facts["not compared with"] == "torch: not installed"
    assert facts["interrupted"] and facts["wrong"]
    assert not {"interrupted", "wrong"} & dict(facts_of(read_record(record(result())))).keys()


def test_a_terminal_shows_the_bandwidth_of_lookups() -> None:
    rates = {"bytes_per_second": 2e12, "output_bytes_per_second": 1.2e12}
    cells = shown(record(result("embedding", "GPU", variant="lookup: by rows", **rates)))
    assert cells["memory"] == ["2 TB/s"] and cells["out B/s"] == ["1.2 T"]


def printed(table: ResultTable, width: int) -> list[str]:
    file = io.StringIO()
    print_table(Console(file=file, width=width), "", columns_of(table))
    return file.getvalue().splitlines()


def test_tables_of_records_fit_a_terminal() -> None:
    """80 characters have room for the medians and for the main rates of each part."""
    kept = {
        "embedding": ("memory", "out B/s", "vs NumPy", "vs torch"),
        "kernels": ("memory", "FLOP/s", "of limit", "vs NumPy"),
        "train": ("tokens/s", "of limit", "vs NumPy", "vs torch"),
        "generate": ("tokens/s", "of limit", "vs NumPy"),
        "bpe-train": ("text", "merges/s", "min-max"),
        "tokenize": ("text", "vs peers", "min-max"),
    }
    for path in sorted(RECORDED.glob("*.json")):
        for table in load_record(str(path)).tables():
            lines = printed(table, 80)
            assert max(map(len, lines)) <= 80, table.title
            (heads,) = (line for line in lines if " median " in line)
            titles = {column.title for column in columns_of(table)}
            for title in ("±%", *kept.get(table.what, ())):
                assert title in heads or title not in titles, (table.title, title)
            (wide,) = (line for line in printed(table, 250) if " median " in line)
            assert all(title in wide for title in titles)


def test_cells_of_a_terminal_are_whole() -> None:
    """Nothing is cut, also if a program with a long note lacks times."""
    names = {"llmgpu in C": False, "tokenizers 0.23.3": True, "tiktoken 0.14.0": True}
    rows = [result("tokenize", name, peer=peer) for name, peer in names.items()]
    missing = result("tokenize", "gigatoken", peer=True, correct=None)
    missing |= {"seconds": None, "note": "not installed: pip install gigatoken awkward"}
    tables = read_record(record(*rows, missing)).tables()
    for path in sorted(RECORDED.glob("*.json")):
        tables += load_record(str(path)).tables()
    for table in tables:
        lines = printed(table, 80)
        text = "\n".join(lines)
        assert "…" not in text, table.title
        (heads,) = (line.split("  ") for line in lines if " median " in line)
        shown = {head.strip() for head in heads}
        for column in columns_of(table):
            if column.kind == "number" and column.title in shown:
                texts = (column.title, *column.cells)
                assert all(f" {cell} " in text for cell in texts), (table.title, column.title)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"limits": 3}, "limits is not an object"),
        ({"results": {}}, "results is not a list"),
        ({"complete": 1}, "complete is not of type bool"),
    ],
)
def test_a_damaged_record_is_described_in_words_of_json(
    damage: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_record(record() | damage)
