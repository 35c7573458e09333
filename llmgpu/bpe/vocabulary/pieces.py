"""Vocabularies of SentencePiece's kind, whose tokens consist of characters: rules and symbols.

Such a vocabulary has the pattern ``none``, and finds tokens by merging pairs. Its tokens have a
space where the model's file has U+2581. The normalizer changes U+2581 in texts to a space, too.
Each id has a kind, numbered as in SentencePiece's files. Text becomes symbols, symbols merge, and
symbols become ids.

A word starts as a symbol for each byte. Merges of rank 0 come first, and make the characters of the
vocabulary byte after byte. No two merges of rank 0 compete for a byte. Then characters merge to
tokens, lowest rank first, and of equal ranks leftmost first. Symbols below the vocabulary's size
are tokens. The other symbols are bytes, beginnings of characters, and characters that occur only
inside tokens.

- By ranks (SentencePiece's own files), two neighbours merge if together they spell a token. So
  every way to cut a token into two tokens or characters is a pair. Characters without a token
  merge, too.
- By a list (tokenizer.json), exactly the listed pairs merge. A character without a token is not a
  symbol: its bytes never merge.
- In the end each symbol is replaced by its items. The item of a token is its id. The items of an
  unused token are the items of the pair that made it. An unused character is treated like a
  character without a token. A vocabulary is refused if several pairs can make an unused token,
  because SentencePiece then replaces the token by the last pair that it considered anywhere in the
  text.
- The items of any other symbol are the tokens of its bytes. Without byte tokens, a character
  becomes the unknown token. The bytes of the character may be in several symbols, so an item for
  the beginning of a character says how many of the character's bytes are missing. In text that is
  not UTF-8, a byte that belongs to no character is treated as a character.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import offsets_of
from llmgpu.bpe.pretokens.neighbours import NeighboursPattern, neighbours_of
from llmgpu.errors import VocabularyError
from llmgpu.forking import cached_property
from llmgpu.input_files import quote

ABSENT, NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(7)
SPACE_MARK = "\u2581"  # a space, as the files of models write it
# Characters of the longest token. The length is limited, because all ways to cut a token in two are
# tried.
LONGEST_PIECE = 1024
DECODERS = ("", "first", "each", "token")
_MOST_RANK = 1 << 31


@dataclass(frozen=True)
class PieceRules:
    """The rules of a vocabulary of SentencePiece's kind.

    kinds: a byte for each id. Tokens of kind USER are found in all texts, and tokens of kind
        CONTROL only where a caller allows them.
    ranks: little-endian 32-bit ranks by id. Two neighbours that together spell a token merge, the
        token of the lowest rank first. If `ranks` is empty, the vocabulary's merges apply in order.
    fuses: whether unknown characters in a row become one id.
    splits: whether a Metaspace cuts text before each space. If so, a token may begin with a space
        but has no space after that, and merges that would make such tokens are left out.
    decoder: which spaces are dropped at the start of a decoded text. "": none; "first": the first
        space; "each": the first space of each token, up to the first token with other text;
        "token": all spaces of the first token.
    marked: ids of special tokens that texts spell with U+2581 for each space.
    """

    kinds: bytes
    ranks: bytes = b""
    fuses: bool = False
    splits: bool = False
    decoder: str = ""
    marked: tuple[int, ...] = ()

    def entries(self) -> dict[str, bytes | str]:
        """Return the entries of the rules in a vocabulary file."""
        rules = {name: getattr(self, name) for name in ("decoder", "fuses", "marked", "splits")}
        return {
            "piece_kinds": self.kinds,
            "piece_ranks": self.ranks,
            "piece_rules": json.dumps(rules, separators=(",", ":")),
        }

    @classmethod
    def of_entries(cls, entries: Mapping[str, Any]) -> PieceRules:
        """Return the rules that a vocabulary file stores; VocabularyError for damaged entries."""
        try:
            rules = json.loads(entries["piece_rules"])
            marked = tuple(rules.pop("marked"))
            made = cls(entries["piece_kinds"], entries["piece_ranks"], marked=marked, **rules)
            if made.entries() != dict(entries):
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise VocabularyError("damaged: piece_rules are not rules of pieces") from error
        return made

    @property
    def has_bytes(self) -> bool:
        """Whether single bytes have tokens (byte fallback)."""
        return bytes([BYTE]) in self.kinds

    def ids_of(self, *kinds: int) -> list[int]:
        """Return the ids of the given kinds, ascending."""
        every = np.frombuffer(self.kinds, np.uint8)
        found: list[int] = np.flatnonzero(np.isin(every, kinds)).tolist()
        return found

    @property
    def text_kinds(self) -> tuple[int, ...]:
        """The kinds of tokens that merging may produce."""
        return (NORMAL, UNUSED) if self.ranks else (NORMAL, UNUSED, USER)

    def literal(self, token: int, text: str) -> str:
        """Return the spelling of a special token in texts.

        token: the id. text: the token's bytes, decoded. If the id is in `marked`, the result has
        U+2581 for each space.
        """
        return text.replace(" ", SPACE_MARK) if token in self.marked else text

    def check(self, tokens: Sequence[bytes], unknown: int | None) -> None:
        """Raise VocabularyError unless the rules fit the tokens.

        unknown: id of the unknown token, or None.
        """
        size = len(tokens)
        if len(self.kinds) != size or max(self.kinds) > BYTE:
            raise VocabularyError(f"{len(self.kinds)} kinds of pieces, 0 to {BYTE}, for {size} ids")
        if self.ranks and (
            len(self.ranks) != 4 * size or int(np.frombuffer(self.ranks, "<u4").max()) >= _MOST_RANK
        ):
            raise VocabularyError(f"the ranks of pieces are not {size} numbers below {_MOST_RANK}")
        if self.decoder not in DECODERS:
            raise VocabularyError(f"unknown decoder {self.decoder!r} of pieces")
        if not all(type(number) is int and 0 <= number < size for number in self.marked):
            raise VocabularyError("the marked pieces are not ids")
        stand_for = [tokens[number] for number in self.ids_of(BYTE)]
        # A byte needs no byte token if it is an ASCII character that is a token.
        every = {bytes([value]) for value in range(256)}
        known = every.intersection(tokens[number] for number in self.ids_of(*self.text_kinds))
        if stand_for and (len({*stand_for}) < len(stand_for) or known.union(stand_for) != every):
            raise VocabularyError("there are byte tokens, but not one for each of the 256 bytes")
        if not stand_for and unknown is None:
            raise VocabularyError("there are neither byte tokens nor an unknown token")
        for number in self.ids_of(*self.text_kinds):
            try:
                length = len(tokens[number].decode())
            except UnicodeDecodeError as error:
                raise VocabularyError(f"the piece {number} is not UTF-8") from error
            if not 0 < length <= LONGEST_PIECE:
                raise VocabularyError(
                    f"the piece {number} has {length} characters: 1 to {LONGEST_PIECE} are possible"
                )


def drop_spaces(decoder: str, tokens: Sequence[bytes], keeps: Sequence[bool]) -> list[bytes]:
    """Return the tokens at the start of a document without the spaces that the decoder drops.

    decoder: see `PieceRules`. keeps: for each token, whether it keeps its spaces, as the unknown
    token does.
    """
    kept = list(tokens)
    for number, token in enumerate(kept):
        if keeps[number]:
            break
        if decoder == "token":
            kept[number] = token.replace(b" ", b"")
            break
        kept[number] = token.removeprefix(b" ")
        if kept[number] or decoder == "first":
            break
    return kept


_CONTINUES = 4  # the item of a continuation byte is the vocabulary's size plus this number


def _missing(data: bytes) -> int:
    """Return the item for bytes of an unknown character, minus the vocabulary's size.

    data: the first bytes of a character, or one of its other bytes. For first bytes, the result is
    the number of bytes that are missing after them, 0 for a whole character or an invalid byte. For
    another byte, the result is _CONTINUES.
    """
    lead = data[0]
    if 0x80 <= lead < 0xC0:
        return _CONTINUES
    length = next((n for n, first in ((4, 0xF0), (3, 0xE0), (2, 0xC2)) if lead >= first), 1)
    return max(0, length - len(data)) if lead < 0xF5 else 0


@dataclass(frozen=True, eq=False)
class PieceSymbols:
    """The symbols of a vocabulary of SentencePiece's kind.

    rules: rules without errors. tokens: the bytes of each id. listed: the vocabulary's merges,
    uint32 (M, 3). unknown: the unknown token's id. whole: whether a text that spells a token
    becomes this token without merging.
    """

    tokens: tuple[bytes, ...]
    listed: NDArray[np.uint32]
    rules: PieceRules
    unknown: int | None
    whole: bool

    @cached_property
    def texts(self) -> Mapping[str, int]:
        """The ids of tokens that merging may produce, by text; for equal texts the lowest id."""
        texts: dict[str, int] = {}
        for number in self.rules.ids_of(*self.rules.text_kinds):
            text = self.tokens[number].decode()
            if not (self.rules.splits and " " in text[1:]):
                texts.setdefault(text, number)
        return texts

    @cached_property
    def whole_tokens(self) -> dict[bytes, int]:
        """The ids of tokens that a whole text may become without merging, by the text's bytes."""
        if not self.whole:
            return {}
        found = {text.encode(): number for text, number in self.texts.items()}
        for number in self.rules.ids_of(BYTE):
            found.setdefault(f"<0x{self.tokens[number][0]:02X}>".encode(), number)
        for number in self.rules.ids_of(UNKNOWN):
            found.setdefault(self.tokens[number], number)
        return found

    @cached_property
    def pattern(self) -> NeighboursPattern:
        """The pattern that cuts text between two characters that are neighbours in no token."""
        fuses = self.rules.fuses and not self.rules.ids_of(BYTE)
        unused = set(self.rules.ids_of(UNUSED))
        known = [
            text for text, number in self.texts.items() if len(text) == 1 and number not in unused
        ]
        return NeighboursPattern(
            bits=neighbours_of([*self.texts], known if fuses else None, nowhere=self.whole)
        )

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        return {self.tokens[number][0]: number for number in self.rules.ids_of(BYTE)}

    @cached_property
    def _made(self) -> tuple[dict[bytes, int], NDArray[np.uint32], list[list[int]]]:
        """The symbols of bytes and characters by their bytes; the merges; the items of each symbol.

        Merges are uint32 (n, 4): left and right symbol, result, rank.
        """
        # Every byte has a symbol of its own. If the byte is a token, the token is used instead.
        size = len(self.tokens)
        symbols = {bytes([value]): size + value for value in range(256)}
        items = [[number] for number in range(size)] + [self._items_of(byte) for byte in symbols]
        merges: list[tuple[int, int, int, int]] = []
        # Make each character of several bytes by merges of rank 0. The beginnings of a character,
        # and a character without a token, get new symbols.
        alphabet = {*"".join(self.texts)} if self.rules.ranks else set(self.texts)
        for character in sorted(c for c in alphabet if len(c) == 1):
            data, token = character.encode(), self.texts.get(character)
            if len(data) == 1 and token is not None:
                symbols[data] = token
            for end in range(2, len(data) + 1):
                part = data[:end]
                if part in symbols:
                    continue
                if end == len(data) and token is not None:
                    symbols[part] = token
                else:
                    symbols[part] = len(items)
                    items.append(self._items_of(part))
                merges.append((symbols[part[:-1]], symbols[part[-1:]], symbols[part], 0))
        # Add the merges that make tokens.
        if self.rules.ranks:
            self._rank_cuts(symbols, merges, items)
        else:
            texts = {number: text for text, number in self.texts.items()}
            merges += (
                (left, right, result, rank)
                for rank, (left, right, result) in enumerate(self.listed.tolist(), 1)
                if result in texts and left in texts and right in texts
            )
        return symbols, np.array(merges, np.uint32).reshape(-1, 4), items

    def _items_of(self, data: bytes) -> list[int]:
        if self._byte_ids:
            # A byte without a byte token is a character that has a token, so no text has its
            # symbol.
            return [self._byte_ids[byte] for byte in data if byte in self._byte_ids]
        return [len(self.tokens) + _missing(data)]

    def _rank_cuts(
        self,
        symbols: dict[bytes, int],
        merges: list[tuple[int, int, int, int]],
        items: list[list[int]],
    ) -> None:
        """Append a merge for every way to cut a token into two symbols to `merges`.

        symbols: symbols of bytes and characters. items: receives the items of unused tokens. Raises
        VocabularyError if several pairs can make an unused token.
        """
        # known: by text, the symbols of tokens, and of characters without a token.
        ranks = np.frombuffer(self.rules.ranks, "<u4").tolist()
        known = dict(self.texts)
        for text in {*"".join(self.texts)}:
            known.setdefault(text, symbols[text.encode()])
        unused = set(self.rules.ids_of(UNUSED))
        for text, number in sorted(self.texts.items(), key=lambda item: (len(item[0]), item[1])):
            first = len(merges)
            if number in unused and len(text) == 1:
                items[number] = self._items_of(text.encode())
            for cut in range(1, len(text)):
                left, right = known.get(text[:cut]), known.get(text[cut:])
                if left is not None and right is not None:
                    merges.append((left, right, number, ranks[number] + 1))
            if number in unused and len(merges) > first:
                if len(merges) > first + 1:
                    what = f"the unused piece {quote(text)} can be made of several pairs"
                    raise VocabularyError(f"{what}: its ids would depend on the text around it")
                left, right, _, _ = merges[first]
                items[number] = items[left] + items[right]

    @cached_property
    def byte_symbols(self) -> NDArray[np.uint32]:
        """The symbol of each byte, uint32 (256,)."""
        symbols, _, _ = self._made
        return np.array([symbols[bytes([value])] for value in range(256)], np.uint32)

    @property
    def merges(self) -> NDArray[np.uint32]:
        """The pairs that merge, uint32 (n, 4): left and right symbol, result and rank."""
        return self._made[1]

    @cached_property
    def firsts(self) -> NDArray[np.uint32]:
        """The index in `items` of each symbol's first item, then the end.

        uint32 (symbols + 1,).
        """
        lengths = np.array([len(each) for each in self._made[2]], np.int64)
        return offsets_of(lengths).astype(np.uint32)

    @cached_property
    def items(self) -> NDArray[np.uint32]:
        """The items of all symbols, uint32: an id, or the vocabulary's size plus `_missing`."""
        return np.array([item for each in self._made[2] for item in each], np.uint32)
