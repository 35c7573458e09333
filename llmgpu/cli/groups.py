"""Groups of options that several commands share, and functions that interpret their values."""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from llmgpu import backend
from llmgpu.backend import TRAINING_FROM, Opening, encoding_from
from llmgpu.cli.options import flags_given, refuse_given, was_asked, was_given
from llmgpu.errors import InputError
from llmgpu.input_files import STANDARD_INPUT, source_name
from llmgpu.machine import usable_processors
from llmgpu.option_fields import (
    COMMON,
    INPUT,
    machines_option,
    option,
    output_option,
    own_options,
    rare_option,
)

if TYPE_CHECKING:
    from llmgpu.cli.console import Reporter
    from llmgpu.text.corpus import CorpusOptions
    from llmgpu.text.sources import Selection, Sources
    from llmgpu.text.streams import Source

READING_INPUT = "reading standard input"
INPUT_FORMATS = ("auto", "text", "jsonl", "parquet", "arrow", "bytes")
VOCAB_HELP = (
    "Vocabulary: a file written by bpe-train or import, a tokenizer.json, a .tiktoken file, "
    "vocab.json next to merges.txt, a Hugging Face folder, or the name of an encoding or model "
    "if tiktoken has downloaded it: cl100k, o200k, gpt2, gpt-4o-mini."
)
# options that may reduce the text that is read
_TAKING_LESS = ("limit", "max_tokens", "part", "resume", "decode")
_MOST_LABEL = 14  # most characters in the head of a column

# fmt: off
# Options of several commands. Each command calls these functions to get fields of its own. For
# VOCAB see `llmgpu.bpe.interchange.formats.find_vocabulary`.
vocab = partial(option, MISSING, str, VOCAB_HELP, metavar="VOCAB")
vocabulary_output = partial(
    option, "v.bin", str, "Vocabulary file to write; - for stdout.", "--output", "-o",
    metavar="FILE")
encoding_threads = partial(
    option, None, "threads", "CPU threads that encode.", metavar="N",
    default_words="one per processor; up to 4 with NumPy", section=COMMON)
device = partial(
    option, "auto", str,
    "\b\nauto: the fastest device for the job;\n"
    "cpu; gpu: the best GPU; gpu:1: the next one;\n"
    "NAME[:N]: a GPU whose name contains NAME.\n"
    "Also set by $LLMGPU_DEVICE.",
    metavar="auto|cpu|gpu|NAME[:N]", section=COMMON,
    settings={"envvar": "LLMGPU_DEVICE"})
part = partial(
    machines_option, None, "part",
    "Process part I of N; finished parts are skipped. %P in the output name is replaced by "
    "the part. auto: read I and N from the variables of a Slurm array, of a Kubernetes indexed "
    "job, or RANK and WORLD_SIZE.", metavar="I/N|auto")
# See `llmgpu.tokens.bin`.
token_dtype = partial(
    rare_option, None, ("uint16", "uint32"),
    "Integer type of token files from other tools that don't record it (nanoGPT: uint16).")
# See `llmgpu.outputs.check_outputs`.
force = partial(output_option, False, bool, "Overwrite existing files of a different kind.")
# fmt: on


def _limit_regex(context: click.Context, parameter: click.Parameter, seconds: float | None) -> None:
    """Set the time limit of custom patterns for this command."""
    if seconds is not None:
        from llmgpu.bpe.pretokens.custom_regex import DEFAULT_MATCH_SECONDS, limit_match_seconds

        limit_match_seconds(seconds)
        context.call_on_close(partial(limit_match_seconds, DEFAULT_MATCH_SECONDS))


