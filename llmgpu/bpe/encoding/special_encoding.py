"""Special tokens on the way from text to ids: spelled by text, or around documents.

Text passes through a search for special tokens, the vocabulary's normalizer, a second search for
the special tokens that are searched in normalized text, and matching.

Text that spells a special token is plain text unless the token is allowed. Allowed tokens are cut
out of the text before encoding, and their ids are inserted between the other ids. So the text
between two special tokens gets the ids that it would have alone. The text is searched in blocks:

- The leftmost allowed token is found first, and of several at one position the longest. The search
  continues after the token. A disallowed token is an error wherever it occurs, even inside or
  across an allowed token. tiktoken does the same, but of two tokens at one position it may choose
  the shorter.
- No special token extends past the end of a document.
- The text without the special tokens is called the filtered text. In the filtered text a document
  starts where a special token was cut out, so that no token crosses this position. `_Boundaries`
  records which of these starts are starts of real documents.
- The last bytes of a block are held back until the next block if they may begin a special token, or
  if they are white space that a following token with the flag lstrip may swallow. With the flag
  single_word, LONGEST bytes more are held back.

Tokens with flags match as in Hugging Face's tokenizers (`llmgpu.bpe.encoding.special_search`).
White space that such a token swallows has no id and is not counted in the `text_bytes` of a slice.
Text that a normalizer removes is not counted either. A disallowed token is an error even where
its flags would not let it match.

A whole document in memory takes a shorter way: it is split at its special tokens, if these have no
flags, and each stretch between them is encoded by one call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, NoTokenError, new_ids
from llmgpu.bpe.encoding.special_options import SpecialOptions, chosen_texts, ids_around
from llmgpu.bpe.encoding.special_search import (
    LONGEST,
    Flags,
    Guard,
    Search,
    begins_with_word,
    blank_after,
    blank_before,
    ends_in_word,
    incomplete_bytes,
    search_for,
    shared,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.forking import delaying_forks
from llmgpu.input_files import quote
from llmgpu.text.corpus import LEAST_BYTES, FilteredSource, TextSource
from llmgpu.text.documents import Piece, remove_spans
from llmgpu.text.normalizing import NFC, get_normalizer

# Kinds of boundaries in a filtered text. The kind of any other boundary is the id of the special
# token that was cut out there.
_DOCUMENT = -1  # a real document starts
# Kinds of marks between boundaries.
_END = -2  # a document ends
_BLANK = -3  # white space was cut out
_ENDED = np.array([[_END], [0], [0]])  # cuts no bytes, so its offset has no effect
# Most special tokens of a document whose stretches are encoded by a call for each.
MOST_CALLS = 256

Pieces = list[bytes | memoryview | int]  # stretches of text, and the ids of tokens between them


def special_matches(
    vocabulary: Vocabulary, allowed: Collection[str], document: bytes
) -> list[tuple[int, int, int, int]]:
    """Return the positions of the allowed special tokens in a normalized document, ascending.

    Each entry has four positions: the start of white space that is swallowed before the token, the
    start and end of the token, and the end of white space that is swallowed after the token.

    Raises VocabularyError for a token that the vocabulary does not have.
    """
    special = SpecialTokens(vocabulary, SpecialOptions(allowed))
    # Search for tokens in the document, then for normalized tokens between the matches.
    found: list[tuple[int, int, int, int]] = []
    segments = [(0, len(document))]  # the stretches still to be searched
    for tokens in filter(None, (special.early.allowed, special.late.allowed)):
        search = _SpecialTokenFilter(tokens, special.flags, None, _Boundaries())
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


def normalized_texts(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Return the bytes to find in normalized text, by the text of each special token.

    Raises VocabularyError for a token whose normalized text is empty.
    """
    texts = {number: text for text, number in vocabulary.special_tokens.items()}
    found = [texts[number] for number in vocabulary.normalized_tokens]
    if vocabulary.pieces is not None and vocabulary.pieces.ranks:
        # SentencePiece searches for user-defined symbols in normalized text, with their own text.
        return {text: vocabulary.tokens[vocabulary.special_tokens[text]] for text in found}
    name = vocabulary.normalizer
    change = str if name is None else get_normalizer(name).apply
    normalized = {text: change(text).encode() for text in found}
    for text in (text for text, data in normalized.items() if not data):
        raise VocabularyError(f"the special token {quote(text)} is empty once it is normalized")
    return normalized


