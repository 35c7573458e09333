"""What --chat and --chat-template mean for the commands that tokenize."""

from __future__ import annotations

from dataclasses import replace

import click

from llmgpu.bpe.encoding.special_encoding import SpecialOptions
from llmgpu.bpe.vocabulary.chat import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.given import was_given
from llmgpu.input_files import decode_text, naming, read_limited
from llmgpu.text.chat import MESSAGES, Chat
from llmgpu.text.corpus import CorpusOptions


def check_chat(chat: bool, template: str | None, special: SpecialOptions) -> None:
    """Raise click.UsageError for options that can't be combined with --chat, or need it."""
    if template is not None and not chat:
        raise click.UsageError("--chat-template needs --chat")
    if chat and (not special.is_plain or was_given("add_special_tokens")):
        raise click.UsageError("--chat takes no special tokens: the chat template writes them")


def with_chat(options: CorpusOptions, chat: Chat | None) -> CorpusOptions:
    """Return how conversations are read; their messages are in a field of that name by default."""
    if chat is None:
        return options
    is_default = options.text_field == CorpusOptions.text_field
    return replace(options, text_field=MESSAGES if is_default else options.text_field, chat=chat)


def with_chat_template(vocabulary: Vocabulary, path: str | None) -> Vocabulary:
    """Return a vocabulary with the chat template in a file; None: with its own."""
    if path is None:
        return vocabulary
    from llmgpu.bpe.interchange.huggingface import name_tokens

    with naming(path):
        source = decode_text(read_limited(path))
        return replace(vocabulary, chat=ChatTemplate(source, name_tokens(vocabulary)))
