"""The error family of llmgpu: all failures that a user can cause or fix.

A message is one line with the value, the limit and a remedy. The command line prints it
after ``error:`` and exits with code 1.
"""

from __future__ import annotations

import sys
from itertools import pairwise

# Characters of a whole message; a longer message, which quotes input, loses its middle.
_MOST_CHARACTERS = 700
_FIRST, _LAST = 200, 100  # characters kept at both ends of a longer message


class LlmgpuError(Exception):
    """Base class of all errors that llmgpu raises on purpose.

    exit_code: exit code of a command that fails with the error.
    """

    exit_code = 1

    def __str__(self) -> str:
        """Return the message, cut in the middle if it quotes a long input."""
        return shorten(super().__str__())


def shorten(message: str) -> str:
    """Return `message`, without its middle if it has more than 700 characters."""
    if len(message) <= _MOST_CHARACTERS:
        return message
    return f"{message[:_FIRST]} ... {message[-_LAST:]}"


# The options that a file of options contains, spelled as on the command line. `errors_are_json`
# searches them as well as the command line.
arguments_of_file: list[str] = []


def errors_are_json() -> bool:
    """Whether the options ask for errors as JSON: ``--json``, or ``--log-format json``.

    The arguments are searched for these options without parsing, because the error may be that the
    command line can't be parsed. If --log-format is repeated, its last value is used.
    """
    words: list[str] = []
    for argument in [*arguments_of_file, *sys.argv]:
        words += argument.split("=", 1) if argument.startswith("--log-format=") else [argument]
    formats = [value for name, value in pairwise(words) if name == "--log-format"]
    return "--json" in words or formats[-1:] == ["json"]


def error_line(message: str, exit_code: int, **facts: str) -> str:
    """Return the line that reports the error of a failed command, as text or JSON.

    facts: further keys of the JSON object; text has none.
    """
    if not errors_are_json():
        return f"error: {message}"
    import json

    return json.dumps({"error": message, "exit_code": exit_code, **facts}, ensure_ascii=False)


def interrupted_line(exit_code: int) -> str:
    """Return the line that reports an interrupt: "interrupted", or the JSON of `error_line`."""
    return error_line("interrupted", exit_code) if errors_are_json() else "interrupted"


class InputError(LlmgpuError):
    """A corpus, a token file or a list of ids can't be read or is invalid."""


class TextError(InputError):
    """A text is invalid at a byte offset."""

    def __init__(self, what: str, offset: int, why: str, source: str = "") -> None:
        """Compose the message "WHAT at offset OFFSET of the text in SOURCE WHY"."""
        text = f"the text in {source}" if source else "the text"
        super().__init__(f"{what} at offset {offset} of {text} {why}")
        self.what, self.offset, self.why = what, offset, why


class BudgetError(LlmgpuError):
    """A text has more tokens than a budget of `count` allows."""

    exit_code = 3


class OutputError(LlmgpuError):
    """A result can't be written."""


class VocabularyError(LlmgpuError):
    """A vocabulary file is damaged or of a newer version, or a vocabulary does not fit its use."""


class DeviceError(LlmgpuError):
    """No adapter matches, a limit or the memory of a device is too small, or a device is lost."""


class CapacityError(DeviceError):
    """A device can't allocate, or bind, the memory that the work needs."""


class TrainingError(LlmgpuError):
    """Training can't continue: a loss or a gradient is not a finite number."""


class CheckpointError(LlmgpuError):
    """A checkpoint is damaged or of a newer version, or does not fit its use."""
