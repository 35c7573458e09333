"""Commands at random limits, with random signals: ``python -m tests.harness.limits``.

Each case is a process with random limits of address space, file size and descriptors, and perhaps a
signal at a random moment. It has to end within MOST_SECONDS, without a traceback, by an exit code
of its own or by a crash of a driver that Python reports. Prints how many were tried and how many
survived; ends with 1 if any did not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cli.conftest import COMMAND, environment
from tests.harness.faults import JOBS
from tests.harness.properties import MOST_SECONDS
from tests.harness.samples import fresh_copy, make_samples

MEGABYTES = (100, 4000)  # of address space; in less, Python can't start
FILE_KILOBYTES = (1, 200)
DESCRIPTORS = (8, 64)
LATEST_SIGNAL = 3.0  # seconds
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGTRAP}
_NO_START = b"Fatal Python error: init", b"Could not find platform", b"error while loading shared"
_OWN_CODE = b"/llmgpu/", b"/site-packages/"
_NO_THREAD_DATA = b"cannot allocate memory for thread-local data: ABORT"


@dataclass(frozen=True)
class Case:
    """A command with its limits (None: no limit), and a signal after some seconds."""

    command: tuple[str, ...]
    megabytes: int | None
    file_kilobytes: int | None
    descriptors: int | None
    signal: signal.Signals | None
    seconds: float

    def limited(self) -> list[str]:
        """Return the command line that sets the limits and runs the command."""
        limits = {
            "v": self.megabytes and self.megabytes << 10,
            "f": self.file_kilobytes and 2 * self.file_kilobytes,  # blocks of 512 bytes
            "n": self.descriptors,
        }
        lines = [f"ulimit -{name} {limit}" for name, limit in limits.items() if limit is not None]
        return ["sh", "-c", "; ".join([*lines, 'exec "$@"']), "sh", *COMMAND, *self.command]


def draw(number: int, gpu_share: float) -> Case:
    """Return a case, drawn from its number."""
    generator = random.Random(number)
    command = generator.choice(list(JOBS.values())).command
    if generator.random() < gpu_share:
        command = tuple("gpu" if word == "cpu" else word for word in command)
    least, most = MEGABYTES
    megabytes = round(least * (most / least) ** generator.random())
    return Case(
        command,
        megabytes if generator.random() < 0.7 else None,
        generator.randint(*FILE_KILOBYTES) if generator.random() < 0.3 else None,
        generator.randint(*DESCRIPTORS) if generator.random() < 0.4 else None,
        generator.choice(_SIGNALS) if generator.random() < 0.4 else None,
        generator.uniform(0, LATEST_SIGNAL),
    )


def run_case(samples: Path, folder: Path, case: Case) -> str:
    """Run a case in a folder of its own; return what is wrong, "" if nothing is."""
    fresh_copy(samples, folder)
    shutil.copytree(samples / "kept", folder / "kept")
    variables = environment() | {"PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    with subprocess.Popen(
        case.limited(),
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            if case.signal is not None:
                try:
                    process.wait(case.seconds)
                except subprocess.TimeoutExpired:
                    process.send_signal(case.signal)
            _, errors = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
            return f"ran for {time.monotonic() - began:.0f} s: {errors[-2000:]!r}"
    wrong = judged(case, process.returncode, errors)
    return wrong and f"{wrong}: {errors[-2000:].decode(errors='replace')}"


def judged(case: Case, code: int, errors: bytes) -> str:
    """Return what is wrong with how a case ended, "" if nothing is."""
    if any(text in errors for text in _NO_START):
        return ""
    if b"KeyboardInterrupt" in errors and not any(path in errors for path in _OWN_CODE):
        return ""  # Python itself was still starting
    if b"Traceback" in errors:
        return "a traceback"
    signalled = case.signal is not None and code in (128 + case.signal, -case.signal)
    if code in (0, 1, 2) or signalled:
        return ""
    if "gpu" in case.command and code in _CRASHES and b"Fatal Python error" in errors:
        return ""  # of a driver, which Python has reported
    if "gpu" in case.command and _NO_THREAD_DATA in errors:
        return ""  # the loader's own end, which no process can catch
    return f"exit code {code}"


def main() -> None:
    """Run as many cases as asked for, or as fit into the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--gpu-share", type=float, default=0.3)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    tried = failed = 0
    with tempfile.TemporaryDirectory(prefix="llmgpu-limits-") as name:
        samples = Path(name) / "samples"
        samples.mkdir()
        make_samples(samples)
        (samples / "in" / "other.txt").write_text("another text of a dog, and of words\n" * 40)

        def run(number: int) -> tuple[int, Case, str | None]:
            case, folder = draw(number, given.gpu_share), Path(name) / str(number)
            if time.monotonic() > end:
                return number, case, None
            wrong = run_case(samples, folder, case)
            shutil.rmtree(folder)
            return number, case, wrong

        with ThreadPoolExecutor(given.jobs) as pool:
            for number, case, wrong in pool.map(run, range(given.first, given.first + given.cases)):
                tried += wrong is not None
                if wrong:
                    failed += 1
                    print(json.dumps([number, str(case), wrong]), flush=True)
    print(f"limits: {tried:,} tried, {tried - failed:,} survived")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
