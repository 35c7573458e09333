"""``llmgpu train --weights``: several corpora in shares, and a run of them that resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llmgpu.lm.runs.run_folder import read_log
from tests.cli.conftest import Run, fails, killed_before
from tests.cli.test_train import SIZES, STEPS, assert_same_weights
from tests.harness.arguments import overridden

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
    assert llmgpu(*overridden(*mixed, "--weights", "0.7,0.3"), "-o", "other").returncode == 0
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


@pytest.mark.slow
def test_texts_with_weights_are_as_their_tokens(llmgpu: Run, tokens: Path) -> None:
    mixed = (*TRAIN, "corpus.txt", "b.bin", "--weights", "0.3,0.7", "--save-interval", "2")
    as_ids = (*TRAIN, "a.bin", "b.bin", "--weights", "0.3,0.7", "-o", "ids")
    assert llmgpu(*as_ids).returncode == 0
    # Killed while its first text is tokenized, and in the training.
    killed_before("made-from.json", 1, tokens, *mixed, "-o", "run")
    killed_before("step-00000004", 1, tokens, "train", "-o", "run", "--resume")
    done = llmgpu("train", "-o", "run", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_weights(tokens / "run", tokens / "ids")
    facts = read_log(tokens / "run/log.jsonl").facts
    assert facts["corpus_tokens"] == read_log(tokens / "ids/log.jsonl").facts["corpus_tokens"]

    # Each text has tokens of its own; others of an earlier run are removed.
    texts = (*TRAIN, "half.txt", "corpus.txt", "--weights", "0.7,0.3", "-o", "run", "--force")
    assert llmgpu(*texts).returncode == 0
    folders = tokens / "run/tokens"
    assert sorted(path.name for path in folders.iterdir()) == ["0", "1"]
    inode = (folders / "1/tokens-000000.bin").stat().st_ino
    assert llmgpu(*texts).returncode == 0
    assert (folders / "1/tokens-000000.bin").stat().st_ino == inode  # used again
    assert llmgpu(*TRAIN, "corpus.txt", "-o", "run", "--force").returncode == 0
    assert not any(path.is_dir() for path in folders.iterdir())
    with open(tokens / "half.txt", "ab") as file:
        file.write(b"more")
    assert llmgpu(*texts, "--save-interval", "3").returncode == 0
    assert sorted(path.name for path in folders.iterdir()) == ["0", "1"]


def test_conversations_and_tokens_with_weights(llmgpu: Run, tokens: Path) -> None:
    turns = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "b c " * 40}]
    line = json.dumps({"messages": turns, "body": "a b c " * 40})
    (tokens / "chats.jsonl").write_text(f"{line}\n" * 30)
    special = ("--special-token", "<|im_start|>", "--special-token", "<|im_end|>")
    sized = ("--vocab-size", "280", "--device", "cpu")
    done = llmgpu("bpe-train", "corpus.txt", "-o", "v.bin", *sized, *special)
    assert done.returncode == 0, done.stderr
    done = llmgpu("tokenize", "--vocab", "v.bin", "half.txt", "-o", "b.bin", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    mixed = (*TRAIN, "b.bin", "chats.jsonl", "--weights", "1,3")
    done = llmgpu(*mixed, "--chat", "-o", "chat")
    assert done.returncode == 0, done.stderr
    assert {"loss_mask_crc32", "corpus_tokens"} < set(read_log(tokens / "chat/log.jsonl").facts)
    # Two corpora of the same conversations: each is limited and masked on its own.
    shutil.copy(tokens / "chats.jsonl", tokens / "same.jsonl")
    both = ("chats.jsonl", "same.jsonl", "--weights", "1,3", "--chat", "--limit", "4000")
    done = llmgpu(*TRAIN, *both, "-o", "both")
    assert done.returncode == 0, done.stderr
    for name in ("tokens-000000.bin", "tokens-000000.bin.mask.npy"):
        first, second = ((tokens / "both/tokens" / each / name).read_bytes() for each in "01")
        assert first == second
    done = llmgpu(
        *TRAIN, "half.txt", "chats.jsonl", "--weights", "1,3", "--text-field", "body", "-o", "run"
    )
    assert done.returncode == 0, done.stderr
    fails(llmgpu(*mixed, "--text-field", "nothing", "-o", "other"), 1, "nothing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.bin", "b.bin", "--weights", "1"), "--weights has 1 value, but CORPUS has 2 names"),
        (("a.bin", "b.bin", "--weights", "1,x"), "--weights has 'x'; use numbers above"),
        (("a.bin", "b.bin", "--weights", "1,0"), "--weights has '0'; use numbers above"),
        (("a.bin", "b.bin", "--weights", "1,inf"), "--weights has 'inf'; use numbers"),
        (
            ("a.bin", "a.bin", "--weights", "1,1"),
            "a.bin is in two of the corpora of --weights: name it",
        ),
        (("half.txt", "./half.txt", "--weights", "1,1"), "half.txt is in two of the corpora"),
    ],
)
def test_weights_that_do_not_fit(
    llmgpu: Run, tokens: Path, arguments: tuple[str, ...], message: str
) -> None:
    fails(llmgpu(*TRAIN, *arguments, "-o", "run"), 1, message)
