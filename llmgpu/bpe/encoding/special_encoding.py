"""Special tokens on the way from text to ids: spelled by text, or around documents.

Text passes through the search for special tokens, then the vocabulary's normalizer, then a second
search for the special tokens that are normalized, then matching.

Text that spells a special token is plain text unless the token is allowed. Allowed tokens are taken
out of the text before encoding, and their ids are inserted between the other ids. So the stretches
between them have the ids that they would have as whole texts. For the search in blocks of text:

- The leftmost allowed token counts, and at one position the longest. The search continues after
  the token. A disallowed token is an error wherever it occurs, even inside or across an allowed
  token. tiktoken does the same, but picks either of two tokens at the same position.
- No special token extends past the end of a document.
- In the filtered text a document starts where a special token was, so that no token crosses the
  place. `_Boundaries` tells these starts from real starts.
- Only bytes that may begin a special token are held back until the next block. Before a token with
  the flag lstrip, the white space that may belong to it is held back, too.

Tokens with flags match as in Hugging Face's tokenizers (`llmgpu.bpe.encoding.added_flags`). The
white space that they swallow is in no id, like text that a normalizer removes. It does not count as
text of the slices. A disallowed token is an error even where its flags would not let it match.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.added_flags import (
    LONGEST,
    Blanks,
    Flags,
    begins_with_word,
    blank_after,
    blank_before,
    ends_in_word,
    incomplete_bytes,
)
from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, NoTokenError, new_ids
from llmgpu.bpe.encoding.special_options import ALL, SpecialOptions, several
from llmgpu.bpe.encoding.special_search import Guard, search_for
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.input_files import quote
from llmgpu.text.corpus import LEAST_BYTES, FilteredSource, TextSource
from llmgpu.text.documents import Piece, remove_spans
from llmgpu.text.normalizing import Normalizer, get_normalizer

# the kind of a boundary where a document starts; the kind of any other boundary is an id
_DOCUMENT = -1

_NO_BOUNDARIES = np.empty((2, 0), np.int64)


def with_special_tokens(
    encoder: Encoder,
    vocabulary: Vocabulary,
    options: SpecialOptions,
    block_bytes: int = LEAST_BYTES,
) -> Encoder:
    """Return an encoder that also normalizes, and handles special tokens.

    encoder: of normalized text without special tokens; returned itself if there is nothing to do.
    block_bytes: bytes of text to search at a time, or more; the ids do not depend on the number.

    Raises VocabularyError for a token that the vocabulary does not have.
    """
    special = vocabulary.special_tokens
    allowed, disallowed = chosen_texts(vocabulary, options)
    # Normalized special tokens are searched for last, so their encoder is made first.
    late = _normalized_texts(vocabulary)
    flags = Flags.of(vocabulary)
    late_allowed: dict[bytes, int] = {}
    for text in late:
        if text in allowed:
            late_allowed.setdefault(late[text], special[text])
    late_disallowed = [late[text] for text in late if text in disallowed]
    if late_allowed or late_disallowed:
        lengths = vocabulary.token_lengths.copy()
        lengths[list(late_allowed.values())] = list(map(len, late_allowed))
        encoder = _SpecialEncoder(
            encoder,
            lengths,
            flags,
            allowed=late_allowed,
            disallowed=late_disallowed,
            block_bytes=block_bytes,
            is_normalized=True,
        )
    # Text passes the encoders from the outermost inwards, so the normalizer is wrapped around the
    # search for normalized tokens, and the search for special tokens around the normalizer.
    if vocabulary.normalizer is not None:
        encoder = _NormalizingEncoder(encoder, get_normalizer(vocabulary.normalizer))
    early = [text for text in allowed if text not in late]
    if options.is_plain and not early:
        return encoder
    before, after = ids_around(vocabulary, options)
    # Each encoder puts one token before and one after a document. The pairs start at the text.
    first, *others = zip_longest(reversed(before), after) if before or after else [(None, None)]
    made = _SpecialEncoder(
        encoder,
        vocabulary.token_lengths,
        flags,
        allowed={text.encode(): special[text] for text in early},
        disallowed=[text.encode() for text in disallowed],
        bos=first[0],
        eos=first[1],
        block_bytes=block_bytes,
    )
    for bos, eos in others:
        made = replace(made, encoder=made, allowed={}, disallowed=(), bos=bos, eos=eos)
    return made


def special_matches(
    vocabulary: Vocabulary, allowed: Collection[str], document: bytes
) -> list[tuple[int, int, int, int]]:
    """Return where the allowed special tokens are in a document, which is normalized.

    Each is the beginning of the white space that it swallows, its own beginning and end, and the
    end of the white space after it.

    Raises VocabularyError for a token that the vocabulary does not have.
    """
    texts = _chosen(vocabulary, allowed, vocabulary.special_tokens)
    late = _normalized_texts(vocabulary)
    early = {text.encode(): vocabulary.special_tokens[text] for text in texts if text not in late}
    normalized = {late[text]: vocabulary.special_tokens[text] for text in texts if text in late}
    found: list[tuple[int, int, int, int]] = []
    segments = [(0, len(document))]
    for tokens in filter(None, (early, normalized)):
        search = _SpecialTokenFilter(tokens, Flags.of(vocabulary), None, _Boundaries())
        between = []
        for position, end in segments:
            start = position
            for match in search.matches(document[start:end]):
                first, *own, last = (start + place for place in match)
                found.append((first, own[0], own[1], last))
                between.append((position, first))
                position = last
            between.append((position, end))
        segments = between
    return sorted(found)


def ids_around(vocabulary: Vocabulary, options: SpecialOptions) -> tuple[list[int], list[int]]:
    """Return the ids before and after each document; raises as `token_id`."""
    before, after = (
        [token_id(vocabulary, token) for token in several(tokens)]
        for tokens in (options.bos, options.eos)
    )
    return before, after


def token_id(vocabulary: Vocabulary, token: int | str) -> int:
    """Return the id of a token given by its id or its text.

    Raises VocabularyError if there is no such id, or the text is neither a special token nor
    exactly one ordinary token.
    """
    if isinstance(token, int):
        if not 0 <= token < vocabulary.size or not vocabulary.tokens[token]:
            raise VocabularyError(
                f"id {token} is not in this vocabulary of {vocabulary.size:,} tokens"
            )
        return token
    if token in vocabulary.special_tokens:
        return vocabulary.special_tokens[token]
    spelled = token.encode(errors="replace")
    special = set(vocabulary.special_tokens.values())
    ids = [i for i, text in enumerate(vocabulary.tokens) if text == spelled and i not in special]
    if not spelled or not ids:
        raise VocabularyError(
            f"{quote(token)} is not a single token of this vocabulary; {_known_tokens(vocabulary)}"
        )
    if len(ids) > 1:
        raise VocabularyError(
            f"{quote(token)} is the text of {len(ids)} tokens, {ids[:3]}: give the id instead"
        )
    return ids[0]


def chosen_texts(
    vocabulary: Vocabulary, options: SpecialOptions
) -> tuple[Collection[str], Collection[str]]:
    """Return the special tokens that text may spell, and the ones that are errors."""
    special = vocabulary.special_tokens
    allowed = _chosen(vocabulary, options.allowed, special)
    if vocabulary.always_allowed:
        allowed = dict.fromkeys([*allowed, *vocabulary.always_allowed])
    return allowed, _chosen(vocabulary, options.disallowed, special.keys() - set(allowed))


def _chosen(
    vocabulary: Vocabulary, texts: Collection[str], every: Collection[str]
) -> Collection[str]:
    """Return the special tokens named in `texts`, `every` for "all"."""
    texts = (texts,) if isinstance(texts, str) else texts
    for text in texts:
        if text != ALL and text not in vocabulary.special_tokens:
            raise VocabularyError(
                f"{quote(text)} is not a special token of this vocabulary; "
                f"{_known_tokens(vocabulary)}"
            )
    return every if ALL in texts else texts


def _normalized_texts(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Return the text to search for in normalized text, by special token."""
    texts = {number: text for text, number in vocabulary.special_tokens.items()}
    found = [texts[number] for number in vocabulary.normalized_tokens]
    if vocabulary.pieces is not None and vocabulary.pieces.ranks:
        # SentencePiece finds user-defined symbols in normalized text, and does not change them.
        return {text: vocabulary.tokens[vocabulary.special_tokens[text]] for text in found}
    name = vocabulary.normalizer
    change = str if name is None else get_normalizer(name).apply
    return {text: change(text).encode() for text in found}


