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
_ELSEWHERE = {  # arguments of methods of tiktoken and Hugging Face, and what to do here
    "clean_up_tokenization_spaces": "spaces stay as they are",
    "max_length": "cut the ids, as in ids[:512], or the text with truncate",
    "num_threads": "all processors are used",
    "padding": "as_hf() has a tokenizer that pads",
    "return_offsets_mapping": "use encode_with_offsets",
    "return_tensors": 'use dtype="pt" or dtype="np"',
    "skip_special_tokens": "leave out the ids in special_tokens.values()",
    "tokenize": "use render_chat_template for the text",
    "truncation": "cut the ids, as in ids[:512], or the text with truncate",
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
            hints = [f"; {_ELSEWHERE[name]}" for name in named if name in _ELSEWHERE]
            error.args = ("".join((str(error), *hints)),)
            raise

    return called
