r"""Regular expressions for the CPU engine, as instructions and as automata.

`llmgpu/cpu/expressions.c` follows the instructions of an expression, its program:

- An expression is compiled if it consists of single characters, sets, classes such as ``\p{Lu}``,
  repetitions of these, groups, optional groups, alternatives and lookahead. The package regex
  matches all other expressions, and expressions that may match without a character.
- To find the characters of a set, the package regex matches the set with every code point. So the
  engine and the package agree in every version of Unicode and under ``(?i:``.
- A character of text has a bit for each set that it matches. Characters with the same bits form a
  class. Expressions with more than 31 sets or 256 classes are not compiled.
- The engine follows the instructions only if no automata can be made of them.

`llmgpu/cpu/automata.c` cuts a text in one pass by an automaton of several expressions. A thread is
an instruction with the number of characters that it has taken. A state of an expression is a list
of threads in the order in which the package regex would try them:

- A character moves each thread on. If a thread's expression matches, later threads are dropped,
  because the package would not come to them. The match ends for certain once the earlier threads
  die. So a state and a character determine whether a match ends before the character, and the
  next state.
- If all threads die after a match had ended earlier, the automaton goes back to that end. If no
  match had ended, no match starts where the threads started, and the automaton goes on at the next
  character.
- A lookahead must be decided by the next character, as in ``\s+(?!\S)``. A possessive repetition
  is left only by a character that it does not take.

An expression is certain if its automaton never goes back. If all expressions but the last one are
certain, a list of their states is a state of one automaton. At each bound of an expression, a text
of the later expressions ends, and another begins. Other lists of expressions are cut by several
automata, each of which runs on the stretches of text left by the automata before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import CPattern, library

# Operations, numbered as in llmgpu/cpu/expressions.c.
_MATCH, _TAKE, _REPEAT, _TRY, _JUMP, _AHEAD = range(6)
NO_LIMIT = 2**31 - 1
# Flags of a step, as in llmgpu/cpu/automata.c. BOUND has the bits of MARK (1) and LAST (2), and
# BEGIN has the bits of STOP and LAST. In a table, the bits from PLACE on are the number of a column
# of `heads`.
_BOUND, _LAST, _STOP, _BEGIN, _PLACE = 3, 2, 0x80, 0x82, 2
_MOST_OUTERS = 32  # equal to OUTERS in automata.c
_MOST_ENTRIES = 1 << 15  # limit of the entries of a table, whose positions are uint16
_MOST_VISITS = 1 << 17  # limit of the instructions visited while tables are made

_Threads = tuple[tuple[int, int], ...]
_START: _Threads = ((-1, 0),)  # at a bound, where a match may start
_SKIP: _Threads = ((-2, 0),)  # no match starts at the next character
_GAP: _Threads = ()  # after a character outside of matches
_States = tuple[_Threads, ...]  # the state of each expression
# Three tables. The first has the number of the next state, the second the flags of the step. Both
# have a row for each state and a column for each class of characters; the last column is for the
# end of the text. The third, (2, _MOST_OUTERS), has a column for each list of states of all
# expressions but the last. Row 0 is the state in which the last expression is at _START, row 1 the
# state in which it is at _SKIP.
_Numbered = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]
# The next states and the flags, see `llmgpu/cpu/automata.c`: uint16 (n,).
Automaton = tuple[NDArray[np.uint16], NDArray[np.uint16]]


class _TooLargeError(Exception):
    """An expression has no automaton of the permitted size."""


class _Expression:
    """Computes the states of one expression.

    program: instructions of all expressions. first: index of the expression's first instruction.
    symbols: the bits of each class of characters.
    is_certain: whether the automaton of this expression never goes back.
    """

    def __init__(self, program: Sequence[Sequence[int]], first: int, symbols: Sequence[int]):
        self._program, self._symbols = program, [*symbols, 0]
        self._first: _Threads = ((first, 0),)
        self._moved = cache(self._move)
        self._visits = 0
        self.is_certain = False
        self.is_certain = not self._goes_back()

    def _goes_back(self) -> bool:
        states, known = [_START], {_START}
        for state in states:
            for bits in self._symbols:
                following, flags = self.step(state, bits)
                if flags == _STOP:
                    return True
                if following not in known:
                    known.add(following)
                    states.append(following)
        return False

    def step(self, state: _Threads, bits: int) -> tuple[_Threads, int]:
        """Return the state after a character, and the flags of the step.

        bits: the character's sets; 0 at the end of the text.
        """
        if state == _SKIP:
            return _GAP, 0
        begun, _ = self._moved(self._first, bits)
        if state == _START:
            return begun, _BOUND
        if state == _GAP:
            return begun, 0 if not begun else _BOUND if self.is_certain else _BEGIN
        following, ends = self._moved(state, bits)
        if following:
            return following, _LAST * ends
        return (begun, _BOUND) if ends else (_GAP, _STOP)

    def _move(self, threads: _Threads, bits: int) -> tuple[_Threads, bool]:
        """Return the threads after a character, and whether a match ends before the character.

        bits: the sets that contain the character; 0 at the end of the text.
        """
        # Follow each thread, in their order, up to the instructions that take the character.
        waiting, seen, moved = [*reversed(threads)], set(), dict[tuple[int, int], None]()
        while waiting:
            thread = at, count = waiting.pop()
            if thread in seen:
                continue
            seen.add(thread)
            operation, a, b, c = self._program[at]
            # A match drops all later threads.
            if operation == _MATCH:
                return tuple(moved), True
            if operation in (_TAKE, _REPEAT):
                takes = bool(bits & a) and count < c
                if takes:
                    moved[at, min(count + 1, b if c == NO_LIMIT else c)] = None
                if count >= b and not (takes and operation == _TAKE):
                    waiting.append((at + 1, 0))
            elif operation == _TRY:
                waiting += [(b, 0), (at + 1, 0)]
            elif operation == _JUMP or self._is_ahead(at + 1, bits) == bool(a):
                waiting.append((b, 0))
        self._visits += len(seen)
        if self._visits > _MOST_VISITS:
            raise _TooLargeError
        return tuple(moved), False

    def _is_ahead(self, at: int, bits: int) -> bool:
        """Return whether a lookahead's instructions match; _TooLargeError if that is undecided."""
        moved, ends = self._moved(((at, 0),), bits)
        if moved and not ends and not all(self._moved(moved, more)[1] for more in self._symbols):
            raise _TooLargeError
        return ends or bool(moved)


