"""A record of measurements: reading one from a file, and what its results are results of.

Version 1 has texts only (`text_bytes`, `vocab_size` and `pattern` say the job); results of
version 2 may have a `job`, a line for people that says the sizes, and a `variant`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgpu.bench.units import quantity
from llmgpu.errors import InputError

FORMAT = "llmgpu-bench"
VERSION = 2
EMBEDDING = "embedding"
KERNELS = "kernels"

Result = Mapping[str, Any]
Record = Mapping[str, Any]


class _Number:
    """Stands for a finite number in what follows."""


class _Positive:
    """Stands for a finite number that others can be divided by."""


# Types of values; of a dict, a key with "?" may be missing, and "*" stands for all other keys.
_TIMES = {"median": _Number, "min": _Number, "max": _Number}
_RUNS = {"median": _Positive, "min": _Positive, "max": _Positive}
_KERNELS = {
    "seconds": {"*": _Number},
    "total": _Number,
    "merges?": _Number,
    "mb_per_second?": (_Number, None),
}
_TEXTS = ("job?", "pattern?", "variant?", "answer?", "note?", "clock?")
_NUMBERS = (
    "text_bytes?",
    "vocab_size?",
    "tokens?",
    "merges?",
    "bytes?",
    "operations?",
    "mb_per_second?",
    "merges_per_second?",
    "tokens_per_second?",
    "bytes_per_second?",
    "output_bytes_per_second?",
    "operations_per_second?",
    "share_of_copy?",
    "share_of_floor?",
    "speed_up?",
    "speed_up_over_torch?",
)
_RESULT = {
    "what": str,
    "engine": str,
    "correct": (bool, None),
    "peer?": bool,
    "seconds?": _RUNS,
    "start_up?": {"*": _Number},
    "phases?": {"*": _TIMES},
    "kernels?": (_KERNELS, None),
    **dict.fromkeys(_TEXTS, (str, None)),
    **dict.fromkeys(_NUMBERS, (_Number, None)),
}
_MACHINE = {
    "platform": str,
    "cpu": str,
    "cpus": _Number,
    "adapters": [{"name": str, "kind": str, "driver": str}],
    "python": str,
    "llmgpu": str,
    "commit?": (str, None),
    "numpy?": (str, None),
    "wgpu?": (str, None),
}
_RECORD = {
    "complete": bool,
    "results": [_RESULT],
    "machine": _MACHINE,
    "not_opened": {"*": str},
    "measured?": str,
    "text?": {"source": str, "bytes": _Number, "sha256": str},
    "vocabulary?": {"source": str, "fingerprint": str},
    "missing_peers?": {"*": str},
    "limits?": {"*": {"bytes_per_second": _Positive, "operations_per_second": _Positive}},
}


def load_record(path: str) -> dict[str, Any]:
    """Read a record that ``llmgpu bench -o`` has written.

    Raises InputError if the file can't be read, is not such a record, is of a newer version, or
    is damaged.
    """
    try:
        record = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a record of llmgpu bench: it is not JSON") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{path} is not a record of llmgpu bench: make one with -o FILE")
    if record.get("version") not in range(1, VERSION + 1):
        raise InputError(
            f"{path} is a record of version {record.get('version')!r}; this llmgpu reads 1 to "
            f"{VERSION}"
        )
    fault = _fault(record, _RECORD, "") or _job_fault(record["results"])
    if fault is not None:
        raise InputError(f"{path} is damaged: {fault}")
    return record


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


def _fault(value: Any, shape: Any, place: str) -> str | None:
    """Return what is wrong with a value, None if it has the shape."""
    if isinstance(shape, tuple):
        return _fault_of_alternatives(value, shape, place)
    if isinstance(shape, dict):
        return _fault_of_dict(value, shape, place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} is not a list"
        faults = (_fault(item, shape[0], f"{place}[{k}]") for k, item in enumerate(value))
        return next(filter(None, faults), None)
    if shape is _Number:
        return None if _is_number(value) else f"{place} is not a number"
    if shape is _Positive:
        return None if _is_number(value) and value > 0 else f"{place} is no number above 0"
    return None if isinstance(value, shape) else f"{place} is not of type {shape.__name__}"


def _fault_of_alternatives(value: Any, shapes: tuple[Any, ...], place: str) -> str | None:
    """Take a shape or None."""
    shape, _ = shapes
    return None if value is None else _fault(value, shape, place)


def _fault_of_dict(value: Any, shape: dict[str, Any], place: str) -> str | None:
    if not isinstance(value, dict):
        return f"{place} is not an object"
    if "*" in shape:
        shape = dict.fromkeys(value, shape["*"])
    for key, of_key in shape.items():
        name = key.removesuffix("?")
        if name in value:
            fault = _fault(value[name], of_key, f"{place}.{name}".lstrip("."))
            if fault is not None:
                return fault
        elif not key.endswith("?"):
            return f"{f'{place}.{name}'.lstrip('.')} is missing"
    return None


def _is_number(value: Any) -> bool:
    # Not all integers of JSON are numbers that can be calculated with.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < 1e30 and math.isfinite(value)


def _job_fault(results: list[dict[str, Any]]) -> str | None:
    for k, result in enumerate(results):
        sizes = (result.get("text_bytes"), result.get("vocab_size"))
        if result.get("job") is None and None in sizes:
            return f"results[{k}].job is missing"
    return None
