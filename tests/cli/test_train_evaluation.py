"""``llmgpu train``: what it is evaluated on, its samples, and what changes a run that continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgpu.lm.runs.run_folder import read_log
from tests.cli.conftest import Run, fails
from tests.cli.test_train import SIZES, STEPS, assert_same_weights

TRAIN = ("train", "--vocab", "v.bin", "corpus.txt", *SIZES, *STEPS, "--device", "cpu")


def test_a_text_to_evaluate_on(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    folder = corpus.parent
    (folder / "other.txt").write_bytes(corpus.read_bytes()[:2000])
    command = (*TRAIN, "-o", "run", "--steps", "4", "--eval-corpus", "other.txt")
    done = llmgpu(*command)
    assert done.returncode == 0, done.stderr
    log = read_log(folder / "run/log.jsonl")
    whole = llmgpu(*TRAIN, "-o", "plain", "--steps", "4", "--eval-fraction", "0")
    assert whole.returncode == 0, whole.stderr
    # All of CORPUS is trained on.
    facts = read_log(folder / "plain/log.jsonl").facts
    assert log.facts["training_tokens"] == facts["training_tokens"]
    assert_same_weights(folder / "run/step-00000004", folder / "plain/step-00000004")
    assert log.facts["evaluation_sequences"] > 1 and log.records[-1].validation_loss is not None
    assert llmgpu("train", "-o", "run", "--resume", "--steps", "6").returncode == 0
    (folder / "other.txt").write_bytes(corpus.read_bytes()[:3000])
    changed = llmgpu("train", "-o", "run", "--resume", "--steps", "8")
    assert changed.returncode == 1 and b"another text" in changed.stderr
    both = llmgpu(*command, "--eval-fraction", "0.1")
    assert both.returncode == 2 and b"--eval-corpus" in both.stderr


def test_samples_are_taken_and_change_nothing(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    folder = corpus.parent
    common = ("--save-interval", "2", "--keep", "9")
    sampled = llmgpu(*TRAIN, "-o", "run", "--steps", "4", *common, "--sample-every", "2")
    assert sampled.returncode == 0, sampled.stderr
    assert b"sample of step 2: " in sampled.stderr
    lines = (folder / "run/samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]
    assert llmgpu(*TRAIN, "-o", "plain", "--steps", "4", *common).returncode == 0
    assert_same_weights(folder / "run/step-00000004", folder / "plain/step-00000004")
    assert llmgpu("train", "-o", "run", "--resume", "--steps", "6").returncode == 0
    lines = (folder / "run/samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4, 6]


def test_the_speed_is_logged_and_another_device_is_named(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    folder = corpus.parent
    done = llmgpu(*TRAIN, "-o", "run", "--steps", "4", "--peak-tflops", "2")
    assert done.returncode == 0, done.stderr
    record = read_log(folder / "run/log.jsonl").records[-1]
    assert record.teraflops and record.mfu == record.teraflops / 2
    log = folder / "run/log.jsonl"
    device = read_log(log).facts["device"]
    log.write_text(log.read_text().replace(json.dumps(device), json.dumps("another device"), 1))
    more = llmgpu("train", "-o", "run", "--resume", "--steps", "6")
    assert more.returncode == 0, more.stderr
    assert f"its device was another device and is {device} now".encode() in more.stderr


@pytest.mark.parametrize("speed", ["inf", "nan", "1e400"])
def test_a_speed_that_is_not_finite(llmgpu: Run, corpus: Path, vocab: Path, speed: str) -> None:
    done = llmgpu(*TRAIN, "-o", "run", "--steps", "1", "--peak-tflops", speed)
    fails(done, 1, f"--peak-tflops is {float(speed)}, but must be finite")
