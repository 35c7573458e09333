"""The choice of special tokens that a text may spell, and of tokens around documents."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from llmgpu.errors import VocabularyError
from llmgpu.input_files import quote

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

ALL = "all"

Tokens = int | str | tuple[int | str, ...]


class SpecialOptions(NamedTuple):
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
        return not (self.allowed or self.disallowed) and self.bos is None and self.eos is None


NO_SPECIAL_TOKENS = SpecialOptions()


def several(tokens: Tokens | None) -> tuple[int | str, ...]:
    """Return one token, or several tokens in order, as a tuple; () for None."""
    return tokens if isinstance(tokens, tuple) else () if tokens is None else (tokens,)


def ids_around(vocabulary: Vocabulary, options: SpecialOptions) -> tuple[list[int], list[int]]:
    """Return the ids before and after each document; raises the errors of `token_id`."""
    before, after = (
        [token_id(vocabulary, token) for token in several(tokens)]
        for tokens in (options.bos, options.eos)
    )
    return before, after


def token_id(vocabulary: Vocabulary, token: int | str) -> int:
    """Return the id of a token that is given by its id or its text.

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
    """Return the allowed special tokens, and the special tokens whose text is an error."""
    special = vocabulary.special_tokens
    allowed = chosen(vocabulary, options.allowed, special)
    if vocabulary.always_allowed:
        allowed = dict.fromkeys([*allowed, *vocabulary.always_allowed])
    return allowed, chosen(vocabulary, options.disallowed, special.keys() - set(allowed))


def chosen(
    vocabulary: Vocabulary, texts: Collection[str], every: Collection[str]
) -> Collection[str]:
    """Return the special tokens named in `texts`, or `every` if "all" is among them."""
    texts = (texts,) if isinstance(texts, str) else texts
    for text in texts:
        if text != ALL and text not in vocabulary.special_tokens:
            raise VocabularyError(
                f"{quote(text)} is not a special token of this vocabulary; "
                f"{_known_tokens(vocabulary)}"
            )
    return every if ALL in texts else texts


def _known_tokens(vocabulary: Vocabulary) -> str:
    known = list(vocabulary.special_tokens)
    more = f" and {len(known) - 10} more" if len(known) > 10 else ""
    if not known:
        return "it has no special tokens (bpe-train --special-token TEXT adds one)"
    return f"its special tokens are {', '.join(map(repr, known[:10]))}{more}"
