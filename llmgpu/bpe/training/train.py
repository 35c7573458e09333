"""Training a vocabulary from a corpus, on the chosen backend.

The phases are: count the words, convert words to symbols (and replay the merges of a seed, or of a
resumed run), merge, make the vocabulary. Every backend makes the same merges, so the vocabulary and
its file do not depend on the backend.

The memory is estimated before it is needed:

- The counts of words are added up in memory until they fill a share of the free memory, and from
  then on in files. Merging needs all words in memory.
- While a text is counted, its number of distinct words is extrapolated from the text read so far.
  Words repeat, so the estimate is too high, unless later text is of another kind. After the whole
  text has been counted, the estimate is close.

One execution trains several sizes: the merges of a smaller vocabulary are the first merges of a
larger one, and its ordinary ids are the first ids. The file of each size equals the file that
training for this size alone writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.pretokens.custom_regex import HostPattern
from llmgpu.bpe.training import merge_host
from llmgpu.bpe.training.checkpoint import Checkpoint
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import (
    Merges,
    MergeTask,
    Spellings,
    SymbolWords,
    check_logged,
    check_replayed,
    translate,
)
from llmgpu.bpe.vocabulary.building import byte_ranks, extend_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import FEW_NODES, Vocabulary
from llmgpu.bpe.words import count_host
from llmgpu.bpe.words.count_host import count_words
from llmgpu.bpe.words.counts_file import load_counts, save_counts
from llmgpu.bpe.words.distinct_words import WordCounts
from llmgpu.bpe.words.spilling import WordAccumulator, default_memory_bytes
from llmgpu.errors import CapacityError, InputError, LlmgpuError
from llmgpu.input_files import naming, number_of
from llmgpu.machine import USUAL_GROWTH, Costs, Memory, OnMemory, no_memory
from llmgpu.progress import Progress, no_progress
from llmgpu.spelling import spelled
from llmgpu.text.corpus import Corpus
from llmgpu.version import __version__

READ_BYTES = 8 << 20  # bytes of text read at a time
HOST_BYTES = 192 << 20  # memory of the driver, and memory for transfers to the device
_UPLOAD = Costs(fixed=HOST_BYTES, per_byte=16, per_word=64)
_WRITING_BYTES, _NODE_BYTES, _TOKEN_COPIES = 16 << 20, 60, 4


@dataclass(frozen=True)
class TrainingResult:
    """Trained vocabularies, and figures of their training.

    vocabulary: the vocabulary of the largest size.
    vocabularies: by requested size, ascending.
    merge_counts: int64 (merges,), occurrences of each pair when it was merged, without the merges
        of a seed.
    stop_reason: reason for fewer tokens than requested; None if all tokens were made.
    seconds: time by phase.
    text_bytes, documents: size of the text.
    distinct_words: number of distinct words; None if the engine does not count words.
    batches: number of merging passes; None if unknown.
    notes: messages to the user, one line each.
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


