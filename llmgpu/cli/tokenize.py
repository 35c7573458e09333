"""What ``llmgpu tokenize`` does: text to ids, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from llmgpu.backend import start_selecting
from llmgpu.bpe.encoding.encoder import Encoder, ReusedMemory
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_encoding import SpecialOptions, token_id
from llmgpu.bpe.interchange.open import find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter, human_bytes, left_out_of, print_json, print_result
from llmgpu.cli.options import (
    READING_INPUT,
    gpu_from,
    make_corpus_options,
    make_special_options,
)
from llmgpu.files import STANDARD_OUTPUT, atomic_output
from llmgpu.memory import Growth
from llmgpu.outputs import TEXT, Output, check_outputs
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Sources, resolve_sources
from llmgpu.tokens.bin import matched_as, read_side_file, side_path
from llmgpu.tokens.formats import (
    format_by_name,
    open_writer,
    outputs,
    read_tokens,
    recognize_format,
)
from llmgpu.tokens.shards import ShardNames, ShardWriter
from llmgpu.tokens.sinks import TokenSink
from llmgpu.tokens.tokenizing import (
    GPU_FROM,
    encode_corpus,
    encode_into,
    encoding_key,
    require_rereadable,
)


@dataclass(frozen=True)
class _Output:
    """Where ids go, by the options of the same names."""

    name: str
    format: str
    layout: str
    shard_tokens: int | None
    resume: bool
    force: bool


def tokenize(
    files: tuple[str, ...],
    vocab: str,
    output: str,
    format_name: str | None,
    match: str | None,
    decode: bool,
    count: bool,
    line_documents: bool,
    threads: int | None,
    shard_tokens: int | None,
    layout: str,
    resume: bool,
    force: bool,
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
    """Tokenize text: files, folders or globs, stdin by default. Each file is a document."""
    if decode and (count or line_documents):
        raise click.UsageError("--decode can't be combined with --count or --line-documents")
    by_name = "ids" if decode else format_by_name(output)
    target = _Output(output, format_name or by_name, layout, shard_tokens, resume, force)
    _check_output(target, is_encoding=not (decode or count))
    special = make_special_options(allowed_special, disallow_special, bos, eos)
    if decode and not special.is_plain:
        raise click.UsageError("--decode takes no special tokens: their ids become their text")
    report = Reporter(quiet=quiet)
    if not files:
        report.line(READING_INPUT)
    sources = files or ("-",)
    found = Sources([], 0) if decode else resolve_sources(sources)
    ids = [(name, format_name or recognize_format(name)) for name in sources] if decode else []
    vocabulary_files = find_vocabulary(vocab)
    if not count:
        read = _read_for(ids) if decode else [source.path for source in found.files]
        _check_files(target, [*vocabulary_files.inputs, *read], decode)
    growth = Growth()  # before a device is opened, which takes memory, too
    selected = start_selecting(device, found.total_bytes, gpu_from(GPU_FROM))
    vocabulary = vocabulary_files.read(report.note)
    vocabulary = vocabulary.with_match(match or vocabulary.match)
    if decode:
        summary = _decode(ids, vocabulary, vocab, target)
    else:
        options = make_corpus_options(line_documents=line_documents, **reading)
        backend = selected()
        report.line(f"tokenizing on {backend.description}")
        if vocabulary.normalizer:
            report.line(f"note: text is normalized ({vocabulary.normalizer}) before it is encoded")
        encoder = open_encoder(vocabulary, backend, special=special, threads=threads)

        def open_sink() -> TokenSink:
            if shard_tokens is None:
                return open_writer(
                    output,
                    target.format,
                    vocabulary_size=vocabulary.size,
                    fingerprint=vocabulary.fingerprint,
                    match_facts=vocabulary.match_facts,
                    layout=layout,
                    force=force,
                )
            return _open_shards(target, vocabulary, found, options, special, report)

        with Corpus(found, options) as text:
            summary = _encode(text, encoder, None if count else open_sink, report, growth)
        summary |= {"fingerprint": vocabulary.fingerprint, "device": backend.description}
        if backend.shares:
            summary["text_bytes_by_device"] = backend.shares
        _print_summary(report, summary)
    if as_json:
        print_json(summary, to_stderr=output == "-" and not count)
    elif count:
        print_result(summary["tokens"])


def _check_output(output: _Output, is_encoding: bool) -> None:
    """Raise click.UsageError for options that can't be combined."""
    if output.layout != "raw" and output.format != "bin":
        raise click.UsageError("--layout needs --format bin")
    if output.resume and output.shard_tokens is None:
        raise click.UsageError("--resume needs --shard-tokens N")
    if output.shard_tokens is None:
        return
    if not is_encoding:
        raise click.UsageError("--shard-tokens can't be combined with --decode or --count")
    if output.format != "bin" or output.name == STANDARD_OUTPUT:
        raise click.UsageError("--shard-tokens needs --format bin and -o OUT.bin")


