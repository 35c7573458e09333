"""Vocabularies trained for the Python API, on texts and on word counts, in files or in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from operator import index
from typing import Any, SupportsIndex

from llmgpu.backend import Opening
from llmgpu.bpe.pretokens.names import DEFAULT_PATTERN
from llmgpu.bpe.training.options import TrainingOptions, require_counted_for
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.counts_file import add_counts, load_counts
from llmgpu.bpe.words.distinct_words import WordCounts, words_of
from llmgpu.errors import InputError
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_documents
from llmgpu.tokenizer.arguments import to_bytes

Options = Mapping[str, Any]  # of `TrainingOptions`


def train_on_files(
    names: Sequence[str], reading: CorpusOptions | None, opening: Opening, options: Options
) -> Vocabulary:
    """Train on files, folders or globs; special tokens are not trained on."""
    checked = _checked(options)
    reading = reading or CorpusOptions()
    separators = (*reading.separators, *_special_bytes(checked))
    return _train(Corpus(names, replace(reading, separators=separators)), opening, checked)


def train_on_texts(texts: Iterable[str | bytes], opening: Opening, options: Options) -> Vocabulary:
    """Train on documents; special tokens are not trained on."""
    checked = _checked(options)
    documents = (to_bytes(text, "give one text at a time") for text in texts)
    reading = CorpusOptions(separators=_special_bytes(checked))
    return _train(corpus_from_documents(documents, reading), opening, checked)


def train_on_counts(
    counts: Mapping[str, int] | Mapping[bytes, int], opening: Opening, options: Options
) -> Vocabulary:
    """Train on words, and how often each occurs."""
    checked = _checked(options)
    sums: Counter[bytes] = Counter()
    for word, count in counts.items():
        if not isinstance(count, SupportsIndex):
            raise TypeError(f"the count of {word!r} is an int, not {type(count).__name__}")
        sums[to_bytes(word)] += index(count)
    return _train(WordCounts(words_of(sums), 1, checked.pattern), opening, checked)


def train_on_counts_files(names: Sequence[str], opening: Opening, options: Options) -> Vocabulary:
    """Train on the sum of word counts; a pattern of None is theirs.

    Raises InputError if there are none, or they were not counted as for the options.
    """
    if not names:
        raise InputError("there are no word counts to train on: give at least one file")
    separators, pattern = _special_bytes(_checked(options)), options["pattern"]
    counts = add_counts([load_counts(name, pattern, separators) for name in names])
    theirs = {"pattern": pattern or counts.pattern, "unicode": counts.unicode}
    checked = _checked({**options, **theirs})
    require_counted_for(counts, checked, checked.special_tokens)
    return _train(counts, opening, checked)


def _checked(options: Options) -> TrainingOptions:
    """Return the options of a training; a pattern of None is the default."""
    known = {field.name for field in fields(TrainingOptions)}
    if unknown := options.keys() - known:
        raise TypeError(f"unexpected argument {min(unknown)!r}")
    return TrainingOptions(**{**options, "pattern": options.get("pattern") or DEFAULT_PATTERN})


def _special_bytes(options: TrainingOptions) -> tuple[bytes, ...]:
    return tuple(map(to_bytes, options.special_tokens))


def _train(source: Corpus | WordCounts, opening: Opening, options: TrainingOptions) -> Vocabulary:
    opening.begin()  # if that waited for the text, as ``auto`` does
    with source if isinstance(source, Corpus) else nullcontext():
        return train_vocabulary(source, options, opening.backend()).vocabulary
