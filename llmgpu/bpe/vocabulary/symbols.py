"""Symbols of SentencePiece's kind: text becomes symbols, symbols merge, and symbols become ids.

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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import offsets_of
from llmgpu.bpe.pretokens.neighbours import NeighboursPattern, neighbours_of
from llmgpu.bpe.vocabulary.pieces import BYTE, UNKNOWN, UNUSED
from llmgpu.errors import VocabularyError
from llmgpu.input_files import quote

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.pieces import PieceRules

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
        # Number the symbols of the 256 bytes.
        size = len(self.tokens)
        symbols = {bytes([value]): size + value for value in range(256)}
        merges: list[tuple[int, int, int, int]] = []
        # Make each character of several bytes by merges of rank 0. The beginnings of a character,
        # and a character without a token, get new symbols.
        alphabet = {*"".join(self.texts)} if self.rules.ranks else set(self.texts)
        for character in sorted(c for c in alphabet if len(c) == 1):
            data, token = character.encode(), self.texts.get(character)
            if len(data) == 1:
                symbols[data] = symbols[data] if token is None else token
                continue
            for end in range(2, len(data) + 1):
                part = data[:end]
                if part not in symbols:
                    is_token = end == len(data) and token is not None
                    symbols[part] = token if is_token else -1  # type: ignore[assignment]
                    if not is_token:
                        symbols[part] = size + 256 + len(merges)
                    merges.append((symbols[part[:-1]], symbols[part[-1:]], symbols[part], 0))
        # Set the items of all symbols.
        items = [[number] for number in range(size)]
        items += [[] for _ in range(256 + len(merges))]
        for data, symbol in symbols.items():
            if symbol >= size:
                items[symbol] = self._items_of(data)
        # Every byte has a symbol of its own. If the byte is a token, the token is used instead, but
        # `items` needs an entry for the byte's symbol, too.
        for value in range(256):
            items[size + value] = self._items_of(bytes([value]))
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
