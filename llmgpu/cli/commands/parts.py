"""``llmgpu run``, ``merge-word-counts`` and ``merge-shards``: jobs in parts."""

from __future__ import annotations

from dataclasses import MISSING

from llmgpu.cli import groups
from llmgpu.cli.options import command
from llmgpu.option_fields import argument, option


@command("run", "run:run")
class RunCommand:
    """Run tokenize or bpe-train in parts on a Ray cluster, and combine the results.

    All machines need the same files at the same paths, and llmgpu with Ray: pip install
    'llmgpu[ray]'. If a worker is lost, its part is retried. You can interrupt the command and run
    it again; finished parts are not repeated. It writes the same files as --part followed by
    merge-shards or merge-word-counts.

    \b
    Examples:
      llmgpu run --ray local:2 -- tokenize --vocab v.bin data -o t.bin --shard-tokens 100M
      llmgpu run --ray auto --parts 64 -- bpe-train data -o v.bin --vocab-size 32768
    """

    # fmt: off
    command: tuple[str, ...] = argument("-- COMMAND...", many=True, required=True)
    ray: str = option(
        MISSING, str,
        "Ray cluster: the one this machine belongs to (auto), the one at ADDRESS, or a temporary "
        "one with N workers on this machine (local:2).", metavar="auto|ADDRESS|local:N")
    parts: int | None = option(
        None, int, "Number of parts to split the work into.", least=1, most=999_999,
        default_words="4 per worker")
    cpus: int = option(1, int, "CPUs and threads per part.", least=1)
    # fmt: on


@command("merge-word-counts", "parts:merge_word_counts")
class MergeWordCountsCommand:
    """Add up word counts written by bpe-train --counts-only.

    Memory use does not grow with the number of words; a temporary file is as large as the result.

    \b
    Examples:
      llmgpu merge-word-counts 1-of-2.counts 2-of-2.counts -o all.counts
      llmgpu merge-word-counts web.counts code.counts --weight code.counts=3 -o mix.counts
    """

    # fmt: off
    counts: tuple[str, ...] = argument("COUNTS...", many=True, required=True)
    output: str = option(MISSING, str, "Output file.", "--output", "-o", metavar="FILE")
    weights: tuple[tuple[str, int], ...] = option(
        (), "file weight", "Count this file N times. Repeatable.", "--weight", metavar="COUNTS=N",
        many=True)
    force: bool = groups.force()
    # fmt: on


@command("merge-shards", "parts:merge_shards")
class MergeShardsCommand:
    """Write one manifest for the shards of all parts written by tokenize --part.

    The shards are not changed. Read in order, they hold the same ids as one run over all the text.

    \b
    Example:
      llmgpu merge-shards tokens-*-of-8.json -o tokens.json
    """

    # fmt: off
    manifests: tuple[str, ...] = argument("MANIFEST...", many=True, required=True)
    output: str = option(
        MISSING, str, "Manifest to write, in the same folder as the shards.", "--output", "-o",
        metavar="MANIFEST")
    force: bool = groups.force()
    # fmt: on
