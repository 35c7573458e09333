"""Normalizers: steps that change text before it is cut, as in Hugging Face tokenizers.

- A normalizer is NFC, or a list of steps in JSON as in a tokenizer.json: Lowercase, Prepend,
  Replace of a string, Strip, NFC. Vocabularies of SentencePiece's kind also have the steps
  Metaspace and SentencePiece.
- Each document is normalized on its own, as Hugging Face normalizes text between special tokens.
- A document may come in blocks. A step holds back text that later text may still change: Replace
  the beginning of its string, Strip white space that may end the document, NFC characters that may
  still compose. Invalid UTF-8 stays as it is, and no characters compose across it.
- Steps get a document in blocks of `BLOCK_BYTES`, counted from the document's start, however the
  caller cuts the text. From one block, a step may make at most `MOST_BYTES`. Without this limit, a
  few steps that each replace "a" by ten letters would fill the memory. If Strip or NFC holds back
  whole blocks and then returns them, the limit is multiplied by their number.
- Lowercase maps single characters by the tables of Hugging Face tokenizers. White space has
  Unicode's property White_Space, as in Rust.
"""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, AnyStr, Generic

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import VocabularyError
from llmgpu.input_files import quote
from llmgpu.text.charsmap import MARK, STOP, SentencePieceRules, collapse
from llmgpu.text.documents import Piece, TextFilter
from llmgpu.text.nfc import normalize as compose
from llmgpu.text.nfc import starts_unit

NFC = "NFC"
STEPS = {"Lowercase", "NFC", "Prepend", "Replace", "Strip"}
BLOCK_BYTES = 1 << 16  # bytes of a document that the first step gets at a time
MOST_BYTES = 1 << 22  # most bytes that a step may make of a block

# Normalizes whole documents; None for a document that the steps have to normalize in blocks.
_Whole = Callable[[Sequence[bytes]], Iterable[bytes | None]]

_ERRORS = "surrogateescape"
_new_decoder = codecs.getincrementaldecoder("utf-8")
_MOST_STEPS = 100
_MOST_ADDED = 1 << 16  # most bytes of a text that Prepend or Replace inserts
_SPACES = map(chr, range(0x2000, 0x200B))  # spaces of several widths
WHITE_SPACE = f"\t\n\v\f\r \x85\xa0\u1680{''.join(_SPACES)}\u2028\u2029\u202f\u205f\u3000"


class Step(ABC, Generic[AnyStr]):
    """A step of a normalizer, with its state within one document, for str or for UTF-8 bytes.

    held: text that the step holds back. held_blocks: number of whole blocks held back.
    """

    held: Sequence[str] = ()
    held_blocks = 0

    @abstractmethod
    def feed(self, text: AnyStr, final: bool) -> AnyStr:
        """Return the changed text, without the end that the step holds back.

        final: whether the document ends with `text`.
        """

    def count_bytes(self, text: AnyStr) -> int:
        """Return the number of bytes that `feed` would make of `text`; 0 if no check is needed."""
        return 0


class Lowercase(Step[str]):
    """Makes each character lowercase."""

    def feed(self, text: str, final: bool) -> str:
        return text.lower() if text.isascii() else text.translate(_lowercase())


class Prepend(Step[AnyStr]):
    """Inserts a text at the beginning of each document that is not empty."""

    def __init__(self, text: AnyStr) -> None:
        self._text: AnyStr = text

    def feed(self, text: AnyStr, final: bool) -> AnyStr:
        if text:
            text, self._text = self._text + text, text[:0]
        return text


