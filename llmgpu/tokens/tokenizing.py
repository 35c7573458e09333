"""Tokenizing a corpus into a sink, and the resume key of such a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, ReusedMemory, new_ids
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.errors import InputError, TextError
from llmgpu.pipeline import in_order
from llmgpu.progress import Progress, no_progress
from llmgpu.resume_key import FILES, Run, file_facts
from llmgpu.spelling import spelled
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Sources, resolve_sources
from llmgpu.text.streams import AUTO, STANDARD_INPUT
from llmgpu.tokens.filters import Filter
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
    """Write the ids of a whole corpus to a sink; see `encode_corpus` and `write_slices`."""
    write_slices(sink, encode_corpus(encoder, text, ReusedMemory(), filters), text, progress)


def write_slices(
    sink: TokenSink, slices: Iterator[EncodedSlice], text: Corpus, progress: Progress
) -> None:
    """Write slices of a corpus to a sink, each slice as soon as possible.

    While slices are encoded, threads write earlier slices. A program may be waiting for the output
    of a direct sink, such as a pipe, so each slice is written before the next one is encoded.

    progress: called with the bytes read from the sources, phase "tokenizing".

    Raises the errors of the encoder, the corpus and the sink.
    """
    prepared = in_order(slices, sink.prepare, 0 if sink.is_direct else _PREPARED)
    ahead = 0 if sink.is_direct else _WRITTEN
    for _ in in_order(prepared, sink.write, ahead, threads=1):
        progress("tokenizing", text.bytes_read, text.total_bytes)


def encoding_key(
    sources: Sequence[str] | Sources, options: CorpusOptions, special: SpecialOptions
) -> Run:
    """Return the resume key of tokenizing: sources and options; InputError for missing sources."""
    chat, files = options.chat, resolve_sources(sources).files
    formats = [source.format for source in files]
    return {
        FILES: [file_facts(source.path) for source in files],
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