def _known_tokens(vocabulary: Vocabulary) -> str:
    known = list(vocabulary.special_tokens)
    more = f" and {len(known) - 10} more" if len(known) > 10 else ""
    if not known:
        return "it has no special tokens (bpe-train --special-token TEXT adds one)"
    return f"its special tokens are {', '.join(map(repr, known[:10]))}{more}"


class _NormalizingEncoder:
    """An encoder of normalized text; slices and offsets count bytes of normalized text."""

    def __init__(self, encoder: Encoder, normalizer: Normalizer) -> None:
        self._encoder, self._normalizer = encoder, normalizer

    def encode(
        self,
        source: TextSource,
        allocate: Allocate = new_ids,
        follows: deque[bool] | None = None,
    ) -> Iterator[EncodedSlice]:
        filtered = FilteredSource(source, self._normalizer.filter(follows))
        try:
            yield from self._encoder.encode(filtered, allocate)
        except NoTokenError as error:
            raise InputError(f"in the normalized text, {error}") from None


@dataclass(frozen=True, eq=False)
class _SpecialEncoder:
    """Filters the text of another encoder, and inserts ids of special tokens into its ids.

    lengths: int64, bytes of text of each token. allowed: ids by text. is_normalized: the text is
    normalized, so its offsets are not offsets in the corpus.
    """

    encoder: Encoder
    lengths: NDArray[np.int64]
    flags: Flags
    allowed: Mapping[bytes, int]
    disallowed: Collection[bytes]
    block_bytes: int
    bos: int | None = None
    eos: int | None = None
    is_normalized: bool = False

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`.

        Raises also TextError for a disallowed special token.
        """
        insertion = _Insertion(self.bos, self.eos)
        if not (self.allowed or self.disallowed):
            for piece in self.encoder.encode(source):
                kinds = np.full(len(piece.document_starts), _DOCUMENT, np.int64)
                yield insertion.insert(piece, kinds)
        else:
            yield from self._encode_filtered(source, insertion)
        if (last := insertion.finish()) is not None:
            yield last

    def _encode_filtered(self, source: TextSource, insertion: _Insertion) -> Iterator[EncodedSlice]:
        boundaries = _Boundaries()
        guard = Guard(self.disallowed, self.is_normalized) if self.disallowed else None
        special_filter = _SpecialTokenFilter(self.allowed, self.flags, guard, boundaries)
        filtered = _SpecialSource(source, special_filter, self.block_bytes)
        special_bytes = done = 0  # in the text up to here, and other bytes
        if isinstance(self.encoder, _NormalizingEncoder):
            boundaries.follows = deque()
            encoded_slices = self.encoder.encode(filtered, follows=boundaries.follows)
        else:
            encoded_slices = self.encoder.encode(filtered)
        try:
            for piece in encoded_slices:
                done += piece.text_bytes
                boundaries.pass_swallowed(done)
                kinds = boundaries.take(len(piece.document_starts))
                span = int(self.lengths[kinds[kinds != _DOCUMENT]].sum())
                special_bytes += span
                closed = piece.closed and boundaries.ends_document()
                piece = replace(piece, text_bytes=piece.text_bytes + span, closed=closed)
                yield insertion.insert(piece, kinds)
        except NoTokenError as error:
            # The offset is in the filtered text: add the special tokens before it.
            before = boundaries.special_before(error.offset)
            offset = error.offset + special_bytes + int(self.lengths[before].sum())
            offset += boundaries.pass_swallowed(error.offset)
            raise NoTokenError(error.byte, offset) from None


class _Insertion:
    """Puts ids of special tokens between the ids of a text, slice by slice."""

    def __init__(self, bos: int | None, eos: int | None) -> None:
        self._bos, self._eos = bos, eos
        self._is_open = False  # a document has started, and its end was not reached

    def insert(self, piece: EncodedSlice, kinds: NDArray[np.int64]) -> EncodedSlice:
        """Return a slice with its special tokens; kinds: of its boundaries (see `_Boundaries`)."""
        starts = piece.document_starts
        begins = kinds == _DOCUMENT
        # Two values may go in at each boundary: first the end of a document or a special token,
        # then the start of a document. `present` marks the values that do go in.
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
        # The position of the first token of a document.
        before = np.cumsum(present.sum(axis=1)) - present[:, 1]
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


class _Boundaries:
    """The boundaries of a filtered text: each is the start of a document, or a special token.

    The thread that reads text adds boundaries. The thread that has the ids before a boundary takes
    it. Both may be the same thread.
    """

    def __init__(self) -> None:
        self._found: deque[NDArray[np.int64]] = deque()
        self._ends: deque[int] = deque()
        self._added = self._taken = 0
        self._ahead = _NO_BOUNDARIES  # out of the queue, not yet asked for
        # for a normalizer, whether each boundary is a special token
        self.follows: deque[bool] | None = None
        # offsets in the filtered text at which white space was, with its bytes; bytes before these
        self._swallowed: deque[tuple[int, int]] = deque()
        self._swallowed_before = 0

    def add_swallowed(self, offset: int, count: int) -> None:
        """Take note of `count` bytes of white space that were at an offset of the filtered text."""
        self._swallowed.append((offset, count))

    def pass_swallowed(self, offset: int) -> int:
        """Return the bytes of white space swallowed up to an offset; calls ascend."""
        while self._swallowed and self._swallowed[0][0] <= offset:
            self._swallowed_before += self._swallowed.popleft()[1]
        return self._swallowed_before

    def add(self, kinds: NDArray[np.int64], offsets: NDArray[np.int64], ended: int | None) -> None:
        """Append the next boundaries, before the text around them is handed over.

        kinds: int64 (n,), _DOCUMENT or ids of special tokens. offsets: int64 (n,), positions in the
        whole filtered text. ended: a document ends after this many of the boundaries; None: none
        ends.
        """
        if ended is not None:
            self._ends.append(self._added + ended)
        self._added += len(kinds)
        if self.follows is not None:
            self.follows.extend((kinds != _DOCUMENT).tolist())
        self._found.append(np.stack([kinds, offsets]))

    def take(self, count: int) -> NDArray[np.int64]:
        """Return the kinds of the next `count` boundaries: int64 (count,)."""
        while self._ahead.shape[1] < count:
            self._look_ahead()
        kinds: NDArray[np.int64] = self._ahead[0, :count]
        self._ahead = self._ahead[:, count:]
        self._taken += count
        return kinds

    def ends_document(self) -> bool:
        """Whether a document ends before the next boundary."""
        while self._ends and self._ends[0] < self._taken:
            self._ends.popleft()
        return bool(self._ends) and self._ends[0] == self._taken

    def special_before(self, offset: int) -> NDArray[np.int64]:
        """Return the special tokens, not taken yet, up to an offset of the filtered text."""
        while self._found:
            self._look_ahead()
        kinds: NDArray[np.int64] = self._ahead[0, self._ahead[1] <= offset]
        return np.compress(kinds != _DOCUMENT, kinds)

    def _look_ahead(self) -> None:
        self._ahead = np.concatenate([self._ahead, self._found.popleft()], axis=1)


# A special token: the begin and end of the bytes taken out, and its id.
_Match = tuple[int, int, int]


class _SpecialSource(FilteredSource):
    """The text that a `_SpecialTokenFilter` lets through."""

    def __init__(
        self, source: TextSource, special_filter: _SpecialTokenFilter, least_bytes: int
    ) -> None:
        super().__init__(source, special_filter, least_bytes)
        self._special = special_filter

    def _pieces(self) -> Iterator[Piece]:
        for piece in super()._pieces():
            # The text has not ended while white space in front of its last piece is left.
            ended, self._ended = self._ended, False
            for blanks in self._special.blanks:
                yield Piece(np.frombuffer(blanks, np.uint8), np.empty(0, np.int64), closed=False)
            self._ended = ended
            yield piece


def _document_around(borders: list[int], position: int, end: int) -> tuple[int, int, bool]:
    """Return the begin and end of the document around a position, and whether it began earlier.

    borders: document starts in the data. end: of the data.
    """
    number = bisect_right(borders, position)
    low = borders[number - 1] if number else 0
    return low, borders[number] if number < len(borders) else end, number == 0


class _SpecialTokenFilter:
    """Takes the allowed special tokens out of a text; see `llmgpu.text.documents.TextFilter`.

    blanks: white space in front of the text that `feed` returned last.
    """

    def __init__(
        self,
        allowed: Mapping[bytes, int],
        flags: Flags,
        guard: Guard | None,
        boundaries: _Boundaries,
    ) -> None:
        """Search for the allowed texts, which have ids, and add each match to `boundaries`."""
        self._ids = allowed
        self._search = search_for(allowed) if allowed else None
        self._flags = Flags(*(ids.intersection(allowed.values()) for ids in flags))
        self._guard = guard
        self._boundaries = boundaries
        self._held = b""
        self._held_starts = np.empty(0, np.int64)
        self._handed_over = 0
        self.blanks: Iterable[bytes] = ()
        self._blanks = Blanks()  # the white space before the held bytes, in their document
        self._context = b""  # the end of the document before the held bytes
        self._swallows = False  # the last token takes the white space that comes next

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Return the text without special tokens, with a boundary at the place of each.

        Raises TextError for a disallowed special token.
        """
        block = text.tobytes()
        if self._guard:
            self._guard.check(block, starts, final)
        data = self._held + block
        starts = np.concatenate([self._held_starts, starts + len(self._held)])
        borders = starts.tolist()
        spans, decided = self._find(data, borders, final)
        if any(self._flags):
            return self._feed_flagged(data, starts, spans, decided, final)
        matches = [(begin, end, self._ids[data[begin:end]]) for begin, end in spans]
        return self._hand_over(data, starts, matches, decided, decided, final)

    def matches(self, document: bytes) -> list[tuple[int, int, int, int]]:
        """Return where the tokens of a document are.

        Each is the beginning of the white space before a token, the token's own beginning and end,
        and the end of the white space after it.
        """
        spans, decided = self._find(document, [0], final=True)
        spans = self._valid(document, [0], spans)
        widened = self._widen(document, [0], spans, decided)
        return [(w[0], *span, w[1]) for span, w in zip(spans, widened, strict=True)]

    def _hand_over(
        self,
        data: bytes,
        starts: NDArray[np.int64],
        matches: list[_Match],
        end: int,
        decided: int,
        final: bool,
    ) -> Piece:
        """Return the text up to `end` without `matches`; hold the data from `decided` on."""
        # A document start after the decided text is left to the next block.
        own = len(starts) if final else int(np.searchsorted(starts, decided))
        self._held, self._held_starts = data[decided:], starts[own:] - decided
        piece, kinds = self._cut(data[:end], starts[:own], matches, final)
        # A document that starts at the very end has no text yet, so it does not end here.
        begun = int((starts == len(data)).sum())
        ended = len(kinds) - begun if final else None
        self._boundaries.add(kinds, piece.starts + self._handed_over, ended)
        self._handed_over += len(piece.text)
        return piece

    def _feed_flagged(
        self,
        data: bytes,
        starts: NDArray[np.int64],
        spans: list[tuple[int, int]],
        decided: int,
        final: bool,
    ) -> Piece:
        """Return what `feed` returns, with the flags of tokens applied to the spans found."""
        borders = starts.tolist()
        spans = self._valid(data, borders, spans)
        before, last = (b"", borders[-1]) if borders else (self._context, 0)
        self._context = (before + data[last:decided])[-LONGEST:]
        # White space after the token before this data is swallowed up to the next token.
        if self._swallows:
            lead = blank_after(data, 0, min([decided, *borders[:1], *(b for b, _ in spans[:1])]))
            self._boundaries.add_swallowed(self._handed_over, lead)
            self._swallows = lead == decided and not borders
            data, starts, decided = data[lead:], starts - lead, decided - lead
            borders = starts.tolist()
            spans = [(begin - lead, end - lead) for begin, end in spans]
        self.blanks = ()
        matches = self._widen(data, borders, spans, decided)
        # The white space at the end may belong to the next token.
        taken = max([0, *borders[-1:], *(end for _, end, _ in matches[-1:])])
        end = decided
        if self._flags.lstrip and not final:
            end = blank_before(data, taken, decided)
        if end or borders or matches or final:
            self._handed_over += self._blanks.length
            self.blanks = self._blanks.take()
        self._blanks.append(data[end:decided])
        return self._hand_over(data, starts, matches, end, decided, final)

    def _valid(
        self, data: bytes, borders: list[int], spans: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return the spans of tokens that their flags let match."""
        valid: list[tuple[int, int]] = []
        # White space from here up to there, at most, belongs to a token already.
        swallowed, until = 0, min([len(data), *borders[:1]]) if self._swallows else 0
        for begin, end in spans:
            token = self._ids[data[begin:end]]
            low, high, continues = _document_around(borders, begin, len(data))
            if token in self._flags.single_word:
                before = data[max(low, begin - LONGEST) : begin]
                before = self._context + before if continues else before
                after = data[end : min(high, end + LONGEST)]
                if ends_in_word(before) or begins_with_word(after):
                    continue
            # White space is swallowed only once, so that nothing is left of this token.
            swallows = token in self._flags.lstrip and begin < until
            if swallows and blank_after(data, swallowed, end) == end:
                continue
            valid.append((begin, end))
            swallowed, until = end, high if token in self._flags.rstrip else 0
        return valid

    def _widen(
        self, data: bytes, borders: list[int], spans: list[tuple[int, int]], decided: int
    ) -> list[_Match]:
        """Return the matches of tokens with the white space that they swallow."""
        matches: list[_Match] = []
        removed = taken = 0
        tokens = [self._ids[data[begin:end]] for begin, end in spans]
        # A token that begins with white space keeps it, unless the token swallows white space, too.
        limits = [
            decided if token in self._flags.lstrip else begin
            for (begin, _), token in zip(spans, tokens, strict=True)
        ]
        nexts = [*limits[1:], decided]
        for (begin, end), token, following in zip(spans, tokens, nexts, strict=False):
            first, last = max(begin, taken), end
            low, high, continues = _document_around(borders, begin, decided)
            held = 0
            if token in self._flags.lstrip:
                first = blank_before(data, max(low, taken), first)
                # White space held since earlier data is part of the same run.
                if first == 0 and continues:
                    held = self._blanks.length
                    self._blanks.take()
            if token in self._flags.rstrip:
                last = blank_after(data, end, min(high, following))
                self._swallows = last == decided and begin >= max(borders[-1:], default=0)
            offset = self._handed_over + self._blanks.length + first - removed
            self._boundaries.add_swallowed(offset, held + begin - first + last - end)
            removed += last - first
            taken = last
            matches.append((first, last, token))
        return matches

    def _find(
        self, data: bytes, borders: list[int], final: bool
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the (begin, end) of allowed tokens, and the end of the decided text."""
        search, position = self._search, 0
        if search is None:
            return [], len(data)
        spans: list[tuple[int, int]] = []
        # Up to here every match is certain: from here to the end of the last document, fewer bytes
        # follow than the longest token has, and the character after it.
        longest = search.longest + (LONGEST if self._flags.single_word else 0)
        safe = len(data) if final else max(len(data) - longest + 1, *borders[-1:], 0)
        while (found := search.find(data, position, borders)) and found[0] < safe:
            spans.append(found)
            position = found[1]
        position = max(position, safe)
        while (position := search.next_candidate(data, position)) < len(data):
            # A longer token may still replace the token found here, so check this first.
            if search.may_continue(data, position):
                break
            match = search.pattern.match(data, position)
            if match:
                if len(data) - match.end() < LONGEST and self._is_single(data, match.span()):
                    break
                spans.append(match.span())
            position = match.end() if match else position + 1
        if any(self._flags) and position == len(data) and not final:
            position -= incomplete_bytes(data[max([0, *borders[-1:]]) :][-LONGEST:])
            position = max([position, *(end for _, end in spans[-1:])])
        return spans, position

    def _is_single(self, data: bytes, span: tuple[int, int]) -> bool:
        return self._ids[data[slice(*span)]] in self._flags.single_word

    def _cut(
        self, data: bytes, starts: NDArray[np.int64], matches: list[_Match], final: bool
    ) -> tuple[Piece, NDArray[np.int64]]:
        """Take `matches` out of `data`; return the rest, and the kinds of its boundaries."""
        text = np.frombuffer(data, np.uint8)
        kinds = np.full(len(starts), _DOCUMENT, np.int64)
        if matches:
            places = np.array(matches, np.int64)
            text, cuts = remove_spans(text, places[:, :2])
            ends = places[:, 1]
            removed = np.concatenate([np.zeros(1, np.int64), ends - cuts])
            # A document start goes before a token that begins there, but after one that ends there.
            order = np.argsort(np.concatenate([2 * starts, 2 * places[:, 0] + 1]), kind="stable")
            starts = starts - removed[np.searchsorted(ends, starts, side="right")]
            starts = np.concatenate([starts, cuts])[order]
            kinds = np.concatenate([kinds, places[:, 2]])[order]
        closed = final or bool(len(starts) and starts[-1] == len(text))
        return Piece(text, starts, closed), kinds
