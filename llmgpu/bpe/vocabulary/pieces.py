"""The rules of vocabularies of SentencePiece's kind, whose tokens consist of characters.

Such a vocabulary has the pattern ``none``, and finds tokens by merging pairs. Its tokens have a
space where the model's file has U+2581. The normalizer changes U+2581 in texts to a space, too.
Each id has a kind, numbered as in SentencePiece's files. `llmgpu.bpe.vocabulary.symbols` explains
how text becomes ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmgpu.errors import VocabularyError

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
