"""Text changed before it is cut, step by step, as the normalizers of Hugging Face tokenizers do it.

- A normalizer is NFC, or a list of steps in JSON as a tokenizer.json has them: Lowercase, Prepend,
  Replace of a string, Strip, NFC.
- Each document is normalized on its own, as a piece of text between special tokens is there.
- A document may come in blocks. Each step holds back what it can't decide yet: Replace the
  beginning of its string, Strip white space that may end the document, NFC what may still compose.
  Bytes that are not UTF-8 stay as they are, and nothing composes across them.
- Lowercase is that of single characters, by the tables that tokenizers has, and white space is what
  Unicode calls so, as in Rust.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import VocabularyError
from llmgpu.input_files import quote
from llmgpu.text.documents import Piece
from llmgpu.text.nfc import NfcFilter, starts_unit
from llmgpu.text.nfc import normalize as compose

NFC = "NFC"
STEPS = {"Lowercase", "NFC", "Prepend", "Replace", "Strip"}

_ERRORS = "surrogateescape"
_MOST_STEPS = 100
_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_LEADING, _TRAILING = re.compile(f"\\A[{_SPACE}]+"), re.compile(f"[{_SPACE}]+\\Z")


class Step(Protocol):
    """A step on one document."""

    def feed(self, text: str, final: bool) -> str:
        """Return what is decided once `text` is there; `final`: the document ends with it."""
        ...


class _Filter(Protocol):
    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece: ...


class Lowercase:
    """Makes each character lowercase."""

    def feed(self, text: str, final: bool) -> str:
        """See `Step.feed`."""
        return text.lower() if text.isascii() else text.translate(_lowercase())


class Prepend:
    """Puts a text before a document that is not empty."""

    def __init__(self, text: str) -> None:
        self._text = text

    def feed(self, text: str, final: bool) -> str:
        """See `Step.feed`."""
        if not text:
            return ""
        text, self._text = self._text + text, ""
        return text


class Replace:
    """Replaces a string, which is not empty: leftmost first, none over another."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._held = ""

    def feed(self, text: str, final: bool) -> str:
        """See `Step.feed`."""
        *before, rest = (self._held + text).split(self._old)
        lengths = range(min(len(rest), len(self._old) - 1), 0, -1)
        may_begin = (k for k in lengths if self._old.startswith(rest[-k:]))
        held = 0 if final else next(may_begin, 0)
        self._held = rest[len(rest) - held :]
        return self._new.join([*before, rest[: len(rest) - held]])


class Strip:
    """Takes white space off the ends."""

    def __init__(self, left: bool, right: bool) -> None:
        self._left, self._right = left, right
        self._held = ""

    def feed(self, text: str, final: bool) -> str:
        """See `Step.feed`."""
        text = self._held + text
        if self._left:
            text = _LEADING.sub("", text)
            self._left = not text
        kept = _TRAILING.sub("", text) if self._right else text
        self._held = "" if final else text[len(kept) :]
        return kept