def _step(expressions: Sequence[_Expression], state: _States, bits: int) -> tuple[_States, int]:
    """Return the next states of all expressions of an automaton, and the flags of the step.

    bits: as for `_Expression.step`.
    """
    following, flags = [], 0
    for expression, threads in zip(expressions, state, strict=True):
        # At a bound, a text of the later expressions ends, and another begins.
        if flags == _BOUND and threads != _SKIP:
            if expression.step(threads, 0)[1] == _STOP:
                return state, _STOP
            threads = _START
        after, more = expression.step(threads, bits)
        following.append(after)
        if more == _BOUND or expression is expressions[-1]:
            flags |= more
    return tuple(following), flags


def _numbered(expressions: Sequence[_Expression], symbols: Sequence[int]) -> _Numbered:
    """Return the tables of an automaton for expressions of which all but the last are certain.

    symbols: the bits of each class of characters.
    """
    states = [(_START,) * len(expressions)]
    numbers, outers = {states[0]: 0}, dict[_States, int]()
    following: list[list[int]] = []
    flags: list[list[int]] = []

    def number(*state: _Threads) -> int:
        if numbers.setdefault(state, len(states)) == len(states):
            states.append(state)
        return numbers[state]

    heads = np.zeros((2, _MOST_OUTERS), np.intp)
    for state in states:
        *outer, last = state
        place = outers.setdefault(tuple(outer), len(outers))
        if place == _MOST_OUTERS or len(states) * (len(symbols) + 1) > _MOST_ENTRIES:
            raise _TooLargeError
        heads[:, place] = number(*outer, _START), number(*outer, _SKIP)
        steps = [_step(expressions, state, bits) for bits in symbols]
        following.append([number(*after) for after, _ in steps] + [0])
        at_end = expressions[-1].step(last, 0)[1]
        flags.append([flag | place << _PLACE for flag in (*(flag for _, flag in steps), at_end)])
    return np.array(following), np.array(flags), heads


