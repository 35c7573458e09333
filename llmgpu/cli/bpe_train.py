"""The command ``llmgpu bpe-train``: train a vocabulary on a corpus, or count words."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from llmgpu.backend import TRAINING_FROM, Backend, Opening
from llmgpu.bpe.interchange.formats import find_vocabulary, open_vocabulary
from llmgpu.bpe.pretokens.blocks import cut_text_by
from llmgpu.bpe.pretokens.names import DEFAULT_PATTERN
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION
from llmgpu.bpe.training.checkpoint import Checkpoint, checkpoint_files
from llmgpu.bpe.training.options import TrainingOptions, require_counted_for
from llmgpu.bpe.training.train import Training
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.counts_file import add_counts, load_counts, save_counts
from llmgpu.bpe.words.distinct_words import WordCounts
from llmgpu.cli.commands.bpe_train import BpeTrainCommand
from llmgpu.cli.console import Reporter, human_bytes, left_out_of
from llmgpu.cli.groups import (
    FILE_OPTIONS,
    READING_OPTIONS,
    gpu_from,
    piped_input,
    resolve_texts,
)
from llmgpu.cli.option_files import keep_options
from llmgpu.cli.options import flags_given, refuse_given, was_asked
from llmgpu.cli.parts import PartJob
from llmgpu.errors import InputError
from llmgpu.file_kinds import COUNTS, VOCABULARY
from llmgpu.files import STANDARD_OUTPUT, atomic_output
from llmgpu.input_files import STANDARD_INPUT, number_of
from llmgpu.outputs import Output, check_outputs
from llmgpu.resume_key import FILES, file_facts
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.streams import AUTO

_MAIN_PHASES = ("total", "count words", "read", "merge")
_TOLD_SECONDS = 0.05  # seconds; shorter phases are not reported, except _MAIN_PHASES
_OF_MERGING = ("vocab_size", "min_frequency", "max_token_length", "tie", "match", "engine")


def bpe_train(asked: BpeTrainCommand, report: Reporter, opening: Opening) -> None:
    """Train a byte-level BPE vocabulary, or only count words."""
    _Job(asked, report).carry_out(opening)


class _Job:
    """The job of the command: checked options, and the files that they name.

    resumed: the folder of the checkpoint to resume from, None without --resume. sources: the text;
    None if `loaded` has counts. paths: the names of the text or counts. read: all files that the
    command reads. options, reading: the library's options of training and of reading. outputs:
    names of the vocabularies by size. key: the options of reading for the resume key.
    """

    def __init__(self, asked: BpeTrainCommand, report: Reporter) -> None:
        """Find the text or the counts, and check the options before any file is written."""
        self.asked, self.report, self.start = asked, report, time.perf_counter()
        corpus = asked.files.named(asked.corpus)
        corpus = corpus or (() if asked.from_counts else piped_input(report))
        self.resumed = asked.checkpoint if asked.resume else None
        has_source = corpus or asked.from_counts
        if self.resumed and not (has_source or os.path.lexists(self.resumed)):
            raise InputError(f"{self.resumed} does not exist, so there is no run to resume")
        self._check_sources(corpus)
        counts = asked.counts_output if asked.counts_only else None
        if asked.part and not (corpus and counts):
            raise click.UsageError(
                "--part needs CORPUS and --counts-only; train on the merged counts later"
            )
        self.job = PartJob(asked.part, counts or STANDARD_OUTPUT, report)
        self.counts_output = self.job.output if self.job.part else asked.counts_output
        selection = asked.files.selection()
        self.sources = resolve_texts(corpus, selection) if corpus else None
        seed = asked.training["seed"]
        of_seed = find_vocabulary(seed).inputs if seed else ()
        texts = [source.path for source in self.sources.files] if self.sources else ()
        self.paths = [*asked.from_counts, *texts]
        self.read = [*self.paths, *of_seed, asked.files.files_from]
        self.loaded = self._load_counts() if asked.from_counts else None
        self.options, self.reading = self._library_options()
        self.outputs = {} if asked.counts_only else self._name_outputs()
        # The template, bad_rows and the input format enter the key only if they differ from
        # their defaults.
        template, bad_rows = self.reading.row_template, asked.reading.bad_rows
        self.key: dict[str, Any] = {
            "text_field": self.reading.text_field,
            "encoding_errors": asked.reading.encoding_errors,
            "doc_separators": tuple(text.decode() for text in self.reading.separators),
            "limit": asked.reading.limit,
            **({"template": template.source} if template else {}),
            **({"bad_rows": bad_rows} if bad_rows != CorpusOptions.bad_rows else {}),
            **({"input_format": selection.input_format} if selection.input_format != AUTO else {}),
        }

    def _check_sources(self, corpus: Sequence[str]) -> None:
        """Raise UsageError unless there is either text or counts; note options without effect."""
        asked = self.asked
        if bool(corpus) == bool(asked.from_counts):
            what = "files, folders or globs, or - for standard input"
            raise click.UsageError(f"give either CORPUS ({what}) or --from-counts")
        if asked.counts_only:
            no_effect = "has no effect with --counts-only, which writes no vocabulary"
            refuse_given(("output",), no_effect)
            for flag in flags_given(_OF_MERGING):
                self.report.note(
                    f"{flag} has no effect with --counts-only; use it when training on the counts"
                )
        if asked.from_counts:
            refuse_given((*READING_OPTIONS, *FILE_OPTIONS), "can't be combined with --from-counts")

    def _load_counts(self) -> WordCounts:
        """Add up files of word counts; the pattern of the options is for counts without pattern."""
        pattern = self.asked.training["pattern"]
        special = tuple(text.encode() for text in self.asked.training["special_tokens"])
        return add_counts([load_counts(path, pattern, special) for path in self.asked.from_counts])

    def _library_options(self) -> tuple[TrainingOptions, CorpusOptions]:
        """Return options of training and reading, with defaults from the seed and the counts."""
        asked, given, loaded = self.asked, dict(self.asked.training), self.loaded
        begun = Checkpoint.unicode_of(self.resumed) if self.resumed else None
        seed = open_vocabulary(given["seed"], note=self.report.note) if given["seed"] else None
        # Options that are not given follow from the seed vocabulary or from the counts.
        *smaller, largest = given["vocab_size"]
        origin = seed or loaded
        given |= {
            "vocab_size": largest,
            "smaller_sizes": tuple(smaller),
            "pattern": given["pattern"] or (origin.pattern if origin else DEFAULT_PATTERN),
            "tie": given["tie"] or (seed.tie if seed else "hf"),
            "seed": seed,
            "unicode": origin.unicode if origin else begun or DEFAULT_VERSION,
        }
        options = TrainingOptions(**given, threads=asked.threads)
        if seed is not None and seed.pattern != options.pattern:
            self.report.note(
                f"the seed's merges are replayed on text split by {options.pattern}, not by "
                f"{seed.pattern}: some texts may get different ids than with the seed"
            )
        # Check that the options suit the counts and the checkpoint.
        if loaded:
            require_counted_for(loaded, options)
        if asked.checkpoint and options.engine == "recount":
            raise click.UsageError("--checkpoint can't be combined with --engine recount")
        if asked.checkpoint and asked.counts_only:
            raise click.UsageError("--checkpoint can't be combined with --counts-only")
        return options, options.separating(asked.reading.corpus_options())

    def _name_outputs(self) -> dict[int, str]:
        """Return the names of the output files by vocabulary size."""
        output, sizes = self.asked.output, self.options.sizes
        if len(sizes) == 1:
            return {sizes[0]: output}
        path = Path(output)
        if output == STANDARD_OUTPUT or (path.exists() and not path.is_file()):
            name = "standard output" if output == STANDARD_OUTPUT else output
            raise click.UsageError(
                f"several vocabulary sizes can't be written to {name}; use -o FILE"
            )
        return {size: str(path.with_name(f"{path.stem}-{size}{path.suffix}")) for size in sizes}

    def carry_out(self, opening: Opening) -> None:
        """Train or count, and print a summary; do nothing if the run is finished already."""
        asked, report, options = self.asked, self.report, self.options
        # With --part, choose the part's share of the text, unless the part is finished already.
        if self.sources is not None:
            cut_text = cut_text_by(options.cut, self.reading.separators)
            self.sources = self.job.take(self.sources, self.reading, cut_text)
            cut = {"pattern": options.cut.expression, "unicode": options.cut.unicode}
            finished = self.job.finished(self.job.key(self.sources, {**cut, **self.key}))
            if finished:
                report.line(f"nothing to do: {self.counts_output} has all of part {self.job.part}")
                return report.summarize(finished)
        text = Corpus(self.sources, self.reading) if self.sources else nullcontext(self.loaded)
        with text as source:
            assert source is not None
            read = self.sources.files if self.sources else ()
            files = [each.facts for each in read] or [*map(file_facts, asked.from_counts)]
            run = {**options.facts(), FILES: files, **self.key}
            made = [*self.outputs.values(), *filter(None, [self.counts_output])]
            if (
                self.resumed
                and STANDARD_INPUT not in self.paths
                and Checkpoint.is_done(self.resumed, run, made)
            ):
                return self._tell_done()

            # Open the device, and check all outputs before the work begins.
            before = time.perf_counter()
            backend = self._open(opening, source)
            training = Training(options, backend, report, report.need_memory)
            report.note_missing_engine(training.merging)
            check_outputs([*self._written(), *self.job.outputs], self.read, force=asked.force)
            seconds = {"total": 0.0}
            if backend.device is not None:
                seconds["open device"] = round(time.perf_counter() - before, 3)
            report.line(f"training on {training.merging.description}")
            report.note(*training.notes)
            # Count, or train.
            if asked.counts_only:
                summary = self._count(source, training)
            else:
                with self._open_checkpoint(run, made) as kept:
                    summary = self._train(source, training, kept)
                summary["seconds"] = seconds | summary["seconds"]
        summary["estimated_memory_bytes"] = report.needed_bytes
        summary["seconds"]["total"] = round(time.perf_counter() - self.start, 3)
        self.job.finish(summary)
        _print_summary(report, summary)
        to_stderr = STANDARD_OUTPUT in (asked.output, self.counts_output)
        report.summarize(summary, to_stderr=to_stderr)

    def _tell_done(self) -> None:
        """Report that the run is finished already; with --json, print its summary."""
        are = "is" if len(self.outputs) == 1 else "are"
        self.report.line(f"nothing to do: {', '.join(self.outputs.values())} {are} finished")
        if self.report.as_json:
            made = {size: Vocabulary.load(path) for size, path in self.outputs.items()}
            self.report.summarize(self._facts(made))

    def _facts(self, vocabularies: Mapping[int, Vocabulary]) -> dict[str, Any]:
        """Return the summary of vocabularies by size: of the largest, and a list of the others."""
        *smaller, largest = [
            {
                "output": self.outputs[size],
                "vocab_size": vocabulary.size,
                "merges": len(vocabulary.merges),
                "match": vocabulary.match,
                "fingerprint": vocabulary.fingerprint,
                "bytes_per_token": vocabulary.training["bytes_per_token"],
            }
            for size, vocabulary in vocabularies.items()
        ]
        return {**largest, "smaller": smaller}

    def _open(self, opening: Opening, source: Corpus | WordCounts) -> Backend:
        """Open the device for a training on text or counts."""
        known = source.total_bytes if isinstance(source, Corpus) else source.words.text_bytes
        sizes = [size for size in (known, self.reading.limit) if size is not None]
        least = 0 if self.options.engine == "recount" else gpu_from(TRAINING_FROM)
        if opening.wanted != "auto" or not sizes or min(sizes) >= least:
            opening.begin()
        return opening.backend()

    def _written(self) -> Iterator[Output]:
        """Yield all files that the command may write, for `check_outputs`."""
        for path in self.outputs.values():
            # Training that was killed just before its end has already written this vocabulary. The
            # resumed training may replace the file.
            is_own = self.resumed is not None and Checkpoint.may_have_made(self.resumed, path)
            yield Output(path, VOCABULARY, is_chosen=was_asked("output") or is_own)
        if self.counts_output:
            yield Output(self.counts_output, COUNTS)
        if self.asked.checkpoint:
            yield from (Output(str(path), None) for path in checkpoint_files(self.asked.checkpoint))

    def _count(self, source: Corpus | WordCounts, training: Training) -> dict[str, Any]:
        """Count words and save the counts; return the summary."""
        seconds: dict[str, float] = {}
        text = source if isinstance(source, Corpus) else None
        if isinstance(source, Corpus):
            start, is_part = time.perf_counter(), self.job.part is not None
            with self.report:
                source = training.count(source, merges=False, may_be_empty=is_part)
            seconds["count words"] = round(time.perf_counter() - start, 3)
        saved = save_counts(str(self.counts_output), source)
        return {**saved, **left_out_of(text), "seconds": seconds}

    def _train(
        self, source: Corpus | WordCounts, training: Training, kept: Checkpoint | None
    ) -> dict[str, Any]:
        """Train and write the vocabularies, and the counts if asked; return the summary."""
        text = source if isinstance(source, Corpus) else None
        with ExitStack() as stack:
            # Temporary files get their final names together at the end, or not at all.
            files = {
                size: stack.enter_context(atomic_output(p)) for size, p in self.outputs.items()
            }
            with self.report:
                result = training.run(source, checkpoint=kept, counts_output=self.counts_output)
            for size, vocabulary in result.vocabularies.items():
                files[size].writelines(vocabulary.packed())
        self.report.note(*result.notes)
        return {
            **self._facts(result.vocabularies),
            "device": training.merging.description,
            "text_bytes": result.text_bytes,
            "documents": result.documents,
            "distinct_words": result.distinct_words,
            "new_merges": len(result.merge_counts),
            "batches": result.batches,
            **left_out_of(text),
            "stop_reason": result.stop_reason,
            "seconds": {name: round(value, 3) for name, value in result.seconds.items()},
        }

    @contextmanager
    def _open_checkpoint(
        self, run: dict[str, Any], made: Sequence[str]
    ) -> Iterator[Checkpoint | None]:
        """Begin or resume a checkpoint, and record the run as finished after the block.

        Yields None without --checkpoint. If the block fails before it has saved any progress, the
        checkpoint is removed. The checkpoint is also removed after the block if an output is
        standard output.

        run: the resume key. made: the names of the run's outputs.
        """
        path = self.asked.checkpoint
        if path is None:
            yield None
            return
        # Resume the checkpoint, or begin a new one.
        checkpoint = Checkpoint.resume(path, run) if self.resumed else None
        if self.resumed:
            lacks = f"the run in {path} is finished and had other options"
            if not os.path.lexists(path):
                lacks = f"there is no {path} to resume from"
            self.report.line(
                f"resuming from {path}" if checkpoint else f"note: {lacks}: starting from scratch"
            )
        checkpoint = checkpoint or Checkpoint.begin(path, run)
        try:
            keep_options(checkpoint.folder)
            yield checkpoint
        except BaseException:
            if checkpoint.is_empty:
                checkpoint.remove()
            checkpoint.close()
            raise
        # The run is done.
        if STANDARD_OUTPUT in made:
            checkpoint.remove()
        else:
            checkpoint.finish(run, made)


def _print_summary(report: Reporter, summary: dict[str, Any]) -> None:
    if summary.get("stop_reason"):
        report.note(summary["stop_reason"])
    report.note_left_out(summary)
    text = f"{human_bytes(summary['text_bytes'])} in {number_of(summary['documents'], 'document')}"
    if "vocab_size" not in summary:
        report.line(f"{summary['output']}: word counts of {text}")
    else:
        for made in (*summary["smaller"], summary):
            how = " by merges, which greedy does not apply" if made["match"] == "greedy" else ""
            report.line(
                f"{made['output']}: {made['vocab_size']:,} tokens from {text}, "
                f"{made['bytes_per_token']:.2f} bytes per token{how}"
            )
    if summary["distinct_words"] is not None:
        line = number_of(summary["distinct_words"], "distinct pre-token")
        if summary.get("batches") is not None:
            made = number_of(summary["new_merges"], "merge")
            line += f", {made} in {number_of(summary['batches'], 'batch')}"
        report.line(line)
    taken = summary["seconds"]
    phases = [name for name in taken if name in _MAIN_PHASES or taken[name] >= _TOLD_SECONDS]
    report.line(", ".join(_describe_phase(name, summary) for name in phases))


def _describe_phase(name: str, summary: dict[str, Any]) -> str:
    """Return the duration and the speed of a phase in readable form."""
    seconds = summary["seconds"][name]
    text = f"{name} {seconds:.1f} s"
    if name in ("count words", "read"):
        return f"{text} ({human_bytes(summary['text_bytes'] / max(seconds, 1e-3))}/s)"
    if name == "merge":
        return f"{text} ({summary['new_merges'] / max(seconds, 1e-3):,.0f} merges/s)"
    return text
