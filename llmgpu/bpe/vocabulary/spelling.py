"""Text of ids: the characters of each id, readable tokens, streams of text, and chunks."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError

# Printable characters that `readable` escapes: the backslash, variation selectors and fillers.
_UNSEEN = {"\\", *"\u034f\u115f\u1160\u3164\uffa0", *map(chr, range(0xFE00, 0xFE10))}
_CONTINUATION = 0x80  # a continuation byte of UTF-8 has this value in its two highest bits


def character_spans(data: bytes, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the range of characters of each token: int64 (n, 2), the first, and the last + 1.

    data: the text in UTF-8. lengths: int64 (n,), bytes of each token; their sum is len(data).

    If the bytes of a character are in several tokens, the character belongs to all of them. An
    empty token has no characters.
    """
    begins_character = (np.frombuffer(data, np.uint8) & 0xC0) != _CONTINUATION
    # characters[k]: number of characters that begin before byte k.
    characters = np.concatenate([np.zeros(1, np.int64), np.cumsum(begins_character)])
    ends = np.cumsum(lengths)
    begins = ends - lengths
    # Byte k belongs to the last character that begins at or before k.
    first = np.maximum(characters[np.minimum(begins + 1, len(data))] - 1, 0)
    return np.stack([np.where(lengths > 0, first, characters[ends]), characters[ends]], axis=1)


def decode_with_spans(vocabulary: Vocabulary, ids: ArrayLike) -> tuple[str, NDArray[np.int64]]:
    """Return the text of ids (n,), and the characters of each id, see `character_spans`.

    Raises InputError for unknown ids and for ids whose bytes are not UTF-8.
    """
    data = vocabulary.decode(ids)
    lengths = vocabulary.token_lengths[np.asarray(ids, np.int64)]
    try:
        return data.decode(), character_spans(data, lengths)
    except UnicodeDecodeError as error:
        raise InputError(
            f"the ids spell bytes that are not UTF-8, at byte {error.start}"
        ) from error


def readable(token: bytes) -> str:
    r"""Return a token as readable text on one line; different tokens have different texts.

    Visible characters of every script stay as they are, but the backslash is doubled. Invisible
    ASCII characters and bytes that are not UTF-8 are escaped as ``\xff``, other invisible
    characters as ``\u200b``. A mark at the beginning of a token is escaped, too: it would be drawn
    over the character before the token.
    """
    text = token.decode(errors="surrogateescape")
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    shown = [c if c.isprintable() and c not in _UNSEEN else _escape(c) for c in text]
    import unicodedata

    if unicodedata.category(text[:1] or " ") in ("Mn", "Me"):
        shown[0] = _escape(text[0])
    return "".join(shown)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x80:
        return character.encode("unicode_escape").decode()
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def decode_stream(vocabulary: Vocabulary, ids: Iterable[int], errors: str) -> Iterator[str]:
    """Yield a text for each of `ids`: the characters that this id completes, "" if there are none.

    errors: how bytes that are not UTF-8 are decoded, as for `bytes.decode`. Bytes of an incomplete
    character at the end are decoded by the same rule. Raises InputError for ids without a token.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    first: list[int] | None = []  # the first ids, as long as they give no text; then None
    for number in ids:
        if first is None:
            yield decoder.decode(vocabulary.decode([number]))
            continue
        first.append(number)
        data = vocabulary.decode_document(first)
        yield decoder.decode(data)
        if data:
            first = None
    rest = decoder.decode(b"", final=True)
    if rest:
        yield rest


def chunks_of(
    text: str,
    spans: NDArray[np.int64],
    tokens: int,
    overlap: int,
    count: Callable[[str], int],
) -> Iterator[str]:
    """Yield a text in chunks of up to `tokens` ids, see `Tokenizer.chunks`.

    spans: int64 (n, 2), the characters of each id, see `character_spans`. overlap: number of ids at
    the end of a chunk that the next chunk repeats. count: returns the number of ids of a text on
    its own, which may be more than the number of its ids within the whole text.
    """
    # Text may be cut between ids that share no character.
    parted = np.flatnonzero(spans[1:, 0] >= spans[:-1, 1]) + 1
    cuts = np.array([0, *parted, len(spans)])

    def cut_before(place: int) -> int:
        return int(cuts[np.searchsorted(cuts, place, side="right") - 1])

    begin = 0
    while begin < len(spans):
        following = int(cuts[np.searchsorted(cuts, begin, side="right")])
        end = max(cut_before(min(begin + tokens, len(spans))), following)
        while True:
            chunk = text[spans[begin, 0] : spans[end - 1, 1]]
            over = count(chunk) - tokens
            if over <= 0 or end == following:
                break
            end = max(cut_before(end - over), following)
        # A chunk that can't be cut between ids may have too many ids: cut it between any
        # characters.
        while over > 0 and len(chunk) > 1:
            cut = 1
            while count(chunk[: cut + 1]) <= tokens:
                cut += 1
            yield chunk[:cut]
            chunk = chunk[cut:]
            over = count(chunk) - tokens
        yield chunk
        if end == len(spans):
            return
        before = cut_before(end - overlap)
        begin = before if before > begin else end
