"""The work of ``llmgpu tokenize``: text to ids, and back."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import Opening
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.open import open_encoder, prepare_vocabulary, table_bytes
from llmgpu.bpe.interchange.formats import find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import (
    around_text,
    rendering,
    special_options,
    watch_text,
    with_chat,
    with_chat_template,
)
from llmgpu.cli.commands.tokens import TokenizeCommand
from llmgpu.cli.console import (
    Reporter,
    human_bytes,
    is_terminal,
    left_out_of,
    print_result,
    token_style,
)
from llmgpu.cli.groups import (
    FILE_OPTIONS,
    READING_INPUT,
    READING_OPTIONS,
    ChatOptions,
    SpecialTokenOptions,
    resolve_texts,
)
from llmgpu.cli.options import refuse_given
from llmgpu.cli.parts import PartJob
from llmgpu.closing import undoing
from llmgpu.errors import InputError
from llmgpu.file_kinds import MANIFEST, TEXT, kind_of
from llmgpu.files import STANDARD_OUTPUT, atomic_output, writes_directly
from llmgpu.forking import cached_property
from llmgpu.input_files import STANDARD_INPUT, number_of
from llmgpu.option_fields import own_options
from llmgpu.outputs import Output, check_outputs
from llmgpu.resume_key import Run
from llmgpu.text.corpus import Corpus
from llmgpu.text.normalizing import get_normalizer
from llmgpu.text.parts import is_one_document, split_by_position
from llmgpu.tokens.bin import matched_as, note_of_foreign, read_bin, read_side_file
from llmgpu.tokens.filters import (
    Filter,
    SplitSink,
    check_shares,
    drawn_owners,
    first_tokens,
    in_chunks,
    masking,
    owners_by_file,
    shuffled,
    spans_without,
    split_name,
)
from llmgpu.tokens.formats import (
    SHOWN,
    check_ending,
    format_by_name,
    has_side_file,
    open_writer,
    outputs,
    read_tokens,
    recognize_format,
    side_path,
)
from llmgpu.tokens.ids import ShownTokens
from llmgpu.tokens.manifest import shard_files
from llmgpu.tokens.shards import ShardNames, ShardWriter, finished_job
from llmgpu.tokens.sinks import TokenSink
from llmgpu.tokens.tokenizing import (
    encode_into,
    encoding_key,
    known_bytes,
    require_rereadable,
    suggesting_gpu,
)

# The last encoder stays referenced until the process ends: the system frees a device's memory
# faster than Python would.
_used: list[Encoder] = []
_BYTES_A_TOKEN = 4  # estimated bytes of text per token
# Slices in flight need memory, too. So while slices are encoded, estimates of memory assume that
# the whole text is at least this many times the text read.
_IN_FLIGHT = 1.01
# Least seconds between two estimates. An estimate takes 1 ms, as long as encoding 100 kB.
_BETWEEN_ESTIMATES = 0.1
# A file of ids: blocks of ids, int64 (L,), and the positions in the file at which documents start.
_Opened = tuple[Iterator[NDArray[np.int64]], Sequence[int]]
_NO_IDS = np.empty(0, np.int64)
_LEAST_TOLD = 1 << 20  # bytes of text; for less text, the memory needed is not reported
_OF_TEXT = {*READING_OPTIONS, *FILE_OPTIONS} - {"doc_separators", "files_from"}
_OF_ENCODING = {
    *(*own_options(SpecialTokenOptions), *own_options(ChatOptions)),
    *("count", "line_documents", "max_tokens", "part", "threads"),
    *("split", "split_by", "seed", "shuffle", "shard_tokens", "resume", "chunk_tokens", "overlap"),
}
_OF_OUTPUT = (
    *("output", "format_name", "layout", "shard_tokens", "split", "seed", "shuffle"),
    *("split_by", "resume", "force"),
)


def tokenize(asked: TokenizeCommand, report: Reporter, opening: Opening) -> None:
    """Tokenize text: files, folders or globs, stdin by default. Each file is a document."""
    prints_data = asked.output == STANDARD_OUTPUT and not asked.count
    # On a terminal, data shows the progress, and redrawing a bar would erase the data.
    report.shows_progress &= not (prints_data and is_terminal(sys.stdout))
    if asked.decode:
        summary = _decode(asked, report)
    else:
        summary = _Tokenizing(asked, report, opening).carry_out()
    report.summarize(summary, to_stderr=prints_data)
    if asked.count and not report.as_json:
        print_result(summary["tokens"])


def _names(asked: TokenizeCommand, report: Reporter) -> tuple[str, ...]:
    """Return the names of the files to read, standard input by default."""
    names = asked.selection.named(asked.files)
    if not names:
        report.line(READING_INPUT)
    return names or (STANDARD_INPUT,)


def _check_options(asked: TokenizeCommand, format: str) -> None:
    """Raise UsageError for options that can't be combined; format: of the ids."""
    is_named = asked.output != STANDARD_OUTPUT
    if asked.layout != "raw" and format != "bin":
        raise click.UsageError("--layout needs --format bin, or -o NAME.bin")
    if asked.split and not is_named:
        raise click.UsageError("--split needs -o FILE")
    if asked.split_by == "position":
        why = "can't be combined with --split-by position, which keeps the order"
        refuse_given(("shuffle", "seed", "part", "max_tokens", "chunk_tokens"), why)
    if format == SHOWN and (asked.split or asked.shuffle or asked.shard_tokens):
        raise click.UsageError(
            f"--format {SHOWN} can't be combined with --split, --shuffle or --shard-tokens"
        )
    check_shares(dict(asked.split))
    if asked.shard_tokens is not None and not (format == "bin" and is_named):
        raise click.UsageError("--shard-tokens needs --format bin and -o OUT.bin")
    if asked.chunk_tokens is not None and asked.overlap >= asked.chunk_tokens:
        raise click.UsageError(
            f"--overlap {asked.overlap} must be less than --chunk-tokens {asked.chunk_tokens}"
        )


