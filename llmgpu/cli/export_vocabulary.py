"""``llmgpu export``: v.bin in, another tool's vocabulary out."""

from __future__ import annotations

import click

from llmgpu.bpe.interchange.formats import FORMATS, describe_formats
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter, print_json
from llmgpu.cli.import_vocabulary import summarize
from llmgpu.cli.options import output_options
from llmgpu.files import STANDARD_OUTPUT


@click.command("export")
@click.argument("vocab")
@click.option(
    "--to",
    "format_name",
    type=click.Choice(list(FORMATS)),
    required=True,
    help=f"Output format: {describe_formats()}.",
)
@click.option("--output", "-o", required=True, metavar="OUT", help="File, or folder for gpt2.")
@output_options
def export_vocabulary(
    vocab: str, format_name: str, output: str, as_json: bool, quiet: bool, debug: bool
) -> None:
    """Export the vocabulary file VOCAB for another tool, with exactly the same ids.

    \b
    Example:
      llmgpu export v.bin --to huggingface -o tokenizer.json
      llmgpu export v.bin --to tiktoken -o v.tiktoken
      llmgpu export v.bin --to gpt2 -o folder
    """
    report = Reporter(quiet=quiet)
    vocabulary = Vocabulary.load(vocab)
    FORMATS[format_name].write(vocabulary, output, note=lambda text: report.line(f"note: {text}"))
    report.line(f"{vocabulary.size:,} ids to {output}")
    if as_json:
        print_json(summarize(vocabulary, format_name), to_stderr=output == STANDARD_OUTPUT)
