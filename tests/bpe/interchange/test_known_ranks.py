"""Rank files of models that packages ship, recognized by content; ids of the package's own code."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.samples import texts
from tests.harness.models import module_in

MARKS = ["e\u0301", "A\u030a", "\u1100\u1161", "\u0338", "\u212b", "<|endoftext|>", "<|im_end|>"]


def folder_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {package} is missing")
    return Path(found.submodule_search_locations[0])


def many_texts(seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"{text}{draw.choice(MARKS)}{draw.choice(MARKS)}" for text in texts(seed, 2_000)]


def test_qwen() -> None:
    folder = folder_of("dashscope")
    path = folder / "resources" / "qwen.tiktoken"
    notes: list[str] = []
    vocabulary = open_vocabulary(path, note=notes.append)
    assert notes == ["the ranks of Qwen: pattern qwen2, 208 special tokens, normalizer NFC"]
    theirs = module_in(folder / "tokenizers", "qwen_tokenizer").QwenTokenizer(path)
    ours = Tokenizer(vocabulary, "cpu")
    for text in many_texts(3):
        assert ours.encode(text, dtype=list) == theirs.encode(text, allowed_special=set()), text
        assert ours.encode(text, dtype=list, allowed_special="all") == theirs.encode(text), text
    assert vocabulary.special_tokens == theirs._special_tokens


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # open files
@pytest.mark.parametrize("name", ["gpt2", "multilingual"])
def test_whisper(name: str) -> None:
    folder = folder_of("whisper")
    notes: list[str] = []
    vocabulary = open_vocabulary(folder / "assets" / f"{name}.tiktoken", note=notes.append)
    theirs = module_in(folder, "tokenizer").get_encoding(name)
    if name == "multilingual":
        assert notes[0] == "the ranks of Whisper: pattern gpt2, 1,608 special tokens"
        assert vocabulary.special_tokens == theirs._special_tokens
    ours = Tokenizer(vocabulary, "cpu")
    for text in many_texts(4):
        assert ours.encode(text, dtype=list) == theirs.encode_ordinary(text), text


def test_other_ranks_need_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "r.tiktoken").write_bytes(b"YQ== 0\n")
    with pytest.raises(VocabularyError, match="does not say how to split text"):
        open_vocabulary(tmp_path / "r.tiktoken")
