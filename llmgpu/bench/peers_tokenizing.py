"""The peers that tokenize: Hugging Face's tokenizers and tiktoken, where they are installed.

Both encode by merges (byte pair encoding proper), llmgpu by the longest match, so their ids are not
the same; they share one vocabulary and its ids.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.peers import (
    Peer,
    byte_characters,
    byte_level,
    expression_of,
    pieces,
    vocabulary_merges,
)
from llmgpu.bpe.vocabulary import Vocabulary
from llmgpu.processors import usable_processors

# Characters in a piece of a batch, at which each was fastest (of 2**8 to 2**20, two processors).
TOKENIZERS_PIECE = 1 << 12
TIKTOKEN_PIECE = 1 << 18

Encode = Callable[[str], NDArray[np.uint32]]


@dataclass(frozen=True)
class TokenizingPeer(Peer):
    """A peer that tokenizes; `open` makes an encoder from a vocabulary."""

    open: Callable[[Vocabulary], Encode]


def open_tokenizers(vocabulary: Vocabulary) -> Encode:
    """Make an encoder of Hugging Face's from a vocabulary; it uses all processors."""
    hf = importlib.import_module("tokenizers")
    characters = byte_characters()

    def spell(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    ids = {spell(token): number for token, number in _ranks(vocabulary).items()}
    merges = [(spell(left), spell(right)) for left, right in vocabulary_merges(vocabulary)]
    tokenizer = hf.Tokenizer(hf.models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = byte_level(vocabulary.pattern)

    def encode(text: str) -> NDArray[np.uint32]:
        batch = tokenizer.encode_batch_fast(
            pieces(text, TOKENIZERS_PIECE), add_special_tokens=False
        )
        return np.concatenate([np.array(piece.ids, np.uint32) for piece in batch])

    return encode


def open_tiktoken(vocabulary: Vocabulary) -> Encode:
    """Make an encoder of tiktoken's from a vocabulary; it uses all processors."""
    tiktoken = importlib.import_module("tiktoken")
    encoding = tiktoken.Encoding(
        "llmgpu-bench",
        pat_str=expression_of(vocabulary.pattern),
        mergeable_ranks=_ranks(vocabulary),
        special_tokens={},
    )
    threads = usable_processors()

    def encode(text: str) -> NDArray[np.uint32]:
        batch = encoding.encode_ordinary_batch(pieces(text, TIKTOKEN_PIECE), num_threads=threads)
        return np.concatenate([np.array(piece, np.uint32) for piece in batch])

    return encode


TOKENIZING_PEERS = (
    TokenizingPeer("tokenizers", ("class", "gpt2"), open_tokenizers),
    TokenizingPeer("tiktoken", ("class", "gpt2"), open_tiktoken),
)


def _ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number in vocabulary.ordinary_ids.tolist():
        ranks.setdefault(vocabulary.tokens[number], number)
    return ranks
