"""A `tiktoken.Encoding` that encodes in llmgpu, with the same results and errors.

Decoding and looking up single tokens stay tiktoken's own: its Rust code is as fast.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Literal

from llmgpu.bpe.interchange.tiktoken import to_tiktoken
from llmgpu.bpe.interchange.token_tables import require_package
from llmgpu.errors import InputError

tiktoken = require_package("tiktoken")
Texts = Literal["all"] | AbstractSet[str]

_NONE: AbstractSet[str] = frozenset()


class FastEncoding(tiktoken.Encoding):  # type: ignore[misc]
    """An encoding whose ``encode`` methods run in llmgpu; see `as_fast_tiktoken`."""

    _tokenizer: Any  # a Tokenizer, whose module imports this one

    def encode(
        self,
        text: str,
        *,
        allowed_special: Texts = _NONE,
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> list[int]:
        """Return the ids of a text, as tiktoken does.

        Raises ValueError if the text spells a disallowed special token.
        """
        allowed, disallowed = self._sets(allowed_special, disallowed_special)
        text = _checked(text, disallowed)
        ids: list[int] = self._tokenizer.encode(text, dtype=list, allowed_special=allowed)
        return ids

    def encode_ordinary(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""
        ids: list[int] = self._tokenizer.encode(_checked(text), dtype=list)
        return ids

    def encode_to_numpy(
        self,
        text: str,
        *,
        allowed_special: Texts = _NONE,
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> Any:
        """Return the ids of a text as `encode` does: uint32 (n,), read-only."""
        allowed, disallowed = self._sets(allowed_special, disallowed_special)
        _checked(text, disallowed).encode()  # UnicodeEncodeError for surrogates, as in tiktoken
        ids = self._tokenizer.encode(text, allowed_special=allowed)
        ids.setflags(write=False)
        return ids

    def encode_batch(
        self,
        text: Iterable[str],
        *,
        num_threads: int = 8,
        allowed_special: Texts = _NONE,
        disallowed_special: Literal["all"] | Collection[str] = "all",
    ) -> list[list[int]]:
        """Return the ids of several texts; num_threads: not used."""
        allowed, disallowed = self._sets(allowed_special, disallowed_special)
        texts = [_checked(each, disallowed) for each in text]
        batch: list[list[int]] = self._tokenizer.encode_batch(
            texts, dtype=list, allowed_special=allowed
        )
        return batch

    def encode_ordinary_batch(
        self, text: Iterable[str], *, num_threads: int = 8
    ) -> list[list[int]]:
        """Return the ids of several texts as `encode_ordinary` does; num_threads: not used."""
        texts = [_checked(each) for each in text]
        batch: list[list[int]] = self._tokenizer.encode_batch(texts, dtype=list)
        return batch

    def encode_with_unstable(self, text: str, **_named: Any) -> Any:
        """Raise InputError."""
        raise InputError("encode_with_unstable is tiktoken's alone: use as_tiktoken() without fast")

    def _sets(
        self, allowed: Texts, disallowed: Literal["all"] | Collection[str]
    ) -> tuple[AbstractSet[str], frozenset[str]]:
        every = self.special_tokens_set
        chosen: AbstractSet[str] = every if allowed == "all" else allowed  # type: ignore[assignment]
        if disallowed == "all":
            disallowed = every - chosen
        return every & {*chosen}, frozenset(disallowed)

    def __reduce__(self) -> Any:
        return as_fast_tiktoken, (self._tokenizer, self.name)


def _checked(text: Any, disallowed: frozenset[str] = frozenset()) -> str:
    """Return a str that spells no disallowed special token; tiktoken's ValueError if it does."""
    if not isinstance(text, str):
        raise TypeError(f"a text is a str, not {type(text).__name__}")
    if disallowed and (found := _search(disallowed).search(text)):
        tiktoken.core.raise_disallowed_special_token(found[0])
    return text


@lru_cache(maxsize=128)
def _search(texts: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def as_fast_tiktoken(tokenizer: Any, name: str) -> FastEncoding:
    """Return an encoding that encodes with a `Tokenizer`.

    Raises VocabularyError if ranks can't give the same ids.
    """
    made: FastEncoding = to_tiktoken(tokenizer.vocabulary, name, FastEncoding)
    made._tokenizer = tokenizer
    return made
