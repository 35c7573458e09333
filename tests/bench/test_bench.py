"""Benchmarks at small sizes: what they record, and that answers come before times."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import itertools
import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from llmgpu.backend import NUMPY, list_adapters
from llmgpu.bench import suite
from llmgpu.bench.measuring.engines import Engine, make_job, open_engines
from llmgpu.bench.measuring.machine import describe_machine, git_commit
from llmgpu.bench.measuring.times import summarize
from llmgpu.bench.suite import (
    MODEL_PARTS,
    PARTS,
    TEXT_PARTS,
    BenchOptions,
    all_correct,
    run_benchmark,
)
from llmgpu.bench.text import bpe_train, peers, tokenize
from llmgpu.bench.text.corpus import load_text, standard_library_files
from llmgpu.bench.text.peers import EXPRESSIBLE, pieces
from llmgpu.bench.text.peers_tokenizing import TOKENIZING_PEERS, TokenizingPeer
from llmgpu.bench.text.peers_training import TRAINING_PEERS
from llmgpu.bpe.encoding.encoder import open_encoder
from llmgpu.bpe.interchange.formats import WRITERS
from llmgpu.bpe.interchange.spellings import TIKTOKEN, expression_of
from llmgpu.bpe.pretokens.pattern import PATTERNS
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.bench import bench
from llmgpu.cli.bench_table import print_results
from llmgpu.errors import DeviceError, InputError, LlmgpuError
from llmgpu.progress import no_progress
from llmgpu.text.corpus import corpus_from_bytes

LIMIT = 20_000
VOCAB_SIZE = 300
NUMPY_ENGINE = Engine(NUMPY, 0.0)
BEYOND_ASCII = "Grüße, 東京 42!\n  naïve\u00a0Größe\tτί  x\n\n/a\nb\u2003\nc's\n" * 40
# What some pattern tells apart, and newlines more often than the rest.
APART = [*" \t\r/.!'_eS1", "'s", "'\u017f", "'lL", "'Ve", "'r", "\u00a0", "\u3000", "\x1c", "\x85"]
APART += ["\u01c5", "\u02b0", "漢", "\u0301", "\u093e", "\u0663", "½", "\U0001d7ce", "👍"]
ADVERSARIAL = "".join(random.Random(5).choices([*APART, *"\n" * 8, *"ab" * 6], k=20_000))
ENDS = ["a", "\n", "  ", "\n\n", "\n  ", " \n ", "\r\n  ", "1\n", "\u3000\n\u2003", "'S\n\r", ""]


def small(**changes: Any) -> BenchOptions:
    values: dict[str, Any] = {"limit": LIMIT, "vocab_size": VOCAB_SIZE, "runs": 2}
    values |= {"parts": TEXT_PARTS, "quick": True}
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
    done = [(r["what"], r["engine"], r.get("variant")) for r in record["results"]]
    assert len(set(done)) == len(done)  # so small a text is one job for all


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
        assert encoded["kernels"]["seconds"].keys() >= {"encode_look_up"}
    recounted = [r for r in record["results"] if r["engine"] == f"recount on {name}"]
    assert [r["variant"].split()[0] for r in recounted] == ["1,024", "2,048"]
    for result in recounted:
        assert result["correct"] is True
        assert result["text_bytes"] == trained["text_bytes"]


def test_peers_are_measured(record: dict[str, Any]) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("tiktoken")
    pytest.importorskip("rustbpe")
    assert of(record, "bpe-train", "tokenizers")["answer"] == "the merges of NumPy"
    assert of(record, "bpe-train", "rustbpe")["answer"] == "the tokens of NumPy, --tie bytes"
    for name in ("tokenizers", "tiktoken"):
        assert of(record, "tokenize", name)["answer"] == "the ids of NumPy"


def test_gigatoken_is_measured_where_it_is_installed(record: dict[str, Any]) -> None:
    trained, encoded = of(record, "bpe-train", "gigatoken"), of(record, "tokenize", "gigatoken")
    try:
        importlib.metadata.version("gigatoken")
    except importlib.metadata.PackageNotFoundError:
        assert trained["note"] == "not installed: pip install gigatoken"
        assert encoded["note"] == "not installed: pip install gigatoken awkward"
    else:
        assert trained["answer"] == "the merges of NumPy"
        assert encoded.get("answer", encoded.get("note")) in (
            "the ids of NumPy",
            "not installed: pip install gigatoken awkward",
        )


def crossing_vocabulary(pattern: str, special_tokens: tuple[str, ...] = ()) -> Vocabulary:
    """A vocabulary that gives other ids wherever a text is cut otherwise.

    Its tokens are those of text that is not cut at all.
    """
    text = BEYOND_ASCII + ADVERSARIAL + " \n  \n\r\n  " * 50
    options = TrainingOptions(2000, "none", special_tokens=special_tokens)
    trained = train_vocabulary(corpus_from_bytes(text.encode()), options, NUMPY).vocabulary
    return replace(trained, pattern=pattern, expression=PATTERNS[pattern].expression)


def require(peer: TokenizingPeer) -> None:
    for package in (peer.package, *peer.needs):
        pytest.importorskip(package)


def assert_ids_are_those_of_numpy(
    peer: TokenizingPeer, vocabulary: Vocabulary, texts: list[str], folder: Path
) -> None:
    WRITERS[peer.format](vocabulary, folder / "vocabulary")
    encode = peer.open(folder / "vocabulary", vocabulary.pattern)
    for text in texts:
        path = folder / "text"
        path.write_bytes(text.encode())
        expected = tokenize.encode_all(
            open_encoder(vocabulary, NUMPY), corpus_from_bytes(text.encode())
        )
        np.testing.assert_array_equal(encode(path), expected, repr(text[-9:]))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", EXPRESSIBLE)
@pytest.mark.parametrize("peer", TOKENIZING_PEERS, ids=lambda peer: peer.package)
def test_peers_agree_on_text_beyond_ascii(
    peer: TokenizingPeer, pattern: str, tmp_path: Path
) -> None:
    require(peer)
    if pattern not in peer.patterns:
        pytest.skip(f"it doesn't know pattern {pattern}")
    texts = [ADVERSARIAL, *(BEYOND_ASCII + end for end in ENDS)]
    assert_ids_are_those_of_numpy(peer, crossing_vocabulary(pattern), texts, tmp_path)


@pytest.mark.parametrize("peer", TOKENIZING_PEERS, ids=lambda peer: peer.package)
def test_special_tokens_are_text_to_peers(peer: TokenizingPeer, tmp_path: Path) -> None:
    require(peer)
    vocabulary = crossing_vocabulary("gpt2", ("<|end|>",))
    assert_ids_are_those_of_numpy(peer, vocabulary, ["a<|end|>b <|end|>\n"], tmp_path)


@pytest.mark.parametrize("pattern", EXPRESSIBLE)
@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 2000])
def test_training_peers_beyond_ascii(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], pattern: str, vocab_size: int
) -> None:
    path = tmp_path / "text"
    path.write_bytes((BEYOND_ASCII + ADVERSARIAL).encode())
    job = make_job(load_text([str(path)], 100_000), tmp_path, vocab_size, pattern, 1)
    results = list(bpe_train.measure_training(job, [], True, no_progress))
    packages = [result["engine"].split()[0] for result in results]
    assert packages == [peer.package for peer in TRAINING_PEERS]
    for result in results:
        assert result["correct"] is True or "note" in result
    assert capfd.readouterr() == ("", "")


def test_a_pattern_that_no_peer_knows_is_a_line(tmp_path: Path) -> None:
    job = make_job(load_text([], 2000), tmp_path, VOCAB_SIZE, "none", 1)
    results = list(bpe_train.measure_training(job, [], True, no_progress))
    results += list(tokenize.measure_tokenizing(job, [], True, no_progress))
    assert len(results) == len(TRAINING_PEERS) + len(TOKENIZING_PEERS)
    for result in results:
        assert result["note"].startswith(("left out: it doesn't know pattern none", "not inst"))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", EXPRESSIBLE)
def test_pieces_end_where_pre_tokens_do(pattern: str) -> None:
    regex = pytest.importorskip("regex")
    text = BEYOND_ASCII + ADVERSARIAL + load_text([], LIMIT).data.decode()
    cut = pieces(text, 1)
    assert "".join(cut) == text
    assert len(cut) > 1000
    expression = regex.compile(expression_of(pattern, TIKTOKEN))
    of_pieces = [word for piece in cut for word in expression.findall(piece)]
    assert of_pieces == expression.findall(text)


def test_missing_peer_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "package_version", lambda name: None)
    record: dict[str, Any] = {}
    run_benchmark(small(devices=("cpu",), runs=1), record)
    for what, listed in (("bpe-train", TRAINING_PEERS), ("tokenize", TOKENIZING_PEERS)):
        for peer in listed:
            result = of(record, what, peer.package)
            packages = " ".join((peer.package, *peer.needs))
            assert result["note"] == f"not installed: pip install {packages}"
            assert "seconds" not in result
    assert all_correct(record)


def test_awkward_is_needed_for_tokenizing_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "package_version", lambda name: None if name == "awkward" else "1")
    job = make_job(load_text([], 2000), tmp_path, VOCAB_SIZE, "gpt2", 1)
    assert all(peer.why_not(job) is None for peer in TRAINING_PEERS)
    reasons = {peer.package: peer.why_not(job) for peer in TOKENIZING_PEERS}
    assert reasons.pop("gigatoken") == "not installed: pip install gigatoken awkward"
    assert set(reasons.values()) == {None}


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
    job = make_job(text, tmp_path, VOCAB_SIZE, "gpt2", 1)
    other = train_vocabulary(corpus_from_bytes(b"zzyyzzyy"), TrainingOptions(258), NUMPY)
    wrong = bpe_train.TrainingBench(job, other.vocabulary, no_progress)
    result = wrong.measure_trainer(bpe_train.Trainer(NUMPY_ENGINE))
    assert result["correct"] is False
    assert "seconds" not in result
    for peer in TRAINING_PEERS:
        if peer.tie == "hf" and peer.why_not(job) is None:
            result = wrong.measure_peer(peer)
            assert result["correct"] is False
            assert "seconds" not in result
    assert not all_correct({"results": [result]})


def test_wrong_ids_have_no_time(tmp_path: Path) -> None:
    job = make_job(load_text([], LIMIT), tmp_path, VOCAB_SIZE, "gpt2", 1)
    vocabulary = bpe_train.train_file(job, NUMPY).vocabulary
    vocabulary.save(tmp_path / "v.bin")
    wrong = tokenize.TokenizingBench(
        job, vocabulary, tmp_path / "v.bin", np.zeros(5, np.uint32), no_progress
    )
    result = wrong.measure_engine(NUMPY_ENGINE)
    assert result["correct"] is False
    assert "seconds" not in result
    for peer in TOKENIZING_PEERS:
        if peer.why_not(job) is None:
            result = wrong.measure_peer(peer)
            assert result["answer"] == "NOT the ids of NumPy"
            assert "seconds" not in result


def test_a_vocabulary_that_was_made_before(tmp_path: Path) -> None:
    path = tmp_path / "v.bin"
    vocabulary = crossing_vocabulary("llama3")
    vocabulary.save(path)
    record: dict[str, Any] = {}
    options = small(parts=("tokenize",), devices=("cpu",), vocabulary=str(path), pattern="class")
    run_benchmark(options, record)
    assert all_correct(record)
    assert record["vocabulary"] == {"source": str(path), "fingerprint": vocabulary.fingerprint}
    for result in record["results"]:
        assert (result["vocab_size"], result["pattern"]) == (vocabulary.size, "llama3")


def test_a_vocabulary_that_peers_cannot_have_is_a_line(tmp_path: Path) -> None:
    job = make_job(load_text([], 2000), tmp_path, VOCAB_SIZE, "gpt2", 1)
    greedy = crossing_vocabulary("gpt2").with_match("greedy")
    results = list(tokenize.measure_tokenizing(job, [NUMPY_ENGINE], True, no_progress, greedy))
    assert results[0]["correct"] is True
    for result in results[1:]:
        assert result["note"].startswith(("left out: a vocabulary that matches greedily", "not in"))


def test_records_of_other_versions_are_printed() -> None:
    records = sorted((Path(suite.__file__).parent / "recorded").glob("*.json"))
    assert records
    for path in records:
        file = io.StringIO()
        print_results(json.loads(path.read_text()), Console(file=file))
        assert "NumPy" in file.getvalue()


def test_ratio_to_the_fastest_peer() -> None:
    result = {"what": "tokenize", "text_bytes": 1, "vocab_size": 1, "pattern": "p", "answer": "a"}
    times = {"median": 1.0, "min": 1.0, "max": 1.0}
    rates = {"own": 30.0, "peer 1": 20.0, "peer 2": 10.0}
    results = [
        {"engine": name, "mb_per_second": rate, "seconds": times, "tokens": 1} | result
        for name, rate in rates.items()
    ]
    for peer in results[1:]:
        peer["peer"] = True
    machine = describe_machine([NUMPY])
    text = {"source": "s", "bytes": 1, "sha256": ""}
    record = {"machine": machine, "not_opened": {}, "text": text, "complete": True}
    file = io.StringIO()
    print_results(record | {"results": results}, Console(file=file))
    assert re.findall(r"\d\.\d\dx", file.getvalue()) == ["1.50x", "1.00x", "0.50x"]


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
    "changes",
    [
        {"parts": ("other",)},
        {"runs": 0},
        {"vocab_size": 256},
        {"pattern": "x"},
        {"parts": ("bpe-train",), "vocabulary": "v.bin"},
    ],
    ids=str,
)
def test_bad_options(changes: dict[str, Any]) -> None:
    with pytest.raises(LlmgpuError):
        small(**changes)


def test_all_parts_on_numpy(measured: dict[str, Any]) -> None:
    assert measured["complete"]
    assert json.loads(json.dumps(measured, allow_nan=False)) == measured
    assert set(measured["limits"]) == {"NumPy"}
    assert list(dict.fromkeys(result["what"] for result in measured["results"])) == list(PARTS)
    for result in measured["results"]:
        assert result["correct"] is True or result["note"], result
        assert ("seconds" in result) == (result["correct"] is True)


def test_parts_about_models_read_no_text() -> None:
    record: dict[str, Any] = {}
    options = small(parts=("train",), devices=("cpu",), runs=1, peers=False, corpus=("missing",))
    run_benchmark(options, record)
    assert "text" not in record
    assert all_correct(record)


def test_missing_torch_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises ImportError
    record: dict[str, Any] = {}
    run_benchmark(small(parts=tuple(MODEL_PARTS), devices=("cpu",), runs=1), record)
    assert record["complete"]
    assert all_correct(record)
    assert record["missing_peers"] == {"torch": "not installed: pip install torch"}


def test_interrupted_command_hands_over_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Iterator[dict[str, Any]]:
        yield from itertools.islice(MODEL_PARTS["train"](*arguments), 1)
        raise KeyboardInterrupt

    monkeypatch.setitem(suite.MODEL_PARTS, "embedding", interrupted)
    paths = [tmp_path / "results.json", tmp_path / "report.html"]
    arguments = ["embedding", "--device", "cpu", "--quick", "--runs", "1", "--no-peers"]
    outputs = ["-o", str(paths[0]), "--report", str(paths[1])]
    result = CliRunner().invoke(bench, [*arguments, *outputs])
    assert result.exit_code == 1
    record = json.loads(paths[0].read_text())
    assert (len(record["results"]), record["complete"]) == (1, False)
    assert "interrupted" in result.stdout
    assert "Interrupted" in paths[1].read_text()


def test_command(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--limit", "20KB", "--vocab-size", "300", "--runs", "1"]
    arguments += ["--no-peers"]
    output = tmp_path / "results.json"
    result = CliRunner().invoke(bench, [*TEXT_PARTS, *arguments, "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert "KB of text, 300 ids, pattern gpt2" in result.stdout
    assert json.loads(output.read_text())["complete"]
    more = ["--pattern", "class", "--corpus", "generated", "--json"]
    result = CliRunner().invoke(bench, ["tokenize", *arguments, *more])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(item["engine"], item["pattern"]) for item in found["results"]] == [("NumPy", "class")]
    assert found["text"]["source"] == "generated"
    assert "NumPy" in result.stderr


@pytest.mark.parametrize(
    "what, parts",
    [([], PARTS), (["all"], PARTS), (["train", "all"], PARTS), (["train"] * 2, ("train",))],
    ids=str,
)
def test_parts_of_the_command(
    monkeypatch: pytest.MonkeyPatch, what: list[str], parts: tuple[str, ...]
) -> None:
    asked: list[BenchOptions] = []
    monkeypatch.setattr(suite, "run_benchmark", lambda options, *_: asked.append(options))
    monkeypatch.setattr(suite, "all_correct", lambda record: True)
    result = CliRunner().invoke(bench, [*what, "--quick"])
    assert result.exit_code == 0, result.output
    assert (asked[0].parts, asked[0].quick, asked[0].runs) == (parts, True, suite.QUICK_RUNS)


def test_command_writes_the_text_and_measures_nothing(tmp_path: Path) -> None:
    for source in (["--corpus", "generated"], []):
        path = tmp_path / "text"
        options = [*source, "--limit", "300KB", "--write-corpus", str(path)]
        result = CliRunner().invoke(bench, options)
        assert result.exit_code == 0, result.output
        assert result.output == ""
        assert path.read_bytes() == load_text(source[1:], 300_000).data


def test_generated_text_stands_alone() -> None:
    with pytest.raises(InputError, match="no other sources"):
        load_text(["generated", "file"], 100)
