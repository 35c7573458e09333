"""Errors of the library in the words of its callers: ``device="cpu"`` instead of ``--device cpu``.

The library's messages advise in options of the command line, where most people read them. The
Python API says the same with the arguments that it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from llmgpu.errors import LlmgpuError
from llmgpu.other_names import ARGUMENTS

Wrapped = TypeVar("Wrapped", bound=type)
P = ParamSpec("P")
T = TypeVar("T")

_OPTION = re.compile(r"--(?P<name>[a-z][a-z-]*)(?: (?P<value>cpu|gpu|greedy|bpe|f32|bin)\b)?")
_PIPE = "pipe it in"  # a text
_DOWNLOAD = re.compile(r"(\bhf download [^,;:]*)")  # a command of the shell, also from Python
_BOTH = re.compile(r"--[a-z-]+ \(in Python, (?P<argument>[^)]*)\)")
_ARGUMENTS = {  # whose name here is another
    "doc-separator": "separators",
    "from": "the format",
    "lr": "learning_rate",
}


def in_python_words(message: str) -> str:
    """Return a message with arguments in place of options."""

    def argument(found: re.Match[str]) -> str:
        name = _ARGUMENTS.get(found["name"], found["name"].replace("-", "_"))
        return name if found["value"] is None else f'{name}="{found["value"]}"'

    message = message.replace(_PIPE, "use train_from_iterator, or encode")
    return "".join(
        part if _DOWNLOAD.match(part) else _OPTION.sub(argument, _BOTH.sub(r"\g<argument>", part))
        for part in _DOWNLOAD.split(message)
    )


def speaks_python(api: Wrapped) -> Wrapped:
    """Make the errors of a class's public methods speak Python."""
    for name, member in list(vars(api).items()):
        if name.startswith("_") and name != "__init__":
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
            return function(*arguments, **named)
        except LlmgpuError as error:
            error.args = (in_python_words(str(error)), *error.args[1:])
            raise
        except TypeError as error:
            hints = [f"; {ARGUMENTS[name]}" for name in named if name in ARGUMENTS]
            error.args = ("".join((str(error), *hints)),)
            raise

    return called
