"""The tokenizers that llmgpu is compared with, if they are installed.

Most peers cut text with a regular expression over characters, as
`llmgpu.bpe.interchange.token_tables` spells it for each engine; on valid UTF-8 it means what the
pattern means over bytes.

Hugging Face's tokenizers, rustbpe and gigatoken train. A vocabulary's merges decide all of it, so
merges are what is compared; rustbpe says only which tokens its merges make, so tokens are compared
there. Only Hugging Face's trainer has a minimum frequency and stops there: each peer is asked for
as many merges as llmgpu found.

Hugging Face's tokenizers, tiktoken and gigatoken tokenize. Each gets the vocabulary as `llmgpu
export` writes it, and is to give the same ids. Text that spells a special token is text to them, as
it is here.
"""

from __future__ import annotations

import binascii
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.engines import package_version
from llmgpu.bench.results import Result
from llmgpu.bench.tokenizers.corpus import Job
from llmgpu.bpe.interchange.token_tables import HUGGINGFACE, TIKTOKEN, expression_of
from llmgpu.bpe.vocabulary.tie import byte_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.processors import usable_processors

# With pattern none a text would be one word, which peers take forever to merge.
EXPRESSIBLE = tuple(HUGGINGFACE)
# Under each of them a pre-token ends after such a newline, no matter what is on either side.
_PIECE_END = re.compile(r"(?<=\S)\n(?=\w)")
TRAINING_PIECE = 1 << 16  # characters that a peer gets at a time; its threads take different pieces
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

Merges = list[tuple[bytes, bytes]]
EncodeFile = Callable[[Path], NDArray[np.uint32]]


@dataclass(frozen=True)
class Peer:
    """A package that llmgpu is compared with, and the patterns that it can cut text with."""

    package: str
    patterns: tuple[str, ...]
    needs: tuple[str, ...] = field(default=(), kw_only=True)  # other packages

    def begin(self, what: str, job: Job) -> Result:
        """Return a result without measurements, whose note says why the peer can't do the job."""
        name = f"{self.package} {package_version(self.package) or ''}".rstrip()
        return replace(job.begin(what, name), peer=True, note=self.why_not(job) or "")

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


def gigatoken_extension() -> Any:
    """Load gigatoken's compiled part, which needs none of what the rest of it imports."""
    package = importlib.util.find_spec("gigatoken")
    assert package is not None and package.origin is not None
    path = str(next(Path(package.origin).parent.glob("gigatoken_rs.*")))
    loader = ExtensionFileLoader("gigatoken_rs", path)
    module = importlib.util.module_from_spec(ModuleSpec("gigatoken_rs", loader, origin=path))
    loader.exec_module(module)
    return module


@dataclass(frozen=True)
class TrainingPeer(Peer):
    """A peer that trains.

    tie: the rule by which it orders equally frequent pairs.
    train: learns from a file, under a pattern, a vocabulary of a size; returns its merges as bytes,
        or the tokens that they make. It writes to the last path if it has vocabulary files.
    compared: "merges" or "tokens".
    """

    tie: str
    train: Callable[[Path, str, int, Path], list[Any]]
    compared: str = "merges"

    def expected(self, vocabulary: Vocabulary) -> list[Any]:
        """Return for a vocabulary of llmgpu what `train` returns."""
        tokens = vocabulary.tokens
        merges = [(tokens[left], tokens[right]) for left, right, _ in vocabulary.merges.tolist()]
        return merges if self.compared == "merges" else [left + right for left, right in merges]


def train_tokenizers(path: Path, pattern: str, vocab_size: int, target: Path) -> Merges:
    """Train Hugging Face's BPE, with all processors, and write its file; return the merges."""
    hf = importlib.import_module("tokenizers")
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = byte_level(pattern)
    alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(pieces(path.read_bytes().decode(), TRAINING_PIECE), trainer)
    tokenizer.save(str(target))
    # Under the tie rule "hf" bytes rank in the order of the characters that stand for them.
    characters = sorted(alphabet)
    byte_of = {characters[rank]: byte for byte, rank in enumerate(byte_ranks("hf").tolist())}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    spelled = ([bytes(map(byte_of.__getitem__, side)) for side in merge] for merge in merges)
    return [(left, right) for left, right in spelled]


def byte_level(pattern: str) -> Any:
    """Return Hugging Face's pre-tokenizer that cuts by a pattern and spells bytes."""
    hf = importlib.import_module("tokenizers")
    pre = hf.pre_tokenizers
    if pattern == "gpt2":
        return pre.ByteLevel(add_prefix_space=False)
    split = pre.Split(hf.Regex(expression_of(pattern, HUGGINGFACE)), behavior="isolated")
    return pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_rustbpe(path: Path, pattern: str, vocab_size: int, target: Path) -> list[bytes]:
    """Train rustbpe, with all processors; return what the merges make, first merge first."""
    tokenizer = importlib.import_module("rustbpe").Tokenizer()
    text = iter(pieces(path.read_bytes().decode(), TRAINING_PIECE))
    tokenizer.train_from_iterator(text, vocab_size, pattern=expression_of(pattern, TIKTOKEN))
    ranks = sorted(tokenizer.get_mergeable_ranks(), key=lambda item: item[1])
    return [bytes(token) for token, _ in ranks[256:]]


def train_gigatoken(path: Path, pattern: str, vocab_size: int, target: Path) -> Merges:
    """Train gigatoken, with all processors; return the merges. It has the pattern gpt2 only."""
    extension = gigatoken_extension()
    with _silence():
        _, merges = extension.train_bpe(str(path), vocab_size, [], "huggingface")
    return [(bytes(left), bytes(right)) for left, right in merges]


TRAINING_PEERS = (
    TrainingPeer("tokenizers", EXPRESSIBLE, "hf", train_tokenizers),
    TrainingPeer("rustbpe", EXPRESSIBLE, "bytes", train_rustbpe, "tokens"),
    TrainingPeer("gigatoken", ("gpt2",), "hf", train_gigatoken),
)


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
        text = pieces(path.read_bytes().decode(), TOKENIZERS_PIECE)
        batch = tokenizer.encode_batch_fast(text, add_special_tokens=False)
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
        text = pieces(path.read_bytes().decode(), TIKTOKEN_PIECE)
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
