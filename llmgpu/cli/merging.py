"""What ``llmgpu merge-word-counts`` and ``llmgpu merge-shards`` do: parts put together."""

from __future__ import annotations

import click

from llmgpu.bpe.words.counts_file import merge_counts
from llmgpu.cli.commands.parts import MergeShardsCommand, MergeWordCountsCommand
from llmgpu.cli.console import Reporter, human_bytes, print_json
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.input_files import number_of
from llmgpu.outputs import COUNTS, PART_RECORD, SIDE_FILE, Output, check_outputs, kind_of
from llmgpu.tokens import manifest as shards


def merge_word_counts(asked: MergeWordCountsCommand) -> None:
    """Add up files of word counts, as bpe-train --counts-only writes them."""
    report = Reporter(quiet=asked.report.quiet)
    counts, output, by_file = asked.counts, asked.output, dict(asked.weights)
    for name in by_file:
        if name not in counts:
            raise click.UsageError(f"--weight {name}: not one of COUNTS")
    check_outputs([Output(output, COUNTS)], counts, force=asked.force)
    try:
        facts, words, text_bytes = merge_counts(
            counts, output, [by_file.get(name, 1) for name in counts], report
        )
    finally:
        report.close()
    documents = number_of(facts.documents, "document")
    report.line(f"{output}: {words:,} words, {human_bytes(text_bytes)} of text in {documents}")
    if asked.report.as_json:
        summary = {
            "output": output,
            "distinct_words": words,
            "text_bytes": text_bytes,
            "documents": facts.documents,
        }
        print_json(summary, to_stderr=output == STANDARD_OUTPUT)


def merge_shards(asked: MergeShardsCommand) -> None:
    """Write one manifest for the shards of all parts; the shards stay as they are."""
    report = Reporter(quiet=asked.report.quiet)
    manifests, output = asked.manifests, asked.output
    kinds = [kind_of(name) for name in manifests]
    beside = sum(kind in (SIDE_FILE, PART_RECORD) for kind in kinds)
    if 0 < beside < len(manifests):  # which p-*.json takes, too
        report.note(f"{number_of(beside, 'side file')} of shards and parts skipped")
        chosen = zip(manifests, kinds, strict=True)
        manifests = tuple(name for name, kind in chosen if kind not in (SIDE_FILE, PART_RECORD))
    content = shards.merge_shards(manifests, output, force=asked.force)
    report.line(
        f"{output}: {number_of(len(content['shards']), 'shard')} of "
        f"{number_of(len(manifests), 'part')}, {content['count']:,} tokens in "
        f"{number_of(content['documents'], 'document')}"
    )
    if asked.report.as_json:
        names = ("count", "bytes", "documents", "fingerprint")
        summary = {"output": output, "shards": len(content["shards"])}
        print_json(summary | {name: content[name] for name in names}, to_stderr=False)
