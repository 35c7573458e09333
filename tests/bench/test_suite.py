"""Benchmarks at small sizes: what they record, and that answers come before times."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY, list_adapters
from llmgpu.bench import PARTS, TEXT_PARTS, BenchOptions, peers, tokenizers
from llmgpu.bench.engines import Engine, cpu_engine, describe_machine
from llmgpu.bench.peers import (
    TOKENIZING_PEERS,
    TRAINING_PEERS,
)
from llmgpu.bench.results import Record, Result, Times, VocabularyFacts
from llmgpu.bench.suite import MODEL_PARTS, Benchmark
from llmgpu.bench.tokenizers import (
    Job,
    TokenizingBench,
    Trainer,
    load_text,
    measure_training,
    train_file,
)
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import TrainingResult, train_vocabulary
from llmgpu.errors import LlmgpuError
from llmgpu.text.corpus import corpus_from_bytes
from tests.bench.conftest import assert_is_read_as_it_was, given, run, small_parts
from tests.bench.test_peers import crossing_vocabulary

LIMIT = 8_000
VOCAB_SIZE = 272
NUMPY_ENGINE = Engine(NUMPY, 0.0)


def small(**changes: Any) -> BenchOptions:
    values: dict[str, Any] = {"limit": LIMIT, "vocab_size": VOCAB_SIZE, "runs": 2}
    values |= {"parts": TEXT_PARTS, "quick": True}
    return BenchOptions(**(values | changes))


@pytest.fixture(scope="module")
def record() -> Record:
    return run(small())


def of(record: Record, what: str, engine: str) -> Result:
    found = [
        result
        for result in record.results
        if result.what == what and result.engine.startswith(engine)
    ]
    assert found
    return found[0]


@pytest.mark.slow
def test_record_is_json_and_complete(record: Record) -> None:
    assert_is_read_as_it_was(record)
    assert record.complete
    assert record.is_correct
    assert given(record.text).bytes <= LIMIT
    done = [(r.what, r.engine, r.variant) for r in record.results]
    assert len(set(done)) == len(done)  # so small a text is one job for all


@pytest.mark.parametrize("what", ["bpe-train", "tokenize"])
def test_every_engine_is_compared_and_measured(record: Record, what: str) -> None:
    for name in [cpu_engine(), *(adapter.name for adapter in list_adapters())]:
        result = of(record, what, name)
        assert result.correct is True
        assert len(given(result.seconds).runs) == 2
        assert given(result.mb_per_second) > 0
        assert result.phases


def test_greedy_matching_has_rows_of_its_own(record: Record) -> None:
    names = [cpu_engine(), *(adapter.name for adapter in list_adapters())]
    rows = [r for r in record.results if (r.what, r.variant) == ("tokenize", "greedy")]
    assert [r.engine for r in rows] == names
    for result in rows:
        assert result.correct is True and result.phases
        assert result.tokens != of(record, "tokenize", cpu_engine()).tokens


def test_adapters_report_start_up_and_kernels(record: Record) -> None:
    if not list_adapters():
        pytest.skip("no adapter")
    name = list_adapters()[0].name
    trained, encoded = of(record, "bpe-train", name), of(record, "tokenize", name)
    assert trained.start_up["open device"] > 0
    assert encoded.start_up["open encoder"] > 0
    if "timestamp-query" in list_adapters()[0].features:
        assert given(trained.kernels).seconds.keys() >= {"count_look_up", "batched_link"}
        assert given(encoded.kernels).seconds.keys() >= {"encode_look_up"}
    recounted = [r for r in record.results if r.engine == f"recount on {name}"]
    assert [r.variant.split()[0] for r in recounted] == ["1,024", "2,048"]
    for result in recounted:
        assert result.correct is True
        assert result.text_bytes == trained.text_bytes


def test_peers_are_measured(record: Record) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("tiktoken")
    pytest.importorskip("rustbpe")
    assert of(record, "bpe-train", "tokenizers").answer == f"the merges of {cpu_engine()}"
    assert of(record, "bpe-train", "rustbpe").answer == f"the tokens of {cpu_engine()}, --tie bytes"
    for name in ("tokenizers", "tiktoken"):
        assert of(record, "tokenize", name).answer == f"the ids of {cpu_engine()}"


def test_gigatoken_is_measured_where_it_is_installed(record: Record) -> None:
    trained, encoded = of(record, "bpe-train", "gigatoken"), of(record, "tokenize", "gigatoken")
    try:
        importlib.metadata.version("gigatoken")
    except importlib.metadata.PackageNotFoundError:
        assert trained.note == "not installed: pip install gigatoken"
        assert encoded.note == "not installed: pip install gigatoken awkward"
    else:
        assert trained.answer == f"the merges of {cpu_engine()}"
        assert (encoded.answer or encoded.note) in (
            f"the ids of {cpu_engine()}",
            "not installed: pip install gigatoken awkward",
        )


def test_missing_peer_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "package_version", lambda name: None)
    record = run(small(devices=("cpu",), runs=1))
    for what, listed in (("bpe-train", TRAINING_PEERS), ("tokenize", TOKENIZING_PEERS)):
        for peer in listed:
            result = of(record, what, peer.package)
            packages = " ".join((peer.package, *peer.needs))
            assert result.note == f"not installed: pip install {packages}"
            assert result.seconds is None
    assert record.is_correct


def test_a_peer_that_lacks_a_package_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import system refuses a package that is there, as where one that it needs is not."""
    pytest.importorskip("tiktoken")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    record = run(small(devices=("cpu",), runs=1))
    result = of(record, "tokenize", "tiktoken")
    assert result.note.startswith("left out: import of tiktoken halted") and not result.seconds
    assert of(record, "tokenize", cpu_engine()).seconds


