"""Pattern gpt2, also as a rule on characters, which the kernel and the CPU engine apply.

    '(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

A character is a letter, a number, white space or other. A pre-token starts

- where the class changes, except after a plain space, which joins what is not white space, and
  except at the letters of a contraction;
- at the last of several white-space characters before something else;
- at a letter after a contraction.

An apostrophe opens a contraction only if a pre-token starts at it: after a letter, a number, white
space other than a plain space, or nothing. A byte that is not part of a valid UTF-8 sequence (RFC
3629) is a character of class other.
"""

from __future__ import annotations

from llmgpu.bpe.pretokens.blocks import RulePattern

PATTERN = RulePattern(
    name="gpt2",
    expression=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    spellings={
        "tiktoken": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$"
        r"|\s+(?!\S)|\s"
    },
    kernel="gpt2",
)
