"""Faults at every call to the file system of every command.

``python -m tests.harness.faults [FAULT ...] [--jobs N]``, of "kill", signals and errors. Each
command runs over an earlier result, in a child. Afterwards each file is the earlier one or the new
one, what describes other files belongs to them, and the next run gives what a run without a fault
gives.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from llmgpu.files import remove_unfinished
from tests.cli.conftest import run_here
from tests.harness.faulty_calls import KILLED, READING, SIGNALS, Faults
from tests.harness.properties import what_is_wrong
from tests.harness.samples import ADAPTED, CHECKPOINTED, MODEL, SHARDED, TRAINED, make_samples

FAULTS = ("kill", "EIO", "ENOSPC", READING, *SIGNALS)
_PARTS = 4  # processes that share the calls of a command
_MANIFEST = "s.json"
_CHANGING = (
    "lock",
    "log.jsonl",
    "loss.svg",
    "run.json",
    "README.md",
    "options.toml",
    "merges",
    "counts",
    "training.json",
)

Files = dict[str, bytes]


@dataclass(frozen=True)
class Job:
    """A command; again: what the next run adds, to take up what an interrupted one left."""

    name: str
    command: tuple[str, ...]
    again: tuple[str, ...] = ()


_CPU = ("--device", "cpu")
_V = ("--vocab", "in/v.bin", *_CPU)
_CHAT = ("--vocab", "in/chat/v.bin", *_CPU)
_SMALL = ("--vocab-size", "300", *_CPU)
_SHARD_PARTS = ("out/parts-1-of-2.json", "out/parts-2-of-2.json")
WRITTEN = (
    Job("bpe-train", (*CHECKPOINTED, "-o", "out/v.bin")),
    Job("save-counts", (*CHECKPOINTED, "-o", "out/v.bin", "--save-counts", "out/counts")),
    Job(
        "checkpoint",
        (*CHECKPOINTED, "--checkpoint", "out/kept", "-o", "out/v.bin"),
        ("--resume",),
    ),
    *(
        Job(name, ("tokenize", "in/corpus.txt", *_V, "--format", name, "-o", f"out/ids.{name}"))
        for name in ("ids", "jsonl", "npy", "bin")
    ),
    Job(
        "megatron",
        ("tokenize", "in/corpus.txt", *_V, "--layout", "megatron", "-o", "out/ids.bin"),
    ),
    Job(
        "split",
        ("tokenize", "in/c.jsonl", *_V, "--split", "val=0.2", "-o", "out/ids.bin"),
    ),
    Job("shards", (*SHARDED, "-o", "out/s.bin"), ("--resume",)),
    *(
        Job(name, ("export", "in/v.bin", "--to", name, "-o", f"out/{name}"))
        for name in ("huggingface", "tiktoken", "gpt2")
    ),
    Job("chat", ("tokenize", "in/chat.jsonl", "--chat", *_CHAT, "-o", "out/chat.bin")),
    Job("part", (*SHARDED, "--part", "1/2", "-o", "out/p-%P.bin")),
    Job("merge counts", ("merge-word-counts", "in/counts", "in/counts", "-o", "out/all")),
    Job("merge shards", ("merge-shards", *_SHARD_PARTS, "-o", "out/all.json")),
    Job("import", ("import", "in/t.json", "-o", "out/v.bin")),
    Job("bench", ("bench", "--from", "in/record.json", "-o", "out/r.json", "-q")),
    Job(
        "train",
        (*TRAINED, "--steps", "2", "--save-interval", "1", "-o", "out/run"),
        ("--resume",),
    ),
    Job(
        "train adapters",
        (*ADAPTED, "--steps", "2", "--save-interval", "1", "-o", "out/run"),
        ("--resume",),
    ),
)
# Jobs that only read, or write little: their files can't be read or looked at.
READ = (
    Job("info", ("info", "in/v.bin")),
    Job("info of shards", ("info", "in/shards.json")),
    Job("info of a checkpoint", ("info", "kept/model/step-00000001")),
    Job("count", ("count", "in/c.jsonl", "in/corpus.txt", *_V, "--per", "file")),
    Job("compare-vocabs", ("compare-vocabs", "in/v.bin", "in/t.json", *_CPU)),
    Job("generate", ("generate", "kept/model", "--prompt", "a", "--max-new-tokens", "2", *_CPU)),
    Job("decode", ("tokenize", "in/ids.bin", "--decode", *_V, "-o", "out/text", "--force")),
    Job(
        "decode shards",
        ("tokenize", "in/shards.json", "--decode", *_V, "-o", "out/text", "--force"),
    ),
    *(
        Job(f"from {name}", ("tokenize", f"in/c.{name}", *_V, "-o", f"out/{name}.ids"))
        for name in ("txt.gz", "txt.zst", "txt.xz", "txt.bz2", "jsonl", "parquet")
    ),
    Job("from counts", ("bpe-train", "--from-counts", "in/counts", *_SMALL, "-o", "out/v.bin")),
    Job("import gpt2", ("import", "in/gpt2", "-o", "out/v.bin")),
    Job("import tekken", ("import", "in/tekken.json", "-o", "out/v.bin")),
    Job(
        "train on ids",
        ("train", "in/ids.bin", *_V, *MODEL, "--steps", "1", "-o", "out/run"),
        ("--resume",),
    ),
)
JOBS = {job.name: job for job in (*WRITTEN, *READ)}


def contents(folder: Path) -> Files:
    """Return the bytes of all files that stay and are the same for every run."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {
        name: data
        for name, data in found.items()
        if not name.endswith((".tmp", ".lock", ".progress.json", ".part.json"))
        and os.path.basename(name) not in _CHANGING
    }


