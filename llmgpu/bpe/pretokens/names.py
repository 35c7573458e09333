r"""All patterns by name; see `llmgpu.bpe.pretokens.pattern`.

A rule pattern is declared entirely in this module, by its regular expression. Its kernel and the
CPU engine apply an equivalent rule on characters. The rules are:

Pattern gpt2:

    '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

A character is a letter, a number, white space or other. A pre-token starts

- where the class changes, except after a plain space, which joins any character but white space,
  and except at the letters of a contraction;
- at the last of several white-space characters before something else;
- at a letter after a contraction.

An apostrophe opens a contraction only if a pre-token starts at the apostrophe: after a letter, a
number, white space other than a plain space, or nothing. A byte that is not part of a valid UTF-8
sequence (RFC 3629) is a character of class other.

Patterns cl100k, rustbpe, llama3, qwen2 and nanochat:

    '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
    |\s++$|\s*[\r\n]|\s+(?!\S)|\s+

These patterns differ in how many numbers (\p{N}) a pre-token may have, and only cl100k has the
alternative `\s++$`. The published spellings differ further, without effect: newlines after `\s*`
are the last newlines of the run, and a possessive repetition has nothing that it could give back.

The rule of these patterns follows, and o200k adds to it below. A character is a letter, a number, a
newline (CR or LF), other white space, or other. A pre-token starts where the kind changes, except
that

- letters join one white space before them unless it is a newline, and other characters join a plain
  space before them;
- letters join a single other character before them that starts a pre-token;
- newlines join other characters before them.

In the rest of a run of white space, pre-tokens start at the first character, after the last
newline, and at the last character if this is not a newline and the document goes on. By `\s++$` a
run at the end of a document is never divided. The numbers of a pre-token are counted from the first
of their run. A pre-token also starts at letters after a contraction. An apostrophe opens a
contraction only if a pre-token starts at the apostrophe.

Pattern o200k:

    [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|..)?
    |[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|..)?
    |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+

The rules of cl100k's family apply, and marks are treated as letters. In addition,

- after newlines that belong to other characters, slashes are treated as newlines;
- if other characters make a pre-token, because they are several or follow a plain space, the
  pre-token continues over the marks after them and over any further other characters and marks;
- a contraction after letters or marks belongs to their pre-token. But after a contraction, the
  apostrophe of another contraction begins the next pre-token;
- a pre-token ends before a capital (Lu, Lt) that follows a small letter (Ll), with or without
  letters of other kinds or marks in between. It also ends before capitals that are its last
  letters, if a letter of another kind or a mark is before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmgpu.registry import Entry, Registry

if TYPE_CHECKING:
    from llmgpu.bpe.pretokens.blocks import Pattern

_ROOM = "llmgpu.bpe.pretokens"

# OpenAI's spelling. In Oniguruma, the engine of Hugging Face, {1,3}+ is two repetitions.
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# The fields of each `RulePattern` except its name. The constants are for the kernel and the CPU
# engine. DIGITS: largest number of characters of class number in a pre-token. WHOLE_AT_END: 1 if
# white space at the end of a document is one pre-token, even with newlines in it.
_RULES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "kernel": "gpt2",
        "expression": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        "spellings": {
            "tiktoken": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$"
            r"|\s+(?!\S)|\s"
        },
    },
    "cl100k": {
        "kernel": "cl100k",
        "expression": _CL100K.replace("{1,3}+", "{1,3}"),
        "spellings": {"tiktoken": _CL100K},
        "constants": {"DIGITS": 3, "WHOLE_AT_END": 1},
    },
    "rustbpe": {
        "kernel": "cl100k",
        "expression": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        "constants": {"DIGITS": 3},
    },
    "llama3": {
        "kernel": "cl100k",
        "expression": _SHORT_FORMS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "constants": {"DIGITS": 3},
    },
    "qwen2": {
        "kernel": "cl100k",
        "expression": _SHORT_FORMS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "constants": {"DIGITS": 1},
    },
    "nanochat": {
        "kernel": "cl100k",
        "expression": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        "constants": {"DIGITS": 2},
    },
    "o200k": {
        "kernel": "o200k",
        "expression": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    },
}
PATTERNS: Registry[Pattern] = Registry(
    {
        "class": Entry(f"{_ROOM}.byte_classes:PATTERN"),
        **{
            name: Entry(f"{_ROOM}.blocks:RulePattern", fields={"name": name, **rule})
            for name, rule in _RULES.items()
        },
        "none": Entry(f"{_ROOM}.blocks:NONE"),
    }
)
ALIASES = {"gpt4": "cl100k"}
# Beginnings of the names of custom patterns.
REGEX_PREFIX, SPLITS_PREFIX = "regex:", "splits:"
DEFAULT_PATTERN = "cl100k"
