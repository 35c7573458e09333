"""``llmgpu count``: the tokens of files, by one vocabulary or several."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING

from llmgpu.cli import groups
from llmgpu.cli.groups import (
    ChatOptions,
    FileOptions,
    ReadingOptions,
    ReportOptions,
    SpecialTokenOptions,
)
from llmgpu.cli.options import command
from llmgpu.option_fields import argument, group, option

if TYPE_CHECKING:
    from llmgpu.backend import Opening
    from llmgpu.text.parts import Part


@dataclass(frozen=True, kw_only=True)
class CountCommand:
    """The options of the command."""

    # fmt: off
    paths: tuple[str, ...] = argument("[PATH...|-]", many=True)
    vocabs: tuple[str, ...] = option(
        MISSING, str, f"{groups.VOCAB_HELP} Repeatable: one column each.", "--vocab",
        metavar="VOCAB", many=True)
    per: str = option(
        "file", ("file", "folder", "document", "total"),
        "Print one line per file or folder, or only the total; document prints how long documents "
        "are: median, 90th and 99th percentile, and the share above powers of two.")
    line_documents: bool = option(False, bool, "Make each line a document.")
    sort: str | None = option(
        None, ("path", "tokens", "bytes"),
        "Sort by path, or by tokens (of the first VOCAB) or bytes, largest first.",
        default_words="input order")
    budget: int | None = option(
        None, "tokens",
        "Exit with code 3 if there are more than N tokens in total (50K, 2M).", metavar="N")
    budget_per_file: int | None = option(
        None, "tokens", "Exit with code 3 if a file has more than N tokens.", metavar="N")
    threads: int | None = groups.encoding_threads()
    part: Part | str | None = groups.part()
    special: SpecialTokenOptions = group(SpecialTokenOptions)
    chat: ChatOptions = group(ChatOptions)
    files: FileOptions = group(FileOptions)
    reading: ReadingOptions = group(ReadingOptions)
    device: str = groups.device()
    report: ReportOptions = group(ReportOptions)
    # fmt: on


@command(CountCommand, "count", "count:count")
def count(asked: CountCommand) -> Opening:
    """Count the tokens of files, folders or globs, or of a pipe: wc for tokens.

    \b
    Examples:
      llmgpu count --vocab v.bin corpus.txt
      llmgpu count --vocab cl100k --vocab o200k src --per folder --sort tokens
      llmgpu count --vocab v.bin corpus.jsonl --per document
      git diff | llmgpu count --vocab o200k --budget 8K
    """
    return groups.open_device(asked.device, asked.paths, encodes=True)