def make_old(job: Job, folder: Path) -> None:
    """Write an earlier result, of another text."""
    if job.name in ("train", "train adapters", "checkpoint") or job in READ:
        return
    if job.name == "merge shards":
        for path in (folder / "kept").glob("parts-*"):
            shutil.copy2(path, folder / "out")
    command = tuple("in/other.txt" if word == "in/corpus.txt" else word for word in job.command)
    done = run_here(folder, command, b"")
    assert done.returncode == 0, done.stderr


def run_with_fault(job: Job, folder: Path, fault: str, nth: int) -> tuple[int, str, bool]:
    """Run a command in a child; return its exit code, what is wrong, and whether it had a fault."""
    report = folder / "report"
    child = os.fork()
    if child == 0:
        try:
            faults = Faults(fault, nth)
            faults.install()
            done = run_here(folder, job.command, b"")
            interrupted = fault in SIGNALS and done.returncode == 128 + SIGNALS[fault]
            wrong = "" if interrupted else what_is_wrong(done)
            left = faults.left
            faults.left = -1
            if done.returncode and fault == READING and not wrong:
                wrong = what_is_not_said(done.stderr.decode(), faults.named)
            wrong += done.stderr.decode() if wrong else ""
            remove_unfinished()  # as at the end of a process
            report.write_text(json.dumps([done.returncode, wrong, left <= 0]))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == KILLED or (fault in SIGNALS and code == 128 + SIGNALS[fault]):
        return code, "", True
    if code or not report.exists():
        return code, f"the process ended with {code}", True
    found = json.loads(report.read_text())
    report.unlink()
    return found[0], found[1], found[2]


def what_is_not_said(message: str, file: str) -> str:
    """Return what is missing in the message on a file that can't be read, "" if nothing is."""
    if ".tmp" in file:  # the file that it becomes is named
        return "" if "out/" in message or "kept/" in message else f"{file} is not named: "
    name = os.path.basename(file).removesuffix(".json")  # or that which it describes
    return "" if name in message else f"{file} is not named: "


def mixed(now: Files, old: Files, new: Files) -> Iterator[str]:
    """Yield what is neither earlier nor new, and what describes other files than there are."""
    for name, data in now.items():
        results = [of for of in (old, new) if of.get(name) == data]
        described = name.removesuffix(".json")
        if not results:
            yield f"{name} is neither the earlier nor the new one"
        elif described != name and described in now:
            if all(of.get(described) != now[described] for of in results):
                yield f"{name} does not belong to {described}"
        elif name == _MANIFEST and not any(of.items() <= now.items() for of in results):
            yield f"{name} lists shards that are not there"