class Training:
    """One training: its options, the backend of each phase, and the time of each phase.

    merging: the backend that merges.
    notes: messages to the user about the backends, one line each.
    """

    def __init__(
        self,
        options: TrainingOptions,
        backend: Backend,
        progress: Progress = no_progress,
        on_memory: OnMemory = no_memory,
    ) -> None:
        """Choose the backend of each phase; LlmgpuError if the engine lacks an option.

        on_memory: called with the estimate of the training's memory, whenever the estimate changes.
        """
        self._options, self.merging = options, backend
        self._progress, self._on_memory = progress, on_memory
        self._needed = Memory(0)  # the latest estimate of memory
        self._seconds: dict[str, float] = {}
        self._notes: list[str] = []
        self.notes: tuple[str, ...] = ()
        # A device can't cut text by expressions, so the CPU counts words under such a pattern.
        self._counting_device = None if isinstance(options.cut, HostPattern) else backend.device
        if options.engine == "recount":
            _check_recount(options, backend)
        elif backend.device is not None and options.symbols.unreached:
            self.merging = NUMPY
            self.notes = (
                "the seed has tokens that no merge makes: merging on the CPU, which reuses their "
                "ids",
            )

    def run(
        self,
        source: Corpus | WordCounts,
        *,
        checkpoint: Checkpoint | None = None,
        counts_output: str | Path | None = None,
    ) -> TrainingResult:
        """Train a byte-level BPE vocabulary on a corpus, or on words counted before.

        checkpoint: records the words and the merges. Words that it already has are not counted
            again, and merges that it already has are replayed, not learned again.
        counts_output: file of word counts to write before merging.

        Raises:
            InputError: the corpus is empty or can't be read, or a pre-token is too long.
            OutputError: the checkpoint, the counts or the temporary file of spilled words can't be
                written.
            DeviceError: the training does not fit into the adapter's memory.
            LlmgpuError: the engine does not support the options.
        """
        if self._options.engine == "recount":
            if not isinstance(source, Corpus) or checkpoint or counts_output:
                raise LlmgpuError(
                    "the recount engine has no word counts to load, save or resume from: use the "
                    "batched one"
                )
            return self._recount(source)
        if checkpoint and checkpoint.has_counts:
            source = load_counts(checkpoint.counts_path)
        counts = source if isinstance(source, WordCounts) else self.count(source)
        text_bytes, count = counts.words.text_bytes, len(counts.words)
        _require_text(text_bytes)
        if checkpoint and not checkpoint.has_counts:
            save_counts(checkpoint.counts_path, counts)
        if counts_output is not None:
            save_counts(counts_output, counts)
        self._tell_memory(self.words_memory(count, len(counts.words.data)))
        facts = {"text_bytes": text_bytes, "documents": counts.documents, "distinct_words": count}
        with self._phase("make symbols"):
            words = self._options.symbols.words(counts.words, byte_ranks(self._options.tie))
        del source, counts  # frees memory for merging
        return self._merge(words, facts, checkpoint)

    def count(
        self, corpus: Corpus, *, merges: bool = True, may_be_empty: bool = False
    ) -> WordCounts:
        """Count the words of a corpus; raises InputError as `run` does.

        merges: whether the words will be merged afterwards, so that the estimate of memory includes
            merging.
        may_be_empty: accept a corpus without text, such as one share of a larger corpus (`--part`).
        """
        device, options = self._counting_device, self._options

        # Report the memory for the words so far, extrapolated to the rest of the text.
        def on_words(words: int, nbytes: int) -> None:
            if (left := corpus.left) is not None:
                memory, likely = (
                    self.words_memory(words * times, nbytes * times, merges=merges)
                    for times in (left, left**USUAL_GROWTH)
                )
                self._tell_memory(memory._replace(likely=likely.host) if left > 1 else memory)

        if device is None:
            with self._phase("count words"):
                words = count_words(
                    corpus, options.cut, self._progress, threads=options.threads, on_words=on_words
                )
        else:
            from llmgpu.bpe.training import batched_gpu
            from llmgpu.bpe.words.count_gpu import GpuWordCounter

            # Compile the merging kernels while the words are counted.
            with ThreadPoolExecutor(1, thread_name_prefix="llmgpu-compile-merging") as thread:
                with self._phase("compile kernels"):
                    counter = GpuWordCounter(device, options.cut, WordAccumulator())
                compiling = thread.submit(batched_gpu.compile_kernels, device) if merges else None
                with self._phase("count words"):
                    words = counter.count(corpus, self._progress, on_words)
            if compiling is not None:
                compiling.result()
        # All words are known: report the memory for them.
        self._tell_memory(self.words_memory(len(words), len(words.data), merges=merges))
        if not may_be_empty:
            _require_text(corpus.text_bytes)
        separators, unicode = corpus.options.separators, options.unicode
        return WordCounts(words, corpus.documents, options.pattern, separators, unicode=unicode)

    def words_memory(self, words: float, nbytes: float, *, merges: bool = True) -> Memory:
        """Estimate the memory for counting distinct words, and for merging them if `merges` is set.

        words: number of distinct words. nbytes: bytes of all distinct words.
        """
        counting = self._counting_memory(words, nbytes)
        merging = self._merging_memory(words, nbytes) if merges else Memory(0)
        return Memory(max(counting.host, merging.host), max(counting.device, merging.device))

    def recount_memory(self, nbytes: int) -> Memory:
        """Return the memory that the recount engine needs for a text of `nbytes` bytes."""
        from llmgpu.bpe.plain import recount_gpu

        on_device = recount_gpu.gpu_bytes(nbytes, self._options)
        return self._device_memory(HOST_BYTES + 2 * nbytes, on_device)

    def _counting_memory(self, words: float, nbytes: float) -> Memory:
        if self._counting_device is not None:
            from llmgpu.bpe.words import count_gpu

            on_device = count_gpu.gpu_bytes(words, nbytes, self._counting_device)
            return self._device_memory(_UPLOAD.of(words, nbytes), on_device)
        costs = count_host.memory_costs(self._options.threads)
        return Memory(min(costs.of(words, nbytes), costs.fixed + default_memory_bytes()))

    def _merging_memory(self, words: float, nbytes: float) -> Memory:
        if self.merging.device is None:
            return Memory(merge_host.memory_costs(words, nbytes).of(words, nbytes))
        from llmgpu.bpe.training import batched_gpu

        on_device = batched_gpu.COSTS.of(words, nbytes)
        return self._device_memory(_UPLOAD.of(words, nbytes), on_device)

    def _device_memory(self, host: int, device: int) -> Memory:
        """Return host and device memory. A software adapter has its device memory on the host."""
        return Memory(host + device if self.merging.is_software else host, device)

    def _tell_memory(self, memory: Memory) -> None:
        self._needed = memory
        self._on_memory(memory)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Measure a block, and add its duration to the time of the phase `name`."""
        start = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def _merge(
        self, words: SymbolWords, facts: dict[str, int], checkpoint: Checkpoint | None
    ) -> TrainingResult:
        """Replay the merges of the seed and of the checkpoint, then learn the merges still missing.

        words: words with a symbol for each byte. facts: further fields of the result, about the
        text.
        """
        seed, progress = self._options.symbols, self._progress
        spellings = seed.spellings()
        pairs, counts = np.empty((0, 2), np.uint32), np.empty(0, np.int64)
        with self._phase("make symbols"):
            rest = words = merge_host.apply_merges(words, seed.merges, progress)
            # Replay the merges that an interrupted execution logged.
            if checkpoint:
                with naming(checkpoint.folder, InputError):
                    pairs, counts = checkpoint.read_merges()
                    check_logged(pairs, counts, seed, self._options.min_frequency)
                    merges = np.column_stack([pairs, spellings.results(pairs)])
                    rest = merge_host.apply_merges(words, merges, progress)
                    check_replayed(pairs, counts, words.total, rest.total)
        # Keep `words` if there are several sizes, because `_measure_sizes` needs them.
        keeps_words = rest is words and len(self._options.sizes) > 1
        with self._phase("merge"):
            learned = self._learn(
                rest, spellings if seed.unreached else None, checkpoint, keeps_words=keeps_words
            )
        # Combine the logged and the learned merges, and measure each vocabulary size.
        pairs = np.concatenate([pairs, learned.pairs])
        results = seed.results(pairs)
        with self._phase("measure smaller sizes"):
            merges = np.column_stack([pairs, results])
            sizes = self._measure_sizes(words, merges, learned.symbols)
        return self._result(
            merges=translate(pairs, results, seed.ids),
            merge_counts=np.concatenate([counts, learned.counts]),
            sizes=sizes,
            batches=learned.batches,
            **facts,
        )

    def _learn(
        self,
        words: SymbolWords,
        spellings: Spellings | None,
        checkpoint: Checkpoint | None,
        *,
        keeps_words: bool,
    ) -> Merges:
        """Learn the merges that are still missing, on the device or the CPU."""
        options, device = self._options, self.merging.device
        merges = options.start.size + options.merges - len(words.lengths)
        made = logged = 0  # merges made so far, and merges in the checkpoint

        def log(pairs: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
            nonlocal made, logged
            known = max(logged - made, 0)  # a device made these merges before it ran out of memory
            made += len(counts)
            if checkpoint and known < len(counts):
                checkpoint.add_merges(pairs[known:], counts[known:])
                logged = made

        task = MergeTask(
            merges=merges,
            progress=self._progress,
            on_merges=log if checkpoint else None,
            spellings=spellings,
            keeps_words=keeps_words,
        )
        # Merge on the device if the words fit there, else on the CPU, and note the reason.
        if device is not None:
            from llmgpu.bpe.training import batched_gpu

            try:
                return batched_gpu.train(device, words, options, task)
            except CapacityError as error:
                made = 0  # the CPU makes all merges again, also those before the error
                self._notes.append(f"merged on the CPU, because {error}")
        return merge_host.train(words, options, task)

    def _measure_sizes(
        self, words: SymbolWords, merges: NDArray[np.uint32], symbols: int
    ) -> dict[int, tuple[int, int]]:
        """Return the number of merges, and of symbols in the merged text, by vocabulary size.

        words: words before the merges. merges: uint32 (M, 3), in symbols. symbols: number of
        symbols in the text after all merges.
        """
        # Apply the merges to count the remaining symbols. The counts of merges do not give this
        # number, because occurrences of (a, a) overlap.
        # made[k]: number of new tokens after merge k, int64 (M,).
        made = np.cumsum(merges[:, 2] >= self._options.start.size)
        measured: dict[int, tuple[int, int]] = {}
        done = 0
        for size in self._options.sizes:
            wanted = self._options.new_tokens(size)
            count = int(np.searchsorted(made, wanted)) + 1 if wanted else 0
            if count >= len(merges):
                measured[size] = len(merges), symbols
            else:
                words = merge_host.apply_merges(words, merges[done:count], self._progress)
                measured[size], done = (count, words.total), count
        return measured

    def _recount(self, corpus: Corpus) -> TrainingResult:
        from llmgpu.bpe.plain import recount_gpu

        device, options = self.merging.device, self._options
        assert device is not None
        if (size := corpus.total_bytes) is not None:
            self._tell_memory(self.recount_memory(size))
        with self._phase("read"):
            most = recount_gpu.most_text_bytes(device, recount_gpu.symbol_bytes_of(options))
            text, starts = _read_all(corpus, most, self._progress)
            _require_text(corpus.text_bytes)
        with self._phase("merge"):
            learned = recount_gpu.train(device, text, starts, options, progress=self._progress)
        count = len(learned.pairs)
        merges = np.column_stack([learned.pairs, np.arange(256, 256 + count)]).astype(np.uint32)
        return self._result(
            merges=merges,
            merge_counts=learned.counts,
            sizes={options.vocab_size: (count, learned.symbols)},
            text_bytes=corpus.text_bytes,
            documents=corpus.documents,
        )

    def _result(
        self, merges: NDArray[np.uint32], sizes: dict[int, tuple[int, int]], **facts: Any
    ) -> TrainingResult:
        """Return the result of the training, with a vocabulary of each size.

        merges: uint32 (M, 3), ids of the left token, the right token and the result.
        sizes: number of merges, and of symbols in the merged text, by vocabulary size.
        facts: further fields of the result, about the text and the merges.
        """
        options = self._options
        # The vocabulary of a size has the first merges, and its own special tokens after them.
        with self._phase("make vocabulary"):
            vocabularies = {
                size: extend_vocabulary(
                    options.start,
                    merges[:count],
                    special_tokens=options.special_tokens,
                    training=_training_facts(options, facts, symbols),
                )
                for size, (count, symbols) in sorted(sizes.items())
            }
        writing = _writing_memory(vocabularies.values())
        # Writing may need more than estimated, because tokens may have megabytes.
        if writing > self._needed.host:
            self._tell_memory(self._needed._replace(host=writing))
        largest = vocabularies[options.vocab_size]
        return TrainingResult(
            vocabulary=largest,
            vocabularies=vocabularies,
            stop_reason=_stop_reason(largest.size, len(merges), options),
            seconds=self._seconds,
            notes=tuple(self._notes),
            **facts,
        )


def train_vocabulary(
    source: Corpus | WordCounts, options: TrainingOptions, backend: Backend, **given: Any
) -> TrainingResult:
    """Run a `Training`; given: further arguments of `Training.run`."""
    return Training(options, backend).run(source, **given)


def _check_recount(options: TrainingOptions, backend: Backend) -> None:
    if backend.device is None:
        raise LlmgpuError(
            f"the recount engine needs a GPU adapter: use {spelled('--device gpu')}, or the "
            "batched engine"
        )
    for what, asked in (
        ("extend a seed vocabulary", options.seed is not None),
        ("limit the length of tokens", options.max_token_length is not None),
        ("make several sizes", bool(options.smaller_sizes)),
    ):
        if asked:
            raise LlmgpuError(f"the recount engine can't {what}: use the batched one")


def _writing_memory(vocabularies: Iterable[Vocabulary]) -> int:
    """Return the memory, in bytes, for writing vocabularies. Their tries need the most."""
    sizes = [len(vocabulary.token_data) for vocabulary in vocabularies]
    of_nodes = sum(_NODE_BYTES * min(size, FEW_NODES) for size in sizes)
    return _WRITING_BYTES + _TOKEN_COPIES * sum(sizes) + of_nodes


def _require_text(text_bytes: int) -> None:
    if text_bytes == 0:
        raise InputError("the corpus is empty: there is no text to train on")


def _read_all(
    corpus: Corpus, most: int, progress: Progress
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the text and document starts of a corpus; stop reading beyond `most` bytes."""
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


def _training_facts(
    options: TrainingOptions, text: Mapping[str, int], symbols: int
) -> dict[str, int | float | str]:
    """Return the facts about the training that a vocabulary file records."""
    facts: dict[str, int | float | str] = {
        "text_bytes": text["text_bytes"],
        "documents": text["documents"],
        "tokens": symbols,
        "bytes_per_token": round(text["text_bytes"] / symbols, 6),
        "min_frequency": options.min_frequency,
        "tool": f"llmgpu {__version__}",
    }
    if options.max_token_length is not None:
        facts["max_token_length"] = options.max_token_length
    if options.seed is not None:
        facts["seed_fingerprint"] = options.seed.fingerprint
    return facts


def _stop_reason(size: int, merges: int, options: TrainingOptions) -> str | None:
    """Return the reason why training made only `size` tokens; None if all requested were made."""
    if size == options.vocab_size:
        return None
    short = f" of up to {options.max_token_length} bytes" if options.max_token_length else ""
    most = max(options.min_frequency, 1)
    return (
        f"the vocabulary has {size:,} tokens instead of {options.vocab_size:,}: after {merges:,} "
        f"merges, no pair of tokens{short} occurs at least {number_of(most, 'time')}"
    )
