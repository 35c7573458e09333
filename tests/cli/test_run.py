"""llmgpu run: commands in parts on a Ray cluster of this machine; the files of parts by hand."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.cli.run import _openings, do_part, make_job
from llmgpu.text.generated import generate_text
from llmgpu.text.parts import Part
from tests.cli.conftest import Run, fails
from tests.conftest import PYTHON_PATH

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install llmgpu[ray]"
)
ON_RAY = ("run", "--ray", "local:2", "--parts", "3", "-q", "--")
TRAIN = ("bpe-train", "data", "--vocab-size", "280", "--special-token", "<s>", "--device", "cpu")
TOKENIZE = ("tokenize", "--vocab", "v.bin", "data", "--shard-tokens", "100K", "--device", "cpu")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    text = b"".join(generate_text(6_000_000)).decode()
    rows = (json.dumps({"text": line}) for line in text.split("\n"))
    (folder / "lines.jsonl").write_text("\n".join(rows))
    (folder / "text.txt").write_text("low lower lowest<s>" * 300)
    return tmp_path


def by_hand(llmgpu: Run) -> None:
    """Train h.bin in one go, and tokenize in parts, h-1-of-3.bin and so on."""
    for command in [
        (*TRAIN, "-o", "h.bin", "--save-counts", "h.counts"),
        *((*TOKENIZE, "-o", "h-%P.bin", "--part", f"{k}/3") for k in (1, 2, 3)),
        ("merge-shards", *(f"h-{k}-of-3.json" for k in (1, 2, 3)), "-o", "h.json"),
    ]:
        done = llmgpu(*command, "-q")
        assert done.returncode == 0, done.stderr


@needs_ray
@pytest.mark.slow
def test_files_are_those_of_parts_by_hand_after_a_worker_was_killed(
    data: Path, llmgpu: Run
) -> None:
    trained = llmgpu(*ON_RAY, *TRAIN, "-o", "v.bin")
    assert trained.returncode == 0, trained.stderr
    process = subprocess.Popen(
        [sys.executable, "-m", "llmgpu", *ON_RAY, *TOKENIZE, "-o", "t.bin"],
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
        stderr=subprocess.PIPE,
    )
    while not list(data.glob("t-?-of-3-000000.bin")):
        assert process.poll() is None
        time.sleep(0.01)
    working = [pid for pid in below(process.pid) if command_of(pid).startswith("ray::do_part")]
    for pid in working:
        os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    by_hand(llmgpu)
    assert (data / "v.bin").read_bytes() == (data / "h.bin").read_bytes()
    assert (data / "v.counts").read_bytes() == (data / "h.counts").read_bytes()
    shards = sorted(data.glob("h-?-of-3-??????.bin*"))
    assert len(shards) > 6
    for shard in shards:
        assert shard.read_bytes() == (data / ("t" + shard.name[1:])).read_bytes()
    assert not list(data.glob("*.lock")) and not list(data.glob(".*"))
    before = {path: path.stat().st_mtime_ns for path in data.glob("t-*.bin")}
    again = llmgpu(*ON_RAY, *TOKENIZE, "-o", "t.bin")
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in data.glob("t-*.bin")} == before


def below(process: int) -> list[int]:
    """Return the children of a process and theirs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # it has ended
            continue
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@needs_ray
@pytest.mark.slow
def test_what_fails_in_a_part_is_said_with_the_part(data: Path, llmgpu: Run) -> None:
    (data / "v.bin").write_bytes(b"no vocabulary")
    done = llmgpu(*ON_RAY, *TOKENIZE, "-o", "t.bin")
    fails(done, 1, "/3: v.bin: not an llmgpu vocabulary")


def test_parts_of_a_worker_share_an_encoder(data: Path, llmgpu: Run) -> None:
    """It knows the words of earlier parts; the files are those of a process for each part."""
    assert llmgpu(*TRAIN, "-o", "v.bin", "-q").returncode == 0
    for number in (1, 2):
        assert llmgpu(*TOKENIZE, "-o", "h-%P.bin", "--part", f"{number}/3", "-q").returncode == 0
    job = make_job([*TOKENIZE, "-o", "t.bin"], 1)
    encoders: list[Encoder] = []
    for number in (1, 2):
        summary, error = do_part(str(data), job.arguments_of(Part(number, 3)), "cpu")
        assert error is None and summary["tokens"] > 0
        encoders += (_openings["cpu"].backend().encoders or {}).values()
    assert encoders == 2 * encoders[:1]
    shards = sorted(data.glob("h-?-of-3-??????.bin"))
    assert len(shards) > 6
    for shard in shards:
        assert shard.read_bytes() == (data / ("t" + shard.name[1:])).read_bytes()
    assert do_part(str(data), ["tokenize", "--vocab", "none.bin"], "cpu")[1]


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_it_needs_ray(data: Path, llmgpu: Run) -> None:
    fails(llmgpu(*ON_RAY, *TRAIN), 1, "needs the package ray: pip install 'llmgpu[ray]'")


def test_commands_of_parts() -> None:
    job = make_job([*TRAIN, "-o", "out/v.bin", "--tie", "bytes", "--text-field", "body"], 2)
    counts = "--part 2/3 --counts-only --save-counts out/v-%P.counts --threads 2"
    assert " ".join(job.arguments_of(Part(2, 3))) == (
        f"bpe-train {counts} --special-token <s> --tie bytes --text-field body -- data"
    )
    assert job.output_of(Part(2, 3)) == "out/v-2-of-3.counts"
    assert job.merge == ["merge-word-counts", "-o", "out/v.counts"]
    assert " ".join(job.last) == (
        "bpe-train --from-counts out/v.counts --vocab-size 280 --special-token <s> --device cpu "
        "--output out/v.bin --tie bytes"
    )
    only = make_job([*TRAIN, "--counts-only", "--save-counts", "c.parquet"], 1)
    assert only.last == [] and only.output_of(Part(1, 9)) == "c-1-of-9.parquet"
    job = make_job([*TOKENIZE, "-o", "t.bin", "--eos", "<s>", "--threads", "4", "--force"], 1)
    assert job.device == "cpu" and job.output_of(Part(1, 2)) == "t-1-of-2.json"
    assert " ".join(job.arguments_of(Part(1, 2))) == (
        "tokenize --part 1/2 -o t-%P.bin --resume --vocab v.bin --shard-tokens 100K --eos <s> "
        "--threads 4 --force -- data"
    )
    assert job.merge == ["merge-shards", "-o", "t.json", "--force"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train data", "'train' can't be run in parts: use tokenize or bpe-train"),
        ("tokenize data", "Missing option '--vocab'"),
        ("tokenize --vocab v.bin data", "needs -o OUT.bin and --shard-tokens N"),
        ("tokenize --vocab v.bin -o t.bin --shard-tokens 9", "files that all machines can open"),
        ("tokenize --vocab v.bin --part 1/2 data", "--part can't be combined with llmgpu run"),
        ("tokenize --vocab v.bin --count data", "--count can't be combined with llmgpu run"),
        ("bpe-train data --limit 1MB", "--limit can't be combined with llmgpu run"),
        ("bpe-train --from-counts c", "--from-counts can't be combined with llmgpu run"),
        ("bpe-train -", "can't read a pipe; give files"),
        ("bpe-train data -o -", "needs -o FILE, which also names its counts"),
    ],
)
def test_what_can_not_be_run_in_parts(command: str, message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        make_job(command.split(), 1)
    assert message in caught.value.format_message()
