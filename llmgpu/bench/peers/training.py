"""The peers that train: Hugging Face's tokenizers, rustbpe and gigatoken, where they are installed.

A vocabulary's merges decide all of it, so merges are what is compared; rustbpe tells what they make
and not of what, so of it that is. Only Hugging Face's trainer has a minimum frequency and stops
there: each peer is asked for as many merges as llmgpu found.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgpu.bench.peers.peer import EXPRESSIBLE, Peer, gigatoken_extension, pieces
from llmgpu.bpe.interchange.spellings import HUGGINGFACE, TIKTOKEN, expression_of
from llmgpu.bpe.vocabulary.tie import byte_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

PIECE = 1 << 16  # characters that a peer gets at a time; its threads take different pieces


@dataclass(frozen=True)
class TrainingPeer(Peer):
    """A peer that trains.

    tie: the rule by which it orders equally frequent pairs.
    train: learns from a file, under a pattern, a vocabulary of a size.
    learned: returns what can be compared of what `train` returned.
    expected: returns the same of a vocabulary.
    compared: what that is, for people.
    save: writes what `train` returned to a file, if the peer has vocabulary files.
    """

    tie: str
    train: Callable[[Path, str, int], Any]
    learned: Callable[[Any], list[Any]]
    expected: Callable[[Vocabulary], list[Any]]
    compared: str = "merges"
    save: Callable[[Any, Path], None] | None = None


def train_tokenizers(path: Path, pattern: str, vocab_size: int) -> Any:
    """Train Hugging Face's BPE on a file, with all processors; return its tokenizer."""
    hf = importlib.import_module("tokenizers")
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = byte_level(pattern)
    trainer = hf.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_read_pieces(path), trainer)
    return tokenizer


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


def tokenizers_merges(tokenizer: Any) -> list[tuple[bytes, bytes]]:
    """Return the merges of a tokenizer of Hugging Face, as bytes."""
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [
        (bytes(byte_of[c] for c in left), bytes(byte_of[c] for c in right))
        for left, right in merges
    ]


def train_rustbpe(path: Path, pattern: str, vocab_size: int) -> Any:
    """Train rustbpe on a file, with all processors; return its tokenizer."""
    tokenizer = importlib.import_module("rustbpe").Tokenizer()
    expression = expression_of(pattern, TIKTOKEN)
    tokenizer.train_from_iterator(iter(_read_pieces(path)), vocab_size, pattern=expression)
    return tokenizer


def rustbpe_tokens(tokenizer: Any) -> list[bytes]:
    """Return what the merges of a tokenizer of rustbpe make, first merge first."""
    ranks = sorted(tokenizer.get_mergeable_ranks(), key=lambda item: item[1])
    return [bytes(token) for token, _ in ranks[256:]]


def train_gigatoken(path: Path, pattern: str, vocab_size: int) -> list[tuple[bytes, bytes]]:
    """Train gigatoken on a file, with all processors; return the merges.

    It has no other pattern than gpt2.
    """
    assert pattern == "gpt2"
    extension = gigatoken_extension()
    with _silence():
        _, merges = extension.train_bpe(str(path), vocab_size, [], "huggingface")
    return [(bytes(left), bytes(right)) for left, right in merges]


def vocabulary_merges(vocabulary: Vocabulary) -> list[tuple[bytes, bytes]]:
    """Return the merges of a vocabulary, as bytes."""
    tokens = vocabulary.tokens
    return [(tokens[left], tokens[right]) for left, right, _ in vocabulary.merges.tolist()]


def vocabulary_tokens(vocabulary: Vocabulary) -> list[bytes]:
    """Return what the merges of a vocabulary make, first merge first."""
    return [left + right for left, right in vocabulary_merges(vocabulary)]


TRAINING_PEERS = (
    TrainingPeer(
        package="tokenizers",
        patterns=EXPRESSIBLE,
        tie="hf",
        train=train_tokenizers,
        learned=tokenizers_merges,
        expected=vocabulary_merges,
        save=lambda tokenizer, path: tokenizer.save(str(path)),
    ),
    TrainingPeer(
        package="rustbpe",
        patterns=EXPRESSIBLE,
        tie="bytes",
        train=train_rustbpe,
        learned=rustbpe_tokens,
        expected=vocabulary_tokens,
        compared="tokens",
    ),
    TrainingPeer(
        package="gigatoken",
        patterns=("gpt2",),
        tie="hf",
        train=train_gigatoken,
        learned=list,
        expected=vocabulary_merges,
    ),
)


def _read_pieces(path: Path) -> list[str]:
    return pieces(path.read_bytes().decode(), PIECE)


@contextmanager
def _silence() -> Iterator[None]:
    """Send what native code prints to nowhere: it may not mix with results on stdout."""
    kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor, _ in kept:
            os.dup2(nowhere, descriptor)
        yield
    finally:
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)
