"""``llmgpu bpe-train``: corpus in, vocabulary out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

from llmgpu.backend import Backend, select_backend
from llmgpu.bpe.pretokens.pattern import DEFAULT_PATTERN
from llmgpu.bpe.training.checkpoint import Checkpoint
from llmgpu.bpe.training.options import ENGINES, TrainingOptions
from llmgpu.bpe.training.plan import Plan, estimate_memory, make_plan
from llmgpu.bpe.training.result import TrainingResult
from llmgpu.bpe.training.train import CountedWords, count_corpus, train_vocabulary
from llmgpu.bpe.vocabulary.tie import TIE_RULES
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.counts_file import CountsInfo, WordCounts, load_counts, save_counts
from llmgpu.cli.console import Reporter, human_bytes, print_json
from llmgpu.cli.options import (
    VocabularySizes,
    chosen_pattern,
    corpus_options,
    device_option,
    make_corpus_options,
    output_options,
    pattern_options,
)
from llmgpu.cli.word_counts import check_counted_alike, check_sources, load_all
from llmgpu.files import STANDARD_OUTPUT, atomic_output
from llmgpu.resume_key import FILES, file_facts
from llmgpu.text.corpus import Corpus
from llmgpu.text.sources import resolve_sources


@click.command("bpe-train")
@click.argument("corpus", nargs=-1)
@click.option("--output", "-o", default="v.bin", show_default=True, metavar="FILE")
@click.option(
    "--vocab-size",
    "sizes",
    type=VocabularySizes(),
    default="32768",
    show_default=True,
    metavar="N[,N...]",
    help="Ids at most, special tokens and those of a seed included. Several sizes are written to "
    "v-8192.bin, v-32768.bin and so on.",
)
@pattern_options(
    show_default=f"that of the seed or the counts, or {DEFAULT_PATTERN}",
    help="How text is cut into pre-tokens, which no token crosses.",
)
@click.option("--min-frequency", default=2, show_default=True, help="Rarer pairs are not merged.")
@click.option(
    "--max-token-length",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Make no longer tokens. (One less than what Hugging Face calls max_token_length.)",
)
@click.option(
    "--special-token",
    "special_tokens",
    multiple=True,
    metavar="TEXT",
    help="Reserve an id; in the corpus it separates documents and is not counted. Repeatable.",
)
@click.option(
    "--tie",
    type=click.Choice(list(TIE_RULES)),
    show_default="that of the seed, or hf",
    help="Order of equally frequent pairs: as Hugging Face tokenizers, or by byte value.",
)
@click.option(
    "--seed-vocab",
    metavar="FILE",
    help="Go on from this vocabulary: its tokens keep their ids, its merges come first.",
)
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="batched",
    show_default=True,
    help="Merge distinct words, many pairs at a time, or count the whole text again for each merge "
    "(on a GPU only). The merges are the same.",
)
@click.option(
    "--save-counts",
    "counts_output",
    metavar="FILE",
    help="Write the word counts to this file, too.",
)
@click.option("--counts-only", is_flag=True, help="Write them and train nothing.")
@click.option(
    "--from-counts",
    multiple=True,
    metavar="FILE",
    help="Train on word counts that were saved, not on a CORPUS. Repeatable: they are added up.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    show_default="processors there are, 4 at most",
    help="How many count words where there is no GPU.",
)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Keep what is done in this folder until the end, so that --resume can go on from it.",
)
@click.option("--resume", is_flag=True, help="Go on from --checkpoint where a run was ended.")
@corpus_options
@device_option
@output_options
def bpe_train(
    corpus: tuple[str, ...],
    output: str,
    device: str,
    threads: int | None,
    counts_output: str | None,
    counts_only: bool,
    from_counts: tuple[str, ...],
    checkpoint: str | None,
    resume: bool,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **settings: Any,
) -> None:
    """Train a byte-level BPE vocabulary on CORPUS: files, folders, globs, or - for stdin.

    \b
    Example:
      llmgpu bpe-train corpus.txt -o v.bin --vocab-size 8192
      zcat corpus.txt.gz | llmgpu bpe-train - --special-token '<|endoftext|>'
      llmgpu bpe-train 'data/*.jsonl' --text-field body --limit 100MB --device cpu
      llmgpu bpe-train corpus.txt --vocab-size 8192,32768 --checkpoint run --resume
      llmgpu bpe-train 'part-1/*.txt' --save-counts 1.counts --counts-only
      llmgpu bpe-train --from-counts 1.counts --from-counts 2.counts -o v.bin
    """
    report = Reporter(quiet=quiet)
    start = time.perf_counter()
    check_sources(corpus, from_counts, counts_output, counts_only)
    loaded = load_all(from_counts)
    options, reading = _take_options(settings, loaded)
    outputs = {} if counts_only else _name_outputs(output, options.sizes)
    _check_checkpoint_options(checkpoint, resume, options, counts_only)
    how = make_corpus_options(**reading)
    before = time.perf_counter()
    with Corpus(corpus, how) if corpus else nullcontext() as text:
        backend = select_backend(device, "train")
        seconds = {"total": 0.0, "open device": time.perf_counter() - before}
        plan = make_plan(options, backend)
        _announce(report, plan, _known_bytes(text, loaded, how.limit), options.engine)
        separators = loaded.info.separators if loaded else how.separators
        job = _Job(options, backend, text, loaded, separators, counts_output, threads, report)
        if counts_only:
            summary = _count(job)
        else:
            run = {**options.facts(), **_reading_facts(corpus, from_counts, reading)}
            with _open_checkpoint(checkpoint, resume, run, report) as kept:
                result = _train(job, kept, outputs)
            summary = _summary(result, plan, text, outputs, seconds)
            for note in result.notes:
                report.line(f"note: {note}")
    summary["seconds"]["total"] = round(time.perf_counter() - start, 3)
    _print_summary(report, summary)
    if as_json:
        print_json(summary, to_stderr=STANDARD_OUTPUT in (output, counts_output))


@dataclass(frozen=True)
class _Job:
    """What counting and training share.

    text: the corpus, or None where `loaded` has its word counts.
    separators: what was or will be left out of it.
    counts_output: file that takes the counts, or None.
    """

    options: TrainingOptions
    backend: Backend
    text: Corpus | None
    loaded: WordCounts | None
    separators: tuple[bytes, ...]
    counts_output: str | None
    threads: int | None
    report: Reporter

    def source(self, kept: Checkpoint | None) -> Corpus | CountedWords:
        """Return what to count or to train on; counts of a checkpoint come first."""
        counts = load_counts(kept.counts_path) if kept and kept.has_counts else self.loaded
        if counts is None:
            assert self.text is not None
            return self.text
        return CountedWords(counts.words, counts.words.text_bytes, counts.info.documents)

    def save(self, counted: CountedWords, kept: Checkpoint | None) -> None:
        """Write counts where they were asked for."""
        info = CountsInfo(self.options.pattern, self.separators, counted.documents)
        if kept and not kept.has_counts:
            save_counts(kept.counts_path, counted.words, info)
        if self.counts_output:
            save_counts(self.counts_output, counted.words, info)


def _count(job: _Job) -> dict[str, Any]:
    """Count words and save them; return the summary."""
    source = job.source(None)
    seconds: dict[str, float] = {}
    if isinstance(source, Corpus):
        start = time.perf_counter()
        try:
            source = count_corpus(source, job.options, job.backend, job.report, threads=job.threads)
        finally:
            job.report.close()
        seconds["count words"] = round(time.perf_counter() - start, 3)
    job.save(source, None)
    return {
        "output": job.counts_output,
        "distinct_words": len(source.words),
        "text_bytes": source.text_bytes,
        "documents": source.documents,
        "invalid_sequences": job.text.invalid_sequences if job.text else 0,
        "left_out_files": job.text.left_out if job.text else 0,
        "left_out_rows": job.text.null_rows if job.text else 0,
        "seconds": seconds,
    }


def _train(job: _Job, kept: Checkpoint | None, outputs: dict[int, str]) -> TrainingResult:
    """Train and write the vocabularies."""
    on_counted = partial(job.save, kept=kept) if job.counts_output or kept else None
    with _open_all(outputs) as files:
        try:
            result = train_vocabulary(
                job.source(kept),
                job.options,
                job.backend,
                job.report,
                checkpoint=kept,
                on_counted=on_counted,
                threads=job.threads,
            )
        finally:
            job.report.close()
        for size, vocabulary in result.vocabularies.items():
            files[size].write(vocabulary.to_bytes())
    return result


def _take_options(
    settings: dict[str, Any], loaded: WordCounts | None
) -> tuple[TrainingOptions, dict[str, Any]]:
    """Return what to train, and the values of `corpus_options`."""
    path = settings.pop("seed_vocab")
    seed = Vocabulary.load(path) if path else None
    *smaller, largest = settings.pop("sizes")
    pattern = chosen_pattern(settings.pop("pattern"), settings.pop("pattern_regex"))
    pattern = pattern or (seed.pattern if seed else None)
    options = TrainingOptions(
        largest,
        pattern=pattern or (loaded.info.pattern if loaded else DEFAULT_PATTERN),
        min_frequency=settings.pop("min_frequency"),
        special_tokens=settings.pop("special_tokens"),
        tie=settings.pop("tie") or (seed.tie if seed else "hf"),
        max_token_length=settings.pop("max_token_length"),
        smaller_sizes=tuple(smaller),
        seed=seed,
        engine=settings.pop("engine"),
    )
    special = (*(seed.special_tokens if seed else ()), *options.special_tokens)
    if loaded:
        check_counted_alike(loaded, options.pattern, special)
    return options, settings | {"doc_separators": settings["doc_separators"] + special}


def _name_outputs(output: str, sizes: tuple[int, ...]) -> dict[int, str]:
    """Return the file of each size."""
    if len(sizes) == 1:
        return {sizes[0]: output}
    if output == STANDARD_OUTPUT:
        raise click.UsageError("several vocabulary sizes don't go to standard output: use -o FILE")
    path = Path(output)
    return {size: str(path.with_name(f"{path.stem}-{size}{path.suffix}")) for size in sizes}


def _check_checkpoint_options(
    checkpoint: str | None, resume: bool, options: TrainingOptions, counts_only: bool
) -> None:
    if resume and not checkpoint:
        raise click.UsageError("--resume needs --checkpoint FOLDER, which it goes on from")
    if checkpoint and options.engine == "recount":
        raise click.UsageError("--checkpoint does not go with --engine recount")
    if checkpoint and counts_only:
        raise click.UsageError("--checkpoint does not go with --counts-only")


def _reading_facts(
    corpus: tuple[str, ...], from_counts: tuple[str, ...], reading: dict[str, Any]
) -> dict[str, Any]:
    """Return what is read and how, for a checkpoint to compare."""
    paths = [source.path for source in resolve_sources(corpus)[0]] if corpus else from_counts
    return {FILES: list(map(file_facts, paths)), **reading}


@contextmanager
def _open_checkpoint(
    path: str | None, resume: bool, run: dict[str, Any], report: Reporter
) -> Iterator[Checkpoint | None]:
    """Begin or resume a checkpoint; remove it when the block ends well, or did nothing."""
    if path is None:
        yield None
        return
    checkpoint = Checkpoint.resume(path, run) if resume else None
    if resume:
        report.line(
            f"going on from {path}"
            if checkpoint
            else f"note: there is no {path} to resume from: starting anew"
        )
    checkpoint = checkpoint or Checkpoint.begin(path, run)
    try:
        yield checkpoint
    except BaseException:
        checkpoint.close()
        if checkpoint.is_empty:
            checkpoint.remove()
        raise
    checkpoint.remove()


@contextmanager
def _open_all(outputs: dict[int, str]) -> Iterator[dict[int, BinaryIO]]:
    """Open the file of each size; all of them get their names at the end, or none does."""
    with ExitStack() as stack:
        yield {size: stack.enter_context(atomic_output(path)) for size, path in outputs.items()}


def _known_bytes(text: Corpus | None, loaded: WordCounts | None, limit: int | None) -> int | None:
    """Return how much text there is at most; None if that is not known."""
    sizes = (
        loaded.words.text_bytes if loaded else None,
        text.total_bytes if text else None,
        limit,
    )
    return min((size for size in sizes if size is not None), default=None)


def _announce(report: Reporter, plan: Plan, text_bytes: int | None, engine: str) -> None:
    report.line(f"training on {plan.merging.description}")
    if text_bytes is not None:
        host, device = estimate_memory(text_bytes, plan.merging, engine)
        on_device = f", {human_bytes(device)} on the device" if device else ""
        report.line(f"needs up to about {human_bytes(host)} of memory{on_device}")
    for note in plan.notes:
        report.line(f"note: {note}")


def _summary(
    result: TrainingResult,
    plan: Plan,
    text: Corpus | None,
    outputs: dict[int, str],
    seconds: dict[str, float],
) -> dict[str, Any]:
    vocabularies = [
        {
            "output": outputs[size],
            "vocab_size": vocabulary.size,
            "merges": len(vocabulary.merges),
            "fingerprint": vocabulary.fingerprint,
            "bytes_per_token": vocabulary.training["bytes_per_token"],
        }
        for size, vocabulary in result.vocabularies.items()
    ]
    *smaller, largest = vocabularies
    return {
        **largest,
        "smaller": smaller,
        "device": plan.merging.description,
        "text_bytes": result.text_bytes,
        "documents": result.documents,
        "distinct_words": result.distinct_words,
        "new_merges": len(result.merge_counts),
        "batches": result.batches,
        "invalid_sequences": text.invalid_sequences if text else 0,
        "left_out_files": text.left_out if text else 0,
        "left_out_rows": text.null_rows if text else 0,
        "stop_reason": result.stop_reason,
        "seconds": {name: round(value, 3) for name, value in (seconds | result.seconds).items()},
    }


def _print_summary(report: Reporter, summary: dict[str, Any]) -> None:
    if summary.get("stop_reason"):
        report.line(f"note: {summary['stop_reason']}")
    if summary["invalid_sequences"]:
        report.line(f"note: {summary['invalid_sequences']:,} invalid UTF-8 sequences")
    if summary["left_out_files"]:
        report.line(f"note: {summary['left_out_files']:,} hidden or special files left out")
    if summary["left_out_rows"]:
        report.line(f"note: {summary['left_out_rows']:,} rows without text left out")
    text = f"{human_bytes(summary['text_bytes'])} in {summary['documents']:,} documents"
    if "vocab_size" not in summary:
        report.line(f"{summary['output']}: word counts of {text}")
    else:
        for made in (*summary["smaller"], summary):
            report.line(
                f"{made['output']}: {made['vocab_size']:,} tokens from {text}, "
                f"{made['bytes_per_token']:.2f} bytes a token"
            )
    if summary["distinct_words"] is not None:
        report.line(
            f"{summary['distinct_words']:,} distinct pre-tokens{_describe_batches(summary)}"
        )
    report.line(", ".join(_describe_phase(name, summary) for name in summary["seconds"]))


def _describe_batches(summary: dict[str, Any]) -> str:
    if summary.get("batches") is None:
        return ""
    return f", {summary['new_merges']:,} merges in {summary['batches']:,} batches"


def _describe_phase(name: str, summary: dict[str, Any]) -> str:
    """Say how long a phase took, and how fast it was."""
    seconds = summary["seconds"][name]
    text = f"{name} {seconds:.1f} s"
    if name in ("count words", "read"):
        return f"{text} ({human_bytes(summary['text_bytes'] / max(seconds, 1e-3))}/s)"
    if name == "merge":
        return f"{text} ({summary['new_merges'] / max(seconds, 1e-3):,.0f} merges/s)"
    return text
