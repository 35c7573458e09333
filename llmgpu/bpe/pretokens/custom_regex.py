"""Patterns given as a regular expression, matched on the host by the `regex` module (an extra).

The CPU engine matches many expressions in place of `regex`; see `llmgpu.bpe.pretokens.programs`.

- Text between the matches of an expression is a pre-token, too, so no text is lost.
- Several expressions cut one after the other: each expression cuts the stretches of text left by
  the expressions before it. The pattern's name is ``splits:`` and a JSON list of the expressions.
  Such patterns come with vocabularies of other tools.
- An expression may look anywhere in a document, so text is cut only between documents.
- A byte that is not valid UTF-8 is a character by itself, a lone surrogate as Python decodes it.
- The expression of a downloaded vocabulary may be malicious. Limits on its length, nesting and
  repetitions refuse an expression that would take long to compile. Matching has a limit on CPU time
  for each megabyte of text, a hundred times the time that usual expressions take.
"""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from llmgpu.bpe.arrays import offsets_of
from llmgpu.bpe.pretokens.blocks import DocumentPattern, Marks, Positions, Text, make_rule
from llmgpu.bpe.pretokens.names import REGEX_PREFIX, SPLITS_PREFIX
from llmgpu.bpe.pretokens.programs import compiled
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION, code_points
from llmgpu.cpu.library import CPattern
from llmgpu.errors import LlmgpuError
from llmgpu.input_files import quote

MAX_EXPRESSION_BYTES = 1 << 16  # also the limit of vocabulary files
MAX_SPLITS = 16  # limit of the number of expressions that cut one after the other
MAX_NESTING = 50  # limit of the number of groups and sets inside each other
# Limit of the items in an expression, with all counted repetitions of groups written out.
MAX_REPEATED = 1 << 16
DEFAULT_MATCH_SECONDS = 30.0

_PART = r"\\.|\(\?\#[^)]*\)|\{(\d*)(?:,(\d*))?\}|."
_PARTS = re.compile(rf"\[\^?\]?(?:\\.|[^\]\\])*\]|{_PART}", re.DOTALL)
# In version 1 of the syntax of `regex`, sets may be nested.
_PARTS_V1 = re.compile(_PART, re.DOTALL)
_match_seconds = DEFAULT_MATCH_SECONDS


def limit_match_seconds(seconds: float) -> None:
    """Limit the CPU time of matching to `seconds` per megabyte of text, rounded up.

    The limit applies to all custom patterns of the process.
    """
    global _match_seconds
    _match_seconds = seconds


@lru_cache(maxsize=32)
def compile_expression(expression: str) -> Any:
    """Compile an expression; LlmgpuError if it is wrong or too large, or `regex` is missing."""
    _check_cost(expression)
    try:
        regex = importlib.import_module("regex")
    except ImportError as error:
        raise LlmgpuError(
            "a custom pattern needs the package regex: pip install 'llmgpu[regex]'"
        ) from error
    try:
        return regex.compile(expression)
    except (regex.error, RecursionError, OverflowError, ValueError, KeyError) as error:
        raise LlmgpuError(
            f"{quote(expression)} is not a regular expression: {quote(str(error))}"
        ) from error


def _check_cost(expression: str) -> None:
    """Raise LlmgpuError for an expression whose compilation may take long, or much memory."""
    length = len(expression.encode(errors="surrogatepass"))
    if length > MAX_EXPRESSION_BYTES:
        raise LlmgpuError(
            f"the regular expression has {length} bytes, but the limit is {MAX_EXPRESSION_BYTES}"
        )
    sizes = [0]  # number of items written out so far, for each open group
    last = sets = 0  # number of items of the previous element; number of open sets
    # Count the open groups and sets, and the items that the regex compiler will write out.
    parts = _PARTS_V1 if "V1" in expression else _PARTS
    for part in parts.finditer(expression):
        text = part[0]
        if sets or text == "[":
            sets += (text == "[") - (text == "]")
            last = 1
            sizes[-1] += not sets
        elif text == "(":
            sizes.append(0)
        elif text == ")" and len(sizes) > 1:
            last = max(sizes.pop(), 1)
            sizes[-1] += last
        # The compiler writes out only repetitions of several items.
        elif text[0] == "{" and len(text) > 1 and last > 1:
            count = max(int(number[:9] or 0) for number in (part[1], part[2] or ""))
            sizes[-1] += last * max(count - 1, 0)
            last *= max(count, 1)
        elif text not in "*+?":
            last = 1
            sizes[-1] += 1
        # Stop at the first element that exceeds a limit.
        if len(sizes) + sets - 1 > MAX_NESTING:
            raise LlmgpuError(
                f"the regular expression {quote(expression)} nests more than {MAX_NESTING} groups "
                "or sets"
            )
        if max(sizes[-1], last) > MAX_REPEATED:
            raise LlmgpuError(
                f"the regular expression {quote(expression)} repeats groups to more than "
                f"{MAX_REPEATED} items: use smaller counts, or * and +"
            )


