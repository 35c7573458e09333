"""Options and argument types that several commands share."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmgpu import backend
from llmgpu.cli.values import BYTE_SIZE, PART, TEXT, THREADS, PatternExpression, PatternName
from llmgpu.errors import InputError

if TYPE_CHECKING:
    from llmgpu.cli.console import Reporter
    from llmgpu.text.corpus import CorpusOptions

READING_INPUT = "reading standard input"
VOCAB_HELP = (
    "Vocabulary: a file written by bpe-train or import, a tokenizer.json, a .tiktoken file, "
    "vocab.json next to merges.txt, a Hugging Face folder, or the name of an encoding or model "
    "if tiktoken has downloaded it: cl100k, o200k, gpt2, gpt-4o-mini."
)

Command = Callable[..., Any]
Option = Callable[[Command], Command]
Group = TypeVar("Group")

_TAKING_LESS = ("limit", "max_tokens", "part", "resume", "decode")  # of the text, or none
_MOST_LABEL = 14  # characters of a column's head
_METAVARS = {type(click.INT): "N", click.IntRange: "N", click.FloatRange: "FLOAT"}


def pattern_options(**settings: Any) -> Option:
    """Add --pattern, which `settings` describe, and --pattern-regex; see `chosen_pattern`."""

    by_expression = click.option(
        "--pattern-regex",
        type=PatternExpression(),
        metavar="EXPRESSION",
        help="Split by this regular expression instead (CPU only; needs the regex package).",
    )
    return option_group(click.option("--pattern", type=PatternName(), **settings), by_expression)


def chosen_pattern(pattern: str | None, pattern_regex: str | None) -> str | None:
    """Return the pattern that was asked for, by its name or by an expression; None if none was."""
    if pattern and pattern_regex:
        raise click.UsageError("--pattern and --pattern-regex can't be combined")
    return pattern or pattern_regex


def piped_input(report: Reporter) -> tuple[str, ...]:
    """Return standard input, as a source of text, if it is a pipe or a file, and say so."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none
        return ()
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ()
    report.line(READING_INPUT)
    return ("-",)


def required_input(report: Reporter, what: str) -> tuple[str, ...]:
    """Return standard input as `piped_input` does; UsageError that asks for `what` without it."""
    found = piped_input(report)
    if not found:
        raise click.UsageError(f"give {what}, or - for standard input")
    return found


def option_group(*options: Option) -> Option:
    """Return a decorator that adds options, which --help lists in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):  # the one that is added last is listed first
            command = option(command)
        return command

    return add


def take_group(kind: type[Group], options: dict[str, Any]) -> Group:
    """Take the fields of a dataclass out of a command's options, and make one of them."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: options.pop(name) for name in names})


def options_of(
    kind: type, table: Iterable[tuple[str, str, Any, str]], derived: Container[str] = ()
) -> Option:
    """Return options, a row of a table each: flag, field of `kind`, type of the values and help.

    The defaults are those of the fields, except for `derived` ones, which follow from others.
    """
    options = []
    for flag, name, values, text in table:
        default = None if name in derived else getattr(kind, name)
        options.append(
            click.option(
                flag,
                name,
                type=values,
                default=default,
                show_default=True,
                metavar=_METAVARS.get(type(values)),
                help=text,
            )
        )
    return option_group(*options)


# See `llmgpu.bpe.interchange.open.find_vocabulary`.
vocab_option = click.option("--vocab", required=True, metavar="VOCAB", help=VOCAB_HELP)
vocabulary_output_option = click.option(
    "--output",
    "-o",
    default="v.bin",
    show_default=True,
    metavar="FILE",
    help="Vocabulary file to write; - for stdout.",
)
encoding_threads_option = click.option(
    "--threads",
    type=THREADS,
    metavar="N",
    help="CPU threads that encode.  [default: one per processor; up to 4 with NumPy]",
)
device_option = click.option(
    "--device",
    envvar="LLMGPU_DEVICE",
    default="auto",
    show_default=True,
    metavar="auto|cpu|gpu|NAME[:N]",
    help="\b\nauto: the fastest device for the job;\n"
    "cpu; gpu: the best GPU; gpu:1: the next one;\n"
    "NAME[:N]: a GPU whose name contains NAME;\n"
    "all: CPU and GPUs (tokenize, count).\nAlso set by $LLMGPU_DEVICE.",
)
part_option = click.option(
    "--part",
    type=PART,
    metavar="I/N|auto",
    help="Process part I of N; finished parts are skipped. %P in the output name is replaced by "
    "the part. auto: read I and N from the variables of a Slurm array, of a Kubernetes indexed "
    "job, or RANK and WORLD_SIZE.",
)
# See `llmgpu.tokens.foreign`.
token_dtype_option = click.option(
    "--token-dtype",
    type=click.Choice(["uint16", "uint32"]),
    help="Integer type of token files from other tools that don't record it (nanoGPT: uint16).",
)
# See `llmgpu.outputs.check_outputs`.
force_option = click.option(
    "--force", is_flag=True, help="Overwrite existing files of a different kind."
)


def labels_of(vocabs: Sequence[str]) -> list[str]:
    """Return the heads of columns: file names, or whole paths where names are equal."""
    if len(vocabs) == 1:
        return ["tokens"]
    names = [os.path.basename(os.path.normpath(vocab)) for vocab in vocabs]
    labels = names if len(set(names)) == len(names) else vocabs
    return [label[-_MOST_LABEL:] for label in labels]


def gpu_from(least: int) -> int:
    """Return from how many bytes of text ``auto`` opens an adapter: LLMGPU_GPU_FROM, or `least`.

    Raises click.UsageError if LLMGPU_GPU_FROM is not a size.
    """
    try:
        return backend.gpu_from(least)
    except InputError as error:
        raise click.UsageError(str(error)) from error


