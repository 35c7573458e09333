"""Training a vocabulary from a corpus, on whichever backend was chosen.

The phases are: count the words, turn them into symbols (and replay the merges of a seed, or of a
run that is resumed), merge, make the vocabulary. Every backend makes the same merges, so the
vocabulary and its file do not say where it was made.

Several sizes are one run: the merges of a smaller vocabulary are the first of a larger one's, and
so are its ordinary ids. Each file is what a run for that size alone gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import llmgpu
from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.checkpoint import Checkpoint
from llmgpu.bpe.corpus import Corpus
from llmgpu.bpe.merges import SymbolMerges, translate
from llmgpu.bpe.pattern import get_pattern
from llmgpu.bpe.symbols import SeedSymbols, Spellings, SymbolWords, seed_symbols
from llmgpu.bpe.tie import TIE_RULES, byte_ranks
from llmgpu.bpe.vocabulary import Vocabulary, byte_vocabulary, extend_vocabulary
from llmgpu.bpe.word_runs import WordAccumulator
from llmgpu.bpe.words import DistinctWords
from llmgpu.errors import InputError, LlmgpuError
from llmgpu.progress import Progress, no_progress

if TYPE_CHECKING:
    from llmgpu.gpu import Device

MAX_VOCABULARY = 1 << 20
ENGINES = ("batched", "recount")
READ_BYTES = 8 << 20  # text read at a time
NUMPY_BYTES = 256 << 20  # buffers of counting and merging, whatever the text
HOST_BYTES = 192 << 20  # staging memory and what the driver takes


@dataclass(frozen=True)
class TrainingOptions:
    """What to train.

    vocab_size: number of ids at most, special tokens included.
    pattern: name of the pre-tokenizer's pattern.
    min_frequency: a pair that is rarer is not merged.
    special_tokens: they get the last ids, in this order.
    tie: which of two equally frequent pairs is merged first, see `llmgpu.bpe.tie`.
    max_token_length: bytes that a merged token has at most; None for any number.
    smaller_sizes: other sizes to make vocabularies of, each less than `vocab_size`.
    seed: a vocabulary whose tokens keep their ids, and whose merges come first. Its pattern and tie
        rule must be those above.
    engine: "batched" merges the distinct words, many pairs at a time; "recount" counts the whole
        text again for each merge, on a GPU.

    Raises:
        LlmgpuError: an option is out of range, or doesn't go with the seed.
        VocabularyError: training can't go on from the seed.
    """

    vocab_size: int
    pattern: str = "class"
    min_frequency: int = 2
    special_tokens: tuple[str, ...] = ()
    tie: str = "hf"
    max_token_length: int | None = None
    smaller_sizes: tuple[int, ...] = ()
    seed: Vocabulary | None = None
    engine: str = "batched"

    def __post_init__(self) -> None:
        get_pattern(self.pattern)
        if self.tie not in TIE_RULES:
            raise LlmgpuError(f"unknown tie rule {self.tie!r}; there are {', '.join(TIE_RULES)}")
        if self.engine not in ENGINES:
            raise LlmgpuError(f"unknown engine {self.engine!r}; there are {', '.join(ENGINES)}")
        for size in self.sizes:
            self._check_size(size)
        if self.min_frequency < 0:
            raise LlmgpuError(f"the minimum frequency is {self.min_frequency}; use 0 or more")
        if self.max_token_length is not None and self.max_token_length < 1:
            raise LlmgpuError(
                f"the longest token may have {self.max_token_length} bytes; use 1 or more"
            )
        if len(set(self.special_tokens)) != len(self.special_tokens) or "" in self.special_tokens:
            raise LlmgpuError("special tokens must differ from one another and not be empty")
        if self.seed is not None:
            self._check_seed(self.seed)
            _ = self.symbols  # which checks more of it

    @property
    def merges(self) -> int:
        """Merges that make a vocabulary of the full size, those that make no new token apart."""
        return self.new_tokens(self.vocab_size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """All sizes to make vocabularies of, ascending."""
        return tuple(sorted({*self.smaller_sizes, self.vocab_size}))

    @cached_property
    def start(self) -> Vocabulary:
        """The vocabulary that training goes on from."""
        return self.seed or byte_vocabulary(self.pattern, self.tie)

    @cached_property
    def symbols(self) -> SeedSymbols:
        """The tokens of `start` as symbols."""
        return seed_symbols(self.start, byte_ranks(self.tie))

    def facts(self) -> dict[str, Any]:
        """Return what decides the vocabulary, by names for people, as JSON can hold it."""
        return {
            "vocabulary sizes": list(self.sizes),
            "pattern": get_pattern(self.pattern).expression,
            "minimum frequency": self.min_frequency,
            "special tokens": list(self.special_tokens),
            "tie rule": self.tie,
            "longest token": self.max_token_length,
            "seed vocabulary": None if self.seed is None else self.seed.fingerprint,
        }

    def new_tokens(self, size: int) -> int:
        """Return how many tokens merges make until the vocabulary has `size` ids."""
        first = 256 if self.seed is None else self.seed.size
        return size - first - len(self.special_tokens)

    def _check_size(self, size: int) -> None:
        least = size - self.new_tokens(size)
        if size > self.vocab_size:
            raise LlmgpuError(f"the smaller size {size} is more than {self.vocab_size}")
        if least <= size <= MAX_VOCABULARY:
            return
        first = "the 256 bytes" if self.seed is None else f"{self.seed.size} of the seed vocabulary"
        raise LlmgpuError(
            f"the vocabulary size is {size}; it must be from {least} ({first} and "
            f"{len(self.special_tokens)} special tokens) to {MAX_VOCABULARY}"
        )

    def _check_seed(self, seed: Vocabulary) -> None:
        for what, own, given in (
            ("pattern", seed.pattern, self.pattern),
            ("tie rule", seed.tie, self.tie),
        ):
            if own != given:
                raise LlmgpuError(
                    f"the seed vocabulary has {what} {own!r}, which training goes on with: "
                    f"{given!r} is not possible"
                )
        ordinary = [seed.tokens[i] for i in seed.ordinary_ids.tolist()]
        for text in self.special_tokens:
            spelled = text.encode(errors="replace")
            if text in seed.special_tokens or any(spelled in token for token in ordinary):
                raise LlmgpuError(
                    f"special token {text!r} is in the seed vocabulary already, as a token or as a "
                    "part of one: choose another text"
                )


@dataclass(frozen=True, eq=False)
class CountedWords:
    """The distinct words of a corpus, and how much text and how many documents they are from."""

    words: DistinctWords
    text_bytes: int
    documents: int


@dataclass(frozen=True)
class Plan:
    """Where the phases run, and what people should know about it.

    counting, merging: their backends.
    notes: a line each.
    """

    counting: Backend
    merging: Backend
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingResult:
    """Trained vocabularies and how they came about.

    vocabulary: that of the largest size.
    vocabularies: by the size asked for, ascending.
    merge_counts: int64 (merges,), how often each pair occurred when it was merged; merges of a seed
        are left out.
    stop_reason: why there are fewer tokens than asked for; None if there are not.
    seconds: time by phase.
    text_bytes, documents: what was trained on.
    distinct_words: different pre-tokens; None if they were not counted.
    batches: passes that made the merges; None if that is not known.
    notes: what people should know about it, a line each.
    """

    vocabulary: Vocabulary
    vocabularies: dict[int, Vocabulary]
    merge_counts: NDArray[np.int64]
    stop_reason: str | None
    seconds: dict[str, float]
    text_bytes: int
    documents: int
    distinct_words: int | None = None
    batches: int | None = None
    notes: tuple[str, ...] = ()


@dataclass
class _Run:
    """What the phases share: what is asked for, where, and how long each phase took."""

    options: TrainingOptions
    plan: Plan
    progress: Progress
    threads: int | None
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


@dataclass(frozen=True, eq=False)
class _Trained:
    """All merges of a run, and for each size how many of them it has and the text in its tokens.

    merges: uint32 (M, 3), ids of the left part, the right part and the result.
    counts: int64 (M,).
    sizes: merges and symbols of the text by vocabulary size.
    """

    merges: NDArray[np.uint32]
    counts: NDArray[np.int64]
    sizes: dict[int, tuple[int, int]]
    text_bytes: int
    documents: int
    distinct_words: int | None = None
    batches: int | None = None


def make_plan(options: TrainingOptions, backend: Backend) -> Plan:
    """Choose where each phase runs.

    Raises LlmgpuError if the engine can't do what the options ask for.
    """
    if options.engine == "recount":
        _check_recount(options, backend)
        return Plan(backend, backend)
    if (
        backend.device is not None
        and seed_symbols(options.start, byte_ranks(options.tie)).unreached
    ):
        note = (
            "the seed has tokens that no merge makes: merging on NumPy, which can reuse their ids"
        )
        return Plan(backend, NUMPY, (note,))
    return Plan(backend, backend)


def train_vocabulary(
    source: Corpus | CountedWords,
    options: TrainingOptions,
    backend: Backend,
    progress: Progress = no_progress,
    *,
    checkpoint: Checkpoint | None = None,
    on_counted: Callable[[CountedWords], None] | None = None,
    threads: int | None = None,
) -> TrainingResult:
    """Train a byte-level BPE vocabulary on a corpus, or on words counted before.

    checkpoint: where to go on from, and to record what is done.
    on_counted: takes the counted words before they are merged.
    threads: how many count where there is no GPU; None: see `llmgpu.bpe.count_numpy`.

    Raises:
        InputError: the corpus is empty or can't be read.
        DeviceError: it does not fit into the adapter's memory.
        LlmgpuError: the engine can't do what the options ask for.
    """
    run = _Run(options, make_plan(options, backend), progress, threads)
    if options.engine == "recount":
        if not isinstance(source, Corpus) or checkpoint or on_counted:
            raise LlmgpuError(
                "the recount engine has no word counts to load, save or resume from: use the "
                "batched one"
            )
        return _result(_recount(source, run), run)
    counted = source if isinstance(source, CountedWords) else _count(source, run)
    if on_counted is not None:
        on_counted(counted)
    return _result(_merge_words(counted, run, checkpoint), run)


def count_corpus(
    corpus: Corpus,
    options: TrainingOptions,
    backend: Backend,
    progress: Progress = no_progress,
    *,
    threads: int | None = None,
) -> CountedWords:
    """Count the words of a corpus, and train nothing; `threads` as in `train_vocabulary`.

    Raises InputError if the corpus is empty or can't be read.
    """
    return _count(corpus, _Run(options, make_plan(options, backend), progress, threads))


def estimate_memory(text_bytes: int, backend: Backend, engine: str = "batched") -> tuple[int, int]:
    """Estimate the bytes of memory that training takes, on the host and on the device."""
    # The distinct words of a text grow slower than it; this is the rate of a small one.
    words_bytes = min(text_bytes, 64 << 20) // 2 + text_bytes // 40
    if backend.device is None:
        return NUMPY_BYTES + 30 * words_bytes, 0
    if engine == "batched":
        from llmgpu.bpe import count_gpu, train_gpu

        host = HOST_BYTES + 12 * words_bytes
        on_device = count_gpu.gpu_bytes(words_bytes) + train_gpu.gpu_bytes(words_bytes)
    else:
        from llmgpu.bpe import train_recount

        host = HOST_BYTES + 2 * text_bytes
        on_device = train_recount.gpu_bytes(text_bytes)
    return host + (on_device if backend.is_software else 0), on_device


def _count(corpus: Corpus, run: _Run) -> CountedWords:
    device = run.plan.counting.device
    words = _count_numpy(corpus, run) if device is None else _count_gpu(corpus, run, device)
    _require_text(corpus)
    return CountedWords(words, corpus.text_bytes, corpus.documents)


def _count_numpy(corpus: Corpus, run: _Run) -> DistinctWords:
    from llmgpu.bpe.count_numpy import count_words

    with run.phase("count words"):
        return count_words(corpus, run.options.pattern, run.progress, threads=run.threads)


def _count_gpu(corpus: Corpus, run: _Run, device: Device) -> DistinctWords:
    from llmgpu.bpe import train_gpu
    from llmgpu.bpe.count_gpu import GpuWordCounter

    with run.phase("compile kernels"):
        counter = GpuWordCounter(device, run.options.pattern, WordAccumulator())
        train_gpu.compile_kernels(device)
    with run.phase("count words"):
        return counter.count(corpus, run.progress)


def _merge_words(counted: CountedWords, run: _Run, checkpoint: Checkpoint | None) -> _Trained:
    """Turn words into symbols, replay what was merged before, and merge on from there."""
    seed = run.options.symbols
    pairs, counts = checkpoint.read_merges() if checkpoint else _no_merges()
    spellings = seed.spellings()
    with run.phase("make symbols"):
        words = seed.words(counted.words, byte_ranks(run.options.tie))
        words = _replay(words, seed.merges, run.progress)
        merges = np.column_stack([pairs, spellings.results(pairs)])
        rest = _replay(words, merges, run.progress)
    with run.phase("merge"):
        merged = _merge(rest, run, spellings if seed.unreached else None, checkpoint)
    pairs = np.concatenate([pairs, merged.pairs])
    results = seed.spellings().results(pairs)
    with run.phase("measure smaller sizes"):
        merges = np.column_stack([pairs, results])
        sizes = _measure_sizes(words, merges, merged.symbols, run)
    return _Trained(
        translate(pairs, results, seed.ids),
        np.concatenate([counts, merged.counts]),
        sizes,
        counted.text_bytes,
        counted.documents,
        len(counted.words.counts),
        merged.batches,
    )


def _no_merges() -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    return np.empty((0, 2), np.uint32), np.empty(0, np.int64)


def _replay(words: SymbolWords, merges: NDArray[np.uint32], progress: Progress) -> SymbolWords:
    from llmgpu.bpe.train_numpy_replay import apply_merges

    return apply_merges(words, merges, progress) if len(merges) else words


def _merge(
    words: SymbolWords, run: _Run, spellings: Spellings | None, checkpoint: Checkpoint | None
) -> SymbolMerges:
    """Learn the merges that are still missing."""
    options = run.options
    wanted: dict[str, Any] = {
        "merges": options.start.size + options.merges - len(words.lengths),
        "min_frequency": options.min_frequency,
        "max_token_length": options.max_token_length,
        "progress": run.progress,
        "on_merges": checkpoint.add_merges if checkpoint else None,
    }
    device = run.plan.merging.device
    if device is not None:
        from llmgpu.bpe import train_gpu

        reason = train_gpu.unfit(device, words, wanted["merges"])
        if reason is None:
            return train_gpu.train(device, words, **wanted)
        run.notes.append(f"merged on NumPy, because {reason} on {device.name}")
    from llmgpu.bpe import train_numpy

    return train_numpy.train(words, spellings=spellings, **wanted)


def _measure_sizes(
    words: SymbolWords, merges: NDArray[np.uint32], symbols: int, run: _Run
) -> dict[int, tuple[int, int]]:
    """Return, for each size, how many merges it has and how many symbols they leave of the text.

    words: before the merges. merges: uint32 (M, 3), in symbols. symbols: left by all of them.
    """
    # Occurrences of a pair (a, a) overlap, so the counts of merges don't tell what they leave.
    made = np.cumsum(merges[:, 2] >= run.options.start.size)
    measured: dict[int, tuple[int, int]] = {}
    done = 0
    for size in run.options.sizes:
        wanted = run.options.new_tokens(size)
        count = int(np.searchsorted(made, wanted)) + 1 if wanted else 0
        if count >= len(merges):
            measured[size] = len(merges), symbols
        else:
            words = _replay(words, merges[done:count], run.progress)
            measured[size], done = (count, words.total), count
    return measured


def _recount(corpus: Corpus, run: _Run) -> _Trained:
    from llmgpu.bpe import train_recount

    device, options = run.plan.merging.device, run.options
    assert device is not None
    with run.phase("read"):
        most = train_recount.most_text_bytes(device)
        text, document_starts = _read_all(corpus, most, run.progress)
        _require_text(corpus)
        train_recount.check_fits(device, len(text))
    with run.phase("merge"):
        trained = train_recount.train(
            device,
            text,
            document_starts,
            pattern=options.pattern,
            merges=options.merges,
            byte_ranks=byte_ranks(options.tie),
            min_frequency=options.min_frequency,
            progress=run.progress,
        )
    count = len(trained.merges)
    merges = np.column_stack([trained.merges, np.arange(256, 256 + count)]).astype(np.uint32)
    sizes = {options.vocab_size: (count, trained.symbols)}
    return _Trained(merges, trained.counts, sizes, corpus.text_bytes, corpus.documents)


def _check_recount(options: TrainingOptions, backend: Backend) -> None:
    if backend.device is None:
        raise LlmgpuError(
            "the recount engine needs a GPU adapter: use --device gpu, or the batched engine"
        )
    for what, asked in (
        ("go on from a seed vocabulary", options.seed is not None),
        ("bound the length of tokens", options.max_token_length is not None),
        ("make several sizes", bool(options.smaller_sizes)),
    ):
        if asked:
            raise LlmgpuError(f"the recount engine can't {what}: use the batched one")


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


def _result(trained: _Trained, run: _Run) -> TrainingResult:
    with run.phase("make vocabulary"):
        vocabularies = {size: _vocabulary(trained, size, run.options) for size in run.options.sizes}
    largest = vocabularies[run.options.vocab_size]
    return TrainingResult(
        vocabulary=largest,
        vocabularies=vocabularies,
        merge_counts=trained.counts,
        stop_reason=_stop_reason(largest.size, len(trained.merges), run.options),
        seconds=run.seconds,
        text_bytes=trained.text_bytes,
        documents=trained.documents,
        distinct_words=trained.distinct_words,
        batches=trained.batches,
        notes=tuple(run.notes),
    )


def _vocabulary(trained: _Trained, size: int, options: TrainingOptions) -> Vocabulary:
    count, symbols = trained.sizes[size]
    training: dict[str, int | float | str] = {
        "text_bytes": trained.text_bytes,
        "documents": trained.documents,
        "tokens": symbols,
        "bytes_per_token": round(trained.text_bytes / symbols, 6),
        "min_frequency": options.min_frequency,
        "tool": f"llmgpu {llmgpu.__version__}",
    }
    if options.max_token_length is not None:
        training["max_token_length"] = options.max_token_length
    if options.seed is not None:
        training["seed_fingerprint"] = options.seed.fingerprint
    return extend_vocabulary(
        options.start,
        trained.merges[:count],
        special_tokens=options.special_tokens,
        training=training,
    )


def _stop_reason(size: int, merges: int, options: TrainingOptions) -> str | None:
    if size == options.vocab_size:
        return None
    short = f" of up to {options.max_token_length} bytes" if options.max_token_length else ""
    return (
        f"{options.vocab_size} tokens asked for, {size} made: after {merges} merges no pair of "
        f"tokens{short} occurs {max(options.min_frequency, 1)} times or more"
    )
