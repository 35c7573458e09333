"""The corpora of ``llmgpu train``: what CORPUS names, and what is drawn from each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmgpu.cli.given import refuse_given
from llmgpu.cli.source_options import check_text_field
from llmgpu.errors import InputError
from llmgpu.input_files import number_of
from llmgpu.lm.data.inputs import are_tokens, count_tokens
from llmgpu.lm.data.token_source import TokenSource
from llmgpu.lm.options import TrainOptions
from llmgpu.text.sources import Selection, Sources, resolve_sources


def resolve_corpus(corpus: Sequence[str], selection: Selection, reading: Sequence[str]) -> Sources:
    """Return the files that are read.

    reading: options about text, for which UsageError is raised if the files have tokens.
    """
    found = resolve_sources(corpus, selection)
    if are_tokens(found):
        refuse_given((*reading, "chat"), f"is for text, and {found.files[0].path} has tokens")
    else:
        check_text_field(found)
    return found


def corpus_lengths(
    corpus: Sequence[str], selection: Selection, settings: Mapping[str, Any]
) -> list[int]:
    """Return how many ids each name of CORPUS stands for; none without --weights.

    InputError unless there is a weight for each.
    """
    weights = settings["corpus_weights"]
    if not weights:
        return []
    count = weights.count(",") + 1
    if count != len(corpus):
        raise InputError(f"--weights has {number_of(count, 'value')} for {len(corpus)} of CORPUS")
    corpora = [resolve_sources([name], selection) for name in corpus]
    return count_tokens(corpora, settings["token_dtype"])


def resolve_evaluated(path: str | None) -> Sources | None:
    """Return the text to evaluate on, if there is one; UsageError if a part is held out, too."""
    if path is None:
        return None
    refuse_given(
        ("evaluation_fraction", "evaluation_parts"), "can't be combined with --eval-corpus"
    )
    return resolve_sources([path], Selection(may_be_tokens=True))


def set_corpora(source: TokenSource, lengths: list[int], options: TrainOptions) -> None:
    """Divide the tokens of a run into corpora; InputError if they are not those of its weights."""
    if len(options.shares) != max(1, len(lengths)):
        raise InputError(
            f"the run has --weights {options.corpus_weights}: name CORPUS and --weights as before"
        )
    if lengths and sum(lengths) != len(source):
        raise InputError(
            f"the corpora have {sum(lengths):,} tokens, but only {len(source):,} in different "
            "files: name each file once"
        )
    source.corpora = lengths
