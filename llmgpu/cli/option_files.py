"""Options from a file: TOML, with the names that options have on the command line.

A command may read a file (``--config``), and may store the options of a run in the run's folder,
where ``--resume`` finds them. The command line overrules --config, and --config overrules the
stored options of the run.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from llmgpu.cli.options import SectionedCommand, suggest, was_asked
from llmgpu.cli.values import Parsed
from llmgpu.errors import InputError, arguments_of_file
from llmgpu.files import atomic_output
from llmgpu.input_files import quote, read_whole

OPTIONS_NAME = "options.toml"  # see `llmgpu.lm.runs.run_folder`
_NEVER_KEPT = frozenset(("resume", "force", "as_json", "quiet", "debug", "log_format"))
_STARTED_IN = "started-in"  # key of the folder to which the names of files are relative


class ConfiguredCommand(SectionedCommand):
    """A command with --config, and with a folder in which the options of a run are stored.

    A run that is resumed in another working folder works in the folder in which it was started,
    since stored names of files are relative to that folder. If that folder is gone, or if the
    command line names files, the command line must give all parameters in `names_files`.

    folder_option: the parameter that names the folder. names_files: the parameters that name the
    run's main files. all_files: all parameters that name files to read. not_kept: parameters that
    are not stored in the folder.
    """

    folder_option = "output"
    names_files = frozenset(("corpus", "vocab"))
    all_files = names_files | {"init", "eval_corpus", "chat_template", "config", "files_from"}
    not_kept = _NEVER_KEPT | {"config", "output"}

    def takes_kept(self, asked: Mapping[str, Any]) -> bool:
        """Whether a resumed run reads its stored options; asked: options on the command line."""
        return True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; options that are not given come from the files of options."""
        # Parse without defaults first, to find the options that overrule those in files.
        try:
            asked, _, _ = self.make_parser(ctx).parse_args(list(args))
        except click.UsageError:  # parsing again below raises the error
            asked = {}
        plain = (str, bool, int, list, tuple)  # leaves out click's sentinels
        asked = {name: value for name, value in asked.items() if isinstance(value, plain)}
        asked = {name: value for name, value in asked.items() if value != ()}
        # Read the stored options of the run to resume. Names of files in these options are relative
        # to `found_in`.
        found: dict[str, Any] = {}
        started_in = None
        folder = asked.get(self.folder_option)
        kept = Path(str(folder or "")) / OPTIONS_NAME
        if asked.get("resume") is True and folder and kept.is_file() and self.takes_kept(asked):
            found |= _read(self, kept)
            found_in = str(found.pop(_STARTED_IN, os.getcwd()))
            elsewhere = found_in != os.getcwd() and not self.names_files <= asked.keys()
            if elsewhere and os.path.isdir(found_in) and not asked.keys() & self.all_files:
                started_in = found_in
            elif elsewhere:
                named = (param for param in self.params if param.name in self.names_files)
                names = (max(param.opts, key=len) for param in named)
                both = " and ".join(name if name[0] == "-" else name.upper() for name in names)
                raise click.UsageError(
                    f"the run was started in {found_in}: resume it there, or name {both}", ctx
                )
        # --config overrules the options of the run.
        if isinstance(asked.get("config"), str):
            found |= _read(self, Path(asked["config"]))
        ctx.default_map = found
        left = super().parse_args(ctx, args)
        # Names of files are relative to `started_in`: work there until the command ends.
        if started_in is not None and not ctx.resilient_parsing:
            ctx.params[self.folder_option] = os.path.abspath(str(folder))
            ctx.call_on_close(partial(os.chdir, os.getcwd()))
            os.chdir(started_in)
        return left


class CheckpointedCommand(ConfiguredCommand):
    """A command that stores the options of a run in the folder of --checkpoint."""

    folder_option = "checkpoint"
    names_files = frozenset(("corpus", "output"))
    not_kept = _NEVER_KEPT | {"checkpoint"}

    def takes_kept(self, asked: Mapping[str, Any]) -> bool:
        """Whether a resumed training reads its stored options; asked: options on the command line.

        The stored options are read only if the command line has no options but --device and the
        options in `not_kept`, because with any other option a missing CORPUS may mean that the text
        comes from a pipe.
        """
        return asked.keys() <= self.not_kept | {"device"}


