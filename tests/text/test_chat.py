"""Conversations in JSON Lines files: what their text is, and which lines are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.errors import InputError
from llmgpu.text.chat import Parts, PlainRenderer, check_messages
from llmgpu.text.corpus import Corpus, CorpusOptions
from tests.text.reading import read_documents

USER, REPLY = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


class PlainChat:
    """Plain text of conversations; kept: the bytes of their parts."""

    digest = ""
    text_bytes = 0

    def __init__(self) -> None:
        self.kept: list[list[tuple[bytes, bool]]] = []

    def read(self, messages: Any, tools: object, where: str) -> Parts:
        check_messages(messages, where, lambda role: role == "narrator")
        return PlainRenderer().render(messages, tools, where)

    def add(self, parts: list[tuple[bytes, bool]]) -> None:
        self.kept.append(parts)

    def mask(self, edges: NDArray[np.int64]) -> NDArray[np.bool_]:
        raise NotImplementedError


NARRATOR = b"<|im_start|>narrator\na<|im_end|>\n"


def read(path: Path, chat: PlainChat, **options: Any) -> list[bytes]:
    chosen = {"text_field": "messages"} | options
    with Corpus([str(path)], CorpusOptions(**chosen, chat=chat)) as corpus:
        return read_documents(corpus)


def test_plain_text_of_a_conversation(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(
        json.dumps({"x": {"m": [USER, REPLY]}}) + "\n\n" + json.dumps({"x": {"m": [REPLY]}})
    )
    chat = PlainChat()
    first = b"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
    second = b"<|im_start|>assistant\nb<|im_end|>\n"
    assert read(tmp_path / "c.jsonl", chat, text_field="x.m") == [first, second]
    replies = [[data for data, is_reply in parts if is_reply] for parts in chat.kept]
    assert replies == [[b"b<|im_end|>"]] * 2


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "line 2: there are no messages"),
        ("hi", "line 2: the messages are not a list but a string"),
        ([USER, 3], "line 2, message 2: not an object but a number"),
        ([{"content": "a"}], "line 2, message 1: no role; roles are system, developer, user"),
        ([USER, REPLY | {"role": "asistant"}], "line 2, message 2: unknown role 'asistant'"),
        ([REPLY | {"role": ""}], "line 2, message 1: unknown role ''"),
        ([{"role": "user"}], "line 2, message 1: no content"),
        ([{"from": "human", "value": "a"}], "message 1: ShareGPT's from and value are not read"),
        ([USER | {"content": None}], "line 2, message 1: no content"),
        ([USER | {"content": ["a"]}], "message 1: the content is not a string but a list"),
        ([{"role": "tool", "content": None, "tool_calls": []}], "line 2, message 1: no content"),
        (
            [{"role": "assistant", "tool_calls": [1]}],
            "1: the plain template has no place for tool calls",
        ),
        ([USER, REPLY | {"tool_calls": [1]}], "2: the plain template has no place for tool calls"),
    ],
)
def test_unfit_messages_are_named(tmp_path: Path, messages: Any, message: str) -> None:
    lines = ({"messages": [USER | {"role": "narrator"}]}, {"messages": messages})
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InputError) as raised:
        read(tmp_path / "c.jsonl", PlainChat())
    assert f"c.jsonl, {message}" in str(raised.value) or message in str(raised.value)
    assert "c.jsonl, line 2" in str(raised.value)
    assert read(tmp_path / "c.jsonl", PlainChat(), bad_rows="skip") == [NARRATOR]


def test_rows_without_messages_are_left_out(tmp_path: Path) -> None:
    lines = [{}, {"messages": None}, {"messages": [USER | {"role": "narrator"}]}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = CorpusOptions(text_field="messages", chat=PlainChat())
    with Corpus([str(tmp_path / "c.jsonl")], options) as corpus:
        assert read_documents(corpus) == [NARRATOR]
        assert corpus.policy.null_rows == 2


def test_a_line_without_messages(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"text": "a"}')
    with pytest.raises(InputError, match=r"line 1: no field 'messages'; the fields are: 'text'"):
        read(tmp_path / "c.jsonl", PlainChat())


def test_a_long_line_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "c.jsonl", "wb") as file:
        file.truncate((1 << 25) + 1)
    with pytest.raises(InputError, match="line 1: longer than 33554432 bytes"):
        read(tmp_path / "c.jsonl", PlainChat())


def test_other_files_and_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a")
    with pytest.raises(InputError, match=r"c.txt: --chat reads .jsonl, .parquet or .arrow files"):
        read(tmp_path / "c.txt", PlainChat())
    for option in ({"line_documents": True}, {"separators": (b"x",)}):
        with pytest.raises(InputError, match="--chat can't be combined with --doc-separator"):
            read(tmp_path / "c.txt", PlainChat(), **option)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    reply = b'{"messages": [{"role": "assistant", "content": "\xff\\ud800"}]}'
    (tmp_path / "c.jsonl").write_bytes(reply)
    chat = PlainChat()
    read(tmp_path / "c.jsonl", chat)
    assert chat.kept[0][1] == (b"\xff\xef\xbf\xbd<|im_end|>", True)
    with pytest.raises(InputError, match="line 1: invalid UTF-8"):
        read(tmp_path / "c.jsonl", PlainChat(), encoding_errors="strict")
