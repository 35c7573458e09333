"""What ``llmgpu tokenize`` does: text to ids, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import click

from llmgpu.backend import TOKENIZING_FROM, Backend, begin_growth, start_selecting
from llmgpu.bpe.encoding.encoder import Encoder, ReusedMemory
from llmgpu.bpe.encoding.open import open_encoder, prepare_vocabulary
from llmgpu.bpe.encoding.special_encoding import ids_around
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.interchange.open import find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import EncodingOptions, with_chat
from llmgpu.cli.console import Reporter, human_bytes, left_out_of, print_json, print_result
from llmgpu.cli.decoding import decode_files, files_of_ids, read_for
from llmgpu.cli.given import refuse_given
from llmgpu.cli.options import READING_INPUT, gpu_from, make_corpus_options, take_group
from llmgpu.cli.parts import PartJob
from llmgpu.cli.source_options import lists_of_files, named_files, resolve_texts, take_selection
from llmgpu.cli.token_output import TokenOutput, check_files, open_sinks
from llmgpu.files import STANDARD_OUTPUT, writes_directly
from llmgpu.input_files import number_of
from llmgpu.memory import Growth
from llmgpu.resume_key import Run
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.normalizing import get_normalizer
from llmgpu.text.parts import Part, is_one_document, split_by_position
from llmgpu.text.sources import Sources
from llmgpu.tokens.chunks import Chunks
from llmgpu.tokens.conversations import MaskingEncoder
from llmgpu.tokens.formats import SHOWN, check_ending, format_by_name
from llmgpu.tokens.shards import finished_job
from llmgpu.tokens.sinks import TokenSink
from llmgpu.tokens.splitting import (
    FirstTokens,
    ShuffledSink,
    SplitSink,
    check_shares,
    owners_by_file,
    spans_without,
)
from llmgpu.tokens.tokenizing import (
    encode_corpus,
    encode_into,
    encoding_key,
    require_rereadable,
)

# The encoder used last: when the process ends, the system frees the memory of a device faster.
_used: list[Encoder] = []
_LEAST_TOLD = 1 << 20  # bytes of text; the memory that less takes is not worth a line
_OF_TEXT = (
    *("text_field", "encoding_errors", "limit", "bad_rows"),
    *("input_format", "exclude", "gitignore"),
)
_OF_ENCODING = (
    *("count", "line_documents", "chat", "chat_template", "max_tokens", "part", "threads"),
    *("allowed_special", "disallow_special", "bos", "eos", "add_special_tokens"),
    *("split", "split_by", "seed", "shuffle", "shard_tokens", "resume", "chunk_tokens", "overlap"),
)
_OF_OUTPUT = (
    *("output", "format_name", "layout", "shard_tokens", "split", "seed", "shuffle"),
    *("split_by", "resume", "force"),
)
_TO_OUTPUT = ("layout", "shard_tokens", "resume", "force", "seed", "shuffle", "split_by")


@dataclass(frozen=True)
class _Text:
    """What is tokenized, and how."""

    files: Sources
    options: CorpusOptions
    special: SpecialOptions
    threads: int | None
    max_tokens: int | None
    chunk: tuple[int, int] | None
    splits: list[int] | None


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
    max_tokens: int | None,
    part: Part | str | None,
    device: str,
    as_json: bool,
    quiet: bool,
    chunk_tokens: int | None,
    overlap: int,
    token_dtype: str | None,
    **options: Any,
) -> None:
    """Tokenize text: files, folders or globs, stdin by default. Each file is a document."""
    report = Reporter(quiet=quiet, prints_data=output == STANDARD_OUTPUT and not count)
    _check_unused(decode=decode, count=count)
    job = PartJob(part, output, report)
    encoding = take_group(EncodingOptions, options)
    target = _take_output(options, job.output, format_name, decode=decode, chat=encoding.chat)
    chunk = _chunk(chunk_tokens, overlap)
    files = named_files(files, options.pop("files_from"))
    selection = take_selection(options)
    sources = files or _input(report)
    found = Sources([], 0) if decode else resolve_texts(sources, selection)
    ids = files_of_ids(sources, format_name) if decode else []
    vocabulary_files = find_vocabulary(vocab)
    if not count:
        read = [*sources, *read_for(ids)] if decode else [source.path for source in found.files]
        named = [*filter(None, [encoding.chat_template]), *lists_of_files()]
        check_files(target, [*vocabulary_files.inputs, *named, *read], decode, job.outputs)
        if not (decode or format_name):
            check_ending(target.name)
    reading = make_corpus_options(line_documents=line_documents, **options)
    found, firsts = _take(found, reading, target, job)
    growth = begin_growth()
    selected = start_selecting(device, found.total_bytes, gpu_from(TOKENIZING_FROM), joins=True)
    vocabulary = vocabulary_files.read(report.note)
    vocabulary = encoding.with_template(vocabulary.with_match(match or vocabulary.match))
    if decode:
        between = reading.separators
        summary = decode_files(ids, vocabulary, vocab, target, token_dtype, between, report)
    else:
        special = encoding.special_tokens(vocabulary, report)
        prepare_vocabulary(vocabulary, device, found.total_bytes)
        with encoding.conversations(vocabulary) as chat:
            reading = with_chat(reading, chat)
            text = _Text(found, reading, special, threads, max_tokens, chunk, firsts)
            written = None if count else target
            summary = _tokenize(text, vocabulary, selected, written, job, report, growth)
    if as_json:
        print_json(summary, to_stderr=output == STANDARD_OUTPUT and not count)
    elif count:
        print_result(summary["tokens"])


def _take_output(
    options: dict[str, Any], name: str, format_name: str | None, *, decode: bool, chat: bool
) -> TokenOutput:
    """Take the options of the output; UsageError for some that can't be combined."""
    format = format_name or ("ids" if decode else format_by_name(name))
    output = TokenOutput(
        name=name,
        format=format,
        masked=chat and format == "bin" and not writes_directly(name),
        split=dict(options.pop("split")),
        **{name: options.pop(name) for name in _TO_OUTPUT},
    )
    _check_output(output)
    return output


