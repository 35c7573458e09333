"""What has to hold of every run of a command, no matter what it was given."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType

from llmgpu.errors import BudgetError
from tests.cli.conftest import run_here

MOST_SECONDS = 60
_MOST_CHARACTERS = 1200  # of the line that says what is wrong
_ACTED_ON = {*map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0))} - {"\n"}

Seen = dict[str, tuple[int, int, int]]


class TooSlowError(Exception):
    """A command took more than MOST_SECONDS."""


def state_of(folder: Path) -> Seen:
    """Return size, time of change and inode of every file below a folder."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            found[path] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def run_checked(
    folder: Path, arguments: tuple[str, ...], stdin: bytes = b""
) -> tuple[subprocess.CompletedProcess[bytes], str]:
    """Run a command in this process; return how it ended, and what is wrong with that or ""."""
    before = state_of(folder / "in")

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    former = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    started = time.monotonic()
    try:
        done = run_here(folder, arguments, stdin)
    except TooSlowError:
        return subprocess.CompletedProcess(arguments, -1, b"", b""), "took too long"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
    if time.monotonic() - started >= MOST_SECONDS:
        return done, "took too long"
    return done, what_is_wrong(done) or what_was_left(folder, before)


def what_is_wrong(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return what is wrong with exit code and messages, "" if nothing is."""
    shown = done.stderr.decode(errors="replace")
    if "Traceback" in shown:
        return "a traceback"
    over_budget = done.returncode == BudgetError.exit_code and "more than the budget" in shown
    if done.returncode not in (0, 1, 2, 130) and not over_budget:
        return f"exit code {done.returncode}"
    lines = shown.splitlines()
    errors = [line for line in lines if line.lower().startswith(("error: ", '{"error": '))]
    if done.returncode in (1, 2) and (len(errors) != 1 or lines[-1] != errors[0]):
        return f"{len(errors)} lines of errors"
    if done.returncode == 0 and errors:
        return "an error with exit code 0"
    if errors and len(errors[0]) > _MOST_CHARACTERS:
        return "a message without end"
    if done.args[0] in ("bench", "info"):
        shown += done.stdout.decode(errors="replace").replace("\t", " ")
    if _ACTED_ON & set(shown):
        return "characters that a terminal acts on"
    return ""


def what_was_left(folder: Path, before: Seen) -> str:
    """Return which inputs changed, or which files stayed that must not."""
    after = state_of(folder / "in")
    changed = [path for path in before if before[path] != after.get(path)]
    if changed:
        return f"inputs changed: {sorted(changed)}"
    left = [path for path in state_of(folder) if path.endswith((".tmp", ".lock"))]
    left = [path for path in left if not path.endswith("run.lock")]
    return f"not removed: {left}" if left else ""