class _SpecialSearch(NamedTuple):
    """The special tokens to search for: ids of allowed tokens by text, and disallowed texts.

    every: searches for all of them; None if there are none.
    """

    allowed: Mapping[bytes, int]
    disallowed: Collection[bytes]
    every: Search | None

    @classmethod
    def of(cls, allowed: Mapping[bytes, int], disallowed: Collection[bytes]) -> _SpecialSearch:
        """Return the search for these tokens."""
        texts = [*allowed, *disallowed]
        return cls(allowed, disallowed, search_for(texts) if texts else None)


class SpecialTokens:
    """The special tokens that are searched in texts, and the ids that are put around documents.

    early, late: the tokens to search for before and after `normalizer` changes the text. bos, eos:
    ids before and after each document. flags: see `Flags`.
    """

    def __init__(self, vocabulary: Vocabulary, options: SpecialOptions) -> None:
        """Choose from a vocabulary; VocabularyError for a token that it does not have."""
        special, name = vocabulary.special_tokens, vocabulary.normalizer
        allowed, disallowed = chosen_texts(vocabulary, options)
        late = normalized_texts(vocabulary)
        found = {text.encode(): special[text] for text in allowed if text not in late}
        # Of texts that are equal once they are normalized, the first counts.
        found_late = {late[text]: special[text] for text in reversed(late) if text in allowed}
        refused = [late[text] for text in late if text in disallowed]
        self.early = _SpecialSearch.of(found, [text.encode() for text in disallowed])
        self.late = _SpecialSearch.of(found_late, refused)
        self.normalizer = None if name is None else get_normalizer(name)
        self.bos, self.eos = ids_around(vocabulary, options)
        self.flags = Flags.of(vocabulary)
        self._flagged = frozenset[int]().union(*self.flags)

    @property
    def is_plain(self) -> bool:
        """Whether there are no special tokens to search for or to insert."""
        return not any((self.early.every, self.late.every, self.bos, self.eos))

    def split(self, text: bytes | memoryview, most: int | None = None) -> Pieces | None:
        """Return the normalized text between the special tokens of a document, and their ids.

        Returns None for a document that has to be filtered in blocks: it spells a disallowed token,
        a token with flags, or more than `most` tokens, or has to be normalized and is not UTF-8.
        """
        pieces = self._split(text, self.early, most)
        if pieces is None or not (self.normalizer or self.late.every):
            return pieces
        found: Pieces = []
        for number, piece in enumerate(pieces):
            if isinstance(piece, int):
                found.append(piece)
                continue
            if self.normalizer:
                try:
                    decoded = str(piece, "utf-8")
                except UnicodeDecodeError:
                    return None
                piece = self.normalizer.apply(decoded, follows=number > 0).encode()
            inner = self._split(piece, self.late, most)
            if inner is None:
                return None
            found += inner
        return found

    def _split(
        self, text: bytes | memoryview, wanted: _SpecialSearch, most: int | None
    ) -> Pieces | None:
        if wanted.every is None or not wanted.every.pattern.search(text):
            return [text]
        found: Pieces = []
        position = 0
        for match in wanted.every.pattern.finditer(text):
            number = None if wanted.disallowed else wanted.allowed[match[0]]
            if number is None or number in self._flagged or len(found) == 2 * (most or -1):
                return None
            found += text[position : match.start()], number
            position = match.end()
        return [piece for piece in [*found, text[position:]] if piece != b""]


