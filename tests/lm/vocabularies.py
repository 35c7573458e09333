"""A text and a vocabulary trained on it, for tests of what models are trained on."""

from __future__ import annotations

from functools import cache

from llmgpu.backend import NUMPY
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.plain.test_recount_gpu import words

END = "<|endoftext|>"


@cache
def sample_text() -> bytes:
    """Some 20 KB of made-up words."""
    return words(7, 4_000, 500)


@cache
def sample_vocabulary(size: int = 400, special_tokens: tuple[str, ...] = (END,)) -> Vocabulary:
    options = TrainingOptions(size, special_tokens=special_tokens)
    return train_vocabulary(corpus_from_bytes(sample_text()), options, NUMPY).vocabulary
