"""The command ``llmgpu bpe-train``: train a vocabulary on a corpus, or count words."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from llmgpu.backend import TRAINING_FROM, Opening
from llmgpu.bpe.interchange.open import find_vocabulary, open_vocabulary
from llmgpu.bpe.pretokens.blocks import cut_text_by
from llmgpu.bpe.pretokens.names import DEFAULT_PATTERN
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION
from llmgpu.bpe.training.checkpoint import Checkpoint, checkpoint_files
from llmgpu.bpe.training.options import TrainingOptions, require_counted_for
from llmgpu.bpe.training.plan import Plan, make_plan
from llmgpu.bpe.training.train import Training, TrainingResult
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.counts_file import add_counts, load_counts, save_counts
from llmgpu.bpe.words.distinct_words import WordCounts
from llmgpu.cli.commands.bpe_train import BpeTrainCommand
from llmgpu.cli.console import Reporter, human_bytes, left_out_of, print_json
from llmgpu.cli.groups import (
    FILE_OPTIONS,
    READING_OPTIONS,
    ReadingOptions,
    gpu_from,
    piped_input,
    resolve_texts,
)
from llmgpu.cli.option_files import keep_options
from llmgpu.cli.options import flags_given, refuse_given, was_asked
from llmgpu.cli.parts import PartJob
from llmgpu.errors import InputError
from llmgpu.files import STANDARD_OUTPUT, atomic_output
from llmgpu.input_files import number_of
from llmgpu.outputs import COUNTS, VOCABULARY, Output, check_outputs
from llmgpu.resume_key import FILES, file_facts
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Selection, Sources
from llmgpu.text.streams import AUTO, STANDARD_INPUT

_MAIN_PHASES = ("total", "count words", "read", "merge")
_TOLD_SECONDS = 0.05  # seconds; shorter phases are not reported, except _MAIN_PHASES
_OF_MERGING = ("vocab_size", "min_frequency", "max_token_length", "tie", "match", "engine")


def bpe_train(asked: BpeTrainCommand, opening: Opening) -> None:
    """Train a byte-level BPE vocabulary, or only count words."""
    report = Reporter(quiet=asked.report.quiet)
    start = time.perf_counter()

    # Find the text or the counts, and check the options before any file is written.
    corpus = asked.files.named(asked.corpus)
    corpus = corpus or (() if asked.from_counts else piped_input(report))
    resumed = _resumed_folder(asked, has_source=bool(corpus or asked.from_counts))
    _check_sources(asked, corpus, report)
    job = _part_job(asked, corpus, report)
    counts_output = job.output if job.part else asked.counts_output
    selection = asked.files.selection()
    found = resolve_texts(corpus, selection) if corpus else None
    read = _read(asked, found)
    loaded = _load_counts(asked) if asked.from_counts else None
    options, how = _library_options(asked, loaded, resumed, report)
    outputs = {} if asked.counts_only else _name_outputs(asked.output, options.sizes)

    # With --part, choose the part's share of the text, unless the part is finished already.
    key = _reading_key(asked.reading, how, selection)
    found, finished = _take_part(job, found, options, how, key)
    if finished:
        report.line(f"nothing to do: {counts_output} has all of part {job.part}")
        return print_json(finished, to_stderr=False) if asked.report.as_json else None
    with Corpus(found, how) if found else nullcontext() as text:
        paths = _paths_of(found) or asked.from_counts
        run = {**options.facts(), FILES: list(map(file_facts, paths)), **key}
        made = [*outputs.values(), *filter(None, [counts_output])]
        if resumed and STANDARD_INPUT not in paths and Checkpoint.is_done(resumed, run, made):
            return _tell_done(outputs, report, as_json=asked.report.as_json)

        # Open the device, and check all outputs before the work begins.
        before = time.perf_counter()
        source = loaded or text
        assert source is not None
        plan = _plan(options, opening, source, how.limit, report)
        written = _written(outputs.values(), counts_output, asked.checkpoint, resumed)
        check_outputs([*written, *job.outputs], read, force=asked.force)
        seconds = {"total": 0.0, **_opening_seconds(plan, before)}
        report.line(f"training on {plan.merging.description}")
        report.note(*plan.notes)
        # Count, or train.
        if asked.counts_only:
            summary = _count(source, plan, counts_output, report, is_part=job.part is not None)
        else:
            with _open_checkpoint(asked, run, made, report) as kept:
                result = _train(source, plan, kept, outputs, counts_output, report)
            summary = _summary(result, plan, text, outputs, seconds)
    summary["estimated_memory_bytes"] = report.needed_bytes
    summary["seconds"]["total"] = round(time.perf_counter() - start, 3)
    job.finish(summary)
    _print_summary(report, summary)
    if asked.report.as_json:
        print_json(summary, to_stderr=STANDARD_OUTPUT in (asked.output, counts_output))


def _count(
    source: Corpus | WordCounts,
    plan: Plan,
    output: str | None,
    report: Reporter,
    *,
    is_part: bool,
) -> dict[str, Any]:
    """Count words and save the counts; return the summary."""
    assert output is not None
    seconds: dict[str, float] = {}
    text = source if isinstance(source, Corpus) else None
    if isinstance(source, Corpus):
        start = time.perf_counter()
        with report:
            training = Training(plan, report, report.need_memory)
            source = training.count(source, merges=False, may_be_empty=is_part)
        seconds["count words"] = round(time.perf_counter() - start, 3)
    save_counts(output, source)
    return {
        "output": output,
        "distinct_words": len(source.words),
        "text_bytes": source.words.text_bytes,
        "documents": source.documents,
        **left_out_of(text),
        "seconds": seconds,
    }


def _train(
    source: Corpus | WordCounts,
    plan: Plan,
    kept: Checkpoint | None,
    outputs: dict[int, str],
    counts_output: str | None,
    report: Reporter,
) -> TrainingResult:
    """Train and write the vocabularies; write the counts, too, if a file for them is named."""
    if kept and kept.has_counts:
        source = load_counts(kept.counts_path)

    def save(counts: WordCounts) -> None:
        if kept and not kept.has_counts:
            save_counts(kept.counts_path, counts)
        if counts_output is not None:
            save_counts(counts_output, counts)

    on_counted = save if counts_output is not None or kept else None
    with ExitStack() as stack:
        # Temporary files get their final names together at the end, or not at all.
        files = {size: stack.enter_context(atomic_output(path)) for size, path in outputs.items()}
        with report:
            training = Training(plan, report, report.need_memory)
            result = training.run(source, checkpoint=kept, on_counted=on_counted)
        for size, vocabulary in result.vocabularies.items():
            files[size].writelines(vocabulary.packed())
    report.note(*result.notes)
    return result


def _reading_key(
    reading: ReadingOptions, how: CorpusOptions, selection: Selection
) -> dict[str, Any]:
    """Return the options of reading for the resume key.

    The template, bad_rows and the input format are left out if they have their defaults.
    """
    asked = selection.input_format
    return {
        "text_field": how.text_field,
        "encoding_errors": reading.encoding_errors,
        "doc_separators": tuple(text.decode() for text in how.separators),
        "limit": reading.limit,
        **({"template": how.row_template.source} if how.row_template else {}),
        **({"bad_rows": reading.bad_rows} if reading.bad_rows != CorpusOptions.bad_rows else {}),
        **({"input_format": asked} if asked != AUTO else {}),
    }


def _check_sources(asked: BpeTrainCommand, corpus: Sequence[str], report: Reporter) -> None:
    """Raise UsageError unless text or counts, not both, are given; note options without effect."""
    if bool(corpus) == bool(asked.from_counts):
        what = "files, folders or globs, or - for standard input"
        raise click.UsageError(f"give either CORPUS ({what}) or --from-counts")
    if asked.counts_only and not asked.counts_output:
        raise click.UsageError("--counts-only needs --save-counts FILE to write the counts to")
    if asked.counts_only:
        refuse_given(("output",), "has no effect with --counts-only, which writes no vocabulary")
        for flag in flags_given(_OF_MERGING):
            report.note(
                f"{flag} has no effect with --counts-only; use it when training on the counts"
            )
    if asked.from_counts:
        refuse_given((*READING_OPTIONS, *FILE_OPTIONS), "can't be combined with --from-counts")


def _part_job(asked: BpeTrainCommand, corpus: Sequence[str], report: Reporter) -> PartJob:
    """Return the job for the part to count; UsageError if the command would train a vocabulary."""
    counts = asked.counts_output if asked.counts_only else None
    if asked.part and not (corpus and counts):
        raise click.UsageError(
            "--part needs CORPUS and --counts-only; train on the merged counts later"
        )
    return PartJob(asked.part, counts or STANDARD_OUTPUT, report)


def _take_part(
    job: PartJob,
    sources: Sources | None,
    options: TrainingOptions,
    how: CorpusOptions,
    reading: dict[str, Any],
) -> tuple[Sources | None, dict[str, Any] | None]:
    """Return the sources of the part, and the part's summary if the part is already finished.

    The summary is None if there is work left. Both are None if the command has no sources.
    """
    if sources is None:
        return None, None
    own = job.take(sources, how, cut_text_by(options.cut, how.separators))
    cut = {"pattern": options.cut.expression, "unicode": options.cut.unicode}
    return own, job.finished(job.key(own, {**cut, **reading}))


def _plan(
    options: TrainingOptions,
    opening: Opening,
    source: Corpus | WordCounts,
    limit: int | None,
    report: Reporter,
) -> Plan:
    """Open the device, and plan a training on a text of up to `limit` bytes, or on counts."""
    known = source.total_bytes if isinstance(source, Corpus) else source.words.text_bytes
    size = min((each for each in (known, limit) if each is not None), default=None)
    least = 0 if options.engine == "recount" else gpu_from(TRAINING_FROM)
    if opening.wanted != "auto" or size is None or size >= least:
        opening.begin()
    plan = make_plan(options, opening.backend())
    report.note_missing_engine(plan.merging)
    return plan


def _opening_seconds(plan: Plan, before: float) -> dict[str, float]:
    """Return the phase "open device" with the seconds since `before`; empty without a device."""
    has_device = plan.counting.device is not None
    return {"open device": time.perf_counter() - before} if has_device else {}


def _load_counts(asked: BpeTrainCommand) -> WordCounts:
    """Add up files of word counts. Counts that name no pattern get the pattern of the options."""
    pattern = asked.training["pattern"]
    special = tuple(text.encode() for text in asked.training["special_tokens"])
    return add_counts([load_counts(path, pattern, special) for path in asked.from_counts])


def _read(asked: BpeTrainCommand, sources: Sources | None) -> list[str]:
    """Return all files that the command reads: texts, counts, the seed vocabulary and lists."""
    seed = asked.training["seed"]
    of_seed = find_vocabulary(seed).inputs if seed else ()
    return [*asked.from_counts, *of_seed, *_paths_of(sources), *asked.files.lists]


def _paths_of(sources: Sources | None) -> list[str]:
    return [source.path for source in sources.files] if sources else []


def _library_options(
    asked: BpeTrainCommand, loaded: WordCounts | None, resumed: str | None, report: Reporter
) -> tuple[TrainingOptions, CorpusOptions]:
    """Return the options of training and reading, with defaults from the seed and the counts.

    resumed: the folder of the checkpoint to resume from, if any.
    """
    given = dict(asked.training)
    begun = Checkpoint.unicode_of(resumed) if resumed else None
    seed = open_vocabulary(given["seed"], note=report.note) if given["seed"] else None
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
        report.note(
            f"the seed's merges are replayed on text split by {options.pattern}, not by "
            f"{seed.pattern}: some texts may get different ids than with the seed"
        )
    special = (*(seed.special_tokens if seed else ()), *options.special_tokens)
    if loaded:
        require_counted_for(loaded, options, special)
    _check_checkpoint_options(asked, options)
    return options, asked.reading.corpus_options(more_separators=special)


def _name_outputs(output: str, sizes: tuple[int, ...]) -> dict[int, str]:
    """Return the names of the output files by vocabulary size."""
    if len(sizes) == 1:
        return {sizes[0]: output}
    path = Path(output)
    if output == STANDARD_OUTPUT or (path.exists() and not path.is_file()):
        name = "standard output" if output == STANDARD_OUTPUT else output
        raise click.UsageError(f"several vocabulary sizes can't be written to {name}; use -o FILE")
    return {size: str(path.with_name(f"{path.stem}-{size}{path.suffix}")) for size in sizes}


def _written(
    vocabularies: Iterable[str], counts: str | None, checkpoint: str | None, resumed: str | None
) -> Iterator[Output]:
    """Yield all files that the command may write, for `check_outputs`."""
    for path in vocabularies:
        # Training that was killed just before its end has already written this vocabulary. The
        # resumed training may replace the file.
        is_own = resumed is not None and Checkpoint.may_have_made(resumed, path)
        yield Output(path, VOCABULARY, is_chosen=was_asked("output") or is_own)
    if counts:
        yield Output(counts, COUNTS)
    if checkpoint:
        yield from (Output(str(path), None) for path in checkpoint_files(checkpoint))


def _resumed_folder(asked: BpeTrainCommand, *, has_source: bool) -> str | None:
    """Return the checkpoint folder of the run to resume; None without --resume.

    Raises UsageError without --checkpoint, InputError if there is neither a folder nor a source.
    """
    if not asked.resume:
        return None
    if not asked.checkpoint:
        raise click.UsageError("--resume needs --checkpoint FOLDER to resume from")
    if not has_source and not os.path.lexists(asked.checkpoint):
        raise InputError(f"{asked.checkpoint} does not exist, so there is no run to resume")
    return asked.checkpoint


def _check_checkpoint_options(asked: BpeTrainCommand, options: TrainingOptions) -> None:
    if asked.checkpoint and options.engine == "recount":
        raise click.UsageError("--checkpoint can't be combined with --engine recount")
    if asked.checkpoint and asked.counts_only:
        raise click.UsageError("--checkpoint can't be combined with --counts-only")


@contextmanager
def _open_checkpoint(
    asked: BpeTrainCommand, run: dict[str, Any], made: Sequence[str], report: Reporter
) -> Iterator[Checkpoint | None]:
    """Begin or resume a checkpoint, and record the run as finished after the block.

    Yields None without --checkpoint. If the block fails before it has saved any progress, the
    checkpoint is removed. The checkpoint is also removed after the block if an output is standard
    output.

    made: the names of the run's outputs.
    """
    path = asked.checkpoint
    if path is None:
        yield None
        return
    checkpoint = Checkpoint.resume(path, run) if asked.resume else None
    if asked.resume:
        lacks = f"the run in {path} is finished and had other options"
        if not os.path.lexists(path):
            lacks = f"there is no {path} to resume from"
        report.line(
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
    if STANDARD_OUTPUT in made:
        checkpoint.remove()
    else:
        checkpoint.finish(run, made)


def _tell_done(outputs: dict[int, str], report: Reporter, *, as_json: bool) -> None:
    """Report that the run has already been finished; with `as_json`, print its summary."""
    are = "is" if len(outputs) == 1 else "are"
    report.line(f"nothing to do: {', '.join(outputs.values())} {are} finished")
    if as_json:
        made = {size: Vocabulary.load(path) for size, path in outputs.items()}
        *smaller, largest = _vocabulary_facts(made, outputs)
        print_json({**largest, "smaller": smaller}, to_stderr=False)


def _vocabulary_facts(
    vocabularies: Mapping[int, Vocabulary], outputs: dict[int, str]
) -> list[dict[str, Any]]:
    """Return the summary of each vocabulary, in the order of `vocabularies`."""
    return [
        {
            "output": outputs[size],
            "vocab_size": vocabulary.size,
            "merges": len(vocabulary.merges),
            "match": vocabulary.match,
            "fingerprint": vocabulary.fingerprint,
            "bytes_per_token": vocabulary.training["bytes_per_token"],
        }
        for size, vocabulary in vocabularies.items()
    ]


def _summary(
    result: TrainingResult,
    plan: Plan,
    text: Corpus | None,
    outputs: dict[int, str],
    seconds: dict[str, float],
) -> dict[str, Any]:
    *smaller, largest = _vocabulary_facts(result.vocabularies, outputs)
    return {
        **largest,
        "smaller": smaller,
        "device": plan.merging.description,
        "text_bytes": result.text_bytes,
        "documents": result.documents,
        "distinct_words": result.distinct_words,
        "new_merges": len(result.merge_counts),
        "batches": result.batches,
        **left_out_of(text),
        "stop_reason": result.stop_reason,
        "seconds": {name: round(value, 3) for name, value in (seconds | result.seconds).items()},
    }


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
