"""The command ``llmgpu run``: run a command in parts on the workers of a Ray cluster.

Each part is a command with ``--part``, as a user would run it by hand, in a process of Ray. The
commands that merge the parts run in this process. Ray starts a task for each part, as soon as a
device or `cpus` processors are free. Its processes run one task after the other: the device stays
open, and the encoder keeps the words of earlier parts. If a process is lost, its part is started
again, and the command of the part resumes from the finished files.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from llmgpu.backend import Opening
from llmgpu.cli.commands.parts import RunCommand
from llmgpu.cli.console import Reporter
from llmgpu.cli.groups import FILE_OPTIONS, READING_OPTIONS
from llmgpu.cli.options import refuse_given
from llmgpu.cli.parts import PLACEHOLDER
from llmgpu.errors import InputError, LlmgpuError
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.input_files import number_of, quote
from llmgpu.text.parts import Part

PARTS_OF_WORKER = 4  # parts for each worker: small parts keep all workers busy until the end
_RETRIES = 3  # new attempts at a part whose process was lost
_REFUSED = ("part", "decode", "count", "from_counts", "split", "shuffle", "max_tokens", "limit")
# Options that apply to counting only, not to training from counts.
_COUNTING = (*READING_OPTIONS, *FILE_OPTIONS)
_SHOWN = ("as_json", "quiet")
_TRAINING = ("output", "vocab_size", "counts_output", "counts_only", "checkpoint", "resume")
# Devices and encoders that a process of Ray keeps open for later parts.
_openings: dict[str, Opening] = {}


@dataclass(frozen=True)
class Job:
    """A command that runs in parts.

    name: the command's name. options: the options and files of all parts. output: the file of a
    part, with PLACEHOLDER in the name. merge: the command that merges the files of parts, as
    arguments without the files. last: the arguments of a command to run after the merge, if any.
    """

    device: str
    name: str
    options: list[str]
    output: str
    merge: list[str]
    last: list[str]

    def arguments_of(self, part: Part) -> list[str]:
        """Return the arguments of the command for a part, without --device."""
        return [self.name, "--part", str(part), *self.options]

    def output_of(self, part: Part) -> str:
        """Return the file of a part, which the merge reads."""
        return self.output.replace(PLACEHOLDER, part.file_name)


def run(asked: RunCommand, report: Reporter) -> None:
    """Run a command in parts on a Ray cluster, and combine the results."""
    cpus, job = asked.cpus, make_job(asked.command, asked.cpus)
    with _open_ray(asked.ray) as engine:
        slots = int(engine.cluster_resources().get("CPU", 0)) // cpus
        if not slots:
            raise InputError(f"no machine of the Ray cluster has {cpus} processors: use --cpus 1")
        numbers = range(1, (asked.parts or PARTS_OF_WORKER * slots) + 1)
        all_parts = [Part(number, len(numbers)) for number in numbers]
        report.line(f"{number_of(len(all_parts), 'part')} for {number_of(slots, 'Ray worker')}")
        summaries = _carry_out(engine, job, all_parts, cpus, report)
    outputs = [job.output_of(part) for part in all_parts]
    merged = _call([*job.merge, *outputs, "--quiet", "--json"])
    report.line(f"{merged['output']}: {number_of(len(all_parts), 'part')} combined")
    if job.last:
        merged = _call([*job.last, "--json", *(["--quiet"] if report.quiet else [])])
    report.summarize({**merged, "parts": summaries})


def make_job(command: Sequence[str], cpus: int) -> Job:
    """Return the job for a command; UsageError for a command that can't run in parts."""
    from llmgpu.cli import COMMANDS

    name, *arguments = command
    if name not in ("tokenize", "bpe-train"):
        raise click.UsageError(f"{quote(name)} can't be run in parts: use tokenize or bpe-train")
    # Check the options of the command.
    found = COMMANDS[name]
    with found.make_context(f"llmgpu {name}", [*arguments]) as context:
        values = dict(context.params)
        given, _, _ = found.make_parser(context).parse_args([*arguments])
        refused = [option for option in _REFUSED if values.get(option)]
        refuse_given(refused, "can't be combined with llmgpu run")
    names = values["files" if name == "tokenize" else "corpus"]
    if STANDARD_OUTPUT in names or not (names or values.get("files_from")):
        raise click.UsageError(
            "llmgpu run can't read a pipe; give files that all machines can open"
        )
    output = values["output"]
    stem, suffix = os.path.splitext(output)
    if name == "tokenize" and (output == STANDARD_OUTPUT or not values["shard_tokens"]):
        raise click.UsageError("tokenize in parts needs -o OUT.bin and --shard-tokens N")
    if output == STANDARD_OUTPUT:
        raise click.UsageError("bpe-train in parts needs -o FILE, which also names its counts")
    # Write the command lines of a part, of the merge, and of the last command.
    written = partial(_written, found, given)
    threads = [] if "threads" in given else ["--threads", str(cpus)]
    forced = ["--force"] if values["force"] else []
    if name == "tokenize":
        of_part, last = f"{stem}-{PLACEHOLDER}.json", []
        target = ["-o", f"{stem}-{PLACEHOLDER}{suffix}", "--resume"]
        own = written("output", "resume", *_SHOWN, "device")
        merge = ["merge-shards", "-o", f"{stem}.json", *forced]
    else:
        counts = values["counts_output"] or f"{stem}.counts"
        of_part = f"-{PLACEHOLDER}".join(os.path.splitext(counts))
        target = ["--counts-only", "--save-counts", of_part]
        own = written(*_TRAINING, *_SHOWN, "device")
        merge = ["merge-word-counts", "-o", counts, *forced]
        trained = written(*_COUNTING, *_SHOWN, "counts_output", "counts_only")
        last = ["bpe-train", "--from-counts", counts, *trained]
        last = [] if values["counts_only"] else last
    options = [*target, *threads, *own, "--", *names]
    return Job(values["device"], name, options, of_part, merge, last)


