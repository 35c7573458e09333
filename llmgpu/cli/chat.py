"""Options about special tokens and conversations, for the commands that tokenize."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import click

from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.vocabulary.chat import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter
from llmgpu.cli.groups import ChatOptions, SpecialTokenOptions, id_or_text
from llmgpu.cli.options import was_given
from llmgpu.input_files import decode_text, naming, read_limited
from llmgpu.text.chat import MESSAGES, Chat
from llmgpu.text.corpus import CorpusOptions
from llmgpu.tokens.conversations import CHAT_TOKENS, Conversations
from llmgpu.tokens.filters import Filter, with_masks


@dataclass(frozen=True)
class EncodingOptions:
    """The options about special tokens and conversations of a command that encodes.

    Raises click.UsageError for options that can't be combined.
    """

    given: SpecialTokenOptions
    chat: ChatOptions

    def __post_init__(self) -> None:
        check_chat(self.chat.chat, self.chat.chat_template, self._special)

    @property
    def _special(self) -> SpecialOptions:
        given = self.given
        around = id_or_text(given.bos), id_or_text(given.eos)
        return SpecialOptions(given.allowed_special, given.disallow_special, *around)

    def special_tokens(self, vocabulary: Vocabulary, report: Reporter) -> SpecialOptions:
        """Return how to encode special tokens, with the tokens around a text if asked for."""
        if self.chat.chat:
            return CHAT_TOKENS
        if not self.given.add_special_tokens:
            return self._special
        if not (vocabulary.prefix_ids or vocabulary.suffix_ids):
            report.note(
                "--add-special-tokens has no effect: the vocabulary adds no tokens around a text"
            )
        return self._special.around(vocabulary)

    def conversations(self, vocabulary: Vocabulary) -> AbstractContextManager[Conversations | None]:
        """Return a context manager: the renderer of conversations with --chat, None without."""
        return Conversations(vocabulary) if self.chat.chat else nullcontext()

    def with_template(self, vocabulary: Vocabulary) -> Vocabulary:
        """Return the vocabulary with the template of --chat-template, if the option was given."""
        return with_chat_template(vocabulary, self.chat.chat_template)


def check_chat(chat: bool, chat_template: str | None, special: SpecialOptions) -> None:
    """Raise click.UsageError for options that exclude --chat or need it."""
    if chat_template is not None and not chat:
        raise click.UsageError("--chat-template needs --chat")
    if chat and (not special.is_plain or was_given("add_special_tokens")):
        raise click.UsageError("--chat takes no special tokens: the chat template writes them")


def with_chat(options: CorpusOptions, chat: Chat | None) -> CorpusOptions:
    """Return options that read conversations, by default from the field `MESSAGES`."""
    if chat is None:
        return options
    is_default = options.text_field == CorpusOptions.text_field
    return replace(options, text_field=MESSAGES if is_default else options.text_field, chat=chat)


def masking(chat: Chat | None, vocabulary: Vocabulary) -> list[Filter]:
    """Return the filter that masks all tokens but the assistant's; none without conversations."""
    return [partial(with_masks, conversations=chat, vocabulary=vocabulary)] if chat else []


def with_chat_template(vocabulary: Vocabulary, path: str | None) -> Vocabulary:
    """Return a vocabulary with the chat template in a file; unchanged if `path` is None."""
    if path is None:
        return vocabulary
    from llmgpu.bpe.interchange.huggingface import name_tokens

    with naming(path):
        source = decode_text(read_limited(path))
        return replace(vocabulary, chat=ChatTemplate(source, name_tokens(vocabulary)))