def _chunk(tokens: int | None, overlap: int) -> tuple[int, int] | None:
    """Return the length of chunks and their overlap; UsageError for numbers that don't fit."""
    if tokens is None:
        refuse_given(("overlap",), "needs --chunk-tokens N")
        return None
    if overlap >= tokens:
        raise click.UsageError(f"--overlap {overlap} must be less than --chunk-tokens {tokens}")
    return tokens, overlap


def _take(
    sources: Sources, options: CorpusOptions, output: TokenOutput, job: PartJob
) -> tuple[Sources, list[int] | None]:
    """Return what is read, and which files begin the splits by position, if there are any."""
    if output.split_by == "position":
        return split_by_position(sources, output.split, options)
    if output.split and is_one_document(sources, options):
        raise click.UsageError(
            f"{sources.files[0].path} is a single document, which --split can't divide: add "
            "--split-by position to cut it, or --line-documents to make each line a document"
        )
    return job.take(sources, options), None


def _input(report: Reporter) -> tuple[str, ...]:
    report.line(READING_INPUT)
    return ("-",)


def _check_unused(*, decode: bool, count: bool) -> None:
    """Raise click.UsageError for options that have no effect on what is done."""
    if not decode:
        refuse_given(("token_dtype",), "is for --decode")
        if count:
            refuse_given(_OF_OUTPUT, "can't be combined with --count, which writes no ids")
        return
    refuse_given(_OF_TEXT, "is for text, not for --decode")
    refuse_given(_OF_ENCODING, "can't be combined with --decode")
    if click.get_current_context().params["format_name"] == SHOWN:
        raise click.UsageError(f"--decode can't read --format {SHOWN}")


