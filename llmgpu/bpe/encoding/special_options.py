"""Options of callers: special tokens that a text may spell, and tokens around documents."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

ALL = "all"

Tokens = int | str | tuple[int | str, ...]


@dataclass(frozen=True)
class SpecialOptions:
    """The special tokens that a text may spell, and the tokens around its documents.

    allowed: special tokens whose text becomes their id; "all" for all.
    disallowed: special tokens whose text is an error; "all" for all that are not allowed.
    bos, eos: put before and after each document: an id, the text of a special token, the text of
        exactly one ordinary token, or several of these.
    """

    allowed: Collection[str] = ()
    disallowed: Collection[str] = ()
    bos: Tokens | None = None
    eos: Tokens | None = None

    def around(self, vocabulary: Vocabulary) -> SpecialOptions:
        """Add the tokens that a vocabulary puts around texts to the tokens around documents."""
        bos = *several(self.bos), *vocabulary.prefix_ids
        eos = *vocabulary.suffix_ids, *several(self.eos)
        one_or_more = ((each if len(each) > 1 else next(iter(each), None)) for each in (bos, eos))
        return SpecialOptions(self.allowed, self.disallowed, *one_or_more)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to do."""
        no_text = not self.allowed and not self.disallowed
        return no_text and self.bos is None and self.eos is None


NO_SPECIAL_TOKENS = SpecialOptions()


def several(tokens: Tokens | None) -> tuple[int | str, ...]:
    """Return the tokens as a tuple, None as an empty one."""
    return tokens if isinstance(tokens, tuple) else () if tokens is None else (tokens,)