class _TimeLimit:
    """A limit on the CPU time of the process.

    `left` is called for every stretch of text, and a stretch may be a single character. Reading the
    CPU time takes longer than reading the clock, so the CPU time is read at most every 10 ms.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.process_time() + seconds
        self._left, self._read = seconds, time.perf_counter()

    def left(self) -> float:
        """Return how many seconds are left, at least 0.001."""
        now = time.perf_counter()
        if now - self._read > 0.01:
            self._left, self._read = self._end - time.process_time(), now
        return max(self._left, 1e-3)


@dataclass(frozen=True, eq=False, kw_only=True)
class HostPattern(DocumentPattern):
    """A pattern of expressions. The host marks starts; the kernel marks only starts of documents.

    Each expression cuts the stretches of text left by the expressions before it, as if a stretch
    were a whole text. Raises LlmgpuError if an expression is wrong or can't be compiled here.

    expressions: regular expressions, in cutting order.
    """

    expressions: tuple[str, ...]
    kernel: str = "none"
    spellings: Mapping[str, str | None] = field(
        default_factory=lambda: {"tiktoken": None, "huggingface": None}
    )

    def __post_init__(self) -> None:
        for expression in self.expressions:
            compile_expression(expression)

    def mark(self, text: Text, inner: Positions, *, continues: bool) -> Marks:
        """Mark starts in whole documents; see `Pattern.mark`."""
        program = self.compiled()
        marks = None if program is None else program.mark(text, inner)
        return self._mark_by_regex(text, inner) if marks is None else marks

    def compiled(self) -> CPattern | None:
        """Return the CPU engine's pattern for the expressions, or None; see `programs.compiled`."""
        return compiled(self.expressions, importlib.import_module("regex"))

    def for_engine(self) -> CPattern:
        return self.compiled() or make_rule("", DEFAULT_VERSION, 0, 0)

    def _mark_by_regex(self, text: Text, inner: Positions) -> Marks:
        mask = np.zeros(len(text), np.bool_)
        limit = _TimeLimit(_match_seconds * (1 + len(text) // 10**6))
        for begin, end in pairwise([0, *np.unique(inner).tolist(), len(text)]):
            characters = text[begin:end].tobytes().decode("utf-8", "surrogateescape")
            # Convert indices of characters to positions of bytes: int64 (bounds,).
            bounds = np.array(self._bounds(characters, limit), np.int64)
            mask[begin] = True
            places = begin + offsets_of(code_points(characters)[1])[bounds]
            mask[places[places < end]] = True
        return mask

    def _bounds(self, characters: str, limit: _TimeLimit) -> list[int]:
        """Return the bounds of the pre-tokens of a document, ascending."""
        bounds = [0, len(characters)]
        for expression in self.expressions:
            compiled = compile_expression(expression)
            found = [0]
            for begin, end in pairwise(bounds):
                try:  # `timeout` of `regex` limits CPU time, too
                    for match in compiled.finditer(characters, begin, end, timeout=limit.left()):
                        if match.end() > match.start():
                            found += match.span()
                except TimeoutError as error:
                    raise self._too_slow(len(characters)) from error
                found.append(end)
            bounds = [k for k, before in zip(found, [-1, *found], strict=False) if k != before]
        return bounds

    def _too_slow(self, length: int) -> LlmgpuError:
        return LlmgpuError(
            f"matching the regular expression {quote(self.expression)} took more than "
            f"{_match_seconds:g} s of CPU time per megabyte, in a document of {length:,} "
            "characters: use another expression, or allow more time"
        )


def custom_pattern(name: str) -> HostPattern:
    """Return the pattern whose name is ``regex:`` and an expression, or a `splits_name`.

    Raises LlmgpuError for an invalid expression or list.
    """
    if name.startswith(REGEX_PREFIX):
        expression = name.removeprefix(REGEX_PREFIX)
        return HostPattern(name=name, expression=expression, expressions=(expression,))
    described = name.removeprefix(SPLITS_PREFIX)
    expressions: Any
    try:
        expressions = json.loads(described)
    except (ValueError, RecursionError):
        expressions = None
    is_list = isinstance(expressions, list) and 0 < len(expressions) <= MAX_SPLITS
    is_valid = is_list and all(isinstance(entry, str) for entry in expressions)
    if not is_valid or splits_name(expressions) != name:
        raise LlmgpuError(f"{quote(described)} is not a list of 1 to {MAX_SPLITS} expressions")
    return HostPattern(name=name, expression=described, expressions=tuple(expressions))


def splits_name(expressions: Sequence[str]) -> str:
    """Return the name of the pattern of several expressions that cut one after the other."""
    return SPLITS_PREFIX + json.dumps(list(expressions))
