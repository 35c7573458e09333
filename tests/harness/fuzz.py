"""Many cases of the harness, in processes of their own: ``python -m tests.harness.fuzz``.

Prints how many were tried and how many survived; ends with 1 if any did not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.harness.mutations import mutation
from tests.harness.options import option_case
from tests.harness.samples import make_samples

BATCH = 100  # cases of one process
KINDS: dict[str, Callable[..., tuple[object, str]]] = {
    "mutations": mutation,
    "options": option_case,
}


def run_batch(kind: str, samples: Path, folder: Path, first: int, count: int) -> None:
    """Run cases, and write to ``folder/failed`` which fail and to ``folder/at`` where it is."""
    case, former = folder / "case", folder / "former"
    for number in range(first, first + count):
        (folder / "at").write_text(str(number))
        what, wrong = KINDS[kind](samples, case, number, former=former)
        shutil.rmtree(former, ignore_errors=True)
        case.rename(former)
        if wrong:
            with open(folder / "failed", "a") as stream:
                stream.write(json.dumps([kind, number, str(what), wrong]) + "\n")
    (folder / "at").write_text("done")


def start(kind: str, samples: Path, folder: Path, first: int, count: int) -> int:
    """Run a batch in a child; return its process id."""
    folder.mkdir()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(os.devnull, "r+b") as null:
                os.dup2(null.fileno(), 1)
            run_batch(kind, samples, folder, first, count)
            code = 0
        finally:
            os._exit(code)
    return child


def finish(kind: str, folder: Path, status: int) -> list[list[object]]:
    """Return the failed cases of a batch that has ended."""
    failed = folder / "failed"
    found = (
        [json.loads(line) for line in failed.read_text().splitlines()] if failed.exists() else []
    )
    at = (folder / "at").read_text()
    if at != "done":
        found.append([kind, int(at), "", f"the process ended with {status}"])
    shutil.rmtree(folder)
    return found


def main() -> None:
    """Run as many cases as asked for, or as fit into the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=list(KINDS))
    arguments = parser.parse_args()
    kinds = [arguments.only] if arguments.only else list(KINDS)
    end = time.monotonic() + arguments.seconds
    tried = dict.fromkeys(kinds, 0)
    failures: list[list[object]] = []
    with tempfile.TemporaryDirectory(prefix="llmgpu-fuzz-") as name:
        samples = Path(name) / "samples"
        samples.mkdir()
        make_samples(samples)
        running: dict[int, tuple[str, Path]] = {}
        batch = 0
        while True:
            kind = kinds[batch % len(kinds)]
            more = sum(tried.values()) < arguments.cases and time.monotonic() < end
            if more and len(running) < arguments.jobs:
                folder = Path(name) / f"batch-{batch}"
                first = arguments.first + tried[kind]
                running[start(kind, samples, folder, first, BATCH)] = kind, folder
                tried[kind] += BATCH
                batch += 1
                continue
            if not running:
                break
            child, status = os.wait()
            found = finish(*running.pop(child), status)
            failures += found
            for each in found:
                print(json.dumps(each), flush=True)
    for kind, count in tried.items():
        failed = sum(failure[0] == kind for failure in failures)
        print(f"{kind}: {count:,} tried, {count - failed:,} survived")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