class _Tokenizing:
    """The job of turning a text into ids.

    names: the files of ids, with the part in their names: first the file for documents of no split,
        then a file for each split. format: in `llmgpu.tokens.formats`. split: shares of the splits
        by name. masked: whether a loss mask, which marks the ids that the assistant wrote, is
        stored beside the ids.
    files: the sources to read; a job in parts reads only the sources of its part. firsts: for
        --split-by position, the index in `files` of each split's first file.
    size: estimated bytes of text; None if unknown.
    chunk: the length and the overlap, in tokens, of the chunks into which documents are cut.
    spans: number of bytes of text for each id, see `spans_without`.
    """

    def __init__(self, asked: TokenizeCommand, report: Reporter, opening: Opening) -> None:
        """Find the files, check the outputs, and read the vocabulary while the device opens."""
        self.asked, self.report, self.opening = asked, report, opening
        # Check options and names of files before any file is opened.
        if asked.count:
            refuse_given(_OF_OUTPUT, "can't be combined with --count, which writes no ids")
        self.job = job = PartJob(asked.part, asked.output, report)
        special = special_options(asked.special, asked.chat)
        self.name, self.split = name, split = job.output, dict(asked.split)
        self.names = [name, *(split_name(name, part) for part in split)]
        self.format = format = asked.format_name or format_by_name(name)
        self.masked = asked.chat.chat and format == "bin" and not writes_directly(name)
        _check_options(asked, format)
        found = resolve_texts(_names(asked, report), asked.selection.selection())
        vocabulary_files = find_vocabulary(asked.vocab)
        # Check the outputs and their format.
        if not asked.count:
            read = [asked.chat.chat_template, asked.selection.files_from, *vocabulary_files.inputs]
            read += [each.path for each in found.files]
            check_outputs([*self._outputs(), *job.outputs], read, force=asked.force)
            if not asked.format_name:
                check_ending(name)
            if asked.chat.chat and not self.masked and format != SHOWN:
                where = " on a pipe" if format == "bin" else ""
                raise click.UsageError(
                    f"--chat with format {format}{where} would lose which tokens the "
                    "assistant wrote: add -o FILE.bin, or only --count them"
                )
        # Divide the text.
        self.chunk = None if asked.chunk_tokens is None else (asked.chunk_tokens, asked.overlap)
        self.reading = asked.reading.corpus_options(line_documents=asked.line_documents)
        self.firsts: list[int] | None = None
        if asked.split_by == "position":
            self.files, self.firsts = split_by_position(found, split, self.reading)
        elif split and is_one_document(found, self.reading):
            raise click.UsageError(
                f"{found.files[0].path} is a single document, which --split can't divide: add "
                "--split-by position to cut it, or --line-documents to make each line a document"
            )
        else:
            self.files = job.take(found, self.reading)
        # Begin to open the device, and read the vocabulary.
        self.size = known_bytes(self.files, self.reading.limit)
        if self.size is not None and asked.max_tokens is not None:
            self.size = min(self.size, _BYTES_A_TOKEN * asked.max_tokens)
        is_begun = opening.begin_encoding(self.size)
        vocabulary = vocabulary_files.read(report.note).with_match(asked.match)
        self.vocabulary = with_chat_template(vocabulary, asked.chat.chat_template)
        self.special = around_text(special, asked.special, self.vocabulary, report)
        self.spans = spans_without(self.vocabulary, self.special)
        if is_begun:
            prepare_vocabulary(self.vocabulary, opening)

    def _outputs(self) -> list[Output]:
        """Return the files that the job creates, but for the record of a part."""
        if self.format == SHOWN:
            return [Output(self.name, TEXT)]
        if self.asked.shard_tokens is not None:
            return [file for name in self.names for file in ShardNames(name).outputs()]
        of_file = self.format, self.asked.layout
        written = (outputs(name, *of_file, masked=self.masked) for name in self.names)
        return [*chain.from_iterable(written)]

    @cached_property
    def key(self) -> Run:
        """The resume key of the job; empty if the job can't be resumed."""
        asked = self.asked
        if not (asked.shard_tokens or self.job.is_recorded):
            return {}
        if asked.resume:
            require_rereadable(self.files)
        key = {
            **encoding_key(self.files, self.reading, self.special),
            **({"max tokens": asked.max_tokens} if asked.max_tokens else {}),
            **({"split": dict(asked.split), "seed": asked.seed} if asked.split else {}),
            **({"order": asked.seed} if asked.shuffle else {}),
            **({"split by": asked.split_by} if asked.split_by != "documents" else {}),
            **({"chunks": self.chunk} if self.chunk else {}),
        }
        return self.job.key(self.files, key)

    def carry_out(self) -> dict[str, Any]:
        """Tokenize the text, unless an earlier command has finished the job; return the summary."""
        report, asked = self.report, self.asked
        with ExitStack() as opened:
            conversations = opened.enter_context(rendering(asked.chat, self.vocabulary))
            self.reading = with_chat(self.reading, conversations)
            if finished := self._finished():
                return finished
            text = opened.enter_context(Corpus(self.files, self.reading))
            if writes_directly(self.name):
                # Open the device before a pipe or device file is opened for output, because opening
                # the device may fail.
                self.opening.backend()
            sink = TokenSink(is_direct=True) if asked.count else self._open_sinks(text)
            with undoing(sink.abort):
                if asked.max_tokens is None and self.reading.limit is None:
                    # Prepare the sink for the size of the text while the device is being opened.
                    sink.expect(self.files.plain_bytes)
                # The device is needed from here on: wait until it is open.
                backend = self.opening.backend()
                report.line(f"tokenizing on {backend.description}")
                report.note_missing_engine(backend)
                if self.vocabulary.normalizer:
                    name = get_normalizer(self.vocabulary.normalizer).name
                    report.note(f"text is normalized ({name}) before encoding")
                encoder: Encoder = open_encoder(
                    self.vocabulary,
                    backend,
                    special=self.special,
                    threads=asked.threads,
                    text_bytes=self.size,
                )
            _used[:] = [encoder]
            note = watch_text(text, self.vocabulary, self.special, report)
            summary = self._encode(text, encoder, sink)
            note("")
        summary |= {"fingerprint": self.vocabulary.fingerprint, "device": backend.description}
        if conversations is not None:
            summary["assistant_tokens"] = conversations.in_loss
        self.job.finish(summary)
        _print_summary(report, summary, self.names)
        return summary

    def _finished(self) -> dict[str, Any] | None:
        """Return the summary of a job that has already been finished; None if there is work left.

        If the output is shards, the totals in the summary are read from their manifests.
        """
        asked, vocabulary, key = self.asked, self.vocabulary, self.key
        # The resume key, and all other options that change the output.
        of_output = {
            **key,
            "format": self.format,
            "layout": asked.layout,
            "shard_tokens": asked.shard_tokens,
            "split": self.split,
            "vocabulary": vocabulary.fingerprint,
            "match": vocabulary.match,
        }
        if finished := self.job.finished(of_output):
            self.report.line(f"nothing to do: {self.name} has all of part {self.job.part}")
            return finished
        if not asked.resume or asked.shard_tokens is None:
            return None
        shards = vocabulary, asked.shard_tokens, asked.layout, key
        manifests = [found for name in self.names if (found := finished_job(name, *shards))]
        if len(manifests) < len(self.names):
            return None
        self.report.line(f"nothing to do: all shards of {self.name} are finished")
        sums = {"tokens": "count", "text_bytes": "bytes", "documents": "documents"}
        totals = {name: sum(each[fact] for each in manifests) for name, fact in sums.items()}
        return totals | {"fingerprint": vocabulary.fingerprint}

    def _filters(self) -> list[Filter]:
        """Return the filters of ids for --chunk-tokens, --max-tokens and other options."""
        filters = masking(self.reading.chat, self.vocabulary)
        if self.chunk:
            most, overlap = self.chunk
            filters.append(partial(in_chunks, most=most, overlap=overlap, spans=self.spans))
        if self.asked.max_tokens:
            filters.append(partial(first_tokens, most=self.asked.max_tokens, spans=self.spans))
        if self.asked.shuffle:
            is_piped = self.name == STANDARD_OUTPUT
            folder = None if is_piped else os.path.dirname(self.name) or os.curdir
            seed, spans = self.asked.seed, self.spans
            filters.append(partial(shuffled, seed=seed, spans=spans, folder=folder))
        return filters

    def _open_sinks(self, text: Corpus) -> TokenSink:
        """Open the sinks of all splits, and return one sink that distributes documents to them.

        Without splits, return the only sink.
        """
        if self.format == SHOWN:
            return ShownTokens(self.name, self.vocabulary, token_style(self.name))
        by_position = owners_by_file(text, self.firsts) if self.firsts else None
        owners = by_position or drawn_owners([*self.split.values()], self.asked.seed)
        sinks: list[TokenSink] = []
        divided = SplitSink(sinks, owners, self.spans)
        with undoing(divided.abort):
            for name in self.names:
                sinks.append(self._open_sink(name))
        return divided if self.split else sinks[0]

    def _open_sink(self, name: str) -> TokenSink:
        asked, vocabulary = self.asked, self.vocabulary
        how: dict[str, Any] = {"layout": asked.layout, "masked": self.masked, "force": asked.force}
        if asked.shard_tokens is None:
            return open_writer(name, self.format, vocabulary, **how)
        how |= {"special": self.special, "run": self.key, "resume": asked.resume}
        shards = ShardWriter(name, vocabulary, asked.shard_tokens, **how)
        if asked.resume:
            progress = ShardNames(name).progress
            self.report.line(
                f"resuming from {progress}: {number_of(shards.kept, 'shard')} finished"
                if shards.kept
                else f"note: {progress} lists no finished shard: starting from scratch"
            )
        return shards

    def _encode(self, text: Corpus, encoder: Encoder, sink: TokenSink) -> dict[str, Any]:
        """Tokenize into a sink; return the summary."""
        # Define functions that report progress and memory.
        report, start = self.report, time.perf_counter()
        is_unknown = self.size is None and self.opening.wanted == "auto"
        show = suggesting_gpu(text, is_unknown, report.note, report)
        most_table = table_bytes(self.opening.backend())

        def estimate(least_left: float = _IN_FLIGHT) -> None:
            left = text.left and max(text.left, least_left)
            memory = report.growth.estimate(left, text.text_bytes, most_table)
            if memory is not None:
                report.need_memory(memory, is_small=text.bytes_read < _LEAST_TOLD)

        estimated = -math.inf

        def progress(phase: str, done: int, total: int | None) -> None:
            nonlocal estimated
            show(phase, done, total)
            if (now := time.perf_counter()) - estimated >= _BETWEEN_ESTIMATES:
                estimated = now
                estimate()

        # Encode all slices, and write or count their ids.
        with report:
            with sink:
                encode_into(sink, encoder, text, progress, self._filters())
            # Estimate once more after the last slice: a single long pre-token makes the encoder's
            # memory grow all at once.
            estimate(1.0)
        # Sum up. With --chunk-tokens or --max-tokens, count only the ids that the filters leave.
        seconds, tokens = time.perf_counter() - start, sink.ids
        taken = sink if self.chunk or self.asked.max_tokens else text
        splits = sink.sinks if isinstance(sink, SplitSink) else ()
        parts = [{"tokens": each.ids, "documents": each.documents} for each in splits]
        return {
            "tokens": tokens,
            "text_bytes": taken.text_bytes,
            "documents": taken.documents,
            **({"parts": parts} if parts else {}),
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


def files_of_ids(names: Sequence[str], format: str | None) -> list[tuple[str, str]]:
    """Return pairs of a file of ids and its format; a manifest is replaced by its shards."""
    found: list[str] = []
    for name in names:
        if os.path.isdir(name):
            shown = os.path.join(name, "*.bin")
            raise InputError(f"{name} is a folder: --decode takes files of ids, such as {shown}")
        is_manifest = format in (None, "bin") and kind_of(name) == MANIFEST
        found += shard_files(name, may_be_foreign=True) if is_manifest else [name]
    return [(name, format or recognize_format(name)) for name in found]


def _decode(asked: TokenizeCommand, report: Reporter) -> dict[str, Any]:
    """Decode files of ids and manifests; return the summary.

    The output receives the text of the documents in order. If its suffix is that of
    JSON Lines, each document becomes an object on a line, and --doc-separator is a UsageError.
    """
    from llmgpu.tokenizer import Tokenizer

    # Check options, resolve the names, and check output files.
    refuse_given(_OF_TEXT, "is for text, not for --decode")
    refuse_given(_OF_ENCODING, "can't be combined with --decode")
    if asked.format_name == SHOWN:
        raise click.UsageError(f"--decode can't read --format {SHOWN}")
    _check_options(asked, asked.format_name or "ids")
    names = _names(asked, report)
    sources = files_of_ids(names, asked.format_name)
    sides = [side_path(name) for name, format in sources if format == "bin" and name != "-"]
    vocabulary_files = find_vocabulary(asked.vocab)
    read = [asked.selection.files_from, *vocabulary_files.inputs, *names, *sides]
    read += [name for name, _ in sources]
    check_outputs([Output(asked.output, TEXT)], read, force=asked.force)
    separators = asked.reading.corpus_options().separators  # at most one, between documents
    # Read the vocabulary.
    vocabulary = vocabulary_files.read(report.note).with_match(asked.match)
    tokens, text_bytes = 0, 0
    in_lines = format_by_name(asked.output) == "jsonl"
    if separators and (in_lines or len(separators) > 1):
        what = "several values" if len(separators) > 1 else "JSON Lines, an object per document"
        raise click.UsageError(f"--doc-separator can't be combined with {what}, for --decode")

    # With separators or JSON Lines, the ids of each document are decoded by themselves.
    apart = in_lines or bool(separators)
    # Decode. The tokenizer is faster, but with tokens of SentencePiece's kind it removes a space at
    # the start of the ids. Only the start of a document has such a space.
    tokenizer = Tokenizer(vocabulary)
    with atomic_output(asked.output) as file:
        files = _open_ids(sources, asked, vocabulary, report, apart=apart)
        pieces = _documents(files) if apart else chain.from_iterable(ids for ids, _ in files)
        for number, ids in enumerate(pieces):
            is_inside = vocabulary.pieces is not None and number > 0 and not apart
            data = vocabulary.decode(ids) if is_inside else tokenizer.decode_bytes(ids)
            between = b"".join(separators) if number else b""
            file.write(_json_line(data) if in_lines else between + data)
            tokens += len(ids)
            text_bytes += len(data)
    return {"tokens": tokens, "text_bytes": text_bytes, "fingerprint": vocabulary.fingerprint}


def _open_ids(
    sources: Iterable[tuple[str, str]],
    asked: TokenizeCommand,
    vocabulary: Vocabulary,
    report: Reporter,
    *,
    apart: bool,
) -> Iterator[_Opened]:
    """Open files of ids, one after the other; sources: names and formats.

    apart: refuse a file that does not say where its documents begin.
    """
    for name, format in sources:
        side = read_side_file(name) if format == "bin" and has_side_file(name) else None
        if side is None and apart:
            raise InputError(
                f"{name} does not say where its documents begin, as a .bin file with its "
                "side file does: decode it into plain text, without --doc-separator"
            )
        if format != "bin":
            ids = read_tokens(name, format)
        else:
            ids = read_bin(name, vocabulary.size, asked.layout, asked.token_dtype)
        if side is not None:
            matched_as(name, str(side["fingerprint"]), vocabulary, asked.vocab)
        elif format == "bin" and name != STANDARD_INPUT:
            report.note(note_of_foreign([name], asked.vocab))
        yield ids, side["document_offsets"] if side else ()


def _documents(files: Iterable[_Opened]) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of each document, int64 (L,), from blocks of ids, which may end anywhere.

    Ids before the first start belong to a document that began in an earlier shard; they are yielded
    as a document, too.
    """
    # parts: the ids of the current document so far. has_begun: whether its start is known.
    parts, has_begun = list[NDArray[np.int64]](), False
    for blocks, offsets in files:
        starts, position = deque(offsets), 0
        # Documents without ids may start at the end of the file, after the last block.
        for ids in chain(blocks, [_NO_IDS]):
            begin, after = 0, math.inf if ids is _NO_IDS else position + len(ids)
            while starts and starts[0] < after:
                end = starts.popleft() - position
                parts.append(ids[begin:end])
                if has_begun or any(map(len, parts)):
                    yield np.concatenate(parts)
                parts, has_begun, begin = [], True, end
            parts.append(ids[begin:])
            position += len(ids)
    if has_begun or any(map(len, parts)):
        yield np.concatenate(parts)


def _json_line(text: bytes) -> bytes:
    content = {"text": text.decode(errors="replace")}
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"
