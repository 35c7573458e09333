"""SentencePiece's normalizer: a map of strings, then the rules of white space.

- A text is mapped from the left. At each position, the longest user-defined symbol stays unchanged.
  Without a symbol, the longest key of the map is replaced by its value. Without a key, the
  character stays. After that, U+2581 is treated as a space.
- With `remove_extra_whitespaces`, several spaces in a row become one space, and spaces at both ends
  of a text are removed. A value with two spaces in a row is refused: SentencePiece would keep both.
- The dummy prefix is a space before a text, or with `suffix` after the text. An empty text gets no
  dummy prefix, nor does a text that consists of removed spaces. Removing spaces at the end also
  removes a prefix that no other text follows.
- The map is a double array (Darts): the length of all units in bytes (32 bits), the units, then the
  values, each ended by a zero byte. Many keys share units (226,640 keys in 46,080 units), so only
  the first two characters of the keys are listed, not all keys.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import VocabularyError
from llmgpu.forking import cached_property
from llmgpu.input_files import quote

MOST_MAP_BYTES = 700_000  # bytes of a decoded map; SentencePiece's own maps have up to 300,000
# bytes of the longest key; SentencePiece itself tries at most 32 keys at a position
_MOST_KEY_BYTES = 32
_MOST_VALUE_BYTES = 256
_MOST_NODES = 1 << 16  # most nodes visited to list characters; the largest map in use needs 20,000
_LABELS = np.arange(1, 256, dtype=np.uint32)
MARK = "\u2581"
_SEARCHED, _FIRST, _SECOND = np.uint8(1), np.uint8(2), np.uint8(4)  # see `_tables`
_SPACE = np.uint32(0x20)
# Separates documents. No text contains it: invalid bytes become the surrogates U+DC80 to U+DCFF.
STOP = "\ud800"


class CharsMap:
    """SentencePiece's precompiled map from strings to their normalized form.

    singles: the keys of one character. firsts, seconds: the first and the second characters of all
    longer keys. has_double_spaces: whether a value has two spaces in a row, which the white space
    rules can't handle.
    """

    def __init__(self, blob: bytes) -> None:
        """Parse a map in SentencePiece's binary form.

        Raises VocabularyError for a damaged or too large map.
        """
        if len(blob) > MOST_MAP_BYTES:
            raise VocabularyError(f"a charsmap of {len(blob)} bytes; the limit is {MOST_MAP_BYTES}")
        size = int.from_bytes(blob[:4], "little")
        if size % 4 or not 0 < size <= len(blob) - 4:
            raise VocabularyError(f"the charsmap has no units: {size} of {len(blob)} bytes")
        self._units, self._values = np.frombuffer(blob, "<u4", size // 4, 4), blob[4 + size :]
        self.has_double_spaces = b"  " in self._values
        if max(map(len, self._values.split(b"\0"))) > _MOST_VALUE_BYTES:
            raise VocabularyError(f"the charsmap has values of over {_MOST_VALUE_BYTES} bytes")
        self._list: list[int] = self._units.tolist()
        self._nodes = 0  # number of nodes visited so far
        # Cached results of `find` for characters with which only keys of one character begin.
        self._alone: dict[str, tuple[int, str]] = {}
        root = [(b"", int(_offsets(self._units[:1])[0]))]
        characters = [*self._characters(root)]
        self.singles = {text for text, _, is_key in characters if is_key}
        self.firsts, self.seconds = set[str](), set[str]()
        for text, base, _ in characters:
            following = {each[0] for each in self._characters([(b"", base)])}
            self.seconds |= following
            self.firsts |= {text} if following else set()

    def find(self, text: str, at: int) -> tuple[int, str]:
        """Find the longest key that begins at a position.

        Returns the key's length in characters (0 if no key matches), and its value.
        """
        known = self._alone.get(text[at])
        if known is None:
            known = self._search(text, at)
            if text[at] not in self.firsts:
                self._alone[text[at]] = known
        return known

    def _search(self, text: str, at: int) -> tuple[int, str]:
        # Walk through the units byte by byte, and remember the last key.
        data = text[at : at + _MOST_KEY_BYTES].encode(errors="surrogatepass")
        data = data[:_MOST_KEY_BYTES]
        units, place, leaf, length = self._list, 0, -1, 0
        unit = units[0]
        place ^= (unit >> 10) << ((unit & 512) >> 6)
        for number, byte in enumerate(data, 1):
            place ^= byte
            if byte == 0 or place >= len(units) or units[place] & 0x800000FF != byte:
                break
            unit = units[place]
            place ^= (unit >> 10) << ((unit & 512) >> 6)
            if unit >> 8 & 1:
                leaf, length = place, number
        if leaf < 0:
            return 0, ""
        # Read the value of the longest key.
        begin = units[leaf] & 0x7FFFFFFF if leaf < len(units) else len(self._values)
        end = self._values.find(b"\0", begin)
        try:
            if end < 0:
                raise ValueError
            return len(data[:length].decode()), self._values[begin:end].decode()
        except ValueError as error:
            raise VocabularyError(f"the charsmap is damaged at {quote(data[:length])}") from error

    def _characters(self, nodes: list[tuple[bytes, int]]) -> list[tuple[str, int, bool]]:
        """Return the characters that lie below some nodes of the tree.

        nodes: (bytes of the character so far, offset of the node's children). A character has up to
        four bytes, so four steps down the tree find all characters.

        Returns for each character its node, and whether a key ends there.
        """
        found: list[tuple[str, int, bool]] = []
        # Each round goes one byte down the tree. `following` has the incomplete characters.
        for _ in range(4):
            following: list[tuple[bytes, int]] = []
            for data, base in nodes:
                # places: index of each child in the units, uint32 (children,).
                places = base ^ _LABELS
                places = places[places < len(self._units)]
                here = self._units[places]
                fits = here & np.uint32(0x800000FF) == (base ^ places)
                here, places = here[fits], places[fits]
                self._nodes += len(here)
                if self._nodes > _MOST_NODES:
                    raise VocabularyError(f"the charsmap has more than {_MOST_NODES} nodes")
                after = (places ^ _offsets(here)).tolist()
                for unit, node in zip(here.tolist(), after, strict=True):
                    spelled = data + bytes([unit & 0xFF])
                    try:
                        found.append((spelled.decode(), node, bool(unit >> 8 & 1)))
                    except UnicodeDecodeError:
                        following.append((spelled, node))
            nodes = following
        if nodes:
            raise VocabularyError("the charsmap is damaged: its keys are not UTF-8")
        return found


def _offsets(units: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (units >> np.uint32(10)) << ((units & np.uint32(1 << 9)) >> np.uint32(6))


class SentencePieceRules:
    """The rules of a model's normalizer.

    charsmap: the map in base64; "" for no map. dummy_prefix, remove_extra_whitespaces, suffix: see
    `llmgpu.text.charsmap`. symbols: user-defined symbols in the model's spelling.

    Raises VocabularyError for a damaged map, and for a value with two spaces in a row if spaces are
    removed.
    """

    def __init__(
        self,
        charsmap: str,
        dummy_prefix: bool,
        remove_extra_whitespaces: bool,
        suffix: bool,
        symbols: Sequence[str],
    ) -> None:
        try:
            blob = binascii.a2b_base64(charsmap, strict_mode=True)
        except ValueError as error:
            raise VocabularyError("the charsmap is not base64") from error
        self._charsmap = CharsMap(blob) if blob else None
        if self._charsmap and remove_extra_whitespaces and self._charsmap.has_double_spaces:
            raise VocabularyError("the charsmap makes two spaces in a row, which are not removed")
        self.prefix = " " if dummy_prefix and not suffix else ""
        self.suffix = " " if dummy_prefix and suffix else ""
        self.removes = remove_extra_whitespaces
        self._symbols = frozenset(symbols)
        self._lengths = sorted({len(symbol) for symbol in symbols}, reverse=True)
        self.longest = max([1, *self._lengths, _MOST_KEY_BYTES if blob else 1])

    @cached_property
    def _tables(self) -> tuple[NDArray[np.uint32], NDArray[np.uint8]] | None:
        """Tables by code point: the replacement and the flags; None without keys and symbols.

        uint32 and uint8, (0x110000,). `_find` is needed at a character with the flag _SEARCHED, and
        at a character with the flag _FIRST if the next character has the flag _SECOND. A symbol, a
        longer key, or a key with a value of another length than 1 may begin at these characters.
        """
        if not (self._charsmap or self._symbols):
            return None
        values, kinds = np.arange(0x110000, dtype=np.uint32), np.zeros(0x110000, np.uint8)
        for character in self._charsmap.singles if self._charsmap else ():
            try:
                value = self._find(character, 0)[1]
            except VocabularyError:  # `map` raises the error for a text with this key
                value = ""
            if len(value) == 1:
                values[ord(character)] = ord(value)
            else:
                kinds[ord(character)] |= _SEARCHED
        firsts, seconds = set[str](), set[str]()
        if self._charsmap:
            firsts, seconds = self._charsmap.firsts, self._charsmap.seconds
        longer = [symbol for symbol in self._symbols if len(symbol) > 1]
        single = self._symbols.difference(longer)
        for kind, characters in (
            (_SEARCHED, single),
            (_FIRST, firsts.union(symbol[0] for symbol in longer)),
            (_SECOND, seconds.union(symbol[1] for symbol in longer)),
        ):
            kinds[[ord(character) for character in characters]] |= np.uint8(kind)
        return values, kinds

    def map(self, text: str, limit: int) -> tuple[str, int, bool]:
        """Map a text up to a limit. A key or symbol that begins before the limit may end after it.

        Returns the mapped text, the position in `text` up to which it was mapped, and whether the
        mapped text has any character except spaces.
        """
        if self._tables is None:
            return text[:limit], limit, text[:limit].strip(" ") != ""
        # Replace single characters all at once, and find the places that need `_find`.
        values, kinds = self._tables
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        flags = kinds[points]
        begins = flags & _SEARCHED
        begins[:-1] |= flags[:-1] & flags[1:] >> np.uint8(1) & _FIRST
        replaced = values[points[:limit]]
        plain = replaced.tobytes().decode("utf-32-le", "surrogatepass")
        places = np.flatnonzero(begins[:limit])
        if len(places) == 0:
            return plain, limit, plain.strip(" ") != ""
        parts: list[str] = []
        at, has_more = 0, False
        for place in places.tolist():
            if place >= at:
                length, value = self._find(text, place)
                has_more = has_more or value != " "
                parts += plain[at:place], value
                at = place + length
                replaced[place:at] = _SPACE
        parts.append(plain[at:])
        return "".join(parts), max(at, limit), has_more or bool((replaced != _SPACE).any())

    def normalize_all(self, documents: Sequence[str]) -> list[str]:
        """Normalize documents, each as the step `SentencePiece` does; the rules have no suffix."""
        joined = STOP.join(documents)
        mapped, _, _ = self.map(joined, len(joined))
        if self.removes:
            mapped = collapse(mapped)
        found = []
        for document, text in zip(documents, mapped.split(STOP), strict=True):
            if self.removes:
                text = text.removeprefix(" ")
                prefix = self.prefix if text.strip(" ") else ""
                found.append((prefix + text.replace(MARK, " ")).rstrip(" "))
            else:
                prefix = self.prefix if document else ""
                found.append(prefix + text.replace(MARK, " "))
        return found

    def _find(self, text: str, at: int) -> tuple[int, str]:
        """Return the length of the symbol, key or character at position `at`, and its value."""
        for length in self._lengths:
            if text[at : at + length] in self._symbols:
                return length, text[at : at + length]
        length, value = self._charsmap.find(text, at) if self._charsmap else (0, "")
        return (length, value) if length else (1, text[at])


def collapse(text: str) -> str:
    """Replace several spaces in a row by one."""
    if "  " not in text:
        return text
    data = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    is_space = data == _SPACE
    is_kept = np.append(True, ~(is_space[1:] & is_space[:-1]))
    return bytes(data[is_kept]).decode(errors="surrogatepass")
