"""``llmgpu bpe-train``: train a vocabulary on a corpus."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from llmgpu.bpe.training.declared import DeclaredOptions
from llmgpu.cli import groups
from llmgpu.cli.groups import FileOptions, ReadingOptions
from llmgpu.cli.option_files import CheckpointedCommand
from llmgpu.cli.options import command
from llmgpu.option_fields import argument, group, option

if TYPE_CHECKING:
    from llmgpu.text.parts import Part


_open_device = partial(groups.open_device, "corpus", encodes=False)


@command("bpe-train", "bpe_train:bpe_train", CheckpointedCommand, opens=_open_device)
class BpeTrainCommand:
    """Train a byte-level BPE vocabulary on CORPUS: files, folders, globs, or a pipe.

    \b
    Examples:
      llmgpu bpe-train corpus.txt -o v.bin --vocab-size 8192
      zcat corpus.txt.gz | llmgpu bpe-train --special-token '<|endoftext|>'
      llmgpu bpe-train 'data/*.jsonl' --text-field body --limit 100MB --device cpu
      llmgpu bpe-train corpus.txt --vocab-size 8192,32768 --checkpoint run
      llmgpu bpe-train --checkpoint run --resume
      llmgpu bpe-train data --counts-only --save-counts %P.counts --part 1/2
      llmgpu bpe-train --from-counts 1-of-2.counts --from-counts 2-of-2.counts -o v.bin
    """

    # fmt: off
    corpus: tuple[str, ...] = argument(many=True)
    output: str = groups.vocabulary_output()
    training: dict[str, Any] = group(DeclaredOptions, as_values=True)
    counts_output: str | None = option(
        None, str,
        "Also write the word counts to this file, as a table if it ends in .parquet.",
        "--save-counts", metavar="FILE")
    counts_only: bool = option(
        False, bool, "Write the word counts without training.", needs=("counts_output",))
    from_counts: tuple[str, ...] = option(
        (), str,
        "Train on saved word counts instead of CORPUS. Repeatable: the counts are added.",
        metavar="FILE", many=True)
    threads: int | None = option(
        None, "threads", "CPU threads that count words.", metavar="N",
        default_words="one per processor; up to 4 with NumPy")
    checkpoint: str | None = option(
        None, str, "Keep progress in this folder until the run is finished, for --resume.",
        metavar="FOLDER")
    resume: bool = option(
        False, bool, "Resume an interrupted run from its --checkpoint, with its options.",
        needs=("checkpoint",))
    part: Part | str | None = groups.part()
    force: bool = groups.force()
    files: FileOptions = group(FileOptions)
    reading: ReadingOptions = group(ReadingOptions)
    device: str = groups.device()
    # fmt: on