def _check_output(output: TokenOutput) -> None:
    """Raise click.UsageError for options that can't be combined."""
    if output.layout != "raw" and output.format != "bin":
        raise click.UsageError("--layout needs --format bin, or -o NAME.bin")
    if output.resume and output.shard_tokens is None:
        raise click.UsageError("--resume needs --shard-tokens N")
    if output.split and output.name == STANDARD_OUTPUT:
        raise click.UsageError("--split needs -o FILE")
    if not output.split:
        refuse_given(("split_by",), "needs --split NAME=SHARE")
    if output.split_by == "position":
        why = "can't be combined with --split-by position, which keeps the order"
        refuse_given(("shuffle", "seed", "part", "max_tokens", "chunk_tokens"), why)
    if not (output.split or output.shuffle):
        refuse_given(("seed",), "is for --split and --shuffle")
    if output.format == SHOWN and (output.split or output.shuffle or output.shard_tokens):
        raise click.UsageError(
            f"--format {SHOWN} can't be combined with --split, --shuffle or --shard-tokens"
        )
    check_shares(output.split)
    if output.shard_tokens is None:
        return
    if output.format != "bin" or output.name == STANDARD_OUTPUT:
        raise click.UsageError("--shard-tokens needs --format bin and -o OUT.bin")


def _key(source: _Text, output: TokenOutput, job: PartJob) -> Run:
    """Return the resume key of the ids; an empty one if they can't be resumed."""
    if not output.shard_tokens and not job.is_recorded:
        return {}
    if output.resume:
        require_rereadable(source.files)
    key = {
        **encoding_key(source.files, source.options, source.special),
        **({"max tokens": source.max_tokens} if source.max_tokens else {}),
        **({"split": output.split, "seed": output.seed} if output.split else {}),
        **({"order": output.seed} if output.shuffle else {}),
        **({"split by": output.split_by} if output.split_by != "documents" else {}),
        **({"chunks": source.chunk} if source.chunk else {}),
    }
    return job.key(source.files, key)


def _output_key(output: TokenOutput, vocabulary: Vocabulary, key: Run) -> Run:
    """Return the key with all else that the output depends on."""
    facts = {name: getattr(output, name) for name in ("format", "layout", "shard_tokens", "split")}
    return {
        **key,
        **facts,
        "vocabulary": vocabulary.fingerprint,
        "match": vocabulary.match,
    }


def _finished(output: TokenOutput, vocabulary: Vocabulary, key: Run) -> dict[str, Any] | None:
    """Return the sums of all shards if none is left to write."""
    assert output.shard_tokens is not None
    job = vocabulary, output.shard_tokens, output.layout, key
    manifests = [manifest for name in output.names if (manifest := finished_job(name, *job))]
    if len(manifests) < len(output.names):
        return None
    sums = {"tokens": "count", "text_bytes": "bytes", "documents": "documents"}
    return {name: sum(manifest[fact] for manifest in manifests) for name, fact in sums.items()}


def _tokenize(
    source: _Text,
    vocabulary: Vocabulary,
    selected: Callable[[], Backend],
    output: TokenOutput | None,
    job: PartJob,
    report: Reporter,
    growth: Growth,
) -> dict[str, Any]:
    """Tokenize a text, only counting if there is no output; return the summary."""
    key = _key(source, output, job) if output else {}
    if output and (finished := job.finished(_output_key(output, vocabulary, key))):
        report.line(f"nothing to do: {output.name} has all of part {job.part}")
        return finished
    if output and output.resume and (finished := _finished(output, vocabulary, key)):
        report.line(f"nothing to do: all shards of {output.name} are finished")
        return finished | {"fingerprint": vocabulary.fingerprint}
    added = {*chain(*ids_around(vocabulary, source.special))}
    with Corpus(source.files, source.options) as text, ExitStack() as unused:
        sink = None
        if output and writes_directly(output.name):
            selected()  # a reader need not wait for an output that fails
        if output:
            owners = owners_by_file(text, source.splits) if source.splits else None
            sink = open_sinks(output, vocabulary, added, key, report, owners)
            unused.callback(sink.abort)
            if source.max_tokens is None and source.options.limit is None:
                sink.expect(source.files.plain_bytes)  # while the device is being opened
        backend = selected()
        report.line(f"tokenizing on {backend.description}")
        encoder = _open_encoder(source, vocabulary, backend, added, report)
        if source.options.chat and output and not output.masked:
            report.note(
                f"format {output.format} can't record which tokens the assistant wrote; use "
                "--format bin and an output file"
            )
        unused.pop_all()
        summary = _encode(text, encoder, sink, report, growth)
    summary |= {"fingerprint": vocabulary.fingerprint, "device": backend.description}
    if isinstance(encoder, MaskingEncoder):
        summary["assistant_tokens"] = encoder.counted
    if backend.shares:
        summary["text_bytes_by_device"] = backend.shares
    if output:
        job.finish(summary)
    _print_summary(report, summary, output.names if output else ())
    return summary


