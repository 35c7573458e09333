"""Conversations: messages in the rows of a file, rendered as text that is marked by author.

A message has a role and a content. A renderer makes text of messages: either a chat template is
run, see `llmgpu.text.chat`, or a `PlainRenderer` writes plain ChatML.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.closing import Closing, undoing
from llmgpu.errors import InputError
from llmgpu.input_files import quote
from llmgpu.text.compressions import Package
from llmgpu.text.documents import NO_TEXT, InputPolicy, Piece
from llmgpu.text.jsonl import (
    BadRowError,
    JsonlFile,
    encode_text,
    kind_of_value,
)
from llmgpu.text.streams import Source
from llmgpu.text.tables import ArrowFile, ParquetFile

MESSAGES = "messages"  # the usual name of the field with a conversation
_TOOLS = "tools"  # the field that describes tools to a template
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
PLAIN_TOKENS = ("<|im_start|>", "<|im_end|>")
_PLAIN_TEMPLATE = (  # ChatML as a Jinja template, for exports to other tools
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_JINJA = Package("jinja2", "chat")
_DATE = "SOURCE_DATE_EPOCH"
_PROGRAM = Path(__file__).with_name("chat_worker.py")

# The text of a conversation, cut by author; the bool tells whether the assistant wrote this text.
Parts = list[tuple[str, bool]]


class PlainRenderer:
    """Renders ChatML: ``<|im_start|>ROLE``, a newline, the content, ``<|im_end|>``, a newline.

    Of an assistant's message, the content and the token after it are the assistant's text.
    """

    def render(
        self, messages: list[dict[str, Any]], tools: object, where: str, *, prompt: bool = False
    ) -> Parts:
        """Return the text of a conversation.

        where: name of the row, with which the message of an InputError begins. prompt: append the
        header of the assistant's next reply.
        """
        begin, end = PLAIN_TOKENS
        parts: Parts = []
        if tools:
            raise BadRowError(f"{where}: the plain template has no place for tools")
        for number, message in enumerate(messages, 1):
            content, role = message.get("content"), message["role"]
            if message.get("tool_calls"):
                raise BadRowError(
                    f"{where}, message {number}: the plain template has no place for tool calls"
                )
            if not isinstance(content, str):
                raise BadRowError(
                    f"{where}, message {number}: the content is not a string but "
                    f"{kind_of_value(content)}: the plain template takes strings"
                )
            parts += [(f"{begin}{role}\n", False), (content + end, role == "assistant")]
            parts += [("\n", False)]
        return [*parts, (f"{begin}assistant\n", False)] if prompt else parts

    def close(self) -> None:
        """Do nothing: a plain renderer has no process."""


def plain_template(special_tokens: Collection[str]) -> str | None:
    """Return ChatML as a Jinja template if the vocabulary has ChatML's tokens, else None."""
    return _PLAIN_TEMPLATE if set(PLAIN_TOKENS) <= set(special_tokens) else None


def end_of_reply(special_tokens: Mapping[str, int]) -> frozenset[int]:
    """Return the id that ends a reply in ChatML as a set, empty if ChatML's tokens are missing."""
    has_tokens = plain_template(special_tokens) is not None
    return frozenset({special_tokens[PLAIN_TOKENS[1]]} if has_tokens else ())


def chosen_time() -> int | None:
    """Return the current time that templates see, in seconds: SOURCE_DATE_EPOCH; None if unset.

    Raises InputError if SOURCE_DATE_EPOCH is not a number.
    """
    text = os.environ.get(_DATE)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        raise InputError(f"{_DATE} is {quote(text)}, not a number of seconds since 1970")
    return int(text)


