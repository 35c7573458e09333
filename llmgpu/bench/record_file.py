"""Reading a record from a file, which may be any file: what is read has the shape of a record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from llmgpu.bench.record import FORMAT, VERSION
from llmgpu.errors import InputError


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
