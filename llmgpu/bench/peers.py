"""The peers: Hugging Face's tokenizers and tiktoken, where they are installed.

Both cut text with a regular expression over characters. `EXPRESSION` says over characters what
pattern ``class`` says over bytes, and the two agree on valid UTF-8: every byte of a character
beyond ASCII is a letter for ``class``. Both encode by merges (byte pair encoding proper), llmgpu by
the longest match, so their ids are not the same; they share one vocabulary and its ids.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.machine import package_version, usable_cpus
from llmgpu.bpe.tie import byte_ranks
from llmgpu.bpe.vocabulary import Vocabulary

TOKENIZERS, TIKTOKEN = "tokenizers", "tiktoken"
EXPRESSION = " *[A-Za-z\u0080-\U0010ffff]+| *[0-9]+| +|\n|[^\n A-Za-z0-9\u0080-\U0010ffff]+"
# Characters in a piece of a batch, at which each was fastest (of 2**8 to 2**20, two processors).
TOKENIZERS_PIECE = 1 << 12
TIKTOKEN_PIECE = 1 << 18

Encode = Callable[[str], NDArray[np.uint32]]


def peer_name(package: str) -> str | None:
    """Return a peer's name and version, None if it isn't installed."""
    version = package_version(package)
    return None if version is None else f"{package} {version}"


def train_tokenizers(path: Path, vocab_size: int) -> Any:
    """Train Hugging Face's BPE on a file, with all processors; return its tokenizer."""
    hf = importlib.import_module(TOKENIZERS)
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(hf)
    trainer = hf.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train([str(path)], trainer)
    return tokenizer


def tokenizers_merges(tokenizer: Any) -> list[tuple[bytes, bytes]]:
    """Return the merges of a tokenizer of Hugging Face, as bytes."""
    byte_of = {character: byte for byte, character in enumerate(_byte_characters())}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [
        (bytes(byte_of[c] for c in left), bytes(byte_of[c] for c in right))
        for left, right in merges
    ]


def vocabulary_merges(vocabulary: Vocabulary) -> list[tuple[bytes, bytes]]:
    """Return the merges of a vocabulary, as bytes."""
    tokens = vocabulary.tokens
    return [(tokens[left], tokens[right]) for left, right, _ in vocabulary.merges.tolist()]


def open_tokenizers(vocabulary: Vocabulary) -> Encode:
    """Make an encoder of Hugging Face's from a vocabulary; it uses all processors."""
    hf = importlib.import_module(TOKENIZERS)
    characters = _byte_characters()

    def spell(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    ids = {spell(token): number for token, number in _ranks(vocabulary).items()}
    merges = [(spell(left), spell(right)) for left, right in vocabulary_merges(vocabulary)]
    tokenizer = hf.Tokenizer(hf.models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(hf)

    def encode(text: str) -> NDArray[np.uint32]:
        batch = tokenizer.encode_batch_fast(
            _pieces(text, TOKENIZERS_PIECE), add_special_tokens=False
        )
        return np.concatenate([np.array(piece.ids, np.uint32) for piece in batch])

    return encode


def open_tiktoken(vocabulary: Vocabulary) -> Encode:
    """Make an encoder of tiktoken's from a vocabulary; it uses all processors."""
    tiktoken = importlib.import_module(TIKTOKEN)
    encoding = tiktoken.Encoding(
        "llmgpu-bench",
        pat_str=EXPRESSION,
        mergeable_ranks=_ranks(vocabulary),
        special_tokens={},
    )
    threads = usable_cpus()

    def encode(text: str) -> NDArray[np.uint32]:
        batch = encoding.encode_ordinary_batch(_pieces(text, TIKTOKEN_PIECE), num_threads=threads)
        return np.concatenate([np.array(piece, np.uint32) for piece in batch])

    return encode


OPENERS: dict[str, Callable[[Vocabulary], Encode]] = {
    TOKENIZERS: open_tokenizers,
    TIKTOKEN: open_tiktoken,
}


def _pre_tokenizer(hf: Any) -> Any:
    pre = hf.pre_tokenizers
    split = pre.Split(hf.Regex(EXPRESSION), behavior="isolated")
    return pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def _ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number in vocabulary.ordinary_ids.tolist():
        ranks.setdefault(vocabulary.tokens[number], number)
    return ranks


def _byte_characters() -> list[str]:
    """Return the character that the byte-level alphabet shows each byte as.

    Under the tie rule "hf" bytes rank in the order of those characters.
    """
    hf = importlib.import_module(TOKENIZERS)
    alphabet = sorted(hf.pre_tokenizers.ByteLevel.alphabet())
    return [alphabet[rank] for rank in byte_ranks("hf").tolist()]


def _pieces(text: str, characters: int) -> list[str]:
    """Cut a text into pieces of at least `characters`, after newlines, where pre-tokens end."""
    pieces: list[str] = []
    begin = 0
    while begin < len(text):
        newline = text.find("\n", begin + characters)
        end = len(text) if newline < 0 else newline + 1
        pieces.append(text[begin:end])
        begin = end
    return pieces
