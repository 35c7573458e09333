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
certain, a list of their states is a state of one automaton. A bound of an expression is the end of
the text for the later expressions. Other lists of expressions are cut by several automata, each of
which runs on the stretches of text left by those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# As in llmgpu/cpu/expressions.c. AHEAD is any other operation.
_MATCH, _TAKE, _REPEAT, _TRY, _JUMP = range(5)
NO_LIMIT = 2**31 - 1
# Flags of a step, as in llmgpu/cpu/automata.c.
_MARK, _LAST, _STOP, _BEGIN = 1, 2, 4, 8
_MOST_ENTRIES = 1 << 14  # of a table, so that it stays in a processor's first cache
_MOST_VISITS = 1 << 20  # of instructions, while tables are made

_Threads = tuple[tuple[int, int], ...]
_START: _Threads = ((-1, 0),)  # where a match may start, at a bound
_SKIP: _Threads = ((-2, 0),)  # no match starts at the next character
_GAP: _Threads = ()  # after a character outside of matches


class TooLargeError(Exception):
    """An expression has no automaton of the permitted size."""


# The next states and the flags of an automaton, see `llmgpu/cpu/automata.c`: uint16 and uint8
# (states * columns,).
Automaton = tuple[NDArray[np.uint16], NDArray[np.uint8]]


class _Expression:
    """The states of one expression. symbols: the bits of each class of characters."""

    def __init__(self, program: Sequence[Sequence[int]], first: int, symbols: Sequence[int]):
        self._program, self._first, self._symbols = program, first, [*symbols, 0]
        self._known: dict[tuple[_Threads, int], tuple[_Threads, bool]] = {}
        self._visits = 0
        self.is_certain = False
        self.is_certain = not any(
            flags & _STOP and not flags & _BEGIN for _, flags in self._all_steps()
        )

    def _all_steps(self) -> Iterator[tuple[_Threads, int]]:
        states, known = [_START], {_START}
        for state in states:
            for bits in self._symbols:
                following, flags = self.step(state, bits)
                yield following, flags
                if following not in known:
                    known.add(following)
                    states.append(following)

    def step(self, state: _Threads, bits: int) -> tuple[_Threads, int]:
        """Return the state after a character, and the flags of the step; no bits: the text ends."""
        if state == _SKIP:
            return _GAP, 0
        begun, _ = self._moved(((self._first, 0),), bits)
        if state == _START:
            return begun, _MARK
        if state == _GAP:
            return begun, 0 if not begun else _MARK if self.is_certain else _STOP | _BEGIN
        following, ends = self._moved(state, bits)
        if following:
            return following, _LAST * ends
        return (begun, _MARK) if ends else (_GAP, _STOP)

    def _moved(self, threads: _Threads, bits: int) -> tuple[_Threads, bool]:
        """Return the threads after a character, and whether a match ends before it."""
        if (threads, bits) not in self._known:
            self._known[threads, bits] = self._move(threads, bits)
        return self._known[threads, bits]

    def _move(self, threads: _Threads, bits: int) -> tuple[_Threads, bool]:
        waiting, seen, moved = [*reversed(threads)], set(), dict[tuple[int, int], None]()
        while waiting:
            thread = at, count = waiting.pop()
            if thread in seen:
                continue
            seen.add(thread)
            self._visits += 1
            if self._visits > _MOST_VISITS:
                raise TooLargeError
            operation, a, b, c = self._program[at]
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
        return tuple(moved), False

    def _is_ahead(self, at: int, bits: int) -> bool:
        """Return whether the instructions of a lookahead match; TooLargeError if that is open."""
        moved, ends = self._moved(((at, 0),), bits)
        if moved and not ends and not all(self._moved(moved, more)[1] for more in self._symbols):
            raise TooLargeError
        return ends or bool(moved)


def _combined(expressions: Sequence[_Expression], symbols: Sequence[int]) -> Automaton:
    """Return the automaton of expressions of which all but the last are certain."""
    numbers: dict[tuple[_Threads, ...], int] = {(_START,) * len(expressions): 0}
    states, columns = [*numbers], len(symbols) + 3
    table: list[int] = []
    flags: list[int] = []

    def number(state: tuple[_Threads, ...]) -> int:
        if state not in numbers:
            numbers[state] = len(states) * columns
            states.append(state)
            if len(states) * columns > _MOST_ENTRIES:
                raise TooLargeError
        return numbers[state]

    for state in states:
        *outer, last = state
        for bits in symbols:
            following, flag = [], 0
            for expression, threads in zip(expressions, state, strict=True):
                is_bound = flag & _MARK and threads != _SKIP
                if is_bound and expression.step(threads, 0)[1] & _STOP:
                    flag |= _STOP
                after, more = expression.step(_START if is_bound else threads, bits)
                following.append(after)
                flag |= more if expression is expressions[-1] else more & _MARK
            flags.append(flag | _LAST if flag & _MARK else flag)
            table.append(0 if flag & _STOP else number(tuple(following)))
        flags += [expressions[-1].step(last, 0)[1], 0, 0]
        table += [0, number((*outer, _START)), number((*outer, _SKIP))]
    return np.array(table, np.uint16), np.array(flags, np.uint8)


def automata(
    program: Sequence[Sequence[int]], firsts: Sequence[int], symbols: Sequence[int]
) -> list[Automaton] | None:
    """Return automata that cut by expressions one after the other; None if one is too large.

    program: instructions. firsts: the first instruction of each expression. symbols: the bits of
    each class of characters, at least one.
    """
    groups: list[list[_Expression]] = []
    try:
        for first in firsts:
            expression = _Expression(program, first, symbols)
            if not groups or not groups[-1][-1].is_certain:
                groups.append([])
            groups[-1].append(expression)
        return [_combined(group, symbols) for group in groups]
    except TooLargeError:
        return None