class SpecialEncoder:
    """Cuts special tokens out, lets an encoder encode the other text, and inserts tokens' ids."""

    @delaying_forks()  # modules are imported here, as in `Vocabulary.from_bytes`
    def __init__(
        self,
        encoder: Encoder,
        vocabulary: Vocabulary,
        options: SpecialOptions,
        block_bytes: int = LEAST_BYTES,
    ) -> None:
        """Wrap an encoder of normalized text without special tokens.

        block_bytes: lowest number of bytes of text to search at a time. The ids do not depend on
        it.

        Raises VocabularyError for a token that the vocabulary does not have.
        """
        self._encoder, self._block_bytes = encoder, block_bytes
        self.special = SpecialTokens(vocabulary, options)
        # Bytes of each token's text by id, int64.
        self._lengths = vocabulary.token_lengths.copy()
        late = self.special.late.allowed
        self._lengths[list(late.values())] = list(map(len, late))

    def encode_document(
        self, text: bytes | memoryview, encode: Callable[[bytes | memoryview], Any]
    ) -> NDArray[np.uint32] | None:
        """Return the ids of a whole document; None if only the method `encode` can encode it.

        encode: returns the ids of normalized text without special tokens, or None.
        """
        special = self.special
        pieces = special.split(text, MOST_CALLS)
        found = []
        for piece in pieces or ():
            found.append(np.array([piece], np.uint32) if isinstance(piece, int) else encode(piece))
            if found[-1] is None:
                return None
        if pieces is None or (len(found) == 1 and not (special.bos or special.eos)):
            return found[0] if found else None
        around = [np.array(ids, np.uint32) for ids in (special.bos, special.eos)]
        return np.concatenate([around[0], *found, around[1]])

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`.

        Raises TextError also for a disallowed special token, InputError if the text is normalized.
        With a normalizer, slices and offsets count bytes of normalized text.
        """
        # Filter the text. searches: the boundaries of each search, the last search first.
        early, late = _Boundaries(), _Boundaries()
        searches: list[_Boundaries] = []
        if self.special.early.every:
            source = self._filtered(source, self.special.early, early)
            searches = [early]
        if self.special.normalizer is not None:
            is_read = searches and self.special.normalizer.name != NFC
            early.follows = deque() if is_read else None
            source = FilteredSource(source, self.special.normalizer.filter(early.follows))
        if self.special.late.every:
            source = self._filtered(source, self.special.late, late)
            searches = [late, *searches]
        # Insert the ids of special tokens.
        insertion = _Insertion(self.special.bos, self.special.eos)
        try:
            if self.special.is_plain:
                yield from self._encoder.encode(source, allocate)
                return
            for piece in self._encoder.encode(source):
                yield insertion.insert(*self._with_kinds(piece, searches))
        except NoTokenError as error:
            # The error's offset is in the filtered text: add the number of bytes cut out before it.
            offset = error.offset + late.cut_before(error.offset)
            if self.special.normalizer is not None:
                error = NoTokenError(error.byte, offset)
                raise InputError(f"in the normalized text, {error}") from None
            raise NoTokenError(error.byte, offset + early.cut_before(offset)) from None
        if len(last := insertion.finish()):
            yield EncodedSlice(last, np.empty(0, np.int64), closed=True)

    def _filtered(
        self, source: TextSource, wanted: _SpecialSearch, boundaries: _Boundaries
    ) -> TextSource:
        """Return a source of the text without `wanted`.

        boundaries: receives the boundaries that the search finds.
        """
        is_late = wanted is self.special.late
        guard = Guard(wanted.disallowed, is_late) if wanted.disallowed else None
        special_filter = _SpecialTokenFilter(wanted.allowed, self.special.flags, guard, boundaries)
        return _SpecialSource(source, special_filter, self._block_bytes)

    def _with_kinds(
        self, piece: EncodedSlice, searches: Iterable[_Boundaries]
    ) -> tuple[EncodedSlice, NDArray[np.int64]]:
        """Add special tokens' bytes to a slice; also return boundaries' kinds, int64 (n,)."""
        kinds, closed = np.full(len(piece.document_starts), _DOCUMENT, np.int64), piece.closed
        for boundaries in searches:
            starts = np.flatnonzero(kinds == _DOCUMENT)
            kinds[starts] = boundaries.take(len(starts))
            closed = closed and boundaries.ends_document()
        span = int(self._lengths[kinds[kinds != _DOCUMENT]].sum())
        return replace(piece, text_bytes=piece.text_bytes + span, closed=closed), kinds


class _Insertion:
    """Inserts ids of special tokens into a text's ids, and `bos` and `eos` around documents."""

    def __init__(self, bos: Sequence[int], eos: Sequence[int]) -> None:
        self._bos, self._eos = bos, eos
        self._is_open = False  # whether a document has started and not yet ended

    def insert(self, piece: EncodedSlice, kinds: NDArray[np.int64]) -> EncodedSlice:
        """Insert the ids of special tokens, `bos` and `eos` into the ids of a slice.

        kinds: int64, for each boundary in the slice either _DOCUMENT or the id of a special token.
        """
        starts = piece.document_starts
        begins = kinds == _DOCUMENT
        # Where a document starts, `eos` ends the document before it, if a document is open.
        ending = begins.copy()
        if len(ending) and not self._is_open:
            ending[np.argmax(begins)] = False
        # values: the ids that may be inserted at each boundary, int64 (boundaries, columns). The
        # columns are `eos` of the document before the boundary, the id of a special token, and
        # `bos` of the document after it. present: bool, same shape, whether the id is inserted.
        widths = len(self._eos), 1, len(self._bos)
        values = np.tile([*self._eos, 0, *self._bos], (len(kinds), 1))
        values[:, len(self._eos)] = kinds
        present = np.repeat(np.stack([ending, ~begins, begins], axis=1), widths, axis=1)
        # before: int64 (boundaries,), number of ids inserted before the first token of the document
        # that starts at each boundary.
        before = np.cumsum(present.sum(axis=1)) - len(self._bos) * begins
        ids = np.insert(piece.ids, np.repeat(starts, sum(widths))[present.ravel()], values[present])
        self._is_open |= bool(begins.any())
        if piece.closed and len(last := self.finish()):
            ids = np.concatenate([ids, last])
        return EncodedSlice(ids, (starts + before)[begins], piece.text_bytes, piece.closed)

    def finish(self) -> NDArray[np.uint32]:
        """End the last document; return the ids of `eos`, no ids if no document is open."""
        ids = self._eos if self._is_open else ()
        self._is_open = False
        return np.array(ids, np.uint32)


class _Boundaries:
    """The boundaries in a filtered text: starts of documents, and special tokens that were cut out.

    The thread that reads text adds boundaries, and the thread that receives the ids removes them.
    Both may be the same thread.

    follows: a queue with a bool for each boundary, whether it is a special token. A normalizer
    reads the queue; None without a normalizer.
    """

    def __init__(self) -> None:
        # Boundaries and marks between them are int64 (3, n): their kinds, their offsets in the
        # filtered text, and the number of bytes that were cut out there.
        self._found: deque[NDArray[np.int64]] = deque()  # columns not yet moved to `_ahead`
        self._ahead = np.empty((3, 0), np.int64)
        self._cut = 0  # number of bytes cut out at the boundaries and marks that were removed
        self.follows: deque[bool] | None = None

    def add(self, found: NDArray[np.int64], ended: int | None) -> None:
        """Append the next boundaries and marks, int64 (3, n).

        The encoder must get the text around them after this call. ended: if a document ends in this
        text, the number of columns of `found` that come before its end; else None.
        """
        if self.follows is not None:
            self.follows.extend((found[0, found[0] >= _DOCUMENT] != _DOCUMENT).tolist())
        if ended is not None:
            self._found.extend((found[:, :ended], _ENDED))
            found = found[:, ended:]
        self._found.append(found)

    def take(self, count: int) -> NDArray[np.int64]:
        """Remove the next `count` boundaries; return their kinds, int64 (count,)."""
        ahead = self._every()
        places = np.flatnonzero(ahead[0] >= _DOCUMENT)[:count]
        end = int(places[-1]) + 1 if count else 0
        self._cut += int(ahead[2, :end].sum())
        self._ahead = ahead[:, end:]
        kinds: NDArray[np.int64] = ahead[0, places]
        return kinds

    def ends_document(self) -> bool:
        """Whether a document ends between the last boundary that `take` removed and the next."""
        kinds = self._every()[0]
        return bool((kinds[kinds != _BLANK][:1] == _END).any())

    def cut_before(self, offset: int) -> int:
        """Return the number of bytes cut out up to an offset after all removed boundaries."""
        ahead = self._every()
        return self._cut + int(ahead[2, ahead[1] <= offset].sum())

    def _every(self) -> NDArray[np.int64]:
        """Return all boundaries and marks that are not removed."""
        if self._found:
            found = [self._found.popleft() for _ in range(len(self._found))]
            self._ahead = np.concatenate([self._ahead, *found], axis=1)
        return self._ahead


_Span = tuple[int, int]  # begin and end of a special token in the data
# A match: the begin and end of the bytes that are cut out, the number of bytes that are cut out
# before them and were held back, and the special token's id, or _BLANK for white space alone.
_Match = tuple[int, int, int, int]


class _SpecialSource(FilteredSource):
    """A text source that passes text through a `_SpecialTokenFilter`."""

    def _pieces(self) -> Iterator[Piece]:
        assert isinstance(self._filter, _SpecialTokenFilter)
        for piece in super()._pieces():
            # White space that was held back comes first. Only the piece itself may report the end.
            ended, self._ended = self._ended, False
            for blanks in self._filter.blanks:
                yield Piece(np.frombuffer(blanks, np.uint8), np.empty(0, np.int64), closed=False)
            self._ended = ended
            yield piece


def _document_around(borders: list[int], position: int, end: int) -> tuple[int, int, bool]:
    """Return the begin and end of a position's document, and whether it began before the block.

    borders: the document starts in a block of text. end: the end of the block. A document that
    began before the block has 0 as its begin.
    """
    number = bisect_right(borders, position)
    low = borders[number - 1] if number else 0
    return low, borders[number] if number < len(borders) else end, number == 0


def _extended(data: bytes, match: _Match, until: int) -> _Match:
    first, last, held, token = match
    return first, blank_after(data, last, until), held, token


class _SpecialTokenFilter:
    """Cuts the allowed special tokens out of a text; see `llmgpu.text.documents.TextFilter`.

    blanks: white space that belongs right before the text that the last call of `feed` returned.
    """

    def __init__(
        self,
        allowed: Mapping[bytes, int],
        flags: Flags,
        guard: Guard | None,
        boundaries: _Boundaries,
    ) -> None:
        """Search for the texts of `allowed`, ids by text, and add each match to `boundaries`."""
        self._ids = allowed
        self._search = search_for(allowed) if allowed else None
        self._flags = Flags(*(ids.intersection(allowed.values()) for ids in flags))
        self._guard = guard
        self._boundaries = boundaries
        self._held = b""  # bytes of earlier blocks that were held back
        self._held_starts = np.empty(0, np.int64)  # document starts in `_held`
        self._handed_over = 0  # bytes of filtered text returned so far
        self.blanks: list[bytes] = []
        self._blanks: list[bytes] = []  # white space right before `_held`, in the same document
        self._context = b""  # up to LONGEST bytes before `_held`, in the same document
        self._swallows = False  # whether the last token swallows the white space after it

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Return the text without special tokens, with a document start in place of each token.

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
            matches, end = self._apply_flags(data, borders, spans, decided, final)
        else:
            matches = [(begin, end, 0, self._ids[data[begin:end]]) for begin, end in spans]
            end = decided
        # Hold back the last bytes with the document starts among them. The data between `end` and
        # `decided` is white space, which is already in `_blanks`.
        own = len(starts) if final else int(np.searchsorted(starts, decided))
        self._held, self._held_starts = data[decided:], starts[own:] - decided
        piece, found = self._cut(data[:end], starts[:own], matches, final)
        # A document that starts at the very end of the data has not ended.
        begun = int((starts == len(data)).sum())
        self._boundaries.add(found, found.shape[1] - begun if final else None)
        self._handed_over += len(piece.text)
        return piece

    def matches(self, document: bytes) -> list[tuple[int, int, int, int]]:
        """Return the positions of the allowed tokens in a whole document; see `special_matches`."""
        spans, decided = self._find(document, [0], final=True)
        spans, widened = self._widen(document, [0], spans, decided)
        return [(w[0], *span, w[1]) for span, w in zip(spans, widened[1:], strict=True)]

    def _apply_flags(
        self, data: bytes, borders: list[int], spans: list[_Span], decided: int, final: bool
    ) -> tuple[list[_Match], int]:
        """Return the matches with the white space around them, and the end of text to hand over."""
        _, matches = self._widen(data, borders, spans, decided)
        before, last = (b"", borders[-1]) if borders else (self._context, 0)
        self._context = (before + data[last:decided])[-LONGEST:]
        # Hold back white space at the end, because a following token with lstrip may swallow it.
        # Release it as soon as other text, a token or a document follows.
        end = decided
        if self._flags.lstrip and not final:
            end = blank_before(data, max([matches[-1][1], *borders[-1:]]), decided)
        self.blanks = []
        if end or borders or final:
            self.blanks, self._blanks = self._blanks, []
            self._handed_over += sum(map(len, self.blanks))
        self._blanks.append(shared(data[end:decided]))
        return matches if matches[0][1] else matches[1:], end

    def _widen(
        self, data: bytes, borders: list[int], spans: list[_Span], decided: int
    ) -> tuple[list[_Span], list[_Match]]:
        """Return the spans that remain after the flags are applied, and their matches.

        A match has the white space that its token swallows. The first match is white space at the
        beginning of the data that the last token of earlier data swallows.
        """
        valid: list[_Span] = []
        matches: list[_Match] = [(0, 0, 0, _BLANK)]
        # The last match begins at `place`, and swallows white space up to `until` at most.
        place, until = -1, min([decided, *borders[:1]]) if self._swallows else -1
        for begin, end in spans:
            token, taken = self._ids[data[begin:end]], matches[-1][1]
            low, high, continues = _document_around(borders, begin, len(data))
            if token in self._flags.single_word:
                before = data[max(low, begin - LONGEST) : begin]
                before = self._context + before if continues else before
                if ends_in_word(before) or begins_with_word(data[end : min(high, end + LONGEST)]):
                    continue
            # A token with lstrip that is itself white space is swallowed by the previous token.
            # White space at the start of another token stays in the token.
            swallows = token in self._flags.lstrip
            if swallows and begin < until and blank_after(data, taken, end) == end:
                continue
            matches[-1] = _extended(data, matches[-1], min(until, decided if swallows else begin))
            taken, held = matches[-1][1], 0
            first = max(begin, taken)
            if swallows:
                first = blank_before(data, max(low, taken), first)
                # The white space began in earlier data: cut out the bytes that were held back, too.
                if first == 0 and continues:
                    held, self._blanks = sum(map(len, self._blanks)), []
            valid.append((begin, end))
            matches.append((first, end, held, token))
            place, until = begin, min(high, decided) if token in self._flags.rstrip else -1
        matches[-1] = _extended(data, matches[-1], until)
        is_open = until >= 0 and place >= max(borders[-1:], default=-1)
        self._swallows = is_open and matches[-1][1] == decided
        return valid, matches

    def _find(self, data: bytes, borders: list[int], final: bool) -> tuple[list[_Span], int]:
        """Return the (begin, end) of allowed tokens, and the end of the decided text.

        Text is decided if later text can't change the tokens in it.
        """
        search, position = self._search, 0
        if search is None:
            return [], len(data)
        spans: list[_Span] = []
        # Find the tokens that begin before `safe`. Later text can't change them: no token that ends
        # there begins before it, and for single_word the character after a token is in the data.
        known = data[:-LONGEST] if self._flags.single_word else data
        least = max([0, *borders[-1:]])
        safe = len(data) if final else max(least, search.begin_of_rest(known, least))
        while (found := search.find(data, position, borders)) and found[0] < safe:
            spans.append(found)
            position = found[1]
        decided = max(position, safe)
        # With flags, decided text must end between two characters.
        if any(self._flags) and decided > position and not final:
            least = max([position, *borders[-1:]])
            decided -= incomplete_bytes(data[max(least, decided - LONGEST) : decided])
        return spans, decided

    def _cut(
        self, data: bytes, starts: NDArray[np.int64], matches: list[_Match], final: bool
    ) -> tuple[Piece, NDArray[np.int64]]:
        """Cut `matches` out of `data`; return the rest, and int64 (3, n) boundaries and marks."""
        text = np.frombuffer(data, np.uint8)
        found = np.zeros((3, len(starts) + len(matches)), np.int64)
        found[0] = _DOCUMENT
        if matches:
            places = np.array(matches, np.int64)
            text, cuts = remove_spans(text, places[:, :2])
            begins, ends, held, kinds = places.T
            removed = np.concatenate([np.zeros(1, np.int64), ends - cuts])
            # A document start comes before a token that begins there, after a token that ends
            # there.
            order = np.argsort(np.concatenate([2 * starts, 2 * begins + 1]), kind="stable")
            found[0, len(starts) :], found[2, len(starts) :] = kinds, ends - begins + held
            found = found[:, order]
            starts = starts - removed[np.searchsorted(ends, starts, side="right")]
            starts = np.concatenate([starts, cuts])[order]
        found[1] = starts + self._handed_over
        starts = starts[found[0] >= _DOCUMENT]
        closed = final or bool(len(starts) and starts[-1] == len(text))
        return Piece(text, starts, closed), found
