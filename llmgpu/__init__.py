"""llmgpu: train BPE tokenizers and tokenize text on any GPU, or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgpu.version import __version__

if TYPE_CHECKING:
    from llmgpu.tokenizer import Tokenizer

__all__ = ["Tokenizer", "__version__"]


def __getattr__(name: str) -> object:
    """Import `Tokenizer` on demand, which keeps the command line quick to start."""
    if name == "Tokenizer":
        from llmgpu.tokenizer import Tokenizer

        return Tokenizer
    raise AttributeError(f"module 'llmgpu' has no attribute {name!r}")
