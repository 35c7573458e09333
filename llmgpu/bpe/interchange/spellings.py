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

_LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

_GPT2_TIKTOKEN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K_TIKTOKEN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_RUSTBPE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_LLAMA3 = (
    _SHORT_FORMS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}*{_LETTERS[1]}+{_SHORT_FORMS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}+{_LETTERS[1]}*{_SHORT_FORMS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLASS = (
    r" *[^\x00-@\[-\x60\{-\x7F]+| *[0-9]+| +|\n"
    r"|[\x00-\x09\x0B-\x1F!-/:-@\[-\x60\{-\x7F]+"
)

# What export writes, by name.
_COMMON = {
    "class": _CLASS,
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "rustbpe": _RUSTBPE,
    "nanochat": _RUSTBPE.replace("{1,3}", "{1,2}"),
    "llama3": _LLAMA3,
    "qwen2": _LLAMA3.replace("{1,3}", ""),
    "o200k": _O200K,
}
TIKTOKEN = _COMMON | {"gpt2": _GPT2_TIKTOKEN, "cl100k": _CL100K_TIKTOKEN, "none": r"[\s\S]+"}
HUGGINGFACE = _COMMON | {"cl100k": _CL100K_TIKTOKEN.replace("{1,3}+", "{1,3}")}

# What import takes besides.
_HUGGINGFACE_NAMES = {expression: name for name, expression in HUGGINGFACE.items()} | {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    _GPT2_TIKTOKEN: "gpt2",
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