def _read_for(ids: Sequence[tuple[str, str]]) -> list[str]:
    """Return the files that decoding `ids`, files and their formats, reads."""
    sides = [side_path(name) for name, format in ids if format == "bin" and name != "-"]
    return [*(name for name, _ in ids), *sides]


def _check_files(output: _Output, read: Sequence[str], decode: bool) -> None:
    """Raise OutputError if writing would destroy what is read, or a file of another kind."""
    if output.shard_tokens is not None:
        written = ShardNames(output.name).outputs()
    else:
        written = (
            [Output(output.name, TEXT)]
            if decode
            else outputs(output.name, output.format, output.layout)
        )
    check_outputs(written, read, force=output.force)


def _open_shards(
    output: _Output,
    vocabulary: Vocabulary,
    sources: Sources,
    options: CorpusOptions,
    special: SpecialOptions,
    report: Reporter,
) -> ShardWriter:
    assert output.shard_tokens is not None
    if output.resume:
        require_rereadable(sources)
    around = [token for token in (special.bos, special.eos) if token is not None]
    shards = ShardWriter(
        output.name,
        vocabulary,
        output.shard_tokens,
        layout=output.layout,
        added={token_id(vocabulary, token) for token in around},
        run=encoding_key(sources, options, special),
        resume=output.resume,
        force=output.force,
    )
    if output.resume:
        progress = ShardNames(output.name).progress
        report.line(
            f"resuming from {progress}: {shards.kept:,} shards are finished"
            if shards.kept
            else f"note: no finished shard in {progress} to resume from: starting from scratch"
        )
    return shards


def _encode(
    text: Corpus,
    encoder: Encoder,
    open_sink: Callable[[], TokenSink] | None,
    report: Reporter,
    growth: Growth,
) -> dict[str, Any]:
    """Tokenize into a sink, or only count; return the summary."""
    start = time.perf_counter()
    tokens = 0

    def progress(phase: str, done: int, total: int | None) -> None:
        report(phase, done, total)
        memory = growth.estimate(text.left)
        if memory is not None:
            report.need_memory(memory)

    try:
        if open_sink is None:
            for piece in encode_corpus(encoder, text, ReusedMemory().allocate):
                tokens += len(piece.ids)
                progress("tokenizing", text.bytes_read, text.total_bytes)
        else:
            with open_sink() as sink:
                encode_into(sink, encoder, text, progress)
            tokens = sink.ids
    finally:
        report.close()
    seconds = time.perf_counter() - start
    return {
        "tokens": tokens,
        "text_bytes": text.text_bytes,
        "documents": text.documents,
        **left_out_of(text),
        "bytes_per_token": round(text.text_bytes / tokens, 6) if tokens else None,
        "estimated_memory_bytes": report.needed_bytes or None,
        "seconds": round(seconds, 3),
        "mb_per_second": round(text.text_bytes / seconds / 1e6, 3),
    }


def _print_summary(report: Reporter, summary: dict[str, Any]) -> None:
    report.note_left_out(summary)
    if summary["tokens"]:
        report.line(
            f"{summary['tokens']:,} tokens from {human_bytes(summary['text_bytes'])} in "
            f"{summary['documents']:,} documents, {summary['bytes_per_token']:.2f} bytes a token; "
            f"{summary['seconds']:.2f} s, {summary['mb_per_second']:.1f} MB/s"
        )


def _decode(
    sources: Sequence[tuple[str, str]], vocabulary: Vocabulary, vocab: str, output: _Output
) -> dict[str, Any]:
    """Decode files of ids, each with its format; return the summary."""
    size, tokens, text_bytes = vocabulary.size, 0, 0
    with atomic_output(output.name) as file:
        for source, format in sources:
            if format == "bin" and source != "-":
                made_with = str(read_side_file(source)["fingerprint"])
                matched_as(source, made_with, vocabulary, vocab)
            blocks = read_tokens(source, format, vocabulary_size=size, layout=output.layout)
            for ids in blocks:
                data = vocabulary.decode(ids)
                file.write(data)
                tokens += len(ids)
                text_bytes += len(data)
    return {"tokens": tokens, "text_bytes": text_bytes, "fingerprint": vocabulary.fingerprint}
