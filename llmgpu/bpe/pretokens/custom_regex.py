"""Patterns given as a regular expression, matched on the host by the `regex` module (an extra).

- What an expression does not match is a pre-token, too: nothing is lost.
- An expression may look anywhere in a document, so text is cut only between documents.
- A byte that is not valid UTF-8 is a character by itself, a lone surrogate as Python decodes it.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import DocumentPattern, Marks, Positions, Text
from llmgpu.errors import LlmgpuError

REGEX_PREFIX = "regex:"


@lru_cache(maxsize=8)
def compile_expression(expression: str) -> Any:
    """Compile an expression; LlmgpuError if it is wrong or the module is not there."""
    try:
        regex = importlib.import_module("regex")
    except ImportError as error:
        raise LlmgpuError(
            "a custom pattern needs the package regex: pip install 'llmgpu[regex]'"
        ) from error
    try:
        return regex.compile(expression)
    except regex.error as error:
        raise LlmgpuError(f"{expression!r} is not a regular expression: {error}") from error


class RegexPattern(DocumentPattern):
    """The pattern of an expression; the host marks, the kernel only passes documents on."""

    def __init__(self, expression: str) -> None:
        """Take a regular expression; LlmgpuError if it is wrong or can't be compiled here."""
        compile_expression(expression)
        none: dict[str, str | None] = {"tiktoken": None, "huggingface": None}
        super().__init__(
            name=REGEX_PREFIX + expression, expression=expression, kernel="none", spellings=none
        )

    def mark(self, text: Text, inner: Positions, *, continues: bool, closed: bool) -> Marks:
        """Mark starts in whole documents; see `Pattern.mark`."""
        compiled = compile_expression(self.expression)
        mask = np.zeros(len(text), np.bool_)
        for begin, end in pairwise([0, *np.unique(inner).tolist(), len(text)]):
            characters = text[begin:end].tobytes().decode("utf-8", "surrogateescape")
            spans = [match.span() for match in compiled.finditer(characters)]
            bounds = np.array([span for span in spans if span[0] < span[1]], np.int64).reshape(-1)
            mask[begin] = True
            places = begin + _byte_offsets(characters)[bounds]
            mask[places[places < end]] = True
        return mask


def _byte_offsets(characters: str) -> NDArray[np.int64]:
    """Return where in UTF-8 each character begins, and where the last one ends."""
    points = np.frombuffer(characters.encode("utf-32-le", "surrogatepass"), "<u4")
    lengths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    lengths[(points >= 0xD800) & (points < 0xE000)] = 1  # a byte that is not valid
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