class Replace(Step[AnyStr]):
    """Replaces every occurrence of a string, from the left and without overlaps."""

    def __init__(self, old: AnyStr, new: AnyStr) -> None:
        self._old: AnyStr = old
        self._new: AnyStr = new
        self._held: AnyStr = old[:0]

    def feed(self, text: AnyStr, final: bool) -> AnyStr:
        text = self._held + text
        # Search for the last character of the string first: most texts lack it, and a character is
        # found sooner than a string.
        *before, rest = text.split(self._old) if self._old[-1:] in text else [text]
        lengths = range(min(len(rest), len(self._old) - 1), 0, -1)
        may_begin = (k for k in lengths if self._old.startswith(rest[-k:]))
        held = 0 if final else next(may_begin, 0)
        self._held = rest[len(rest) - held :]
        return self._new.join([*before, rest[: len(rest) - held]])

    def count_bytes(self, text: AnyStr) -> int:
        growth = _count_bytes(self._new) - _count_bytes(self._old)
        if growth <= 0:
            return 0
        text = self._held + text
        return _count_bytes(text) + text.count(self._old) * growth


class Strip(Step[str]):
    """Removes white space at the start of a document, at its end, or both."""

    def __init__(self, left: bool, right: bool) -> None:
        self._left, self._right = left, right
        self.held: list[str] = []

    def feed(self, text: str, final: bool) -> str:
        if self._left:
            text = text.lstrip(WHITE_SPACE)
            self._left = not text
        kept = text.rstrip(WHITE_SPACE) if self._right else text
        before = self.held if kept else []
        if kept or final:
            self.held = []
        if not final and len(kept) < len(text):
            self.held.append(text[len(kept) :])
        return "".join([*before, kept])


class Compose(Step[str]):
    """Normalizes text to Unicode's form NFC."""

    def __init__(self) -> None:
        self.held: list[str] = []

    def feed(self, text: str, final: bool) -> str:
        first = 0 if self.held else 1
        safe = (k for k in range(len(text) - 1, first - 1, -1) if starts_unit(text[k]))
        end = len(text) if final else next(safe, None)
        if end is None:
            self.held.append(text)
            return ""
        decided = "".join([*self.held, text[:end]])
        self.held = [text[end:]] if end < len(text) else []
        return compose(decided)


class ComposeBytes(Step[bytes]):
    """Normalizes UTF-8 to Unicode's form NFC."""

    def __init__(self) -> None:
        self._decoder, self._step = _new_decoder(_ERRORS), Compose()

    def feed(self, text: bytes, final: bool) -> bytes:
        decoded = self._decoder.decode(text, final)
        return self._step.feed(decoded, final).encode(errors=_ERRORS)


class Metaspace(Step[str]):
    """Inserts a space at the start of a document that does not begin with a space."""

    def __init__(self, only_first: bool) -> None:
        self.only_first = only_first
        self._is_done = False

    def follow_special_token(self) -> None:
        """Prepare for text after a special token: with the scheme "first", add no space there."""
        self._is_done = self.only_first

    def feed(self, text: str, final: bool) -> str:
        if self._is_done or not text:
            return text
        self._is_done = True
        return text if text.startswith(" ") else f" {text}"


class SentencePiece(Step[str]):
    """Applies SentencePiece's map of strings, and its rules of white space."""

    def __init__(self, rules: SentencePieceRules) -> None:
        self.rules = rules
        self._raw = ""
        self._has_begun = False
        self._has_more = False
        self._was_space = rules.removes
        self._spaces = ""  # spaces held back, because the text may end with them

    def feed(self, text: str, final: bool) -> str:
        # Map the text, except the end in which a longer key or symbol may begin.
        rules = self.rules
        raw = self._raw + text
        limit = len(raw) if final else max(0, len(raw) - rules.longest + 1)
        mapped, used, has_more = rules.map(raw, limit)
        self._raw = raw[used:]
        self._has_more |= has_more or (used > 0 and not rules.removes)
        # Join spaces across the border of two blocks, and add the dummy prefix.
        if rules.removes:
            mapped = collapse(mapped)
            if self._was_space:
                mapped = mapped.removeprefix(" ")
            if mapped:
                self._was_space = mapped.endswith(" ")
        mapped = mapped.replace(MARK, " ")
        if self._has_more and not self._has_begun:
            mapped = rules.prefix + mapped
            self._has_begun = True
        # Hold back spaces at the end until other text follows.
        if rules.removes:
            mapped = self._spaces + mapped
            kept = mapped.rstrip(" ")
            self._spaces = mapped[len(kept) :]
            mapped = kept
        self.held = [self._raw, self._spaces]
        return mapped + rules.suffix if final and self._has_more else mapped


