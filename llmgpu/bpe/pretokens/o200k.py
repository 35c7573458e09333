"""Pattern o200k, also as a rule on runs of characters, which the kernel and the CPU engine apply.

    [^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|..)?
    |[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|..)?
    |\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+

Pre-tokens are runs as `llmgpu.bpe.pretokens.cl100k_family` has them, where marks count as letters,
and

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

PATTERN = RulePattern(
    name="o200k",
    expression=r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    kernel="o200k",
)
