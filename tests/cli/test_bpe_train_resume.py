"""``llmgpu bpe-train --checkpoint``: a process is killed, and another one ends its work."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bpe.training.checkpoint import Checkpoint
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import Training, train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.counts_file import save_counts
from llmgpu.resume_key import FILES, file_facts
from llmgpu.text.corpus import corpus_from_bytes
from tests.cli.conftest import COMMAND, Run, environment, fails, killed_before

LEFT = ["options.toml", "run.json"]  # in the folder of a finished run
OPTIONS = ("--device", "cpu", "--vocab-size", "700,6000", "--special-token", "<|end|>")


@pytest.fixture
def long_words(tmp_path: Path) -> Path:
    """A text of many different words, which take a while to merge."""
    rng = np.random.default_rng(5)
    letters = rng.integers(97, 105, (250_000, 12), dtype=np.uint8)
    letters[:, -1] = ord(" ")
    path = tmp_path / "long.txt"
    path.write_bytes(letters.tobytes())
    return path


def kill_while_it_merges(folder: Path, *arguments: str) -> None:
    log = folder / "kept" / "merges"
    with subprocess.Popen(
        [sys.executable, "-m", "llmgpu", "bpe-train", *arguments],
        cwd=folder,
        env=environment(),
        stderr=subprocess.DEVNULL,
    ) as child:
        deadline = time.monotonic() + 200
        while not log.exists() or log.stat().st_size < 4000:
            assert child.poll() is None, "it was done before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        assert child.wait(timeout=200) == -signal.SIGKILL


def test_resume_needs_nothing_but_the_folder(llmgpu: Run, corpus: Path) -> None:
    """The options are those that the killed run was given, values that are read back included."""
    options = ("--pattern-regex", r"\w+|\W+", "--special-token", '<a "b\u00e9">', "--exclude", "x*")
    run = ("bpe-train", "corpus.txt", "--device", "cpu", "--vocab-size", "300,290", *options)
    expected = llmgpu(*run, "-o", "w.bin", "-q")
    assert expected.returncode == 0, expected.stderr
    killed_before("v-290.bin", 1, corpus.parent, *run, "-o", "v.bin", "--checkpoint", "kept")
    done = llmgpu("bpe-train", "--checkpoint", "kept", "--resume")
    assert done.returncode == 0 and b"resuming from kept" in done.stderr, done.stderr
    for size in (290, 300):
        made = (corpus.parent / f"v-{size}.bin").read_bytes()
        assert made == (corpus.parent / f"w-{size}.bin").read_bytes()
    done = llmgpu("bpe-train", "--checkpoint", "kept", "--resume", "--log-format", "json")
    assert b"nothing to do: v-290.bin, v-300.bin are finished" in done.stderr
    options_file = corpus.parent / "kept" / "options.toml"
    moved = options_file.read_text().replace(str(corpus.parent), "/elsewhere")
    options_file.write_text(moved)
    done = llmgpu("bpe-train", "--checkpoint", "kept", "--resume")
    fails(done, 2, "was started in /elsewhere: resume it there, or name CORPUS and --output")


@pytest.mark.slow
def test_a_killed_run_is_resumed(llmgpu: Run, long_words: Path) -> None:
    folder = long_words.parent
    arguments = ("long.txt", "-o", "v.bin", *OPTIONS, "--checkpoint", "kept")
    kill_while_it_merges(folder, *arguments)
    assert not (folder / "v-700.bin").exists() and not (folder / "v-6000.bin").exists()
    fails(llmgpu("bpe-train", *arguments), 1, "kept exists already: use --resume")
    other = [*arguments, "--resume", "--min-frequency", "3"]
    fails(llmgpu("bpe-train", *other), 1, "minimum frequency was 2 and is 3 now")
    done = llmgpu("bpe-train", *arguments, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert b"resuming from kept" in done.stderr
    assert sorted(path.name for path in (folder / "kept").iterdir()) == LEFT
    assert json.loads(done.stdout)["new_merges"] == 6000 - 257
    alone = llmgpu("bpe-train", "long.txt", "-o", "w.bin", *OPTIONS, "-q")
    assert alone.returncode == 0
    for size in (700, 6000):
        made, expected = folder / f"v-{size}.bin", folder / f"w-{size}.bin"
        assert made.read_bytes() == expected.read_bytes()


def test_a_corpus_that_has_changed_is_refused(llmgpu: Run, long_words: Path) -> None:
    arguments = ("long.txt", *OPTIONS, "--checkpoint", "kept")
    kill_while_it_merges(long_words.parent, *arguments)
    with open(long_words, "ab") as text:
        text.write(b"more")
    fails(llmgpu("bpe-train", *arguments, "--resume"), 1, "corpus files")
    assert (long_words.parent / "kept" / "merges").exists()


def test_nothing_to_resume(llmgpu: Run, corpus: Path) -> None:
    arguments = ("--device", "cpu", "--vocab-size", "300", "--checkpoint", "kept", "--resume")
    done = llmgpu("bpe-train", "corpus.txt", *arguments)
    assert done.returncode == 0
    assert b"note: there is no kept to resume from: starting from scratch" in done.stderr
    assert sorted(path.name for path in corpus.parent.iterdir()) == ["corpus.txt", "kept", "v.bin"]
    assert sorted(path.name for path in (corpus.parent / "kept").iterdir()) == LEFT


def test_no_run_and_no_text(tmp_path: Path) -> None:
    for checkpoint, code, message in (
        ((), 2, "--resume needs --checkpoint FOLDER"),
        (("--checkpoint", "gone"), 1, "gone does not exist, so there is no run to resume"),
    ):
        command = [*COMMAND, "bpe-train", "--resume", *checkpoint]
        done = subprocess.run(  # nothing is piped in
            command, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, capture_output=True
        )
        fails(done, code, message)


def test_a_finished_run_has_nothing_left_to_do(llmgpu: Run, corpus: Path) -> None:
    """It is known by its folder; what differs in any way from what was done is trained."""
    made, scratch = corpus.parent / "v.bin", b"had other options: starting from scratch"
    command = ("bpe-train", "corpus.txt", "--device", "cpu", "--checkpoint", "kept")
    sizes = ("--vocab-size", "300")
    assert llmgpu(*command, *sizes).returncode == 0
    expected = made.read_bytes()
    done = llmgpu(*command, *sizes, "--resume", "--json")
    assert done.stderr == b"nothing to do: v.bin is finished\n"
    facts = json.loads(done.stdout)
    assert facts["fingerprint"] == Vocabulary.load(made).fingerprint
    assert (facts["output"], facts["vocab_size"]) == ("v.bin", 300)

    made.write_bytes(b"")
    assert scratch in llmgpu(*command, *sizes, "--resume", "--force").stderr
    assert made.read_bytes() == expected
    made.unlink()
    assert scratch in llmgpu(*command, *sizes, "--resume").stderr
    assert made.read_bytes() == expected
    for other in (
        ("--vocab-size", "301"),
        (*sizes, "--max-token-length", "3"),
        (*sizes, "-o", "w"),
    ):
        assert scratch in llmgpu(*command, *other, "--resume").stderr
    assert llmgpu(*command, *sizes, "-o", "v.bin").returncode == 0  # needs no --resume
    piped = ("bpe-train", *command[2:], *sizes, "--resume")
    for text in (b"abab" * 9, b"cdcd" * 9):
        assert llmgpu(*piped, stdin=text).returncode == 0
    assert b"cdcd" in Vocabulary.load(made).tokens
    with open(corpus, "ab") as more:
        more.write(b"more")
    assert scratch in llmgpu(*command, *sizes, "--resume").stderr
    written = llmgpu(*command, *sizes, "--resume", "-o", "-", "-q")
    assert Vocabulary.from_bytes(written.stdout).size == 300
    assert not (corpus.parent / "kept").exists()


def test_starting_from_scratch_replaces_only_the_own_file(llmgpu: Run, corpus: Path) -> None:
    command = ("bpe-train", "corpus.txt", "--device", "cpu", "--vocab-size")
    kept = ("--checkpoint", "kept", "--resume")
    assert llmgpu(*command, "300", *kept, "-o", "w.bin").returncode == 0
    assert llmgpu(*command, "280").returncode == 0
    other = (corpus.parent / "v.bin").read_bytes()
    fails(llmgpu(*command, "301", *kept), 1, "v.bin exists already")
    assert (corpus.parent / "v.bin").read_bytes() == other
    assert llmgpu(*command, "301", *kept, "-o", "w.bin").returncode == 0


def test_a_run_that_fails_before_it_does_anything_leaves_no_checkpoint(
    llmgpu: Run, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    done = llmgpu("bpe-train", "empty.txt", "--device", "cpu", "--checkpoint", "kept")
    fails(done, 1, "the corpus is empty")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_options_of_checkpoints(llmgpu: Run, corpus: Path) -> None:
    fails(llmgpu("bpe-train", "corpus.txt", "--resume"), 2, "--resume needs --checkpoint")
    done = llmgpu("bpe-train", "corpus.txt", "--checkpoint", "kept", "--engine", "recount")
    fails(done, 2, "--checkpoint can't be combined with --engine recount")
    assert [path.name for path in corpus.parent.iterdir()] == ["corpus.txt"]


def test_what_began_with_another_version_of_unicode_keeps_it(llmgpu: Run, tmp_path: Path) -> None:
    """A checkpoint and word counts of Unicode 18; a checkpoint that says no version is refused."""
    text = "x\u0558y \u0295Ali \u0295Umar ".encode() * 30
    (tmp_path / "t.txt").write_bytes(text)
    options = TrainingOptions(275, "o200k", unicode="18.0")
    run = options.facts() | {FILES: [["t.txt", *file_facts(str(tmp_path / "t.txt"))[1:]]]}
    run |= {"text_field": "text", "encoding_errors": "raw", "doc_separators": [], "limit": None}
    counts = Training(options, NUMPY).count(corpus_from_bytes(text))
    checkpoint = Checkpoint.begin(tmp_path / "kept", run)
    save_counts(checkpoint.counts_path, counts)
    checkpoint.close()
    save_counts(tmp_path / "c", counts)
    expected = train_vocabulary(counts, options, NUMPY).vocabulary
    common = ("--device", "cpu", "-q", "--vocab-size", "275")
    shutil.copytree(tmp_path / "kept", tmp_path / "old")
    del run["Unicode version"]
    content = json.loads((tmp_path / "old" / "run.json").read_bytes()) | {"run": run}
    (tmp_path / "old" / "run.json").write_text(json.dumps(content))
    old = ("t.txt", "--pattern", "o200k", "--checkpoint", "old", "--resume", "-o", "old.bin")
    message = 'old is the checkpoint of another run: Unicode version was null and is "16.0" now'
    fails(llmgpu("bpe-train", *old, *common), 1, message)
    resume = ("t.txt", "--pattern", "o200k", "--checkpoint", "kept", "--resume")
    for source, output in ((resume, "resumed.bin"), (("--from-counts", "c"), "counted.bin")):
        assert llmgpu("bpe-train", *source, *common, "-o", output).returncode == 0
        assert (tmp_path / output).read_bytes() == expected.to_bytes()
    more = ("t.txt", "--seed-vocab", "counted.bin", "-q", "--vocab-size", "280", "-o", "more.bin")
    assert llmgpu("bpe-train", *more, "--device", "cpu").returncode == 0
    assert Vocabulary.load(tmp_path / "more.bin").unicode == "18.0"
    newer = ("t.txt", "--pattern", "o200k", "--save-counts", "d", "-o", "w.bin")
    assert llmgpu("bpe-train", *newer, *common).returncode == 0
    assert Vocabulary.load(tmp_path / "w.bin").unicode == "16.0"
    mixed = llmgpu("bpe-train", "--from-counts", "c", "--from-counts", "d", *common)
    fails(mixed, 1, "c and d can't be added up: Unicode version '18.0' and '16.0'")
    other = llmgpu("bpe-train", "--from-counts", "d", "--seed-vocab", "counted.bin", *common)
    fails(other, 1, "d: the words were cut by Unicode version '16.0', not by '18.0'")
    facts = llmgpu("info", "w.bin").stdout.decode()
    assert "Unicode version: 16.0\n" in facts
    exported = llmgpu("export", "counted.bin", "--to", "huggingface", "-o", "t.json")
    assert exported.returncode == 0
    assert b"note: the pattern uses the character classes of Unicode 18.0" in exported.stderr
    assert b"Unicode" not in llmgpu("export", "w.bin", "--to", "tiktoken", "-o", "r").stderr