def test_invalid_utf8_is_left_out_by_peers(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"some \xff\xfe words and words\n\x00" * 50)
    record = run(small(devices=("cpu",), corpus=(str(path),), runs=1))
    assert of(record, "tokenize", cpu_engine()).correct is True
    for result in record.results:
        assert result.engine == cpu_engine() or result.note


def job_in(folder: Path) -> Job:
    options = small(runs=1)
    return Job(load_text([], LIMIT), folder, options.vocab_size, options.pattern, options.runs)


def test_wrong_merges_have_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = train_vocabulary(corpus_from_bytes(b"zzyyzzyy"), TrainingOptions(258), NUMPY)
    trained = [other]  # the first vocabulary, which is the reference, is another

    def train(*arguments: Any, **changes: Any) -> TrainingResult:
        return trained.pop() if trained else train_file(*arguments, **changes)

    monkeypatch.setattr(tokenizers, "train_file", train)
    results = list(measure_training(job_in(tmp_path), [Trainer(NUMPY_ENGINE)], True))
    ties = {peer.package: peer.tie for peer in TRAINING_PEERS}
    for result in results:
        if not result.note and ties.get(result.engine.split()[0]) != "bytes":
            assert result.correct is False
            assert result.seconds is None
    assert results[0].correct is False
    machine = describe_machine([])
    assert not Record(machine, results[:1], complete=True, not_opened={}).is_correct


def test_wrong_ids_have_no_time(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    wrong = TokenizingBench(job, train_file(job, NUMPY).vocabulary)
    wrong.reference = np.zeros(5, np.uint32)
    results = [wrong.measure_engine(NUMPY_ENGINE), *map(wrong.measure_peer, TOKENIZING_PEERS)]
    assert results[0].correct is False
    for result in results:
        if not result.note:
            assert result.answer == f"NOT the ids of {cpu_engine()}"
            assert result.seconds is None


def test_a_vocabulary_that_was_made_before(tmp_path: Path) -> None:
    path = tmp_path / "v.bin"
    vocabulary = crossing_vocabulary("llama3")
    vocabulary.save(path)
    options = small(parts=("tokenize",), devices=("cpu",), vocab=str(path), pattern="class")
    record = run(options)
    assert record.is_correct
    assert record.vocabulary == VocabularyFacts(str(path), vocabulary.fingerprint)
    for result in record.results:
        assert (result.vocab_size, result.pattern) == (vocabulary.size, "llama3")


def test_interrupted_run_keeps_results() -> None:
    benchmark = Benchmark(small(devices=("cpu",)))

    def interrupt(*arguments: Any) -> None:
        if benchmark.record.results:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        benchmark.run(interrupt)
    assert len(benchmark.record.results) == 1
    assert not benchmark.record.complete


def test_summary_of_times() -> None:
    assert Times.of([3.0, 1.0, 2.0]) == Times(2.0, 1.0, 3.0, (3.0, 1.0, 2.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ("other",)},
        {"runs": 0},
        {"vocab_size": 256},
        {"pattern": "x"},
        {"parts": ("bpe-train",), "vocab": "v.bin"},
    ],
    ids=str,
)
def test_bad_options(changes: dict[str, Any]) -> None:
    with pytest.raises(LlmgpuError):
        small(**changes)


def test_all_parts_on_numpy(measured: Record) -> None:
    assert measured.complete
    assert_is_read_as_it_was(measured)
    assert set(measured.limits) == {"NumPy"}
    assert list(dict.fromkeys(result.what for result in measured.results)) == list(PARTS)
    for result in measured.results:
        assert result.correct is True or result.note, result
        assert (result.seconds is not None) == (result.correct is True)


def test_parts_about_models_read_no_text() -> None:
    options = small(parts=("train",), devices=("cpu",), runs=1, peers=False, corpus=("missing",))
    record = run(options)
    assert record.text is None
    assert record.is_correct


def test_missing_torch_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises ImportError
    small_parts(monkeypatch)
    parts = tuple(part for part in MODEL_PARTS if part != "startup")
    record = run(small(parts=parts, devices=("cpu",), runs=1))
    assert record.complete
    assert record.is_correct
    assert record.missing_peers == {"torch": "not installed: pip install torch"}
