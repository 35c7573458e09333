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
            help="Treat each .jsonl line or .parquet row as a conversation, with its messages in "
            "--text-field (default: messages). It is rendered with the vocabulary's chat template; "
            "train computes the loss on assistant tokens only.",
        ),
        click.option(
            "--chat-template",
            metavar="FILE",
            help="Jinja template for --chat.  [default: the vocabulary's, else ChatML]",
        ),
    )
    return add_options(command, options)
