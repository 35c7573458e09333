"""Conversations of a program, as ids: what `Tokenizer.apply_chat_template` does."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.chat import Parts
from llmgpu.tokens.conversations import Conversations, lengths_in_conversations

Message = Mapping[str, Any]


class ChatEncoder:
    """Makes ids of conversations, by a vocabulary's chat template.

    The process in which a template is rendered starts with the first conversation, and ends with
    this object. A forked process starts one of its own. Threads take turns.
    """

    def __init__(
        self, vocabulary: Vocabulary, encode: Callable[[bytes], NDArray[np.uint32]]
    ) -> None:
        """Use a vocabulary; encode: makes ids of text, all special tokens allowed."""
        self._vocabulary, self._encode = vocabulary, encode
        self._lock = threading.Lock()
        self._process = 0
        self._conversations: Conversations | None = None

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, prompt: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Return the ids of a conversation, and which of them the assistant wrote: (n,) each."""
        with self._lock:
            conversations = self._opened()
            parts = [
                (text.encode(), is_reply)
                for text, is_reply in self._parts(conversations, messages, tools, prompt)
            ]
            before = conversations.text_bytes
            conversations.add(parts)
            ids = self._encode(b"".join(data for data, _ in parts))
            lengths = lengths_in_conversations(self._vocabulary)[ids]
            edges = before + np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            return ids, conversations.mask(edges)

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None, prompt: bool) -> str:
        """Return the text of a conversation."""
        with self._lock:
            parts = self._parts(self._opened(), messages, tools, prompt)
            return "".join(text for text, _ in parts)

    def _parts(
        self,
        conversations: Conversations,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        prompt: bool,
    ) -> Parts:
        given = [dict(m) if isinstance(m, Mapping) else m for m in messages]
        tools = None if tools is None else list(tools)
        return conversations.read(given, tools, "the conversation", prompt=prompt)

    def _opened(self) -> Conversations:
        if self._conversations is None or self._process != os.getpid():
            self._conversations = conversations = Conversations(self._vocabulary)
            self._process = os.getpid()
            weakref.finalize(self, _close_in, os.getpid(), conversations)
        return self._conversations


def _close_in(process: int, conversations: Conversations) -> None:
    """Close conversations in the process that opened them."""
    if process == os.getpid():
        conversations.close()