class Compose:
    """Brings text into form NFC."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str, final: bool) -> str:
        """See `Step.feed`."""
        searched = len(self._held)
        text = self._held + text
        safe = (k for k in range(len(text) - 1, max(searched, 1) - 1, -1) if starts_unit(text[k]))
        end = len(text) if final else next(safe, 0)
        self._held = text[end:]
        return compose(text[:end])


class Normalizer:
    """A normalizer; name: of its steps, for people."""

    def __init__(self, text: str) -> None:
        """Take NFC, or steps in JSON; VocabularyError for any other."""
        self._text = text
        self._makers = [] if text == NFC else list(map(_read_step, _parse(text)))
        self.name = NFC if text == NFC else ", ".join(step["type"] for step in _parse(text))

    def apply(self, text: str) -> str:
        """Return a whole document normalized."""
        if self._text == NFC:
            return compose(text)
        for make in self._makers:
            text = make().feed(text, final=True)
        return text

    def filter(self) -> _Filter:
        """Return what normalizes a text that comes in blocks."""
        return NfcFilter() if self._text == NFC else _StepsFilter(self._makers)


@cache
def get_normalizer(text: str) -> Normalizer:
    """Return a normalizer by what a vocabulary says; VocabularyError if there is none."""
    return Normalizer(text)


def spell_normalizer(steps: Sequence[dict[str, Any]]) -> str | None:
    """Return what a vocabulary says of steps as a tokenizer.json has them; None for none.

    Raises VocabularyError for steps that can't be done exactly.
    """
    if not steps:
        return None
    kept = [{name: step[name] for name in sorted(step)} for step in steps]
    if all(step == {"type": NFC} for step in kept):
        return NFC
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    get_normalizer(text)
    return text


def describe_normalizer(text: str) -> dict[str, Any]:
    """Return a normalizer as a tokenizer.json has it."""
    steps = [{"type": NFC}] if text == NFC else _parse(text)
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "normalizers": steps}


def _parse(text: str) -> list[dict[str, Any]]:
    try:
        steps = json.loads(text)
    except (ValueError, RecursionError):
        steps = None
    known = isinstance(steps, list) and 0 < len(steps) <= _MOST_STEPS
    if not known or not all(isinstance(step, dict) for step in steps):
        raise VocabularyError(f"unknown normalizer {quote(text)}: use NFC, or a list of steps")
    return steps  # type: ignore[no-any-return]


def _read_step(step: dict[str, Any]) -> Callable[[], Step]:
    """Return what makes a step; VocabularyError for one that can't be done exactly."""
    given = {name: value for name, value in step.items() if name != "type"}
    match step.get("type"), given:
        case "NFC", {**rest} if not rest:
            return Compose
        case "Lowercase", {**rest} if not rest:
            return Lowercase
        case "Prepend", {"prepend": str(text), **rest} if not rest and _is_text(text):
            return lambda: Prepend(text)
        case "Strip", {"strip_left": bool(left), "strip_right": bool(right), **rest} if not rest:
            return lambda: Strip(left, right)
        case "Replace", {"pattern": {"String": str(old), **more}, "content": str(new), **rest} if (
            old and _is_text(old + new) and not rest and not more
        ):
            return lambda: Replace(old, new)
        case "Replace", {"pattern": {"Regex": _}}:
            raise VocabularyError("normalizer Replace is supported for strings, not for a Regex")
    shown = quote(json.dumps(step))
    raise VocabularyError(
        f"normalizer {shown} is not supported; supported: {', '.join(sorted(STEPS))}"
    )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _StepsFilter:
    """Normalizes a text that comes in blocks; see `llmgpu.text.corpus.TextFilter`."""

    def __init__(self, makers: Sequence[Callable[[], Step]]) -> None:
        self._makers = makers
        self._begin()

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Return what is decided of the text."""
        data, found, places, length = text.tobytes(), [], [], 0
        for number, (begin, end) in enumerate(pairwise([0, *starts.tolist(), len(data)])):
            is_last = number == len(starts)
            if number:
                places.append(length)
            found.append(self._feed(data[begin:end], final=final if is_last else True))
            length += len(found[-1])
        whole = np.frombuffer(b"".join(found), np.uint8)
        return Piece(whole, np.array(places, np.int64), final)

    def _begin(self) -> None:
        self._steps = [make() for make in self._makers]
        self._decoder = codecs.getincrementaldecoder("utf-8")(_ERRORS)

    def _feed(self, data: bytes, *, final: bool) -> bytes:
        text = self._decoder.decode(data, final)
        for step in self._steps:
            text = step.feed(text, final)
        if final:
            self._begin()
        return text.encode(errors=_ERRORS)


@cache
def _lowercase() -> dict[int, str]:
    """Return the lowercase of each character that has another."""
    text = Path(__file__).with_name("lowercase.txt").read_text(encoding="ascii")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    table: dict[int, str] = {}
    for entry in " ".join(lines).split():
        first, step, count, *spelled = (int(part, 16) for part in re.split("[+*=:]", entry))
        for k in range(count):
            table[first + k * step] = "".join(chr(code + k * step) for code in spelled)
    return table
