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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import Backend
from llmgpu.bpe.training.checkpoint import Checkpoint
from llmgpu.bpe.training.merges import SymbolMerges, translate
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.plan import Plan, make_plan
from llmgpu.bpe.training.result import Trained, TrainingResult, make_vocabularies, stop_reason
from llmgpu.bpe.training.symbols import Spellings, SymbolWords
from llmgpu.bpe.vocabulary.tie import byte_ranks
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.bpe.words.spilling import WordAccumulator
from llmgpu.errors import InputError, LlmgpuError
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus

if TYPE_CHECKING:
    from llmgpu.gpu import Device

READ_BYTES = 8 << 20  # text read at a time


@dataclass(frozen=True, eq=False)
class CountedWords:
    """The distinct words of a corpus, and how much text and how many documents they are from."""

    words: DistinctWords
    text_bytes: int
    documents: int


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
    threads: how many count where there is no GPU; None: see `llmgpu.bpe.words.count_numpy`.

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


def _count(corpus: Corpus, run: _Run) -> CountedWords:
    device = run.plan.counting.device
    words = _count_numpy(corpus, run) if device is None else _count_gpu(corpus, run, device)
    _require_text(corpus)
    return CountedWords(words, corpus.text_bytes, corpus.documents)


def _count_numpy(corpus: Corpus, run: _Run) -> DistinctWords:
    from llmgpu.bpe.words.count_numpy import count_words

    with run.phase("count words"):
        return count_words(corpus, run.options.pattern, run.progress, threads=run.threads)


def _count_gpu(corpus: Corpus, run: _Run, device: Device) -> DistinctWords:
    from llmgpu.bpe.training import batched_gpu as train_gpu
    from llmgpu.bpe.words.count_gpu import GpuWordCounter

    with run.phase("compile kernels"):
        counter = GpuWordCounter(device, run.options.pattern, WordAccumulator())
        train_gpu.compile_kernels(device)
    with run.phase("count words"):
        return counter.count(corpus, run.progress)


def _merge_words(counted: CountedWords, run: _Run, checkpoint: Checkpoint | None) -> Trained:
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
    return Trained(
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
    from llmgpu.bpe.training.numpy_replay import apply_merges

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
        from llmgpu.bpe.training import batched_gpu as train_gpu

        reason = train_gpu.unfit(device, words, wanted["merges"])
        if reason is None:
            return train_gpu.train(device, words, **wanted)
        run.notes.append(f"merged on NumPy, because {reason} on {device.name}")
    from llmgpu.bpe.training import batched_numpy as train_numpy

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


def _recount(corpus: Corpus, run: _Run) -> Trained:
    from llmgpu.bpe.plain import recount_gpu as train_recount

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
            workgroup_slots=options.recount_slots,
        )
    count = len(trained.merges)
    merges = np.column_stack([trained.merges, np.arange(256, 256 + count)]).astype(np.uint32)
    sizes = {options.vocab_size: (count, trained.symbols)}
    return Trained(merges, trained.counts, sizes, corpus.text_bytes, corpus.documents)


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
        piece = corpus.read_into(buffer)
        pieces.append(piece.text)
        starts.append(piece.starts + length)
        length += piece.length
        ended = piece.end
        progress("reading", corpus.bytes_read, corpus.total_bytes)
    return np.concatenate(pieces), np.concatenate(starts)


def _result(trained: Trained, run: _Run) -> TrainingResult:
    with run.phase("make vocabulary"):
        vocabularies = make_vocabularies(trained, run.options)
    largest = vocabularies[run.options.vocab_size]
    return TrainingResult(
        vocabulary=largest,
        vocabularies=vocabularies,
        merge_counts=trained.counts,
        stop_reason=stop_reason(largest.size, len(trained.merges), run.options),
        seconds=run.seconds,
        text_bytes=trained.text_bytes,
        documents=trained.documents,
        distinct_words=trained.distinct_words,
        batches=trained.batches,
        notes=tuple(run.notes),
    )
