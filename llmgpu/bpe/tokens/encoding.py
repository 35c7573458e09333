"""A corpus, encoded into whatever takes its ids, and what decides these ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, new_ids
from llmgpu.bpe.encoding.id_memory import ReusedMemory
from llmgpu.bpe.encoding.special_encoding import SpecialOptions
from llmgpu.bpe.run_facts import FILES, Run, file_facts
from llmgpu.bpe.text.corpus import Corpus, CorpusOptions
from llmgpu.bpe.text.sources import STANDARD_INPUT, resolve_sources
from llmgpu.bpe.tokens.files import TokenSink
from llmgpu.errors import InputError, TextError
from llmgpu.progress import Progress


def encode_corpus(
    encoder: Encoder, text: Corpus, allocate: Allocate = new_ids
) -> Iterator[EncodedSlice]:
    """Yield the ids of all of `text`, see `Encoder.encode`; a TextError names the file it is in."""
    try:
        yield from encoder.encode(text, allocate)
    except TextError as error:
        path, offset = text.place(error.offset)
        raise TextError(error.what, offset, error.why, path) from None


def encode_into(sink: TokenSink, encoder: Encoder, text: Corpus, progress: Progress) -> None:
    """Write the ids of all of `text` to `sink`, each piece as soon as it is encoded.

    progress: called with the bytes of the sources that were read, phase "tokenizing".
    Raises what the encoder, the corpus and the sink raise.
    """
    memory = ReusedMemory(2)  # one piece is written while the next is encoded
    written: Future[None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="llmgpu-write") as writing:
        for piece in encode_corpus(encoder, text, memory.allocate):
            if written is not None:
                written.result()
            written = writing.submit(
                sink.write,
                piece.ids,
                piece.document_starts,
                text_bytes=piece.text_bytes,
                closed=piece.closed,
            )
            progress("tokenizing", text.bytes_read, text.total_bytes)
        if written is not None:
            written.result()


def encoding_facts(sources: Sequence[str], options: CorpusOptions, special: SpecialOptions) -> Run:
    """Return what is read and how, for a run that goes on from another one to compare.

    InputError for sources that are missing or unfit.
    """
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


def require_same_again(sources: Sequence[str]) -> None:
    """Raise an InputError unless all sources are files, whose text is there to be read again."""
    for source in resolve_sources(sources)[0]:
        if source.size is None or source.path == STANDARD_INPUT:
            raise InputError(
                f"--resume can't tell whether {source.path} is the same text again: name files"
            )
