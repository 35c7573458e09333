r"""The published patterns that are rules on characters: gpt2, the family of cl100k, and o200k.

Each pattern is a regular expression. Its kernel and the CPU engine apply an equivalent rule, below.

Pattern gpt2:

    '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

A character is a letter, a number, white space or other. A pre-token starts

- where the class changes, except after a plain space, which joins what is not white space, and
  except at the letters of a contraction;
- at the last of several white-space characters before something else;
- at a letter after a contraction.

An apostrophe opens a contraction only if a pre-token starts at it: after a letter, a number, white
space other than a plain space, or nothing. A byte that is not part of a valid UTF-8 sequence (RFC
3629) is a character of class other.

Patterns cl100k, rustbpe, llama3, qwen2 and nanochat:

    '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
    |\s++$|\s*[\r\n]|\s+(?!\S)|\s+

They differ in how many numbers a pre-token holds, and only cl100k has the fifth alternative. The
published spellings differ in more, but not in effect: newlines after `\s*` are the last there are,
and what is possessive could not be given back anyway.

The rule is largely that of o200k, too. A character is
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

Pattern o200k:

    [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|..)?
    |[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|..)?
    |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+

Pre-tokens are runs as in the family of cl100k, where marks count as letters, and

- slashes after newlines that go with other characters count as newlines;
- where other characters make a pre-token, because they are several or follow a plain space, the
  marks after them and the other characters and marks that follow go with them;
- a contraction after letters or marks goes with them, unless it is after another one: then its
  apostrophe begins the next word;
- a word is divided before a capital (Lu, Lt) that follows a small letter (Ll), with letters of
  other kinds or marks in between or not; and before capitals at its end if a letter of another kind
  or a mark is before them.
"""

from __future__ import annotations

from llmgpu.bpe.pretokens.blocks import RulePattern

GPT2 = RulePattern(
    name="gpt2",
    expression=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    spellings={
        "tiktoken": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$"
        r"|\s+(?!\S)|\s"
    },
    kernel="gpt2",
)


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


O200K = RulePattern(
    name="o200k",
    expression=r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    kernel="o200k",
)
