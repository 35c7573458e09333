"""Files of ids, turned back to text: ``llmgpu tokenize --decode``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import click
import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter
from llmgpu.cli.token_output import TokenOutput
from llmgpu.errors import InputError
from llmgpu.files import atomic_output
from llmgpu.outputs import MANIFEST, kind_of
from llmgpu.text.streams import STANDARD_INPUT
from llmgpu.tokens.bin import (
    has_side_file,
    matched_as,
    note_of_foreign,
    read_bin,
    read_side_file,
    side_path,
)
from llmgpu.tokens.formats import format_by_name, read_tokens, recognize_format
from llmgpu.tokens.manifest import read_manifest


def files_of_ids(names: Sequence[str], format: str | None) -> list[tuple[str, str]]:
    """Return files of ids and their formats; a manifest stands for its shards."""
    found: list[str] = []
    for name in names:
        is_manifest = format in (None, "bin") and kind_of(name) == MANIFEST
        found += [path for path, _ in read_manifest(name)] if is_manifest else [name]
    return [(name, format or recognize_format(name)) for name in found]


def read_for(ids: Sequence[tuple[str, str]]) -> list[str]:
    """Return all files that decoding reads; ids: files of ids with their formats."""
    sides = [side_path(name) for name, format in ids if format == "bin" and name != "-"]
    return [*(name for name, _ in ids), *sides]


def decode_files(
    sources: Sequence[tuple[str, str]],
    vocabulary: Vocabulary,
    target: TokenOutput,
    separators: Sequence[bytes],
    report: Reporter,
) -> dict[str, Any]:
    """Decode files of ids, each with its format; return the summary.

    target: receives the text, documents one after the other; JSON Lines, by its name, have an
    object for each document. separators: what goes between documents, or nothing.

    Raises click.UsageError for several separators, and for one in JSON Lines.
    """
    vocab, layout = target.asked.vocab, target.asked.layout
    tokens, text_bytes = 0, 0
    in_lines = format_by_name(target.name) == "jsonl"
    if separators and (in_lines or len(separators) > 1):
        what = "several values" if len(separators) > 1 else "JSON Lines, an object per document"
        raise click.UsageError(f"--doc-separator can't be combined with {what}, for --decode")

    def blocks() -> Iterator[NDArray[np.int64]]:
        for source, format in sources:
            if format != "bin":
                yield from read_tokens(source, format)
                continue
            if has_side_file(source):
                made_with = str(read_side_file(source)["fingerprint"])
                matched_as(source, made_with, vocabulary, vocab)
            elif source != STANDARD_INPUT:
                report.note(note_of_foreign([source], vocab))
            yield from read_bin(source, vocabulary.size, layout, target.asked.token_dtype)

    apart = in_lines or separators
    with atomic_output(target.name) as file:
        for number, ids in enumerate(_documents(blocks(), _starts(sources)) if apart else blocks()):
            data = vocabulary.decode(ids)
            between = b"".join(separators) if number else b""
            file.write(_json_line(data) if in_lines else between + data)
            tokens += len(ids)
            text_bytes += len(data)
    return {"tokens": tokens, "text_bytes": text_bytes, "fingerprint": vocabulary.fingerprint}


def _starts(sources: Sequence[tuple[str, str]]) -> Iterator[int]:
    """Yield where documents begin in the ids of all files; InputError if one doesn't say it."""
    base = 0
    for source, format in sources:
        if format != "bin" or not has_side_file(source):
            raise InputError(
                f"{source} does not say where its documents begin: decode it into plain text, "
                "without --doc-separator"
            )
        side = read_side_file(source)
        yield from (base + offset for offset in cast("list[int]", side["document_offsets"]))
        base += cast(int, side["count"])


def _documents(
    blocks: Iterable[NDArray[np.int64]], starts: Iterator[int]
) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of each document; the first may have begun in a file that is not read."""
    edge = next(starts, None)
    has_begun = edge == 0
    if has_begun:
        edge = next(starts, None)
    parts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    position = 0
    for block in blocks:
        begin = 0
        while edge is not None and edge <= position + len(block):
            document = np.concatenate([*parts, block[begin : edge - position]])
            if has_begun or len(document):
                yield document
            parts, begin, has_begun = parts[:1], edge - position, True
            edge = next(starts, None)
        parts.append(block[begin:])
        position += len(block)
    document = np.concatenate(parts)
    if has_begun or len(document):
        yield document


def _json_line(text: bytes) -> bytes:
    content = {"text": text.decode(errors="replace")}
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"
