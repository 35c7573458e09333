"""The Python API: text to ids, and back.

::

    from llmgpu import Tokenizer

    tokenizer = Tokenizer.load("v.bin")
    ids = tokenizer.encode("hello world")  # uint32 (n,)
    tokenizer.decode(ids)  # "hello world"

Errors are `llmgpu.errors.LlmgpuError`; their messages name arguments, not command-line options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgpu.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llmgpu.tokenizer.jobs import count_words, merge_counts, tokenize_part

__all__ = ["Tokenizer", "count_words", "merge_counts", "tokenize_part"]


def __getattr__(name: str) -> object:
    """Import the calls for parts of a job on demand: a tokenizer alone is imported sooner."""
    if name in __all__:
        from llmgpu.tokenizer import jobs

        return getattr(jobs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
