"""What ``llmgpu tokenize`` writes: files by the options of the command, opened as one sink."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.commands.tokenize import TokenizeCommand
from llmgpu.cli.console import Reporter, token_style
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.input_files import number_of
from llmgpu.outputs import TEXT, Output, check_outputs
from llmgpu.resume_key import Run
from llmgpu.tokens.formats import SHOWN, open_writer, outputs
from llmgpu.tokens.ids import ShownTokens
from llmgpu.tokens.shards import ShardNames, ShardWriter
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
    """Where ids go, with the part and the format settled.

    masked: a mask beside the ids says which of them the assistant wrote.
    """

    asked: TokenizeCommand
    name: str
    format: str
    masked: bool

    @property
    def split(self) -> dict[str, float]:
        """The shares of the splits, by name."""
        return dict(self.asked.split)

    @property
    def names(self) -> list[str]:
        """The file of the first split, and those of the others."""
        return [self.name, *(split_name(self.name, part) for part in self.split)]


def check_files(output: TokenOutput, read: Sequence[str], others: Sequence[Output]) -> None:
    """Raise OutputError if writing would replace an input, or a file of another kind."""
    asked = output.asked
    if asked.decode or output.format == SHOWN:
        written = [Output(output.name, TEXT)]
    elif asked.shard_tokens is not None:
        written = [file for name in output.names for file in ShardNames(name).outputs()]
    else:
        of_file = output.format, asked.layout
        masked = output.masked
        written = [each for name in output.names for each in outputs(name, *of_file, masked=masked)]
    check_outputs([*written, *others], read, force=asked.force)


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
    owners = owners or drawn_owners([*output.split.values()], output.asked.seed)
    sink = SplitSink(sinks, owners, spans) if output.split else sinks[0]
    if not output.asked.shuffle:
        return sink
    folder = None if output.name == STANDARD_OUTPUT else os.path.dirname(output.name) or os.curdir
    try:
        return ShuffledSink(sink, output.asked.seed, spans, folder)
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
    if output.asked.shard_tokens is None:
        return open_writer(
            name,
            output.format,
            vocabulary_size=vocabulary.size,
            fingerprint=vocabulary.fingerprint,
            match_facts=vocabulary.match_facts,
            layout=output.asked.layout,
            masked=output.masked,
            force=output.asked.force,
        )
    shards = ShardWriter(
        name,
        vocabulary,
        output.asked.shard_tokens,
        layout=output.asked.layout,
        added=added,
        masked=output.masked,
        run=key,
        resume=output.asked.resume,
        force=output.asked.force,
    )
    if output.asked.resume:
        progress = ShardNames(name).progress
        report.line(
            f"resuming from {progress}: {number_of(shards.kept, 'shard')} finished"
            if shards.kept
            else f"note: {progress} lists no finished shard: starting from scratch"
        )
    return shards
