"""Text cut by several Splits and Digits, compared with tokenizers."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from llmgpu.bpe.interchange import huggingface
from llmgpu.bpe.interchange.components import check_portable, read_pattern
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.tokenizer import Tokenizer as LlmgpuTokenizer
from tests.bpe.interchange.samples import texts, train_peer

pytest.importorskip("regex")

O200K_LETTERS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)
ENDS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# As the models' tokenizer.json have them.
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
TEKKEN = [O200K_LETTERS + r"|\p{N}" + ENDS]
QWEN35 = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
]
NO_REGEX = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
BY_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)


def splits(expressions: list[str]) -> list[Any]:
    return [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]


KINDS = {
    "deepseek": [*splits(DEEPSEEK3), NO_REGEX],
    "tekken": [*splits(TEKKEN), NO_REGEX],
    "qwen3.5": [*splits(QWEN35), NO_REGEX],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), BY_GPT2],
    "digits": [pre_tokenizers.Digits(individual_digits=False), BY_GPT2],
    "string": [pre_tokenizers.Split(" a.", "isolated"), *splits([r"\s+(?!\S)"]), NO_REGEX],
    "gaps": [*splits([r"[a-c]+|\d", r"\p{Lu}|b(?=c)"]), NO_REGEX],
}


def mixed_texts(count: int) -> Iterator[str]:
    """Texts of characters that matter, and of any that Python's version of Unicode has."""
    rng = random.Random(8)
    yield from texts(3, count // 2)
    for _ in range(count // 2):
        made = ""
        for _ in range(rng.randrange(30)):
            character = chr(rng.randrange(0x3000) if rng.random() < 0.7 else rng.randrange(0x20000))
            is_known = unicodedata.category(character) not in ("Cn", "Cs")
            made += (
                character if is_known and rng.random() < 0.4 else rng.choice("aB 1.\n'\r/\u4e2d")
            )
        yield made


def read_peer(path: Path, steps: list[Any]) -> tuple[Vocabulary, Tokenizer, list[str]]:
    peer = train_peer()
    peer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    peer.save(str(path))
    notes: list[str] = []
    return huggingface.read(path, note=notes.append), peer, notes


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_cuts_alike(tmp_path: Path, kind: str) -> None:
    vocabulary, peer, notes = read_peer(tmp_path / "t.json", KINDS[kind])
    assert vocabulary.pattern.startswith("splits:[") and "the package regex" in notes[0]
    cut = get_pattern(vocabulary.pattern)
    none = np.empty(0, np.int64)
    for text in mixed_texts(600):
        data = np.frombuffer(text.encode(), np.uint8)
        if len(data) == 0:
            continue
        starts = np.flatnonzero(cut.mark(data, none, continues=False)).tolist()
        theirs = np.cumsum([0, *(len(p) for p, _ in peer.pre_tokenizer.pre_tokenize_str(text))])
        assert starts == theirs[:-1].tolist(), ascii(text)


@pytest.mark.parametrize("kind", ["deepseek", "smollm"])
def test_tokenizers_gives_the_same_ids(tmp_path: Path, kind: str) -> None:
    vocabulary, peer, _ = read_peer(tmp_path / "t.json", KINDS[kind])
    assert Vocabulary.from_bytes(vocabulary.to_bytes()).pattern == vocabulary.pattern
    huggingface.write(vocabulary, tmp_path / "back.json")
    again = huggingface.read(tmp_path / "back.json")
    assert again.fingerprint == vocabulary.fingerprint
    back = Tokenizer.from_file(str(tmp_path / "back.json"))
    given = list(mixed_texts(1_000))
    ours = LlmgpuTokenizer(vocabulary, "cpu").encode_batch(given)
    for text, ids in zip(given, ours, strict=True):
        assert list(ids) == peer.encode(text, add_special_tokens=False).ids == back.encode(text).ids


def test_qwen3_is_a_pattern_here(tmp_path: Path) -> None:
    expression = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    vocabulary, _, notes = read_peer(tmp_path / "t.json", [*splits([expression]), NO_REGEX])
    assert vocabulary.pattern == "qwen2" and not notes


@pytest.mark.parametrize(
    "expression",
    [
        r"\w+",
        r"a\b",
        r"a$",
        r"^a",
        r".+",
        r"\p{N}{1,3}+",
        r"a{,3}",
        r"[[:alpha:]]",
        r"[a&&b]",
        r"[a[b]]",
        r"(?i:ss)",
        r"(?i)a",
        r"(?<=a)b",
        r"(?<name>a)",
        r"(a)\1",
        r"\p{Han}",
        r"\p{^L}",
        r"\x41",
        r"a++\Z",
        r"\h",
    ],
)
def test_what_engines_may_read_otherwise_is_refused(expression: str) -> None:
    with pytest.raises(VocabularyError, match="other engines may match it differently"):
        check_portable(expression)


@pytest.mark.parametrize("pattern", [{"String": "\ud800"}, {"Regex": "a|\ud800"}])
def test_an_expression_that_no_file_can_hold_is_refused(pattern: dict[str, str]) -> None:
    byte_level = {"add_prefix_space": False, "use_regex": False}
    split = {"pattern": pattern, "behavior": "Isolated"}
    with pytest.raises(VocabularyError, match=r"the expression .*ud800' is not valid Unicode$"):
        read_pattern([("Split", split), ("ByteLevel", byte_level)], lambda note: None)


@pytest.mark.parametrize("described", ["", "{}", "[]", "[1]", '["a",]', '["(", "a"]', '["a","b"]'])
def test_a_damaged_list_of_expressions(described: str) -> None:
    with pytest.raises(LlmgpuError, match=r"is not a list of 1 to 16|is not a regular expression"):
        get_pattern(f"splits:{described}")
    assert get_pattern(f"splits:{json.dumps(['a', 'b'])}").name == 'splits:["a", "b"]'