def check(
    job: Job, samples: Path, folder: Path, fault: str, calls: Iterable[int]
) -> Iterator[tuple[int, str]]:
    """Yield each of the calls, counted from 1, that had a fault, and what is wrong then, or ""."""
    clean = folder / "clean"
    shutil.copytree(samples, clean, copy_function=shutil.copy2)
    (clean / "out").mkdir()
    make_old(job, clean)
    shutil.copytree(clean, folder / "begun", copy_function=shutil.copy2)
    old = contents(clean / "out")
    done = run_here(clean, job.command, b"")
    assert done.returncode == 0, done.stderr
    new = contents(clean / "out")
    for nth in calls:
        case = folder / f"case-{nth}"
        shutil.copytree(folder / "begun", case, copy_function=shutil.copy2)
        code, wrong, had_fault = run_with_fault(job, case, fault, nth)
        if not had_fault:
            return
        problems = [wrong] if wrong else []
        if code == 0 and contents(case / "out") != new:
            problems += ["exit code 0 without the results"]
        if not job.name.startswith("train"):
            problems += mixed(contents(case / "out"), old, new)
        if code not in (0, KILLED):
            problems += [str(path) for path in (case / "out").rglob("*.tmp")]
        if code != 0:
            problems += what_is_next(job, case, new)
        yield nth, "; ".join(problems)
        shutil.rmtree(case)


def what_is_next(job: Job, case: Path, new: Files) -> list[str]:
    """Run again; return what is wrong then."""
    done = run_here(case, (*job.command, *job.again), b"")
    if done.returncode and b"has no run to resume" in done.stderr:
        done = run_here(case, job.command, b"")
    if done.returncode:
        return [f"the next run fails: {done.stderr.decode()[-500:]}"]
    found = []
    if contents(case / "out") != new:
        now = contents(case / "out")
        differ = [name for name in {**now, **new} if now.get(name) != new.get(name)]
        found.append(f"the next run makes other files: {differ}")
    left = [path.name for path in (case / "out").rglob("*.tmp")]
    return found + ([f"not removed: {left}"] if left else [])


def run_part(given: tuple[str, str, Path, Path, int]) -> tuple[str, int, list[str]]:
    """Check a part of the calls of a command; return the fault, how many, and what is wrong."""
    fault, name, samples, folder, part = given
    folder.mkdir()
    found = list(check(JOBS[name], samples, folder, fault, count(1 + part, _PARTS)))
    shutil.rmtree(folder)
    return fault, len(found), [f"{fault} {name} {nth}: {wrong}" for nth, wrong in found if wrong]


def run_all(
    jobs: list[str], faults: list[str], say: Callable[[str], None], processes: int = 1
) -> dict[str, tuple[int, int]]:
    """Check jobs with faults; return how many were tried and how many survived, by fault."""
    tried: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="llmgpu-faults-") as name:
        samples = Path(name) / "samples"
        samples.mkdir()
        make_samples(samples)
        (samples / "in" / "other.txt").write_text("another text of a dog, and of words\n" * 40)
        todo = [
            (fault, job, samples, Path(name) / f"{fault}-{job}-{part}", part)
            for fault in faults
            for job in jobs
            if fault == READING or JOBS[job] not in READ
            for part in range(_PARTS)
        ]
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            for fault, number, problems in pool.imap_unordered(run_part, todo):
                tried[fault] += number
                survived[fault] += number - len(problems)
                for problem in problems:
                    say(problem)
    return {fault: (tried[fault], survived[fault]) for fault in faults}


def main() -> None:
    """Check all commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--only", nargs="*", default=list(JOBS), help="names of commands")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    say = partial(print, flush=True)
    counts = run_all(given.only, given.faults, say, given.jobs)
    for fault, (tried, survived) in counts.items():
        print(f"{fault}: {tried:,} tried, {survived:,} survived")
    sys.exit(any(tried != survived for tried, survived in counts.values()))


if __name__ == "__main__":
    main()
