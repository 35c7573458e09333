"""The corpora of ``llmgpu train``: what CORPUS names, and what is drawn from each."""

from __future__ import annotations

from collections.abc import Sequence

from llmgpu.cli.groups import READING_OPTIONS, check_text_field
from llmgpu.cli.options import refuse_given
from llmgpu.errors import InputError
from llmgpu.input_files import number_of
from llmgpu.lm.data.inputs import are_tokens
from llmgpu.lm.options import TrainOptions
from llmgpu.text.sources import Selection, Sources, resolve_sources


def resolve_corpora(
    corpus: Sequence[str], selection: Selection, weights: str | None
) -> list[Sources]:
    """Return the files of each corpus: of every name with --weights, else of all names together.

    Raises UsageError for options about text if no file is text, InputError unless there is a weight
    for each name.
    """
    count = weights.count(",") + 1 if weights else 0
    if count not in (0, len(corpus)):
        have = f"{number_of(count, 'value')}, but CORPUS has {number_of(len(corpus), 'name')}"
        raise InputError(f"--weights has {have}")
    names = [[name] for name in corpus] if weights else [corpus]
    corpora = [resolve_sources(each, selection) for each in names]
    texts = [file for sources in corpora if not are_tokens(sources) for file in sources.files]
    if texts:
        check_text_field(texts)
    else:
        path = corpora[0].files[0].path
        refuse_given((*READING_OPTIONS, "chat"), f"is for text, and {path} has tokens")
    return corpora


def resolve_evaluated(path: str | None) -> Sources | None:
    """Return the text to evaluate on, if there is one; UsageError if a part is held out, too."""
    if path is None:
        return None
    refuse_given(
        ("evaluation_fraction", "evaluation_parts"), "can't be combined with --eval-corpus"
    )
    return resolve_sources([path], Selection(may_be_tokens=True))


def check_shares(corpora: Sequence[Sources], options: TrainOptions) -> None:
    """Raise InputError if a run has weights of other corpora."""
    if len(options.shares) != len(corpora):
        raise InputError(
            f"the run has --weights {options.corpus_weights}: name CORPUS and --weights as before"
        )
