"""Word counts of parts added up to a file, in memory that does not grow with the words.

All files are read at the same time, each sorted by bytes, and merged into a temporary file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from llmgpu.bpe.words.counts_file import CountsReader, check_counted_alike, write_counts
from llmgpu.bpe.words.distinct_words import MAX_TEXT_BYTES, DistinctWords, WordCounts
from llmgpu.bpe.words.spilling import RunFile, merge_runs
from llmgpu.errors import InputError
from llmgpu.progress import Progress, no_progress

_BLOCK_BYTES = 4 << 20  # of words that are read of all files together, about 10 times in memory
_LEAST_BLOCK = 1 << 12


def merge_counts(
    paths: Sequence[str | Path],
    output: str | Path,
    weights: Sequence[int] | None = None,
    progress: Progress = no_progress,
) -> tuple[WordCounts, int, int]:
    """Write the sum of files of word counts, at least one, to another file.

    weights: how many times each file is counted, 1 or more; None: once.

    Returns the counts without their words, how many words there are, and the bytes of their text.

    Raises:
        InputError: a file can't be read or is damaged, the words were not counted in the same way,
            or are of more than MAX_TEXT_BYTES of text.
        OutputError: the output or a temporary file can't be written.
    """
    weights = [1] * len(paths) if weights is None else weights
    block_bytes = max(_LEAST_BLOCK, _BLOCK_BYTES // len(paths))
    with ExitStack() as opened:
        files = [opened.enter_context(CountsReader(path)) for path in paths]
        check_counted_alike([file.facts for file in files])
        weighted = list(zip(files, weights, strict=True))
        text_bytes = sum(file.text_bytes * weight for file, weight in weighted)
        documents = sum(file.facts.documents * weight for file, weight in weighted)
        if max(text_bytes, documents) > MAX_TEXT_BYTES:
            raise InputError(
                f"the weighted counts add up to {text_bytes:,} bytes of text in {documents:,} "
                f"documents, but the limit is {MAX_TEXT_BYTES:,}: use smaller weights"
            )
        runs = [
            _weighted(file.blocks(block_bytes), weight)
            for file, weight in weighted
            if file.text_bytes
        ]
        merged = RunFile(block_bytes)
        opened.callback(merged.close)
        done = 0

        def counted() -> Iterator[DistinctWords]:
            nonlocal done
            for block in merge_runs(runs):
                yield block
                done += block.text_bytes
                progress("merging", done, text_bytes)

        run = merged.write(counted())
        facts = replace(files[0].facts, documents=documents, source=str(output))
        write_counts(output, facts, lambda: merged.read(run))
    return facts, sum(block.words for block in run), text_bytes


def _weighted(blocks: Iterator[DistinctWords], weight: int) -> Iterator[DistinctWords]:
    for block in blocks:
        yield replace(block, counts=block.counts * weight)