class Normalizer:
    """The steps that normalize text for a vocabulary.

    name: the names of the steps, for messages.
    """

    def __init__(self, text: str) -> None:
        """Parse "NFC", or steps in JSON; VocabularyError for any other text."""
        self._text = text
        steps = steps_of(text)
        self._makers = list(map(_read_step, steps))
        self.name = ", ".join(step["type"] for step in steps)
        whole = _all_mapped(self._makers)
        self._make_filter: Callable[..., TextFilter]
        self._make_filter = partial(_StepsFilter, self._makers, whole=whole)
        # Steps that give the same result on bytes get bytes, if all steps do.
        pairs = [pair for step in steps if (pair := _byte_pair(step)) is not None]
        if text == NFC:
            self._make_filter = partial(_BytesFilter, [ComposeBytes], whole=_compose_all)
        elif len(pairs) == len(steps) and len(text) < BLOCK_BYTES:
            makers = [
                partial(Replace, *pair) if pair[0] else partial(Prepend, pair[1]) for pair in pairs
            ]
            whole = partial(map, partial(_replace_all, pairs))
            self._make_filter = partial(_BytesFilter, makers, whole=whole)

    def apply(self, text: str, *, follows: bool = False) -> str:
        """Return a normalized document; follows: whether the document follows a special token."""
        if self._text == NFC:
            return compose(text)
        steps = _StepsFilter(self._makers)
        if follows:
            steps.follow_special_token()
        if len(text) <= BLOCK_BYTES // 4 and _is_text(text):  # the text fits in one block
            return steps.normalize(text, final=True)
        try:
            data = np.frombuffer(text.encode(errors=_ERRORS), np.uint8)
        except UnicodeEncodeError:
            return text  # lone surrogates can't be encoded: this str is no text
        piece = steps.feed(data, np.empty(0, np.int64), final=True)
        return piece.text.tobytes().decode(errors=_ERRORS)

    def filter(self, follows: deque[bool] | None = None) -> TextFilter:
        """Return a filter that normalizes a text in blocks.

        follows: a queue with one bool for each document start: True if a special token was removed
        there. The caller appends to the queue before it feeds the text.
        """
        return self._make_filter(follows=follows)


@cache
def get_normalizer(text: str) -> Normalizer:
    """Return the normalizer that `text` describes, see `Normalizer`."""
    return Normalizer(text)


def spell_normalizer(steps: Sequence[dict[str, Any]]) -> str | None:
    """Return the steps of a tokenizer.json as text for a vocabulary; None for no steps.

    Raises VocabularyError for steps that llmgpu can't do exactly.
    """
    if not steps:
        return None
    kept = [{name: step[name] for name in sorted(step)} for step in steps]
    if all(step == {"type": NFC} for step in kept):
        return NFC
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    get_normalizer(text)
    return text


def steps_of(text: str | None) -> list[dict[str, Any]]:
    """Return the steps of a stored normalizer in the form of a tokenizer.json.

    Raises VocabularyError for a text that `spell_normalizer` can't have returned.
    """
    if text is None or text == NFC:
        return [{"type": NFC}] if text else []
    try:
        steps = json.loads(text)
    except (ValueError, RecursionError):
        steps = None
    known = isinstance(steps, list) and 0 < len(steps) <= _MOST_STEPS
    if not known or not all(isinstance(step, dict) for step in steps):
        raise VocabularyError(f"unknown normalizer {quote(text)}: use NFC, or a list of steps")
    return steps  # type: ignore[no-any-return]


