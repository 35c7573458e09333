"""Change the modules of the exact paths one place at a time, and see whether their tests fail.

usage: python scripts/mutate.py [--sample N] [--seed N] [--module PART] [--jobs N] [--seconds S]

A change is a comparison that includes or leaves out equality, a whole number one larger, + for -,
a minimum for a maximum, "and" for "or", or a statement that is left out. It is made in a copy of
the repository, in Python by its syntax tree, in C and WGSL by their text. Changes that alter no
result are listed in UNCHANGED, judged by hand. The score is how many of the others fail a test; the
exit status is 1 below LEAST_SCORE. Kernels are changed only with --module wgsl: a kernel that never
ends may take a graphics driver with it.
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
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST_SCORE = 0.95
MOST_SECONDS = 300  # of tests without a change
SLOWER = 5  # tests that take this many times as long, and 20 s more, hang, and count as failed
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
    "llmgpu/bpe/words/word_table.py": "bpe/words/test_word_table.py bpe/test_engines.py",
    "llmgpu/bpe/words/hash_table.py": "bpe/words/test_hash_table.py",
    "llmgpu/bpe/words/spilling.py": "bpe/words/test_spilling.py bpe/words/test_count_host.py",
    "llmgpu/bpe/words/counts_file.py": "bpe/words/test_counts_file.py",
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
    "llmgpu/tokens/bin.py": "tokens/test_formats.py tokens/test_shards.py",
    "llmgpu/tokens/shards.py": "tokens/test_shards.py",
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
    "llmgpu/cpu/long_words.c": "cpu/test_long_words.py " + _ENCODING,
    "llmgpu/cpu/pretokens.c": _PRETOKENS + " bpe/test_engines.py",
    "llmgpu/cpu/blocks.c": _PRETOKENS,
    "llmgpu/cpu/shared_words.c": "cpu/test_shared_words.py " + _ENCODING,
    "llmgpu/cpu/words.c": "bpe/words/test_count_host.py " + _ENCODING,
    "llmgpu/cpu/encode.c": _ENCODING + " bpe/encoding/test_special_encoding.py",
    "llmgpu/cpu/matching.c": _ENCODING + " bpe/encoding/test_matching.py",
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

# (module, change) pairs that alter no result: sizes and orders that are free, and time alone.
UNCHANGED: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Mutant:
    """A change of a module: where and what.

    index: of the changed node in the order of `ast.walk`; in C and WGSL, where the changed text
        begins. choice: which of a node's changes; how long the changed text is. new: its text.
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
            whole = text.splitlines()[line - 1].strip()
            column = found.start() - (text.rfind("\n", 0, found.start()) + 1)
            what = f"{whole} | {column}: {old.strip()} -> {new}"
            yield Mutant(module, line, what, found.start(), len(old), new)


def mutants(module: str) -> Iterator[Mutant]:
    """Yield all changes of a module."""
    if not module.endswith(".py"):
        yield from text_mutants(module)
        return
    for index, node in enumerate(ast.walk(ast.parse(read_module(module)))):
        for choice, (what, _) in enumerate(changes(node)):
            yield Mutant(module, getattr(node, "lineno", 0), what, index, choice)


def commands(module: str) -> Iterator[list[str]]:
    """Yield what is run for a module, one after the other, until something fails."""
    named = TESTS.get(module) or KERNEL_TESTS[os.path.dirname(module)]
    if module.startswith("llmgpu/cpu/"):
        yield [sys.executable, "-m", "tests.cpu.fuzz", "llmgpu/cpu/engine.so", "1", FUZZ_ROUNDS]
    chosen = "gpu" if module.endswith(".wgsl") else "not gpu and not warned"
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    yield [*pytest, "-m", "not slow", "-k", chosen, *(f"tests/{name}" for name in named.split())]


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def tests_fail(folder: Path, module: str, seconds: float) -> bool:
    """Tell whether what is run for a module fails, or takes longer, in a copy of the repository."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CI": "1",
        "LLMGPU_TEST_EXAMPLES": "30",
    }
    return any(fails(command, folder, environment, seconds) for command in commands(module))


def fails(command: list[str], folder: Path, environment: dict[str, str], seconds: float) -> bool:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=limit_memory,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True
    if process.returncode > 2:  # 2: a module that can't be imported
        raise SystemExit(f"{command}: exit code {process.returncode}: {output.decode()[-2000:]}")
    return process.returncode != 0


def built(folder: Path, module: str) -> bool:
    """Build the library of the CPU engine where it is changed; False if it can't be."""
    if not module.endswith((".c", ".h")):
        return True
    command = [sys.executable, "-c", "from llmgpu.cpu import build; build.build()"]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def is_seen(folder: Path, mutant: Mutant, seconds: float) -> bool | None:
    """Tell whether a test fails with the change; None if it can't be compiled."""
    path = folder / mutant.module
    path.write_text(mutant.text(), encoding="utf-8")
    try:
        if not built(folder, mutant.module):
            return None
        return tests_fail(folder, mutant.module, seconds)
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
    return [one for one in found if (one.module, one.what) not in UNCHANGED]


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

    def seconds_of(self, module: str) -> float | None:
        """Return after how long the tests of a module hang; None if they fail as they are."""
        with self.take() as folder:
            started = time.monotonic()
            if tests_fail(folder, module, MOST_SECONDS):
                print(f"left out: the tests of {module} fail without a change", flush=True)
                return None
            return SLOWER * (time.monotonic() - started) + 20


def run(todo: list[Mutant], jobs: int, end: float) -> tuple[Counter[str], Counter[str]]:
    """Try changes; return how many were tried and how many were seen, by module."""
    tried: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    modules = sorted({mutant.module for mutant in todo})
    with (
        tempfile.TemporaryDirectory(prefix="mutate-") as name,
        ThreadPoolExecutor(jobs) as pool,
    ):
        copies = Copies(Path(name), jobs)
        limits = dict(zip(modules, pool.map(copies.seconds_of, modules), strict=True))

        def check(mutant: Mutant) -> None:
            seconds = limits[mutant.module]
            if seconds is None or time.monotonic() > end:
                return
            with copies.take() as folder:
                found = is_seen(folder, mutant, seconds)
            if found is None:
                return
            tried[mutant.module] += 1
            seen[mutant.module] += found
            if not found:
                print(f"not seen: {mutant.module}:{mutant.line}: {mutant.what}", flush=True)

        list(pool.map(check, todo))
    return tried, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sample", type=int, help="try this many changes, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", default="", help="only modules whose name has this in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none later")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    todo = all_mutants(given.module)
    random.Random(given.seed).shuffle(todo)
    tried, seen = run(todo[: given.sample], given.jobs, end)
    for module, count in sorted(tried.items()):
        print(f"{module}: {seen[module]} of {count} seen")
    score = seen.total() / max(1, tried.total())
    print(f"{seen.total()} of {tried.total()} changes seen by a test: {score:.1%}")
    sys.exit(score < LEAST_SCORE)


if __name__ == "__main__":
    main()
