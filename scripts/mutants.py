"""What may be changed in a module: Python by its syntax tree, C and WGSL by their text."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unchanged import RULES

ROOT = Path(__file__).parents[1]

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
            function = "llmgpu/cpu/" if module.endswith((".c", ".h")) else ""
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

    What stands at the head of a function, as defaults do, is computed where it is defined.
    """
    found: dict[int, int] = {}
    for node in ast.walk(tree):  # the outer ones come first
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or node.lineno
            found |= dict.fromkeys(range(node.body[0].lineno, last + 1), first)
    return found


def is_left_out(mutant: Mutant) -> bool:
    """Tell whether a rule says that a change alters no result."""
    rules = [*RULES[""], *RULES.get(mutant.module, ())]
    return any(re.search(rule, mutant.what) for rule in rules)
