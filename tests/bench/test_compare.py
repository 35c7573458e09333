"""Comparing records: what is compared, what is said not to be, and the command's exit code."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llmgpu.bench import DEFAULT_THRESHOLD
from llmgpu.bench.report import Comparison, compare_records
from llmgpu.bench.results import load_record, read_record
from llmgpu.cli import COMMANDS
from llmgpu.errors import InputError

MACHINE = {
    "platform": "Linux x86_64",
    "cpu": "a processor",
    "cpus": 2,
    "adapters": [{"name": "a GPU", "kind": "GPU", "driver": "driver 1"}],
    "python": "3.13.0",
    "llmgpu": "1.0",
    "commit": None,
    "numpy": "2.0",
    "wgpu": "0.32",
}


def result(what: str = "train", engine: str = "NumPy", median: float = 1.0, **more: Any) -> Any:
    times = {"median": median, "min": median, "max": median, "runs": [median]}
    begun = {"what": what, "engine": engine, "job": "a job", "correct": True, "answer": "same"}
    return begun | {"seconds": times} | more


def record(*results: Any, **more: Any) -> dict[str, Any]:
    begun = {"format": "llmgpu-bench", "version": 2, "complete": True, "not_opened": {}}
    return copy.deepcopy(begun | {"machine": MACHINE, "results": list(results)} | more)


def compare(old: Any, new: Any, threshold: float = DEFAULT_THRESHOLD) -> Comparison:
    return compare_records(read_record(old), read_record(new), threshold)


def test_slower_faster_and_the_same() -> None:
    old = record(*(result(variant=name) for name in "abcd"))
    medians = {"a": 1.2, "b": 0.5, "c": 1.1, "d": 1.0}
    new = record(*(result(variant=name, median=seconds) for name, seconds in medians.items()))
    comparison = compare(old, new, 0.15)
    assert [change.relative for change in comparison.changes] == pytest.approx([0.2, -0.5, 0.1, 0])
    assert [change.new.name for change in comparison.slower] == ["NumPy, a"]
    assert len(compare(old, new, 0.05).slower) == 2
    assert not compare(old, new, 0.25).slower
    assert not comparison.not_compared
    assert not comparison.notes


def test_the_slowest_comes_first() -> None:
    old = record(*(result(variant=name) for name in "abc"))
    new = record(*(result(variant=name, median=1.5 + k) for k, name in enumerate("abc")))
    assert [c.new.name for c in compare(old, new).slower] == [f"NumPy, {k}" for k in "cba"]


def test_peers_are_shown_and_do_not_count() -> None:
    comparison = compare(record(result(peer=True)), record(result(median=3.0, peer=True)))
    (change,) = comparison.changes
    assert change.new.peer
    assert not comparison.slower


@pytest.mark.parametrize("engine", ["a GPU", "recount on a GPU", "NumPy"])
def test_own_engines_count(engine: str) -> None:
    old, new = record(result(engine=engine)), record(result(engine=engine, median=2.0))
    assert len(compare(old, new).slower) == 1


@pytest.mark.parametrize("change", [{"cpu": "another"}, {"cpus": 3}, {"platform": "x"}], ids=str)
def test_other_machines_are_not_compared(change: dict[str, Any]) -> None:
    new = record(result(median=9.0), machine=MACHINE | change)
    comparison = compare(record(result()), new)
    assert not comparison.changes
    (line,) = comparison.not_compared
    assert line.startswith("another machine: its ")
    assert str(next(iter(change.values()))) in line


def only_line(comparison: Comparison) -> str:
    assert not comparison.changes
    (line,) = comparison.not_compared
    return line


def test_other_sizes_are_not_compared() -> None:
    comparison = compare(record(result()), record(result(job="a larger job", median=9.0)))
    assert only_line(comparison) == (
        "train: NumPy, a larger job: the sizes differ: they were a job"
    )


def test_what_one_record_has_alone_is_said() -> None:
    parts = compare(record(result("train")), record(result("kernels")))
    assert parts.not_compared == [
        "kernels: only the new record has it",
        "train: only the old record has it",
    ]
    more = result(variant="more")
    one, both = record(result()), record(result(), more)
    added, lost = compare(one, both), compare(both, one)
    assert added.not_compared == ["train: NumPy, more, a job: only the new record has it"]
    assert lost.not_compared == ["train: NumPy, more, a job: only the old record has it"]
    assert len(added.changes) == len(lost.changes) == 1


def test_lost_times_are_said() -> None:
    wrong = result(correct=False, answer="NOT the losses of NumPy")
    del wrong["seconds"]
    line = only_line(compare(record(result()), record(wrong)))
    assert line.endswith("no time now: NOT the losses of NumPy")
    assert "no time" in only_line(compare(record(wrong), record(result())))


def test_other_texts_and_vocabularies_are_not_compared() -> None:
    sizes = {"what": "tokenize", "job": None, "text_bytes": 1000, "vocab_size": 300}
    text = {"source": "s", "bytes": 1000, "sha256": "1"}
    old = record(result(**sizes), text=text)
    assert compare(old, record(result(**sizes), text=text)).changes
    other = record(result(**sizes), text=text | {"sha256": "2"})
    assert "the text differs" in only_line(compare(old, other))
    given = record(result(**sizes), text=text, vocabulary={"source": "v", "fingerprint": "f"})
    assert "the vocabulary differs" in only_line(compare(old, given))


def test_versions_drivers_and_interruptions_are_noted() -> None:
    adapter = MACHINE["adapters"][0] | {"driver": "driver 2"}  # type: ignore[index]
    new = record(result(), machine=MACHINE | {"numpy": "2.1", "adapters": [adapter]})
    new["complete"] = False
    assert compare(record(result()), new).notes == [
        "numpy: 2.0 then, 2.1 now",
        "driver of a GPU: driver 1 then, driver 2 now",
        "the new record was interrupted, so it doesn't have everything",
    ]


def write(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(COMMANDS["bench"], arguments)


def test_command_without_measuring(tmp_path: Path) -> None:
    old = write(tmp_path / "old.json", record(result()))
    new = write(tmp_path / "new.json", record(result(median=1.15)))
    slower = run("--from", new, "--compare", old)
    assert slower.exit_code == 1
    assert "+15.0 % SLOWER" in slower.stdout
    assert "1 of 1 medians grew by more than 10 %" in str(slower.exception)
    for threshold in ("20%", "20", "15.1 %"):
        assert run("--from", new, "--compare", old, "--threshold", threshold).exit_code == 0
    assert run("--from", new, "--compare", old, "--threshold", "0").exit_code == 1
    faster = run("--from", old, "--compare", new)
    assert faster.exit_code == 0
    assert "-13.0 %" in faster.stdout


def test_command_with_nothing_to_compare(tmp_path: Path) -> None:
    old = write(tmp_path / "old.json", record(result(), machine=MACHINE | {"cpu": "another"}))
    new = write(tmp_path / "new.json", record(result(median=9.0)))
    compared = run("--from", new, "--compare", old)
    assert compared.exit_code == 0
    assert "nothing is comparable with" in compared.stdout
    assert "not compared: another machine: its CPU was another" in compared.stdout


def test_command_that_measures(tmp_path: Path) -> None:
    arguments = ["bpe-train", "--device", "cpu", "--limit", "20KB", "--vocab-size", "300"]
    arguments += ["--runs", "1", "--no-peers"]
    path = str(tmp_path / "old.json")
    assert run(*arguments, "-o", path).exit_code == 0
    compared = run(*arguments, "--compare", path, "--threshold", "1000000000%")
    assert compared.exit_code == 0, compared.output
    assert "bpe-train" in compared.stdout.partition("compared with")[2]


@pytest.mark.parametrize("threshold", ["-1%", "ten", "nan", "inf", ""])
def test_bad_thresholds(tmp_path: Path, threshold: str) -> None:
    path = write(tmp_path / "r.json", record(result()))
    answered = run("--from", path, "--compare", path, "--threshold", threshold)
    assert answered.exit_code == 2
    assert "not a percentage" in answered.stderr


@pytest.mark.parametrize(
    "arguments", [["train"], ["--quick"], ["--runs", "1"], ["--no-peers"], ["--device", "cpu"]]
)
def test_options_for_measuring_do_not_go_with_from(tmp_path: Path, arguments: list[str]) -> None:
    path = write(tmp_path / "r.json", record(result()))
    answered = run("--from", path, *arguments)
    assert answered.exit_code == 2
    assert "has no effect with --from" in answered.stderr


BROKEN: dict[str, Any] = {
    "not JSON": "{",
    "binary": "\0\1\2",
    "a list": [],
    "foreign": {"format": "other", "version": 1},
    "no version": {"format": "llmgpu-bench"},
    "older": record() | {"version": 1},
    "newer": record() | {"version": 99},
    "a version that is no number": record() | {"version": [1]},
    "no results": {k: v for k, v in record().items() if k != "results"},
    "results that are none": record(17),
    "no machine": record() | {"machine": None},
    "no job": record(result(job=None)),
    "a time that is text": record(result(seconds={"median": "1", "min": 1, "max": 1})),
    "no median": record(result(seconds={})),
    "a time that is zero": record(result(median=0.0)),
    "a rate that is a list": record(result(bytes_per_second=[1])),
    "kernels that are none": record(result(kernels={"seconds": 3, "total": 1})),
    "a huge number": json.dumps(record(result())).replace('": 1.0', '": ' + "1" * 400),
    "not a number": json.dumps(record(result(tokens=float("nan")))),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_broken_and_foreign_files_are_one_line(tmp_path: Path, content: Any) -> None:
    path = write(tmp_path / "bad.json", content)
    with pytest.raises(InputError) as caught:
        load_record(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)
    good = write(tmp_path / "good.json", record(result()))
    for arguments in (["--from", good, "--compare", path], ["--from", path]):
        answered = run(*arguments)
        assert answered.exit_code == 1
        assert isinstance(answered.exception, InputError)


def test_missing_file() -> None:
    with pytest.raises(InputError, match=r"can't read nowhere\.json"):
        load_record("nowhere.json")


def test_a_broken_file_is_found_before_measuring(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.json", "{")
    output = tmp_path / "results.json"
    answered = run("bpe-train", "--device", "cpu", "--compare", path, "-o", str(output))
    assert isinstance(answered.exception, InputError)
    assert not output.exists()
