"""What the measurements of peers have in common, whether they train or tokenize.

Peers cut text with a regular expression over characters. `expression_of` says over characters what
a pattern says over bytes, and the two agree on valid UTF-8: for pattern ``class`` every byte of a
character beyond ASCII is a letter.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any

from llmgpu.bench.engines import Job
from llmgpu.bench.machine import package_version
from llmgpu.bpe.pattern import get_pattern
from llmgpu.bpe.tie import byte_ranks
from llmgpu.bpe.vocabulary import Vocabulary

_CLASS = " *[A-Za-z\u0080-\U0010ffff]+| *[0-9]+| +|\n|[^\n A-Za-z0-9\u0080-\U0010ffff]+"
# Pre-tokens end after such a newline under every pattern that peers are measured with.
_PIECE_END = re.compile(r"(?<=\S)\n(?=\w)")


@dataclass(frozen=True)
class Peer:
    """A package to measure beside llmgpu, and the patterns that it can cut text with."""

    package: str
    patterns: tuple[str, ...]

    @property
    def name(self) -> str:
        """What tables call it: its name, and its version where it is installed."""
        version = package_version(self.package)
        return self.package if version is None else f"{self.package} {version}"

    def why_not(self, job: Job) -> str | None:
        """Return why it can't do a job, as a line; None if it can."""
        if package_version(self.package) is None:
            return f"not installed: pip install {self.package}"
        if job.pattern not in self.patterns:
            return f"left out: it doesn't know pattern {job.pattern}"
        if not job.text.is_utf8:
            return "left out: the text is not UTF-8, which it can't read"
        return None


def expression_of(pattern: str) -> str:
    """Return a pattern as a regular expression over characters."""
    return _CLASS if pattern == "class" else get_pattern(pattern).expression


def pieces(text: str, characters: int) -> list[str]:
    """Cut a text into pieces of at least `characters` where pre-tokens end."""
    found: list[str] = []
    begin = 0
    while begin < len(text):
        newline = _PIECE_END.search(text, begin + characters)
        end = len(text) if newline is None else newline.end()
        found.append(text[begin:end])
        begin = end
    return found


def vocabulary_merges(vocabulary: Vocabulary) -> list[tuple[bytes, bytes]]:
    """Return the merges of a vocabulary, as bytes."""
    tokens = vocabulary.tokens
    return [(tokens[left], tokens[right]) for left, right, _ in vocabulary.merges.tolist()]


def byte_level(pattern: str) -> Any:
    """Return Hugging Face's pre-tokenizer that cuts by a pattern and spells bytes."""
    hf = importlib.import_module("tokenizers")
    pre = hf.pre_tokenizers
    if pattern == "gpt2":
        return pre.ByteLevel(add_prefix_space=False)
    split = pre.Split(hf.Regex(expression_of(pattern)), behavior="isolated")
    return pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_characters() -> list[str]:
    """Return the character that Hugging Face's byte-level alphabet shows each byte as.

    Under the tie rule "hf" bytes rank in the order of those characters.
    """
    hf = importlib.import_module("tokenizers")
    alphabet = sorted(hf.pre_tokenizers.ByteLevel.alphabet())
    return [alphabet[rank] for rank in byte_ranks("hf").tolist()]
