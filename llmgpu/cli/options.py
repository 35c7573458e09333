"""Options of the command line, made from declared fields; checks of the given options."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click
from click.core import ParameterSource

from llmgpu.cli.help_formatter import HelpContext
from llmgpu.cli.values import KINDS
from llmgpu.input_files import quote
from llmgpu.option_fields import (
    COMMON,
    SECTIONS,
    Group,
    Option,
    declared,
    default_of,
    option,
    own_options,
    rare_option,
)
from llmgpu.registry import imported

if TYPE_CHECKING:
    from llmgpu.backend import Opening

T = TypeVar("T")
Opens = Callable[[Mapping[str, Any]], "Opening"]  # opens the device that a command's options name
_NEAR = 0.8  # similarity of spellings that differ by one or two letters; 1 means equal
# Sources of values that the user has chosen. Values from other sources are defaults.
_ASKED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)
_EXPRESSION = Option(
    ("--pattern-regex",),
    "expression",
    "Split by this regular expression instead (CPU only; needs the regex package).",
    metavar="EXPRESSION",
)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class ReportOptions:
    """Options for the messages and summaries of every command."""

    section: ClassVar[str] = COMMON

    # fmt: off
    as_json: bool = option(
        False, bool,
        "Print the summary as a JSON object on the last line of stdout, or of stderr if stdout "
        "carries data.", "--json")
    quiet: bool = option(
        False, bool, "Suppress everything on stderr except errors.", "--quiet", "-q")
    log_format: str = rare_option(
        "text", ("text", "json"),
        "Format of progress and notes on stderr; json writes an object per line.")
    debug: bool = rare_option(
        False, bool, "Show a traceback on errors.", settings={"expose_value": False})
    # fmt: on


class SectionedCommand(click.Command):
    """A command whose --help lists options under the headings `SECTIONS`, in this order."""

    context_class = HelpContext

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                sections[getattr(parameter, "section", COMMON)].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name or "Options"):
                    formatter.write_dl(records)


def command(
    name: str, does: str, cls: type[click.Command] = SectionedCommand, opens: Opens | None = None
) -> Callable[[type[T]], type[T]]:
    """Return a decorator for the class that declares the arguments and options of a command.

    The decorator makes the class a dataclass without constructor, and stores the command as its
    attribute `click_command`. The docstring of the class is the help. The command makes an object
    of the class and a `Reporter`, and calls the function of `does` with both. The `Opening` of a
    command that uses a device is the third argument.

    name: the command's name. does: ``module:name`` of the function in `llmgpu.cli` that does the
    work. opens: returns the `Opening` for values of options; called before `does` is imported.
    """

    def make(declaring: type[T]) -> type[T]:
        # Generating a constructor would take a millisecond when the program starts.
        kind: Any = dataclass(frozen=True, init=False, eq=False, repr=False)(declaring)

        def run(as_json: bool, quiet: bool, log_format: str, **values: Any) -> None:
            if values.get("pattern_regex"):
                if values["pattern"]:
                    raise click.UsageError("--pattern and --pattern-regex can't be combined")
                values["pattern"] = values["pattern_regex"]
            asked = _take(kind, values)
            _refuse_without_effect(kind)
            opened = [opens(values)] if opens else []
            work = imported(f"llmgpu.cli.{does}")
            from llmgpu.cli.console import Reporter  # not needed by --help

            # The reporter notes the memory of the process, which includes the imports of `work`.
            report = Reporter(quiet=quiet, as_json=as_json, log_format=log_format)
            work(asked, report, *opened)

        run.__doc__ = kind.__doc__
        params = [*parameters_of(kind), *parameters_of(ReportOptions)]
        kind.click_command = click.command(name, cls=cls, params=params)(run)
        return declaring

    return make


def parameters_of(kind: type) -> Iterator[click.Parameter]:
    """Yield the arguments and options that a dataclass and its groups declare, in their order."""
    for name, one in declared(kind).items():
        if isinstance(one, Group):
            yield from parameters_of(one.kind)
        elif one.flags:
            yield _make_option(name, one, default_of(kind, name))
            if one.kind == "pattern":
                yield _make_option("pattern_regex", _EXPRESSION, None)
        else:
            nargs = -1 if one.many else 1
            yield click.Argument([name], metavar=one.metavar, nargs=nargs, **one.settings)


def _make_option(name: str, one: Option, default: Any) -> click.Option:
    metavar = one.metavar or ("N" if one.kind in (int, "count") else None)
    settings: dict[str, Any] = {"type": one.kind, "metavar": metavar, "show_default": True}
    if default is MISSING:
        settings["required"] = True
    elif not one.many or default:
        settings["default"] = default if one.default_words is None else None
    if one.choices:
        settings["type"] = click.Choice(one.choices)
    elif isinstance(one.kind, str):
        settings["type"] = KINDS[one.kind]
    elif one.kind is bool:
        settings |= {"type": None, "is_flag": True}
    elif one.kind is int and one.least is not None:
        settings["type"] = click.IntRange(one.least, one.most)
    words = f"  [default: {one.default_words}]" if one.default_words else ""
    settings |= {"help": one.help + words, "multiple": one.many, **one.settings}
    made = _Option([*one.flags, name], **settings)
    made.section = one.section
    return made


class _Option(click.Option):
    """An option with a heading in --help.

    Unless the option is repeatable, a second, different value on the command line is an error.
    """

    section = ""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        if self.multiple:
            return
        names = (*self.opts, *self.secondary_opts)
        for each in {parser._long_opt.get(name) or parser._short_opt[name] for name in names}:
            each.process = partial(self._process, each.process, ctx)

    def _process(
        self, process: Callable[[Any, Any], None], ctx: click.Context, value: Any, state: Any
    ) -> None:
        """Store a value in `state.opts`; UsageError if a different value is stored already."""
        is_repeated, before = self.name in state.opts, state.opts.get(self.name)
        process(value, state)
        after = state.opts[self.name]
        if not is_repeated or before == after:
            return
        if self.secondary_opts:
            flags = f"{self.opts[0]} and {self.secondary_opts[0]}"
            raise click.UsageError(f"{flags} can't be combined", ctx)
        if self.type_cast_value(ctx, before) != self.type_cast_value(ctx, after):
            raise click.UsageError(
                f"{max(self.opts, key=len)} takes one value, and two are given: "
                f"{quote(before)} and {quote(after)}",
                ctx,
            )


def _take(kind: Any, values: dict[str, Any]) -> Any:
    """Return an object of a dataclass from a command's values; None is replaced by the default."""
    found: dict[str, Any] = {}
    for name, one in declared(kind).items():
        if isinstance(one, Option):
            value = values.get(name)
            if value is not None or default_of(kind, name) is MISSING:
                found[name] = value
        elif one.as_values:
            found[name] = {each: values[each] for each in own_options(one.kind)}
        else:
            found[name] = _take(one.kind, values)
    if kind.__init__ is not object.__init__:
        return kind(**found)
    made = object.__new__(kind)
    vars(made).update(found)
    return made