def _tables(automaton: _Numbered, classes: NDArray[np.uint8]) -> Automaton:
    """Return an automaton for the engine, with more columns for pairs of characters.

    classes: uint8 (n,). The table gets a column for each pair of these classes.
    """
    following, flags, heads = automaton
    shape = len(following), len(classes) ** 2
    middle = following[:, classes]
    pairs = following[middle][:, :, classes].reshape(shape)
    both = flags[:, classes, None] | flags[middle][:, :, classes] << 8
    following = np.hstack([following, pairs])
    flags = np.hstack([flags, both.reshape(shape)])
    # Replace the number of a state by the position of its first entry, which lies after the heads.
    places = heads.size + following.shape[1] * np.arange(len(following))
    table = np.concatenate([heads.reshape(-1), following.reshape(-1)])
    flags = np.concatenate([np.zeros(heads.size, np.intp), flags.reshape(-1)])
    return places[table].astype(np.uint16), flags.astype(np.uint16)


def automata(
    program: Sequence[Sequence[int]],
    firsts: Sequence[int],
    symbols: Sequence[int],
    ascii_classes: NDArray[np.uint8],
) -> tuple[list[Automaton], NDArray[np.uint16] | None] | None:
    """Return automata that cut by expressions one after the other; None if one is too large.

    program: instructions. firsts: the first instruction of each expression. symbols: the bits of
    each class of characters. ascii_classes: uint8 (128,), of the characters of ASCII.

    Also returns `pairs`, uint16 (2, 128): pairs[0, a] + pairs[1, b] is the column for ASCII
    character a followed by b. None if the tables have no such columns, which would be too large.
    """
    groups: list[list[_Expression]] = []
    try:
        for first in firsts:
            expression = _Expression(program, first, symbols)
            if not groups or not groups[-1][-1].is_certain:
                groups.append([])
            groups[-1].append(expression)
        made = [_numbered(group, symbols) for group in groups]
    except _TooLargeError:
        return None
    classes, places = np.unique(ascii_classes, return_inverse=True)
    columns = len(symbols) + 1 + len(classes) ** 2
    if max(len(following) for following, *_ in made) * columns > _MOST_ENTRIES:
        return [_tables(each, classes[:0]) for each in made], None
    pairs = np.array([len(symbols) + 1 + len(classes) * places, places], np.uint16)
    return [_tables(each, classes) for each in made], pairs


_CODE_POINTS = 0x110000
_MOST_SETS, _MOST_CLASSES, _MOST_STEPS = 31, 256, 1000
_MOST_EXPRESSIONS = 16  # equal to the constant in engine.h
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
        root = self._alternatives(ignore_case=False)
        if self._at < len(expression) or root.is_optional:
            raise _NotCompiledError
        return root

    def _alternatives(self, *, ignore_case: bool) -> _Node:
        """Read alternatives up to the end of a group."""
        found: list[list[_Node]] = [[]]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                found.append([])
            else:
                found[-1].append(self._part(ignore_case))
        return _choice([*map(_joined, found)])

    def _part(self, ignore_case: bool) -> _Node:
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
        self._at = group.end()
        inner = self._alternatives(ignore_case=ignore_case or group[1] == "i:")
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
