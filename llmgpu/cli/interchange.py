"""``llmgpu import`` and ``llmgpu export``: vocabularies of other tools in and out."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from llmgpu.bpe.interchange import tiktoken
from llmgpu.bpe.interchange.formats import ALIASES, FORMATS, describe_formats, guess_format
from llmgpu.bpe.interchange.open import find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter, print_json
from llmgpu.cli.options import (
    SpecialToken,
    chosen_pattern,
    force_option,
    output_options,
    pattern_options,
)
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.outputs import VOCABULARY, Output, check_outputs


class FormatName(click.Choice[str]):
    """The name of a format, or another name that it goes by."""

    def __init__(self) -> None:
        """Take all names there are."""
        super().__init__([*FORMATS, *ALIASES])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the format's own name."""
        name = super().convert(value, param, ctx)
        return ALIASES.get(name, name)


@click.command("import")
@click.argument("source", metavar="IN")
@click.argument("merges", required=False, metavar="[MERGES.TXT]")
@click.option(
    "--from",
    "format_name",
    type=FormatName(),
    show_default="detected",
    help=f"Input format: {describe_formats()}.",
)
@pattern_options(
    show_default="that of the file, gpt2 for vocab.json",
    help="How text is cut, if the file does not say.",
)
@click.option(
    "--special-token",
    "special_tokens",
    type=SpecialToken(),
    multiple=True,
    metavar="TEXT=ID",
    help="Add a special token that the file lacks. Repeatable.",
)
@click.option(
    "--output",
    "-o",
    default="v.bin",
    show_default=True,
    metavar="FILE",
    help="Vocabulary file to write; - for stdout.",
)
@force_option
@output_options
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
    """Import a vocabulary of another tool, with exactly the same ids.

    IN is a rank file of tiktoken, a tokenizer.json of Hugging Face, vocab.json of GPT-2 together
    with MERGES.TXT (which may be left out if it is beside it), a folder with such files, or cl100k,
    o200k, gpt2 or p50k if an installed package has the ranks.

    \b
    Example:
      llmgpu import cl100k_base.tiktoken -o cl100k.bin
      llmgpu import own.tiktoken --pattern gpt2 --special-token '<|end|>=50256'
      llmgpu import tokenizer.json
      llmgpu import folder
      llmgpu import vocab.json merges.txt -o gpt2.bin
    """
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


@click.command("export")
@click.argument("vocab")
@click.option(
    "--to",
    "format_name",
    type=FormatName(),
    required=True,
    help=f"Output format: {describe_formats()}.",
)
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="OUT",
    help="File; folder for gpt2, and for huggingface with / at the end.",
)
@force_option
@output_options
def export_vocabulary(
    vocab: str,
    format_name: str,
    output: str,
    force: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Export the vocabulary VOCAB for another tool, with exactly the same ids.

    \b
    Example:
      llmgpu export v.bin --to huggingface -o tokenizer.json
      llmgpu export v.bin --to huggingface -o folder/
      llmgpu export v.bin --to tiktoken -o v.tiktoken
      llmgpu export v.bin --to gpt2 -o folder
    """
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
