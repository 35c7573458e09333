"""A prompt and what a model adds to it: where a text ends, and how it is described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.lm.generating.generator import Request
from llmgpu.lm.generating.sampling import Sampler
from llmgpu.lm.generating.stopping import StopStrings


@dataclass(frozen=True)
class Ends:
    """Where a continuation ends: after `count` ids, and before an id or a text."""

    count: int
    ids: frozenset[int]
    texts: tuple[bytes, ...]


class Continuation:
    """A prompt that is being continued; ids: the new ones."""

    def __init__(
        self, vocabulary: Vocabulary, prompt_ids: list[int], sampler: Sampler, ends: Ends
    ) -> None:
        """Start without new ids."""
        self._vocabulary, self._sampler, self._ends = vocabulary, sampler, ends
        self.prompt_ids = prompt_ids
        self.text = StopStrings(ends.texts)
        self.ids: list[int] = []
        sampler.see(prompt_ids)

    def request(self) -> Request:
        """Return the request for a generator."""
        ends = self._ends
        return Request(self.prompt_ids, ends.count, self._sampler, ends.ids, self._add)

    def _add(self, token: int) -> bool:
        """Add an id; return whether the text has ended."""
        self.ids.append(token)
        return self.text.add(self._vocabulary.tokens[token])

    def describe(self) -> dict[str, Any]:
        """Return what the output says of it, by name."""
        is_full = len(self.ids) >= self._ends.count and not self.text.found
        found: dict[str, Any] = {
            "text": self.text.data.decode("utf-8", "replace"),
            "finish": "length" if is_full else "stop",
            "ids": self.ids,
        }
        if self._sampler.log_probabilities:  # the last may be that of an id that ended the text
            values = self._sampler.log_probabilities[: len(self.ids)]
            found["logprobs"] = [round(each, 6) for each in values]
        return found
