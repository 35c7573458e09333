"""The command line: thin commands over the library.

The package `commands` declares options and help. It imports neither NumPy nor the code that does
the work. That code is in modules of this package, each imported when its command runs.

Data is printed to stdout, all other lines to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3
over a budget, 128 plus the number of the signal that interrupted the command.
"""

from __future__ import annotations

import errno
import os
import sys

import click

from llmgpu.cli.help_formatter import HelpContext
from llmgpu.cli.interrupts import code_of, handled_signals, say_interrupted
from llmgpu.errors import LlmgpuError, arguments_of_file, error_line, errors_are_json, shorten
from llmgpu.input_files import printable, quote
from llmgpu.registry import Entry, Registry
from llmgpu.version import __version__

# For each command: MODULE:NAME of its class in the package `commands`, and the summary.
_COMMANDS = {
    "bench": ("bench:BenchCommand", "Benchmark this machine."),
    "bpe-train": ("bpe_train:BpeTrainCommand", "Train a byte-level BPE vocabulary on text."),
    "compare-vocabs": ("vocabularies:CompareVocabsCommand", "Compare two vocabularies."),
    "count": ("tokens:CountCommand", "Count the tokens of files."),
    "export": ("vocabularies:ExportVocabularyCommand", "Export a vocabulary for another tool."),
    "generate": ("models:GenerateCommand", "Continue a prompt with a language model."),
    "import": ("vocabularies:ImportVocabularyCommand", "Import a vocabulary from another tool."),
    "info": ("vocabularies:InfoCommand", "Show GPUs, or describe a file."),
    "merge-shards": (
        "parts:MergeShardsCommand",
        "Combine the shards of all parts in one manifest.",
    ),
    "merge-word-counts": ("parts:MergeWordCountsCommand", "Add up word counts."),
    "run": ("parts:RunCommand", "Run a command in parts on a Ray cluster."),
    "score": ("models:ScoreCommand", "Score texts with a language model."),
    "tokenize": ("tokens:TokenizeCommand", "Convert text to token ids and back."),
    "train": ("train:TrainCommand", "Train a Llama-style language model."),
}
COMMANDS: Registry[click.Command] = Registry(
    {
        name: Entry(f"llmgpu.cli.commands.{place}.click_command", summary)
        for name, (place, summary) in _COMMANDS.items()
    }
)
MAIN_COMMANDS = ("bpe-train", "tokenize", "count", "train", "generate", "info")


