"""Training a vocabulary from a corpus, on whichever backend was chosen.

Every backend makes the same merges, so the vocabulary and its file do not say where it was made.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import llmgpu
from llmgpu.backend import Backend
from llmgpu.bpe.corpus import Corpus
from llmgpu.bpe.merges import TrainedMerges
from llmgpu.bpe.pattern import get_pattern
from llmgpu.bpe.tie import TIE_RULES, byte_ranks
from llmgpu.bpe.vocabulary import Vocabulary, build_vocabulary
from llmgpu.errors import InputError, LlmgpuError
from llmgpu.progress import Progress, no_progress

MAX_VOCABULARY = 1 << 20
READ_BYTES = 8 << 20  # text read at a time
NUMPY_BYTES = 256 << 20  # buffers of counting and merging, whatever the text


@dataclass(frozen=True)
class TrainingOptions:
    """What to train.

    vocab_size: number of ids at most, special tokens included.
    pattern: name of the pre-tokenizer's pattern.
    min_frequency: a pair that is rarer is not merged.
    special_tokens: they get the last ids, in this order.
    tie: which of two equally frequent pairs is merged first, see `llmgpu.bpe.tie`.

    Raises:
        LlmgpuError: an option is out of range.
    """

    vocab_size: int
    pattern: str = "class"
    min_frequency: int = 2
    special_tokens: tuple[str, ...] = ()
    tie: str = "hf"

    def __post_init__(self) -> None:
        get_pattern(self.pattern)
        least = 256 + len(self.special_tokens)
        if not least <= self.vocab_size <= MAX_VOCABULARY:
            raise LlmgpuError(
                f"the vocabulary size is {self.vocab_size}; it must be from {least} (the 256 bytes "
                f"and {len(self.special_tokens)} special tokens) to {MAX_VOCABULARY}"
            )
        if self.min_frequency < 0:
            raise LlmgpuError(f"the minimum frequency is {self.min_frequency}; use 0 or more")
        if self.tie not in TIE_RULES:
            raise LlmgpuError(f"unknown tie rule {self.tie!r}; there are {', '.join(TIE_RULES)}")
        if len(set(self.special_tokens)) != len(self.special_tokens) or "" in self.special_tokens:
            raise LlmgpuError("special tokens must differ from one another and not be empty")

    @property
    def merges(self) -> int:
        """Merges that make a vocabulary of the full size."""
        return self.vocab_size - 256 - len(self.special_tokens)


@dataclass(frozen=True)
class TrainingResult:
    """A trained vocabulary and how it came about.

    merge_counts: int64 (merges,), how often each pair occurred when it was merged.
    stop_reason: why there are fewer tokens than asked for; None if there are not.
    seconds: time by phase.
    text_bytes: bytes trained on.
    """

    vocabulary: Vocabulary
    merge_counts: NDArray[np.int64]
    stop_reason: str | None
    seconds: dict[str, float]
    text_bytes: int


def train_vocabulary(
    corpus: Corpus,
    options: TrainingOptions,
    backend: Backend,
    progress: Progress = no_progress,
) -> TrainingResult:
    """Train a byte-level BPE vocabulary on a corpus.

    Raises:
        InputError: the corpus is empty or can't be read.
        DeviceError: it does not fit into the adapter's memory.
    """
    train = _train_numpy if backend.device is None else _train_recount
    seconds: dict[str, float] = {}
    trained = train(corpus, options, backend, progress, seconds)
    count = len(trained.merges)
    training: dict[str, int | float | str] = {
        "text_bytes": corpus.text_bytes,
        "documents": corpus.documents,
        "tokens": trained.symbols,
        "bytes_per_token": round(corpus.text_bytes / trained.symbols, 6),
        "min_frequency": options.min_frequency,
        "tool": f"llmgpu {llmgpu.__version__}",
    }
    vocabulary = build_vocabulary(
        trained.merges,
        pattern=options.pattern,
        tie=options.tie,
        special_tokens=options.special_tokens,
        training=training,
    )
    return TrainingResult(
        vocabulary, trained.counts, _stop_reason(count, options), seconds, corpus.text_bytes
    )


def estimate_memory(text_bytes: int, backend: Backend) -> tuple[int, int]:
    """Estimate the bytes of memory that training takes, on the host and on the device."""
    if backend.device is None:
        # The distinct words of a text grow slower than it; this is the rate of a small one.
        return NUMPY_BYTES + min(text_bytes, 64 << 20) * 12 + text_bytes, 0
    from llmgpu.bpe.train_recount import gpu_bytes

    on_device = gpu_bytes(text_bytes)
    staging = 64 << 20
    return 2 * text_bytes + staging + (on_device if backend.is_software else 0), on_device


def _stop_reason(merges: int, options: TrainingOptions) -> str | None:
    if merges == options.merges:
        return None
    return (
        f"{options.vocab_size} tokens asked for, {options.vocab_size - options.merges + merges} "
        f"made: after {merges} merges no pair of tokens occurs "
        f"{max(options.min_frequency, 1)} times or more"
    )


def _train_numpy(
    corpus: Corpus,
    options: TrainingOptions,
    backend: Backend,
    progress: Progress,
    seconds: dict[str, float],
) -> TrainedMerges:
    from llmgpu.bpe import train_numpy
    from llmgpu.bpe.words import count_words

    start = time.perf_counter()
    words = count_words(corpus, options.pattern, progress)
    _require_text(corpus)
    seconds["count words"] = time.perf_counter() - start
    start = time.perf_counter()
    trained = train_numpy.train(
        words,
        merges=options.merges,
        tie_ranks=byte_ranks(options.tie),
        min_frequency=options.min_frequency,
        progress=progress,
    )
    seconds["merge"] = time.perf_counter() - start
    return trained


def _train_recount(
    corpus: Corpus,
    options: TrainingOptions,
    backend: Backend,
    progress: Progress,
    seconds: dict[str, float],
) -> TrainedMerges:
    from llmgpu.bpe import train_recount

    assert backend.device is not None
    start = time.perf_counter()
    text, document_starts = _read_all(
        corpus, train_recount.most_text_bytes(backend.device), progress
    )
    _require_text(corpus)
    train_recount.check_fits(backend.device, len(text))
    seconds["read"] = time.perf_counter() - start
    start = time.perf_counter()
    trained = train_recount.train(
        backend.device,
        text,
        document_starts,
        pattern=options.pattern,
        merges=options.merges,
        byte_ranks=byte_ranks(options.tie),
        min_frequency=options.min_frequency,
        progress=progress,
    )
    seconds["merge"] = time.perf_counter() - start
    return trained


def _require_text(corpus: Corpus) -> None:
    if corpus.text_bytes == 0:
        raise InputError("the corpus is empty: there is no text to train on")


def _read_all(
    corpus: Corpus, most: int, progress: Progress
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return text and document starts of a corpus, or of just more than `most` bytes of it."""
    pieces: list[NDArray[np.uint8]] = []
    starts: list[NDArray[np.int64]] = []
    length, ended = 0, False
    while not ended and length <= most:
        buffer = np.empty(READ_BYTES, np.uint8)
        fill = corpus.read_into(buffer)
        pieces.append(buffer[: fill.length])
        starts.append(fill.document_starts + length)
        length += fill.length
        ended = fill.end
        progress("reading", corpus.bytes_read, corpus.total_bytes)
    return np.concatenate(pieces), np.concatenate(starts)
