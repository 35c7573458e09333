"""Change the modules of the exact paths one place at a time, and see whether their tests fail.

usage: python scripts/mutate.py [--sample N] [--seed N] [--module PART] [--jobs N] [--seconds S]

A change is a comparison that includes or leaves out equality, a whole number one larger, + for -,
a minimum for a maximum, "and" for "or", or a statement that is left out. It is made in a copy of
the repository, in Python by its syntax tree, in C and WGSL by their text. Changes that alter no
result are left out by the rules of `unchanged.py`. The score is how many of the others fail a test,
or take so long that they hang; the exit status is 1 below LEAST_SCORE. What was tried until
--seconds are over, or SIGTERM or SIGINT arrives, is summed up; what is under way then is not
counted. Kernels are changed only with --module wgsl: a kernel that never ends may take a graphics
driver with it.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import queue
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from unchanged import RULES

ROOT = Path(__file__).parents[1]
LEAST_SCORE = 0.95
MOST_SECONDS = 300  # of tests without a change
SLOWER = 5  # tests that take this many times as long, and at least 20 s, hang, and count as failed
LEAST_SECONDS = 20
FUZZ_ROUNDS = "60"  # of random texts in C and NumPy
MEMORY_BYTES = 6 << 30  # of tests: a change may ask for any amount
COPIED = ("llmgpu", "tests", "wgsl", "docs", "scripts", "vocab_samples", "pyproject.toml")

_ENCODING = (
    "bpe/encoding/test_encoder_numpy.py bpe/test_engines.py bpe/encoding/test_encoder_numpy_cuts.py"
)
_PRETOKENS = (
    "bpe/pretokens/test_pattern.py bpe/pretokens/test_pattern_families.py cpu/test_library.py"
)

# By module: the tests named for it, the fastest first.
TESTS = {
    "llmgpu/bpe/words/number_words.py": "bpe/words/test_number_words.py",
    "llmgpu/bpe/words/spilling.py": "bpe/words/test_spilling.py bpe/words/test_count_host.py",
    "llmgpu/bpe/words/counts_file.py": "bpe/words/test_counts_file.py "
    "bpe/words/test_merge_counts.py",
    "llmgpu/bpe/encoding/pair_ranks.py": "bpe/encoding/test_pair_ranks.py "
    "bpe/encoding/test_matching.py",
    "llmgpu/bpe/encoding/matching.py": "bpe/encoding/test_matching.py "
    "bpe/encoding/test_encoder_numpy.py",
    "llmgpu/bpe/encoding/encoder_numpy.py": "bpe/encoding/test_encoder_numpy.py "
    "bpe/encoding/test_encoder_numpy_cuts.py bpe/test_engines.py",
    "llmgpu/bpe/plain/greedy_matching.py": "bpe/encoding/test_encoder_numpy.py",
    "llmgpu/bpe/training/linked_words.py": "bpe/training/test_batched_numpy.py "
    "bpe/training/test_train.py",
    "llmgpu/bpe/training/batched_numpy.py": "bpe/training/test_batched_numpy.py",
    "llmgpu/bpe/training/symbols.py": "bpe/training/test_symbols.py bpe/training/test_train.py",
    "llmgpu/bpe/vocabulary/trie.py": "bpe/vocabulary/test_trie.py",
    "llmgpu/bpe/vocabulary/recovery.py": "bpe/vocabulary/test_recovery.py",
    "llmgpu/tokens/ids.py": "tokens/test_formats.py",
    "llmgpu/tokens/npy.py": "tokens/test_formats.py",
    "llmgpu/tokens/bin.py": "tokens/test_bin.py tokens/test_formats.py tokens/test_shards.py",
    "llmgpu/tokens/manifest.py": "tokens/test_shards.py",
    "llmgpu/tokens/shards.py": "tokens/test_shards.py",
    "llmgpu/tokens/layouts.py": "tokens/test_layouts.py tokens/test_shards.py",
    "llmgpu/tokens/megatron.py": "tokens/test_layouts.py tokens/test_shards.py",
    "llmgpu/tokens/counting.py": "tokens/test_counting.py cli/test_count.py",
    "llmgpu/text/remote.py": "text/test_remote.py",
    "llmgpu/bpe/interchange/tekken.py": "bpe/interchange/test_tekken.py",
    "llmgpu/bpe/interchange/gguf.py": "bpe/interchange/test_gguf.py",
    "llmgpu/bpe/encoding/encoder_shared.py": "bpe/encoding/test_encoder_shared.py",
    "llmgpu/bpe/training/scanned_words.py": "bpe/training/test_scanned_words.py",
    "llmgpu/lm/generating/sampling.py": "lm/generating/test_sampling.py",
    "llmgpu/bpe/encoding/long_words.py": "bpe/encoding/test_long_words.py " + _ENCODING,
    "llmgpu/bpe/encoding/special_encoding.py": "bpe/encoding/test_special_encoding.py",
    "llmgpu/bpe/encoding/special_search.py": "bpe/encoding/test_special_search.py "
    "bpe/encoding/test_special_encoding.py",
    "llmgpu/bpe/words/count_host.py": "bpe/words/test_count_host.py bpe/test_engines.py",
    "llmgpu/bpe/pretokens/gpt2.py": "bpe/pretokens/test_gpt2.py " + _PRETOKENS,
    "llmgpu/bpe/pretokens/cl100k_family.py": _PRETOKENS,
    "llmgpu/bpe/pretokens/o200k.py": _PRETOKENS,
    "llmgpu/bpe/pretokens/runs.py": _PRETOKENS,
    "llmgpu/bpe/pretokens/slices.py": "bpe/pretokens/test_slices.py " + _PRETOKENS,
    "llmgpu/bpe/interchange/tiktoken.py": "bpe/interchange/test_tiktoken.py",
    "llmgpu/bpe/training/merge_host.py": "bpe/training/test_merge_host.py",
    "llmgpu/cpu/merging.c": "bpe/training/test_merge_host.py",
    "llmgpu/cpu/pairs.c": "bpe/training/test_merge_host.py",
    "llmgpu/cpu/trainer.c": "bpe/training/test_merge_host.py",
    "llmgpu/cpu/long_words.c": "cpu/test_long_words.py " + _ENCODING,
    "llmgpu/cpu/pretokens.c": _PRETOKENS + " bpe/test_engines.py",
    "llmgpu/cpu/blocks.c": _PRETOKENS,
    "llmgpu/cpu/shared_words.c": "cpu/test_shared_words.py " + _ENCODING,
    "llmgpu/cpu/words.c": "bpe/words/test_count_host.py " + _ENCODING,
    "llmgpu/cpu/encode.c": _ENCODING + " bpe/encoding/test_special_encoding.py",
    "llmgpu/cpu/matching.c": "bpe/encoding/test_pair_ranks.py "
    + _ENCODING
    + " bpe/encoding/test_matching.py",
}
KERNEL_TESTS = {
    "wgsl/words": "bpe/words/test_word_table_gpu.py bpe/words/test_count_gpu.py",
    "wgsl/count": "bpe/words/test_count_gpu.py bpe/test_engines.py",
    "wgsl/encode": "bpe/encoding/test_encoder_gpu.py bpe/test_engines.py",
    "wgsl/pretoken": "bpe/pretokens/test_pretoken_gpu.py bpe/pretokens/test_pretoken_walk_gpu.py",
    "wgsl/batched": "bpe/training/test_batched_gpu.py",
    "wgsl/recount": "bpe/plain/test_recount_gpu.py",
    "wgsl/trie": "bpe/plain/test_greedy_gpu.py",
}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}

# Changes of C and WGSL, by an expression for what is changed. A statement stands on its own line,
# and is no declaration.
TEXT_CHANGES = {
    r"(?<![<>\-=!])(<|>)(?![<>=])": {"<": "<=", ">": ">="},
    r"<=|>=|==|!=": {"<=": "<", ">=": ">", "==": "!=", "!=": "=="},
    r"&&|\|\|": {"&&": "||", "||": "&&"},
    r"(?<= )[+-]=?(?= )": {"+": "-", "-": "+", "+=": "-=", "-=": "+="},
    r"(?<![\w.])\d+(?=[uU]?\b)(?!\.)": {},
    r"(?m)^ +(?!return|let|var|const|static)[\w.>\-\[\]*]+(?: [-+|&^]?= .*|\(.*\));$": {},
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"|^#[^\n]*", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A change of a module: where and what.

    what: the line, and what is changed from which column of it. index: of the changed node in the
        order of `ast.walk`; in C and WGSL, where the changed text begins. choice: which of a
        node's changes; how long the changed text is. new: its text.
    """

    module: str
    line: int
    what: str
    index: int
    choice: int
    new: str = ""

    def text(self) -> str:
        """Return the whole module with the change."""
        old_text = read_module(self.module)
        if not self.module.endswith(".py"):
            return old_text[: self.index] + self.new + old_text[self.index + self.choice :]
        tree = ast.parse(old_text)
        old = list(ast.walk(tree))[self.index]
        _, new = list(changes(old))[self.choice]
        return ast.unparse(ast.fix_missing_locations(_Replace(old, new).visit(tree)))


