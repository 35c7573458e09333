"""Signals end a command cleanly and soon, in every phase."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Run, environment, read_terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
HANG = 120  # seconds, so that a failure ends

# Writes a file, and is then in a C function that would take hours and that no signal ends. The
# thread has its turn only when the main thread is in there.
IN_C = """
import hashlib
import sys
import threading
from llmgpu.cli import interrupts
from llmgpu.cli.interrupts import handled_signals, last_act
from llmgpu.files import atomic_output

interrupts.GRACE_SECONDS = 0.2

lock = threading.Lock()
lock.acquire()

def say_ready():
    with lock:
        print("ready", flush=True)

threading.Thread(target=say_ready, daemon=True).start()
sys.setswitchinterval(1000)
with handled_signals(), last_act(lambda: print("last act", flush=True)):
    with atomic_output("out"):
        lock.release()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""

# Runs a body in place of a command.
COMMAND_OF = """
import atexit, os, signal, sys, time
import llmgpu.cli
from llmgpu.__main__ import main

def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)

class Dropping:
    def __del__(self):
        interrupt()

def run(**options):
    {body}

llmgpu.cli.cli = run
main()
"""

# In code that a library generates, as dataclasses are; in a destructor, which can't raise; in what
# fails when it is cleaned up; while the process ends.
BODIES = {
    "exec('interrupt(signal.SIGTERM); time.sleep(60)', globals())": 143,
    "Dropping()": 130,
    "try: interrupt()\n    finally: raise ValueError": 130,
    "atexit.register(interrupt)": 130,
}

# Is interrupted at the end of a function.
AFTER_CALL = """
import importlib, os, signal, sys

module, name = sys.argv.pop(1).split(":")
owner = importlib.import_module(module)
for part in name.split(".")[:-1]:
    owner = getattr(owner, part)
function = getattr(owner, name.split(".")[-1])

def interrupted(*arguments, **options):
    function(*arguments, **options)
    os.kill(os.getpid(), signal.SIGINT)

setattr(owner, function.__name__, interrupted)
from llmgpu.__main__ import main
main()
"""

# Is interrupted at the nth import after that of the package.
IN_IMPORT = """
import os, signal, sys

left = int(sys.argv.pop(1))
begun = False

def watch(event, arguments):
    global left, begun
    if event == "import":
        begun = begun or arguments[0] == "click"
        left -= begun
        if begun and left == 0:
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(watch)
from llmgpu.__main__ import main
main()
"""

# Is interrupted while the bar hides the cursor.
IN_START = """
import os, signal
from rich.console import Console

show_cursor = Console.show_cursor

def interrupted(console, show=True):
    if not show:
        os.kill(os.getpid(), signal.SIGINT)
    return show_cursor(console, show)

Console.show_cursor = interrupted
from llmgpu.__main__ import main
main()
"""


