"""The Python API: text to ids, and back.

::

    from llmgpu import Tokenizer

    tokenizer = Tokenizer.load("v.bin")
    ids = tokenizer.encode("hello world")  # uint32 (n,)
    tokenizer.decode(ids)  # "hello world"

Errors are `llmgpu.errors.LlmgpuError`; their messages name arguments, not command-line options.
"""

from llmgpu.tokenizer.parts import count_words, merge_counts, tokenize_part
from llmgpu.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "count_words", "merge_counts", "tokenize_part"]
