"""Vocabularies trained for the Python API, on texts and on word counts, in files or in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from llmgpu.backend import start_selecting
from llmgpu.bpe.training.options import TrainingOptions, require_counted_for
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.counts_file import add_counts, load_counts
from llmgpu.bpe.words.distinct_words import WordCounts, words_of
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_documents
from llmgpu.tokenizer.arguments import to_bytes

Options = Mapping[str, Any]  # of `TrainingOptions`


def train_on_files(
    names: Sequence[str], reading: CorpusOptions | None, device: str, options: Options
) -> Vocabulary:
    """Train on files, folders or globs; special tokens are not trained on."""
    reading = reading or CorpusOptions()
    separators = (*reading.separators, *_special_bytes(options))
    return _train(Corpus(names, replace(reading, separators=separators)), device, options)


def train_on_texts(texts: Iterable[str | bytes], device: str, options: Options) -> Vocabulary:
    """Train on documents; special tokens are not trained on."""
    reading = CorpusOptions(separators=_special_bytes(options))
    return _train(corpus_from_documents(map(to_bytes, texts), reading), device, options)


def train_on_counts(
    counts: Mapping[str, int] | Mapping[bytes, int], device: str, options: Options
) -> Vocabulary:
    """Train on words, and how often each occurs."""
    sums: Counter[bytes] = Counter()
    for word, count in counts.items():
        sums[to_bytes(word)] += count
    return _train(WordCounts(words_of(sums), 1, options["pattern"]), device, options)


def train_on_counts_files(
    names: Sequence[str], pattern: str | None, device: str, options: Options
) -> Vocabulary:
    """Train on the sum of word counts; pattern: None for theirs.

    Raises InputError unless they were counted as they would be for the options.
    """
    special = options["special_tokens"]
    counts = add_counts([load_counts(name, pattern, _special_bytes(options)) for name in names])
    options = {**options, "pattern": pattern or counts.pattern, "unicode": counts.unicode}
    require_counted_for(counts, TrainingOptions(**options), special)
    return _train(counts, device, options)


def _special_bytes(options: Options) -> tuple[bytes, ...]:
    return tuple(map(to_bytes, options["special_tokens"]))


def _train(source: Corpus | WordCounts, device: str, options: Options) -> Vocabulary:
    with source if isinstance(source, Corpus) else nullcontext():
        checked = TrainingOptions(**options)
        return train_vocabulary(source, checked, start_selecting(device)()).vocabulary