class TemplateRenderer(Closing):
    """Renders conversations by a chat template; see `PlainRenderer`."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Compile a template in a new process.

        source: the template. tokens: texts of special tokens, by their names in the template. The
        template sees SOURCE_DATE_EPOCH as the current time.

        Raises InputError for a template with an error, or if the package for templates is missing.
        """
        _JINJA.require("chat template")
        import subprocess  # slow, and most conversations have no template

        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        with undoing(self.close):
            request = {"source": source, "tokens": dict(tokens), "time": chosen_time()}
            self._ask(request, "the chat template")

    def render(
        self, messages: list[dict[str, Any]], tools: object, where: str, *, prompt: bool = False
    ) -> Parts:
        """Return the text of a conversation; `where` is the row's name in errors."""
        request = {"messages": messages, "tools": tools, "prompt": prompt}
        answer = self._ask(request, f"{where}: the chat template")
        text, spans = answer["text"], answer["spans"]
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        if edges != sorted(edges):
            raise InputError(f"{where}: the chat template has nested generation blocks")
        return [(text[a:b], bool(i % 2)) for i, (a, b) in enumerate(pairwise(edges)) if a < b]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: dict[str, Any], what: str) -> dict[str, Any]:
        """Send a request and return the answer; InputError if the process has ended or failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            line = json.dumps(request, ensure_ascii=False) + "\n"
        except RecursionError:
            raise InputError(f"{what} can't take data that is nested this deep") from None
        with suppress(BrokenPipeError):  # the process has ended, so its answer is empty
            self._process.stdin.write(line.encode("utf-8", "surrogatepass"))
            self._process.stdin.flush()
        data = self._process.stdout.readline()
        if not data:
            raise InputError(f"{what} {self._describe_end()}")
        answer: dict[str, Any] = json.loads(data.decode("utf-8", "surrogatepass"))
        if "error" in answer:
            hint = ""
            if "'strftime_now' is undefined" in answer["error"]:
                hint = f": set {_DATE} to the time that it should use, in seconds since 1970"
            raise InputError(f"{what} fails: {answer['error']}{hint}")
        return answer

    def _describe_end(self) -> str:
        code = self._process.wait()
        if sys.platform != "win32" and code == -signal.SIGPROF:
            return "takes too long: more than 10 seconds of processor time for one conversation"
        return f"ended its process with {code}"


def check_messages(messages: object, where: str, is_role: Callable[[str], bool]) -> None:
    """Raise BadRowError unless `messages` is a list of messages, each with role and content.

    is_role: returns whether a role that is not in ROLES is allowed.
    """
    if not isinstance(messages, list):
        raise BadRowError(f"{where}: the messages are not a list but {kind_of_value(messages)}")
    if not messages:
        raise BadRowError(f"{where}: there are no messages")
    for number, message in enumerate(messages, 1):
        what = f"{where}, message {number}"
        if not isinstance(message, dict):
            raise BadRowError(f"{what}: not an object but {kind_of_value(message)}")
        role = message.get("role")
        if not isinstance(role, str):
            if "from" in message:
                raise BadRowError(
                    f"{what}: ShareGPT's from and value are not read: make them role and content"
                )
            raise BadRowError(f"{what}: no role; roles are {', '.join(ROLES)}")
        if role not in ROLES and not is_role(role):
            raise BadRowError(f"{what}: unknown role {quote(role)}; roles are {', '.join(ROLES)}")
        if message.get("content") is None and not message.get("tool_calls"):
            raise BadRowError(f"{what}: no content")


class Chat(Protocol):
    """Renders the conversations of files as text, and marks the ids that the assistant wrote.

    digest: a hash of everything that changes the text, for a resume key. text_bytes: bytes of all
    conversations so far.
    """

    digest: str
    text_bytes: int

    def read(self, messages: object, tools: object, where: str) -> Parts:
        """Return the text of a conversation; `where` is the row's name in errors."""

    def add(self, parts: list[tuple[bytes, bool]]) -> None:
        """Record the next conversation.

        parts: as `Parts`, with the texts as bytes.
        """

    def mask(self, edges: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the next ids, bool (n,): True for an id with bytes of the assistant.

        edges: int64 (n + 1,), the start of each id in the text of all conversations, then the end
        of the last id. Each call continues where the previous call ended.
        """


class Collector:
    """Turns conversations into documents, until a limit of bytes is reached.

    is_full: whether a conversation did not fit. All later conversations are then left out, too.
    """

    def __init__(self, chat: Chat, limit: int | None) -> None:
        """Start with room for `limit` bytes of text; None: without a limit."""
        self._chat, self._room = chat, limit
        self.is_full = False

    def take(
        self, messages: object, tools: object, where: str, policy: InputPolicy, has_invalid: bool
    ) -> Piece | None:
        """Return the next conversation as a document.

        Returns None for a bad row and for a row without messages, which `policy` counts, and
        NO_TEXT beyond the limit.

        has_invalid: whether surrogate escapes in the conversation represent invalid bytes.
        """
        if messages is None:
            policy.null_rows += 1
            return None
        try:
            read = self._chat.read(messages, tools, where)
        except BadRowError as error:
            policy.leave_out(error)
            return None
        parts = [
            (encode_text(text, has_invalid, where, policy), is_reply) for text, is_reply in read
        ]
        data = b"".join(data for data, _ in parts)
        if self._room is not None:
            self._room -= len(data)
            self.is_full = self._room < 0
        if self.is_full:
            return NO_TEXT
        self._chat.add(parts)
        return Piece.document(data)


class ChatFile(JsonlFile):
    """An open JSON Lines file with a conversation in each line."""

    longest = 1 << 25  # rendering a template needs many times as much memory
    reads_in_c = False

    def __init__(self, source: Source, field: str, collector: Collector) -> None:
        """Open the file; `field` of each line's object holds the messages."""
        super().__init__(source, field)
        self._collector = collector

    def _of_row(
        self, row: dict[str, object], where: str, policy: InputPolicy, has_invalid: bool
    ) -> Piece | None:
        messages, tools = self.value(row, where), row.get(_TOOLS)
        return self._collector.take(messages, tools, where, policy, has_invalid)


class ChatTable(ParquetFile):
    """An open .parquet file with a conversation in each row."""

    content = "a list of messages"

    def __init__(self, source: Source, column: str, collector: Collector) -> None:
        """Open the file; `column` holds the messages. Raises InputError for other contents."""
        super().__init__(source, column)
        if _TOOLS in self._file.schema_arrow.names:
            self._others = [_TOOLS]
        self._collector = collector

    def begin(self) -> None:
        """Do not read ahead: rendering templates takes longer than reading."""

    def documents(self, policy: InputPolicy) -> Iterator[Piece]:
        """Yield the text of each row; InputError names the file and the row."""
        rows = chain.from_iterable(chain.from_iterable(map(self._read, self._find_groups())))
        for number, (messages, tools) in enumerate(rows, self._rows[0] + 1):
            where = f"{self._path}, row {number}"
            if document := self._collector.take(messages, tools, where, policy, False):
                yield document
        self.position = self._size
        self.check_unchanged()

    def _is_right(self, kind: Any) -> bool:
        types = self._arrow.types
        is_list = types.is_list(kind) or types.is_large_list(kind)
        return bool(is_list and types.is_struct(kind.value_type))

    def _prepared(self, array: Any, batch: Any) -> Any:
        tools = batch.column(_TOOLS).to_pylist() if self._others else repeat(None)
        return zip(array.to_pylist(), tools, strict=False)


class ChatArrow(ChatTable, ArrowFile):
    """An open .arrow file with a conversation in each row."""
