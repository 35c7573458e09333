"""The spelling of options in messages: flags of the command line, or arguments of the Python API.

Messages of the library recommend options. During a call of the Python API, messages recommend
arguments of the API: ``device="cpu"`` in place of ``--device cpu``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from llmgpu.other_names import ARGUMENTS

Wrapped = TypeVar("Wrapped", bound=type)
P = ParamSpec("P")
T = TypeVar("T")


# One entry for each running call of the Python API, in all threads together, because a message may
# be composed in another thread than the caller's. A list needs no lock: append and pop can't be
# interrupted, and a lock could stay locked in a forked process.
_running: list[None] = []


def spelled(option: str, argument: str = "") -> str:
    """Return an option, such as ``--device cpu``, spelled for the command line or for Python.

    option: the spelling on the command line. argument: the spelling in Python, by default the
    option's name with underscores.
    """
    if not _running:
        return option
    name, _, value = option.removeprefix("--").partition(" ")
    name = name.replace("-", "_")
    return argument or (f'{name}="{value}"' if value else name)


def speaks_python(api: Wrapped) -> Wrapped:
    """Class decorator: errors of the public methods recommend arguments in place of options."""
    for name, member in list(vars(api).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, classmethod):
            setattr(api, name, classmethod(speaking_python(member.__func__)))
        elif callable(member):
            setattr(api, name, speaking_python(member))
    return api


def speaking_python(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: errors of the function recommend arguments in place of options."""

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        _running.append(None)
        try:
            return function(*arguments, **named)
        except TypeError as error:
            hints = [f"; {ARGUMENTS[name]}" for name in named if name in ARGUMENTS]
            error.args = ("".join((str(error), *hints)),)
            raise
        finally:
            _running.pop()

    return called
