"""``llmgpu tokenize`` and ``llmgpu count``: convert text to ids and back, and count tokens."""

from __future__ import annotations

from dataclasses import MISSING
from functools import partial
from typing import TYPE_CHECKING

from llmgpu.bpe.vocabulary import MATCH_RULES
from llmgpu.cli import groups
from llmgpu.cli.groups import (
    ChatOptions,
    FileOptions,
    ReadingOptions,
    SpecialTokenOptions,
    open_device,
)
from llmgpu.cli.options import command
from llmgpu.option_fields import argument, group, option, output_option
from llmgpu.tokens.formats import FORMATS, LAYOUTS, SHOWN, describe

if TYPE_CHECKING:
    from llmgpu.text.parts import Part


@command("tokenize", "tokenize:tokenize", opens=partial(open_device, "files"))
class TokenizeCommand:
    """Tokenize files, folders or globs; reads stdin by default. Each file is a document.

    \b
    Examples:
      llmgpu tokenize --vocab v.bin corpus.txt -o corpus.bin
      llmgpu tokenize --vocab v.bin 'data/*.jsonl' -o o.bin --shard-tokens 100M
      llmgpu tokenize --vocab v.bin docs.jsonl -o train.bin --split val=0.01
      llmgpu tokenize --vocab v.bin input.txt -o train.bin --split val=0.1 --split-by position
      llmgpu tokenize --vocab v.bin docs -o chunks.jsonl --chunk-tokens 512 --overlap 64
      llmgpu tokenize --vocab v.bin data -o o-%P.bin --shard-tokens 100M --part 3/8
      echo 'Hello world' | llmgpu tokenize --vocab v.bin --format tokens
      echo 'a line' | llmgpu tokenize --vocab v.bin
      tail -f log | llmgpu tokenize --vocab v.bin --line-documents
      llmgpu tokenize --vocab v.bin --decode -o text corpus.bin
    """

    # fmt: off
    files: tuple[str, ...] = argument("[FILE...|-]", many=True)
    vocab: str = groups.vocab()
    output: str = option("-", str, "Output file; - for stdout.", "--output", "-o", metavar="FILE")
    format_name: str | None = option(
        None, (*FORMATS, SHOWN),
        f"Format of the ids: {describe(FORMATS)}; or {SHOWN}, one line per token with its id and "
        "text (on a terminal, the text with its tokens in color).", "--format",
        default_words="by the extension of -o, else ids; detected with --decode")
    match: str | None = option(
        None, MATCH_RULES,
        "How words become tokens: longest token first (greedy) or merges in order (bpe).",
        default_words="the vocabulary's rule")
    decode: bool = option(False, bool, "Convert files of ids back to text.")
    count: bool = option(False, bool, "Print only the number of tokens.")
    line_documents: bool = option(
        False, bool, "Make each line a document, and write it as it arrives.")
    threads: int | None = groups.encoding_threads()
    layout: str = output_option("raw", LAYOUTS, f"Layout for --format bin: {describe(LAYOUTS)}.")
    shard_tokens: int | None = output_option(
        None, "tokens",
        "Write shards of N tokens (100M, 1B): OUT-000000.bin, OUT-000001.bin, ..., and the "
        "manifest OUT.json.", metavar="N")
    split: tuple[tuple[str, float], ...] = output_option(
        (), "share",
        "Write a random share of the documents to a separate file: val=0.01 puts 1% of them into "
        "OUT-val.bin (val.bin next to train.bin). A --part draws from its own documents. "
        "Repeatable.", metavar="NAME=SHARE", many=True)
    split_by: str = output_option(
        "documents", ("documents", "position"),
        "How --split selects text: random documents, or by position, for a text in one file "
        "(val=0.1 is its last tenth, starting at a line).", needs=("split",))
    chunk_tokens: int | None = output_option(
        None, "tokens",
        "Cut documents into chunks of N tokens; each chunk becomes a document.", metavar="N")
    overlap: int = output_option(
        0, int, "Start each chunk with the last K tokens of the previous one.", metavar="K",
        least=0, needs=("chunk_tokens",))
    seed: int = output_option(
        0, int, "Random seed for --split and --shuffle.", least=0, needs=("split", "shuffle"))
    shuffle: bool = output_option(
        False, bool,
        "Write documents in random order; needs 4 extra bytes of disk space per token.")
    max_tokens: int | None = option(
        None, "tokens",
        "Stop after N tokens (4096, 100M), even in the middle of a document.", metavar="N")
    resume: bool = option(
        False, bool,
        "Resume an interrupted run. The text is re-tokenized and compared with finished shards, "
        "which are not rewritten.", needs=("shard_tokens",))
    token_dtype: str | None = groups.token_dtype(needs=("decode",))
    part: Part | str | None = groups.part()
    force: bool = groups.force()
    special: SpecialTokenOptions = group(SpecialTokenOptions)
    selection: FileOptions = group(FileOptions)
    reading: ReadingOptions = group(ReadingOptions)
    chat: ChatOptions = group(ChatOptions)
    device: str = groups.device()
    # fmt: on


@command("count", "count:count", opens=partial(open_device, "paths"))
class CountCommand:
    """Count the tokens of files, folders or globs, or of a pipe: wc for tokens.

    \b
    Examples:
      llmgpu count --vocab v.bin corpus.txt
      llmgpu count --vocab cl100k --vocab o200k src --per folder --sort tokens
      llmgpu count --vocab v.bin corpus.jsonl --per document
      git diff | llmgpu count --vocab o200k --budget 8K
    """

    # fmt: off
    paths: tuple[str, ...] = argument("[PATH...|-]", many=True)
    vocabs: tuple[str, ...] = option(
        MISSING, str, f"{groups.VOCAB_HELP} Repeatable: one column each.", "--vocab",
        metavar="VOCAB", many=True)
    per: str = option(
        "file", ("file", "folder", "document", "total"),
        "Print one line per file or folder, or only the total; document prints how long documents "
        "are: median, 90th and 99th percentile, and the share above powers of two.")
    line_documents: bool = option(False, bool, "Make each line a document.")
    sort: str | None = option(
        None, ("path", "tokens", "bytes"),
        "Sort by path, or by tokens (of the first VOCAB) or bytes, largest first.",
        default_words="input order")
    budget: int | None = option(
        None, "tokens",
        "Exit with code 3 if there are more than N tokens in total (50K, 2M).", metavar="N")
    budget_per_file: int | None = option(
        None, "tokens", "Exit with code 3 if a file has more than N tokens.", metavar="N")
    threads: int | None = groups.encoding_threads()
    part: Part | str | None = groups.part()
    special: SpecialTokenOptions = group(SpecialTokenOptions)
    chat: ChatOptions = group(ChatOptions)
    files: FileOptions = group(FileOptions)
    reading: ReadingOptions = group(ReadingOptions)
    device: str = groups.device()
    # fmt: on