def open_device_early(options: Mapping[str, Any], paths: Sequence[str], least: int) -> None:
    """Begin to open a command's device, see `llmgpu.backend.select_early`.

    paths: what it reads. least: bytes of text from which ``auto`` takes a device, which it surely
    does for plain files of that size.
    """
    is_large = False
    if options["device"] == "auto" and not any(options.get(name) for name in _TAKING_LESS):
        sizes = (os.path.getsize(path) for path in paths if os.path.isfile(path))
        is_large = sum(sizes) >= gpu_from(least)
    backend.select_early(options["device"], auto=is_large)


def _set_log_format(context: click.Context, parameter: click.Parameter, value: str) -> None:
    """Store the format for `llmgpu.cli.console`."""
    from llmgpu.cli.console import LOG_FORMAT

    context.meta[LOG_FORMAT] = value


output_options = option_group(
    click.option("--json", "as_json", is_flag=True,
                 help="Print the summary as a JSON object on the last line of stdout, or of stderr "
                 "if stdout carries data."),
    click.option("--quiet", "-q", is_flag=True,
                 help="Suppress everything on stderr except errors."),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text",
                 show_default=True, expose_value=False, callback=_set_log_format,
                 help="Format of progress and notes on stderr; json writes an object per line."),
    click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback on errors."),
)  # fmt: skip


def _limit_regex(context: click.Context, parameter: click.Parameter, seconds: float | None) -> None:
    """Set the time limit of custom patterns for this command."""
    if seconds is not None:
        from llmgpu.bpe.pretokens.custom_regex import DEFAULT_MATCH_SECONDS, limit_match_seconds

        limit_match_seconds(seconds)
        context.call_on_close(partial(limit_match_seconds, DEFAULT_MATCH_SECONDS))


# How text is read: `make_corpus_options` takes them.
READING_OPTIONS = ("text_field", "encoding_errors", "doc_separators", "limit", "bad_rows")
corpus_options = option_group(
    click.option("--limit", type=BYTE_SIZE, metavar="SIZE",
                 help="Read at most this much text: 4096, 100MB, 2GiB."),
    click.option("--doc-separator", "doc_separators", type=TEXT, multiple=True, metavar="TEXT",
                 help="Split documents at this text and drop it; with tokenize --decode, write it "
                 "between documents. Repeatable."),
    click.option("--encoding-errors", type=click.Choice(["raw", "strict", "replace"]),
                 default="raw", show_default=True,
                 help="What to do with invalid UTF-8: keep the bytes (raw), fail and name the "
                 "offset (strict), or insert U+FFFD (replace)."),
    click.option("--text-field", type=TEXT, default="text", show_default=True, metavar="NAME",
                 help="Field of .jsonl lines, or column of .parquet files, to read text from. Rows "
                 "without text are skipped and counted."),
    click.option("--bad-rows", type=click.Choice(["error", "skip"]), default="error",
                 show_default=True,
                 help="What to do with .jsonl lines that are not JSON objects, or whose field is "
                 "not text: fail and name the line, or skip and count them."),
    click.option("--regex-seconds", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
                 expose_value=False, callback=_limit_regex,
                 help="CPU time limit per megabyte for a custom pattern.  [default: 30]"),
)  # fmt: skip


def make_corpus_options(
    text_field: str,
    encoding_errors: str,
    doc_separators: tuple[str, ...],
    limit: int | None,
    bad_rows: str,
    line_documents: bool = False,
) -> CorpusOptions:
    """Turn the values of `corpus_options` into the library's."""
    from llmgpu.text.corpus import CorpusOptions

    if "" in doc_separators:
        raise click.UsageError("--doc-separator must not be empty")
    return CorpusOptions(
        text_field=text_field,
        separators=tuple(text.encode() for text in doc_separators),
        encoding_errors=encoding_errors,
        limit=limit,
        line_documents=line_documents,
        bad_rows=bad_rows,
    )


# Special tokens: see `llmgpu.cli.chat.EncodingOptions`.
special_options = option_group(
    click.option("--allowed-special", type=TEXT, multiple=True, metavar="TEXT|all",
                 help="Encode this special token as its id where it occurs in the text; by default "
                 "it is encoded like any other text. Repeatable."),
    click.option("--disallow-special", type=TEXT, multiple=True, metavar="TEXT|all",
                 help="Fail if the text contains this special token (all: any not allowed). "
                 "Repeatable."),
    click.option("--bos", type=TEXT, metavar="ID|TEXT",
                 help="Prepend this token to each document, given as an id or as its text."),
    click.option("--eos", type=TEXT, metavar="ID|TEXT",
                 help="Append this token to each document, given as an id or as its text."),
    click.option("--add-special-tokens", is_flag=True,
                 help="Add the special tokens that the vocabulary's tokenizer.json adds around a "
                 "text, such as a beginning-of-text token."),
)  # fmt: skip


# Conversations: see `llmgpu.tokens.conversations`.
chat_options = option_group(
    click.option("--chat", is_flag=True,
                 help="Treat each .jsonl line or .parquet row as a conversation, with its messages "
                 "in --text-field (default: messages). It is rendered with the vocabulary's chat "
                 "template; train computes the loss on assistant tokens only."),
    click.option("--chat-template", metavar="FILE",
                 help="Jinja template for --chat.  [default: the vocabulary's, else ChatML]"),
)  # fmt: skip


def id_or_text(token: str | None) -> int | str | None:
    """Return what names a token on the command line: an id if it is a number."""
    return int(token) if token and re.fullmatch(r"[0-9]{1,10}", token) else token
