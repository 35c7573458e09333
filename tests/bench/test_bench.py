"""Benchmarks at small sizes: what they record, and that answers come before times."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from llmgpu.backend import NUMPY, list_adapters
from llmgpu.bench import bpe_train, peers, tokenize
from llmgpu.bench.corpus import load_text, standard_library_files
from llmgpu.bench.engines import Engine, make_job, open_engines
from llmgpu.bench.machine import describe_machine, git_commit
from llmgpu.bench.suite import BenchOptions, all_correct, run_benchmark
from llmgpu.bench.times import summarize
from llmgpu.bpe.corpus import corpus_from_bytes
from llmgpu.bpe.training import TrainingOptions, train_vocabulary
from llmgpu.cli.bench import bench
from llmgpu.errors import DeviceError, InputError, LlmgpuError
from llmgpu.progress import no_progress

LIMIT = 20_000
VOCAB_SIZE = 300
NUMPY_ENGINE = Engine(NUMPY, 0.0)


def small(**changes: Any) -> BenchOptions:
    values: dict[str, Any] = {"limit": LIMIT, "vocab_size": VOCAB_SIZE, "runs": 2}
    return BenchOptions(**(values | changes))


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    record: dict[str, Any] = {}
    run_benchmark(small(), record)
    return record


def of(record: dict[str, Any], what: str, engine: str) -> dict[str, Any]:
    found = [
        result
        for result in record["results"]
        if result["what"] == what and result["engine"].startswith(engine)
    ]
    assert found
    return dict(found[0])


def test_record_is_json_and_complete(record: dict[str, Any]) -> None:
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["complete"]
    assert all_correct(record)
    assert record["text"]["bytes"] <= LIMIT


@pytest.mark.parametrize("what", ["bpe-train", "tokenize"])
def test_every_engine_is_compared_and_measured(record: dict[str, Any], what: str) -> None:
    for name in ["NumPy", *(adapter.name for adapter in list_adapters())]:
        result = of(record, what, name)
        assert result["correct"] is True
        assert len(result["seconds"]["runs"]) == 2
        assert result["mb_per_second"] > 0
        assert result["phases"]


def test_adapters_report_start_up_and_kernels(record: dict[str, Any]) -> None:
    if not list_adapters():
        pytest.skip("no adapter")
    name = list_adapters()[0].name
    trained, encoded = of(record, "bpe-train", name), of(record, "tokenize", name)
    assert trained["start_up"]["open device"] > 0
    assert encoded["start_up"]["open encoder"] > 0
    if "timestamp-query" in list_adapters()[0].features:
        assert trained["kernels"]["seconds"].keys() >= {"count_look_up", "batched_link"}
        assert encoded["kernels"]["seconds"].keys() >= {"trie_tokenizer_chunked"}


def test_peers_are_measured(record: dict[str, Any]) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("tiktoken")
    assert "the merges of NumPy" in of(record, "bpe-train", "tokenizers")["answer"]
    counts = {of(record, "tokenize", name)["tokens"] for name in ("tokenizers", "tiktoken")}
    assert len(counts) == 1  # both apply the same merges
    assert of(record, "tokenize", "tiktoken")["match"] == "bpe"


def test_peers_agree_on_text_beyond_ascii() -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("tiktoken")
    text = "Grüße, 東京 42!\n  naïve\u00a0Größe\tτί  x\n" * 40
    options = TrainingOptions(320)
    vocabulary = train_vocabulary(corpus_from_bytes(text.encode()), options, NUMPY).vocabulary
    ids = [opener(vocabulary)(text) for opener in peers.OPENERS.values()]
    assert np.array_equal(*ids)
    assert vocabulary.decode(ids[0]) == text.encode()


def test_training_peer_beyond_ascii(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "text"
    path.write_text("Grüße, 東京 42!\n  naïve\u00a0Größe\tτί  x\n" * 40, encoding="utf-8")
    job = make_job(load_text([str(path)], LIMIT), tmp_path, VOCAB_SIZE, 1)
    results = list(bpe_train.measure_training(job, [], True, no_progress))
    assert [result["correct"] for result in results] == [True]


def test_missing_peer_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "package_version", lambda name: None)
    record: dict[str, Any] = {}
    run_benchmark(small(devices=("cpu",), runs=1), record)
    for what, package in (
        ("bpe-train", "tokenizers"),
        ("tokenize", "tokenizers"),
        ("tokenize", "tiktoken"),
    ):
        result = of(record, what, package)
        assert "not installed" in result["note"]
        assert "seconds" not in result
    assert all_correct(record)


def test_invalid_utf8_is_left_out_by_peers(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"some \xff\xfe words and words\n\x00" * 50)
    record: dict[str, Any] = {}
    run_benchmark(small(devices=("cpu",), corpus=(str(path),), runs=1), record)
    assert of(record, "tokenize", "NumPy")["correct"] is True
    for result in record["results"]:
        assert result["engine"] == "NumPy" or "note" in result


def test_wrong_merges_have_no_time(tmp_path: Path) -> None:
    text = load_text([], LIMIT)
    job = make_job(text, tmp_path, VOCAB_SIZE, 1)
    other = train_vocabulary(corpus_from_bytes(b"zzyyzzyy"), TrainingOptions(258), NUMPY)
    wrong = bpe_train.TrainingBench(job, other.vocabulary, no_progress)
    result = wrong.measure_engine(NUMPY_ENGINE)
    assert result["correct"] is False
    assert "seconds" not in result
    if peers.peer_name("tokenizers"):
        result = wrong.measure_tokenizers()
        assert result["correct"] is False
        assert "seconds" not in result
    assert not all_correct({"results": [result]})


def test_wrong_ids_have_no_time(tmp_path: Path) -> None:
    job = make_job(load_text([], LIMIT), tmp_path, VOCAB_SIZE, 1)
    vocabulary = bpe_train.train_file(job, NUMPY).vocabulary
    vocabulary.save(tmp_path / "v.bin")
    wrong = tokenize.TokenizingBench(
        job, vocabulary, tmp_path / "v.bin", np.zeros(5, np.uint32), no_progress
    )
    result = wrong.measure_engine(NUMPY_ENGINE)
    assert result["correct"] is False
    assert "seconds" not in result


def test_interrupted_run_keeps_results() -> None:
    record: dict[str, Any] = {}

    def interrupt(result: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_benchmark(small(devices=("cpu",)), record, no_progress, interrupt)
    assert len(record["results"]) == 1
    assert not record["complete"]


def test_default_text_is_reproducible() -> None:
    files = standard_library_files()
    assert files == sorted(files)
    assert not any("site-packages" in path.parts for path in files)
    text = load_text([], LIMIT)
    assert text.data == load_text([], LIMIT).data
    assert text.data.endswith(b"\n")
    assert text.describe()["sha256"] == hashlib.sha256(text.data).hexdigest()


def test_default_text_is_utf8_for_the_peers() -> None:
    text = load_text([], 1 << 40)
    assert text.is_utf8
    assert len(text.data) > 1_000_000


def test_text_is_cut_after_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert load_text([str(path)], 14).data == b"one\ntwo\nthree\n"
    assert load_text([str(path)], 13).data == b"one\ntwo\n"
    assert load_text([str(path)], 2).data == b"on"
    assert load_text([str(path)], 100).first(5).data == b"one\n"


def test_empty_corpus(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(InputError, match="no text"):
        load_text([str(path)], 100)


def test_machine() -> None:
    machine = describe_machine([NUMPY])
    assert machine["cpus"] >= 1
    assert machine["numpy"] == np.__version__
    assert machine["adapters"] == []


def test_no_commit_outside_a_checkout(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None


def test_engines_are_opened_once() -> None:
    engines, failures = open_engines(["cpu", "all", "cpu"])
    names = [engine.name for engine in engines]
    assert names.count("NumPy") == 1
    assert len(set(names)) == len(names)
    assert not failures
    with pytest.raises(DeviceError):
        open_engines(["no such adapter"])


def test_summary_of_times() -> None:
    assert summarize([3.0, 1.0, 2.0]) == {
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
        "runs": [3.0, 1.0, 2.0],
    }


@pytest.mark.parametrize(
    "changes", [{"parts": ("other",)}, {"runs": 0}, {"vocab_size": 256}], ids=str
)
def test_bad_options(changes: dict[str, Any]) -> None:
    with pytest.raises(LlmgpuError):
        small(**changes)


def test_command(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--limit", "20KB", "--vocab-size", "300", "--runs", "1"]
    output = tmp_path / "results.json"
    result = CliRunner().invoke(bench, [*arguments, "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert "KB of text, 300 ids" in result.stdout
    assert json.loads(output.read_text())["complete"]
    result = CliRunner().invoke(bench, ["tokenize", *arguments, "--no-peers", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [item["engine"] for item in found["results"]] == ["NumPy"]
    assert "NumPy" in result.stderr
