"""How messages write options: as on the command line, or as arguments of the Python API.

Messages of the library recommend options. During a call of the Python API, messages recommend
arguments of the API: ``device="cpu"`` in place of ``--device cpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from llmgpu.other_names import ARGUMENTS

Wrapped = TypeVar("Wrapped", bound=type)
P = ParamSpec("P")
T = TypeVar("T")


class _PythonCalls:
    """Counts the running calls of the Python API in all threads.

    All threads, because a message may be made by another thread than the caller's.

    running: an entry for each call. A list changes in one step; a lock could stay taken in a forked
    process.
    """

    def __init__(self) -> None:
        self.running: list[None] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a call while the block runs."""
        self.running.append(None)
        try:
            yield
        finally:
            self.running.pop()


_calls = _PythonCalls()


def spelled(option: str, argument: str = "") -> str:
    """Return an option, such as ``--device cpu``, as written on the command line or in Python.

    argument: of the Python API, if other than the option with underscores.
    """
    if not _calls.running:
        return option
    name, _, value = option.removeprefix("--").partition(" ")
    name = name.replace("-", "_")
    return argument or (f'{name}="{value}"' if value else name)


def speaks_python(api: Wrapped) -> Wrapped:
    """Make the errors of a class's public methods speak Python."""
    for name, member in list(vars(api).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, classmethod):
            setattr(api, name, classmethod(speaking_python(member.__func__)))
        elif callable(member):
            setattr(api, name, speaking_python(member))
    return api


def speaking_python(function: Callable[P, T]) -> Callable[P, T]:
    """Make the errors of a function speak Python."""

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            with _calls.counted():
                return function(*arguments, **named)
        except TypeError as error:
            hints = [f"; {ARGUMENTS[name]}" for name in named if name in ARGUMENTS]
            error.args = ("".join((str(error), *hints)),)
            raise

    return called
