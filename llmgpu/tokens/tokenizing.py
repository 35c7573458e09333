"""A corpus tokenized into a sink, and the resume key of such a job."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, ReusedMemory, new_ids
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.errors import InputError, TextError
from llmgpu.progress import Progress
from llmgpu.resume_key import FILES, Run, file_facts
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Sources, resolve_sources
from llmgpu.text.streams import AUTO, STANDARD_INPUT
from llmgpu.tokens.sinks import TokenSink

_WRITERS = 3  # threads: one writes, others prepare what is written next
_WAITING_IDS = 1 << 21  # that are to be written, unless each thread has a slice


def encode_corpus(
    encoder: Encoder, text: Corpus, allocate: Allocate = new_ids
) -> Iterator[EncodedSlice]:
    """Yield the ids of a whole corpus; see `Encoder.encode`.

    Raises what the encoder and the corpus raise. A TextError names the file of the corpus, and the
    offset in the text of that file.
    """
    try:
        yield from encoder.encode(text, allocate)
    except TextError as error:
        source, offset = text.place(error.offset)
        raise TextError(error.what, offset, error.why, source) from None


def encode_into(sink: TokenSink, encoder: Encoder, text: Corpus, progress: Progress) -> None:
    """Write the ids of a whole corpus to a sink, each slice as soon as it is encoded.

    Unless a reader may be waiting for the output, slices are written while others are encoded.

    progress: called with the bytes read from the sources, phase "tokenizing".

    Raises what the encoder, the corpus and the sink raise.
    """
    memory = ReusedMemory()
    with nullcontext(sink.write) if sink.is_direct else _in_background(sink) as write:
        for piece in encode_corpus(encoder, text, memory):
            write(piece)
            progress("tokenizing", text.bytes_read, text.total_bytes)


@contextmanager
def _in_background(sink: TokenSink) -> Iterator[Callable[[EncodedSlice], None]]:
    """Yield a function that writes slices to a sink in other threads, which prepare several.

    What the sink raises for a slice is raised by a later call, or at the end of the block.
    """
    waiting: deque[tuple[Future[None], int]] = deque()
    waiting_ids = 0

    def finish() -> int:
        written, ids = waiting.popleft()
        written.result()
        return ids

    def step(piece: EncodedSlice, before: Future[None] | None) -> None:
        prepared = sink.prepare(piece)
        if before is not None:
            before.result()
        sink.write(prepared)

    def write(piece: EncodedSlice) -> None:
        nonlocal waiting_ids
        many = waiting_ids + len(piece.ids) > _WAITING_IDS
        while waiting and (waiting[0][0].done() or (many and len(waiting) >= _WRITERS)):
            waiting_ids -= finish()
        before = waiting[-1][0] if waiting else None
        waiting.append((threads.submit(step, piece, before), len(piece.ids)))
        waiting_ids += len(piece.ids)

    threads = ThreadPoolExecutor(_WRITERS, thread_name_prefix="llmgpu-write")
    try:
        yield write
        while waiting:
            finish()
    finally:
        threads.shutdown(cancel_futures=True)


def encoding_key(
    sources: Sequence[str] | Sources, options: CorpusOptions, special: SpecialOptions
) -> Run:
    """Return what is read and how, the resume key of tokenizing; InputError for missing sources."""
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
        **({"bad rows": options.bad_rows} if options.bad_rows != "error" else {}),
        **({"chat template": chat.digest} if chat else {}),
        **({"input formats": formats} if set(formats) - {AUTO} else {}),
    }


def require_rereadable(sources: Sequence[str] | Sources) -> None:
    """Raise InputError unless all sources are files, so that a resumed job can read them again."""
    for source in resolve_sources(sources)[0]:
        if source.size is None or source.path == STANDARD_INPUT:
            raise InputError(
                f"--resume can't tell whether {source.path} is the same text again: name files"
            )
