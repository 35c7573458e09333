"""Options of `train` from files: run.toml, and what a run keeps for --resume."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest

from llmgpu.lm.runs.run_folder import read_log
from tests.cli.conftest import Run, fails, run_process

SIZES = {"dim": 32, "layers": 1, "heads": 2, "seq-len": 32, "steps": 3}
OPTIONS = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]


def write(path: Path, **options: object) -> None:
    """Write options as TOML; JSON has texts, numbers and lists in the same way."""
    lines = (f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in options.items())
    path.write_text("".join(lines))


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(record.step, record.loss) for record in read_log(folder / "log.jsonl").records]


def test_a_file_gives_the_options_that_the_command_line_does_not(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    folder = corpus.parent
    text = {"vocab": "v.bin", "corpus": "corpus.txt", "doc_separator": ["low"]}
    sizes = {"seq_len": 32, "dim": 32, "layers": 1, "heads": 2, "steps": 9}
    write(folder / "run.toml", **text, **sizes, device="cpu", tied=False, lr=1e-2)
    done = llmgpu("train", "--config", "run.toml", "-o", "run", "--steps", "3")
    assert done.returncode == 0, done.stderr
    same = ("--untied", "--lr", "1e-2", "--device", "cpu", "--doc-separator", "low")
    named = llmgpu("train", "--vocab", "v.bin", "corpus.txt", "-o", "named", *OPTIONS, *same)
    assert named.returncode == 0, named.stderr
    assert losses(folder / "run") == losses(folder / "named")
    kept = [
        tomllib.loads((folder / name / "options.toml").read_text()) for name in ("run", "named")
    ]
    assert kept[0] == kept[1]
    assert kept[0] == SIZES | {
        "started-in": str(folder),
        "vocab": "v.bin",
        "corpus": ["corpus.txt"],
        "tied": False,
        "lr": 0.01,
        "device": "cpu",
        "doc-separator": ["low"],
    }
    llmgpu("train", "--config", "run/options.toml", "-o", "again")
    assert losses(folder / "again") == losses(folder / "run")
    again = llmgpu("train", "--config", "named/options.toml", "-o", "run", "--force")
    assert again.returncode == 0, again.stderr
    assert tomllib.loads((folder / "run/options.toml").read_text()) == kept[1]


def test_resuming_needs_only_the_folder(
    llmgpu: Run, corpus: Path, vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus.parent
    start = ("train", "--vocab", "v.bin", "corpus.txt", *OPTIONS, "--device", "cpu", "--lr", "0.01")
    assert llmgpu(*start, "-o", "run").returncode == 0
    before, status = (folder / "run" / "options.toml").read_bytes(), corpus.stat()
    (folder / "other.txt").write_bytes(corpus.read_bytes() * 2)
    for other in (("other.txt",), ("--eval-corpus", "other.txt"), ("--steps", "9", "other.txt")):
        refused = llmgpu("train", "-o", "run", "--resume", *other)
        assert refused.returncode == 1, refused.stderr
        assert (folder / "run" / "options.toml").read_bytes() == before
    fails(llmgpu("train", "-o", "nope", "--resume"), 1, "nope does not exist, so there is no run")
    (folder / "begun").mkdir()
    message = "begun has neither options.toml nor a checkpoint, so there is no run to resume"
    fails(llmgpu("train", "-o", "begun", "--resume"), 1, message)
    finished = llmgpu("train", "-o", "run", "--resume")
    assert finished.returncode == 0 and b"nothing to do" in finished.stderr
    assert llmgpu("train", "-o", "run", "--resume", "--steps", "5").returncode == 0
    assert losses(folder / "run")[-1][0] == 5
    finished = llmgpu("train", "-o", "run", "--resume")
    assert b"nothing to do: 5 of 5 steps" in finished.stderr
    fails(llmgpu("train", "-o", "run", "--resume", "--dim", "64"), 1, "dim is 64")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    done = run_process(elsewhere, ("train", "-o", "../run", "--resume", "--steps", "6"), b"")
    assert done.returncode == 0 and losses(folder / "run")[-1][0] == 6, done.stderr
    refused = run_process(elsewhere, ("train", "-o", "../run", "--resume", "--vocab", "v.bin"), b"")
    fails(refused, 2, f"the run was started in {folder}: resume it there, or name")
    again = ("train", "-o", "../run", "--resume", "--vocab", "../v.bin", "../corpus.txt")
    done = run_process(elsewhere, (*again, "--steps", "7"), b"")
    assert done.returncode == 0 and losses(folder / "run")[-1][0] == 7, done.stderr
    os.utime(corpus, ns=(0, 0))  # another file of this name
    refused = run_process(elsewhere, (*again, "--steps", "8"), b"")
    fails(refused, 1, "has the tokens of another text")
    fails(refused, 1, "; --init ../run starts a new run from its weights")
    os.utime(corpus, ns=(status.st_atime_ns, status.st_mtime_ns))
    kept = folder / "run" / "options.toml"
    kept.write_text(kept.read_text().replace(str(folder), "/elsewhere"))
    fails(llmgpu("train", "-o", "run", "--resume"), 2, "the run was started in /elsewhere")
    named = llmgpu("train", "-o", "run", "--resume", "--vocab", "v.bin", "corpus.txt")
    assert named.returncode == 0, named.stderr
    kept.unlink()
    fails(llmgpu("train", "-o", "run", "--resume"), 2, "--vocab")
    shutil.rmtree(folder / "run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dims = 3", "has 'dims', which is not an option: did you mean 'dim'?"),
        ("learning_rate = 3", "'learning_rate', which is not an option: did you mean 'lr'?"),
        ("quiet = true", "has 'quiet', which only the command line may have: --quiet"),
        ("[train]\nsteps = 3", "has 'train', a table: write options without [train] above them"),
        ("untied = true", "has 'untied'"),
        ("resume = true", "has 'resume'"),
        ("debug = true", "has 'debug'"),
        ("dim = {a = 1}", "dim is not a string"),
        ("dim = [[1]]", "dim is not a string"),
        ("dim = 1979-05-27", "dim is not a string"),
        ("weight-decay = []", "weight-decay is a list, but takes one value"),
        ("dim = ", "can't read the options in run.toml"),
        ("\xff", "can't read the options in run.toml"),
        (f"dim = {'[' * 100_000}", "can't read the options in run.toml: nested too deep"),
        (f"dim = {'9' * 5000}", "can't read the options in run.toml"),
        (f"dim = 0x{'f' * 5000}", "can't read the options in run.toml"),
        (f"log-format = 0x{'f' * 5000}", "can't read the options in run.toml"),
        ("#" * (1 << 20) + "\n", "longer than 1 MiB: no file of options is"),
    ],
)
def test_a_file_with_anything_else_is_refused(
    llmgpu: Run, vocab: Path, content: str, message: str
) -> None:
    (vocab.parent / "run.toml").write_bytes(content.encode("latin-1"))
    fails(llmgpu("train", "--config", "run.toml", "-o", "run", "x"), 1, message)
    fails(llmgpu("train", "--config", "missing.toml", "-o", "run", "x"), 1, "missing.toml")
    assert not (vocab.parent / "run").exists()


def test_values_are_checked_as_on_the_command_line(llmgpu: Run, vocab: Path) -> None:
    write(vocab.parent / "run.toml", vocab="v.bin", dim="x")
    fails(llmgpu("train", "--config", "run.toml", "-o", "run"), 2, "'--dim': 'x'")


def test_an_option_that_may_be_repeated_takes_one_value_or_a_list(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    for value in ("cat", ["cat"]):
        write(vocab.parent / "run.toml", vocab="v.bin", corpus="corpus.txt", doc_separator=value)
        done = llmgpu("train", "--config", "run.toml", *OPTIONS, "--device", "cpu", "-o", "run")
        assert done.returncode == 0, done.stderr
        assert 'doc-separator = ["cat"]' in (corpus.parent / "run" / "options.toml").read_text()
        shutil.rmtree(corpus.parent / "run")


@pytest.mark.parametrize("value", ["[7, 'cat']", "7", "1.5", "[true]", "true"])
def test_numbers_are_texts_where_an_option_takes_a_text(
    llmgpu: Run, corpus: Path, vocab: Path, value: str
) -> None:
    lines = ("vocab = 'v.bin'", "corpus = 'corpus.txt'", f"doc-separator = {value}")
    (vocab.parent / "run.toml").write_text("\n".join(lines))
    done = llmgpu("train", "--config", "run.toml", *OPTIONS, "--device", "cpu", "-o", "run")
    assert done.returncode == 0, done.stderr
    kept = tomllib.loads((corpus.parent / "run" / "options.toml").read_text())
    given = tomllib.loads(lines[-1])["doc-separator"]
    given = given if isinstance(given, list) else [given]
    assert kept["doc-separator"] == [str(each).replace("True", "true") for each in given]
    shutil.rmtree(corpus.parent / "run")


def test_true_is_not_a_number(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    for name in ("limit", "seq_len", "lr", "steps"):
        write(vocab.parent / "run.toml", vocab="v.bin", corpus="corpus.txt", **{name: True})
        done = llmgpu("train", "--config", "run.toml", "--device", "cpu", "-o", "run")
        fails(done, 2, f"'--{name.replace('_', '-')}': 'true'")


def test_lines_as_json(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    start = ("train", "--vocab", "v.bin", "corpus.txt", *OPTIONS, "--device", "cpu", "-o", "run")
    done = llmgpu(*start, "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    first = next(line for line in lines if "step" in line)
    assert first["message"].startswith("step 1/3: loss ") and first["step"] == 1
    steps = [line for line in lines if "tokens_per_second" in line]
    assert [(line["step"], line["steps"], line["loss"]) for line in steps] == [
        (step, 3, loss) for step, loss in losses(corpus.parent / "run")
    ]
    noted = llmgpu("info", "missing", "--log-format", "json")
    assert json.loads(noted.stderr).keys() == {"error", "exit_code"}
    fails(llmgpu("info", "--log-format", "xml"), 2, "xml")


def test_errors_have_the_format_that_a_file_asks_for(llmgpu: Run, vocab: Path) -> None:
    for options, code, message in (
        ("vocab = 'v.bin'\ncorpus = 'missing'", 1, "no such file or folder: 'missing'"),
        ("lr = 'high'", 2, "Invalid value for '--lr': 'high' is not a valid float."),
        ("lrs = 1", 1, "run.toml has 'lrs', which is not an option: did you mean 'lr'?"),
    ):
        (vocab.parent / "run.toml").write_text(f'log-format = "json"\n{options}\n')
        command = ("train", "--config", "run.toml", "-o", "run")
        done = llmgpu(*command)
        found = json.loads(done.stderr)
        assert (done.returncode, found["error"], found["exit_code"]) == (code, message, code)
        # The command line overrules the file, and the next command does not read the file.
        fails(llmgpu(*command, "--log-format", "text"), code, message)
        assert llmgpu("info", "missing").stderr.startswith(b"error: ")


def test_names_that_are_not_utf_8_are_not_kept(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    name = os.fsdecode(b"\xff.txt")
    (corpus.parent / name).write_bytes(corpus.read_bytes())
    sizes = ("--dim", "16", "--layers", "1", "--heads", "1", "--seq-len", "16")
    asked = ("--vocab", "v.bin", "-o", "odd", "--device", "cpu", *sizes)
    done = llmgpu("train", name, *asked, "--steps", "1")
    assert done.returncode == 0, done.stderr
    kept = (corpus.parent / "odd" / "options.toml").read_text()
    assert "dim" in kept and "corpus" not in kept
    fails(llmgpu("train", "-o", "odd", "--resume"), 1, 'and is ["-"] now')
    resumed = llmgpu("train", name, "-o", "odd", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    shutil.rmtree(corpus.parent / "odd")
    (corpus.parent / name).unlink()
