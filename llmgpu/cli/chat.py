"""Options about special tokens and conversations, for the commands that tokenize."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import click

from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.encoding.special_search import SpelledTokens
from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter
from llmgpu.cli.groups import ChatOptions, SpecialTokenOptions, id_or_text
from llmgpu.cli.options import was_given
from llmgpu.input_files import decode_text, naming, read_limited
from llmgpu.text.chat import MESSAGES, Chat
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.tokens.conversations import CHAT_TOKENS, Conversations


def special_options(given: SpecialTokenOptions, chat: ChatOptions) -> SpecialOptions:
    """Return the options for special tokens; click.UsageError for an invalid combination."""
    around = id_or_text(given.bos), id_or_text(given.eos)
    found = SpecialOptions(given.allowed_special, given.disallow_special, *around)
    check_chat(chat.chat, chat.chat_template, found)
    return CHAT_TOKENS if chat.chat else found


def around_text(
    special: SpecialOptions, given: SpecialTokenOptions, vocabulary: Vocabulary, report: Reporter
) -> SpecialOptions:
    """Return `special` with the vocabulary's tokens around a text, if the user asks for them."""
    if not given.add_special_tokens:
        return special
    if not (vocabulary.prefix_ids or vocabulary.suffix_ids):
        report.note(
            "--add-special-tokens has no effect: the vocabulary adds no tokens around a text"
        )
    return special.around(vocabulary)


def watch_text(
    text: Corpus, vocabulary: Vocabulary, special: SpecialOptions, report: Reporter
) -> Callable[[str], None]:
    """Search a text for special tokens while the text is read; return a function that notes them.

    Call the function after the last id, with the beginning of the note. With --quiet or --chat the
    text is not searched.
    """
    if report.quiet or text.options.chat is not None:
        return lambda prefix: None
    watch = text.watch = SpelledTokens(vocabulary, special)

    def note(prefix: str) -> None:
        report.note(*(prefix + found for found in filter(None, [watch.note()])))

    return note


def rendering(
    chat: ChatOptions, vocabulary: Vocabulary
) -> AbstractContextManager[Conversations | None]:
    """Return a context manager for the renderer of conversations; None without --chat."""
    return Conversations(vocabulary) if chat.chat else nullcontext()


def check_chat(chat: bool, chat_template: str | None, special: SpecialOptions) -> None:
    """Raise click.UsageError for options that exclude --chat or need it."""
    if chat_template is not None and not chat:
        raise click.UsageError("--chat-template needs --chat")
    if chat and (not special.is_plain or was_given("add_special_tokens")):
        raise click.UsageError("--chat takes no special tokens: the chat template writes them")
    given = click.get_current_context().params
    if chat and (given.get("template") is not None or len(given.get("text_field", ())) > 1):
        several = "--template and a second --text-field can't be combined with it"
        raise click.UsageError(f"--chat reads one field: {several}")


def with_chat(options: CorpusOptions, chat: Chat | None) -> CorpusOptions:
    """Return options for reading conversations, by default in the field `MESSAGES`.

    Without `chat`, `options` are returned unchanged.
    """
    if chat is None:
        return options
    is_default = options.text_field == CorpusOptions.text_field
    return replace(options, text_field=MESSAGES if is_default else options.text_field, chat=chat)


def with_chat_template(vocabulary: Vocabulary, path: str | None) -> Vocabulary:
    """Return a vocabulary with the chat template from a file; unchanged if `path` is None."""
    if path is None:
        return vocabulary
    from llmgpu.bpe.interchange.huggingface import name_tokens

    with naming(path):
        source = decode_text(read_limited(path))
        return replace(vocabulary, chat=ChatTemplate(source, name_tokens(vocabulary)))
