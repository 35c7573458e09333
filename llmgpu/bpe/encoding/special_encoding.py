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
- Only bytes that may begin a special token are held back until the next block.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, zip_longest
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, NoTokenError, new_ids
from llmgpu.bpe.encoding.special_options import ALL, SpecialOptions, several
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, TextError, VocabularyError
from llmgpu.input_files import quote
from llmgpu.spelling import spelled
from llmgpu.text.corpus import LEAST_BYTES, FilteredSource, TextSource
from llmgpu.text.documents import Piece, remove_spans
from llmgpu.text.normalizing import Normalizer, get_normalizer

# the kind of a boundary where a document starts; the kind of any other boundary is an id
_DOCUMENT = -1

_NO_BOUNDARIES = np.empty((2, 0), np.int64)
# groups in a regular expression, because the expression parser recurses into each group
_MOST_NESTED = 50


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
    allowed, disallowed = _chosen_texts(vocabulary, options)
    # Normalized special tokens are searched for last, so their encoder is made first.
    late = _normalized_texts(vocabulary)
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
            allowed=late_allowed,
            disallowed=late_disallowed,
            block_bytes=block_bytes,
            is_normalized=True,
        )
    # Text passes the encoders from the outermost inwards, so the normalizer is wrapped around the
    # search for normalized tokens, and the search for special tokens around the normalizer.
    if vocabulary.normalizer is not None:
        encoder = _NormalizingEncoder(encoder, get_normalizer(vocabulary.normalizer))
    if options.is_plain:
        return encoder
    before, after = ids_around(vocabulary, options)
    # Each encoder puts one token before and one after a document. The pairs start at the text.
    first, *others = zip_longest(reversed(before), after) if before or after else [(None, None)]
    made = _SpecialEncoder(
        encoder,
        vocabulary.token_lengths,
        allowed={text.encode(): special[text] for text in allowed if text not in late},
        disallowed=[text.encode() for text in disallowed],
        bos=first[0],
        eos=first[1],
        block_bytes=block_bytes,
    )
    for bos, eos in others:
        made = replace(made, encoder=made, allowed={}, disallowed=(), bos=bos, eos=eos)
    return made


class DocumentEncoder:
    """Encodes whole documents that spell no special token."""

    def __init__(
        self,
        encode: Callable[[bytes], NDArray[np.uint32] | None],
        vocabulary: Vocabulary,
        options: SpecialOptions,
    ) -> None:
        """Take a function that encodes a plain document, and a vocabulary without normalizer.

        Raises VocabularyError for a token that the vocabulary does not have.
        """
        self._encode = encode
        texts = [text.encode() for text in set().union(*_chosen_texts(vocabulary, options))]
        self._search = search_for(texts) if texts else None
        around = ids_around(vocabulary, options)
        self._before, self._after = (np.array(ids, np.uint32) for ids in around)

    def encode(self, text: bytes) -> NDArray[np.uint32] | None:
        """Return the ids of a document; None if `Encoder.encode` must find the ids."""
        if self._search and self._search.pattern.search(text):
            return None
        ids = self._encode(text)
        if ids is None or not (len(self._before) or len(self._after)):
            return ids
        return np.concatenate([self._before, ids, self._after])


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


def _chosen_texts(
    vocabulary: Vocabulary, options: SpecialOptions
) -> tuple[Collection[str], Collection[str]]:
    """Return the special tokens that text may spell, and the ones that are errors."""
    special = vocabulary.special_tokens
    allowed = _chosen(vocabulary, options.allowed, special)
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

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        filtered = FilteredSource(source, self._normalizer.filter())
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
        special_filter = _SpecialTokenFilter(self.allowed, guard, boundaries)
        filtered = FilteredSource(source, special_filter, self.block_bytes)
        special_bytes = 0  # in the text up to here
        try:
            for piece in self.encoder.encode(filtered):
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

    def add(self, kinds: NDArray[np.int64], offsets: NDArray[np.int64], ended: int | None) -> None:
        """Append the next boundaries, before the text around them is handed over.

        kinds: int64 (n,), _DOCUMENT or ids of special tokens. offsets: int64 (n,), positions in the
        whole filtered text. ended: a document ends after this many of the boundaries; None: none
        ends.
        """
        if ended is not None:
            self._ends.append(self._added + ended)
        self._added += len(kinds)
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


