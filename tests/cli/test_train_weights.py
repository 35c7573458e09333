"""``llmgpu train --weights``: several corpora in shares, and a run of them that resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgpu.lm.runs.records import read_log
from tests.cli.conftest import Run, fails, killed_before
from tests.cli.test_train import SIZES, STEPS, assert_same_weights

TRAIN = ("train", "--vocab", "v.bin", *SIZES, *STEPS, "--device", "cpu", "--steps", "6")


@pytest.fixture
def tokens(llmgpu: Run, corpus: Path, vocab: Path) -> Path:
    """The corpus as a.bin, and its first half as b.bin."""
    (corpus.parent / "half.txt").write_bytes(corpus.read_bytes()[: corpus.stat().st_size // 2])
    for name, text in (("a.bin", "corpus.txt"), ("b.bin", "half.txt")):
        done = llmgpu("tokenize", "--vocab", "v.bin", text, "-o", name, "--device", "cpu")
        assert done.returncode == 0, done.stderr
    return corpus.parent


def test_a_killed_run_with_weights_is_resumed(llmgpu: Run, tokens: Path) -> None:
    mixed = (*TRAIN, "a.bin", "b.bin", "--weights", "0.3,0.7", "--save-interval", "2")
    assert llmgpu(*mixed, "-o", "whole").returncode == 0
    killed_before("step-00000004", 1, tokens, *mixed, "-o", "run")
    done = llmgpu("train", "-o", "run", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_weights(tokens / "run", tokens / "whole")
    facts = read_log(tokens / "run/log.jsonl").facts
    assert facts["options"]["corpus_weights"] == "0.3,0.7"
    assert len(facts["corpus_tokens"]) == 2 and sum(facts["corpus_tokens"]) == facts["tokens"]
    assert llmgpu(*mixed, "--weights", "0.7,0.3", "-o", "other").returncode == 0
    with pytest.raises(AssertionError):
        assert_same_weights(tokens / "other", tokens / "whole")

    again = ("train", "-o", "run", "--resume", "--steps", "8")
    fails(llmgpu(*again, "--weights", "0.5,0.5"), 1, "--weights is 0.5,0.5, but the run in run")
    fails(llmgpu(*again, "b.bin", "a.bin"), 1, "run was started with other tokens")
    (tokens / "run/options.toml").unlink()
    named = ("--vocab", "v.bin", "a.bin", "b.bin")
    fails(
        llmgpu(*again, *named),
        1,
        "the run has --weights 0.3,0.7: name CORPUS and --weights as before",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.bin", "b.bin", "--weights", "1"), "--weights has 1 value for 2 of CORPUS"),
        (("a.bin", "b.bin", "--weights", "1,x"), "--weights has 'x'; use numbers above"),
        (("a.bin", "b.bin", "--weights", "1,0"), "--weights has '0'; use numbers above"),
        (("a.bin", "b.bin", "--weights", "1,inf"), "--weights has 'inf'; use numbers"),
        (("a.bin", "a.bin", "--weights", "1,1"), "name each file once"),
        (("corpus.txt", "half.txt", "--weights", "1,1"), "is text, but --weights takes token fi"),
    ],
)
def test_weights_that_do_not_fit(
    llmgpu: Run, tokens: Path, arguments: tuple[str, ...], message: str
) -> None:
    fails(llmgpu(*TRAIN, *arguments, "-o", "run"), 1, message)
