"""What the results of a record are results of, and which of them stand together in tables.

Version 1 has texts only (`text_bytes`, `vocab_size` and `pattern` say the job); results of
version 2 may have a `job`, a line for people that says the sizes, and a `variant`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmgpu.bench.reports.units import quantity

FORMAT = "llmgpu-bench"
VERSION = 2
EMBEDDING = "embedding"
KERNELS = "kernels"

Result = Mapping[str, Any]
Record = Mapping[str, Any]


def job_of(result: Result) -> str:
    """Return a line for people that says what was to be done."""
    job = result.get("job")
    if job is not None:
        return str(job)
    line = f"{quantity(result['text_bytes'], 'B')} of text, {result['vocab_size']:,} ids"
    pattern = result.get("pattern")  # early records don't name it
    return line if pattern is None else f"{line}, pattern {pattern}"


@dataclass(frozen=True)
class ResultTable:
    """Results that stand together: of one job, or all kernels of one engine.

    Ways to embed are told apart by what they do, which their names begin with.

    what: the part. title: the job, or the engine. results: in the order of measuring.
    """

    what: str
    title: str
    results: list[Result]

    def row_name(self, result: Result) -> str:
        """Return what tells a result apart from the others, for people."""
        if self.what == KERNELS:
            return f"{result.get('variant') or 'kernel'}: {job_of(result)}"
        way = self.way(result)
        return f"{result['engine']}, {way}" if way else str(result["engine"])

    def way(self, result: Result) -> str:
        """Return how the engine did it, as far as the title doesn't say that."""
        return _kind_and_way(result)[1]


def tables_of(record: Record) -> list[ResultTable]:
    """Return all results as tables, in the order in which they were measured."""
    tables: dict[tuple[str, str], ResultTable] = {}
    for result in record["results"]:
        what, kind = str(result["what"]), _kind_and_way(result)[0]
        title = str(result["engine"]) if what == KERNELS else job_of(result)
        title = f"{title}: {kind}" if kind else title
        tables.setdefault((what, title), ResultTable(what, title, [])).results.append(result)
    return list(tables.values())


def answers_of(results: Sequence[Result]) -> str:
    """Return what answers were compared with, and the notes on them: each once."""
    compared = [result for result in results if result["correct"] is not None]
    said = [result.get(key) for key in ("answer", "note") for result in compared]
    return "; ".join(dict.fromkeys(str(text) for text in said if text))


def answer_of(result: Result) -> str:
    """Return what an answer was compared with, else why there is none."""
    return str(result.get("answer") or result.get("note") or "-")


def verdict_of(result: Result) -> str:
    """Return whether an answer is right in a word, else why there is none."""
    if result["correct"] is None:
        return answer_of(result)
    return "right" if result["correct"] else "WRONG"


def _kind_and_way(result: Result) -> tuple[str, str]:
    variant = str(result.get("variant") or "")
    if result["what"] != EMBEDDING:
        return "", variant
    kind, _, way = variant.partition(": ")
    return kind, way


def is_peer(result: Result, record: Record) -> bool:
    """Whether a result is another program's."""
    own = {"NumPy", *(adapter["name"] for adapter in record["machine"]["adapters"])}
    name = str(result["engine"])
    return bool(result.get("peer")) or name.removeprefix("recount on ") not in own


def name_of(result: Result) -> str:
    """Return the engine's name with that of the variant, if there is one."""
    variant = result.get("variant")
    return f"{result['engine']}, {variant}" if variant else str(result["engine"])
