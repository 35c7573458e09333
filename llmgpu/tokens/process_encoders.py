"""The encoders that a process keeps open for many texts: one for short texts, one for long ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import (
    NUMPY,
    TOKENIZING_FROM,
    Backend,
    gpu_from,
    is_for_gpu,
    selecting_early,
    start_selecting,
)
from llmgpu.bpe.encoding.encoder import CollectedIds, Encoder, Expecting
from llmgpu.bpe.encoding.encoder_c import CpuEncoder
from llmgpu.bpe.encoding.open import open_matching_encoder, prepare_vocabulary
from llmgpu.bpe.encoding.special_encoding import DocumentEncoder, with_special_tokens
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from llmgpu.tokens.tokenizing import encode_corpus

_MOST_KEPT = 16  # encoders with different options
HOST_BYTES = 1 << 16  # up to here the CPU is done before a device has received the text


class ProcessEncoders:
    """The encoders of one process; threads take turns.

    process: its id. A forked process needs encoders of its own.
    """

    def __init__(self, vocabulary: Vocabulary, device: str) -> None:
        """Open nothing yet; device: as for --device."""
        self.process = os.getpid()
        self._vocabulary = vocabulary
        self._device = device
        self._lock = threading.Lock()
        # Not cached properties: in Python 3.11 these share a lock, which a fork may find held.
        self._selected: Callable[[], Backend] | None = None
        self._short: Encoder | None = None
        self._large: Encoder | None = None
        self._special: dict[tuple[SpecialOptions, bool], Encoder] = {}
        self._documents: dict[SpecialOptions, DocumentEncoder] = {}

    def renewed(self) -> ProcessEncoders:
        """Return new ones, of this process."""
        return ProcessEncoders(self._vocabulary, self._device)

    def open(self) -> None:
        """Open the device, unless it is ``auto``, which is opened when it is needed."""
        if self._device != "auto":
            selecting = self._selecting
            wait_for_tables = prepare_vocabulary(self._vocabulary, self._device)
            selecting()
            wait_for_tables()

    @property
    def backend(self) -> Backend:
        """Where to compute, or what joins the CPU; opened on first use."""
        return self._selecting()

    @property
    def _selecting(self) -> Callable[[], Backend]:
        """What waits for the device, which begins to open on first use."""
        if self._selected is None:
            with selecting_early(self._device, auto=True):
                self._selected = start_selecting(self._device)
        return self._selected

    @property
    def _host(self) -> Encoder:
        if self._short is None:
            self._short = open_matching_encoder(self._vocabulary, NUMPY, HOST_BYTES, threads=1)
        return self._short

    def _open_large(self, text_bytes: int | None) -> Encoder:
        """Return the encoder of long texts; text_bytes: of the next one, if that is known."""
        if self._large is None:
            backend = self._joined(text_bytes) if self._device == "auto" else self.backend
            self._large = open_matching_encoder(self._vocabulary, backend, text_bytes=text_bytes)
        if isinstance(self._large, Expecting):
            self._large.expect(text_bytes)
        return self._large

    def _joined(self, text_bytes: int | None) -> Backend:
        """Return the CPU, which the device joins; begin to open it if the first text is long.

        That is before the CPU's own tables are made.
        """
        if is_for_gpu(text_bytes):
            _ = self._selecting
        prepare_vocabulary(self._vocabulary, self._device, text_bytes)
        joins = gpu_from(TOKENIZING_FROM)
        return replace(NUMPY, joining=lambda: self.backend, join_from=joins, shares={})

    def encode_files(
        self, names: Sequence[str], reading: CorpusOptions | None, options: SpecialOptions
    ) -> NDArray[np.uint32]:
        """Return the ids of the documents in files, end to end; reading: how to read them."""
        with Corpus(names, reading) as text:
            return self._encode(text, options)[0]

    def encode_documents(
        self, documents: Sequence[bytes], options: SpecialOptions
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of documents, end to end, and where in them each starts."""
        return self._encode(corpus_from_bytes(documents), options)

    def _encode(
        self, source: Corpus, options: SpecialOptions
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        is_small = source.total_bytes is not None and source.total_bytes <= HOST_BYTES
        ids = CollectedIds(source.total_bytes)
        starts = [np.empty(0, np.int64)]
        count = 0
        with self._lock:
            inner = self._host if is_small else self._open_large(source.total_bytes)
            encoder = self._encoder(inner, options, is_small=is_small)
            for piece in encode_corpus(encoder, source, ids):
                ids.append(piece.ids)
                starts.append(piece.document_starts + count)
                count += len(piece.ids)
        return ids.take(), np.concatenate(starts)

    def encode_document(self, text: bytes, options: SpecialOptions) -> NDArray[np.uint32] | None:
        """Return the ids of a document at once; None if that takes `encode_documents`."""
        if len(text) > HOST_BYTES:
            return None
        host = self._host
        if not isinstance(host, CpuEncoder) or self._vocabulary.normalizer is not None:
            return None
        with self._lock:
            if options not in self._documents:
                _make_room(self._documents)
                documents = DocumentEncoder(host.encode_document, self._vocabulary, options)
                self._documents[options] = documents
            return self._documents[options].encode(text)

    def _encoder(self, inner: Encoder, options: SpecialOptions, *, is_small: bool) -> Encoder:
        """Return an encoder that handles special tokens; is_small: for short texts."""
        key = options, is_small
        if key not in self._special:
            _make_room(self._special)
            self._special[key] = with_special_tokens(inner, self._vocabulary, options)
        return self._special[key]


def _make_room(kept: dict[Any, Any]) -> None:
    """Forget the oldest of what is kept if it is much."""
    if len(kept) >= _MOST_KEPT:
        del kept[next(iter(kept))]
