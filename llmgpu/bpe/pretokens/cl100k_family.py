"""Patterns cl100k, rustbpe, llama3, qwen2 and nanochat, also as a rule on runs of characters.

    '(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*
    |\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+

They differ in how many numbers a pre-token holds, and only cl100k has the fifth alternative. The
published spellings differ in more, but not in effect: newlines after `\\s*` are the last there are,
and what is possessive could not be given back anyway.

The rule, which the kernel and the CPU engine apply, is largely that of o200k, too. A character is
a letter, a number, a newline (CR or LF), other white space, or other. A pre-token starts where the
kind changes, except that

- white space but a newline is joined by the letters after it, and a plain space by other
  characters too;
- a single other character that starts a pre-token is joined by the letters after it;
- newlines after other characters go with them.

In what is left of a run of white space, pre-tokens start at its first character; after its last
newline; and at its last character if that is not a newline, before anything but the end of the
document. By the fifth alternative a run at the end of a document is never divided. Numbers are
counted from the first of their run. A pre-token also starts at letters after a contraction, which
its apostrophe opens only if a pre-token starts there.
"""

from __future__ import annotations

from llmgpu.bpe.pretokens.blocks import RulePattern


def _variant(
    name: str,
    expression: str,
    *,
    digits: int,
    whole_at_end: bool = False,
    spellings: dict[str, str | None] | None = None,
) -> RulePattern:
    """Return a pattern of the family.

    digits: a pre-token holds up to this many numbers.
    whole_at_end: white space at the end of a document is one pre-token, even with newlines in it.
    """
    return RulePattern(
        name=name,
        expression=expression,
        spellings=spellings or {},
        kernel="cl100k",
        constants={"DIGITS": digits, "WHOLE_AT_END": int(whole_at_end)},
    )


# OpenAI's spelling. In Oniguruma, which Hugging Face uses, {1,3}+ is a repeated repeat instead.
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = _variant(
    "cl100k",
    _CL100K.replace("{1,3}+", "{1,3}"),
    digits=3,
    whole_at_end=True,
    spellings={"tiktoken": _CL100K},
)
RUSTBPE = _variant(
    "rustbpe",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    digits=3,
)
LLAMA3 = _variant(
    "llama3",
    _SHORT_FORMS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    digits=3,
)
QWEN2 = _variant(
    "qwen2",
    _SHORT_FORMS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    digits=1,
)
NANOCHAT = _variant(
    "nanochat",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    digits=2,
)
