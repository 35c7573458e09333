"""Which modules are changed, by which tests that is to be seen, and what may be changed in them.

Python is changed by its syntax tree, C and WGSL by their text.
"""

from __future__ import annotations

import ast
import copy
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unchanged import RULES

ROOT = Path(__file__).parents[1]

ENGINE = "llmgpu/cpu/"
SANITIZERS = "tests/cpu/test_sanitizers.py"

_ENCODING = (
    "bpe/encoding/test_encoder_numpy.py bpe/test_engines.py bpe/encoding/test_encoder_numpy_cuts.py"
)
_PRETOKENS = (
    "bpe/pretokens/test_pattern.py bpe/pretokens/test_pattern_families.py cpu/test_library.py"
)
_OPERATIONS = (
    "lm/ops/test_operations.py lm/ops/test_layers_norm.py lm/ops/test_activations.py "
    "lm/ops/test_layers_rotary.py lm/ops/test_attention.py lm/ops/test_linear.py "
    "lm/ops/test_ids_loss.py lm/ops/test_optimizer.py"
)
_MERGING = (
    "bpe/training/test_merge_host.py bpe/training/test_batched_numpy.py bpe/training/test_train.py"
)
_SHARDS = "tokens/test_formats_layouts.py tokens/test_shards.py"
_ALONE = (
    "bpe/training/merge_host.py "
    "bpe/vocabulary/trie.py bpe/vocabulary/building.py "
    "bpe/interchange/tekken.py bpe/interchange/tiktoken.py tokens/shards.py text/remote.py "
    "lm/sampling.py cpu/transfers.c"
)

