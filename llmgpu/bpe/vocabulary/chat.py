"""The chat template of a vocabulary, which renders the messages of a conversation as one text.

The format of a vocabulary file has no field for a template, so the training data stores it:
``chat_template`` is the source, and ``chat_tokens`` has the source's special tokens as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgpu.bpe.vocabulary.file import check_text
from llmgpu.errors import VocabularyError
from llmgpu.input_files import quote

SOURCE, TOKENS = "chat_template", "chat_tokens"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template in the language Jinja. Raises VocabularyError if it does not fit in a file.

    source: the template; empty if only the tokens are known and the caller gives the template
        later.
    tokens: texts of special tokens by their names in the template, such as ``eos_token``.
    """

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, text in self.entries().items():
            check_text(f"the {name}", text)

    def __bool__(self) -> bool:
        """Whether there is a source, not only tokens."""
        return bool(self.source)

    def entries(self) -> dict[str, str]:
        """Return the entries of the template in a file's training data."""
        tokens = json.dumps(dict(sorted(self.tokens.items())), ensure_ascii=False)
        source = {SOURCE: self.source} if self.source else {}
        return source | ({TOKENS: tokens} if self.tokens else {})


def take_chat_template(training: dict[str, int | float | str]) -> ChatTemplate | None:
    """Remove the entries of a template from a file's training data, and return the template.

    Returns None if there are no such entries. Raises VocabularyError for entries that
    `ChatTemplate.entries` can't have written.
    """
    source, packed = training.pop(SOURCE, None), training.pop(TOKENS, "{}")
    try:
        tokens = json.loads(str(packed))
    except (ValueError, RecursionError):
        tokens = None
    is_map = isinstance(tokens, dict) and all(isinstance(text, str) for text in tokens.values())
    if not is_map or not isinstance(source, str | None):
        raise VocabularyError(f"damaged: the chat template's tokens are {quote(packed)}")
    return ChatTemplate(source or "", tokens) if source or tokens else None
