"""Tables of the report. On a phone a row becomes a block of lines, each with its title."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgpu.bench.record import KERNELS, Result, ResultTable, answers_of, verdict_of
from llmgpu.bench.reports.measures import measures_of
from llmgpu.bench.reports.units import seconds_text, spread_text
from llmgpu.charts import escape_text

NOTHING = "-"


@dataclass(frozen=True)
class Column:
    """A column's title, the kind of its cells ("name", "number" or "") and the cells' text."""

    title: str
    kind: str
    cells: Sequence[str]


def draw_table(columns: Sequence[Column], wrong: Sequence[bool] | None = None) -> list[str]:
    """Return a table as lines of HTML; wrong: which rows are to stand out."""
    heads = "".join(
        f"<th{_class(column.kind)}>{escape_text(column.title)}</th>" for column in columns
    )
    lines = ["<table>", f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
    for k in range(len(columns[0].cells)):
        cells = "".join(_cell(column, k) for column in columns)
        lines.append(f"<tr{_class('wrong' if wrong and wrong[k] else '')}>{cells}</tr>")
    return [*lines, "</tbody>", "</table>"]


def result_table(table: ResultTable) -> list[str]:
    """Return results with times, measures and answers."""
    results = table.results
    timed = [result.get("seconds") for result in results]
    first = "kernel" if table.what == KERNELS else "engine"
    columns = [
        Column(first, "name", [table.row_name(result) for result in results]),
        Column("median", "number", [seconds_text(t["median"]) if t else NOTHING for t in timed]),
        Column("min-max", "number", [spread_text(t) if t else NOTHING for t in timed]),
        *(
            Column(measure.title, "number", [measure.text(result) for result in results])
            for measure in measures_of(results)
        ),
        Column("answer", "", [verdict_of(result) for result in results]),
    ]
    said = answers_of(results)
    below = [f'<p class="small">answers: {escape_text(said)}</p>'] if said else []
    return [*draw_table(columns, [is_wrong(result) for result in results]), *below]


def is_wrong(result: Result) -> bool:
    """Whether an answer was compared and is not right."""
    return result["correct"] is False


def _cell(column: Column, row: int) -> str:
    text = column.cells[row]
    kinds = " ".join(filter(None, [column.kind, "none" if text == NOTHING else ""]))
    return f'<td{_class(kinds)} data-title="{escape_text(column.title)}">{escape_text(text)}</td>'


def _class(kinds: str) -> str:
    return f' class="{kinds}"' if kinds else ""
