"""A `tiktoken.Encoding` that encodes in llmgpu, with tiktoken's results and errors.

tiktoken's own code still decodes and looks up single tokens, because its Rust code is as fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

from llmgpu.bpe.interchange.tiktoken import to_tiktoken
from llmgpu.bpe.interchange.token_tables import require_package
from llmgpu.errors import InputError

tiktoken = require_package("tiktoken")
Encoding: Any = tiktoken.Encoding


class FastEncoding(Encoding):  # type: ignore[misc]
    """An encoding whose ``encode`` methods run in llmgpu; see `as_fast_tiktoken`."""

    _tokenizer: Any  # a Tokenizer; its module imports this one, so this one can't import it

    def encode(self, text: str, **special: Any) -> Any:
        """Return the ids of a text as tiktoken does: a list of int.

        special: ``allowed_special`` and ``disallowed_special``.

        Raises ValueError if the text spells a disallowed special token.
        """
        allowed, disallowed = self._sets(**special)
        text = _checked(text, disallowed)
        return self._tokenizer.encode(text, dtype=list, allowed_special=allowed)

    def encode_ordinary(self, text: str) -> Any:
        """Return the ids of a text, a list of int; special tokens are encoded as ordinary text."""
        return self._tokenizer.encode(_checked(text), dtype=list)

    def encode_to_numpy(self, text: str, **special: Any) -> Any:
        """Return the ids of a text as `encode` does: uint32 (n,), read-only."""
        allowed, disallowed = self._sets(**special)
        # Raises tiktoken's UnicodeEncodeError for surrogates.
        _checked(text, disallowed).encode()
        ids = self._tokenizer.encode(text, dtype="uint32", allowed_special=allowed)
        ids.setflags(write=False)
        return ids

    def encode_batch(self, text: Iterable[str], *, num_threads: int = 8, **special: Any) -> Any:
        """Return the ids of several texts as `encode` does; num_threads: without effect."""
        allowed, disallowed = self._sets(**special)
        texts = [_checked(each, disallowed) for each in text]
        return self._tokenizer.encode_batch(texts, dtype=list, allowed_special=allowed)

    def encode_ordinary_batch(self, text: Iterable[str], *, num_threads: int = 8) -> Any:
        """Return the ids of texts as `encode_ordinary` does; num_threads: without effect."""
        return self._tokenizer.encode_batch([_checked(each) for each in text], dtype=list)

    def encode_with_unstable(self, text: str, **_named: Any) -> Any:
        """Raise InputError, because only tiktoken's own code can find unstable tokens."""
        raise InputError("encode_with_unstable is tiktoken's alone: use as_tiktoken() without fast")

    def _sets(
        self, allowed_special: Any = frozenset(), disallowed_special: Any = "all"
    ) -> tuple[AbstractSet[str], frozenset[str]]:
        every = self.special_tokens_set
        allowed = every if allowed_special == "all" else allowed_special
        disallowed = every - allowed if disallowed_special == "all" else disallowed_special
        return every & {*allowed}, frozenset(disallowed)

    def __reduce__(self) -> Any:
        return as_fast_tiktoken, (self._tokenizer, self.name)


def _checked(text: Any, disallowed: frozenset[str] = frozenset()) -> str:
    """Return `text`; tiktoken's ValueError if it spells a disallowed special token."""
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
