"""``llmgpu bpe-train``: corpus in, vocabulary out."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.backend import TRAINING_FROM
from llmgpu.bpe.pretokens.names import DEFAULT_PATTERN
from llmgpu.bpe.training import ENGINES
from llmgpu.bpe.vocabulary import MATCH_RULES, TIE_RULES
from llmgpu.cli.option_files import CheckpointedCommand
from llmgpu.cli.options import (
    corpus_options,
    device_option,
    force_option,
    open_device_early,
    option_group,
    output_options,
    part_option,
    pattern_options,
    vocabulary_output_option,
)
from llmgpu.cli.source_options import source_options
from llmgpu.cli.values import TEXT, THREADS, VocabularySizes

_options = option_group(
    vocabulary_output_option,
    click.option("--vocab-size", "sizes", type=VocabularySizes(), default="32768",
                 show_default=True, metavar="N[,N...]",
                 help="Vocabulary size, including special tokens and the tokens of a seed. Several "
                 "sizes are written to v-8192.bin, v-32768.bin and so on."),
    pattern_options(help="Split text into pre-tokens by this pattern; no token crosses their "
                    "boundaries.  [default: the pattern of the seed or counts, else "
                    f"{DEFAULT_PATTERN}]"),
    click.option("--min-frequency", default=2, show_default=True, metavar="N",
                 help="Merge only pairs that occur at least this often."),
    click.option("--max-token-length", type=click.IntRange(min=1), metavar="BYTES",
                 help="Longest token to make (one less than Hugging Face's max_token_length)."),
    click.option("--special-token", "special_tokens", type=TEXT, multiple=True, metavar="TEXT",
                 help="Reserve an id for this token. In the corpus, it separates documents and is "
                 "not counted. Repeatable."),
    click.option("--tie", type=click.Choice(list(TIE_RULES)),
                 help="Merge equally frequent pairs in the order of Hugging Face tokenizers (hf) "
                 "or by byte value (bytes).  [default: the seed's rule, else hf]"),
    click.option("--match", type=click.Choice(MATCH_RULES),
                 help="How words become tokens: merges in order (bpe) or longest token first "
                 "(greedy).  [default: the seed's rule, else bpe]"),
    click.option("--seed-vocab", metavar="VOCAB",
                 help="Extend this vocabulary: its tokens keep their ids and its merges come "
                 "first."),
    click.option("--engine", type=click.Choice(list(ENGINES)), default="batched", show_default=True,
                 help="Merge many pairs of the distinct words at a time (batched), or recount the "
                 "whole text for each merge (recount, GPU only). The merges are the same."),
    click.option("--save-counts", "counts_output", metavar="FILE",
                 help="Also write the word counts to this file, as a table if it ends in "
                 ".parquet."),
    click.option("--counts-only", is_flag=True, help="Write the word counts without training."),
    click.option("--from-counts", multiple=True, metavar="FILE",
                 help="Train on saved word counts instead of CORPUS. Repeatable: the counts are "
                 "added."),
    click.option("--threads", type=THREADS, metavar="N",
                 help="CPU threads that count words.  [default: one per processor; up to 4 with "
                 "NumPy]"),
    click.option("--checkpoint", metavar="FOLDER",
                 help="Keep progress in this folder until the run is finished, for --resume."),
    click.option("--resume", is_flag=True,
                 help="Resume an interrupted run from its --checkpoint, with its options."),
    part_option,
    force_option,
    source_options,
    corpus_options,
    device_option,
    output_options,
)  # fmt: skip


@click.command("bpe-train", cls=CheckpointedCommand)
@click.argument("corpus", nargs=-1)
@_options
def bpe_train(**options: Any) -> None:
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
    open_device_early(options, options["corpus"], TRAINING_FROM)
    from llmgpu.cli import bpe_train

    bpe_train.bpe_train(**options)