def _written(command: click.Command, given: Mapping[str, Any], *left_out: str) -> list[str]:
    """Return arguments for the options that the user gave, without the options in `left_out`.

    given: unparsed values of the command line, by the name of the parameter.
    """
    options = {each.name: each for each in command.params if isinstance(each, click.Option)}
    written: list[str] = []
    for name, value in given.items():
        if name not in options or name in left_out:
            continue
        option = options[name]
        if option.is_flag:
            written.append((option.opts if value else option.secondary_opts)[0])
        else:
            for each in value if option.multiple else [value]:
                written += [option.opts[0], each]
    return written


@contextmanager
def _open_ray(address: str) -> Iterator[Any]:
    """Connect to a Ray cluster. For local:N, start a cluster that only this machine can reach."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise InputError(
            f"llmgpu run needs the package ray: pip install 'llmgpu[ray]' ({error})"
        ) from error
    local = re.fullmatch(r"local:([1-9][0-9]{0,3})", address)
    options: dict[str, Any] = {"address": address}
    if local:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options = {"address": "local", "num_cpus": int(local[1]), "include_dashboard": False}
        options["_node_ip_address"] = "127.0.0.1"
    elif address.startswith("local"):
        raise click.UsageError(
            f"{quote(address)} is not a Ray cluster; use auto, ADDRESS or local:2"
        )
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"can't connect to Ray at {address}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _carry_out(
    ray: Any, job: Job, parts: Sequence[Part], cpus: int, report: Reporter
) -> list[dict[str, Any]]:
    """Run all parts; return their summaries. LlmgpuError for the first part that fails."""
    # Ray queues the tasks, and starts each when its resources are free.
    found = ray.cluster_resources()
    on_gpus = job.device in ("auto", "gpu") and found.get("GPU", 0) >= 1
    resources: dict[str, Any] = {"num_cpus": cpus, **({"num_gpus": 1} if on_gpus else {})}
    # With max_calls=0 a process with a GPU runs several tasks, too.
    task = ray.remote(**resources, max_retries=_RETRIES, max_calls=0)(do_part)
    device = None if on_gpus else job.device
    running = {task.remote(os.getcwd(), job.arguments_of(part), device): part for part in parts}
    summaries: dict[Part, dict[str, Any]] = {}
    while running:
        (done,), _ = ray.wait([*running], num_returns=1)
        part = running.pop(done)
        try:
            summary, error = ray.get(done)
        except ray.exceptions.RayError as lost:
            summary, error = {}, f"its worker was lost: {' '.join(str(lost).split())}"
        if error:  # the end of the connection also ends the other tasks
            raise LlmgpuError(f"part {part}: {error}")
        summaries[part] = summary
        amount = f"{summary['text_bytes']:,} bytes in {number_of(summary['documents'], 'document')}"
        report.line(f"part {part}: {amount}; {len(summaries)} of {len(parts)} parts done")
    return [summaries[part] for part in parts]


def do_part(
    folder: str, arguments: list[str], device: str | None
) -> tuple[dict[str, Any], str | None]:
    """Run the command of a part; return the summary, and the error message of a failed command.

    device: None for the GPU that Ray has assigned to this task.
    """
    if device is None:
        device = f"gpu:{importlib.import_module('ray').get_gpu_ids()[0]}"
    try:
        os.chdir(folder)
        command, *others = arguments
        arguments = [command, "--device", device, "--quiet", "--json", *others]
        return _call(arguments, _openings), None
    except (LlmgpuError, OSError, click.ClickException) as error:
        said = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return {}, said


def _call(arguments: list[str], openings: dict[str, Opening] | None = None) -> dict[str, Any]:
    """Run a command in this process; return its summary.

    openings: devices that stay open after the command.
    """
    from llmgpu.cli import cli

    printed = io.StringIO()
    with redirect_stdout(printed):
        cli.main(arguments, standalone_mode=False, obj=openings)
    summary: dict[str, Any] = json.loads(printed.getvalue().splitlines()[-1])
    return summary
