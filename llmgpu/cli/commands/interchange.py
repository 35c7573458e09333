"""``llmgpu import`` and ``llmgpu export``: vocabularies of other tools in and out."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.bpe.interchange.formats import ALIASES, READERS, WEIGHT_TYPES, WRITERS
from llmgpu.cli.options import (
    force_option,
    option_group,
    output_options,
    pattern_options,
    vocabulary_output_option,
)
from llmgpu.cli.values import SPECIAL_TOKEN, Aliased

_import_vocabulary_options = option_group(
    click.option("--from", "format_name", type=Aliased(READERS, ALIASES),
                 help=f"Input format: {READERS.describe()}.  [default: detected]"),
    pattern_options(help="Pattern that splits text, if the file doesn't say.  [default: the "
                    "file's; gpt2 for vocab.json]"),
    click.option("--special-token", "special_tokens", type=SPECIAL_TOKEN, multiple=True,
                 metavar="TEXT=ID", help="Add a special token missing from the file. Repeatable."),
    vocabulary_output_option,
    force_option,
    output_options,
)  # fmt: skip


@click.command("import")
@click.argument("source", metavar="IN")
@click.argument("merges", required=False, metavar="[MERGES.TXT]")
@_import_vocabulary_options
def import_vocabulary(**options: Any) -> None:
    """Import a vocabulary from another tool, with exactly the same ids.

    IN is a .tiktoken file, a Hugging Face tokenizer.json, Mistral's tekken.json, GPT-2's vocab.json
    with MERGES.TXT (optional if it is in the same folder), a folder with such files, or the name of
    an encoding that tiktoken has downloaded: cl100k, o200k, gpt2 or p50k.

    \b
    Examples:
      llmgpu import cl100k_base.tiktoken -o cl100k.bin
      llmgpu import own.tiktoken --pattern gpt2 --special-token '<|end|>=50256'
      llmgpu import tokenizer.json
      llmgpu import folder
      llmgpu import vocab.json merges.txt -o gpt2.bin
    """
    from llmgpu.cli import interchange

    interchange.import_vocabulary(**options)


_export_vocabulary_options = option_group(
    click.option("--to", "format_name", type=Aliased(WRITERS, ALIASES),
                 help=f"Output format: {WRITERS.describe()}.  [default: by the extension of -o: "
                 ".json, .tiktoken or .gguf; huggingface if it ends in /]"),
    click.option("--output", "-o", required=True, metavar="OUT",
                 help="Output file, or folder: for gpt2, and for huggingface if it ends in /."),
    click.option("--weights", type=click.Choice(list(WEIGHT_TYPES)),
                 help="For gguf: type of a model's weights.  [default: f32]"),
    click.option("--chat-template", metavar="FILE",
                 help="For gguf and Hugging Face folders: Jinja chat template.  [default: the "
                 "vocabulary's]"),
    force_option,
    output_options,
)  # fmt: skip


@click.command("export")
@click.argument("vocab")
@_export_vocabulary_options
def export_vocabulary(**options: Any) -> None:
    """Export the vocabulary VOCAB for another tool, with exactly the same ids.

    With gguf, VOCAB may be a run folder, a checkpoint or the folder of a Hugging Face model; the
    file then contains the model, too.

    \b
    Examples:
      llmgpu export v.bin --to huggingface -o tokenizer.json
      llmgpu export v.bin --to huggingface -o folder/
      llmgpu export v.bin --to tiktoken -o v.tiktoken
      llmgpu export v.bin --to gpt2 -o folder
      llmgpu export run --to gguf -o model.gguf --weights f16
    """
    from llmgpu.cli import interchange

    interchange.export_vocabulary(**options)