def _read_step(step: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that makes a step.

    step: an entry of a tokenizer.json. Raises VocabularyError unless llmgpu does the step exactly.
    """
    given = {name: value for name, value in step.items() if name != "type"}
    match step.get("type"), given:
        case "NFC", {**rest} if not rest:
            return Compose
        case "Lowercase", {**rest} if not rest:
            return Lowercase
        case "Prepend", {"prepend": str(text), **rest} if not rest and _is_text(text):
            _check_added("Prepend", text)
            return lambda: Prepend(text)
        case "Strip", {"strip_left": bool(left), "strip_right": bool(right), **rest} if not rest:
            return lambda: Strip(left, right)
        case "Replace", {"pattern": {"String": str(old), **more}, "content": str(new), **rest} if (
            old and _is_text(old + new) and not rest and not more
        ):
            _check_added("Replace", new)
            return lambda: Replace(old, new)
        case "Metaspace", {"prepend_scheme": "always" | "first" as scheme, **rest} if not rest:
            return lambda: Metaspace(scheme == "first")
        case (
            "SentencePiece",
            {
                "charsmap": str(charsmap),
                "dummy_prefix": bool(prefix),
                "remove_extra_whitespaces": bool(removes),
                "suffix": bool(suffix),
                "symbols": list(symbols),
                **rest,
            },
        ) if not rest and all(isinstance(symbol, str) and symbol for symbol in symbols):
            rules = SentencePieceRules(charsmap, prefix, removes, suffix, symbols)
            return lambda: SentencePiece(rules)
        case "Replace", {"pattern": {"Regex": _}}:
            raise VocabularyError("normalizer Replace is supported for strings, not for a Regex")
    shown = quote(json.dumps(step))
    raise VocabularyError(
        f"normalizer {shown} is not supported; supported: {', '.join(sorted(STEPS))}"
    )


def _byte_pair(step: dict[str, Any]) -> tuple[bytes, bytes] | None:
    """Return (old, new) of a step that gives the same result on bytes.

    With an empty `old`, `new` comes before a document. Returns None for any other step, and for a
    step that lengthens a text other than by a prefix.
    """
    match step:
        case {"type": "Prepend", "prepend": text}:
            return b"", text.encode()
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            pair = old.encode(), new.encode()
            return pair if len(pair[1]) <= len(pair[0]) else None
    return None


def _replace_all(pairs: Sequence[tuple[bytes, bytes]], document: bytes) -> bytes:
    """Normalize a whole document by the pairs in order; see `_byte_pair`."""
    for old, new in pairs:
        document = document.replace(old, new) if old else document and new + document
    return document


def _compose_all(documents: Sequence[bytes]) -> Iterable[bytes]:
    """Normalize whole documents to NFC at once: no character composes with a lone surrogate."""
    text = b"".join(documents).decode(errors=_ERRORS)
    if compose(text) == text:  # usually so, and then each document is normalized already
        return documents
    joined = STOP.join(document.decode(errors=_ERRORS) for document in documents)
    return [text.encode(errors=_ERRORS) for text in compose(joined).split(STOP)]


def _all_mapped(makers: Sequence[Callable[[], Any]]) -> _Whole | None:
    """Return a function that normalizes whole documents if SentencePiece is the only step.

    Returns None for other steps, and for SentencePiece with a dummy prefix after the text.
    """
    step = makers[0]() if len(makers) == 1 else None
    if not isinstance(step, SentencePiece) or step.rules.suffix:
        return None
    rules = step.rules

    def normalize(documents: Sequence[bytes]) -> Iterator[bytes | None]:
        # A long document is left to the steps.
        short = [data if len(data) <= BLOCK_BYTES else b"" for data in documents]
        texts = rules.normalize_all([data.decode(errors=_ERRORS) for data in short])
        for data, text in zip(documents, texts, strict=True):
            is_whole = len(data) <= BLOCK_BYTES and 4 * len(text) <= MOST_BYTES
            yield text.encode(errors=_ERRORS) if is_whole else None

    return normalize


def _check_added(kind: str, text: str) -> None:
    if _count_bytes(text) > _MOST_ADDED:
        raise VocabularyError(
            f"normalizer {kind} puts in {_count_bytes(text):,} bytes; the limit is {_MOST_ADDED:,}"
        )


def _count_bytes(text: str | bytes) -> int:
    if isinstance(text, bytes) or text.isascii():
        return len(text)
    return len(text.encode(errors=_ERRORS))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _StepsFilter:
    """Normalizes a text that comes in blocks; see `llmgpu.text.documents.TextFilter`."""

    def __init__(
        self,
        makers: Sequence[Callable[[], Step[Any]]],
        follows: deque[bool] | None = None,
        whole: _Whole | None = None,
    ) -> None:
        """Begin a text; makers: functions that make the steps of a document.

        follows: see `Normalizer.filter`. whole: normalizes whole documents in place of the steps.
        """
        self._makers, self._follows, self._whole = makers, follows, whole
        self._begin()

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Return the normalized text that no later text can change."""
        data = text.tobytes()
        documents = [data[begin:end] for begin, end in pairwise([0, *starts.tolist(), len(data)])]
        # The first document began in earlier data, and the last may go on in later data.
        end = len(documents) if final else len(starts)
        whole = self._whole(documents[1:end]) if self._whole and end > 1 else ()
        found = []
        results = chain([None], whole, repeat(None))
        for number, (document, done) in enumerate(zip(documents, results, strict=False)):
            if number and self._follows is not None and self._follows.popleft():
                self.follow_special_token()
            found.append(self._feed(document, final=number < end) if done is None else done)
        joined = np.frombuffer(b"".join(found), np.uint8)
        return Piece(joined, np.cumsum([*map(len, found)])[:-1], final)

    def follow_special_token(self) -> None:
        """Record that the next text comes after a special token of its document."""
        for step in self._steps:
            if isinstance(step, Metaspace):
                step.follow_special_token()

    def _begin(self) -> None:
        self._steps = [make() for make in self._makers]
        self._decoder = _new_decoder(_ERRORS)
        self._held = b""

    def _feed(self, data: bytes, *, final: bool) -> bytes:
        data = self._held + data
        # Keep the last block until another byte arrives: steps must know which block is the last.
        blocks = max(1, -(-len(data) // BLOCK_BYTES)) - (not final)
        found = []
        for start in range(0, blocks * BLOCK_BYTES, BLOCK_BYTES):
            is_last = final and start + BLOCK_BYTES >= len(data)
            text = self._decoder.decode(data[start : start + BLOCK_BYTES], is_last)
            found.append(self.normalize(text, final=is_last).encode(errors=_ERRORS))
        self._held = data[blocks * BLOCK_BYTES :]
        if final:
            self._begin()
        return b"".join(found)

    def normalize(self, text: str, *, final: bool) -> str:
        """Return a normalized block; VocabularyError if a step makes more than its limit."""
        blocks = 1
        for number, step in enumerate(self._steps, 1):
            blocks += step.held_blocks
            most = blocks * MOST_BYTES
            nbytes = step.count_bytes(text)
            if nbytes <= most:
                text = step.feed(text, final)
                # A text of few characters can't exceed the limit: a character has up to four bytes.
                nbytes = _count_bytes(text) if 4 * len(text) > most else 0
            if nbytes > most:
                raise VocabularyError(
                    f"step {number} of the normalizer, {type(step).__name__}, makes {nbytes:,} "
                    f"bytes of a block of {BLOCK_BYTES >> 10} KB of text; the limit is {most:,}"
                )
            step.held_blocks = 0 if text else min(blocks, sum(map(len, step.held)) // BLOCK_BYTES)
        return text


class _BytesFilter(_StepsFilter):
    """Normalizes UTF-8 bytes by NFC, or by steps that lengthen no text except by a prefix.

    Blocks need no limit, and the bytes of a block in which no step finds its string are not copied.
    """

    def _feed(self, data: bytes, *, final: bool) -> bytes:
        for step in self._steps:
            data = step.feed(data, final)
        if final:
            self._begin()
        return data


@cache
def _lowercase() -> dict[int, str]:
    """Return a table for `str.translate` from each character to its lowercase, if different."""
    text = Path(__file__).with_name("lowercase.txt").read_text(encoding="ascii")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    table: dict[int, str] = {}
    for entry in " ".join(lines).split():
        first, step, count, *spelled = (int(part, 16) for part in re.split("[+*=:]", entry))
        for k in range(count):
            table[first + k * step] = "".join(chr(code + k * step) for code in spelled)
    return table
