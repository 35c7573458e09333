"""A part of a corpus: one of N parts that separate processes read, on any machines.

- The files, end to end in the order they are read, are cut into N ranges of equally many bytes. A
  document belongs to the part in whose range the document begins.
- The lines of a .jsonl and the rows of a .parquet are documents. Any other file is one document, or
  with `CorpusOptions.line_documents` one document a line. A compressed file is never cut.
- Counting words does not need whole documents, so for counting a text may be cut inside a document,
  at positions that `CutText` finds.
- The cuts depend only on the bytes of the files, so all machines find the same cuts.
- A corpus may also be cut into consecutive ranges of given shares (`split_by_position`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import BinaryIO

from llmgpu.errors import InputError
from llmgpu.input_files import STANDARD_INPUT, input_errors, quote
from llmgpu.spelling import spelled
from llmgpu.text.corpus import CorpusOptions
from llmgpu.text.sources import Sources, format_of
from llmgpu.text.streams import Source

_BLOCK_BYTES = 1 << 20

# A function of a file and an offset. Returns the first position from the offset on at which the
# text may be cut inside a document, or the length of the file.
CutText = Callable[[BinaryIO, int], int]


@dataclass(frozen=True)
class Part:
    """One of `count` parts of a corpus; `number` counts from 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise InputError(f"there is no part {self}: parts are numbered from 1/N to N/N")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def file_name(self) -> str:
        """The part as it appears in file names; the names sort in the order of the parts."""
        return f"{self.number:0{len(str(self.count))}}-of-{self.count}"


# Environment variables of schedulers: a job's number, the number of jobs, and the first job's
# number. Without the third variable the first job has number 0.
_ENVIRONMENTS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", ""),
    ("RANK", "WORLD_SIZE", ""),
)


def part_from_environment(environment: Mapping[str, str] = os.environ) -> tuple[Part, str]:
    """Return the part that a scheduler assigned to this process, and the names of the variables.

    Raises InputError if no variables are set, two schedulers disagree, or a value is not a number.
    """
    found = {}
    for number, count, first in _ENVIRONMENTS:
        if number in environment and count in environment:
            low = _whole(environment, first) if first in environment else 0
            part = Part(_whole(environment, number) - low + 1, _whole(environment, count))
            found[f"{number} and {count}"] = part
    if len(set(found.values())) > 1:
        both = ", ".join(f"{names} part {part}" for names, part in found.items())
        raise InputError(
            f"environment variables name different parts ({both}): give {spelled('--part')} I/N"
        )
    for names, part in found.items():
        return part, names
    known = "; ".join(f"{number} and {count}" for number, count, _ in _ENVIRONMENTS)
    raise InputError(
        f"no environment variable says which part this is ({known}): give {spelled('--part')} I/N"
    )


def _whole(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(
            f"{name} is {quote(text)}, not a part number: give {spelled('--part')} I/N"
        )
    return int(text)


def take_part(
    sources: Sources, part: Part, options: CorpusOptions, cut_text: CutText | None = None
) -> Sources:
    """Return the files, or spans of files, that belong to a part.

    options: options of reading. cut_text: finds cuts inside documents; None: cut only between
    documents.

    Raises InputError for a pipe, for a limit, or if a file can't be read.
    """
    if options.limit is not None:
        raise InputError(
            f"{spelled('--part')} can't be combined with {spelled('--limit')}: a part has to know "
            "where it ends"
        )
    total = _require_files(sources, spelled("--part"))
    low, high = (total * number // part.count for number in (part.number - 1, part.number))
    high += part.number == part.count  # files without bytes at the end are in the last part
    return sources._replace(files=[*_files_between(sources, low, high, options, cut_text)])


def split_by_position(
    sources: Sources, shares: Mapping[str, float], options: CorpusOptions
) -> tuple[Sources, list[int]]:
    """Cut sources into consecutive ranges; the last ranges have the given shares of the bytes.

    A file of text is cut before the first line that begins in the next range. The text after the
    cut is a document of its own.

    Returns the files of all ranges in order, and the index of the first file of each of `shares`.

    Raises InputError for a pipe, a limit, separators, or if a range gets no text.
    """
    if options.limit is not None or options.separators:
        raise InputError("a text with a limit or separators can't be split by position")
    total = _require_files(sources, "a split by position")
    rest = 1 - sum(shares.values())
    edges = [0.0, *accumulate([rest, *shares.values()])]
    bounds = [round(total * edge) for edge in edges[:-1]] + [total]
    files: list[Source] = []
    firsts = []
    for name, (low, high) in zip(["", *shares], pairwise(bounds), strict=True):
        end = high + (high == total)  # as in `take_part`
        found = [*_files_between(sources, low, end, options, _next_line)]
        if not any(source.length for source in found):  # files without bytes are no text
            what = f"the split {name}" if name else "what is left"
            raise InputError(
                f"{what} gets no text: a file is cut between lines, a compressed one not at all; "
                "give another share"
            )
        firsts.append(len(files))
        files += [source._replace(continues=False) for source in found]
    return sources._replace(files=files), firsts[1:]


def is_one_document(sources: Sources, options: CorpusOptions) -> bool:
    """Whether the text is known to be a single document before it is read."""
    inside = options.line_documents or options.separators or options.chat is not None
    return len(sources.files) == 1 and not inside and format_of(sources.files[0]) is None


def _require_files(sources: Sources, what: str) -> int:
    """Return the total size of the sources in bytes; InputError if one is not a regular file."""
    for source in sources.files:
        if source.length is None or source.path == STANDARD_INPUT:
            raise InputError(f"{what} needs files, not {source.path}: it can't be cut")
    return sources.total_bytes or 0


def _files_between(
    sources: Sources, low: int, high: int, options: CorpusOptions, cut_text: CutText | None
) -> Iterator[Source]:
    """Yield the files, or spans of files, in a byte range of the corpus.

    low, high: the range, in bytes of all files end to end. The last range ends after all bytes, so
    that it has the files that begin there.
    """
    begin = 0
    for source in sources.files:
        size = source.length or 0
        first, last = max(0, low - begin), min(size, high - begin)
        starts_here = low <= begin < high
        begin += size
        find = _cuts_of(source, options, cut_text)
        if find is None or (first == 0 and last == size):
            if starts_here:
                yield source
        elif first < last:
            span = _cut(source, find, first), _cut(source, find, last)
            if span[0] < span[1]:
                inside = cut_text is not None and format_of(source) is None and span[0] > 0
                yield source._replace(span=span, continues=inside)


def _cuts_of(source: Source, options: CorpusOptions, cut_text: CutText | None) -> CutText | None:
    """Return a function that finds the next allowed cut of a file; None if no cut is allowed."""
    if source.compression:
        return None
    if kind := format_of(source):
        return _next_line if kind.has_lines else lambda _, offset: offset
    if options.line_documents:
        return None if options.separators else _next_line
    return cut_text


def _cut(source: Source, find: CutText, offset: int) -> int:
    if offset == 0 or offset == source.size:
        return offset
    with input_errors(source.path), source.open() as file:
        return find(file, offset)


def _next_line(file: BinaryIO, offset: int) -> int:
    """Return the start of the first line that begins at an offset or later."""
    position = file.seek(offset - 1)
    while block := file.read(_BLOCK_BYTES):
        found = block.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(block)
    return position