def read_module(module: str) -> str:
    return (ROOT / module).read_text(encoding="utf-8")


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what may be changed at a node, and the node that takes its place."""
    new = copy.copy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in COMPARISONS:
        new.ops = [COMPARISONS[type(new.ops[0])](), *new.ops[1:]]
    elif isinstance(new, ast.Constant) and type(new.value) is int:
        new.value += 1
    elif isinstance(new, (ast.BinOp, ast.AugAssign)) and isinstance(new.op, (ast.Add, ast.Sub)):
        new.op = ast.Sub() if isinstance(new.op, ast.Add) else ast.Add()
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
    elif isinstance(new, ast.Name) and new.id in EXTREMES:
        new.id = EXTREMES[new.id]
    elif isinstance(new, ast.Attribute) and new.attr in EXTREMES:
        new.attr = EXTREMES[new.attr]
    else:
        new = None
    if new is not None:
        yield f"{ast.unparse(node)} -> {ast.unparse(new)}", new
    stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name)
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if stored or called or isinstance(node, (ast.AugAssign, ast.Raise)):
        yield f"{ast.unparse(node).splitlines()[0]} -> left out", ast.Pass()


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def text_mutants(module: str) -> Iterator[Mutant]:
    """Yield all changes of a module in C or WGSL."""
    text = read_module(module)
    code = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for expression, others in TEXT_CHANGES.items():
        for found in re.finditer(expression, code):
            old = found[0]
            new = others.get(old, ";") if not old.isdigit() else str(int(old) + 1)
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - (text.rfind("\n", 0, found.start()) + 1)
            what = described(text.splitlines()[line - 1], column, f"{old.strip()} -> {new}")
            yield Mutant(module, line, what, found.start(), len(old), new)


def described(line: str, column: int, change: str) -> str:
    """Return a change in words that stay when lines move."""
    indent = len(line) - len(line.lstrip())
    return f"{line.strip()} | {max(0, column - indent)}: {change}"


def mutants(module: str) -> Iterator[Mutant]:
    """Yield all changes of a module."""
    if not module.endswith(".py"):
        yield from text_mutants(module)
        return
    text = read_module(module)
    lines = text.splitlines()
    for index, node in enumerate(ast.walk(ast.parse(text))):
        for choice, (change, _) in enumerate(changes(node)):
            line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
            what = described(lines[line - 1], column, change)
            yield Mutant(module, line, what, index, choice)


def commands(module: str) -> Iterator[list[str]]:
    """Yield what is run for a module, one after the other, until something fails."""
    named = TESTS.get(module) or KERNEL_TESTS[os.path.dirname(module)]
    if module.startswith("llmgpu/cpu/"):
        yield [sys.executable, "-m", "tests.cpu.fuzz", "llmgpu/cpu/engine.so", "1", FUZZ_ROUNDS]
        named += " cpu/test_allocations.py"
    chosen = "gpu" if module.endswith(".wgsl") else "not gpu and not warned"
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    yield [*pytest, "-m", "not slow", "-k", chosen, *(f"tests/{name}" for name in named.split())]


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


class StoppedError(Exception):
    """The run ends while tests are under way."""


class Processes:
    """The processes that run tests, each with a group of its own."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopped = threading.Event()

    def stop(self, *_: object) -> None:
        """End all tests, and begin none."""
        self.stopped.set()
        for process in list(self._running):
            self._kill(process)

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def fail(self, folder: Path, module: str, seconds: float) -> bool:
        """Tell whether the tests of a module fail, or take longer, in a copy of the repository.

        Raises:
            StoppedError: the run ends.
        """
        (folder / "tmp").mkdir(exist_ok=True)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "CI": "1",
            "LLMGPU_TEST_EXAMPLES": "30",
            "TMPDIR": str(folder / "tmp"),
        }
        end = time.monotonic() + seconds
        return any(self._fails(each, folder, environment, end) for each in commands(module))

    def _fails(
        self, command: list[str], folder: Path, environment: dict[str, str], end: float
    ) -> bool:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=limit_memory,
            start_new_session=True,
        )
        self._running.add(process)
        if self.stopped.is_set():
            self._kill(process)
        try:
            output, _ = process.communicate(timeout=max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return True
        finally:
            self._kill(process)  # and what it has started
            process.wait()
            self._running.discard(process)
            if self.stopped.is_set():
                raise StoppedError
        if process.returncode > 2:  # 2: a module that can't be imported
            raise SystemExit(
                f"{command}: exit code {process.returncode}: {output.decode()[-2000:]}"
            )
        return process.returncode != 0


def built(folder: Path, module: str) -> bool:
    """Build the library of the CPU engine where it is changed; False if it can't be."""
    if not module.endswith((".c", ".h")):
        return True
    command = [sys.executable, "-c", "from llmgpu.cpu import build; build.build()"]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def is_seen(folder: Path, mutant: Mutant, seconds: float, tests: Processes) -> bool | None:
    """Tell whether a test fails with the change; None if it can't be compiled."""
    path = folder / mutant.module
    path.write_text(mutant.text(), encoding="utf-8")
    try:
        if not built(folder, mutant.module):
            return None
        return tests.fail(folder, mutant.module, seconds)
    finally:
        path.write_text(read_module(mutant.module), encoding="utf-8")
        if mutant.module.startswith("llmgpu/cpu/"):
            shutil.copy(ROOT / "llmgpu/cpu/engine.so", folder / "llmgpu/cpu/engine.so")


def copy_repository(folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(source, folder / name)


def all_mutants(part: str) -> list[Mutant]:
    kernels = sorted(
        str(path.relative_to(ROOT)) for name in KERNEL_TESTS for path in (ROOT / name).glob("*")
    )
    modules = [*TESTS, *(kernels if "wgsl" in part else ())]
    found = [one for module in modules if part in module for one in mutants(module)]
    needed = {name: [re.compile(one) for one in rules] for name, rules in RULES.items()}
    return [one for one in found if not is_left_out(one, needed)]


def is_left_out(mutant: Mutant, rules: dict[str, list[re.Pattern[str]]]) -> bool:
    """Tell whether a rule says that a change alters no result."""
    named = [*rules[""], *rules.get(mutant.module, ())]
    return any(rule.search(mutant.what) for rule in named)


class Copies:
    """Copies of the repository, each for one change at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._idle: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(count):
            copy_repository(folder / str(number))
            self._idle.put(folder / str(number))

    @contextmanager
    def take(self) -> Iterator[Path]:
        """Take a copy that is idle."""
        folder = self._idle.get()
        try:
            yield folder
        finally:
            self._idle.put(folder)

    def seconds_of(self, module: str, tests: Processes) -> float | None:
        """Return after how long the tests of a module hang; None if they fail as they are."""
        with self.take() as folder:
            started = time.monotonic()
            if tests.fail(folder, module, MOST_SECONDS):
                print(f"left out: the tests of {module} fail without a change", flush=True)
                return None
            return max(SLOWER * (time.monotonic() - started), LEAST_SECONDS)


def run(todo: list[Mutant], jobs: int, tests: Processes) -> tuple[Counter[str], Counter[str]]:
    """Try changes until told to stop; return how many were tried and seen, by module."""
    tried: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    limits: dict[str, Future[float | None]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="mutate-") as name,
        ThreadPoolExecutor(jobs) as pool,
    ):
        copies = Copies(Path(name), jobs)
        for module in dict.fromkeys(mutant.module for mutant in todo):
            limits[module] = pool.submit(copies.seconds_of, module, tests)

        def check(mutant: Mutant) -> None:
            if tests.stopped.is_set():
                return
            seconds = limits[mutant.module].result()
            if seconds is None:
                return
            with copies.take() as folder:
                found = is_seen(folder, mutant, seconds, tests)
            if found is None:
                return
            tried[mutant.module] += 1
            seen[mutant.module] += found
            if not found:
                print(f"not seen: {mutant.module}:{mutant.line}: {mutant.what}", flush=True)

        for done in [pool.submit(check, mutant) for mutant in todo]:
            with suppress(StoppedError):
                done.result()
    return tried, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sample", type=int, help="try this many changes, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", default="", help="only modules whose name has this in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=86_400, help="stop then")
    given = parser.parse_args()
    tests = Processes()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tests.stop)
    timer = threading.Timer(given.seconds, tests.stop)
    timer.daemon = True
    timer.start()
    todo = all_mutants(given.module)
    random.Random(given.seed).shuffle(todo)
    tried, seen = run(todo[: given.sample], given.jobs, tests)
    for module, count in sorted(tried.items()):
        print(f"{module}: {seen[module]} of {count} seen")
    score = seen.total() / max(1, tried.total())
    print(f"{seen.total()} of {tried.total()} changes seen by a test: {score:.1%}")
    sys.exit(score < LEAST_SCORE)


if __name__ == "__main__":
    main()
