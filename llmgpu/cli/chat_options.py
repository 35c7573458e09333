"""The options ``--chat`` and ``--chat-template``, see `llmgpu.cli.chat`."""

from __future__ import annotations

import click

from llmgpu.cli.options import Decorated, add_options


def chat_options(command: Decorated) -> Decorated:
    """Add --chat and --chat-template; see `llmgpu.tokens.conversations`."""
    options = (
        click.option(
            "--chat",
            is_flag=True,
            help="Each line of a .jsonl or row of a .parquet is a conversation, its messages in "
            "--text-field (by default messages). The vocabulary's chat template makes text of it. "
            "train predicts only what the assistant wrote.",
        ),
        click.option(
            "--chat-template",
            metavar="FILE",
            show_default="that of the vocabulary, else ChatML",
            help="The template for --chat, in Jinja.",
        ),
    )
    return add_options(command, options)
