"""Change the modules of the exact paths one place at a time, and see whether their tests fail.

usage: python scripts/mutate.py [--sample N] [--seed N] [--module PART]

A change is a comparison that includes or leaves out equality, a whole number one larger, + for -,
a minimum for a maximum, "and" for "or", or a statement that is left out. It is made in a copy of
the repository. Changes that alter no result are listed in UNCHANGED, judged by hand. The score is
how many of the others fail a test; the exit status is 1 below LEAST_SCORE.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST_SCORE = 0.95
TEST_SECONDS = 300  # a test run that takes longer hangs, and counts as failed
COPIED = ("llmgpu", "tests", "wgsl", "docs", "pyproject.toml")

# By module: the tests named for it, the fastest first.
TESTS = {
    "bpe/words/word_table.py": "bpe/words/test_word_table.py bpe/test_engines.py",
    "bpe/words/hash_table.py": "bpe/words/test_hash_table.py",
    "bpe/words/spilling.py": "bpe/words/test_spilling.py bpe/words/test_count_host.py",
    "bpe/words/counts_file.py": "bpe/words/test_counts_file.py",
    "bpe/encoding/pair_ranks.py": "bpe/encoding/test_pair_ranks.py bpe/encoding/test_matching.py",
    "bpe/encoding/matching.py": "bpe/encoding/test_matching.py bpe/encoding/test_encoder_numpy.py",
    "bpe/encoding/encoder_numpy.py": "bpe/encoding/test_encoder_numpy.py "
    "bpe/encoding/test_encoder_numpy_cuts.py bpe/test_engines.py",
    "bpe/plain/greedy_matching.py": "bpe/encoding/test_encoder_numpy.py",
    "bpe/training/linked_words.py": "bpe/training/test_batched_numpy.py bpe/training/test_train.py",
    "bpe/training/batched_numpy.py": "bpe/training/test_batched_numpy.py",
    "bpe/training/symbols.py": "bpe/training/test_symbols.py bpe/training/test_train.py",
    "bpe/vocabulary/trie.py": "bpe/vocabulary/test_trie.py",
    "bpe/vocabulary/recovery.py": "bpe/vocabulary/test_recovery.py",
    "tokens/ids.py": "tokens/test_formats.py",
    "tokens/npy.py": "tokens/test_formats.py",
    "tokens/bin.py": "tokens/test_formats.py tokens/test_shards.py",
    "tokens/shards.py": "tokens/test_shards.py",
    "lm/generating/sampling.py": "lm/generating/test_sampling.py",
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

# (module, change) pairs that alter no result: sizes and orders that are free, and time alone.
UNCHANGED: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Mutant:
    """A change of a module: where and what.

    index: of the changed node in the order of `ast.walk`. choice: which of its changes.
    """

    module: str
    line: int
    what: str
    index: int
    choice: int

    def text(self) -> str:
        """Return the whole module with the change."""
        tree = ast.parse(read_module(self.module))
        old = list(ast.walk(tree))[self.index]
        _, new = list(changes(old))[self.choice]
        return ast.unparse(ast.fix_missing_locations(_Replace(old, new).visit(tree)))


def read_module(module: str) -> str:
    return (ROOT / "llmgpu" / module).read_text(encoding="utf-8")


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


def mutants(module: str) -> Iterator[Mutant]:
    """Yield all changes of a module."""
    for index, node in enumerate(ast.walk(ast.parse(read_module(module)))):
        for choice, (what, _) in enumerate(changes(node)):
            yield Mutant(module, getattr(node, "lineno", 0), what, index, choice)


def tests_fail(folder: Path, module: str) -> bool:
    """Tell whether the tests named for a module fail in a copy of the repository."""
    tests = [f"tests/{name}" for name in TESTS[module].split()]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-k",
        "not gpu",
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(folder), "CI": "1", "LLMGPU_TEST_EXAMPLES": "30"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=TEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode > 2:  # 2: a module that can't be imported
        raise SystemExit(f"pytest ended with {done.returncode}: {done.stdout.decode()[-2000:]}")
    return done.returncode != 0


def is_seen(folder: Path, mutant: Mutant) -> bool:
    """Tell whether a test fails with the change."""
    path = folder / "llmgpu" / mutant.module
    path.write_text(mutant.text(), encoding="utf-8")
    try:
        return tests_fail(folder, mutant.module)
    finally:
        path.write_text(read_module(mutant.module), encoding="utf-8")


def copy_repository(folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sample", type=int, help="try this many changes, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", default="", help="only modules whose name has this in it")
    given = parser.parse_args()
    todo = [one for module in TESTS if given.module in module for one in mutants(module)]
    todo = [one for one in todo if (one.module, one.what) not in UNCHANGED]
    if given.sample is not None and given.sample < len(todo):
        todo = random.Random(given.seed).sample(todo, given.sample)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        folder = Path(name)
        copy_repository(folder)
        for module in {mutant.module for mutant in todo}:
            if tests_fail(folder, module):
                raise SystemExit(f"the tests of {module} fail without a change")
        for done, mutant in enumerate(todo, 1):
            if is_seen(folder, mutant):
                failed += 1
            else:
                print(f"not seen: {mutant.module}:{mutant.line}: {mutant.what}", flush=True)
            if done % 20 == 0:
                print(f"{failed} of {done} seen, {len(todo)} in all", flush=True)
    score = failed / max(1, len(todo))
    print(f"{failed} of {len(todo)} changes seen by a test: {score:.1%}")
    sys.exit(score < LEAST_SCORE)


if __name__ == "__main__":
    main()
