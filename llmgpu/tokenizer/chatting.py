"""The conversion of conversations to ids, for `Tokenizer.apply_chat_template`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange.huggingface import name_tokens
from llmgpu.bpe.vocabulary.chat import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.closing import close_with
from llmgpu.text.chat import Parts
from llmgpu.tokens.conversations import Conversations, lengths_in_conversations

Message = Mapping[str, Any]


class ChatEncoder:
    """Converts conversations to ids, by a vocabulary's chat template or by a given template.

    Templates are rendered in another process, which starts with the first conversation and ends
    when this object is deleted. After a fork, the child starts its own process. Only one thread at
    a time uses the process.
    """

    def __init__(
        self, vocabulary: Vocabulary, encode: Callable[[bytes], NDArray[np.uint32]]
    ) -> None:
        """Store the arguments.

        vocabulary: has the template. encode: encodes text, with all special tokens allowed.
        """
        self._vocabulary, self._encode = vocabulary, encode
        self._lock = threading.Lock()
        self._process = 0  # id of the process that filled `_conversations` and `_closing`
        # Renderers by template; None is the vocabulary's template.
        self._conversations: dict[str | None, Conversations] = {}
        # Functions that close the renderers of given templates, by template.
        self._closing: dict[str, Callable[[], object]] = {}

    def encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        prompt: bool,
        template: str | None = None,
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Return the ids of a conversation, uint32 (n,), and a mask, bool (n,).

        The mask is True for the ids that the assistant wrote.

        prompt: whether to append the prompt of an assistant message. template: a template in Jinja;
        None for the vocabulary's own.
        """
        with self._lock:
            conversations, read = self._read(messages, tools, prompt, template)
            parts = [(text.encode(), is_reply) for text, is_reply in read]
            before = conversations.text_bytes
            conversations.add(parts)
            ids = self._encode(b"".join(data for data, _ in parts))
            lengths = lengths_in_conversations(self._vocabulary)[ids]
            edges = before + np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            return ids, conversations.mask(edges)

    def render(self, *conversation: Any) -> str:
        """Return the text of a conversation; takes the arguments of `encode`."""
        with self._lock:
            _, parts = self._read(*conversation)
            return "".join(text for text, _ in parts)

    def _read(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        prompt: bool,
        template: str | None = None,
    ) -> tuple[Conversations, Parts]:
        """Return the renderer of the template, and the texts of a conversation."""
        given = [dict(m) if isinstance(m, Mapping) else m for m in messages]
        tools = None if tools is None else list(tools)
        conversations = self._opened(template)
        return conversations, conversations.read(given, tools, "the conversation", prompt=prompt)

    def _opened(self, template: str | None) -> Conversations:
        if self._process != os.getpid():
            self._conversations, self._closing, self._process = {}, {}, os.getpid()
        if template not in self._conversations:
            vocabulary = self._vocabulary
            if template is not None:
                vocabulary = replace(
                    vocabulary, chat=ChatTemplate(template, name_tokens(vocabulary))
                )
            conversations = Conversations(vocabulary)
            close = close_with(self, conversations.close)
            # Close the renderers of other given templates, because each has a process.
            if template is not None:
                for other in [*self._closing]:
                    self._closing.pop(other)()
                    del self._conversations[other]
                self._closing[template] = close
            self._conversations[template] = conversations
        return self._conversations[template]
