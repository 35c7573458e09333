"""What ``llmgpu tokenize`` writes: files by the options of the command, opened as one sink."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter, token_style
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.input_files import number_of
from llmgpu.outputs import TEXT, Output, check_outputs
from llmgpu.resume_key import Run
from llmgpu.tokens.formats import SHOWN, open_writer, outputs
from llmgpu.tokens.shards import ShardNames, ShardWriter
from llmgpu.tokens.shown import ShownTokens
from llmgpu.tokens.sinks import TokenSink
from llmgpu.tokens.splitting import (
    Owners,
    ShuffledSink,
    SplitSink,
    drawn_owners,
    spans_without,
    split_name,
)


@dataclass(frozen=True)
class TokenOutput:
    """Where ids go, by the options of the same names."""

    name: str
    format: str
    layout: str
    shard_tokens: int | None
    resume: bool
    force: bool
    split: dict[str, float]
    seed: int
    shuffle: bool
    masked: bool
    split_by: str

    @property
    def names(self) -> list[str]:
        """The file of the first part, and those of the others."""
        return [self.name, *(split_name(self.name, part) for part in self.split)]


def check_files(
    output: TokenOutput, read: Sequence[str], decode: bool, others: Sequence[Output]
) -> None:
    """Raise OutputError if writing would replace an input, or a file of another kind."""
    if decode or output.format == SHOWN:
        written = [Output(output.name, TEXT)]
    elif output.shard_tokens is not None:
        written = [file for name in output.names for file in ShardNames(name).outputs()]
    else:
        names, layout = output.names, output.layout
        masked = output.masked
        written = [
            file for name in names for file in outputs(name, output.format, layout, masked=masked)
        ]
    check_outputs([*written, *others], read, force=output.force)


def open_sinks(
    output: TokenOutput,
    vocabulary: Vocabulary,
    added: Collection[int],
    key: Run,
    report: Reporter,
    owners: Owners | None,
) -> TokenSink:
    """Open the sink of ids; added: ids that stand for no text. key: resume key of the ids.

    owners: which documents go to which part; None: as they are drawn.
    """
    if output.format == SHOWN:
        return ShownTokens(output.name, vocabulary, token_style(output.name))
    with ExitStack() as opened:  # aborts the first if the second can't be opened
        sinks = []
        for name in output.names:
            sinks.append(_open_sink(name, output, vocabulary, added, key, report))
            opened.callback(sinks[-1].abort)
        opened.pop_all()
    spans = spans_without(vocabulary, added)
    owners = owners or drawn_owners([*output.split.values()], output.seed)
    sink = SplitSink(sinks, owners, spans) if output.split else sinks[0]
    if not output.shuffle:
        return sink
    folder = None if output.name == STANDARD_OUTPUT else os.path.dirname(output.name) or os.curdir
    try:
        return ShuffledSink(sink, output.seed, spans, folder)
    except BaseException:
        sink.abort()
        raise


def _open_sink(
    name: str,
    output: TokenOutput,
    vocabulary: Vocabulary,
    added: Collection[int],
    key: Run,
    report: Reporter,
) -> TokenSink:
    if output.shard_tokens is None:
        return open_writer(
            name,
            output.format,
            vocabulary_size=vocabulary.size,
            fingerprint=vocabulary.fingerprint,
            match_facts=vocabulary.match_facts,
            layout=output.layout,
            masked=output.masked,
            force=output.force,
        )
    shards = ShardWriter(
        name,
        vocabulary,
        output.shard_tokens,
        layout=output.layout,
        added=added,
        masked=output.masked,
        run=key,
        resume=output.resume,
        force=output.force,
    )
    if output.resume:
        progress = ShardNames(name).progress
        report.line(
            f"resuming from {progress}: {number_of(shards.kept, 'shard')} finished"
            if shards.kept
            else f"note: {progress} lists no finished shard: starting from scratch"
        )
    return shards
