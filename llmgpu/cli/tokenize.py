"""``llmgpu tokenize``: text to ids, and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from llmgpu.backend import Backend, select_backend
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.id_buffers import ReusedMemory
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.vocabulary.vocabulary import MATCH_RULES, Vocabulary
from llmgpu.cli.console import (
    Reporter,
    human_bytes,
    left_out_of,
    print_json,
    report_left_out,
)
from llmgpu.cli.options import (
    corpus_options,
    device_option,
    make_corpus_options,
    make_special_options,
    output_options,
    special_options,
)
from llmgpu.cli.shards import Cut, check_shard_options, open_sink, shard_options
from llmgpu.files import atomic_output
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Sources, resolve_sources
from llmgpu.tokens.bin import check_fingerprint, read_side_file
from llmgpu.tokens.formats import FORMATS, describe_formats, read_tokens
from llmgpu.tokens.sinks import TokenSink
from llmgpu.tokens.tokenizing import encode_corpus, encode_into


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE...|-]")
@click.option(
    "--vocab", required=True, metavar="FILE", help="Vocabulary file of bpe-train or import."
)
@click.option(
    "--output",
    "-o",
    default="-",
    show_default=True,
    metavar="FILE",
    help="File to write; - for stdout.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(FORMATS)),
    default="ids",
    show_default=True,
    help=f"Format of the ids: {describe_formats()}.",
)
@click.option(
    "--match",
    type=click.Choice(MATCH_RULES),
    show_default="that of the vocabulary",
    help="How words become tokens: longest token first (greedy), or merges in order (bpe).",
)
@click.option("--decode", is_flag=True, help="Convert ids in --format back to text.")
@click.option("--count", is_flag=True, help="Only print the number of tokens.")
@click.option(
    "--line-documents", is_flag=True, help="Make each line a document, written as it arrives."
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    show_default="number of processors, up to 4",
    help="Number of threads that encode without a GPU.",
)
@shard_options
@special_options
@corpus_options
@device_option
@output_options
def tokenize(
    files: tuple[str, ...],
    vocab: str,
    output: str,
    format_name: str,
    match: str | None,
    decode: bool,
    count: bool,
    line_documents: bool,
    threads: int | None,
    shard_tokens: int | None,
    layout: str,
    resume: bool,
    device: str,
    as_json: bool,
    quiet: bool,
    debug: bool,
    allowed_special: tuple[str, ...],
    disallow_special: tuple[str, ...],
    bos: str | None,
    eos: str | None,
    **reading: Any,
) -> None:
    """Tokenize text: files, folders or globs, stdin by default. Each file is a document.

    \b
    Example:
      llmgpu tokenize --vocab v.bin corpus.txt -o corpus.bin --format bin
      llmgpu tokenize --vocab v.bin 'data/*.jsonl' -o o.bin --format bin --shard-tokens 100M
      echo 'a line' | llmgpu tokenize --vocab v.bin
      tail -f log | llmgpu tokenize --vocab v.bin --line-documents
      llmgpu tokenize --vocab v.bin --decode -o text ids.txt
    """
    if decode and (count or line_documents):
        raise click.UsageError("--decode can't be combined with --count or --line-documents")
    cut = Cut(shard_tokens, layout, resume)
    check_shard_options(cut, output, format_name, is_encoding=not (decode or count))
    special = make_special_options(allowed_special, disallow_special, bos, eos)
    if decode and not special.is_plain:
        raise click.UsageError("--decode takes no special tokens: their ids become their text")
    report = Reporter(quiet=quiet)
    vocabulary = Vocabulary.load(vocab)
    vocabulary = vocabulary.with_match(match or vocabulary.match)
    sources = files or ("-",)
    if decode:
        summary = _decode(sources, vocabulary, vocab, format_name, output, layout)
    else:
        options = make_corpus_options(line_documents=line_documents, **reading)
        backend = select_backend(device, "tokenize")
        report.line(f"tokenizing on {backend.description}")
        if vocabulary.normalizer:
            report.line(f"note: text is normalized ({vocabulary.normalizer}) before it is encoded")
        read_from = resolve_sources(sources)
        reading_as = (cut, read_from, options, special)
        where = partial(open_sink, *reading_as, vocabulary, output, format_name, report)
        target = None if count else where
        encoder = open_encoder(vocabulary, backend, special=special, threads=threads)
        summary = _encode(read_from, options, vocabulary, encoder, backend, target, report)
    if as_json:
        print_json(summary, to_stderr=output == "-" and not count)
    elif count:
        click.echo(summary["tokens"])


def _encode(
    sources: Sources,
    options: CorpusOptions,
    vocabulary: Vocabulary,
    encoder: Encoder,
    backend: Backend,
    target: Callable[[], TokenSink] | None,
    report: Reporter,
) -> dict[str, Any]:
    """Tokenize into the sink that `target` opens, or only count; return the summary."""
    with Corpus(sources, options) as text:
        start = time.perf_counter()
        tokens = 0
        try:
            if target is None:
                for piece in encode_corpus(encoder, text, ReusedMemory().allocate):
                    tokens += len(piece.ids)
                    report("tokenizing", text.bytes_read, text.total_bytes)
            else:
                with target() as writer:
                    encode_into(writer, encoder, text, report)
                tokens = writer.ids
        finally:
            report.close()
        seconds = time.perf_counter() - start
        summary = _summary(text, tokens, seconds, backend, vocabulary)
    _print_summary(report, summary)
    return summary


def _summary(
    text: Corpus, tokens: int, seconds: float, backend: Backend, vocabulary: Vocabulary
) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "text_bytes": text.text_bytes,
        "documents": text.documents,
        **left_out_of(text),
        "bytes_per_token": round(text.text_bytes / tokens, 6) if tokens else None,
        "fingerprint": vocabulary.fingerprint,
        "device": backend.description,
        "seconds": round(seconds, 3),
        "mb_per_second": round(text.text_bytes / seconds / 1e6, 3),
    }


def _print_summary(report: Reporter, summary: dict[str, Any]) -> None:
    report_left_out(report, summary)
    if summary["tokens"]:
        report.line(
            f"{summary['tokens']:,} tokens from {human_bytes(summary['text_bytes'])} in "
            f"{summary['documents']:,} documents, {summary['bytes_per_token']:.2f} bytes a token; "
            f"{summary['seconds']:.2f} s, {summary['mb_per_second']:.1f} MB/s"
        )


def _decode(
    sources: tuple[str, ...],
    vocabulary: Vocabulary,
    vocab: str,
    format_name: str,
    output: str,
    layout: str,
) -> dict[str, Any]:
    tokens = text_bytes = 0
    with atomic_output(output) as file:
        for source in sources:
            if format_name == "bin" and source != "-":
                made_with = str(read_side_file(source)["fingerprint"])
                check_fingerprint(source, made_with, vocabulary.fingerprint, vocab)
            size = vocabulary.size
            for ids in read_tokens(source, format_name, vocabulary_size=size, layout=layout):
                data = vocabulary.decode(ids)
                file.write(data)
                tokens += len(ids)
                text_bytes += len(data)
    return {"tokens": tokens, "text_bytes": text_bytes, "fingerprint": vocabulary.fingerprint}
