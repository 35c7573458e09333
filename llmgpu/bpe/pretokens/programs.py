r"""Programs for the CPU engine: expressions as instructions, see `llmgpu/cpu/expressions.c`.

- An expression is compiled if it consists of single characters, sets, classes such as ``\p{Lu}``,
  repetitions of these, groups, optional groups, alternatives and lookahead. The package regex
  matches all other expressions, and expressions that may match without a character.
- To find the characters of a set, the package regex matches the set with every code point. So the
  engine and the package agree in every version of Unicode and under ``(?i:``.
- A character of text has a bit for each set that it matches. Characters with the same bits form a
  class. Expressions with more than 31 sets or 256 classes are not compiled.
- The engine follows the instructions only if `automata.py` makes no automata of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.automata import NO_LIMIT, automata
from llmgpu.cpu.library import CPattern, library

_CODE_POINTS = 0x110000
_MOST_SETS, _MOST_CLASSES, _MOST_STEPS = 31, 256, 1000
_MOST_EXPRESSIONS = 16  # equal to the constant in engine.h
_MATCH, _TAKE, _REPEAT, _TRY, _JUMP, _AHEAD = range(6)
_ANYTHING = -1

_ESCAPE = r"\\(?:[pP]\{\^?[A-Za-z_]+\}|[sSdDwWrnt]|[^\w])"
_SET = re.compile(
    rf"\[\^?(?:{_ESCAPE}|(?!&&|--|\|\||~~|\[:)[^\\\]\[])+\]|{_ESCAPE}|[^\\\[\](){{}}^$|?*+]"
)
_QUANTIFIER = re.compile(r"(?:([?*+])|\{(\d{1,3})(?:(,)(\d{0,3}))?\})([?+]?)")
_GROUP = re.compile(r"\((?:\?(:|i:|=|!))?(?!\?)")
_LIMITS = {"?": (0, 1), "*": (0, NO_LIMIT), "+": (1, NO_LIMIT)}


class _NotCompiledError(Exception):
    """The expression has an element without an instruction."""


@dataclass
class _Node:
    """An element of an expression: a set, a group, a lookahead or a sequence.

    starts: numbers of sets; the first character of a match is in one of them. is_optional: whether
    the element may match without a character. write: appends the element's instructions to a
    program; the second argument tells whether the expression, or the lookahead, ends after the
    element.
    """

    starts: set[int]
    is_optional: bool
    write: Callable[[list[list[int]], bool], None]


class _Parser:
    """Parses expressions. sets: the number of each set of characters, by the set's expression."""

    def __init__(self) -> None:
        self.sets: dict[str, int] = {}

    def parse(self, expression: str) -> _Node:
        """Return the root of an expression; _NotCompiledError if it can't be compiled."""
        self._text, self._at = expression, 0
        root = self._alternatives(ignore_case=False, depth=0)
        if self._at < len(expression) or root.is_optional:
            raise _NotCompiledError
        return root

    def _alternatives(self, *, ignore_case: bool, depth: int) -> _Node:
        """Read alternatives up to the end of a group."""
        found = [self._sequence(ignore_case, depth)]
        while self._text.startswith("|", self._at):
            self._at += 1
            found.append(self._sequence(ignore_case, depth))
        return found[0] if len(found) == 1 else _choice(found)

    def _sequence(self, ignore_case: bool, depth: int) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._part(ignore_case, depth))
        return _joined(parts)

    def _part(self, ignore_case: bool, depth: int) -> _Node:
        """Read a set or a group, with its quantifier."""
        # A set.
        group = _GROUP.match(self._text, self._at)
        if group is None:
            found = _SET.match(self._text, self._at)
            if found is None:
                raise _NotCompiledError
            self._at = found.end()
            spelled = f"(?i:{found[0]})" if ignore_case else found[0]
            return _repeated(self.sets.setdefault(spelled, len(self.sets)), *self._quantifier())
        # A group: a lookahead, an optional group or a plain one.
        if depth > _MOST_SETS:
            raise _NotCompiledError
        self._at = group.end()
        inner = self._alternatives(ignore_case=ignore_case or group[1] == "i:", depth=depth + 1)
        if not self._text.startswith(")", self._at):
            raise _NotCompiledError
        self._at += 1
        least, most, is_whole = self._quantifier()
        if (least, most) not in ((0, 1), (1, 1)) or (is_whole and most > least):
            raise _NotCompiledError
        if group[1] in ("=", "!"):
            if least == 0:
                raise _NotCompiledError
            return _lookahead(inner, is_wanted=group[1] == "=")
        return inner if least else _choice([inner, _joined([])])

    def _quantifier(self) -> tuple[int, int, bool]:
        """Read a quantifier; return its lowest and highest number, and whether it is possessive."""
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return 1, 1, False
        self._at = found.end()
        least, most = _LIMITS.get(found[1], (0, 0))
        if not found[1]:
            least = int(found[2])
            most = least if not found[3] else int(found[4]) if found[4] else NO_LIMIT
        if most < least or most == 0 or (found[5] == "?" and most > least):
            raise _NotCompiledError
        return least, most, found[5] == "+"


def _bits_of(starts: set[int]) -> int:
    """Return a number whose bits are these sets; _NotCompiledError if it exceeds an int32."""
    bits = sum(1 << number for number in starts)
    if bits >= 1 << _MOST_SETS:
        raise _NotCompiledError
    return bits


