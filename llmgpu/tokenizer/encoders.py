"""The encoders that a process keeps open for a tokenizer: of texts, and of conversations."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Opening
from llmgpu.bpe.encoding.encoder import CollectedIds, Encoder
from llmgpu.bpe.encoding.encoder_c import CpuEncoder, CSliceEncoder
from llmgpu.bpe.encoding.open import open_matching_encoder, prepare_vocabulary
from llmgpu.bpe.encoding.special_encoding import SpecialEncoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.closing import close_with
from llmgpu.cpu.library import bytes_of
from llmgpu.text.chat import Parts
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from llmgpu.tokens.conversations import Conversations, lengths_in_conversations
from llmgpu.tokens.tokenizing import encode_corpus, known_bytes, suggesting_gpu

_MOST_KEPT = 16  # limit of the encoders that are kept, each for other options
# Bytes of the longest text that is always encoded on the CPU: shorter texts are encoded before a
# device would have received them.
HOST_BYTES = 1 << 16
# Bytes of the longest text that is encoded in one call; longer texts are encoded in slices.
MOST_AT_ONCE = 1 << 26
_log = logging.getLogger("llmgpu")


class ProcessEncoders:
    """The encoders of one process.

    Several threads may encode documents on the CPU at the same time. Only one thread at a time uses
    the device or any other encoder.

    process: id of the process. A forked process needs new encoders.
    """

    bytes_of = staticmethod(bytes_of)

    def __init__(self, vocabulary: Vocabulary, opening: Opening) -> None:
        """Start without encoders; opening: opens the device when the first long text arrives."""
        self.process = os.getpid()
        self._vocabulary, self._opening = vocabulary, opening
        self._lock = threading.Lock()
        self._short: Encoder | None = None
        self._long: dict[object, Any] = {}  # see `Backend.encoders`
        # Wraps an encoder so that it handles special tokens.
        self._encoder: Any = lru_cache(_MOST_KEPT)(
            lambda inner, options: SpecialEncoder(inner, vocabulary, options)
        )

    def renewed(self) -> ProcessEncoders:
        """Return new encoders for the current process."""
        return ProcessEncoders(self._vocabulary, Opening(self._opening.wanted, encodes=True))

    def open(self) -> None:
        """Open the device now. With ``auto``, the first long text opens the device instead."""
        if self._opening.wanted != "auto":
            self._opening.begin()
            prepare_vocabulary(self._vocabulary, self._opening)
            self._opening.backend()

    @property
    def _host(self) -> Encoder:
        if self._short is None:
            self._short = open_matching_encoder(self._vocabulary, NUMPY, HOST_BYTES, threads=1)
        return self._short

    def _open_long(self, text_bytes: int | None) -> Encoder:
        """Return the encoder for a long text; text_bytes: None if the size is unknown."""
        opening = self._opening
        if opening.wanted != "cpu" and opening.begin_encoding(text_bytes, at_start=False):
            prepare_vocabulary(self._vocabulary, opening)
        backend = replace(opening.backend(), encoders=self._long)
        return open_matching_encoder(self._vocabulary, backend, text_bytes=text_bytes)

    def _on_host(self, text_bytes: int) -> CSliceEncoder | None:
        """Return the encoder that encodes a text of this size in one call; None without one."""
        if text_bytes > MOST_AT_ONCE:
            return None
        encoder = self._host
        if text_bytes > HOST_BYTES:
            with self._lock:
                encoder = self._open_long(text_bytes)
        return encoder.c_slices if isinstance(encoder, CpuEncoder) else None

    def encode_files(
        self, names: Sequence[str], reading: CorpusOptions | None, options: SpecialOptions
    ) -> NDArray[np.uint32]:
        """Return the ids of the documents in files, end to end; reading: options for reading."""
        with Corpus(names, reading) as text:
            return self._encode(text, options)[0]

    def encode_documents(
        self, documents: Sequence[bytes], options: SpecialOptions
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of documents, end to end, and the positions at which documents begin."""
        return self._encode(corpus_from_bytes(documents), options)

    def _encode(
        self, source: Corpus, options: SpecialOptions
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        is_small = source.total_bytes is not None and source.total_bytes <= HOST_BYTES
        ids = CollectedIds(source.total_bytes)
        starts = [np.empty(0, np.int64)]
        count = 0
        with self._lock:
            size = source.total_bytes
            if source.sources.files:
                size = known_bytes(source.sources, source.options.limit)
            encoder = self._encoder(self._host if is_small else self._open_long(size), options)
            is_unknown = size is None and self._opening.wanted == "auto"
            progress = suggesting_gpu(source, is_unknown, _log.info)
            for piece in encode_corpus(encoder, source, ids):
                ids.append(piece.ids)
                starts.append(piece.document_starts + count)
                count += len(piece.ids)
                progress("tokenizing", source.bytes_read, source.total_bytes)
        return ids.take(), np.concatenate(starts)

    def encode_document(
        self, text: bytes | memoryview, options: SpecialOptions, coder: Any
    ) -> NDArray[np.uint32] | None:
        """Return the ids of a document in one call; coder: see `open_coder`.

        Returns None if only `encode_documents` can encode the document.
        """
        is_normalized = self._vocabulary.normalizer is not None
        encoder = self._on_host(len(text))
        if encoder is None or (is_normalized and len(text) > HOST_BYTES):
            return None
        special: SpecialEncoder = self._encoder(self._host, options)
        if coder is not None and not is_normalized:
            return special.encode_document(text, lambda part: coder.encode(bytes(part), True))
        return special.encode_document(text, encoder.encode_document)

    def encode_batch(self, texts: Sequence[Any], coder: Any, *, as_list: bool) -> list[Any] | None:
        """Return the ids of each text by the extension module; None if the module can't encode.

        coder: see `open_coder`. as_list: return lists of int; otherwise arrays, consecutive views
        of one array.
        """
        # The module encodes no batches for a vocabulary with a normalizer or of SentencePiece's
        # kind.
        if coder is None or self._vocabulary.normalizer or self._vocabulary.pieces is not None:
            return None
        found: list[Any] | None = coder.encode_batch(texts, as_list)
        if found is None and self._opening.wanted != "cpu":
            are_texts = all(isinstance(text, (str, bytes)) for text in texts)
            if are_texts and self._on_host(sum(map(len, texts))):
                found = coder.encode_batch(texts, as_list, True)
        return found


Message = Mapping[str, Any]


class ChatEncoder:
    """Converts conversations to ids, by a vocabulary's chat template or by a given template.

    Templates are rendered in another process, which starts with the first conversation and ends
    when this object is deleted. After a fork, the child starts its own process. Only one thread at
    a time uses the process.
    """

    def __init__(
        self, vocabulary: Vocabulary, encode: Callable[[bytes], NDArray[np.uint32]]
    ) -> None:
        """Store the arguments.

        vocabulary: has the template. encode: encodes text, with all special tokens allowed.
        """
        self._vocabulary, self._encode = vocabulary, encode
        self._lock = threading.Lock()
        self._process = 0  # id of the process that filled `_opened`
        # Renderers, and the functions that close them, by template; None is the vocabulary's
        # template.
        self._opened: dict[str | None, tuple[Conversations, Callable[[], object]]] = {}

    def encode(self, *conversation: Any) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Return the ids of a conversation, uint32 (n,), and a mask, bool (n,).

        The mask is True for the ids that the assistant wrote. Takes the arguments of `_read`.
        """
        with self._lock:
            conversations, read = self._read(*conversation)
            parts = [(text.encode(), is_reply) for text, is_reply in read]
            before = conversations.text_bytes
            conversations.add(parts)
            ids = self._encode(b"".join(data for data, _ in parts))
            lengths = lengths_in_conversations(self._vocabulary)[ids]
            edges = before + np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            return ids, conversations.mask(edges)

    def render(self, *conversation: Any) -> str:
        """Return the text of a conversation; takes the arguments of `_read`."""
        with self._lock:
            _, parts = self._read(*conversation)
            return "".join(text for text, _ in parts)

    def _read(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        prompt: bool,
        template: str | None = None,
    ) -> tuple[Conversations, Parts]:
        """Return the renderer of the template, and the texts of a conversation.

        prompt: whether to append the prompt of an assistant message. template: a template in Jinja;
        None for the vocabulary's own.
        """
        given = [dict(m) if isinstance(m, Mapping) else m for m in messages]
        tools = None if tools is None else list(tools)
        conversations = self._open(template)
        return conversations, conversations.read(given, tools, "the conversation", prompt=prompt)

    def _open(self, template: str | None) -> Conversations:
        if self._process != os.getpid():
            self._opened, self._process = {}, os.getpid()
        if template not in self._opened:
            vocabulary = self._vocabulary
            if template is not None:
                # Imported only here, because the module loads slowly.
                from llmgpu.bpe.interchange.huggingface import name_tokens

                vocabulary = replace(
                    vocabulary, chat=ChatTemplate(template, name_tokens(vocabulary))
                )
            made = Conversations(vocabulary)
            close = close_with(self, made.close)
            # Close the renderers of other given templates, because each has a process.
            for other in [*self._opened] if template is not None else ():
                if other is not None:
                    self._opened.pop(other)[1]()
            self._opened[template] = made, close
        return self._opened[template][0]
