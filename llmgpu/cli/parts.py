"""Parts of a job: ``--part`` of a command, and the commands that combine parts.

A finished part has a record next to its output, OUT.part.json, with the sources, the options, the
summary, and the output's size and modification time. If the same command runs again, it finds the
record and ends.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from llmgpu.cli.console import Reporter, human_bytes
from llmgpu.errors import InputError, OutputError
from llmgpu.file_kinds import COUNTS, PART_RECORD, SIDE_FILE, kind_of
from llmgpu.files import STANDARD_OUTPUT, atomic_output
from llmgpu.input_files import number_of, quote, read_whole
from llmgpu.outputs import Output, check_outputs
from llmgpu.resume_key import PART, Run, file_facts, part_key
from llmgpu.text.corpus import CorpusOptions
from llmgpu.text.parts import CutText, Part, part_from_environment, take_part
from llmgpu.text.sources import Sources
from llmgpu.tokens import manifest as shards

if TYPE_CHECKING:
    from llmgpu.cli.commands.parts import MergeShardsCommand, MergeWordCountsCommand

PLACEHOLDER = "%P"
FORMAT = "llmgpu-part"
VERSION = 1


class PartJob:
    """The part of a job that a command works on.

    part: None for the whole job. output: the name of the output, with the part in place of
    PLACEHOLDER.
    """

    def __init__(self, part: Part | str | None, output: str, report: Reporter) -> None:
        """Store the part; for "auto", read the part from a scheduler's environment variables.

        Raises UsageError if the outputs of all parts would have the same name, InputError if the
        environment does not name a part.
        """
        if part == "auto":
            if output != STANDARD_OUTPUT and PLACEHOLDER not in output:
                raise click.UsageError(
                    f"--part auto needs {PLACEHOLDER}, which stands for the part, in the name of "
                    f"the output: -o out-{PLACEHOLDER}.bin"
                )
            part, origin = part_from_environment()
            report.line(f"part {part}, by {origin}")
        assert not isinstance(part, str)
        self.part = part
        self.output = output.replace(PLACEHOLDER, part.file_name) if part else output
        self._whole: Sources | None = None
        self._run: Run = {}

    @property
    def is_recorded(self) -> bool:
        """Whether a record is written when the part is finished."""
        return self.part is not None and self.output != STANDARD_OUTPUT

    @property
    def outputs(self) -> list[Output]:
        """The record of the part, if one is written; the output itself is not included."""
        return [Output(self._record, PART_RECORD)] if self.is_recorded else []

    def take(
        self, sources: Sources, options: CorpusOptions, cut_text: CutText | None = None
    ) -> Sources:
        """Return the part's share of the sources; raises the errors of `take_part`."""
        self._whole = sources
        return take_part(sources, self.part, options, cut_text) if self.part else sources

    def key(self, sources: Sources, run: Run) -> Run:
        """Return a run's resume key with the part added; sources: the result of `take`."""
        if self.part is None or self._whole is None:
            return run
        return part_key(run, self.part, self._whole, sources)

    def finished(self, run: Run) -> dict[str, Any] | None:
        """Return the summary of the part, None if it is not finished; run: the resume key.

        Raises OutputError if the output contains another part.
        """
        self._run = json.loads(json.dumps(run))
        if not self.is_recorded:
            return None
        with suppress(InputError, OSError, ValueError, TypeError, KeyError, RecursionError):
            record = json.loads(read_whole(self._record, "record of a finished part"))
            if (other := record["run"][PART]) != self._run[PART] and os.path.exists(
                self._main_file
            ):
                raise OutputError(
                    f"{self.output} has part {quote(other)}, which part {self.part} would replace: "
                    f"put {PLACEHOLDER} in the output's name, or remove the old file"
                )
            if record == self._content(record.get("summary")):
                return dict(record["summary"])
        return None

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the record of the part. Call `finish` after the output was written."""
        if self.is_recorded:
            with atomic_output(self._record) as file:
                file.write(json.dumps(self._content(summary), indent=1).encode() + b"\n")

    def _content(self, summary: object) -> dict[str, object]:
        """Return the content of the part's record."""
        name = os.path.basename(self._main_file)
        return {
            "format": FORMAT,
            "version": VERSION,
            "run": self._run,
            "output": [name, *file_facts(self._main_file)[1:]],
            "summary": summary,
        }

    @property
    def _main_file(self) -> str:
        """The file that is written last: the output, or the manifest of an output in shards."""
        manifest = f"{os.path.splitext(self.output)[0]}.json"
        return self.output if os.path.exists(self.output) else manifest

    @property
    def _record(self) -> str:
        return f"{self.output}.part.json"


def merge_word_counts(asked: MergeWordCountsCommand, report: Reporter) -> None:
    """Add up files of word counts, as written by bpe-train --counts-only."""
    from llmgpu.bpe.words.counts_file import merge_counts

    counts, output, by_file = asked.counts, asked.output, dict(asked.weights)
    for name in by_file:
        if name not in counts:
            raise click.UsageError(f"--weight {name}: not one of COUNTS")
    check_outputs([Output(output, COUNTS)], counts, force=asked.force)
    with report:
        summary = merge_counts(counts, output, [by_file.get(name, 1) for name in counts], report)
    text = f"{human_bytes(summary['text_bytes'])} of text"
    documents = number_of(summary["documents"], "document")
    report.line(f"{output}: {summary['distinct_words']:,} words, {text} in {documents}")
    report.summarize(summary, to_stderr=output == STANDARD_OUTPUT)


def merge_shards(asked: MergeShardsCommand, report: Reporter) -> None:
    """Write one manifest for the shards of all parts; the shards are not changed."""
    manifests, output = asked.manifests, asked.output
    kinds = [kind_of(name) for name in manifests]
    beside = sum(kind in (SIDE_FILE, PART_RECORD) for kind in kinds)
    if 0 < beside < len(manifests):  # a glob such as p-*.json also matches side files and records
        report.note(f"{number_of(beside, 'side file')} of shards and parts skipped")
        chosen = zip(manifests, kinds, strict=True)
        manifests = tuple(name for name, kind in chosen if kind not in (SIDE_FILE, PART_RECORD))
    content = shards.merge_shards(manifests, output, force=asked.force)
    report.line(
        f"{output}: {number_of(len(content['shards']), 'shard')} of "
        f"{number_of(len(manifests), 'part')}, {content['count']:,} tokens in "
        f"{number_of(content['documents'], 'document')}"
    )
    names = ("count", "bytes", "documents", "fingerprint")
    summary = {"output": output, "shards": len(content["shards"])}
    report.summarize(summary | {name: content[name] for name in names})
