"""Peers: other programs that do the same work, measured if they are installed.

Most peers cut text by a regular expression over characters. The module
`llmgpu.bpe.interchange.token_tables` has the spellings of a pattern's expression for other tools;
on valid UTF-8 the expression matches the same text as the pattern over bytes.

Hugging Face's tokenizers, rustbpe and gigatoken train. Merges determine a vocabulary, so merges are
compared. rustbpe returns only the tokens of merges, so tokens are compared instead. Only Hugging
Face's trainer stops at a minimum frequency, so each peer trains as many merges as llmgpu found.

Hugging Face's tokenizers, tiktoken and gigatoken tokenize. Each peer reads the vocabulary from a
file of `llmgpu export`, and must return the same ids. Peers treat the spelling of a special token
as text, as llmgpu does.

PyTorch runs a model of its own operations, in eager mode, on a CPU or a GPU.
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
from dataclasses import dataclass, field
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.engines import Engine, package_version, timed
from llmgpu.bench.results import KernelTimes, Result
from llmgpu.bpe.interchange.token_tables import HUGGINGFACE, TIKTOKEN, expression_of
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.machine import usable_processors

# Patterns with an expression for peers. With pattern none, a text would be one word, whose merges
# would take peers hours.
EXPRESSIBLE = tuple(HUGGINGFACE)
# The end of a piece: a newline after which a pre-token ends under every pattern.
_PIECE_END = re.compile(r"(?<=\S)\n(?=\w)")
TRAINING_PIECE = 1 << 16  # characters of a piece; threads of a peer process different pieces
# Characters of a piece in a batch: the fastest of 2**8 to 2**20, measured on two processors.
TOKENIZERS_PIECE = 1 << 12
TIKTOKEN_PIECE = 1 << 18
# gigatoken's name for each pattern. gigatoken's olmo3 is Llama 3's pattern, of which rustbpe is
# another spelling.
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
    """Another program: the name of its package, and the patterns that the program supports."""

    package: str
    patterns: tuple[str, ...]
    # Names of other packages that must be installed.
    needs: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def name(self) -> str:
        """Package and version, for tables."""
        return f"{self.package} {package_version(self.package) or ''}".rstrip()

    def why_not(self, pattern: str, *, is_utf8: bool) -> str | None:
        """Return the reason why the peer can't do the job, as a line; None if it can."""
        packages = (self.package, *self.needs)
        if None in map(package_version, packages):
            return f"not installed: pip install {' '.join(packages)}"
        if pattern not in self.patterns:
            return f"left out: it doesn't know pattern {pattern}"
        if not is_utf8:
            return "left out: the text is not UTF-8, which it can't read"
        return None


def pieces(text: str, characters: int) -> list[str]:
    """Cut a text, at ends of pre-tokens, into pieces of at least `characters` characters."""
    found: list[str] = []
    begin = 0
    while begin < len(text):
        newline = _PIECE_END.search(text, begin + characters)
        end = len(text) if newline is None else newline.end()
        found.append(text[begin:end])
        begin = end
    return found


def gigatoken_extension() -> Any:
    """Load gigatoken's compiled module without importing gigatoken's Python modules."""
    package = importlib.util.find_spec("gigatoken")
    assert package is not None and package.origin is not None
    path = str(next(Path(package.origin).parent.glob("gigatoken_rs.*")))
    loader = ExtensionFileLoader("gigatoken_rs", path)
    module = importlib.util.module_from_spec(ModuleSpec("gigatoken_rs", loader, origin=path))
    loader.exec_module(module)
    return module


@dataclass(frozen=True)
class TrainingPeer(Peer):
    """A peer that trains vocabularies.

    tie: the rule by which the peer orders equally frequent pairs.
    train: called with the corpus file, a pattern, a vocabulary size and an output file. Returns the
        merges as pairs of bytes, or the token that each merge makes. A peer that has a file format
        for vocabularies also writes the output file.
    compared: "merges" if `train` returns pairs of bytes, "tokens" if it returns tokens.
    """

    tie: str
    train: Callable[[Path, str, int, Path], list[Any]]
    compared: str = "merges"

    def expected(self, vocabulary: Vocabulary) -> list[Any]:
        """Return the merges of a vocabulary in the form that `train` returns."""
        tokens = vocabulary.tokens
        merges = [(tokens[left], tokens[right]) for left, right, _ in vocabulary.merges.tolist()]
        return merges if self.compared == "merges" else [left + right for left, right in merges]


def train_tokenizers(path: Path, pattern: str, vocab_size: int, target: Path) -> Merges:
    """Train Hugging Face's BPE with all processors, and write a file; return the merges."""
    hf = importlib.import_module("tokenizers")
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = byte_level(pattern)
    alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(pieces(path.read_bytes().decode(), TRAINING_PIECE), trainer)
    tokenizer.save(str(target))
    # The tie rule "hf" orders bytes by the characters that spell the bytes.
    characters = sorted(alphabet)
    byte_of = {characters[rank]: byte for byte, rank in enumerate(byte_ranks("hf").tolist())}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    spelled = ([bytes(map(byte_of.__getitem__, side)) for side in merge] for merge in merges)
    return [(left, right) for left, right in spelled]


