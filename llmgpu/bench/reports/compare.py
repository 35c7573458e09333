"""What got faster or slower between two records: medians of what both measured alike.

Times are compared only on the same machine, and of the same job: a part, its sizes, the engine and
the variant. What one record has alone is said, with the reason. Other programs are compared too,
since they show whether the machine was as fast as before, but only llmgpu's own times decide
whether something `is_slower`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmgpu.bench.record import Record, Result, is_peer, job_of, name_of

DEFAULT_THRESHOLD = 0.1
_VERSIONS = ("llmgpu", "commit", "python", "numpy", "wgpu")
_Key = tuple[str, str, str, str | None]  # part, job, engine, variant


@dataclass(frozen=True)
class Change:
    """Two medians of the same: seconds, before and now."""

    what: str
    job: str
    name: str
    is_peer: bool
    old: float
    new: float

    @property
    def relative(self) -> float:
        """By which part of the old time it is slower: 0.25 for a quarter, negative if faster."""
        return self.new / self.old - 1


@dataclass(frozen=True)
class Comparison:
    """What comparing two records gave.

    changes: in the order of the new record. not_compared: lines, each with its reason. notes:
    lines on what differs but is compared all the same. threshold: part of the old time by which
    a time may grow.
    """

    changes: list[Change]
    not_compared: list[str]
    notes: list[str]
    threshold: float

    def is_slower(self, change: Change) -> bool:
        """Whether a time of llmgpu's grew by more than the threshold."""
        return not change.is_peer and change.relative > self.threshold

    @property
    def slower(self) -> list[Change]:
        """The changes that are slower, most of all first."""
        return sorted(filter(self.is_slower, self.changes), key=lambda change: -change.relative)


def compare_records(old: Record, new: Record, threshold: float = DEFAULT_THRESHOLD) -> Comparison:
    """Compare two records as `load_record` returns them."""
    differences = _machine_differences(old["machine"], new["machine"])
    if differences:
        return Comparison([], [f"another machine: {line}" for line in differences], [], threshold)
    changes: list[Change] = []
    not_compared: list[str] = []
    old_results, new_results = _by_key(old), _by_key(new)
    not_compared += _parts_of_one(old, new)
    both = {key[0] for key in old_results} & {key[0] for key in new_results}
    for key, result in new_results.items():
        if key[0] not in both:
            continue
        reason = _why_not(key, result, old, new, old_results)
        if reason is not None:
            not_compared.append(f"{_line(result)}: {reason}")
        elif "seconds" in result and "seconds" in old_results[key]:
            changes.append(_change(old_results[key], result, new))
    for key, result in old_results.items():
        is_lost = key[0] in both and key not in new_results and "seconds" in result
        if is_lost and not _other_sizes(key, new_results):
            not_compared.append(f"{_line(result)}: only the old record has it")
    return Comparison(changes, not_compared, list(_notes(old, new)), threshold)


def _by_key(record: Record) -> dict[_Key, Result]:
    results: dict[_Key, Result] = {}
    for result in record["results"]:
        key = (result["what"], job_of(result), result["engine"], result.get("variant"))
        results.setdefault(key, result)
    return results


def _parts_of_one(old: Record, new: Record) -> Iterator[str]:
    """Yield a line for each part that one of the records doesn't have."""
    before, now = ({result["what"]: 0 for result in record["results"]} for record in (old, new))
    for what in now:
        if what not in before:
            yield f"{what}: only the new record has it"
    for what in before:
        if what not in now:
            yield f"{what}: only the old record has it"


def _change(old: Result, new: Result, record: Record) -> Change:
    return Change(
        new["what"],
        job_of(new),
        name_of(new),
        is_peer(new, record),
        old["seconds"]["median"],
        new["seconds"]["median"],
    )


def _why_not(
    key: _Key, result: Result, old: Record, new: Record, old_results: dict[_Key, Result]
) -> str | None:
    """Return why a new result is not compared, None if it is (or has nothing to compare)."""
    if key not in old_results:
        other = _other_sizes(key, old_results)
        if other is not None:
            return f"the sizes differ, they were {job_of(other)}"
        return "only the new record has it" if "seconds" in result else None
    if "seconds" in result and "seconds" not in old_results[key]:
        return "the old record has no time of it"
    if "seconds" in old_results[key] and "seconds" not in result:
        return f"no time of it now: {result.get('note') or result.get('answer') or 'unknown why'}"
    if "text_bytes" in result and _digest(old) != _digest(new):
        return "the text differs"
    if result["what"] == "tokenize" and old.get("vocabulary") != new.get("vocabulary"):
        return "the vocabulary differs"
    return None


def _other_sizes(key: _Key, results: dict[_Key, Result]) -> Result | None:
    """Return a result that differs in the sizes of its job only."""
    what, _, engine, variant = key
    same = ((k[0], k[2], k[3]) == (what, engine, variant) for k in results)
    found = [result for result, is_same in zip(results.values(), same, strict=True) if is_same]
    return found[0] if found else None


def _line(result: Result) -> str:
    return f"{result['what']}: {name_of(result)}, {job_of(result)}"


def _digest(record: Record) -> Any:
    text = record.get("text")
    return None if text is None else text["sha256"]


def _machine_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    names = {"platform": "platform", "cpu": "CPU", "cpus": "number of CPUs"}
    return [
        f"its {name} was {old[key]}, here it is {new[key]}"
        for key, name in names.items()
        if old[key] != new[key]
    ]


def _notes(old: Record, new: Record) -> Iterator[str]:
    """Yield what may be the cause of changes."""
    before, now = old["machine"], new["machine"]
    for name in _VERSIONS:
        if before.get(name) != now.get(name):
            yield f"{name}: {before.get(name)} then, {now.get(name)} now"
    drivers = {adapter["name"]: adapter["driver"] for adapter in before["adapters"]}
    for adapter in now["adapters"]:
        driver = drivers.get(adapter["name"], adapter["driver"])
        if driver != adapter["driver"]:
            yield f"driver of {adapter['name']}: {driver} then, {adapter['driver']} now"
    for record, when in ((old, "old"), (new, "new")):
        if not record["complete"]:
            yield f"the {when} record was interrupted, so it doesn't have everything"
