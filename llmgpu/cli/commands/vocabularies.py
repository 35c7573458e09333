"""``llmgpu info``, ``import``, ``export`` and ``compare-vocabs``: show and convert vocabularies."""

from __future__ import annotations

from dataclasses import MISSING
from functools import partial

from llmgpu.bpe.interchange.formats import ALIASES, READERS, WEIGHT_TYPES, WRITERS
from llmgpu.cli import groups
from llmgpu.cli.groups import ReadingOptions
from llmgpu.cli.options import command
from llmgpu.cli.values import Aliased
from llmgpu.file_kinds import ENDINGS
from llmgpu.option_fields import argument, group, option

*_ENDINGS, _LAST_ENDING = ENDINGS


@command("info", "info:info")
class InfoCommand:
    """Show the GPUs of this machine, or describe FILE.

    FILE is a vocabulary (in any supported format, or a name such as cl100k), a run folder or model
    folder, a file of word counts, a token file or a manifest of shards.

    \b
    Examples:
      llmgpu info
      llmgpu info v.bin
      llmgpu info cl100k --tokens --search '(?i)^ ?the' --first 20
      llmgpu info v.bin --id 264 --json
      llmgpu info v.bin --merges --first 100
      llmgpu info v.bin --report v.html --on corpus.txt
      llmgpu info corpus.bin
      llmgpu info run
      llmgpu info run --plot
    """

    # fmt: off
    file: str | None = argument(required=False)
    tokens: bool = option(False, bool, "List the tokens: id and text.")
    merges: bool = option(False, bool, "List the merges in order: id and both parts.")
    first: int | None = option(None, int, "List only N tokens or merges.", least=1)
    search: str | None = option(
        None, "text",
        "List only tokens whose text matches this regular expression anywhere.", metavar="REGEX")
    ids: tuple[int, ...] = option(
        (), int, "List only this token. Repeatable.", "--id", metavar="ID", least=0, many=True)
    page: str | None = option(
        None, str,
        "Write an HTML page about the vocabulary: token lengths, scripts and the longest tokens.",
        "--report", metavar="PAGE")
    texts: tuple[str, ...] = option(
        (), str,
        "Text for --report, which then plots bytes per token by number of merges. Repeatable.",
        "--on", metavar="PATH", many=True, needs=("page",))
    force: bool = groups.force(needs=("page",))
    plot: bool = option(False, bool, "Draw the losses of a run in plain characters.")
    # fmt: on


@command("import", "interchange:import_vocabulary")
class ImportVocabularyCommand:
    """Import a vocabulary from another tool, with exactly the same ids.

    IN is a file of a format that --from lists, GPT-2's vocab.json with MERGES.TXT (optional if it
    is in the same folder), a folder with such files, or the name of an encoding that tiktoken has
    downloaded: cl100k, o200k, gpt2 or p50k.

    \b
    Examples:
      llmgpu import cl100k_base.tiktoken -o cl100k.bin
      llmgpu import own.tiktoken --pattern gpt2 --special-token '<|end|>=50256'
      llmgpu import tokenizer.json
      llmgpu import folder
      llmgpu import vocab.json merges.txt -o gpt2.bin
    """

    # fmt: off
    source: str = argument("IN")
    merges: str | None = argument("[MERGES.TXT]", required=False)
    format_name: str | None = option(
        None, Aliased(READERS, ALIASES), f"Input format: {READERS.describe()}.", "--from",
        default_words="detected")
    pattern: str | None = option(
        None, "pattern", "Pattern that splits text, if the file doesn't say.",
        default_words="the file's; gpt2 for vocab.json")
    special_tokens: tuple[tuple[str, int], ...] = option(
        (), "special token", "Add a special token missing from the file. Repeatable.",
        "--special-token", metavar="TEXT=ID", many=True)
    output: str = groups.vocabulary_output()
    force: bool = groups.force()
    # fmt: on


@command("export", "interchange:export_vocabulary")
class ExportVocabularyCommand:
    """Export the vocabulary VOCAB for another tool, with exactly the same ids.

    With gguf and huggingface, VOCAB may be a run folder, a checkpoint or the folder of a Hugging
    Face model; the file or folder then contains the model, too.

    \b
    Examples:
      llmgpu export v.bin --to huggingface -o tokenizer.json
      llmgpu export v.bin --to huggingface -o folder/
      llmgpu export run --to huggingface -o model/
      llmgpu export v.bin --to tiktoken -o v.tiktoken
      llmgpu export v.bin --to gpt2 -o folder
      llmgpu export run --to gguf -o model.gguf --weights f16
    """

    # fmt: off
    vocab: str = argument()
    format_name: str | None = option(
        None, Aliased(WRITERS, ALIASES), f"Output format: {WRITERS.describe()}.", "--to",
        default_words=f"by the extension of -o: {', '.join(_ENDINGS)} or {_LAST_ENDING}; "
        "huggingface if it ends in /")
    output: str = option(
        MISSING, str, "Output file, or folder: for gpt2, and for huggingface if it ends in /.",
        "--output", "-o", metavar="OUT")
    weights: str | None = option(
        None, WEIGHT_TYPES, "For gguf: type of a model's weights.", default_words="f32")
    chat_template: str | None = option(
        None, str, "For gguf and Hugging Face folders: Jinja chat template.", metavar="FILE",
        default_words="the vocabulary's")
    force: bool = groups.force()
    # fmt: on


@command(
    "compare-vocabs", "compare_vocabs:compare_vocabs", opens=partial(groups.open_device, "texts")
)
class CompareVocabsCommand:
    """Compare two vocabularies: tokens by script and length and, with --on, bytes per token.

    Each VOCAB is anything that --vocab takes in other commands.

    \b
    Examples:
      llmgpu compare-vocabs v.bin cl100k
      llmgpu compare-vocabs old.bin new.bin --on data --json
    """

    # fmt: off
    first: str = argument("VOCAB")
    second: str = argument("VOCAB")
    texts: tuple[str, ...] = option(
        (), str,
        "Also compare on this text: a file, folder or glob, or - for standard input. Repeatable.",
        "--on", metavar="PATH", many=True)
    reading: ReadingOptions = group(ReadingOptions)
    device: str = groups.device()
    # fmt: on
