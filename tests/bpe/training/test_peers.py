"""Merges of 1 024 ids on real text, pattern gpt2, against the peers that are installed."""

from __future__ import annotations

import json

import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench.tokenizers import load_text
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes
from tests.reference.bpe import bytes_to_unicode

SIZE = 1024


@pytest.fixture(scope="module")
def text() -> str:
    """150 KB of sources of the standard library."""
    return load_text((), 150_000).decode()


def merges_of(text: str, tie: str, backend: Backend) -> list[tuple[bytes, bytes]]:
    options = TrainingOptions(SIZE, pattern="gpt2", tie=tie)
    made = train_vocabulary(corpus_from_bytes(text.encode()), options, backend).vocabulary
    return [(made.tokens[left], made.tokens[right]) for left, right, _ in made.merges.tolist()]


def test_hugging_face_makes_the_same_merges(device: Device, text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=SIZE,
        min_frequency=2,
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    peer.train_from_iterator([text], trainer)
    values = {character: byte for byte, character in bytes_to_unicode().items()}
    expected = [
        tuple(bytes(values[character] for character in part) for part in pair)
        for pair in json.loads(peer.to_str())["model"]["merges"]
    ]
    assert len(expected) == SIZE - 256
    for backend in (NUMPY, Backend(device, "adapter")):
        assert merges_of(text, "hf", backend) == expected


def test_rustbpe_makes_the_same_tokens(device: Device, text: str) -> None:
    rustbpe = pytest.importorskip("rustbpe")
    peer = rustbpe.Tokenizer()
    peer.train_from_iterator(iter([text]), SIZE, pattern=PATTERNS["gpt2"].expression)
    ranks = sorted(peer.get_mergeable_ranks(), key=lambda pair: pair[1])
    expected = [bytes(token) for token, _ in ranks[256:]]
    for backend in (NUMPY, Backend(device, "adapter")):
        assert [a + b for a, b in merges_of(text, "bytes", backend)] == expected