class LazyGroup(click.Group):
    """A group of commands; the module of a command is imported when the command is used."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. In shell completion, file names complete its text options."""
        command = COMMANDS.get(cmd_name)
        if command and ctx.resilient_parsing:
            for parameter in command.params:
                if parameter.type is click.STRING:
                    parameter.type = click.Path()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any of them."""
        summaries = COMMANDS.summaries
        with formatter.section("Main commands"):
            formatter.write_dl([(name, summaries[name]) for name in MAIN_COMMANDS])
        with formatter.section("Other commands"):
            others = [each for each in summaries.items() if each[0] not in MAIN_COMMANDS]
            formatter.write_dl(others)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; raise UsageError with suggestions for a mistyped name."""
        if args[0] not in COMMANDS:
            from llmgpu.cli.options import suggest
            from llmgpu.spelling import COMMAND_NAMES, names_here

            name = args[0].replace("_", "-")
            known = {*COMMANDS, *names_here(COMMAND_NAMES, name)}
            # A typo in a short name, such as rnu, leaves little that is similar.
            advice = suggest(name, known, COMMAND_NAMES) or suggest(name, known, {}, least=0.6)
            if advice:
                raise click.UsageError(f"No such command {quote(args[0])}.{advice}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options, and print --help or --version. A closed pipe is not an error."""
        try:
            return super().parse_args(ctx, args)
        except BrokenPipeError:
            ctx.exit(0)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. A reader that closes the pipe early is not an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            ctx.exit(0)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", "-V", prog_name="llmgpu")
def cli() -> None:
    """Train BPE tokenizers and small language models, with or without a GPU.

    \b
    Examples:
      llmgpu bpe-train corpus.txt -o v.bin --vocab-size 8192
      llmgpu tokenize --vocab v.bin corpus.txt | head -1
      llmgpu tokenize --vocab v.bin corpus.txt | llmgpu tokenize --vocab v.bin --decode
      llmgpu train --vocab v.bin corpus.txt -o run
      llmgpu generate run --prompt 'Once upon a time'
    """


_OUT_OF_MEMORY = "out of memory; use less text or a smaller model, or raise `ulimit -v`"
# Classes of errors about a lack of memory, texts that are in them, and messages. An import may turn
# a MemoryError into "error return without exception set"; the next two texts are dlopen's.
_LACKS: tuple[tuple[type[Exception], str, str], ...] = (
    (SystemError, "without", _OUT_OF_MEMORY),
    (ImportError, "failed to map segment", _OUT_OF_MEMORY),
    (ImportError, "annot allocate memory", _OUT_OF_MEMORY),
    (
        RuntimeError,
        "new thread",
        "can't start another thread; use fewer (--threads) or raise `ulimit`",
    ),
)


def main() -> None:
    """Run the command line and exit with its code."""
    # Each kind of error gets a message of one line and an exit code; --debug shows the traceback.
    debug = "--debug" in sys.argv
    arguments_of_file.clear()
    try:
        with handled_signals():
            code = cli(standalone_mode=False)
    except (LlmgpuError, OSError) as error:
        if debug:
            raise
        number = error.exit_code if isinstance(error, LlmgpuError) else 1
        text = str(error) if isinstance(error, LlmgpuError) else _describe(error)
        code = _fail(shorten(printable(" ".join(text.split()))), number)
    except click.ClickException as error:
        code = _refuse(error)
    except (KeyboardInterrupt, click.Abort) as error:
        code = code_of(error)
        say_interrupted(code)
    except MemoryError:
        code = _fail(_OUT_OF_MEMORY, 1)
    except (ImportError, RuntimeError, SystemError) as error:
        messages = [
            said for kind, text, said in _LACKS if isinstance(error, kind) and text in str(error)
        ]
        if debug or not messages:
            raise
        code = _fail(messages[0], 1)
    _close_stdout()
    sys.exit(code if isinstance(code, int) else 0)


def _describe(error: OSError) -> str:
    """Return the message for an error of the system that no reader or writer has described."""
    if error.filename is None and error.errno == errno.ENOENT:  # os.getcwd has failed
        return "the working folder was removed; change to another folder"
    if error.filename is None:  # printing of results has failed
        return f"can't write standard output: {error.strerror or error}"
    more = "; raise `ulimit -n`" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return f"can't open {error.filename}: {error.strerror}{more}"


def _refuse(error: click.ClickException) -> int:
    """Print a usage error, with the message on a separate line; return the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if isinstance(error, click.NoSuchOption):
        from llmgpu.cli.options import suggest_option

        error = suggest_option(error)
    # The message, with advice if there is any.
    message = " ".join(error.format_message().split())
    if isinstance(error, click.BadParameter):
        from llmgpu.cli.options import explain_value

        message += explain_value(error)
    if isinstance(error, click.MissingParameter) and error.param and "vocab" in error.param.opts[0]:
        message += " It takes a file such as v.bin or tokenizer.json, or a name: cl100k."
    if "unexpected extra argument" in message and "compare-vocabs" in sys.argv:
        message += ". Name texts to compare on with --on."
    if message == "Missing option '--output' / '-o'." and "--resume" in sys.argv:
        message += " Name the run to resume: -o RUN --resume."
    message = shorten(printable(message))
    # Print the usage, then the message. As JSON, both are on one line.
    context = error.ctx if isinstance(error, click.UsageError) else None
    usage = "" if context is None else context.get_usage()
    if errors_are_json():
        return _fail(message, error.exit_code, usage=" ".join(usage.split()))
    if context is not None:
        click.echo(usage, err=True)
        click.echo(f"Try '{context.command_path} --help' for help.\n", err=True)
    click.echo(f"Error: {message}", err=True)
    return error.exit_code


def _fail(message: str, code: int, **facts: str) -> int:
    """Print the line about the error that ends the command; return the exit code."""
    click.echo(error_line(message, code, **facts), err=True)
    return code


def _close_stdout() -> None:
    """Flush stdout. After a failure, keep Python from reporting the failure again at exit."""
    try:
        if sys.stdout is not None:  # None: stdout was closed before this process began
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
