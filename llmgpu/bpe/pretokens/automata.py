r"""Automata for the CPU engine: one pass over a text cuts it by several expressions.

An expression is a program of instructions (`programs.py`). A thread is an instruction with the
number of characters that it has taken. A state of an expression is a list of threads in the order
in which the package regex would try them:

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

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

# Operations, numbered as in llmgpu/cpu/expressions.c. Any other number is AHEAD, a lookahead.
_MATCH, _TAKE, _REPEAT, _TRY, _JUMP = range(5)
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