def keep_options(folder: Path) -> None:
    """Write the options of the current command, without defaults, to a run's folder.

    TOML can't contain names of files that are not UTF-8. Options with such names are left out, and
    must be given again when the run is resumed.
    """
    context = click.get_current_context()
    lines = [f"{_STARTED_IN} = {_toml(os.getcwd())}"]
    command = context.command
    assert isinstance(command, ConfiguredCommand)
    for parameter in command.params:
        name = str(parameter.name)
        value = context.params.get(name)
        if name in command.not_kept or not was_asked(name) or value is None:
            continue
        if isinstance(parameter.type, Parsed):
            value = parameter.type.spell(value)
        lines.append(f"{_names(parameter)[0]} = {_toml(value)}")
    kept = [line for line in lines if not re.search("[\ud800-\udfff]", line)]
    with atomic_output(str(folder / OPTIONS_NAME)) as file:
        file.write("\n".join([*kept, ""]).encode())


def _read(command: ConfiguredCommand, path: Path) -> dict[str, Any]:
    """Return the options in a file by names of parameters; InputError for an invalid file."""
    # Read the file.
    try:
        content = tomllib.loads(read_whole(path, "file of options").decode())
        repr(content)  # ValueError for a hexadecimal number of too many decimal digits
    except (OSError, ValueError, RecursionError) as error:
        nested = "nested too deep" if isinstance(error, RecursionError) else error
        reason = getattr(error, "strerror", None) or nested
        raise InputError(f"can't read the options in {path}: {reason}") from error
    for key in {"log-format", "log_format"} & content.keys():
        arguments_of_file.extend(["--log-format", str(content[key])])
    # Find the parameters by the names that a file may use.
    known: dict[str, click.Parameter | None] = {_STARTED_IN: None}
    for each in command.params:
        if each.name not in command.not_kept - {"output", "force", "log_format"}:
            known |= dict.fromkeys(_names(each), each)
    # Check names and values.
    found = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        if name not in known:
            raise InputError(f"{path} has {quote(key)}, {_advice(command, key, value, known)}")
        parameter = known[name]
        is_many = parameter is not None and (parameter.nargs != 1 or parameter.multiple)
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(each, (str, int, float)) for each in values):
            raise InputError(f"{path}: {key} is not a string, a number, true or false, or a list")
        if isinstance(value, list) and not is_many:
            raise InputError(f"{path}: {key} is a list, but takes one value")
        # Types of options parse texts; a flag's type parses "true" and "false".
        texts = [each if isinstance(each, str) else _toml(each) for each in values]
        found[str(parameter.name) if parameter else name] = texts if is_many else texts[0]
    return found


def _advice(command: click.Command, key: str, value: object, known: Iterable[str]) -> str:
    """Return the end of the error for an unknown key of a file, with advice if possible."""
    from llmgpu.spelling import OPTION_NAMES

    flag = f"--{key.replace('_', '-')}"
    if any(flag in parameter.opts for parameter in command.params):
        return f"which only the command line may have: {flag}"
    if isinstance(value, dict):
        return f"a table: write options without [{key}] above them"
    advice = suggest(flag, (f"--{each}" for each in known), OPTION_NAMES)
    return "which is not an option" + advice.replace(" Did", ": did").replace("--", "")


def _names(parameter: click.Parameter) -> list[str]:
    """Return the names that a file may use for a parameter, the longest first."""
    names = (name.lstrip("-") for name in parameter.opts)
    return sorted((name for name in names if len(name) > 1), key=len, reverse=True)


def _toml(value: object) -> str:
    """Return a value spelled in TOML."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)
    return str(value).lower() if isinstance(value, bool) else repr(value)
