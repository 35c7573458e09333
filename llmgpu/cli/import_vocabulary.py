"""``llmgpu import``: another tool's vocabulary in, v.bin out."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.bpe.interchange.formats import FORMATS, guess_format, read_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter, print_json
from llmgpu.cli.options import SpecialToken, chosen_pattern, output_options, pattern_options
from llmgpu.files import STANDARD_OUTPUT


@click.command("import")
@click.argument("source", metavar="IN")
@click.argument("merges", required=False, metavar="[MERGES.TXT]")
@click.option(
    "--from",
    "format_name",
    type=click.Choice(FORMATS),
    show_default="what the file looks like",
    help="A rank file, a tokenizer.json, or vocab.json and merges.txt.",
)
@pattern_options(
    show_default="that of the file, or gpt2 for vocab.json",
    help="How text is cut, where the file does not say.",
)
@click.option(
    "--special-token",
    "special_tokens",
    type=SpecialToken(),
    multiple=True,
    metavar="TEXT=ID",
    help="A special token that the file does not have. Repeatable.",
)
@click.option("--output", "-o", default="v.bin", show_default=True, metavar="FILE")
@output_options
def import_vocabulary(
    source: str,
    merges: str | None,
    format_name: str | None,
    pattern: str | None,
    pattern_regex: str | None,
    special_tokens: tuple[tuple[str, int], ...],
    output: str,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Read a vocabulary that another tool made, with exactly its ids.

    \b
    Example:
      llmgpu import cl100k_base.tiktoken -o cl100k.bin
      llmgpu import own.tiktoken --pattern gpt2 --special-token '<|end|>=50256'
      llmgpu import tokenizer.json
      llmgpu import vocab.json merges.txt -o gpt2.bin
    """
    report = Reporter(quiet=quiet)
    chosen = format_name or guess_format(source, merges)
    vocabulary = read_vocabulary(
        source,
        merges,
        chosen,
        pattern=chosen_pattern(pattern, pattern_regex),
        special_tokens=dict(special_tokens),
        note=lambda text: report.line(f"note: {text}"),
    )
    vocabulary.save(output)
    report.line(
        f"{vocabulary.size:,} ids, {len(vocabulary.special_tokens):,} of them special, "
        f"pattern {vocabulary.pattern}, from {chosen}"
    )
    if as_json:
        print_json(summarize(vocabulary, chosen), to_stderr=output == STANDARD_OUTPUT)


def summarize(vocabulary: Vocabulary, format_name: str) -> dict[str, Any]:
    """Return what `import` and `export` print with --json."""
    return {
        "format": format_name,
        "vocabulary_size": vocabulary.size,
        "merges": len(vocabulary.merges),
        "special_tokens": len(vocabulary.special_tokens),
        "pattern": vocabulary.pattern,
        "fingerprint": vocabulary.fingerprint,
    }
