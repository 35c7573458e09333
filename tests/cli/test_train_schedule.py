"""``llmgpu train --schedule``: runs that are continued to more steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmgpu.lm.runs.run_folder import read_log
from tests.cli.conftest import Run
from tests.cli.test_train import SIZES, STEPS, assert_same_weights

TRAIN = ("train", "--vocab", "v.bin", "corpus.txt", *SIZES, *STEPS, "--device", "cpu")
WSD = (*TRAIN, "--schedule", "wsd", "--warmup-steps", "2", "--optimizer", "muon")


def test_a_run_continued_to_more_steps_is_one_of_that_many(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    """The first 10 steps end with a decay of 4, which the 20 steps have at their end."""
    folder = corpus.parent
    options = ("--decay-steps", "4", "--keep", "1")
    done = llmgpu(*WSD, "-o", "run", "--steps", "10", *options)
    assert done.returncode == 0, done.stderr
    shutil.copytree(folder / "run/step-00000010", folder / "ten")
    more = llmgpu("train", "-o", "run", "--resume", "--steps", "20")
    assert more.returncode == 0, more.stderr
    assert b"resuming from run/step-00000006" in more.stderr
    assert b"kept as run/decayed-00000010, with its log" in more.stderr
    assert_same_weights(folder / "run/decayed-00000010", folder / "ten")
    assert read_log(folder / "run/decayed-00000010/log.jsonl").records[-1].step == 10
    assert llmgpu(*WSD, "-o", "whole", "--steps", "20", *options).returncode == 0
    assert_same_weights(folder / "run/step-00000020", folder / "whole/step-00000020")
    assert sorted(each.name for each in (folder / "run").glob("step-*")) == [
        "step-00000016",
        "step-00000020",
    ]


def test_what_more_steps_do_to_a_cosine_is_said(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    assert llmgpu(*TRAIN, "-o", "run", "--steps", "4").returncode == 0
    more = llmgpu("train", "-o", "run", "--resume", "--steps", "8")
    assert more.returncode == 0, more.stderr
    assert b"8 steps instead of 4 change the learning rate: that of step 5 is " in more.stderr
    again = llmgpu("train", "-o", "run", "--resume")
    assert b"change the learning rate" not in again.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--warmup-steps", "50", "--steps", "5"),
            "a warm-up of 50 steps can't fit in --steps 5",
        ),
        (
            ("--schedule", "wsd", "--steps", "10", "--warmup-steps", "5", "--decay-steps", "6"),
            "a warm-up of 5 and a decay of 6 steps can't fit in --steps 10",
        ),
        (("--decay-steps", "6"), "needs --schedule wsd"),
        (("--beta2", "0"), "beta2 is 0"),
    ],
)
def test_options_that_make_no_sense_together(
    llmgpu: Run, corpus: Path, vocab: Path, options: tuple[str, ...], message: str
) -> None:
    done = llmgpu(*TRAIN, "-o", "run", *options)
    assert done.returncode == 1 and message.encode() in done.stderr
    assert not (corpus.parent / "run").exists()
