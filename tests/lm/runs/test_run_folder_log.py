"""The log of a run: what is written comes back, wherever a kill cuts it off, and bits per byte."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from llmgpu.errors import InputError, OutputError
from llmgpu.lm.data.batches import IGNORED_TARGET, token_bytes
from llmgpu.lm.runs.run_folder import (
    StepRecord,
    append_line,
    begin_log,
    evaluation_results,
    perplexity,
    read_log,
    resume_log,
)
from tests.lm.vocabularies import sample_vocabulary

FACTS = {"configuration": {"dim": 64, "name": "tïny"}, "device": "cpu"}
HEAD = b'{"format": "llmgpu-training-log", "version": 1, '


def record_of(step: int, **values: float | None) -> StepRecord:
    return StepRecord(
        **{  # type: ignore[arg-type]
            "step": step,
            "loss": 5.0 / step,
            "learning_rate": 1e-3,
            "grad_norm": 0.5,
            "tokens": 100 * step,
            "tokens_per_second": 1e4,
            "seconds": 0.25 * step,
            "smoothing_loss": 0.0,
            "z_loss": 1e-3,
            **values,
        }
    )


def write_log(path: Path, steps: list[int]) -> list[StepRecord]:
    records = [record_of(step) for step in steps]
    with begin_log(path, FACTS) as log:
        for record in records:
            append_line(log, record.to_json())
    return records


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"an older log\n" * 99)
    records = [record_of(1), record_of(20, validation_loss=2.0, bits_per_byte=1.25)]
    with begin_log(path, FACTS) as log:
        for count, record in enumerate(records):
            append_line(log, record.to_json())
            assert read_log(path).records == records[: count + 1]  # it is there at once
    assert read_log(path).facts == FACTS
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"format": "llmgpu-training-log", "version": 1, **FACTS}
    assert "validation_loss" not in lines[1] and "perplexity" not in lines[1]
    assert lines[2]["perplexity"] == pytest.approx(math.e**2)
    assert set(lines[2]) == {*lines[1], "validation_loss", "perplexity", "bits_per_byte"}


@pytest.mark.parametrize("name", ["smoothing_loss", "z_loss"])
def test_a_log_without_the_parts_of_the_loss_is_refused(tmp_path: Path, name: str) -> None:
    """Unreleased versions logged the sum of all parts."""
    path = tmp_path / "log.jsonl"
    write_log(path, [1])
    facts, line, _ = path.read_bytes().split(b"\n")
    record = json.loads(line)
    del record[name]
    path.write_bytes(b"\n".join([facts, json.dumps(record).encode(), b""]))
    with pytest.raises(InputError, match=f"line 2: {name} is missing or not a number"):
        read_log(path)


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with begin_log(path, {}) as log:
        odd = record_of(1, loss=math.nan, grad_norm=math.inf, validation_loss=1e9)
        append_line(log, odd.to_json())
        numbers = record_of(2, loss=np.float32(0.5), tokens=np.int64(7))  # type: ignore[arg-type]
        append_line(log, numbers.to_json())
    line = json.loads(path.read_bytes().split(b"\n")[1])
    assert line["loss"] is line["grad_norm"] is line["perplexity"] is None
    first, second = read_log(path).records
    assert math.isnan(first.loss) and math.isnan(first.grad_norm)
    assert first.validation_loss == 1e9 and first.bits_per_byte is None
    assert (second.loss, second.tokens) == (0.5, 7)


def test_a_kill_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    records = write_log(path, [1, 2, 3])
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(ends[0], len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = sum(end <= length for end in ends) - 1
        assert read_log(path).records == records[:kept]
        with resume_log(path, read_log(path).lines) as log:
            for record in records[kept:]:
                append_line(log, record.to_json())
        assert path.read_bytes() == whole


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_resumed_log_lacks_later_records(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "log.jsonl"
    records = write_log(path, [10, 20, 30])
    with resume_log(path, read_log(path).lines[: 1 + kept]) as log:
        append_line(log, record_of(35).to_json())
    assert read_log(path).records == [*records[:kept], record_of(35)]
    assert read_log(path).facts == FACTS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no complete line"),
        (b'{"format": "llmgpu-training-log"', "it has no complete line"),
        (b"text\n", r"line 1: not JSON"),
        (b"[]\n", r"line 1: not a JSON object"),
        (b"{}\n", r"is not the log of a training run \(llmgpu-training-log 1\)"),
        (b'{"format": "llmgpu-training-log", "version": 2}\n', "is not the log of a training run"),
        (HEAD + b'"command": 7}\n', "line 1: command is '7', not a text"),
        (HEAD + b'"command": null}\n', "line 1: command is 'None', not a text"),
    ],
)
def test_what_is_no_log(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_log(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\0\0\0\0", r"line 3: not JSON"),
        (b"[1]", r"line 3: not a JSON object"),
        (b"{}", r"line 3: step is missing or not a number"),
        (b'{"step": 2.5}', r"line 3: step is missing or not a number"),
        (b'{"step": true}', r"line 3: step is missing or not a number"),
        (b'{"step": 2%s}' % (b"0" * 400), r"step is missing or not a number"),
        (b'{"step": 2, "loss": 9%s}' % (b"9" * 400), r"line 3: loss is missing or not a number"),
        (b'{"step": 2, "loss": "3"}', r"line 3: loss is missing or not a number"),
        (b'{"step": 2, "loss": 3}', r"line 3: learning_rate is missing or not a number"),
    ],
)
def test_damaged_records(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "log.jsonl"
    write_log(path, [1, 2])
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:]]))
    with pytest.raises(InputError, match=message):
        read_log(path)


def test_logs_that_can_not_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't read the log .*log.jsonl: No such file"):
        read_log(tmp_path / "log.jsonl")
    with pytest.raises(OutputError, match=r"can't write .*log.jsonl: No such file"):
        begin_log(tmp_path / "missing" / "log.jsonl", {})


def test_bits_per_byte_leave_special_tokens_out() -> None:
    vocabulary = sample_vocabulary()
    sizes = token_bytes(vocabulary)
    end = vocabulary.size - 1
    assert sizes[end] == 0
    rng = np.random.default_rng(2)
    targets = rng.integers(0, end, (6, 50)).astype(np.uint32)
    targets[2, ::7] = end
    targets[5, 20:] = IGNORED_TARGET
    losses = rng.random((6, 50)).astype(np.float32)
    nats = text_nats = 0.0
    count = text_bytes = 0
    for loss, target in zip(losses.ravel().tolist(), targets.ravel().tolist(), strict=True):
        if target != IGNORED_TARGET:
            nats, count = nats + loss, count + 1
        if target < end:
            text_nats += loss
            text_bytes += len(vocabulary.tokens[target])
    batches = ((targets[rows], losses[rows]) for rows in np.split(np.arange(6), 3))
    expected = nats / count, text_nats / math.log(2) / text_bytes
    assert evaluation_results(batches, sizes) == pytest.approx(expected, rel=1e-12)


def test_evaluation_of_nothing() -> None:
    sizes = np.array([0], np.uint32)
    assert evaluation_results([], sizes) == (None, None)
    special_only = [(np.zeros(3, np.uint32), np.ones(3))]
    assert evaluation_results(special_only, sizes) == (1.0, None)
    assert (
        perplexity(0.0) == 1.0 and perplexity(1e6) == math.inf and math.isnan(perplexity(math.nan))
    )


def test_uniform_guesses_over_bytes_are_eight_bits() -> None:
    sizes = np.ones(256, np.uint32)
    losses = np.full(1_000, math.log(256))
    targets = np.arange(1_000, dtype=np.uint32) % 256
    assert evaluation_results([(targets, losses)], sizes)[1] == pytest.approx(8.0)