@contextmanager
def started(
    command: Sequence[str], folder: Path, ignored: signal.Signals | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with pipes, which ignores a signal as under nohup."""

    def ignore() -> None:
        if ignored is not None:
            signal.signal(ignored, signal.SIG_IGN)

    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        preexec_fn=ignore,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def tokenizing(*options: str) -> list[str]:
    return [*COMMAND, "tokenize", "--vocab", "v.bin", "--device", "cpu", *options]


def wait_for_file(child: subprocess.Popen[bytes], folder: Path, known: set[str]) -> None:
    while set(os.listdir(folder)) == known and child.poll() is None:
        time.sleep(1e-3)


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_clean_up_and_have_their_exit_codes(vocab: Path, number: signal.Signals) -> None:
    folder = vocab.parent
    before = set(os.listdir(folder))
    with started(tokenizing("-o", "out"), folder) as child:
        wait_for_file(child, folder, before)
        child.send_signal(number)
        assert child.wait(HANG) == 128 + number
        assert child.stderr is not None
        assert child.stderr.read().splitlines()[-1] == b"interrupted"
    assert set(os.listdir(folder)) == before


def test_a_signal_that_is_ignored_stays_so(vocab: Path) -> None:
    folder = vocab.parent
    with started(tokenizing("-o", "out"), folder, ignored=signal.SIGHUP) as child:
        wait_for_file(child, folder, set(os.listdir(folder)))
        child.send_signal(signal.SIGHUP)
        _, errors = child.communicate(b"text", timeout=HANG)
        assert child.returncode == 0, errors
    assert (folder / "out").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_long_call_is_not_waited_for(tmp_path: Path, number: signal.Signals) -> None:
    with started([sys.executable, "-c", IN_C], tmp_path) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == b"ready\n"
        assert len(os.listdir(tmp_path)) == 1
        child.send_signal(number)
        assert child.wait(HANG) == 128 + number
        assert child.stdout.read() == b"last act\n"
        assert child.stderr.read() == b"interrupted\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("nth", [1, 40, 100])
def test_an_interrupt_while_modules_are_imported(vocab: Path, nth: int) -> None:
    command = [sys.executable, "-c", IN_IMPORT, str(nth), "info", "v.bin"]
    with started(command, vocab.parent) as child:
        output, errors = child.communicate(timeout=HANG)
    assert (child.returncode, output, errors.strip()) == (130, b"", b"interrupted")


def test_an_interrupt_while_the_bar_starts(vocab: Path) -> None:
    terminal, other_end = os.openpty()
    command = [sys.executable, "-c", IN_START, *tokenizing("corpus.txt", "-o", "out")[3:]]
    child = subprocess.Popen(
        command,
        cwd=vocab.parent,
        env=environment() | {"TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=other_end,
    )
    os.close(other_end)
    shown = read_terminal(terminal)
    assert child.wait(HANG) == 130, shown
    assert "Traceback" not in shown and "interrupted" in shown
    hidden, visible = shown.rfind("\x1b[?25l"), shown.rfind("\x1b[?25h")
    assert 0 <= hidden < visible, shown
    assert "out" not in os.listdir(vocab.parent)


def test_main_leaves_the_handlers_as_they_were(llmgpu: Run, vocab: Path) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    assert llmgpu("info", "v.bin").returncode == 0
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize(
    ("body", "code"), BODIES.items(), ids=["generated", "destructor", "cleanup", "exit"]
)
def test_an_interrupt_counts_wherever_it_comes(tmp_path: Path, body: str, code: int) -> None:
    (tmp_path / "command.py").write_text(COMMAND_OF.format(body=body))
    with started([sys.executable, "-m", "command"], tmp_path) as child:
        _, errors = child.communicate(timeout=HANG)
    assert (child.returncode, errors) == (code, b"interrupted\n")


@pytest.mark.parametrize(
    ("function", "step"),
    [("llmgpu.lm.trainer:Trainer.take_step", 1), ("llmgpu.lm.runs.run:save_checkpoint", 3)],
)
def test_a_run_ends_after_a_step_with_a_checkpoint(vocab: Path, function: str, step: int) -> None:
    command = [*(sys.executable, "-c", AFTER_CALL, function, "train", "corpus.txt", "-o", "run")]
    command += [*("--vocab", "v.bin", "--device", "cpu", "--steps", "3", "--dim", "16")]
    command += [*("--layers", "1", "--heads", "1", "--seq-len", "8")]
    with started(command, vocab.parent) as child:
        _, errors = child.communicate(timeout=HANG)
    assert (child.returncode, errors.splitlines()[-1]) == (130, b"interrupted"), errors
    assert [path.name for path in (vocab.parent / "run").glob("step-*")] == [f"step-{step:08}"]


# Interrupts itself at one of the imports of the command line.
IMPORTING = """
import _signal, os, runpy, sys
imports = [0]

def watch(event, arguments):
    if event == "exec" and arguments[0].co_filename.endswith("llmgpu/__main__.py"):
        imports.append(0)
    if event == "import" and len(imports) > 1:
        imports[0] += 1
        if imports[0] == {number}:
            os.kill(os.getpid(), _signal.SIGINT)

sys.addaudithook(watch)
sys.argv = ["llmgpu", "count", "--help"]
runpy.run_module("llmgpu", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 8, 20, 60])
def test_an_interrupt_during_imports_leaves_no_traceback(number: int) -> None:
    command = [sys.executable, "-c", IMPORTING.format(number=number)]
    done = subprocess.run(command, capture_output=True, timeout=HANG, env=environment())
    assert (done.returncode, done.stderr.strip()) == (130, b"interrupted")


@pytest.mark.parametrize("half_imported", ["llmgpu.errors", "json"])
def test_an_interrupt_during_the_import_of_its_line_says_interrupted(half_imported: str) -> None:
    script = (
        "import sys, types, llmgpu.__main__ as begun; sys.argv.append('--json'); "
        f"sys.modules[{half_imported!r}] = types.ModuleType({half_imported!r}); "
        "begun._leave(2, None)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True)
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")
