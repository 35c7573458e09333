# ruff: noqa: SIM905  (lists of words)
"""Print figures about the package's prose, room by room; fail where prose has to be decoded.

The figures are a thermometer: pronouns, relatives and "what" in every thousand words of docstrings
and comments, and the share of comments in the lines of function bodies. Texts that name things
have few pronouns. ``python scripts/prose.py --limit`` fails above the limits.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llmgpu"
PRONOUNS = frozenset(
    "that those it its which they them what who whose one ones other others where such".split()
)
MOST_PRONOUNS, MOST_WHAT = 60.0, 4.0  # of a thousand words


@dataclass
class Prose:
    """Counts over the docstrings and comments of some files.

    body_lines: lines of function bodies, without docstrings. body_comments: how many are comments.
    """

    words: int = 0
    pronouns: int = 0
    what: int = 0
    body_lines: int = 0
    body_comments: int = 0

    def add(self, path: Path) -> None:
        """Count a file."""
        text = path.read_text(encoding="utf-8")
        tree, rows = ast.parse(text), text.splitlines()
        docstring_rows: set[int] = set()
        body_rows: set[int] = set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            if (docstring := ast.get_docstring(node)) is not None:
                self._count_words(docstring)
                docstring_rows |= _rows(node.body[0])
            if isinstance(node, ast.FunctionDef):
                body_rows |= set(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
        body_rows -= docstring_rows
        for row, comment in _comments(text):
            self._count_words(comment)
            self.body_comments += row in body_rows and rows[row - 1].lstrip().startswith("#")
        self.body_lines += sum(1 for row in body_rows if rows[row - 1].strip())

    def _count_words(self, text: str) -> None:
        words = re.findall(r"[a-z']+", text.lower())
        self.words += len(words)
        self.pronouns += sum(word in PRONOUNS for word in words)
        self.what += words.count("what")

    @property
    def figures(self) -> tuple[float, float, float]:
        """Pronouns and "what" in 1 000 words, and comments in 100 lines of bodies."""
        words, lines = max(self.words, 1), max(self.body_lines, 1)
        return (
            1000 * self.pronouns / words,
            1000 * self.what / words,
            100 * self.body_comments / lines,
        )


def _rows(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def main() -> int:
    rooms: dict[str, Prose] = {}
    whole = Prose()
    for path in sorted(PACKAGE.rglob("*.py")):
        room = "/".join(path.relative_to(PACKAGE).parent.parts[:2]) or "base"
        rooms.setdefault(room, Prose()).add(path)
        whole.add(path)
    print(f"{'room':20}{'pronouns':>10}{'what':>8}{'comments in bodies, %':>24}")
    for room, prose in [*sorted(rooms.items()), ("all", whole)]:
        pronouns, what, comments = prose.figures
        print(f"{room:20}{pronouns:10.0f}{what:8.1f}{comments:24.1f}")
    pronouns, what, _ = whole.figures
    if "--limit" in sys.argv and (pronouns > MOST_PRONOUNS or what > MOST_WHAT):
        print(f"above the limits: {MOST_PRONOUNS:.0f} pronouns and {MOST_WHAT:.0f} what")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
