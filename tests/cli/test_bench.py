"""``llmgpu bench``: its arguments, its files, and what an interrupted run leaves."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from llmgpu import Tokenizer
from llmgpu.backend import NUMPY
from llmgpu.bench import PARTS, QUICK_SIZES, TEXT_PARTS, BenchOptions, engines, suite
from llmgpu.bench.engines import Engine, cpu_engine, describe_machine
from llmgpu.bench.results import Record, Result, TextFacts, Times, load_record
from llmgpu.bench.suite import MODEL_PARTS, Benchmark
from llmgpu.bench.tokenizers import load_text
from llmgpu.cli import COMMANDS
from llmgpu.cli.bench import print_results
from llmgpu.progress import no_progress

RECORDED = Path(__file__).parents[2] / "docs" / "recorded"
NUMPY_ENGINE = Engine(NUMPY, 0.0)


def test_records_of_other_versions_are_printed() -> None:
    records = sorted(RECORDED.glob("*.json"))
    assert records
    for path in records:
        file = io.StringIO()
        print_results(load_record(str(path)), Console(file=file, width=40))
        assert any(engine in file.getvalue() for engine in ("NumPy", "llmgpu in C"))
        tables = [line for line in file.getvalue().splitlines() if not line.startswith("  ")]
        facts = (
            "limits: ",
            "machine: ",
            "adapter: ",
            "software: ",
            "text: ",
            "bpe-train: ",
            "tokenize: ",
            "train: ",
        )
        assert all(len(line) <= 80 for line in tables if not line.startswith(facts))


def test_ratio_to_the_fastest_peer() -> None:
    rates = {"own": 30.0, "peer 1": 20.0, "peer 2": 10.0}
    results = [
        Result(
            "tokenize",
            name,
            peer=name.startswith("peer"),
            job="a job",
            answer="a",
            seconds=Times.of([30.0 / rate]),
            tokens=1,
            mb_per_second=rate,
        )
        for name, rate in rates.items()
    ]
    machine = describe_machine([NUMPY_ENGINE])
    record = Record(machine, results, True, {}, text=TextFacts("s", 1, ""))
    file = io.StringIO()
    print_results(record, Console(file=file))
    assert re.findall(r"\d\.\d\dx", file.getvalue()) == ["1.50x", "1.00x", "0.50x"]


def test_interrupted_command_hands_over_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Iterator[Result]:
        yield from itertools.islice(MODEL_PARTS["train"](*arguments), 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(engines, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setitem(suite.MODEL_PARTS, "embedding", interrupted)
    paths = [tmp_path / "results.json", tmp_path / "report.html"]
    arguments = ["embedding", "--device", "cpu", "--quick", "--runs", "1", "--no-peers"]
    outputs = ["-o", str(paths[0]), "--report", str(paths[1])]
    result = CliRunner().invoke(COMMANDS["bench"], [*arguments, *outputs])
    assert result.exit_code == 1
    record = json.loads(paths[0].read_text())
    assert (len(record["results"]), record["complete"]) == (1, False)
    assert "interrupted" in result.stdout
    assert result.stdout.startswith("smoke test: 1 run of 1 MB")
    assert "interrupted" in paths[1].read_text()


def test_command(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--limit", "20KB", "--vocab-size", "300", "--runs", "1"]
    arguments += ["--no-peers"]
    output = tmp_path / "results.json"
    result = CliRunner().invoke(COMMANDS["bench"], [*TEXT_PARTS, *arguments, "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert "KB of text, 300 ids, pattern gpt2" in result.stdout
    assert "\n  median of: 1 run; ±%: half of their range\n" in result.stdout
    assert "smoke test" not in result.stdout
    assert json.loads(output.read_text())["complete"]
    more = ["--pattern", "class", "--corpus", "generated", "--json"]
    more += ["--match", "greedy"]
    result = CliRunner().invoke(COMMANDS["bench"], ["tokenize", *arguments, *more])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    facts = [(r["engine"], r["pattern"], r["variant"]) for r in found["results"]]
    assert facts == [(cpu_engine(), "class", "greedy")]
    assert found["text"]["source"] == "generated"
    assert cpu_engine() in result.stderr


def test_a_vocabulary_of_another_tool(tmp_path: Path) -> None:
    text = tmp_path / "corpus.txt"
    text.write_text("low lower lowest newer newest " * 300)
    tokenizer = Tokenizer.train(text, vocab_size=270, device="cpu")
    tokenizer.export("huggingface", tmp_path / "tokenizer.json")
    arguments = ["tokenize", "--device", "cpu", "--corpus", str(text), "--runs", "1", "--no-peers"]
    result = CliRunner().invoke(
        COMMANDS["bench"],
        [*arguments, "--vocab", str(tmp_path / "tokenizer.json"), "--json"],
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["vocabulary"]["fingerprint"] == tokenizer.vocabulary.fingerprint
    over = [*arguments, "--vocab", str(tmp_path / "tokenizer.json"), "--report"]
    refused = CliRunner().invoke(COMMANDS["bench"], [*over, str(tmp_path / "tokenizer.json")])
    assert refused.exit_code == 1 and "is an input" in str(refused.exception)


@pytest.mark.parametrize(
    "what, parts",
    [([], PARTS), (["all"], PARTS), (["train", "all"], PARTS), (["train"] * 2, ("train",))],
    ids=str,
)
def test_parts_of_the_command(
    monkeypatch: pytest.MonkeyPatch, what: list[str], parts: tuple[str, ...]
) -> None:
    asked: list[BenchOptions] = []

    class Asked(Benchmark):
        def __init__(self, options: BenchOptions) -> None:
            asked.append(options)
            self.record = Record(describe_machine([]), [], complete=True, not_opened={})

        def run(self, progress: Any = no_progress) -> None:
            pass

    monkeypatch.setattr("llmgpu.cli.bench.Benchmark", Asked)
    result = CliRunner().invoke(COMMANDS["bench"], [*what, "--quick"])
    assert result.exit_code == 0, result.output
    assert (asked[0].parts, asked[0].quick, asked[0].runs) == (parts, True, QUICK_SIZES["runs"])


def test_command_writes_the_text_and_measures_nothing(tmp_path: Path) -> None:
    for source in (["--corpus", "generated"], []):
        path = tmp_path / "text"
        options = [*source, "--limit", "300KB", "--write-corpus", str(path), "--force"]
        result = CliRunner().invoke(COMMANDS["bench"], options)
        assert result.exit_code == 0, result.output
        assert result.output == ""
        assert path.read_bytes() == load_text(source[1:], 300_000)
