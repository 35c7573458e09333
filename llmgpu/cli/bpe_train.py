"""``llmgpu bpe-train``: corpus in, vocabulary out."""

from __future__ import annotations

import time
from typing import Any

import click

from llmgpu.backend import Backend, select_backend
from llmgpu.bpe.corpus import Corpus
from llmgpu.bpe.training import (
    TrainingOptions,
    TrainingResult,
    estimate_memory,
    train_vocabulary,
)
from llmgpu.cli.console import Reporter, human_bytes, print_json
from llmgpu.cli.options import (
    corpus_options,
    device_option,
    make_corpus_options,
    output_options,
)
from llmgpu.files import atomic_output


@click.command("bpe-train")
@click.argument("corpus", nargs=-1, required=True)
@click.option("--output", "-o", default="v.bin", show_default=True, metavar="FILE")
@click.option(
    "--vocab-size", default=32768, show_default=True, help="Ids at most, special tokens included."
)
@click.option(
    "--pattern",
    type=click.Choice(["class", "none"]),
    default="class",
    show_default=True,
    help="How text is cut into pre-tokens, which no token crosses.",
)
@click.option("--min-frequency", default=2, show_default=True, help="Rarer pairs are not merged.")
@click.option(
    "--special-token",
    "special_tokens",
    multiple=True,
    metavar="TEXT",
    help="Reserve an id; in the corpus it separates documents and is not counted. Repeatable.",
)
@click.option(
    "--tie",
    type=click.Choice(["hf", "bytes"]),
    default="hf",
    show_default=True,
    help="Order of equally frequent pairs: as Hugging Face tokenizers, or by byte value.",
)
@corpus_options
@device_option
@output_options
def bpe_train(
    corpus: tuple[str, ...],
    output: str,
    vocab_size: int,
    pattern: str,
    min_frequency: int,
    special_tokens: tuple[str, ...],
    tie: str,
    device: str,
    doc_separators: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    debug: bool,
    **reading: Any,
) -> None:
    """Train a byte-level BPE vocabulary on CORPUS: files, folders, globs, or - for stdin.

    \b
    Example:
      llmgpu bpe-train corpus.txt -o v.bin --vocab-size 8192
      zcat corpus.txt.gz | llmgpu bpe-train - --special-token '<|endoftext|>'
      llmgpu bpe-train 'data/*.jsonl' --text-field body --limit 100MB --device cpu
    """
    options = TrainingOptions(vocab_size, pattern, min_frequency, special_tokens, tie)
    report = Reporter(quiet=quiet)
    separators = doc_separators + special_tokens
    start = time.perf_counter()
    with Corpus(corpus, make_corpus_options(doc_separators=separators, **reading)) as text:
        backend = select_backend(device, "train")
        opened = time.perf_counter() - start
        _announce(report, backend, text, reading["limit"])
        try:
            with atomic_output(output) as file:
                result = train_vocabulary(text, options, backend, report)
                file.write(result.vocabulary.to_bytes())
        finally:
            report.close()
        summary = _summary(result, backend, text, output, time.perf_counter() - start, opened)
    _print_summary(report, result, summary)
    if as_json:
        print_json(summary, to_stderr=output == "-")


def _announce(report: Reporter, backend: Backend, text: Corpus, limit: int | None) -> None:
    report.line(f"training on {backend.description}")
    known = [size for size in (text.total_bytes, limit) if size is not None]
    if known:
        host, device = estimate_memory(min(known), backend)
        on_device = f", {human_bytes(device)} on the device" if device else ""
        report.line(f"needs up to about {human_bytes(host)} of memory{on_device}")


def _summary(
    result: TrainingResult,
    backend: Backend,
    text: Corpus,
    output: str,
    seconds: float,
    opened: float,
) -> dict[str, Any]:
    vocabulary = result.vocabulary
    return {
        "output": output,
        "device": backend.description,
        "vocab_size": vocabulary.size,
        "merges": len(vocabulary.merges),
        "fingerprint": vocabulary.fingerprint,
        "text_bytes": result.text_bytes,
        "documents": text.documents,
        "invalid_sequences": text.invalid_sequences,
        "left_out_files": text.left_out,
        "bytes_per_token": vocabulary.training["bytes_per_token"],
        "stop_reason": result.stop_reason,
        "seconds": {
            "total": round(seconds, 3),
            "open device": round(opened, 3),
            **{phase: round(value, 3) for phase, value in result.seconds.items()},
        },
    }


def _print_summary(report: Reporter, result: TrainingResult, summary: dict[str, Any]) -> None:
    if result.stop_reason:
        report.line(f"note: {result.stop_reason}")
    if summary["invalid_sequences"]:
        report.line(f"note: {summary['invalid_sequences']:,} invalid UTF-8 sequences")
    if summary["left_out_files"]:
        report.line(f"note: {summary['left_out_files']:,} hidden or special files left out")
    seconds = summary["seconds"]
    phases = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    rate = summary["merges"] / max(seconds.get("merge", 0.0), 1e-9)
    report.line(
        f"{summary['output']}: {summary['vocab_size']:,} tokens from "
        f"{human_bytes(result.text_bytes)} in {summary['documents']:,} documents, "
        f"{summary['bytes_per_token']:.2f} bytes a token"
    )
    report.line(f"{phases}; {rate:,.0f} merges/s")
