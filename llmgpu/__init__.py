"""llmgpu: train BPE tokenizers and tokenize text on any GPU, or without one."""

from llmgpu.version import __version__

TYPE_CHECKING = False  # like `typing.TYPE_CHECKING`, without importing typing
if TYPE_CHECKING:
    from llmgpu.tokenizer import (
        Tokenizer,
        as_transformers,
        count_words,
        merge_counts,
        tokenize_part,
    )

__all__ = [
    "Tokenizer",
    "__version__",
    "as_transformers",
    "count_words",
    "merge_counts",
    "tokenize_part",
]


def __getattr__(name: str) -> object:
    """Import the Python API at the first use of a name, so that the command line starts quickly."""
    if name in __all__:
        from llmgpu import tokenizer

        return getattr(tokenizer, name)
    if name in ("encoding_for_model", "get_encoding"):
        raise AttributeError(
            f"module 'llmgpu' has no {name}: use llmgpu.Tokenizer.load(NAME).as_tiktoken()"
        )
    raise AttributeError(f"module 'llmgpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List only the names of the Python API."""
    return sorted(__all__)