def _open_encoder(
    source: _Text,
    vocabulary: Vocabulary,
    backend: Backend,
    added: set[int],
    report: Reporter,
) -> Encoder:
    """Open an encoder that does all that is asked for; added: ids that stand for no text."""
    if vocabulary.normalizer:
        name = get_normalizer(vocabulary.normalizer).name
        report.note(f"text is normalized ({name}) before encoding")
    special, threads, total = source.special, source.threads, source.files.total_bytes
    encoder: Encoder = open_encoder(
        vocabulary, backend, special=special, threads=threads, text_bytes=total
    )
    _used[:] = [encoder]
    if source.options.chat is not None:
        encoder = MaskingEncoder(encoder, source.options.chat, vocabulary)
    if source.chunk:
        encoder = Chunks(encoder, *source.chunk, spans_without(vocabulary, added))
    if source.max_tokens:
        encoder = FirstTokens(encoder, source.max_tokens, spans_without(vocabulary, added))
    return encoder


def _encode(
    text: Corpus,
    encoder: Encoder,
    sink: TokenSink | None,
    report: Reporter,
    growth: Growth,
) -> dict[str, Any]:
    """Tokenize into a sink, or only count; return the summary."""
    start = time.perf_counter()
    tokens, parts = 0, {}

    def estimate() -> None:
        memory = growth.estimate(text.left)
        if memory is not None:
            report.need_memory(memory, is_small=text.bytes_read < _LEAST_TOLD)

    def progress(phase: str, done: int, total: int | None) -> None:
        report(phase, done, total)
        estimate()

    try:
        if sink is None:
            for piece in encode_corpus(encoder, text, ReusedMemory()):
                tokens += len(piece.ids)
                progress("tokenizing", text.bytes_read, text.total_bytes)
        else:
            with sink:
                encode_into(sink, encoder, text, progress)
            tokens = sink.ids
            split = sink.sink if isinstance(sink, ShuffledSink) else sink
            if isinstance(split, SplitSink):
                sizes = ({"tokens": part.ids, "documents": part.documents} for part in split.sinks)
                parts = {"parts": [*sizes]}
        estimate()  # a single long pre-token is there all at once
    finally:
        report.close()
    seconds = time.perf_counter() - start
    taken = encoder if isinstance(encoder, (FirstTokens, Chunks)) else text
    return {
        "tokens": tokens,
        "text_bytes": taken.text_bytes,
        "documents": taken.documents,
        **parts,
        **left_out_of(text),
        "bytes_per_token": round(taken.text_bytes / tokens, 6) if tokens else None,
        "estimated_memory_bytes": report.needed_bytes or None,
        "seconds": round(seconds, 3),
        "mb_per_second": round(text.text_bytes / seconds / 1e6, 3),
    }


def _print_summary(report: Reporter, summary: dict[str, Any], names: Sequence[str]) -> None:
    report.note_left_out(summary)
    if summary["tokens"]:
        replies = summary.get("assistant_tokens")
        rate = human_bytes(summary["text_bytes"] / max(summary["seconds"], 1e-3))
        report.line(
            f"{number_of(summary['tokens'], 'token')} from {human_bytes(summary['text_bytes'])} in "
            f"{number_of(summary['documents'], 'document')}, "
            f"{summary['bytes_per_token']:.2f} bytes per token; "
            + (f"{replies:,} are the assistant's; " if replies is not None else "")
            + f"{summary['seconds']:.2f} s, {rate}/s"
        )
    for name, part in zip(names, summary.get("parts", ()), strict=False):
        tokens = number_of(part["tokens"], "token")
        report.line(f"{name}: {tokens} in {number_of(part['documents'], 'document')}")
        if not part["documents"]:
            report.note(
                f"{name} got no documents: use a larger share, make each line a document "
                "(--line-documents), or cut the text by position (--split-by position)"
            )