@dataclass(frozen=True, init=False, eq=False, repr=False)
class ReadingOptions:
    """Options about reading text from files."""

    section: ClassVar[str] = INPUT

    # fmt: off
    limit: int | None = option(
        None, "bytes", "Read at most this much text: 4096, 100MB, 2GiB.", metavar="SIZE")
    doc_separators: tuple[str, ...] = option(
        (), "text",
        "Split documents at this text and drop it; with tokenize --decode, write it between "
        "documents. Repeatable.", "--doc-separator", metavar="TEXT", many=True)
    encoding_errors: str = rare_option(
        "raw", ("raw", "strict", "replace"),
        "What to do with invalid UTF-8: keep the bytes (raw), fail and name the offset (strict), "
        "or insert U+FFFD (replace).")
    text_field: tuple[str, ...] = option(
        (), "text",
        "Field of .jsonl lines, or column of .parquet files, to read text from. Rows without text "
        "are skipped and counted. Repeatable: a newline joins the fields.", metavar="NAME",
        many=True, default_words="text")
    template: str | None = option(
        None, "text",
        "Make the text of several fields or columns: '{question}\\n{answer}', with {a.b} for a "
        "field inside field a, {{ and }} for braces, \\n and \\t for a newline and a tab.",
        metavar="TEXT")
    bad_rows: str = option(
        "error", ("error", "skip"),
        "What to do with .jsonl lines that are not JSON objects, or whose field is not text: fail "
        "and name the line, or skip and count them.")
    regex_seconds: float | None = rare_option(
        None, click.FloatRange(min=0, min_open=True),
        "CPU time limit per megabyte for a custom pattern.", metavar="SECONDS", default_words="30",
        settings={"expose_value": False, "callback": _limit_regex})
    # fmt: on

    def corpus_options(self, *, line_documents: bool = False) -> CorpusOptions:
        """Return the library's options; raise UsageError for an empty separator."""
        from llmgpu.text.corpus import CorpusOptions
        from llmgpu.text.documents import Template

        if "" in self.doc_separators:
            raise click.UsageError("--doc-separator must not be empty")
        if self.template is not None and self.text_field:
            raise click.UsageError("--text-field can't be combined with --template")
        template = None if len(self.text_field) < 2 else Template.joined(self.text_field)
        if self.template is not None:
            template = Template.parse(self.template.replace("\\n", "\n").replace("\\t", "\t"))
        fields = template.fields if template else self.text_field
        return CorpusOptions(
            text_field=next(iter(fields), CorpusOptions.text_field),
            template=template,
            separators=tuple(text.encode() for text in self.doc_separators),
            encoding_errors=self.encoding_errors,
            limit=self.limit,
            line_documents=line_documents,
            bad_rows=self.bad_rows,
        )


