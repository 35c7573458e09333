"""``llmgpu train`` and ``llmgpu generate`` as processes: a run, its end, its going on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import list_adapters
from llmgpu.cli.train import say_failure
from llmgpu.lm.checkpoints.checkpoint import load_checkpoint
from llmgpu.lm.checkpoints.safetensors_file import read_tensors
from llmgpu.lm.runs.run_folder import open_run_folder, read_log
from tests.cli.conftest import Run, environment, fails, killed_before, run_here
from tests.harness.arguments import overridden

SIZES = ("--dim", "32", "--layers", "1", "--heads", "2", "--ffn-dim", "48", "--seq-len", "16")
STEPS = ("--batch-size", "4", "--log-interval", "2", "--eval-interval", "4", "--eval-batches", "2")
TRAIN = ("train", "--vocab", "v.bin", "corpus.txt", "-o", "run", *SIZES, *STEPS)


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = load_checkpoint(folder)
    return {**checkpoint.weights, **checkpoint.optimizer}


def assert_same_weights(one: Path, other: Path) -> None:
    expected = weights_of(other)
    for name, values in weights_of(one).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_a_run_leaves_a_log_a_curve_and_a_model(
    llmgpu: Run, corpus: Path, vocab: Path, device_name: str
) -> None:
    done = llmgpu(*TRAIN, "--steps", "8", "--lr", "3e-3", "--device", device_name, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    run = corpus.parent / "run"
    facts = read_log(run / "log.jsonl").facts
    assert facts["options"]["warmup_steps"] == 0
    assert "padded_loss" not in facts["options"] and "f16_version" in facts["options"]
    shown = llmgpu("info", "run").stdout
    assert b"warmup_steps: 0" in shown and b"f16_version" not in shown and b"driver" not in shown
    intervals = {"log": 2, "evaluation": 4, "save": 100, "keep": 2}
    assert facts["intervals"] == {**intervals, "sample": 0, "peak_teraflops": 0.0}
    assert "eos_id" in facts
    log = read_log(run / "log.jsonl")
    assert [record.step for record in log.records] == [2, 4, 6, 8]
    assert log.records[-1].loss < log.records[0].loss
    assert {record.smoothing_loss for record in log.records} == {0.0}
    assert all(0 < (record.z_loss or 0) < 0.01 for record in log.records)
    assert summary["validation_loss"] == log.records[-1].validation_loss
    assert summary["tokens"] == 8 * 4 * 16
    assert 0 < summary["bits_per_byte"] < 8
    assert list(summary["seconds_spent"]) == ["start", "data", "evaluation", "saving"]
    assert summary["tokens_per_second_of_all"] > 0 and summary["tokens_per_second"] > 0
    assert re.search(rb"beside steps: start [0-9.]+ s, data .* with these .* tokens/s", done.stderr)
    assert summary["checkpoint"] == os.path.join("run", "step-00000008")
    assert (run / "loss.svg").read_text().startswith("<svg")
    made = llmgpu("generate", "run", "--prompt", "the", "--max-new-tokens", "5", "--ignore-eos")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(b"the")
    plot = llmgpu("info", "run", "--plot").stdout.decode()
    assert plot.startswith("loss, nats per token") and "at step 8" in plot.splitlines()[-1]
    step = os.path.join("run", "step-00000008")
    inside = f"{step} is a folder without a log.jsonl, not the folder of a run: name"
    fails(llmgpu("info", step, "--plot"), 1, inside)
    fails(llmgpu("info", "v.bin", "--plot"), 1, "v.bin is a file, not the folder of a run: name")
    (corpus.parent / "empty").mkdir()
    fails(llmgpu("info", "empty", "--plot"), 1, "empty is a folder without a log.jsonl, not the")
    told = json.loads(llmgpu("info", "run", "--json").stdout)
    assert told["seconds beside steps"].keys() == summary["seconds_spent"].keys()
    assert (told["step"], told["checkpoints"]) == (8, "step-00000008")
    assert told["bits per byte"] == log.records[-1].bits_per_byte
    told = json.loads(llmgpu("info", summary["checkpoint"], "--json").stdout)
    assert told["model"]["parameters"] == facts["parameters"]
    tokens = llmgpu("info", "run", "--tokens")
    assert tokens.returncode == 0 and tokens.stdout == llmgpu("info", "v.bin", "--tokens").stdout


def test_smoothing_z_loss_and_activation_are_those_asked_for(
    llmgpu: Run, corpus: Path, vocab: Path, device_name: str
) -> None:
    command = (*TRAIN, "--steps", "2", "--device", device_name)
    asked = ("--label-smoothing", "0.1", "--z-loss", "0", "--activation", "gelu")
    done = llmgpu(*command, *asked, "--save-interval", "1")
    assert done.returncode == 0, done.stderr
    # The note on checkpoints comes once, though two of them were written.
    assert done.stderr.count(b"other libraries can't open its checkpoint") == 1
    log = read_log(corpus.parent / "run" / "log.jsonl")
    options = log.facts["options"]
    assert (options["label_smoothing"], options["z_loss"]) == (0.1, 0)
    record = log.records[-1]
    assert record.smoothing_loss != 0 and record.z_loss == 0
    assert load_checkpoint(corpus.parent / "run").config.activation == "gelu"
    assert b"label-smoothing = 0.1" in (corpus.parent / "run" / "options.toml").read_bytes()
    larger = llmgpu(*command, "--force", *asked[:3], "1e-2")
    assert larger.returncode == 0, larger.stderr
    (record,) = read_log(corpus.parent / "run" / "log.jsonl").records
    assert record.z_loss and record.z_loss > 0.01
    fails(llmgpu(*command, "--force", "--label-smoothing", "1"), 1, "--label-smoothing is 1.0")


@pytest.mark.slow
def test_as_many_steps_as_there_are_by_default(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    """All 500, and the last 100 again."""
    command = ("train", "--vocab", "v.bin", "corpus.txt", "-o", "run", *SIZES, "--device", "cpu")
    done = llmgpu(*command)
    assert done.returncode == 0, done.stderr
    run = corpus.parent / "run"
    records = read_log(run / "log.jsonl").records
    assert [record.step for record in records] == list(range(10, 501, 10))
    assert records[-1].loss < 0.8 * records[0].loss
    assert records[-1].tokens == 500 * 8 * 16
    shutil.move(run / "step-00000500", corpus.parent / "step-00000500")
    assert llmgpu(*command, "--resume").returncode == 0
    assert_same_weights(run / "step-00000500", corpus.parent / "step-00000500")
    again = read_log(run / "log.jsonl").records
    assert [(r.step, r.loss, r.validation_loss) for r in again] == [
        (r.step, r.loss, r.validation_loss) for r in records
    ]


@pytest.mark.slow
def test_all_steps_of_the_preset_that_is_the_default(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    done = llmgpu("train", "--vocab", "v.bin", "corpus.txt", "-o", "run", "--device", "cpu", "-q")
    assert done.returncode == 0, done.stderr
    run = corpus.parent / "run"
    log = read_log(run / "log.jsonl")
    assert (log.facts["options"]["steps"], log.records[-1].step) == (500, 500)
    assert log.records[-1].tokens == 500 * 8 * 128
    assert log.records[-1].loss < 0.5 * log.records[0].loss
    assert (run / "step-00000500").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        (),
        ("--optimizer", "adamw-8bit", "--grad-accum", "2"),
        ("--precision", "f16"),
        ("--optimizer", "muon", "--schedule", "wsd", "--initialisation", "fan-in"),
    ],
)
def test_a_killed_run_goes_on_bit_by_bit(
    llmgpu: Run, corpus: Path, vocab: Path, device_name: str, extra: tuple[str, ...]
) -> None:
    command = (*TRAIN, "--steps", "12", "--save-interval", "3", "--device", device_name, *extra)
    whole = llmgpu(*command)
    assert whole.returncode == 0, whole.stderr
    folder = corpus.parent
    shutil.move(folder / "run", folder / "whole")
    killed_before("step-00000006", 1, folder, *command)
    assert (folder / "run" / "step-00000003").is_dir()
    gone_on = llmgpu(*command, "--resume")
    assert gone_on.returncode == 0, gone_on.stderr
    assert_same_weights(folder / "run", folder / "whole")
    one, other = (read_log(folder / name / "log.jsonl").records for name in ("run", "whole"))
    assert [(r.step, r.loss, r.validation_loss) for r in one] == [
        (r.step, r.loss, r.validation_loss) for r in other
    ]


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_being_asked_to_stop_saves_what_is_done(
    llmgpu: Run, corpus: Path, vocab: Path, asked: signal.Signals
) -> None:
    command = (*TRAIN, "--steps", "100000", "--device", "cpu", "--save-interval", "100000")
    child = subprocess.Popen(
        [sys.executable, "-m", "llmgpu", *command],
        cwd=corpus.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for_line(child, b"step 4/")
    os.kill(child.pid, asked)
    _, errors = child.communicate(timeout=200)
    assert child.returncode == 128 + asked, errors
    checkpoint = load_checkpoint(corpus.parent / "run")
    assert f"stopped at step {checkpoint.state.step}; checkpoint in run/step-".encode() in errors
    assert checkpoint.state.step >= 4
    step = str(checkpoint.state.step + 2)
    done = llmgpu(*TRAIN, "--steps", step, "--device", "cpu", "--resume")
    assert done.returncode == 0, done.stderr


def test_a_stored_run_resumes_to_the_weights_that_it_had(llmgpu: Run, tmp_path: Path) -> None:
    """A run of two steps, stored by a commit that lacked options of later ones.

    resumed.safetensors: its weights when that commit resumed it to four steps. Another processor
    rounds differently.
    """
    stored = Path(__file__).parents[1] / "lm" / "recorded" / "run.tar.xz"
    with tarfile.open(stored) as archive:
        archive.extractall(tmp_path, filter="data")
    assert "table_decay" not in load_checkpoint(tmp_path / "run").state.options
    fails(llmgpu("train", "-o", "run", "--resume", "--steps", "4"), 2, "was started in /data")
    done = llmgpu("train", "c.bin", "--vocab", "v.bin", "-o", "run", "--resume", "--steps", "4")
    assert done.returncode == 0, done.stderr
    found = load_checkpoint(tmp_path / "run")
    assert found.state.step == 4
    for name, values in read_tensors(tmp_path / "resumed.safetensors").items():
        np.testing.assert_allclose(found.weights[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def change_training(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change training.json of a checkpoint, and its checksum with it."""
    path = folder / "training.json"
    content = json.loads(path.read_bytes())
    del content["sha256"]
    change(content)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content | {"sha256": digest}))


