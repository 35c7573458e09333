"""Tokenizing a corpus into a sink, the resume key of such a job, and counts of tokens by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, ReusedMemory, new_ids
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.errors import InputError, TextError
from llmgpu.input_files import STANDARD_INPUT
from llmgpu.pipeline import in_order
from llmgpu.progress import Progress, no_progress
from llmgpu.resume_key import FILES, Run
from llmgpu.spelling import spelled
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Sources, resolve_sources
from llmgpu.text.streams import AUTO
from llmgpu.tokens.filters import Filter, Slices
from llmgpu.tokens.sinks import TokenSink

# Most slices that are being prepared or wait for the writer, with the one that it took last.
_PREPARED = 3
_WRITTEN = 2  # number of slices that are being written or wait for it
SUGGEST_GPU_FROM = 10**9  # suggest a GPU after as many bytes of text


def encode_corpus(
    encoder: Encoder,
    text: Corpus,
    allocate: Allocate = new_ids,
    filters: Sequence[Filter] = (),
) -> Iterator[EncodedSlice]:
    """Yield the ids of a whole corpus, see `Encoder.encode`, after passing them through filters.

    Raises the errors of the encoder and of the corpus. A TextError names the file of the corpus,
    and the offset in the text of that file.
    """
    try:
        slices = encoder.encode(text, allocate)
        for each in filters:
            slices = each(slices)
        yield from slices
    except TextError as error:
        source, offset = text.place(error.offset)
        raise TextError(error.what, offset, error.why, source) from None


def encode_into(
    sink: TokenSink,
    encoder: Encoder,
    text: Corpus,
    progress: Progress,
    filters: Sequence[Filter] = (),
) -> None:
    """Write the ids of a whole corpus to a sink, each slice as soon as possible.

    While slices are encoded, threads write earlier slices. A program may be waiting for the output
    of a direct sink, such as a pipe, so each slice is written before the next one is encoded.

    progress: called for each slice when it is encoded, with the bytes read from the sources, phase
    "tokenizing". filters: see `encode_corpus`.

    Raises the errors of the encoder, the corpus and the sink.
    """
    reported = partial(_report, text=text, progress=progress)
    slices = encode_corpus(encoder, text, ReusedMemory(), [reported, *filters])
    prepared = in_order(slices, sink.prepare, 0 if sink.is_direct else _PREPARED)
    ahead = 0 if sink.is_direct else _WRITTEN
    for _ in in_order(prepared, sink.write, ahead, threads=1):
        pass


def _report(slices: Slices, text: Corpus, progress: Progress) -> Slices:
    """Report the bytes read so far, and yield each slice unchanged."""
    for piece in slices:
        progress("tokenizing", text.bytes_read, text.total_bytes)
        yield piece


def encoding_key(
    sources: Sequence[str] | Sources, options: CorpusOptions, special: SpecialOptions
) -> Run:
    """Return the resume key of tokenizing: sources and options; InputError for missing sources."""
    chat, files = options.chat, resolve_sources(sources).files
    formats = [source.format for source in files]
    return {
        FILES: [source.facts for source in files],
        "text field": options.text_field,
        "document separators": [text.decode() for text in options.separators],
        "encoding errors": options.encoding_errors,
        "limit": options.limit,
        "line documents": options.line_documents,
        "allowed special tokens": sorted(special.allowed),
        "disallowed special tokens": sorted(special.disallowed),
        "token before documents": special.bos,
        "token behind documents": special.eos,
        **({"template": options.row_template.source} if options.row_template else {}),
        **({"bad rows": options.bad_rows} if options.bad_rows != "error" else {}),
        **({"chat template": chat.digest} if chat else {}),
        **({"input formats": formats} if set(formats) - {AUTO} else {}),
    }


def require_rereadable(sources: Sequence[str] | Sources) -> None:
    """Raise InputError unless all sources are files: a resumed job reads its sources again."""
    for source in resolve_sources(sources)[0]:
        if source.size is None or source.path == STANDARD_INPUT:
            raise InputError(
                f"{spelled('--resume')} can't tell whether {source.path} is the same text again: "
                "name files"
            )


def known_bytes(sources: Sources, limit: int | None) -> int | None:
    """Estimate the bytes of text of sources, up to a limit; None for pipes and compressed files.

    The estimate is the size of the files, with bytes that are not text, such as the JSON of .jsonl.
    """
    total = sources.total_bytes
    if total is None or any(source.compression for source in sources.files):
        return None
    return total if limit is None else min(total, limit)


def suggesting_gpu(
    text: Corpus,
    is_unknown: bool,
    note: Callable[[str], None],
    progress: Progress = no_progress,
    least: int = SUGGEST_GPU_FROM,
) -> Progress:
    """Return `progress`, extended to suggest --device gpu once, after `least` bytes of text.

    is_unknown: whether ``auto`` encodes on the CPU because the size of the text is unknown. Only
    then the GPU is suggested. note: called with the suggestion.
    """
    is_due = is_unknown

    def suggest(phase: str, done: int, total: int | None) -> None:
        nonlocal is_due
        progress(phase, done, total)
        if is_due and text.text_bytes >= least:
            is_due = False
            note(
                "the CPU encodes this text, since its size was not known; where there is a GPU, "
                f"{spelled('--device gpu')} may be faster"
            )

    return suggest


@dataclass(frozen=True)
class FileCount:
    """A file of a corpus: bytes of the text that was extracted from it, and number of tokens."""

    path: str
    text_bytes: int
    tokens: int


class DocumentLengths:
    """Counts documents by their number of tokens; `add` is called for each slice, in order."""

    def __init__(self) -> None:
        self._documents: Counter[int] = Counter()  # number of documents for each number of tokens
        # Tokens so far of the current document; None between documents.
        self._open: int | None = None

    def add(self, starts: NDArray[np.int64], count: int) -> None:
        """Count the documents in the next `count` ids; they begin at `starts`, ascending."""
        if self._open is not None:
            self._open += int(starts[0]) if len(starts) else count
        if len(starts):
            self.close()
            lengths, documents = np.unique(np.diff(starts), return_counts=True)
            self._documents.update(dict(zip(lengths.tolist(), documents.tolist(), strict=True)))
            self._open = count - int(starts[-1])

    def close(self) -> None:
        """End the last document."""
        if self._open is not None:
            self._documents[self._open] += 1
        self._open = None

    def summary(self) -> dict[str, Any]:
        """Return statistics of the numbers of tokens in documents, by name.

        pN: the smallest number such that N % of the documents have no more tokens. above: for each
        power of two from 128 on, the number of documents with more tokens.
        """
        self.close()
        lengths = sorted(self._documents)
        if not lengths:
            return {"documents": 0}
        documents = np.cumsum([self._documents[length] for length in lengths])
        total = int(documents[-1])
        ranks = {"median": 50, "p90": 90, "p99": 99}
        found = {
            name: lengths[int(np.searchsorted(documents, -(-total * rank // 100)))]
            for name, rank in ranks.items()
        }
        powers = (1 << bits for bits in range(7, lengths[-1].bit_length()))
        above = {
            str(power): sum(n for length, n in self._documents.items() if length > power)
            for power in powers
        }
        return {"documents": total, "min": lengths[0], **found, "max": lengths[-1], "above": above}


def count_files(
    encoder: Encoder,
    text: Corpus,
    progress: Progress = no_progress,
    *,
    used: NDArray[np.int64] | None = None,
    lengths: DocumentLengths | None = None,
    filters: Sequence[Filter] = (),
) -> list[FileCount]:
    """Return the counts of the files of a corpus, in reading order, from one pass over the corpus.

    A slice may cover many small files, or a stretch of a large file. Each file begins a document,
    so the positions at which files begin are among the document starts of the slices.

    progress: called with the bytes read from the sources, phase "tokenizing". used: int64
        (vocabulary size,); the occurrences of each id are added to it.
    lengths: collects the number of tokens of each document.

    Raises the errors of the encoder and of the corpus.
    """
    positions: list[int] = []  # the number of ids before each file that has begun
    documents = ids = 0
    reported = partial(_report, text=text, progress=progress)
    for piece in encode_corpus(encoder, text, ReusedMemory(), [reported, *filters]):
        starts, begun = piece.document_starts, text.begun
        for begin in begun[len(positions) :]:
            if begin.documents >= documents + len(starts):
                break
            positions.append(ids + int(starts[begin.documents - documents]))
        documents += len(starts)
        ids += len(piece.ids)
        if used is not None:
            used += np.bincount(piece.ids, minlength=len(used))
        if lengths is not None:
            lengths.add(starts, len(piece.ids))
    rest = len(text.begun) - len(positions)  # files without a document at the end
    counts = np.diff([*positions, *[ids] * rest, ids]).tolist()
    ends = [*(begin.offset for begin in text.begun), text.text_bytes]
    return [
        FileCount(begin.path, end - first, count)
        for begin, (first, end), count in zip(text.begun, pairwise(ends), counts, strict=True)
    ]