# By module: its tests besides the file that is named after it.
TESTS = {
    **dict.fromkeys(_ALONE.split(), ""),
    "bpe/words/spilling.py": "bpe/words/test_count_host.py",
    "bpe/words/distinct_words.py": "bpe/words/test_number_words.py",
    "bpe/words/counts_file.py": "bpe/words/test_merge_counts.py",
    "bpe/words/count_host.py": "bpe/test_engines.py",
    "bpe/encoding/matching.py": "bpe/encoding/test_pair_ranks.py bpe/encoding/test_long_words.py "
    + _ENCODING,
    "bpe/encoding/encoder_numpy.py": _ENCODING,
    "bpe/encoding/special_encoding.py": "bpe/encoding/test_special_search.py "
    "bpe/encoding/test_special_search_flags.py bpe/interchange/test_huggingface.py",
    "bpe/interchange/gguf.py": "bpe/interchange/test_gguf_reading.py",
    "bpe/pretokens/programs.py": "bpe/pretokens/test_programs_automata.py",
    "bpe/pretokens/expressions.py": _PRETOKENS,
    "bpe/pretokens/unicode_classes.py": "bpe/pretokens/test_gpt2.py " + _PRETOKENS,
    "bpe/pretokens/slices.py": _PRETOKENS,
    "bpe/training/batched_numpy.py": _MERGING,
    "bpe/training/symbols.py": "bpe/training/test_train.py",
    "tokens/ids.py": "tokens/test_formats.py tokens/test_shown.py",
    "tokens/sinks.py": "tokens/test_sinks_npy.py tokens/test_formats.py",
    "tokens/filters.py": "tokens/test_filters_splitting.py",
    "tokens/bin.py": "tokens/test_foreign.py tokens/test_formats.py " + _SHARDS,
    "tokens/manifest.py": "tokens/test_shards.py cli/test_parts.py",
    "bpe/encoding/open.py": "bpe/encoding/test_optional_device.py",
    "tokens/tokenizing.py": "tokens/test_tokenizing_counts.py cli/test_count.py",
    **dict.fromkeys(("cpu/merging.c", "cpu/pairs.c", "cpu/trainer.c"), _MERGING),
    "cpu/long_words.c": _ENCODING,
    "cpu/automata.c": "bpe/pretokens/test_programs_automata.py",
    "cpu/pretokens.c": _PRETOKENS + " bpe/test_engines.py",
    "cpu/blocks.c": _PRETOKENS,
    "cpu/texts.c": "text/test_jsonl.py text/test_corpus.py " + _PRETOKENS,
    "cpu/small_files.c": "text/test_direct_reader.py",
    "cpu/shared_words.c": _ENCODING,
    "cpu/words.c": "bpe/words/test_count_host.py " + _ENCODING,
    "cpu/encode.c": "bpe/encoding/test_special_encoding.py " + _ENCODING,
    "cpu/matching.c": "bpe/encoding/test_pair_ranks.py bpe/encoding/test_matching.py " + _ENCODING,
    "cpu/tokens.c": "bpe/vocabulary/test_trie.py bpe/vocabulary/test_spelling.py "
    "bpe/vocabulary/test_vocabulary.py",
    "cpu/decimals.c": "tokens/test_formats.py",
    "cpu/generated.c": "text/test_generated.py",
    "cpu/jsonl.c": "text/test_jsonl.py",
    **dict.fromkeys(
        ("cpu/rows.c", "cpu/row_kernels.h", "cpu/products.c", "cpu/threads.c"), _OPERATIONS
    ),
}
KERNEL_TESTS = {
    "wgsl/common": "bpe/encoding/test_subgroups.py bpe/plain/test_recount_gpu.py "
    "bpe/plain/test_greedy_gpu.py gpu/test_hash_key.py lm/ops/test_ids_loss.py",
    "wgsl/words": "bpe/words/test_word_table_gpu.py bpe/words/test_count_gpu.py",
    "wgsl/count": "bpe/words/test_count_gpu.py bpe/test_engines.py",
    "wgsl/encode": "bpe/encoding/test_encoder_gpu.py bpe/encoding/test_pieces_gpu.py "
    "bpe/test_engines.py",
    "wgsl/pretoken": "bpe/pretokens/test_pretoken_gpu.py bpe/pretokens/test_pretoken_walk_gpu.py "
    "bpe/encoding/test_pieces_gpu.py",
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
        node's changes; how long the changed text is. new: its text. function: the function that is
        changed, as "file:line:" with its first line, or for a module in C its folder; empty where
        every test may see the change.
    """

    module: str
    line: int
    what: str
    index: int
    choice: int
    new: str = ""
    function: str = ""

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
    new: ast.AST | None = copy.copy(node)
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
            function = ENGINE if module.endswith((".c", ".h")) else ""
            yield Mutant(module, line, what, found.start(), len(old), new, function)


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
    tree = ast.parse(text)
    functions = functions_by_line(tree)
    for index, node in enumerate(ast.walk(tree)):
        for choice, (change, _) in enumerate(changes(node)):
            line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
            what = described(lines[line - 1], column, change)
            first = functions.get(line)
            function = f"{module}:{first}:" if first else ""
            yield Mutant(module, line, what, index, choice, function=function)


def functions_by_line(tree: ast.Module) -> dict[int, int]:
    """Return the first line of the innermost function around each line that is inside of one.

    What stands at the head of a function, as defaults do, is computed where it is defined. What is
    kept for later calls, as objects may be, serves other tests than the one that makes it.
    """
    found: dict[int, int] = {}
    for node in ast.walk(tree):  # the outer ones come first
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name == "__init__" or "cache" in ast.unparse(node.decorator_list):
                continue
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or node.lineno
            found |= dict.fromkeys(range(node.body[0].lineno, last + 1), first)
    return found


def is_left_out(mutant: Mutant) -> bool:
    """Tell whether a rule says that a change alters no result."""
    rules = [*RULES[""], *RULES.get(mutant.module, ())]
    return any(re.search(rule, mutant.what) for rule in rules)


def test_files(module: str) -> list[str]:
    """Return the files of a module's tests."""
    folder, name = os.path.split(module.removeprefix("llmgpu/"))
    named = (KERNEL_TESTS[folder] if "wgsl" in folder else TESTS[f"{folder}/{name}"]).split()
    own = f"{folder}/test_{Path(name).stem}.py"
    if (ROOT / "tests" / own).exists():
        named.insert(0, own)
    if module.startswith(ENGINE):
        named.append("cpu/test_allocations.py")
    return [f"tests/{name}" for name in named] + [SANITIZERS] * module.startswith(ENGINE)


def all_mutants(part: str) -> list[Mutant]:
    """Return the changes that may alter a result, of modules whose name has this in it."""
    kernels = sorted(
        str(path.relative_to(ROOT)) for name in KERNEL_TESTS for path in (ROOT / name).glob("*")
    )
    modules = [*(f"llmgpu/{name}" for name in TESTS), *(kernels if "wgsl" in part else ())]
    found = [one for module in modules if part in module for one in mutants(module)]
    return [one for one in found if not is_left_out(one)]
