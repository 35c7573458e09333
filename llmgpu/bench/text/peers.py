"""What the measurements of peers have in common, whether they train or tokenize.

Most peers cut text with a regular expression over characters, as `llmgpu.bpe.interchange.spellings`
spells it for each engine; on valid UTF-8 it means what the pattern means over bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass, field
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any

from llmgpu.bench.measuring.engines import Job
from llmgpu.bench.measuring.machine import package_version
from llmgpu.bpe.interchange.spellings import HUGGINGFACE, expression_of
from llmgpu.bpe.vocabulary.tie import byte_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

# With pattern none a text would be one word, which peers take forever to merge.
EXPRESSIBLE = tuple(HUGGINGFACE)
# Under each of them a pre-token ends after such a newline, whatever else there is on either side.
_PIECE_END = re.compile(r"(?<=\S)\n(?=\w)")


@dataclass(frozen=True)
class Peer:
    """A package to measure beside llmgpu, and the patterns that it can cut text with.

    needs: packages that it needs besides.
    """

    package: str
    patterns: tuple[str, ...]
    needs: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def name(self) -> str:
        """What tables call it: its name, and its version where it is installed."""
        version = package_version(self.package)
        return self.package if version is None else f"{self.package} {version}"

    def why_not(self, job: Job) -> str | None:
        """Return why it can't do a job, as a line; None if it can."""
        packages = (self.package, *self.needs)
        if None in map(package_version, packages):
            return f"not installed: pip install {' '.join(packages)}"
        if job.pattern not in self.patterns:
            return f"left out: it doesn't know pattern {job.pattern}"
        if not job.text.is_utf8:
            return "left out: the text is not UTF-8, which it can't read"
        return None


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
    split = pre.Split(hf.Regex(expression_of(pattern, HUGGINGFACE)), behavior="isolated")
    return pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_characters() -> list[str]:
    """Return the character that Hugging Face's byte-level alphabet shows each byte as.

    Under the tie rule "hf" bytes rank in the order of those characters.
    """
    hf = importlib.import_module("tokenizers")
    alphabet = sorted(hf.pre_tokenizers.ByteLevel.alphabet())
    return [alphabet[rank] for rank in byte_ranks("hf").tolist()]


def gigatoken_extension() -> Any:
    """Load gigatoken's compiled part, which needs none of what the rest of it imports."""
    package = importlib.util.find_spec("gigatoken")
    assert package is not None and package.origin is not None
    path = str(next(Path(package.origin).parent.glob("gigatoken_rs.*")))
    loader = ExtensionFileLoader("gigatoken_rs", path)
    module = importlib.util.module_from_spec(ModuleSpec("gigatoken_rs", loader, origin=path))
    loader.exec_module(module)
    return module