def byte_level(pattern: str) -> Any:
    """Return Hugging Face's pre-tokenizer that cuts by a pattern and maps bytes to characters."""
    hf = importlib.import_module("tokenizers")
    pre = hf.pre_tokenizers
    if pattern == "gpt2":
        return pre.ByteLevel(add_prefix_space=False)
    split = pre.Split(hf.Regex(expression_of(pattern, HUGGINGFACE)), behavior="isolated")
    return pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_rustbpe(path: Path, pattern: str, vocab_size: int, target: Path) -> list[bytes]:
    """Train rustbpe with all processors; return the tokens of the merges, first merge first."""
    tokenizer = importlib.import_module("rustbpe").Tokenizer()
    text = iter(pieces(path.read_bytes().decode(), TRAINING_PIECE))
    tokenizer.train_from_iterator(text, vocab_size, pattern=expression_of(pattern, TIKTOKEN))
    ranks = sorted(tokenizer.get_mergeable_ranks(), key=lambda item: item[1])
    return [bytes(token) for token, _ in ranks[256:]]


def train_gigatoken(path: Path, pattern: str, vocab_size: int, target: Path) -> Merges:
    """Train gigatoken on all processors; return the merges.

    pattern: without effect, because gigatoken only has the pattern gpt2. target: not written.
    """
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
    """Discard the output of native code, which would mix with results on stdout."""
    kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    try:
        with open(os.devnull, "wb") as nowhere:
            for descriptor in kept:
                os.dup2(nowhere.fileno(), descriptor)
        yield
    finally:
        for descriptor, copy in kept.items():
            os.dup2(copy, descriptor)
            os.close(copy)


@dataclass(frozen=True)
class TokenizingPeer(Peer):
    """A peer that tokenizes.

    format: the peer's format of vocabularies, a name in `llmgpu.bpe.interchange.formats`.
    open: returns an encoder for a vocabulary's file and a pattern's name. The encoder returns the
        ids of a UTF-8 file, uint32 (tokens,).
    """

    format: str
    open: Callable[[Path, str], EncodeFile]


def open_tokenizers(vocabulary: Path, pattern: str) -> EncodeFile:
    """Return an encoder of Hugging Face's tokenizers, which uses all processors.

    pattern: not used, because the vocabulary's file has the pattern.
    """
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(vocabulary))
    tokenizer.encode_special_tokens = True

    def encode(path: Path) -> NDArray[np.uint32]:
        text = pieces(path.read_bytes().decode(), TOKENIZERS_PIECE)
        batch = tokenizer.encode_batch_fast(text, add_special_tokens=False)
        return np.concatenate([np.array(piece.ids, np.uint32) for piece in batch])

    return encode


def open_tiktoken(vocabulary: Path, pattern: str) -> EncodeFile:
    """Return an encoder of tiktoken, which uses all processors."""
    lines = (line.split() for line in vocabulary.read_bytes().splitlines())
    ranks = {binascii.a2b_base64(token): int(rank) for token, rank in lines}
    regex, threads = expression_of(pattern, TIKTOKEN), usable_processors()
    module = importlib.import_module("tiktoken")
    encoding = module.Encoding(
        "llmgpu-bench", pat_str=regex, mergeable_ranks=ranks, special_tokens={}
    )

    def encode(path: Path) -> NDArray[np.uint32]:
        text = pieces(path.read_bytes().decode(), TIKTOKEN_PIECE)
        batch = encoding.encode_ordinary_batch(text, num_threads=threads)
        return np.concatenate([np.array(piece, np.uint32) for piece in batch])

    return encode


def open_gigatoken(vocabulary: Path, pattern: str) -> EncodeFile:
    """Return an encoder of gigatoken, which reads files itself and uses all processors."""
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


# PyTorch

CACHE_BYTES = 256 << 20  # larger than any cache


@dataclass(frozen=True)
class Torch:
    """PyTorch on a device, "cpu" or "cuda".

    name: PyTorch's name in tables.
    """

    module: Any
    device: str
    name: str

    @classmethod
    def beside(cls, engine: Engine) -> Torch | None:
        """Return torch for the comparison with an engine; None if torch is not installed.

        TF32 is switched off. Torch runs on cuda if cuda is available and the engine is an NVIDIA
        GPU, otherwise on the CPU.
        """
        try:
            module = importlib.import_module("torch")
        except ImportError:
            return None
        module.set_float32_matmul_precision("highest")
        module.backends.cudnn.allow_tf32 = False
        version = package_version("torch")
        if "NVIDIA" in engine.name and module.cuda.is_available():
            return cls(module, "cuda", f"torch {version} ({module.cuda.get_device_name()})")
        return cls(module, "cpu", f"torch {version} (cpu)")

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    def tensor(self, array: NDArray[Any]) -> Any:
        """Return a tensor on the device. uint32 ids become int64, since torch needs signed ids.

        On a CPU, tensor and array share their memory, unless the array is uint32.
        """
        if array.dtype == np.uint32:
            array = array.astype(np.int64)
        return self.module.from_numpy(array).to(self.device)

    def time_run(self, function: Callable[[], Any]) -> tuple[KernelTimes, Any]:
        """Call a function; return the seconds, by cuda's clock on cuda, and the answer."""
        if not self.is_cuda:
            seconds, answer = timed(function)
            return KernelTimes({}, seconds), answer
        start, end = (self.module.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        answer = function()
        end.record()
        end.synchronize()
        return KernelTimes({}, float(start.elapsed_time(end)) / 1e3), answer


def missing_torch(what: str, job: str) -> Result:
    """Return the result that reports torch as not installed."""
    return Result(what, "torch", peer=True, job=job, note="not installed: pip install torch")
