"""The work of ``llmgpu count``: count the tokens of files with one vocabulary or several."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

from llmgpu.backend import Opening
from llmgpu.bpe.encoding.open import open_encoder, prepare_vocabulary
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.cli.chat import (
    around_text,
    rendering,
    special_options,
    watch_text,
    with_chat,
    with_chat_template,
)
from llmgpu.cli.commands.tokens import CountCommand
from llmgpu.cli.console import Reporter, left_out_of, print_table
from llmgpu.cli.groups import labels_of, required_input, resolve_texts
from llmgpu.cli.options import refuse_given
from llmgpu.cli.parts import PartJob
from llmgpu.errors import BudgetError
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.input_files import STANDARD_INPUT, number_of, source_name
from llmgpu.input_files import listed as in_words
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Selection, Sources
from llmgpu.text.streams import read_mark
from llmgpu.tokens.filters import masking
from llmgpu.tokens.tokenizing import (
    DocumentLengths,
    FileCount,
    count_files,
    known_bytes,
    suggesting_gpu,
)


class Row(NamedTuple):
    """A line about a file or folder: its path, bytes of text, and token count per vocabulary."""

    path: str
    text_bytes: int
    tokens: list[int]


# The sort key for each value of --sort. A key is negated where the largest row comes first.
ORDERS = {
    "path": lambda row: os.fsencode(row.path),
    "tokens": lambda row: -row.tokens[0],
    "bytes": lambda row: -row.text_bytes,
}


def count(asked: CountCommand, report: Reporter, opening: Opening) -> None:
    """Count the tokens of files, folders or globs, or of a pipe."""
    per, vocabs = asked.per, asked.vocabs
    special = special_options(asked.special, asked.chat)
    # Check names and options before a device is opened.
    paths, listed = _named_paths(asked, report)
    if per in ("document", "total"):
        refuse_given(("sort",), f"has no effect with --per {per}")
    options = asked.reading.corpus_options(line_documents=asked.line_documents)
    selection = replace(asked.files.selection(), listed=listed)
    job = PartJob(asked.part, STANDARD_OUTPUT, report)
    begin = time.perf_counter()
    # Read the text once for each vocabulary. A pipe is first copied to a temporary file.
    with keep_input(paths, len(vocabs), selection) as (sources, kept):
        sources = job.take(sources, options)
        rows, summary = _count(asked, opening, sources, options, special, report)
    # Rename, sum up and sort the rows. `largest` is chosen among the files, even if the rows become
    # folders, because a budget for the largest row limits each file.
    rows = [row._replace(path=STANDARD_INPUT) if row.path == kept else row for row in rows]
    largest = max(rows, key=lambda row: max(row.tokens), default=None)
    if per == "folder":
        rows = _by_folder(rows)
    if asked.sort:
        rows.sort(key=ORDERS[asked.sort])
    total = Row("total", summary["text_bytes"], summary["tokens"])
    # Print the counts, and only then fail if a budget is exceeded.
    report.note_left_out(summary)
    if report.as_json:
        summary["seconds"] = round(time.perf_counter() - begin, 3)
        if per in ("file", "folder"):
            summary[f"{per}s"] = [row._asdict() for row in rows]
        report.summarize(summary)
    elif per == "document":
        _print_lengths(labels_of(vocabs), summary["document_tokens"])
    else:
        _print_counts(labels_of(vocabs), [] if per == "total" else rows, total)
    if largest:
        _check_budget(asked.budget_per_file, vocabs, largest, f"{source_name(largest.path)}: ")
    _check_budget(asked.budget, vocabs, total)


def _named_paths(asked: CountCommand, report: Reporter) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the names of all files to count, and the set of the names listed by --files-from."""
    paths = asked.paths
    if asked.files.files_from is None:
        return paths or required_input(report, "PATH: files, folders or globs"), frozenset()
    listed = asked.files.listed(paths)
    # Skip listed files that don't exist. A URL that can't be read is an error, also in fsspec's
    # chains such as simplecache::https://...
    found = {name for name in listed if "://" in name or os.path.lexists(name)}
    there = [name for name in listed if name in found]
    missing = [name for name in listed if name not in found]
    if missing:  # `git diff --name-only` also lists deleted files
        count = number_of(len(missing), "listed file")
        report.note(f"{count} not found, skipped: {in_words(missing)}")
    return (*paths, *there), frozenset(listed)


@contextmanager
def keep_input(
    paths: Sequence[str], passes: int, selection: Selection
) -> Iterator[tuple[Sources, str]]:
    """Yield sources that can be read `passes` times, and the path that stands in for "-" in them.

    To be read several times, standard input is first copied to a temporary file, which stands in
    for "-". For one pass the path is "-" itself.
    """
    if STANDARD_INPUT not in paths or passes == 1:
        yield resolve_texts(paths, selection) if paths else Sources([], 0), STANDARD_INPUT
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="llmgpu-") as folder:
        head, compression = read_mark(sys.stdin.buffer.read)
        ending = ".jsonl" if selection.of_input == "jsonl" else ""
        kept = os.path.join(folder, f"input{ending}{compression}")
        with open(kept, "wb") as file:
            file.write(head)
            shutil.copyfileobj(sys.stdin.buffer, file)
        names = [kept if name == STANDARD_INPUT else name for name in paths]
        yield resolve_texts(names, selection), kept


