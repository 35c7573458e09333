"""The Python API: `Tokenizer` turns text into ids, and ids into text.

::

    from llmgpu import Tokenizer

    tokenizer = Tokenizer.load("v.bin")
    ids = tokenizer.encode("hello world")  # uint32 (n,)
    tokenizer.decode(ids)  # "hello world"

Errors are `llmgpu.errors.LlmgpuError`; their messages name arguments, not command-line options.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeVar

from llmgpu.errors import VocabularyError
from llmgpu.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llmgpu.tokenizer.jobs import count_words, merge_counts, tokenize_part

__all__ = ["Tokenizer", "as_transformers", "count_words", "merge_counts", "tokenize_part"]

Peer = TypeVar("Peer")


def as_transformers(tokenizer: Peer, strict: bool = True) -> Peer:
    """Return a copy of a fast tokenizer of transformers 5 that encodes and decodes in llmgpu.

    The copy's class is a subclass of the tokenizer's class, and its results equal the results of
    the tokenizer exactly. Calls that llmgpu can't do exactly run in transformers' own code.

    strict: if False, a tokenizer that llmgpu can't replace is returned itself, with a warning
    instead of a VocabularyError.

    Raises VocabularyError, with the reason, for a tokenizer whose ids llmgpu can't give exactly,
    and for another version of transformers; TypeError for any other object.
    """
    try:
        from llmgpu.tokenizer.fast_transformers import wrap

        made: Peer = wrap(tokenizer)
        return made
    except VocabularyError as error:
        if strict:
            raise
        warnings.warn(f"the tokenizer stays as it is: {error}", stacklevel=2)
        return tokenizer


def __getattr__(name: str) -> object:
    """Import `llmgpu.tokenizer.jobs` when it is first used, so that `Tokenizer` imports fast."""
    if name in __all__:
        from llmgpu.tokenizer import jobs

        return getattr(jobs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
