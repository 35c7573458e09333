"""A corpus tokenized into a sink, and the resume key of such a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, ReusedMemory, new_ids
from llmgpu.bpe.encoding.special_encoding import SpecialOptions
from llmgpu.errors import InputError, TextError
from llmgpu.processors import usable_processors
from llmgpu.progress import Progress
from llmgpu.resume_key import FILES, Run, file_facts
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Sources, resolve_sources
from llmgpu.text.streams import STANDARD_INPUT
from llmgpu.tokens.sinks import TokenSink

# Bytes of text that the processors take as long for as opening a GPU does.
GPU_FROM = 64_000_000 * usable_processors()


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

    Unless a reader may be waiting for the output, a slice is written while the next is encoded.

    progress: called with the bytes read from the sources, phase "tokenizing".

    Raises what the encoder, the corpus and the sink raise.
    """
    memory = ReusedMemory(2)  # for the slice being written and the one being encoded
    with nullcontext(sink.write) if sink.is_direct else _in_background(sink.write) as write:
        for piece in encode_corpus(encoder, text, memory.allocate):
            write(piece)
            progress("tokenizing", text.bytes_read, text.total_bytes)


@contextmanager
def _in_background(
    function: Callable[[EncodedSlice], None],
) -> Iterator[Callable[[EncodedSlice], None]]:
    """Yield a function that calls `function` in another thread, one call at a time.

    An exception of a call is raised by the next one, or at the end of the block.
    """
    last: Future[None] | None = None

    def call(piece: EncodedSlice) -> None:
        nonlocal last
        if last is not None:
            last.result()
        last = thread.submit(function, piece)

    with ThreadPoolExecutor(1, thread_name_prefix="llmgpu-write") as thread:
        yield call
        if last is not None:
            last.result()


def encoding_key(
    sources: Sequence[str] | Sources, options: CorpusOptions, special: SpecialOptions
) -> Run:
    """Return what is read and how, the resume key of tokenizing; InputError for missing sources."""
    return {
        FILES: [file_facts(source.path) for source in resolve_sources(sources)[0]],
        "text field": options.text_field,
        "document separators": [text.decode() for text in options.separators],
        "encoding errors": options.encoding_errors,
        "limit": options.limit,
        "line documents": options.line_documents,
        "allowed special tokens": sorted(special.allowed),
        "disallowed special tokens": sorted(special.disallowed),
        "token before documents": special.bos,
        "token behind documents": special.eos,
    }


def require_rereadable(sources: Sequence[str] | Sources) -> None:
    """Raise InputError unless all sources are files, so that a resumed job can read them again."""
    for source in resolve_sources(sources)[0]:
        if source.size is None or source.path == STANDARD_INPUT:
            raise InputError(
                f"--resume can't tell whether {source.path} is the same text again: name files"
            )