def _count(
    asked: CountCommand,
    opening: Opening,
    sources: Sources,
    options: CorpusOptions,
    special: SpecialOptions,
    report: Reporter,
) -> tuple[list[Row], dict[str, Any]]:
    """Return a row for each file, and the summary of all files."""
    # Open the device and the vocabularies.
    size = known_bytes(sources, options.limit)
    is_begun = opening.begin_encoding(size)
    vocabularies = [
        with_chat_template(open_vocabulary(name, note=report.note), asked.chat.chat_template)
        for name in asked.vocabs
    ]
    for vocabulary in vocabularies if is_begun else ():
        prepare_vocabulary(vocabulary, opening)
    backend = opening.backend()
    report.note_missing_engine(backend)
    # Open all encoders before the first text is read: an invalid special token is an error.
    encoders = []
    for vocabulary in vocabularies:
        around = around_text(special, asked.special, vocabulary, report)
        how: dict[str, Any] = {"threads": asked.threads, "text_bytes": size}
        encoders.append(open_encoder(vocabulary, backend, special=around, **how))
    # Count with one vocabulary after the other.
    lengths = [DocumentLengths() for _ in vocabularies] if asked.per == "document" else []
    passes: list[list[FileCount]] = []
    with report:
        for name, vocabulary, encoder, taken in zip_longest(
            asked.vocabs, vocabularies, encoders, lengths
        ):
            with rendering(asked.chat, vocabulary) as conversations:
                filters = masking(conversations, vocabulary)
                with Corpus(sources, with_chat(options, conversations)) as text:
                    note = watch_text(text, vocabulary, special, report)
                    is_due = size is None and opening.wanted == "auto" and not passes
                    progress = suggesting_gpu(text, is_due, report.note, report)
                    passes.append(
                        count_files(encoder, text, progress, lengths=taken, filters=filters)
                    )
                note(f"{name}: " if len(encoders) > 1 else "")
    rows = [
        Row(files[0].path, files[0].text_bytes, [file.tokens for file in files])
        for files in zip(*passes, strict=True)
    ]
    return rows, {
        "tokens": [sum(file.tokens for file in files) for files in passes],
        "text_bytes": text.text_bytes,
        "documents": text.documents,
        **left_out_of(text),
        **({"document_tokens": [taken.summary() for taken in lengths]} if lengths else {}),
        "vocabularies": list(asked.vocabs),
        "fingerprints": [vocabulary.fingerprint for vocabulary in vocabularies],
        "device": backend.description,
    }


def _by_folder(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each folder: the sum of the files directly in it."""
    sums: dict[str, Row] = {}
    for row in rows:
        name = os.path.dirname(row.path) or os.curdir
        old = sums.get(name, Row(name, 0, [0] * len(row.tokens)))
        tokens = [sum(pair) for pair in zip(old.tokens, row.tokens, strict=True)]
        sums[name] = Row(name, old.text_bytes + row.text_bytes, tokens)
    return list(sums.values())


def _print_counts(labels: Sequence[str], rows: Sequence[Row], total: Row) -> None:
    """Print a row of counts and bytes per token for each file, and a row for the sum."""
    shown = [*rows, *([total] if len(rows) != 1 else [])]
    lines: list[list[int | str]] = []
    for row in shown:
        ratios = [f"{row.text_bytes / count:.3f}" if count else "-" for count in row.tokens]
        lines.append([*row.tokens, row.text_bytes, *ratios, row.path])
    heads = ["B/token"] if len(labels) == 1 else [f"B/{label}" for label in labels]
    print_table([*labels, "bytes", *heads, ""], lines)


def _print_lengths(labels: Sequence[str], found: Sequence[dict[str, Any]]) -> None:
    """Print statistics of the documents' lengths in tokens, a column for each vocabulary."""
    names = {
        "documents": "documents",
        "min": "shortest",
        "median": "median",
        "p90": "90th percentile",
        "p99": "99th percentile",
        "max": "longest",
    }
    lines: list[list[int | str]] = [
        [*(lengths.get(name, "-") for lengths in found), text] for name, text in names.items()
    ]
    for power in max((lengths.get("above", {}) for lengths in found), key=len):
        shares = [
            f"{lengths['above'].get(power, 0) / lengths['documents']:.1%}" for lengths in found
        ]
        lines.append([*shares, f"above {power}"])
    print_table([*labels, ""], lines)


def _check_budget(budget: int | None, vocabs: Sequence[str], total: Row, what: str = "") -> None:
    """Raise BudgetError if the tokens by some vocabulary exceed the budget.

    budget: None for no check. total: the row to check. what: the beginning of the message.
    """
    for vocab, tokens in zip(vocabs, total.tokens, strict=True):
        if budget is not None and tokens > budget:
            by = f" by {vocab}" if len(vocabs) > 1 else ""
            over = f"{what}{tokens:,} tokens{by} are {tokens - budget:,} more than the budget"
            raise BudgetError(f"{over} of {budget:,}")
