"""The imports of the package are those that ARCHITECTURE.md lists, and none of those it forbids.

Imports are found in the source, those inside functions and under TYPE_CHECKING included. The graph
is printed room by room: ``pytest -s tests/test_architecture.py``.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llmgpu"
PAGE = ROOT / "ARCHITECTURE.md"

Graph = dict[str, set[str]]  # modules or rooms, and what each imports

ROOM_ROW = re.compile(r"^\| `([\w/]+)` \|[^|]+\|([^|]*)\|$", re.MULTILINE)
FLOORS = re.compile(r"^```floors\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Files of the repository, but for examples with a NAME in them.
FILE_NAME = re.compile(r"`((?:llmgpu|tests|wgsl|docs|scripts|\.github)/[a-z0-9_./]+)`")


@cache
def modules() -> dict[str, Path]:
    """Return the files of the package by module name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return the nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imported_names(path: Path) -> list[str]:
    """Return the full name of everything that a file imports, ``module.name`` for names."""
    return list(_imported_names(path))


def _imported_names(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def module_graph() -> Graph:
    """Return the modules of the package that each module imports."""
    known = modules()
    graph: Graph = {}
    for name, path in known.items():
        targets = set()
        for imported in imported_names(path):
            module = imported if imported in known else imported.rpartition(".")[0]
            if module.split(".")[0] == "llmgpu":
                assert module in known, f"{name} imports {imported}, which is not there"
                targets.add(module)
        graph[name] = targets - {name}
    return graph


@cache
def rooms() -> dict[str, set[str]]:
    """Return the rooms of ARCHITECTURE.md, each with those that it may import."""
    rows = ROOM_ROW.findall(PAGE.read_text(encoding="utf-8"))
    found = {room: set(re.findall(r"`([\w/]+)`", targets)) for room, targets in rows}
    assert len(found) == len(rows), "a room is listed twice"
    return found


def room_of(module: str) -> str:
    """Return the room of a module: the longest listed path that it is in."""
    path = module.replace(".", "/").removeprefix("llmgpu").removeprefix("/")
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        room = "/".join(parts[:length])
        if room in rooms():
            return room
    return APART.get(module, "base")


# The package itself offers Tokenizer, and `python -m llmgpu` is the command line; other modules
# outside of all listed rooms are the base.
APART = {"llmgpu": "tokenizer", "llmgpu.__main__": "cli"}


def room_graph() -> Graph:
    """Return the rooms that each room imports."""
    graph: Graph = defaultdict(set)
    for module, targets in module_graph().items():
        room = room_of(module)
        graph[room] |= {room_of(target) for target in targets} - {room}
    return dict(graph)


def find_circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return names that import each other in a circle, the first again at the end; [] for none."""
    done: set[str] = set()
    for start in sorted(graph):
        stack = [(start, iter(sorted(graph[start])))]
        path = [start]
        while stack and start not in done:
            name, targets = stack[-1]
            target = next((t for t in targets if t not in done), None)
            if target is None:
                done.add(name)
                stack.pop()
                path.pop()
            elif target in path:
                return [*path[path.index(target) :], target]
            else:
                stack.append((target, iter(sorted(graph[target]))))
                path.append(target)
    return []


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert find_circle(module_graph()) == []


def test_rooms_import_what_the_page_lists() -> None:
    actual = room_graph()
    print()
    for room in sorted(actual):
        print(f"{room}:", *(f"`{target}`" for target in sorted(actual[room])))
    assert actual.keys() == rooms().keys()
    unlisted = {room: actual[room] - rooms()[room] for room in actual}
    unused = {room: rooms()[room] - actual[room] for room in actual}
    assert {room: more for room, more in unlisted.items() if more} == {}
    assert {room: less for room, less in unused.items() if less} == {}


def test_no_room_imports_one_of_a_floor_above() -> None:
    (block,) = FLOORS.findall(PAGE.read_text(encoding="utf-8"))
    floors = [line.split() for line in block.splitlines() if line.strip()]
    level = {room: -number for number, floor in enumerate(floors) for room in floor}
    assert level.keys() == rooms().keys()
    for room, targets in rooms().items():
        for target in targets:
            assert level[target] <= level[room], f"{room} imports {target}"


def test_only_gpu_imports_the_webgpu_packages() -> None:
    importers = {
        room_of(module)
        for module, path in modules().items()
        if any(name.split(".")[0] in ("wgpu", "wgpudawn") for name in imported_names(path))
    }
    assert importers == {"gpu"}


@pytest.mark.parametrize(
    ("importers", "forbidden"),
    [
        ("llmgpu.text", "llmgpu.bpe"),
        ("llmgpu.gpu", "llmgpu.bpe"),
        ("llmgpu.gpu", "llmgpu.lm"),
        ("llmgpu.bpe", "llmgpu.lm"),
        ("llmgpu.bpe", "llmgpu.tokens"),
        ("llmgpu.tokens", "llmgpu.lm"),
        ("llmgpu.lm", "llmgpu.bpe.training"),
        ("llmgpu", "llmgpu.cli"),
        ("llmgpu", "llmgpu.bench"),
    ],
)
def test_nevers(importers: str, forbidden: str) -> None:
    """A part of the package imports nothing of another; the command line is apart."""
    allowed = (forbidden, "llmgpu.cli", "llmgpu.__main__")
    found = [
        (module, target)
        for module, targets in module_graph().items()
        if _is_in(module, importers) and not any(_is_in(module, part) for part in allowed)
        for target in targets
        if _is_in(target, forbidden)
    ]
    assert found == []


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_click_and_rich_belong_to_the_command_line() -> None:
    importers = {
        room_of(module)
        for module, path in modules().items()
        if any(name.split(".")[0] in ("click", "rich") for name in imported_names(path))
    }
    assert importers == {"cli"}


def code_lines(path: Path) -> int:
    """Return the lines of a file without blank lines, comments, docstrings and imports."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    strings: set[int] = set()  # rows of strings: a line of one may be blank or begin with "#"
    left_out: set[int] = set()  # rows of imports and docstrings
    for node in nodes_of(path):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= rows_of(node)
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            strings |= rows_of(node)
        elif isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            left_out |= rows_of(node.body[0])
    lines = enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
    written = {row for row, line in lines if line.strip() and not line.lstrip().startswith("#")}
    return len((written | strings) - left_out)


def rows_of(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


BUDGET = re.compile(r"^\| `([\w/]+)` \| (\d+) \|$", re.MULTILINE)


def test_rooms_are_within_their_budget() -> None:
    budget = {room: int(lines) for room, lines in BUDGET.findall(PAGE.read_text(encoding="utf-8"))}
    counted: dict[str, int] = defaultdict(int)
    for module, path in modules().items():
        counted[room_of(module)] += code_lines(path)
    print()
    for room in sorted(counted):
        print(f"{room}: {counted[room]}")
    assert budget.keys() == rooms().keys()
    over = {room: lines for room, lines in counted.items() if lines > budget[room]}
    assert over == {}, "lines of code above the budget of ARCHITECTURE.md"


def test_code_lines_leave_out_what_is_not_code(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""A head."""\nimport os\n\nTEXT = """a\n\n# b"""\n\n\n# why\ndef f():\n    """."""\n'
        "    return (\n        1,  # one\n\n        # two\n    )\n"
    )
    assert code_lines(path) == 7


MOST_LINES = 700  # of a file
MOST_FUNCTION_LINES = 60


def test_files_and_functions_are_of_readable_length() -> None:
    long = []
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        long += [name] if text.count("\n") > MOST_LINES else []
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                long += [f"{name}.{node.name}"] if lines > MOST_FUNCTION_LINES else []
    assert long == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs"])
def test_files_that_pages_name_exist(page: str) -> None:
    path = ROOT / page
    pages = sorted(path.glob("*.md")) if path.is_dir() else [path]
    named = {name for p in pages for name in FILE_NAME.findall(p.read_text(encoding="utf-8"))}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
