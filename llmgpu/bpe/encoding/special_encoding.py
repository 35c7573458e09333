"""Special tokens on the way from text to ids: those that text spells, and those around documents.

Text that spells a special token is plain text unless the token is allowed. Allowed tokens are taken
out of the text before it is encoded, and their ids are put back between the others, so that the
rest has the same ids as texts that start and end there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, NoTokenError, new_ids
from llmgpu.bpe.encoding.special_search import (
    DOCUMENT,
    Boundaries,
    SoughtTokens,
    SpecialTokenFilter,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.text.corpus import LEAST_BYTES, FilteredSource, TextSource

ALL = "all"


@dataclass(frozen=True)
class SpecialOptions:
    """Which special tokens a text may spell, and what goes around its documents.

    allowed: those whose text becomes their id; "all" for all.
    disallowed: those whose text is an error; "all" for those that are not allowed.
    bos, eos: put before and after each document: an id, the text of a special token, or the text of
        exactly one ordinary token.
    """

    allowed: Collection[str] = ()
    disallowed: Collection[str] = ()
    bos: int | str | None = None
    eos: int | str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to do."""
        no_text = not self.allowed and not self.disallowed
        return no_text and self.bos is None and self.eos is None


NO_SPECIAL_TOKENS = SpecialOptions()


def with_special_tokens(
    encoder: Encoder,
    vocabulary: Vocabulary,
    options: SpecialOptions,
    block_bytes: int = LEAST_BYTES,
) -> Encoder:
    """Return an encoder that also handles special tokens; `encoder` itself if there are none.

    block_bytes: bytes of text to search at a time, or more; the ids do not depend on it.

    Raises VocabularyError for a token that the vocabulary does not have.
    """
    if options.is_plain:
        return encoder
    special = vocabulary.special_tokens
    allowed = _chosen(vocabulary, options.allowed, special)
    disallowed = _chosen(vocabulary, options.disallowed, special.keys() - set(allowed))
    sought = SoughtTokens(
        allowed={text.encode(): special[text] for text in allowed},
        disallowed=[text.encode() for text in disallowed],
    )
    bos = None if options.bos is None else token_id(vocabulary, options.bos)
    eos = None if options.eos is None else token_id(vocabulary, options.eos)
    return _SpecialEncoder(encoder, vocabulary, sought, (bos, eos), block_bytes)


def token_id(vocabulary: Vocabulary, token: int | str) -> int:
    """Return the id of a token given by its id or its text.

    Raises VocabularyError if there is no such id, or the text is neither a special token nor
    exactly one ordinary token.
    """
    if isinstance(token, int):
        if not 0 <= token < vocabulary.size or not vocabulary.tokens[token]:
            raise VocabularyError(
                f"id {token} stands for nothing in the vocabulary of {vocabulary.size} ids"
            )
        return token
    if token in vocabulary.special_tokens:
        return vocabulary.special_tokens[token]
    spelled = token.encode(errors="replace")
    special = set(vocabulary.special_tokens.values())
    ids = [i for i, text in enumerate(vocabulary.tokens) if text == spelled and i not in special]
    if not spelled or not ids:
        raise VocabularyError(
            f"{token!r} is not one token of the vocabulary; {_known_tokens(vocabulary)}"
        )
    if len(ids) > 1:
        raise VocabularyError(f"{token!r} is the text of {len(ids)} ids, {ids[:3]}: give the id")
    return ids[0]


def _chosen(
    vocabulary: Vocabulary, texts: Collection[str], every: Collection[str]
) -> Collection[str]:
    """Return the special tokens that `texts` names, `every` for "all"."""
    texts = (texts,) if isinstance(texts, str) else texts
    for text in texts:
        if text != ALL and text not in vocabulary.special_tokens:
            raise VocabularyError(
                f"{text!r} is not a special token of the vocabulary; {_known_tokens(vocabulary)}"
            )
    return every if ALL in texts else texts


