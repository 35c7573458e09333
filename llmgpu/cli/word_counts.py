"""Word counts as what ``llmgpu bpe-train`` reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from click.core import ParameterSource

from llmgpu.bpe.words.counts_file import WordCounts, add_counts, load_counts
from llmgpu.errors import InputError

READING_OPTIONS = ("text_field", "encoding_errors", "doc_separators", "limit")


def check_sources(
    corpus: Sequence[str], from_counts: Sequence[str], output: str | None, counts_only: bool
) -> None:
    """Raise UsageError unless there is one kind of source, and options that go with it."""
    if bool(corpus) == bool(from_counts):
        raise click.UsageError("give either CORPUS or --from-counts")
    if counts_only and not output:
        raise click.UsageError("--counts-only needs --save-counts FILE, which takes the counts")
    context = click.get_current_context()
    for option in context.command.params if from_counts else ():
        given = context.get_parameter_source(str(option.name)) == ParameterSource.COMMANDLINE
        if given and option.name in READING_OPTIONS:
            raise click.UsageError(f"{option.opts[0]} is for CORPUS, not for --from-counts")


def load_all(paths: Sequence[str]) -> WordCounts | None:
    """Load word counts and add them up; None if there are none."""
    return add_counts([load_counts(path) for path in paths]) if paths else None


def check_counted_alike(loaded: WordCounts, pattern: str, special_tokens: Iterable[str]) -> None:
    """Raise InputError unless words were counted as they would be for this training."""
    if loaded.info.pattern != pattern:
        raise InputError(
            f"{loaded.source}: the words were cut by pattern {loaded.info.pattern!r}, not by "
            f"{pattern!r}: count the corpus again"
        )
    for text in special_tokens:
        if text.encode() not in loaded.info.separators:
            raise InputError(
                f"{loaded.source}: special token {text!r} was not left out of the words: count the "
                "corpus again with it"
            )
