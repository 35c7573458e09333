"""The numbers of results as cells."""

from __future__ import annotations

from pathlib import Path

from llmgpu.bench.report import (
    MEASURES,
    SHARE_OF_FLOOR,
    SPEED_UP,
    TEXT_RATE,
    TOKEN_RATE,
    columns_of,
    headlines,
    lines_below,
)
from llmgpu.bench.results import Result, load_record, read_record
from tests.bench.test_compare import record, result

RECORDED = Path(__file__).parents[2] / "docs" / "recorded"


def test_measures_of_a_result() -> None:
    rates = {"mb_per_second": 12.3, "tokens_per_second": 4567, "share_of_floor": 0.5}
    result = Result("tokenize", "NumPy", job="a job", **rates)  # type: ignore[arg-type]
    assert TEXT_RATE.text(result) == "12.3 MB/s"
    assert (TOKEN_RATE.text(result), TOKEN_RATE.full_text(result)) == ("4.57 K", "4.57 K tokens/s")
    assert SHARE_OF_FLOOR.text(result) == "50 %"
    assert SPEED_UP.text(result) == "-"
    assert len({measure.key for measure in MEASURES}) == len(MEASURES)


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
        "tokenize": "other, the fastest other program, is 2 times as fast as NumPy "
        "(1 run, 1.5-1.5 s against 1 run, 3-3 s)"
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
    assert dict(lines_below(table))["median of"] == "1 to 3 runs"
    narrow = dict(lines_below(table, narrow=True))
    assert narrow["median of"] == "1 to 3 runs; ±%: half of their range"
    (spread,) = (c for c in columns_of(table, narrow=True) if c.title == "±%")
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


def test_a_terminal_shows_the_bandwidth_of_lookups() -> None:
    rates = {"bytes_per_second": 2e12, "output_bytes_per_second": 1.2e12}
    row = result("embedding", "GPU", 1.0) | {"variant": "lookup: by rows"} | rates
    (table,) = read_record(record(row)).tables()
    shown = {column.title: column.cells for column in columns_of(table, narrow=True)}
    assert shown["memory"] == ["2 TB/s"] and shown["out B/s"] == ["1.2 T"]


def test_tables_of_records_fit_a_terminal() -> None:
    for path in sorted(RECORDED.glob("*.json")):
        for table in load_record(str(path)).tables():
            columns = columns_of(table, narrow=True)
            numbers = [column for column in columns if column.kind == "number"]
            widths = [max(map(len, (column.title, *column.cells))) for column in numbers]
            names_and_answers = 16 + 6  # these are broken into lines
            assert names_and_answers + sum(widths) + 2 * len(columns) <= 80, table.title