def _known_tokens(vocabulary: Vocabulary) -> str:
    known = list(vocabulary.special_tokens)
    more = f" and {len(known) - 10} more" if len(known) > 10 else ""
    return f"its special tokens are {', '.join(map(repr, known[:10])) or 'none'}{more}"


class _SpecialEncoder:
    """Filters the text of another encoder, and inserts into its ids."""

    def __init__(
        self,
        encoder: Encoder,
        vocabulary: Vocabulary,
        sought: SoughtTokens,
        around: tuple[int | None, int | None],
        block_bytes: int,
    ) -> None:
        self._encoder = encoder
        self._lengths = vocabulary.token_lengths
        self._sought = sought
        self._around = around
        self._block_bytes = block_bytes

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`.

        Raises also TextError for a disallowed special token.
        """
        insertion = _Insertion(*self._around)
        if not (self._sought.allowed or self._sought.disallowed):
            for piece in self._encoder.encode(source):
                kinds = np.full(len(piece.document_starts), DOCUMENT, np.int64)
                yield insertion.insert(piece, kinds)
        else:
            yield from self._encode_filtered(source, insertion)
        if (last := insertion.finish()) is not None:
            yield last

    def _encode_filtered(self, source: TextSource, insertion: _Insertion) -> Iterator[EncodedSlice]:
        boundaries = Boundaries()
        special_filter = SpecialTokenFilter(self._sought, boundaries)
        filtered = FilteredSource(source, special_filter, self._block_bytes)
        special_bytes = 0  # in the text up to here
        try:
            for piece in self._encoder.encode(filtered):
                kinds = boundaries.take(len(piece.document_starts))
                span = int(self._lengths[kinds[kinds != DOCUMENT]].sum())
                special_bytes += span
                closed = piece.closed and boundaries.ends_document()
                piece = replace(piece, text_bytes=piece.text_bytes + span, closed=closed)
                yield insertion.insert(piece, kinds)
        except NoTokenError as error:
            # The offset is that in the filtered text: add the special tokens before it.
            before = boundaries.special_before(error.offset)
            offset = error.offset + special_bytes + int(self._lengths[before].sum())
            raise NoTokenError(error.byte, offset) from None


class _Insertion:
    """Puts ids of special tokens between those of a text, slice by slice."""

    def __init__(self, bos: int | None, eos: int | None) -> None:
        self._bos, self._eos = bos, eos
        self._is_open = False  # a document has started, and its end was not reached

    def insert(self, piece: EncodedSlice, kinds: NDArray[np.int64]) -> EncodedSlice:
        """Return a slice with its special tokens; kinds: of its boundaries (see `Boundaries`)."""
        starts = piece.document_starts
        begins = kinds == DOCUMENT
        # Two values may go in at each boundary: first the end of a document or a special token,
        # then the begin of a document. `present` says which of them do.
        values = np.stack([kinds, np.zeros_like(kinds)], axis=1)
        present = np.stack([~begins, begins & (self._bos is not None)], axis=1)
        values[:, 1] = self._bos or 0
        if self._eos is not None:
            # A document start ends the document before it, if there is one.
            ending = begins.copy()
            if len(ending) and not self._is_open:
                ending[np.argmax(begins)] = False
            values[begins, 0] = self._eos
            present[:, 0] |= ending
        before = np.cumsum(present.sum(axis=1)) - present[:, 1]  # where a document's begin goes
        ids = np.insert(piece.ids, np.repeat(starts, 2)[present.ravel()], values[present])
        self._is_open |= bool(begins.any())
        if piece.closed and (last := self.finish()) is not None:
            ids = np.concatenate([ids, last.ids])
        elif piece.closed:
            self._is_open = False
        return EncodedSlice(ids, (starts + before)[begins], piece.text_bytes, piece.closed)

    def finish(self) -> EncodedSlice | None:
        """Return the end of the last document, if it is still missing."""
        if not self._is_open or self._eos is None:
            return None
        self._is_open = False
        ids = np.array([self._eos], np.uint32)
        return EncodedSlice(ids, np.empty(0, np.int64), 0, closed=True)
