"""Options about the special tokens that a text may spell, and about tokens around documents."""

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

    allowed: special tokens whose text is encoded as their id; "all" for all special tokens.
    disallowed: special tokens whose text is an error; "all" for all that are not allowed.
    bos, eos: the tokens before and after each document. A token is given by its id, by the text of
        a special token, or by a text that is exactly one ordinary token. A tuple gives several
        tokens.
    """

    allowed: Collection[str] = ()
    disallowed: Collection[str] = ()
    bos: Tokens | None = None
    eos: Tokens | None = None

    def around(self, vocabulary: Vocabulary) -> SpecialOptions:
        """Return the options with the vocabulary's `prefix_ids` and `suffix_ids` added.

        These ids stand between the text and the tokens of `bos` and `eos`.
        """
        bos = *several(self.bos), *vocabulary.prefix_ids
        eos = *vocabulary.suffix_ids, *several(self.eos)
        one_or_more = ((each if len(each) > 1 else next(iter(each), None)) for each in (bos, eos))
        return SpecialOptions(self.allowed, self.disallowed, *one_or_more)

    @property
    def is_plain(self) -> bool:
        """Whether all fields are empty."""
        no_text = not self.allowed and not self.disallowed
        return no_text and self.bos is None and self.eos is None


NO_SPECIAL_TOKENS = SpecialOptions()


def several(tokens: Tokens | None) -> tuple[int | str, ...]:
    """Return one token, or several tokens in order, as a tuple; () for None."""
    return tokens if isinstance(tokens, tuple) else () if tokens is None else (tokens,)