def test_checkpoints_of_unreleased_versions_are_refused_and_stay(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    """The options of a checkpoint decide what is computed, so none of them is filled in."""
    assert llmgpu(*TRAIN, "--steps", "1", "--device", "cpu").returncode == 0
    run = corpus.parent / "run"
    resume = ("train", "-o", "run", "--resume", "--steps", "2", "--device", "cpu")
    whole = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for change, message in (
        (lambda c: c["options"].pop("table_rate"), "its options lack table_rate, as in unreleased"),
        (lambda c: c["options"].update(padded_loss=False), "its options don't fit: "),
        (lambda c: c.pop("tokens_seen"), "damaged: tokens_seen must be of type int"),
    ):
        change_training(run / "step-00000001", change)
        fails(llmgpu(*resume), 1, message)
        for path, content in whole.items():
            if path.name not in ("training.json", "options.toml"):
                assert path.read_bytes() == content
        (run / "step-00000001" / "training.json").write_bytes(
            whole[run / "step-00000001" / "training.json"]
        )


def wait_for_line(child: subprocess.Popen[bytes], text: bytes) -> None:
    assert child.stderr is not None
    for line in child.stderr:
        if text in line:
            return
    raise AssertionError(f"{text!r} did not come")


@pytest.mark.slow
def test_sparse_updates_change_rows_that_came_up(
    llmgpu: Run, corpus: Path, vocab: Path, device_name: str
) -> None:
    common = (*TRAIN, "--untied", "--weight-decay", "0", "--grad-accum", "2", "--lr", "1e-2")
    losses = []
    for extra in ((), ("--sparse-embedding",)):
        command = (*common, *extra, "--device", device_name, "--save-interval", "1", "--force")
        done = llmgpu(*command, "--keep", "4", "--steps", "4", "--json")
        assert done.returncode == 0, done.stderr
        losses.append(json.loads(done.stdout.splitlines()[-1])["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    run = corpus.parent / "run"
    changed = [row_changes(run, step) for step in (2, 3, 4)]
    assert all(0 < rows.sum() < 2 * 4 * 16 for rows in changed)
    assert (changed[0] != changed[2]).any()
    shutil.rmtree(run / "step-00000004")
    shutil.copytree(run, corpus.parent / "again")
    for name in ("run", "again"):
        gone_on = llmgpu(
            *(name if a == "run" else a for a in command[:-1]), "--steps", "4", "--resume"
        )
        assert gone_on.returncode == 0, gone_on.stderr
    assert_same_weights(run, corpus.parent / "again")


def row_changes(run: Path, step: int) -> np.ndarray:
    """Return which rows of the embedding table a step has changed."""
    name = "model.embed_tokens.weight"
    before, after = (load_checkpoint(run / f"step-{k:08d}").weights[name] for k in (step - 1, step))
    changed: np.ndarray = (before != after).any(axis=1)
    return changed


def test_a_run_that_ended_before_its_first_checkpoint_begins_anew(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    command = (*TRAIN, "--steps", "2", "--device", "cpu")
    fails(llmgpu(*overridden(*command, "--seq-len", "100000")), 1, "tokens are too few")
    assert llmgpu(*command).returncode == 0  # with other sizes, without --force
    shutil.rmtree(corpus.parent / "run" / "step-00000002")
    done = llmgpu(*command, "--resume")
    assert done.returncode == 0
    assert b"run has no checkpoint yet: starting at the first step" in done.stderr


def test_token_files_are_trained_on_as_texts_are(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    llmgpu("tokenize", "--vocab", "v.bin", "corpus.txt", "--format", "bin", "-o", "ids.bin")
    llmgpu("tokenize", "--vocab", "v.bin", "corpus.txt", "--format", "bin", "-o", "many.bin",
           "--shard-tokens", "500")  # fmt: skip
    common = ("--vocab", "v.bin", *SIZES, *STEPS, "--steps", "4", "--device", "cpu")
    for name, source in (("a", "ids.bin"), ("b", "many.json"), ("c", "corpus.txt")):
        done = llmgpu("train", *common, source, "-o", name)
        assert done.returncode == 0, done.stderr
    for other in ("b", "c"):
        assert_same_weights(corpus.parent / "a", corpus.parent / other)


def test_a_run_goes_on_with_its_own_tokens_only(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    other = corpus.with_name("other.txt")
    other.write_bytes(corpus.read_bytes().swapcase())
    command = ("train", "--vocab", "v.bin", "-o", "run", *SIZES, *STEPS, "--device", "cpu")
    for name in ("corpus", "other"):
        files = (f"{name}.txt", "-o", f"{name}.bin")
        llmgpu("tokenize", "--vocab", "v.bin", "--format", "bin", *files)
    assert llmgpu(*command, "corpus.bin", "--steps", "2").returncode == 0
    gone_on = llmgpu(*command, "other.bin", "--steps", "4", "--resume")
    fails(gone_on, 1, "run was started with other tokens: tokens")
    assert llmgpu(*command, "corpus.txt", "--steps", "4", "--resume").returncode == 0


def test_a_resumed_run_does_not_resolve_its_options_again(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    common = (*TRAIN, "--device", "cpu")
    begun = (*common, "--untied", "--sparse-embedding", "--eos", "a", "--warmup-steps", "1")
    assert llmgpu(*begun, "--steps", "2").returncode == 0
    # --sparse-embedding alone would not go with a tied table, which a new run would have.
    done = llmgpu(*common, "--sparse-embedding", "--steps", "3", "--resume")
    assert done.returncode == 0, done.stderr
    checkpoint = load_checkpoint(corpus.parent / "run")
    assert checkpoint.vocabulary.tokens[checkpoint.eos_id or 0] == b"a"
    assert checkpoint.state.options["warmup_steps"] == 1
    fails(llmgpu(*common, "--eos", "b", "--resume"), 1, "--eos is id")
    same = str(checkpoint.eos_id)  # a number is an id
    assert llmgpu(*common, "--eos", same, "--steps", "3", "--resume").returncode == 0


def test_a_folder_with_a_run_is_not_written_over(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    command = (*TRAIN, "--steps", "2", "--device", "cpu")
    assert llmgpu(*command).returncode == 0
    fails(llmgpu(*command), 1, "run already has a run: use --resume")
    refused = llmgpu(*command, "--resume", "--lr", "1")
    fails(refused, 1, "--lr is 1.0, but the run in")
    fails(refused, 1, "or start a new one from its weights (--init run)")
    fails(llmgpu(*command[:-4], "--steps", "1", "--resume"), 1, "has already done 2")
    assert llmgpu(*command, "--resume").returncode == 0  # nothing to do
    fails(llmgpu(*overridden(*command, "--seq-len", "100000"), "--force"), 1, "tokens are too few")
    assert llmgpu(*command, "--resume").returncode == 0  # the old run is still there
    assert llmgpu(*command, "--force").returncode == 0
    with open_run_folder(corpus.parent / "run", resume=True):
        fails(llmgpu(*command, "--force"), 1, "run is in use by process")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--seq-len", "100000"), "200,001"),
        (("--dim", "30", "--heads", "4"), "dim 30 is not a multiple of heads 4"),
        (("--kv-heads", "3"), "heads 2 is not a multiple of kv_heads 3"),
        (("--lr", "nan"), "--lr is nan"),
        (("--sparse-embedding",), "use --untied"),
        (
            ("--sparse-embedding", "--untied", "--optimizer", "adamw-8bit"),
            "--sparse-embedding needs --optimizer adamw or muon, not adamw-8bit",
        ),
        (("--dim", "2000000", "--heads", "2"), "of memory"),
    ],
)
def test_what_cannot_work_is_one_clear_line(
    llmgpu: Run, corpus: Path, vocab: Path, changed: tuple[str, ...], message: str
) -> None:
    done = llmgpu(*overridden(*TRAIN, *changed), "--steps", "2", "--device", "cpu")
    fails(done, 1, message)


def test_a_launcher_of_others_is_told_of(
    llmgpu: Run, corpus: Path, vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = llmgpu(*TRAIN, "--steps", "2", "--device", "cpu", "--lr", "-1")
    assert b"note: WORLD_SIZE=2 has no effect: to train on several GPUs use mpiexec" in done.stderr


def test_tokens_of_another_vocabulary_are_refused(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    llmgpu("tokenize", "--vocab", "v.bin", "corpus.txt", "--format", "bin", "-o", "ids.bin")
    llmgpu("bpe-train", "corpus.txt", "-o", "other.bin", "--vocab-size", "300")
    done = llmgpu("train", "--vocab", "other.bin", "ids.bin", "-o", "run", "--device", "cpu")
    fails(done, 1, "ids.bin")
    assert b"other.bin" in done.stderr


def test_a_loss_that_is_no_number_stops_the_run(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    command = (*TRAIN, "--steps", "60", "--device", "cpu", "--save-interval", "2")
    extra = ("--lr", "1e30", "--min-lr", "0", "--grad-clip", "0", "--warmup-steps", "0")
    done = llmgpu(*command, *extra)
    fails(done, 1, "is not finite")
    assert done.stderr.endswith(b"try a lower --lr, more --warmup-steps\n")


def test_a_rate_of_zero_gets_a_note(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    done = llmgpu(*TRAIN, "--steps", "2", "--device", "cpu", "--lr", "0", "--min-lr", "0")
    assert done.returncode == 0 and b"note: --lr 0 leaves all weights as they are" in done.stderr


def test_documents_without_a_token_at_their_ends_get_a_note(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    start = (*TRAIN, "--steps", "1", "--device", "cpu", "--force")
    for options, is_noted in (
        ((), False),  # a single document
        (("corpus.txt",), True),
        (("corpus.txt", "--eos", "0"), False),
    ):
        done = llmgpu(*start, *options)
        assert done.returncode == 0, done.stderr
        note = b"note: no token ends a document: the vocabulary has none such as <|endoftext|>"
        assert (note in done.stderr) == is_noted, options


def test_half_precision_gives_up_where_no_scale_helps(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    command = (*TRAIN, "--steps", "60", "--device", "cpu", "--precision", "f16")
    extra = ("--lr", "1e30", "--min-lr", "0", "--grad-clip", "0", "--warmup-steps", "0")
    done = llmgpu(*command, *extra)
    fails(done, 1, "is not finite")
    assert done.stderr.endswith(b"or --precision f32\n")


def test_a_small_model_keeps_single_precision(
    llmgpu: Run, corpus: Path, vocab: Path, device_name: str
) -> None:
    command = (*TRAIN, "--device", device_name)
    assert llmgpu(*command, "--steps", "2").returncode == 0
    refused = llmgpu(*command, "--steps", "4", "--resume", "--precision", "f16")
    fails(refused, 1, "--precision is f16, but the run in run has f32")
    assert llmgpu(*command, "--steps", "4", "--resume").returncode == 0
    assert load_checkpoint(corpus.parent / "run").state.options["precision"] == "f32"


def test_a_run_in_half_precision_logs_its_scale(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    half = (*TRAIN, "--device", "cpu", "--precision", "f16")
    for steps in ("2", "4"):
        done = llmgpu(*half, "--steps", steps, *(["--resume"] if steps == "4" else []))
        assert done.returncode == 0, done.stderr
    assert b"slower than f32 without matrix units" in done.stderr
    last = read_log(corpus.parent / "run" / "log.jsonl").records[-1]
    assert (last.step, last.loss_scale, last.skipped_steps) == (4, 65536.0, 0)
    state = load_checkpoint(corpus.parent / "run").optimizer["loss scaling"]
    assert state.tolist() == [65536.0, 4.0, 0.0, 0.0]


def test_a_damaged_checkpoint_is_named(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    command = (*TRAIN, "--steps", "2", "--device", "cpu")
    assert llmgpu(*command).returncode == 0
    model = corpus.parent / "run" / "step-00000002" / "model.safetensors"
    whole = model.read_bytes()
    # Numbers that are not finite, and a file that is cut short, are found before the check ends,
    # which says that the file has changed.
    for damaged in (whole[:-4] + b"\0\0\xc0\x7f", whole[:-400], whole[:-1] + b"\x55"):
        model.write_bytes(damaged)
        done = llmgpu("generate", "run", "--prompt", "a", "--device", "cpu")
        fails(done, 1, "model.safetensors: damaged or changed since")
        assert done.stdout == b""
    fails(llmgpu(*command, "--resume"), 1, "model.safetensors: damaged")
    shutil.copytree(model.parent, model.parent.with_name("step-00000001"))
    for reading in (("generate", "run", "--prompt", "a"), (*command, "--resume")):
        fails(llmgpu(*reading), 1, "the previous checkpoint is run")


def test_generating_repeats_with_a_seed_and_on_every_device(
    llmgpu: Run, corpus: Path, vocab: Path, device_name: str
) -> None:
    assert llmgpu(*TRAIN, "--steps", "20", "--lr", "1e-2", "--device", "cpu").returncode == 0
    command = ("generate", "run", "--prompt", "a", "--max-new-tokens", "12")
    texts = [llmgpu(*command, "--device", d, "--seed", "5") for d in ("cpu", device_name)]
    assert texts[0].stdout == texts[1].stdout
    found = json.loads(llmgpu(*command, "--device", "cpu", "--seed", "5", "--json").stdout)
    assert 0 < len(found["ids"]) <= 12
    assert texts[0].stdout.decode() == f"a{found['text']}\n"
    texts[0].stdout.decode()  # whole characters only
    piped = [word if word != "a" else "-" for word in (*command, "--device", "cpu", "--seed", "5")]
    assert llmgpu(*piped, stdin=b"a\n").stdout == texts[0].stdout
    fails(llmgpu(*piped, stdin=b"a\xff"), 1, "standard input: not UTF-8 at byte 1")
    fails(llmgpu("generate", "run"), 1, "give --prompt")
    fails(llmgpu(*command, "--temperature", "-1"), 1, "temperature is -1.0")
    fails(llmgpu("generate", "nowhere", "--prompt", "a"), 1, "no such folder")
    missing = llmgpu("generate", "a/b-1", "--prompt", "a")
    fails(missing, 1, "a/b-1: no such folder, and nothing is downloaded: if it is a model on")


def test_a_finished_run_has_nothing_left_to_do(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    command = (*TRAIN, "--device", "cpu", "--steps")
    assert b"nothing is left" not in llmgpu(*command, "2").stderr
    folder = corpus.parent / "run"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = llmgpu(*command, "2", "--resume")
    assert done.returncode == 0 and b"nothing to do: 2 of 2 steps" in done.stderr
    assert b"tokens/s" not in done.stderr and b"beside steps" not in done.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    further = llmgpu(*command, "3", "--resume")
    assert further.returncode == 0 and b"nothing is left" not in further.stderr, further.stderr


def test_too_many_layers_are_refused_before_a_device_is_opened(
    corpus: Path, vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not list_adapters():
        pytest.skip("there is no adapter")
    monkeypatch.setattr("llmgpu.gpu.adapters.OpenedAdapter", pytest.fail)
    monkeypatch.setattr("llmgpu.lm.runs.settings.free_memory", lambda: 4 << 30)
    arguments = ("--vocab", "v.bin", "-o", "deep", "--layers", "100000", "--device", "gpu")
    done = run_here(corpus.parent, ("train", "corpus.txt", *arguments), b"")
    fails(done, 1, "the run needs at least")


def test_the_failure_of_a_worker_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say_failure("worker 1: no\nmemory")
    assert capsys.readouterr().err == "error: worker 1: no memory\n"
    monkeypatch.setattr(sys, "argv", ["llmgpu", "train", "--log-format", "json"])
    say_failure("worker 1: no\nmemory")
    assert json.loads(capsys.readouterr().err) == {"error": "worker 1: no memory", "exit_code": 1}