def _repeated(number: int, least: int, most: int, is_whole: bool) -> _Node:
    def write(program: list[list[int]], is_last: bool) -> None:
        kind = _TAKE if is_last or is_whole or least == most else _REPEAT
        program.append([kind, _bits_of({number}), least, most])

    return _Node({number}, least == 0, write)


def _joined(parts: Sequence[_Node]) -> _Node:
    """Return a node for elements one after the other."""
    starts: set[int] = set()
    for part in parts:
        starts |= part.starts
        if not part.is_optional:
            break
    is_optional = all(part.is_optional for part in parts)

    def write(program: list[list[int]], is_last: bool) -> None:
        for place, part in enumerate(parts, 1):
            part.write(program, is_last and place == len(parts))

    return _Node(starts, is_optional, write)


def _choice(nodes: Sequence[_Node]) -> _Node:
    def write(program: list[list[int]], is_last: bool) -> None:
        jumps = []
        for node in nodes[:-1]:
            attempt = [_TRY, _ANYTHING if node.is_optional else _bits_of(node.starts), 0, 0]
            program.append(attempt)
            node.write(program, is_last)
            if not is_last:
                jumps.append([_JUMP, 0, 0, 0])
            program.append([_MATCH, 0, 0, 0] if is_last else jumps[-1])
            attempt[2] = len(program)
        nodes[-1].write(program, is_last)
        for jump in jumps:
            jump[2] = len(program)

    starts = set[int]().union(*(node.starts for node in nodes))
    return _Node(starts, any(node.is_optional for node in nodes), write)


def _lookahead(inner: _Node, *, is_wanted: bool) -> _Node:
    def write(program: list[list[int]], is_last: bool) -> None:
        test = [_AHEAD, int(is_wanted), 0, 0]
        program.append(test)
        inner.write(program, True)
        program.append([_MATCH, 0, 0, 0])
        test[2] = len(program)

    return _Node(set(), True, write)


@cache
def _every_character() -> str:
    points = np.arange(_CODE_POINTS, dtype="<u4")
    return points.tobytes().decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=64)  # a search takes 10 ms, and expressions have sets in common
def _runs(regex: Any, spelled: str) -> NDArray[np.int64]:
    """Return the begin and the end of each run of a set's code points: int64 (runs, 2)."""
    found = regex.finditer(f"(?:{spelled})++", _every_character())
    runs = np.array([run.span() for run in found], np.int64).reshape(-1, 2)
    runs.flags.writeable = False  # all callers share the array
    return runs


def _classes(regex: Any, sets: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return the class of each code point, and the bits of each class.

    The arrays are uint8 (0x110000,) and uint32 (256,).

    sets: expressions that match one character; set k has bit k. Raises _NotCompiledError if there
    are more than 256 classes.
    """
    # Cut the code points wherever a run of some set's characters begins or ends. Code points that
    # no cut separates are in the same sets.
    runs = [_runs(regex, spelled) for spelled in sets]
    places = np.unique(np.concatenate([[0], *(run.reshape(-1) for run in runs)])).astype(np.int64)
    places = places[places < _CODE_POINTS]
    # bits[k]: the sets of the code points from places[k] to the next place.
    bits = np.zeros(len(places), np.uint32)
    for number, run in enumerate(runs):
        for begin, end in np.searchsorted(places, run.reshape(-1, 2)).tolist():
            bits[begin:end] |= np.uint32(1 << number)
    values, classes = np.unique(bits, return_inverse=True)
    if len(values) > _MOST_CLASSES:
        raise _NotCompiledError
    table = np.zeros(_MOST_CLASSES, np.uint32)
    table[: len(values)] = values
    lengths = np.diff(places, append=_CODE_POINTS)
    return np.repeat(classes.astype(np.uint8), lengths), table


@lru_cache(maxsize=8)
def compiled(expressions: tuple[str, ...], regex: Any) -> CPattern | None:
    """Return a pattern of the CPU engine that cuts by expressions, one after the other.

    regex: the package. Returns None without the engine, or if an expression can't be compiled.
    """
    if library() is None or len(expressions) > _MOST_EXPRESSIONS:
        return None
    # Parse the expressions, and write their instructions.
    parser = _Parser()
    program: list[list[int]] = []  # (instructions, 4)
    first: list[
        list[int]
    ] = []  # (expressions, 2): the first instruction, and the bits of the starts
    try:
        for expression in expressions:
            root = parser.parse(expression)
            first.append([len(program), _bits_of(root.starts)])
            root.write(program, True)
            program.append([_MATCH, 0, 0, 0])
        if len(program) > _MOST_STEPS:
            return None
        classes, bits = _classes(regex, list(parser.sets))
    except _NotCompiledError:
        return None
    # Give the engine the instructions, and the automata if they are not too large.
    made = CPattern("", classes)
    made.set_expressions(np.array(program, np.int32), np.array(first, np.int32), bits)
    symbols = bits[: int(classes.max()) + 1].tolist()
    tables = automata(program, [at for at, _ in first], symbols, classes[:128])
    if tables:
        found, pairs = tables
        made.set_automata(found, len(symbols), pairs)
    return made