def was_given(name: str) -> bool:
    """Whether a parameter of the current command was given on the command line."""
    return _source_of(name) == ParameterSource.COMMANDLINE


def was_asked(name: str) -> bool:
    """Whether a parameter was given on the command line, in the environment or in a file."""
    return _source_of(name) in _ASKED


def _source_of(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)


def refuse_given(names: Container[str], reason: str) -> None:
    """Raise click.UsageError if any option in `names` was given on the command line.

    reason: the message after the flag.
    """
    for flag in flags_given(names):
        raise click.UsageError(f"{flag} {reason}")


def _refuse_without_effect(kind: type) -> None:
    """Raise click.UsageError if an option was given without the options that it needs."""
    values, own = click.get_current_context().params, own_options(kind)
    for name, one in own.items():
        if one.needs and was_given(name) and not any(values[each] for each in one.needs):
            needed = (f"{own[each].flag} {own[each].metavar or ''}".strip() for each in one.needs)
            raise click.UsageError(f"{one.flag} needs {' or '.join(needed)}")


def flags_given(names: Container[str]) -> list[str]:
    """Return the flags of the parameters in `names` that were given on the command line."""
    parameters = click.get_current_context().command.params
    found = [each for each in parameters if each.name in names and was_given(str(each.name))]
    return [
        str(each.name).upper() if isinstance(each, click.Argument) else max(each.opts, key=len)
        for each in found
    ]


def suggest(name: str, known: Iterable[str], table: Mapping[str, str], least: float = _NEAR) -> str:
    """Return the question "Did you mean ...?" with a blank before it; "" without a similar name.

    known: all names. table: names of other tools by names of llmgpu, see `llmgpu.spelling`.
    least: least similarity of spellings.
    """
    from difflib import get_close_matches

    from llmgpu.spelling import names_here

    known, ours = sorted(known), names_here(table, name.removeprefix("--"))
    longer = (each for each in known if each.startswith(name))
    near = [each for each in known if each == name or each in ours]
    near = near or [*dict.fromkeys([*longer, *get_close_matches(name, known, cutoff=least)])]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def explain_value(error: click.BadParameter) -> str:
    """Return a sentence of advice for the message about an invalid value, or ""."""
    from llmgpu.spelling import NO_VALUES, VALUE_NAMES

    # Find the given value in click's message.
    given, is_unknown, _ = error.message.partition("' is not one of ")
    kind = error.param.type if error.param is not None else None
    if not (is_unknown and isinstance(kind, click.Choice)):
        return ""
    value = given[1:].lower()
    if value in NO_VALUES:
        return f" {NO_VALUES[value]}."
    return suggest(value, kind.choices, VALUE_NAMES)


def suggest_option(error: click.NoSuchOption) -> click.UsageError:
    """Return the error for an unknown option, with advice if possible."""
    from llmgpu.spelling import FILES, NO_OPTIONS, OPTION_NAMES

    parameters = error.ctx.command.params if error.ctx else []
    name = error.option_name.lstrip("-").replace("_", "-")
    arguments = {str(each.name) for each in parameters if isinstance(each, click.Argument)}
    takes_files = name in FILES and not arguments.isdisjoint(("corpus", "files"))
    takes_vocabulary = name == "vocab" and not arguments.isdisjoint(("file", "vocab"))
    advice = "."
    if name in NO_OPTIONS:
        advice = f": {NO_OPTIONS[name]}"
    elif (takes_files or takes_vocabulary) and error.ctx:
        advice = f"; files need no option: {error.ctx.command_path} FILE"
    elif error.option_name.startswith("--"):
        known = {each for parameter in parameters for each in parameter.opts}
        advice += suggest(f"--{name}", known, OPTION_NAMES)
    return click.UsageError(f"No such option {error.option_name!r}{advice}", error.ctx)
