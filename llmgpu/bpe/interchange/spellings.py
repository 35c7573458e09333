r"""The patterns as other tools' regular expressions spell them.

- A spelling goes to the name whose behaviour it has, not to that of the model it was found with.
  tokenizer.json files of cl100k have the expression of Llama 3: it divides white space that ends a
  text after its last newline, where OpenAI's, with ``\s++$``, does not.
- The engines differ. In Oniguruma, which Hugging Face uses, ``{1,3}+`` is a repeated repeat, not a
  possessive one: OpenAI's spelling of cl100k means something else there, and is not accepted.
- The patterns that are published over bytes are spelled over characters here; on valid UTF-8, and
  others take no other text, that is the same.
"""

from __future__ import annotations

from llmgpu.bpe.pretokens.pattern import PATTERNS
from llmgpu.errors import VocabularyError

_SHOWN = 400  # characters of an expression in a message


def _spellings(engine: str) -> dict[str, str]:
    """Return how an engine spells the patterns, by name; those that it can't are left out."""
    found = {name: p.spellings.get(engine, p.expression) for name, p in PATTERNS.items()}
    return {name: expression for name, expression in found.items() if expression is not None}


# What export writes, by name.
TIKTOKEN, HUGGINGFACE = _spellings("tiktoken"), _spellings("huggingface")

# What import takes besides.
_HUGGINGFACE_NAMES = {expression: name for name, expression in HUGGINGFACE.items()} | {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    TIKTOKEN["gpt2"]: "gpt2",
}


def name_of_huggingface(expression: str) -> str:
    """Return the pattern that Hugging Face's engine runs for `expression`; VocabularyError if none.

    It is a name in PATTERNS.
    """
    name = _HUGGINGFACE_NAMES.get(expression)
    if name is None or name not in PATTERNS:
        shown = expression if len(expression) <= _SHOWN else f"{expression[:_SHOWN]}..."
        shown = repr(shown).replace("\\\\", "\\")  # as it would be typed
        raise VocabularyError(f"the expression {shown} is that of no known pattern")
    return name


def expression_of(pattern: str, engine: dict[str, str]) -> str:
    """Return how an engine, TIKTOKEN or HUGGINGFACE, spells a pattern; VocabularyError if none."""
    if pattern not in engine:
        raise VocabularyError(f"the pattern {pattern!r} has no spelling for other tools")
    return engine[pattern]