@dataclass(frozen=True, init=False, eq=False, repr=False)
class FileOptions:
    """Options about the choice of files and their formats."""

    section: ClassVar[str] = INPUT

    # fmt: off
    input_format: str = option(
        "auto", INPUT_FORMATS,
        "Format of the input; auto goes by the file name. text is plain text, bytes reads any file "
        "as raw bytes.")
    exclude: tuple[str, ...] = option(
        (), "text",
        "Exclude files and folders with this name ('*.min.js'), or with this path inside a folder "
        "('docs/old/*'). Repeatable.", metavar="GLOB", many=True)
    gitignore: bool = option(False, bool, "Skip files in folders that .gitignore ignores.")
    subset: str | None = option(
        None, ("train", "validation", "test"),
        "Read only the files of a data set's subset in folders, globs and URLs, by the words in "
        "names: train-00000.parquet, test/a.jsonl.")
    list_skipped: bool = rare_option(
        False, bool, "Name each file of a folder that is skipped because it is not text.")
    files_from: str | None = option(
        None, str,
        "Read more file names from FILE or standard input, one per line or separated by NUL bytes "
        "(find -print0).", metavar="FILE|-")
    # fmt: on

    def named(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return `paths` and the names that --files-from lists; InputError if there are none."""
        names = self.listed(paths)
        if self.files_from is not None and not names:
            raise InputError(f"--files-from: {source_name(self.files_from)} names no files")
        return (*paths, *names)

    def listed(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the names listed by --files-from, empty without it.

        paths: names on the command line. Raises UsageError if both the list and a text are to be
        read from standard input, InputError if the list can't be read.
        """
        if self.files_from is None:
            return ()
        is_piped = self.files_from == STANDARD_INPUT
        if is_piped and STANDARD_INPUT in paths:
            both = "standard input can't be both the text and the list of --files-from"
            raise click.UsageError(both)
        try:
            data = sys.stdin.buffer.read() if is_piped else Path(self.files_from).read_bytes()
            data = _without_mark(data)
        except (OSError, AttributeError, UnicodeError) as error:
            reason = getattr(error, "strerror", error)
            raise InputError(f"can't read {source_name(self.files_from)}: {reason}") from error
        listed = data.split(b"\0") if b"\0" in data else [*map(_unquoted, data.splitlines())]
        return tuple(line.decode("utf-8", "surrogateescape") for line in listed if line)

    def selection(self) -> Selection:
        """Return the rules by which files in folders are selected.

        `Selection` also has a field for the names of --files-from, which this method leaves empty.
        """
        from llmgpu.text.sources import Selection

        has_fields = was_given("text_field") or was_given("template")
        asked = any(map(was_asked, ("text_field", "template", "bad_rows", "chat")))
        return Selection(
            input_format=self.input_format,
            # --text-field and --template need fields: read standard input as JSON lines.
            of_input="jsonl" if has_fields else Selection.of_input,
            exclude=self.exclude,
            gitignore=self.gitignore,
            skips_binaries=True,
            lists_skipped=self.list_skipped,
            usual_field=None if asked else _USUAL_FIELD,
            subset=self.subset,
        )


_USUAL_FIELD = "text"  # the default of `text_field` in `llmgpu.text.corpus.CorpusOptions`
READING_OPTIONS = tuple(
    name for name, one in own_options(ReadingOptions).items() if "callback" not in one.settings
)
FILE_OPTIONS = tuple(own_options(FileOptions))


def _without_mark(data: bytes) -> bytes:
    """Return a list of names in UTF-8, without byte-order mark.

    data: UTF-8, or UTF-16 with a mark, as Windows PowerShell writes it. Raises UnicodeError if the
    mark is one of UTF-16, but the rest is not UTF-16.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def _unquoted(name: bytes) -> bytes:
    """Return a name without the quotes and escapes that git adds to special characters."""
    if not (len(name) > 2 and name.startswith(b'"') and name.endswith(b'"')):
        return name
    try:
        # each escape spells one byte
        plain = name[1:-1].decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        return name
    return name if os.path.lexists(name) else plain


def resolve_texts(names: Sequence[str], selection: Selection) -> Sources:
    """Return the files of text that `names` select. A name is a path, a glob or a URL.

    Names are resolved as in `resolve_sources`. Raises UsageError as `check_text_field` does.
    """
    from llmgpu.text.sources import resolve_sources

    found = resolve_sources(names, selection)
    check_text_field(found.files)
    return found


def check_text_field(files: Sequence[Source]) -> None:
    """Raise click.UsageError for --text-field or --template if no file's format has fields."""
    from llmgpu.text.sources import format_of

    options = ("text_field", "template")
    if flags_given(options) and not any(format_of(source) for source in files):
        first = files[0].path if files else "nothing"
        refuse_given(
            options,
            f"is for .jsonl and .parquet files, but {first} is read as text; if it has JSON lines, "
            "use --input-format jsonl (jq -c '.[]' makes lines of an array)",
        )


# Special tokens and conversations: see `llmgpu.cli.chat`.
@dataclass(frozen=True, init=False, eq=False, repr=False)
class SpecialTokenOptions:
    """Special tokens in a text and around it."""

    section: ClassVar[str] = INPUT

    # fmt: off
    allowed_special: tuple[str, ...] = option(
        (), "text",
        "Encode this special token as its id where it occurs in the text; by default it is encoded "
        "like any other text. Repeatable.", metavar="TEXT|all", many=True)
    disallow_special: tuple[str, ...] = option(
        (), "text",
        "Fail if the text contains this special token (all: any not allowed). Repeatable.",
        metavar="TEXT|all", many=True)
    bos: str | None = option(
        None, "text", "Prepend this token to each document, given as an id or as its text.",
        metavar="ID|TEXT")
    eos: str | None = option(
        None, "text", "Append this token to each document, given as an id or as its text.",
        metavar="ID|TEXT")
    add_special_tokens: bool = option(
        False, bool,
        "Add the special tokens that the vocabulary's tokenizer.json adds around a text, such as a "
        "beginning-of-text token.")
    # fmt: on


@dataclass(frozen=True, init=False, eq=False, repr=False)
class ChatOptions:
    """Options about conversations, see `llmgpu.tokens.conversations`."""

    section: ClassVar[str] = INPUT

    # fmt: off
    chat: bool = option(
        False, bool,
        "Treat each line of .jsonl or row of .parquet or .arrow as a conversation, with its "
        "messages in --text-field (default: messages). It is rendered with the vocabulary's chat "
        "template; train computes the loss on assistant tokens only.")
    chat_template: str | None = option(
        None, str, "Jinja template for --chat.", metavar="FILE",
        default_words="the vocabulary's, else ChatML")
    # fmt: on


def piped_input(report: Reporter) -> tuple[str, ...]:
    """Return ("-",), with a note, if standard input is a pipe, socket or file; else return ()."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # standard input is closed or has no descriptor
        return ()
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ()
    report.line(READING_INPUT)
    return (STANDARD_INPUT,)


def required_input(report: Reporter, what: str) -> tuple[str, ...]:
    """Return `piped_input`. If nothing is piped, raise UsageError, which asks for `what`."""
    found = piped_input(report)
    if not found:
        raise click.UsageError(f"give {what}, or - for standard input")
    return found


def labels_of(vocabs: Sequence[str]) -> list[str]:
    """Return column heads: file names of the vocabularies, or paths if two names are equal.

    The column of a single vocabulary has the head "tokens".
    """
    if len(vocabs) == 1:
        return ["tokens"]
    names = [os.path.basename(os.path.normpath(vocab)) for vocab in vocabs]
    labels = names if len(set(names)) == len(names) else vocabs
    return [label[-_MOST_LABEL:] for label in labels]


def id_or_text(token: str | None) -> int | str | None:
    """Return a token from the command line: a number is its id, anything else its text."""
    return int(token) if token and re.fullmatch(r"[0-9]{1,10}", token) else token


def gpu_from(least: int) -> int:
    """Return the size of a text from which ``auto`` uses a GPU: LLMGPU_GPU_FROM, or `least` bytes.

    Raises click.UsageError if LLMGPU_GPU_FROM is not a size.
    """
    try:
        return backend.gpu_from(least)
    except InputError as error:
        raise click.UsageError(str(error)) from error


def open_device(reads: str, values: Mapping[str, Any], *, encodes: bool = True) -> Opening:
    """Return a command's `Opening`; begin to open a device that is sure to be used.

    With ``auto``, a device is sure to be used if the files are large enough and all of their text
    is read.

    reads: the parameter that names the files to read. values: of all parameters. encodes: see
    `Opening`.
    """
    context, device = click.get_current_context(), values["device"]
    least = gpu_from(encoding_from(usable_processors()) if encodes else TRAINING_FROM)
    is_used = not values.get("decode")
    if device == "auto":
        sizes = (os.path.getsize(path) for path in values[reads] if os.path.isfile(path))
        takes_all = not any(map(values.get, _TAKING_LESS))
        is_used = takes_all and sum(sizes) >= least
    # A worker of ``llmgpu run`` keeps devices open from one command to the next.
    kept: dict[str, Opening] = {} if context.obj is None else context.obj
    if device not in kept:
        kept[device] = Opening(device, encodes=encodes, keeps_encoders=context.obj is not None)
    opening = kept[device]
    if is_used:
        opening.begin()
    return opening
