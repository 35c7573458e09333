"""The peers that tokenize: Hugging Face's tokenizers, tiktoken and gigatoken, where installed.

Each gets the vocabulary as `llmgpu export` writes it, and is to give the same ids. Text that
spells a special token is text to them, as it is here.
"""

from __future__ import annotations

import binascii
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.peers.peer import EXPRESSIBLE, Peer, gigatoken_extension, pieces
from llmgpu.bpe.interchange.spellings import TIKTOKEN, expression_of
from llmgpu.processors import usable_processors

# Characters in a piece of a batch, at which each was fastest (of 2**8 to 2**20, two processors).
TOKENIZERS_PIECE = 1 << 12
TIKTOKEN_PIECE = 1 << 18
# gigatoken's names of patterns. Its olmo3 is Llama 3's, and rustbpe spells the same in another way.
GIGATOKEN_SCHEMES = {
    "gpt2": "gpt2",
    "cl100k": "gpt4",
    "rustbpe": "olmo3",
    "llama3": "olmo3",
    "qwen2": "qwen2",
    "o200k": "o200k",
}

EncodeFile = Callable[[Path], NDArray[np.uint32]]


@dataclass(frozen=True)
class TokenizingPeer(Peer):
    """A peer that tokenizes.

    format: of `llmgpu.bpe.interchange.formats`, in which it reads a vocabulary.
    open: makes, from such a file and the pattern's name, what returns the ids of a UTF-8 file,
        uint32 (tokens,).
    """

    format: str
    open: Callable[[Path, str], EncodeFile]


def open_tokenizers(vocabulary: Path, pattern: str) -> EncodeFile:
    """Make an encoder of Hugging Face's, which knows the pattern; it uses all processors."""
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(vocabulary))
    tokenizer.encode_special_tokens = True

    def encode(path: Path) -> NDArray[np.uint32]:
        batch = tokenizer.encode_batch_fast(
            pieces(_read(path), TOKENIZERS_PIECE), add_special_tokens=False
        )
        return np.concatenate([np.array(piece.ids, np.uint32) for piece in batch])

    return encode


def open_tiktoken(vocabulary: Path, pattern: str) -> EncodeFile:
    """Make an encoder of tiktoken's; it uses all processors."""
    lines = (line.split() for line in vocabulary.read_bytes().splitlines())
    encoding = importlib.import_module("tiktoken").Encoding(
        "llmgpu-bench",
        pat_str=expression_of(pattern, TIKTOKEN),
        mergeable_ranks={binascii.a2b_base64(token): int(rank) for token, rank in lines},
        special_tokens={},
    )
    threads = usable_processors()

    def encode(path: Path) -> NDArray[np.uint32]:
        text = pieces(_read(path), TIKTOKEN_PIECE)
        batch = encoding.encode_ordinary_batch(text, num_threads=threads)
        return np.concatenate([np.array(piece, np.uint32) for piece in batch])

    return encode


def open_gigatoken(vocabulary: Path, pattern: str) -> EncodeFile:
    """Make an encoder of gigatoken's, which reads files itself; it uses all processors."""
    awkward = importlib.import_module("awkward")
    extension = gigatoken_extension()
    scheme = GIGATOKEN_SCHEMES[pattern]
    tokenizer = extension.BPETokenizer.from_tiktoken(str(vocabulary), scheme)

    def encode(path: Path) -> NDArray[np.uint32]:
        documents = tokenizer.encode_files(extension.TextFileSource([str(path)]))
        return np.asarray(awkward.to_numpy(awkward.flatten(documents)), np.uint32)

    return encode


TOKENIZING_PEERS = (
    TokenizingPeer("tokenizers", EXPRESSIBLE, "huggingface", open_tokenizers),
    TokenizingPeer("tiktoken", EXPRESSIBLE, "tiktoken", open_tiktoken),
    TokenizingPeer(
        "gigatoken", tuple(GIGATOKEN_SCHEMES), "tiktoken", open_gigatoken, needs=("awkward",)
    ),
)


def _read(path: Path) -> str:
    return path.read_bytes().decode()
