"""Change the modules of the exact paths one place at a time, and see whether their tests fail.

usage: python scripts/mutate.py [--sample N] [--seed N] [--module PART] [--jobs N] [--seconds S]

A change is a comparison that includes or leaves out equality, a whole number one larger, + for -,
a minimum for a maximum, "and" for "or", or a statement that is left out. It is made in a copy of
the repository. Changes that alter no result are left out by the rules of `unchanged.py`. The score
is how many of the others fail a test, or hang; the exit status is 1 below LEAST_SCORE. What was
tried until --seconds are over, or SIGTERM or SIGINT arrives, is summed up. Kernels are changed only
with --module wgsl: a kernel that never ends may take a graphics driver with it.

The tests run in children of this process, which has imported the large packages. They run once as
they are, and which functions each calls is recorded; then, for a change, those that call the
changed function, the fastest first, until one fails. What C survives is built with sanitizers, too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType, FrameType

import pytest
from mutants import ENGINE, ROOT, SANITIZERS, Mutant, all_mutants, read_module, test_files

LEAST_SCORE = 0.95
SLOWER = 5  # a test that takes this many times as long, and CPU_SECONDS, hangs
CPU_SECONDS = 3
WAIT_SECONDS = 120  # all tests of a change, which may wait for something without end
RECORD_SECONDS = 900  # a file of tests without a change
FUZZ_ROUNDS = "40"  # of random texts in C and NumPy
MEMORY_BYTES = 6 << 30  # of a child: a change may ask for any amount
NOT_COMPILED = 100  # exit code of a child
NOT_IMPORTED = 4  # exit code of pytest, where conftest.py fails; 2 where a module of tests does
NO_TESTS = 5  # the same, where none is chosen
COPIED = ("llmgpu", "tests", "wgsl", "docs", "scripts", "vocab_samples", "pyproject.toml")
# What is imported already can't be prepared for good messages, which nobody reads.
PYTEST_OPTIONS = (
    *("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
    *("-o", "timeout=0"),  # a test takes long beside others; what hangs is ended here
)
IMPORTED = ("numpy", "hypothesis", "regex", "tiktoken", "tokenizers", "click", "rich", "msgpack")
SHARED = "tests/bpe/encoding/test_optional_device.py"  # takes a device, which may be in software
DEVICES = {"device", "portable_device", "any_device", "dawn_device"}  # fixtures


@dataclass(frozen=True)
class Test:
    """A test that passes: its CPU seconds, and what it calls; None if it starts processes."""

    seconds: float
    functions: frozenset[str] | None

    def covers(self, mutant: Mutant) -> bool:
        """Tell whether the test may see a change."""
        if self.functions is None or not mutant.function:
            return True
        return any(name.startswith(mutant.function) for name in self.functions)


class Recorder:
    """A plugin of pytest that runs tests as they are, and records those that pass."""

    def __init__(self, on_devices: bool) -> None:
        self.on_devices = on_devices
        self.seconds: dict[str, float] = {}
        self.functions: dict[str, list[str] | None] = {}
        self.other: dict[str, str] = {}
        self._started = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _: object) -> None:
        self._started |= event in ("os.fork", "os.posix_spawn", "subprocess.Popen")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests on another backend."""
        if not self.on_devices:
            items[:] = [one for one in items if SHARED in one.nodeid or not needs_device(one)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record which functions of the package are called, in threads, too."""
        called: set[CodeType] = set()
        depth = 0  # of imports, which are made in the first test that needs them

        def record(frame: FrameType, event: str, _: object) -> None:
            nonlocal depth
            imports = frame.f_code.co_name == "_find_and_load"  # of importlib
            depth += imports * ((event == "call") - (event == "return"))
            if event == "call" and depth == 0:
                called.add(frame.f_code)

        self._started = False
        started = time.process_time()
        threading.setprofile(record)
        sys.setprofile(record)
        done = yield
        sys.setprofile(None)
        threading.setprofile(None)
        seconds = time.process_time() - started
        names = [function_name(code) for code in called]
        self.functions[item.nodeid] = None if self._started else [one for one in names if one]
        self.seconds[item.nodeid] = seconds
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep in mind what does not pass."""
        if report.outcome != "passed":
            self.other[report.nodeid] = report.outcome


def needs_device(item: pytest.Item) -> bool:
    """Tell whether a test takes a device, or operations on one."""
    made = getattr(item, "callspec", None)
    operations = made.params.get("operations") if made else None
    names = {*getattr(item, "fixturenames", ()), f"{operations}_device"}
    return bool(DEVICES & names) or operations == "full"


def function_name(code: CodeType) -> str:
    """Return how `Mutant.function` names a function; empty where nothing is changed in it."""
    path = os.path.relpath(code.co_filename) if code.co_filename.startswith(os.getcwd()) else ""
    if path.startswith(ENGINE) and code.co_name in ("_load", "load", "describe"):
        return ""
    return f"{path}:{code.co_firstlineno}:" if path.startswith("llmgpu/") else ""


class Chosen:
    """A plugin of pytest that runs tests, the fastest first, and ends the process if one hangs."""

    def __init__(self, tests: dict[str, float]) -> None:
        self._tests = tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose and sort."""
        items[:] = [item for item in items if item.nodeid in self._tests]
        items.sort(key=lambda item: self._tests[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Start the clock; SIGPROF ends the process inside a loop in C, too."""
        seconds = SLOWER * self._tests[item.nodeid] + CPU_SECONDS
        signal.setitimer(signal.ITIMER_PROF, seconds)
        return (yield)


@dataclass(frozen=True)
class Task:
    """What a child does: tests with a change or, where there is none, recording them."""

    files: list[str]
    on_devices: bool
    mutant: Mutant | None = None
    tests: dict[str, float] | None = None

    def run(self, folder: Path) -> int:
        """Run the tests in a copy of the repository; return the exit code of the process."""
        names = "gpu or full" if self.on_devices else "not gpu and not warned"
        options = [*PYTEST_OPTIONS, "-m", "not slow", "-k", names]
        if self.mutant is None:
            recorder = Recorder(self.on_devices)
            pytest.main([*options, *self.files], plugins=[recorder])
            if self.files == [SANITIZERS]:
                recorder.seconds[SANITIZERS] = math.inf
                recorder.functions[SANITIZERS] = None
                if not sanitize(folder):
                    recorder.other[SANITIZERS] = "failed"
            made = recorder.seconds, recorder.functions, recorder.other
            (folder / "made.json").write_text(json.dumps(made))
            return 0
        if not change(folder, self.mutant.module, self.mutant.text()):
            return NOT_COMPILED
        if self.mutant.module.startswith(ENGINE):
            fuzz(folder)
        if not self.files:
            return 0
        code = pytest.main([*options, "-x", *self.files], plugins=[Chosen(self.tests or {})])
        if code in (0, NO_TESTS) and SANITIZERS in self.files:
            return not sanitize(folder)
        return code


def change(folder: Path, module: str, text: str) -> bool:
    """Change a module in a copy of the repository; False if it can't be compiled."""
    write(folder, module, text)
    if not module.endswith((".c", ".h")):
        return True
    code = "from llmgpu.cpu import build; build.build(build.LIBRARY, ['-O1'])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def write(folder: Path, module: str, text: str) -> None:
    """Write a module; one of the same size in the same second would not be compiled again."""
    path = folder / module
    path.write_text(text, encoding="utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def fuzz(folder: Path) -> None:
    """Compare the changed engine with NumPy on random texts; the process ends if they differ."""
    signal.setitimer(signal.ITIMER_PROF, 20 * CPU_SECONDS)
    sys.argv = ["fuzz", str(folder / "llmgpu/cpu/engine.so"), "1", FUZZ_ROUNDS]
    importlib.import_module("tests.cpu.fuzz").main()


def sanitize(folder: Path) -> bool:
    """Tell whether sanitizers find nothing in random texts and threads; False without them, too."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    tests = importlib.import_module("tests.cpu.test_sanitizers")
    try:
        engine = tests.build_checked(folder / "tmp", *tests.SMALL)
        done = tests.run(engine, ["-m", "tests.cpu.fuzz", str(engine), "2", FUZZ_ROUNDS])
        return done.returncode == 0 and tests.run_threads(folder / "tmp").returncode == 0
    except (pytest.skip.Exception, subprocess.CalledProcessError):
        return False


class Children:
    """Processes that run tests, each in a copy of the repository and a group of its own."""

    def __init__(self, folder: Path, count: int) -> None:
        self._idle = [folder / str(number) for number in range(count)]
        self._running: dict[int, tuple[Task, Path, float]] = {}
        self.stopped = False
        for copied in self._idle:
            copy_repository(copied)

    def stop(self, *_: object) -> None:
        """Begin no task, and end those under way."""
        self.stopped = True

    def run(self, tasks: Iterable[Task], seconds: float) -> Iterator[tuple[Task, int, Path]]:
        """Yield tasks as they end, with exit code (below 0: hung) and folder, until stopped."""
        todo = iter(tasks)
        more = True
        while more or self._running:
            while more and self._idle and not self.stopped:
                task = next(todo, None)
                more = task is not None
                if task is not None:
                    self._start(task, seconds)
            if self.stopped:
                break
            yield from self._ended()
            time.sleep(0.005)
        for child in list(self._running):
            self._end(child)

    def _start(self, task: Task, seconds: float) -> None:
        folder = self._idle.pop()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                prepare(folder)
                code = task.run(folder)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        self._running[child] = task, folder, time.monotonic() + seconds

    def _ended(self) -> Iterator[tuple[Task, int, Path]]:
        for child, (task, folder, end) in list(self._running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() < end:
                continue
            else:
                code = -signal.SIGALRM
            self._end(child)
            yield task, code, folder

    def _end(self, child: int) -> None:
        """End a child and what it has started, and take back its change."""
        task, folder, _ = self._running.pop(child)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        if task.mutant:
            write(folder, task.mutant.module, read_module(task.mutant.module))
            if task.mutant.module.endswith((".c", ".h")):
                shutil.copy(ROOT / "llmgpu/cpu/engine.so", folder / "llmgpu/cpu/engine.so")
        self._idle.append(folder)


def prepare(folder: Path) -> None:
    """Make a child one that runs the tests of a copy of the repository."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))
    os.chdir(folder)
    with open("output", "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.path.insert(0, str(folder))
    shutil.rmtree("tmp", ignore_errors=True)
    os.mkdir("tmp")
    os.environ |= {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "CI": "1",
        "TMPDIR": str(folder / "tmp"),
    }
    tempfile.tempdir = None


def copy_repository(folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(source, folder / name)


def record(todo: list[Mutant], children: Children, on_devices: bool) -> dict[str, Test]:
    """Run the tests of all modules as they are; return those that pass."""
    files = {file for mutant in todo for file in test_files(mutant.module)}
    tests: dict[str, Test] = {}
    tasks = [Task([file], on_devices) for file in sorted(files)]
    for task, code, folder in children.run(tasks, RECORD_SECONDS):
        if code:
            raise SystemExit(f"{task.files}: {code}: {(folder / 'output').read_text()[-2000:]}")
        seconds, functions, other = json.loads((folder / "made.json").read_text())
        for name, outcome in other.items():
            if outcome == "failed":
                print(f"left out: {name} fails without a change", flush=True)
        for name in seconds.keys() - other.keys():
            called = functions[name]
            tests[name] = Test(seconds[name], None if called is None else frozenset(called))
    return tests


def file_of(test: str) -> str:
    return test.partition("::")[0]


def task_of(mutant: Mutant, tests: dict[str, Test], on_devices: bool) -> Task:
    """Return the task of trying a change."""
    files = test_files(mutant.module)
    chosen = {
        name: test.seconds
        for name, test in tests.items()
        if file_of(name) in files and test.covers(mutant)
    }
    if not chosen:  # what is called while modules are imported
        chosen = {name: one.seconds for name, one in tests.items() if file_of(name) in files}
    files = [file for file in files if file in map(file_of, chosen)]
    return Task(files, on_devices, mutant, chosen)


def run(
    todo: list[Mutant], children: Children, on_devices: bool
) -> tuple[Counter[str], Counter[str]]:
    """Try changes until told to stop; return how many were tried and seen, by module."""
    tried: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    tests = record(todo, children, on_devices)
    tasks = (task_of(mutant, tests, on_devices) for mutant in todo)
    for task, code, folder in children.run(tasks, WAIT_SECONDS):
        mutant = task.mutant
        if mutant is None or code == NOT_COMPILED:
            continue
        if code > 2 and code != NOT_IMPORTED:
            output = (folder / "output").read_text(errors="replace")
            raise SystemExit(f"{mutant}: exit code {code}: {output[-2000:]}")
        tried[mutant.module] += 1
        seen[mutant.module] += code != 0
        if code == 0:
            print(f"not seen: {mutant.module}:{mutant.line}: {mutant.what}", flush=True)
    return tried, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sample", type=int, help="try this many changes, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", default="", help="only modules whose name has this in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=int, default=86_400, help="stop then")
    given = parser.parse_args()
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "LP_NUM_THREADS": "1"}
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    todo = all_mutants(given.module)
    random.Random(given.seed).shuffle(todo)
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        children = Children(Path(name), given.jobs)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, children.stop)
        signal.alarm(given.seconds)
        tried, seen = run(todo[: given.sample], children, "wgsl" in given.module)
    for module, count in sorted(tried.items()):
        print(f"{module}: {seen[module]} of {count} seen")
    score = seen.total() / max(1, tried.total())
    print(f"{seen.total()} of {tried.total()} changes seen by a test: {score:.1%}")
    sys.exit(score < LEAST_SCORE)


if __name__ == "__main__":
    main()
