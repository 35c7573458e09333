"""What got faster or slower between two records: medians of what both measured alike.

Times are compared only on the same machine, and of the same job: a part, its sizes, the engine and
the variant. What only one record has is said, with the reason. Other programs are compared too,
since they show whether the machine was as fast as before, but only llmgpu's times decide whether
something `is_slower`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from llmgpu.bench.results import TOKENIZE, Record, Result

DEFAULT_THRESHOLD = 0.1
_VERSIONS = ("llmgpu", "commit", "python", "numpy", "wgpu")
_MACHINE = {"platform": "platform", "cpu": "CPU", "cpus": "number of CPUs"}
_Key = tuple[str, str, str, str]  # part, sizes, engine, variant


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
        """Slowdown relative to the old time: 0.25 for a quarter, negative if faster."""
        return self.new / self.old - 1


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two records.

    changes: in the order of the new record. not_compared: lines, each with its reason. notes:
    lines on what differs although times are compared. threshold: part of the old time by which a
    time may grow.
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
        """The changes that are slower, the largest first."""
        return sorted(filter(self.is_slower, self.changes), key=lambda change: -change.relative)


def compare_records(old: Record, new: Record, threshold: float = DEFAULT_THRESHOLD) -> Comparison:
    """Compare two records as `load_record` returns them."""
    differences = [
        f"another machine: its {_MACHINE[name]} was {before}, here it is {now}"
        for name, before, now in _differences(old, new, _MACHINE)
    ]
    if differences:
        return Comparison([], differences, [], threshold)
    changes: list[Change] = []
    old_results, new_results = _by_key(old), _by_key(new)
    before, now = (dict.fromkeys(key[0] for key in each) for each in (old_results, new_results))
    both = before.keys() & now.keys()
    not_compared = [f"{what}: only the new record has it" for what in now if what not in before]
    not_compared += [f"{what}: only the old record has it" for what in before if what not in now]
    for key, result in new_results.items():
        if key[0] not in both:
            continue
        reason = _why_not(key, result, old, new, old_results)
        if reason is not None:
            not_compared.append(f"{result.what}: {result.name}, {result.sizes}: {reason}")
        elif result.seconds is not None:
            names = (result.what, result.sizes, result.name)
            times = (old_results[key].median, result.median)
            changes.append(Change(*names, new.is_peer(result), *times))
    for key, result in old_results.items():
        is_lost = key[0] in both and key not in new_results and result.seconds is not None
        if is_lost and _other_sizes(key, new_results) is None:
            line = f"{result.what}: {result.name}, {result.sizes}"
            not_compared.append(f"{line}: only the old record has it")
    return Comparison(changes, not_compared, list(_notes(old, new)), threshold)


def _by_key(record: Record) -> dict[_Key, Result]:
    results: dict[_Key, Result] = {}
    for result in record.results:
        results.setdefault((result.what, result.sizes, result.engine, result.variant), result)
    return results


def _why_not(
    key: _Key, result: Result, old: Record, new: Record, old_results: dict[_Key, Result]
) -> str | None:
    """Return why a new result is not compared, None if it is (or has nothing to compare)."""
    before = old_results.get(key)
    if before is None:
        sizes = _other_sizes(key, old_results)
        if sizes is not None:
            return f"the sizes differ: they were {sizes}"
        return "only the new record has it" if result.seconds is not None else None
    if result.seconds is not None and before.seconds is None:
        return "the old record has no time for it"
    if before.seconds is not None and result.seconds is None:
        return f"no time now: {result.note or result.answer or 'unknown why'}"
    digests = {record.text and record.text.sha256 for record in (old, new)}
    if result.text_bytes is not None and len(digests) > 1:
        return "the text differs"
    if result.what == TOKENIZE and old.vocabulary != new.vocabulary:
        return "the vocabulary differs"
    return None


def _other_sizes(key: _Key, results: dict[_Key, Result]) -> str | None:
    """Return the sizes of a result that differs in nothing else."""
    what, _, engine, variant = key
    same = (k[1] for k in results if (k[0], k[2], k[3]) == (what, engine, variant))
    return next(same, None)


def _differences(old: Record, new: Record, names: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the facts on machines that differ, before and now."""
    for name in names:
        before, now = (getattr(record.machine, name) for record in (old, new))
        if before != now:
            yield name, before, now


def _notes(old: Record, new: Record) -> Iterator[str]:
    """Yield what may be the cause of changes."""
    for name, before, now in _differences(old, new, _VERSIONS):
        yield f"{name}: {before} then, {now} now"
    drivers = {adapter.name: adapter.driver for adapter in old.machine.adapters}
    for adapter in new.machine.adapters:
        driver = drivers.get(adapter.name, adapter.driver)
        if driver != adapter.driver:
            yield f"driver of {adapter.name}: {driver} then, {adapter.driver} now"
    for record, when in ((old, "old"), (new, "new")):
        if not record.complete:
            yield f"the {when} record was interrupted, so it doesn't have everything"
