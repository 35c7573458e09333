"""Conversations on their way to ids: text by a chat template, and the ids that count in a loss.

- An id counts in the loss if the assistant wrote any byte of the id's text.
- Text is encoded with all special tokens allowed, even in the content of a message, as in
  transformers.
- The spans that the assistant wrote are matched with ids by the lengths of the ids. If the
  vocabulary has a normalizer, this module normalizes the text first, between special tokens as the
  encoder does; normalizing again changes nothing. A normalized character that joins text of the
  assistant to other text counts in the loss. White space that a special token swallows belongs to
  no id.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.special_encoding import special_matches
from llmgpu.bpe.encoding.special_options import ALL, SpecialOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.closing import Closing
from llmgpu.errors import InputError, VocabularyError
from llmgpu.input_files import quote
from llmgpu.spelling import spelled
from llmgpu.text.chat import (
    PLAIN_TOKENS,
    Parts,
    PlainRenderer,
    TemplateRenderer,
    check_messages,
    chosen_time,
)
from llmgpu.text.jsonl import BadRowError, kind_of_value
from llmgpu.text.nfc import normalize, starts_unit
from llmgpu.text.normalizing import NFC, get_normalizer

# Conversations are encoded with all special tokens allowed.
CHAT_TOKENS = SpecialOptions(allowed=(ALL,))


class Conversations(Closing):
    """A `Chat` that renders messages as text, and records the spans written by the assistant.

    in_loss: number of ids so far that count in the loss.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Use the vocabulary's template, or ChatML if the vocabulary has the tokens of ChatML.

        Raises VocabularyError if neither is possible or the normalizer is not NFC, InputError for
        an invalid template.
        """
        chat = vocabulary.chat
        if not chat and not set(PLAIN_TOKENS) <= vocabulary.special_tokens.keys():
            raise VocabularyError(
                "the vocabulary has neither a chat template nor the special tokens "
                f"{' and '.join(PLAIN_TOKENS)} for ChatML: give {spelled('--chat-template')}"
            )
        if vocabulary.normalizer not in (None, NFC):
            name = get_normalizer(str(vocabulary.normalizer)).name
            raise VocabularyError(f"conversations can't be normalized by {name}, only by {NFC}")
        self._source = chat.source if chat else ""
        self._renderer: PlainRenderer | TemplateRenderer = PlainRenderer()
        facts: list[object] = []
        if chat:
            facts = [chat.source, sorted(chat.tokens.items()), chosen_time()]
            self._renderer = TemplateRenderer(chat.source, chat.tokens)
        self.digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        late = {vocabulary.tokens[number].decode() for number in vocabulary.normalized_tokens}
        early = sorted(vocabulary.special_tokens.keys() - late, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, early)) or "(?!)")
        self._vocabulary = vocabulary
        self.text_bytes = self.in_loss = 0
        # Spans of bytes that the assistant wrote. `mask` drops the spans that its ids have passed.
        self._spans: list[tuple[int, int]] = []

    def close(self) -> None:
        """End the renderer's process, if it has one."""
        self._renderer.close()

    def read(self, messages: object, tools: object, where: str, *, prompt: bool = False) -> Parts:
        """Return the text of a conversation; see `llmgpu.text.chat.Chat`.

        prompt: append the beginning of a reply.
        """
        check_messages(messages, where, self._is_role)
        if tools is not None and not isinstance(tools, list):
            raise BadRowError(f"{where}: the tools are not a list but {kind_of_value(tools)}")
        found = cast("list[dict[str, Any]]", messages)
        parts = self._renderer.render(found, tools, where, prompt=prompt)
        return self._normalized(parts, where) if self._vocabulary.normalizer else parts

    def add(self, parts: list[tuple[bytes, bool]]) -> None:
        """Record which bytes of the next conversation the assistant wrote.

        parts: stretches of the text in order: the bytes, and whether the assistant wrote them.
        """
        ends = np.cumsum([0, *(len(data) for data, _ in parts)])
        if self._vocabulary.swallows_space:
            ends = self._count_kept(b"".join(data for data, _ in parts))[ends]
        for (_, is_reply), (begin, end) in zip(parts, pairwise(ends.tolist()), strict=True):
            if is_reply and begin < end:
                self._spans.append((self.text_bytes + begin, self.text_bytes + end))
        self.text_bytes += int(ends[-1])

    def _count_kept(self, data: bytes) -> NDArray[np.int64]:
        """Return how many of the bytes before each position belong to ids: int64 (n + 1,)."""
        kept = np.ones(len(data) + 1, np.int64)
        for first, begin, end, last in special_matches(self._vocabulary, (ALL,), data):
            kept[first:begin] = kept[end:last] = 0
        return np.cumsum(kept) - kept

    def mask(self, edges: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each id has bytes of the assistant: bool (n,); see `Chat.mask`."""
        spans = np.array(self._spans, np.int64).reshape(-1, 2)
        # Of the spans that begin before the end of an id, only the last can overlap the id.
        last = np.searchsorted(spans[:, 0], edges[1:], side="left") - 1
        mask = (last >= 0) & (spans[last, 1] > edges[:-1]) if len(spans) else last >= 0
        done = int(np.searchsorted(spans[:, 1], edges[-1], side="right"))
        del self._spans[:done]
        self.in_loss += int(mask.sum())
        return mask

    def _is_role(self, role: str) -> bool:
        """Whether the template contains the name of a role in quotes, as 'role' or "role"."""
        return bool(role) and (f"'{role}'" in self._source or f'"{role}"' in self._source)

    def _normalized(self, parts: Parts, where: str) -> Parts:
        text = "".join(part for part, _ in parts)
        if text.isascii():
            return parts
        ends = list(accumulate(len(part) for part, _ in parts))
        found: Parts = []
        position = 0
        for match in [*self._special.finditer(text), None]:
            begin, end = match.span() if match else (len(text), len(text))
            if made := self._special.search(normalize(text[position:begin])):
                raise InputError(f"{where}: normalizing the text results in {quote(made[0])}")
            found += _normalized_parts(_cut(text, position, begin, ends, parts))
            found += _cut(text, begin, end, ends, parts)
            position = end
        return found


def _cut(text: str, begin: int, end: int, ends: Sequence[int], parts: Parts) -> Parts:
    """Return text[begin:end], cut at `ends`, the ends of the stretches in `parts`."""
    inside = [edge for edge in ends if begin < edge < end]
    edges = [begin, *inside, end]
    first = sum(edge <= begin for edge in ends)
    return [(text[a:b], parts[first + i][1]) for i, (a, b) in enumerate(pairwise(edges)) if a < b]


def _normalized_parts(parts: Parts) -> Parts:
    """Normalize a text without special tokens; ends of stretches are moved where necessary."""
    text = "".join(part for part, _ in parts)
    found: Parts = []
    done = edge = 0
    for (part, is_reply), (_, is_reply_next) in pairwise([*parts, ("", False)]):
        edge += len(part)
        end = max(done, _independent_edge(text, edge, before=is_reply_next and not is_reply))
        found.append((normalize(text[done:end]), is_reply))
        done = end
    return found


def _independent_edge(text: str, edge: int, *, before: bool) -> int:
    """Return `edge`, moved if normalizing joins the characters before and after it.

    before: whether the edge moves to the front of these characters; else to their end.
    """
    first = last = edge
    while 0 < first < len(text) and not starts_unit(text[first]):
        first -= 1
    while 0 < last < len(text) and not starts_unit(text[last]):
        last += 1
    apart = normalize(text[first:edge]) + normalize(text[edge:last])
    moved = first if before else last
    return edge if apart == normalize(text[first:last]) else moved


def lengths_in_conversations(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Return how many bytes of a conversation's text each id has, int64 (vocabulary size,)."""
    lengths = vocabulary.token_spans.copy()
    if vocabulary.normalizer is not None:
        for number in vocabulary.normalized_tokens:
            lengths[number] = len(normalize(vocabulary.tokens[number].decode()).encode())
    return lengths
