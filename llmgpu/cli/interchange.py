"""What ``llmgpu import`` and ``llmgpu export`` do: vocabularies of other tools in and out."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from llmgpu.bpe.interchange import tiktoken
from llmgpu.bpe.interchange.formats import FORMATS, guess_format
from llmgpu.bpe.interchange.open import find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter, print_json
from llmgpu.cli.options import chosen_pattern
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.outputs import VOCABULARY, Output, check_outputs


def import_vocabulary(
    source: str,
    merges: str | None,
    format_name: str | None,
    pattern: str | None,
    pattern_regex: str | None,
    special_tokens: tuple[tuple[str, int], ...],
    output: str,
    force: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Import a vocabulary of another tool, with exactly the same ids."""
    report = Reporter(quiet=quiet)
    if merges is None:
        found = find_vocabulary(source, format_name)
        source, merges = found.path, found.merges
    chosen = format_name or guess_format(source, merges)
    vocabulary = FORMATS[chosen].read(
        source,
        merges,
        pattern=chosen_pattern(pattern, pattern_regex),
        special_tokens=dict(special_tokens),
        note=report.note,
    )
    context = click.get_current_context()
    named = context.get_parameter_source("output") != ParameterSource.DEFAULT
    read = [source, tiktoken.side_path(source), *filter(None, [merges])]
    check_outputs([Output(output, VOCABULARY, is_chosen=named)], read, force=force)
    vocabulary.save(output, force=force)
    report.line(
        f"{vocabulary.size:,} ids, {len(vocabulary.special_tokens):,} of them special, "
        f"pattern {vocabulary.pattern}, from {chosen}"
    )
    if as_json:
        print_json(_summarize(vocabulary, chosen), to_stderr=output == STANDARD_OUTPUT)


def export_vocabulary(
    vocab: str,
    format_name: str,
    output: str,
    force: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Export the vocabulary VOCAB for another tool, with exactly the same ids."""
    report = Reporter(quiet=quiet)
    format = FORMATS[format_name]
    vocabulary_files = find_vocabulary(vocab)
    check_outputs(format.outputs(output), vocabulary_files.inputs, force=force)
    vocabulary = vocabulary_files.read(report.note)
    format.write(vocabulary, output, note=report.note, force=force)
    report.line(f"{vocabulary.size:,} ids to {output}")
    if as_json:
        print_json(_summarize(vocabulary, format_name), to_stderr=output == STANDARD_OUTPUT)


def _summarize(vocabulary: Vocabulary, format_name: str) -> dict[str, Any]:
    """Return the summary that `import` and `export` print with --json."""
    return {
        "format": format_name,
        "vocabulary_size": vocabulary.size,
        "merges": len(vocabulary.merges),
        "special_tokens": len(vocabulary.special_tokens),
        "pattern": vocabulary.pattern,
        "fingerprint": vocabulary.fingerprint,
    }