class _SpecialTokenFilter:
    """Takes the allowed special tokens out of a text; see `llmgpu.text.documents.TextFilter`."""

    def __init__(
        self, allowed: Mapping[bytes, int], guard: Guard | None, boundaries: _Boundaries
    ) -> None:
        """Search for the allowed texts, which have ids, and add each match to `boundaries`."""
        self._ids = allowed
        self._search = search_for(allowed) if allowed else None
        self._guard = guard
        self._boundaries = boundaries
        self._held = b""
        self._held_starts = np.empty(0, np.int64)
        self._handed_over = 0

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Return the text without special tokens, with a boundary at the place of each.

        Raises TextError for a disallowed special token.
        """
        block = text.tobytes()
        if self._guard:
            self._guard.check(block, starts, final)
        data = self._held + block
        starts = np.concatenate([self._held_starts, starts + len(self._held)])
        spans, decided = self._find(data, starts, final)
        # A document start after the decided text is left to the next block.
        own = len(starts) if final else int(np.searchsorted(starts, decided))
        self._held, self._held_starts = data[decided:], starts[own:] - decided
        piece, kinds = self._cut(data[:decided], starts[:own], spans, final)
        # A document that starts at the very end has no text yet, so it does not end here.
        begun = int((starts == len(data)).sum())
        ended = len(kinds) - begun if final else None
        self._boundaries.add(kinds, piece.starts + self._handed_over, ended)
        self._handed_over += len(piece.text)
        return piece

    def _find(
        self, data: bytes, starts: NDArray[np.int64], final: bool
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the (begin, end) of allowed tokens, and the end of the decided text."""
        search, position = self._search, 0
        if search is None:
            return [], len(data)
        spans: list[tuple[int, int]] = []
        # Up to here every match is certain: from here to the end of the last document, fewer bytes
        # follow than the longest token has.
        safe = len(data) if final else max(len(data) - search.longest + 1, *starts[-1:], 0)
        borders = starts.tolist()
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
                spans.append(match.span())
            position = match.end() if match else position + 1
        return spans, position

    def _cut(
        self, data: bytes, starts: NDArray[np.int64], spans: list[tuple[int, int]], final: bool
    ) -> tuple[Piece, NDArray[np.int64]]:
        """Take `spans` out of `data`; return the rest, and the kinds of its boundaries."""
        text = np.frombuffer(data, np.uint8)
        kinds = np.full(len(starts), _DOCUMENT, np.int64)
        if spans:
            places = np.array(spans, np.int64)
            text, cuts = remove_spans(text, places)
            ends = places[:, 1]
            removed = np.concatenate([np.zeros(1, np.int64), ends - cuts])
            # A document start goes before a token that begins there, but after one that ends there.
            order = np.argsort(np.concatenate([2 * starts, 2 * places[:, 0] + 1]), kind="stable")
            starts = starts - removed[np.searchsorted(ends, starts, side="right")]
            starts = np.concatenate([starts, cuts])[order]
            ids = np.array([self._ids[data[begin:end]] for begin, end in spans], np.int64)
            kinds = np.concatenate([kinds, ids])[order]
        closed = final or bool(len(starts) and starts[-1] == len(text))
        return Piece(text, starts, closed), kinds


def search_for(texts: Collection[bytes]) -> Search:
    """Return a search for byte strings: at least one, none of them empty."""
    return _search_for(tuple(sorted(set(texts))))


@lru_cache(maxsize=16)
def _search_for(texts: tuple[bytes, ...]) -> Search:
    return Search(texts)


class Search:
    """Finds byte strings, leftmost first, the longest at a position.

    longest: bytes of the longest string. pattern: matches the longest at a position.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Take one or more distinct texts, sorted."""
        self._texts = texts
        self.longest = max(map(len, texts))
        self.pattern = re.compile(_longest_of(texts))
        firsts = {text[:1] for text in texts}
        self._first = re.compile(b"[" + b"".join(map(re.escape, sorted(firsts))) + b"]")

    def find(self, data: bytes, position: int, starts: Sequence[int]) -> tuple[int, int] | None:
        """Return the (begin, end) of the first string, from a position on, within a document."""
        match = self.pattern.search(data, position)
        while match:
            after = bisect_right(starts, match.start())
            if after == len(starts) or starts[after] >= match.end():
                return match.span()
            border = starts[after]
            match = self.pattern.search(data, match.start(), border)
            match = match or self.pattern.search(data, border)
        return None

    def next_candidate(self, data: bytes, position: int) -> int:
        """Return the first position, from `position` on, where a string may start; else the end."""
        match = self._first.search(data, position)
        return match.start() if match else len(data)

    def may_continue(self, data: bytes, position: int) -> bool:
        """Whether the data from a position on is a proper prefix of a string."""
        rest = data[position:]
        return any(len(text) > len(rest) and text.startswith(rest) for text in self._texts)


def _longest_of(texts: Sequence[bytes], depth: int = 0) -> bytes:
    """Return a regular expression for the longest of sorted, distinct texts.

    Texts with a common beginning share one branch, so that few branches are tried at a position.
    """
    first, last = texts[0], texts[-1]
    alike = next((k for k, byte in enumerate(first) if byte != last[k]), len(first))
    prefix, rests = re.escape(first[:alike]), [text[alike:] for text in texts]
    if len(rests) == 1:
        return prefix
    if depth == _MOST_NESTED:
        rests.sort(key=len, reverse=True)
        return prefix + b"(?:" + b"|".join(map(re.escape, rests)) + b")"
    longer = rests[1:] if rests[0] == b"" else rests
    branches = [_longest_of(list(same), depth + 1) for _, same in groupby(longer, itemgetter(0))]
    optional = b"?" if longer is not rests else b""
    return prefix + b"(?:" + b"|".join(branches) + b")" + optional


class Guard:
    """Refuses text in which certain byte strings occur."""

    def __init__(self, texts: Collection[bytes], is_normalized: bool) -> None:
        """Take at least one byte string, none of them empty.

        Is_normalized: for the error's wording.
        """
        self._search = search_for(texts)
        self._is_normalized = is_normalized
        self._before = b""  # the end of the document so far, too short to hold the longest
        self._offset = 0  # of that beginning, in the whole text

    def check(self, block: bytes, starts: NDArray[np.int64], final: bool) -> None:
        """Raise TextError if a string ends in the next block.

        InputError if the text is normalized.
        """
        data = self._before + block
        found = self._search.find(data, 0, (starts + len(self._before)).tolist())
        if found:
            begin, end = found
            error = TextError(
                f"special token {quote(data[begin:end].decode())}",
                self._offset + begin,
                f"is disallowed: use {spelled('--allowed-special')} to encode it as its id, or "
                "don't disallow it to encode it as text",
            )
            if self._is_normalized:
                raise InputError(f"in the normalized text, {error}")
            raise error
        last = int(starts[-1]) + len(self._before) if len(starts) else 0
        kept = 0 if final else min(len(data) - last, self._search.longest - 1)
        self._before = data[len(data) - kept :]
        self._offset += len(data) - kept
