"""What ``llmgpu train`` does: text or token files in, a language model out."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from llmgpu.backend import Backend, list_adapters, select_backend
from llmgpu.bpe.encoding.special_encoding import SpecialOptions, token_id
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import check_chat, with_chat, with_chat_template
from llmgpu.cli.console import Reporter, left_out_of
from llmgpu.cli.option_files import keep_options
from llmgpu.cli.options import id_or_text, make_corpus_options, piped_input
from llmgpu.cli.source_options import lists_of_files, named_files, take_selection
from llmgpu.cli.starting_points import StartingPoint, find_starting_point
from llmgpu.cli.train_corpora import check_shares, resolve_corpora, resolve_evaluated
from llmgpu.cli.train_report import (
    announce,
    announce_resuming,
    callbacks,
    print_summary,
    say_failure,
)
from llmgpu.errors import InputError
from llmgpu.files import output_errors
from llmgpu.input_files import printable
from llmgpu.lm.checkpoints.checkpoint import (
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    set_aside_checkpoints,
)
from llmgpu.lm.checkpoints.model_card import Origin
from llmgpu.lm.data.inputs import default_separator, open_tokens
from llmgpu.lm.data.token_source import TokenSource
from llmgpu.lm.exchange import exchange_memory
from llmgpu.lm.local_steps import local_memory
from llmgpu.lm.options import Intervals
from llmgpu.lm.runs.memory import host_memory, training_memory
from llmgpu.lm.runs.records import read_log
from llmgpu.lm.runs.run import TrainingRun
from llmgpu.lm.runs.run_folder import (
    EVALUATION_TOKENS_NAME,
    OPTIONS_NAME,
    SAMPLES_NAME,
    TOKENS_NAME,
    RunFolder,
    open_run_folder,
)
from llmgpu.lm.runs.settings import RunSettings, new_settings, resumed_settings, step_to_resume_from
from llmgpu.lm.workers import Workers, start_workers
from llmgpu.outputs import Output, check_outputs
from llmgpu.text.sources import Sources
from llmgpu.text.streams import STANDARD_INPUT
from llmgpu.tokens.conversations import Conversations
from llmgpu.tokens.foreign import note_of_foreign

REPLACED = (
    "log.jsonl",
    "loss.svg",
    TOKENS_NAME,
    EVALUATION_TOKENS_NAME,
    SAMPLES_NAME,
    "step-*",
    ".step-*",
    "decayed-*",
)  # what --force removes

_READING = ("text_field", "encoding_errors", "doc_separators", "limit", "bad_rows")
_INTERVALS = tuple(field.name for field in fields(Intervals))


def train(
    corpus: tuple[str, ...],
    vocab: str | None,
    init: str | None,
    output: str,
    resume: bool,
    force: bool,
    eos: str | None,
    eval_corpus: str | None,
    chat: bool,
    chat_template: str | None,
    device: str,
    as_json: bool,
    quiet: bool,
    config: str | None,
    **settings: Any,
) -> None:
    """Train a Llama-style language model on CORPUS: text, or token files written by `tokenize`."""
    workers = start_workers()
    report = Reporter(quiet=quiet or not workers.is_first)
    if workers.count == 1 and os.environ.get("WORLD_SIZE", "1") != "1":
        number = os.environ["WORLD_SIZE"]
        report.note(
            f"WORLD_SIZE={number} has no effect: to train on several GPUs use mpiexec -n {number} "
            "llmgpu train"
        )
    with workers.all_or_none():
        corpus = named_files(corpus, settings.pop("files_from"))
        if resume and not (corpus or os.path.lexists(output)):
            raise InputError(f"{output} does not exist, so there is no run to resume")
        corpus = corpus or _piped_corpus(report)
        selection = replace(take_selection(settings), may_be_tokens=True)
        corpora = resolve_corpora(corpus, selection, _READING, settings["corpus_weights"])
        device = _own_device(workers, device, corpus)
        reading = {name: settings.pop(name) for name in (*_READING, "token_dtype")}
        intervals = Intervals(**{name: settings.pop(name) or 0 for name in _INTERVALS})
        evaluated = resolve_evaluated(eval_corpus)
        check_chat(chat, chat_template, SpecialOptions(eos=eos))
        start = find_starting_point(vocab, init, chat_template, output if resume else None, report)
        explicit = _explicit(settings)
        settings = start.with_defaults(settings, explicit)
        if not resume:  # what can't work is refused before there is a folder
            wanted = new_settings(settings, start.vocabulary.size, start.config)
            workers.check(wanted.options.grad_accum)
            intervals.check(wanted.options)
        select = partial(select_backend, device, note=report.note)
        asked = _Asked(
            corpora,
            evaluated,
            init,
            start,
            eos,
            chat,
            chat_template,
            device,
            reading,
            settings,
            explicit,
            intervals,
            resume,
            force,
            select,
        )
        separator = _separator(start, eos)
        backend = None if resume else asked.select_new()
        inputs = [text.path for each in (*corpora, evaluated) if each for text in each.files]
        inputs += [*start.inputs, *filter(None, [config, chat_template]), *lists_of_files()]
        check_outputs(_written(output, force), inputs)
    with (
        workers.together(say_failure),
        _open_folder(workers, output, resume=resume, force=force) as folder,
    ):
        with workers.first_alone():
            run, host_bytes = _open_run(asked, folder, separator, backend, workers, report)
        summary = run.run()
    if workers.is_first:
        summary |= {"estimated_memory_bytes": host_bytes}
        print_summary(report, summary, as_json=as_json)


@dataclass(frozen=True)
class _Asked:
    """What the command was given."""

    corpora: list[Sources]  # several with --weights
    evaluated: Sources | None
    init: str | None
    start: StartingPoint
    eos: str | None
    chat: bool
    chat_template: str | None
    device: str
    reading: dict[str, Any]
    settings: dict[str, Any]
    explicit: dict[str, Any]
    intervals: Intervals
    resume: bool
    force: bool
    select: Callable[..., Backend]

    def select_new(self) -> Backend:
        """Return the backend of a run that starts now."""
        return self.select(matrices=self.settings["precision"] != "f32")


@dataclass(frozen=True)
class _Settled:
    """What a run does: as asked if it is new, else as its checkpoint says."""

    settings: RunSettings
    backend: Backend
    vocabulary: Vocabulary
    separator: int | None
    checkpoint: Checkpoint | None = None


def _settle_new(asked: _Asked, separator: int | None, backend: Backend | None) -> _Settled:
    """Settle a run that starts at its first step; backend: if there is one already."""
    backend = backend or asked.select_new()
    settings = asked.settings | {"driver": backend.driver}
    vocabulary = asked.start.vocabulary
    made = new_settings(settings, vocabulary.size, asked.start.config, backend)
    return _Settled(made, backend, vocabulary, separator)


def _settle_resumed(
    asked: _Asked,
    folder: RunFolder,
    checkpoint: Checkpoint,
    separator: int | None,
    workers: Workers,
) -> _Settled:
    """Settle the rest of a run; InputError if what is asked for is another run."""
    _check_same_init(folder, asked.init)
    checkpoint.require_vocabulary(asked.start.vocabulary, asked.start.name)
    settings = resumed_settings(checkpoint, asked.explicit)
    workers.check(settings.options.grad_accum)
    asked.intervals.check(settings.options)
    return _Settled(
        settings,
        asked.select(driver=settings.options.driver),
        with_chat_template(checkpoint.vocabulary, asked.chat_template),
        _same_separator(checkpoint, asked.eos, separator),
        checkpoint,
    )


def _open_run(
    asked: _Asked,
    folder: RunFolder,
    separator: int | None,
    backend: Backend | None,
    workers: Workers,
    report: Reporter,
) -> tuple[TrainingRun, int]:
    """Start or resume the run of a folder; return it and the bytes of memory that it takes.

    backend: of a new run.
    """
    checkpoint = _find_checkpoint(folder, asked.explicit, report) if asked.resume else None
    if checkpoint is not None:
        settled = _settle_resumed(asked, folder, checkpoint, separator, workers)
        announce_resuming(report, checkpoint, settled.settings.options)
    else:
        settled = _settle_new(asked, separator, backend)
        if asked.resume:
            report.line(f"{folder.path} has no checkpoint yet: starting at the first step")
    settings, backend = settled.settings, settled.backend
    check_shares(asked.corpora, settings.options)
    steps = settings.options.steps
    needed_bytes = training_memory(settings, backend, asked.intervals.unread_steps(steps))
    host_bytes = host_memory(settings, backend, needed_bytes)
    if workers.count > 1:
        host_bytes += exchange_memory(settings.config.parameters)
    if settings.options.sync_every:
        host_bytes += local_memory(settings.config.parameters)
    if checkpoint is None or checkpoint.state.step < steps:
        announce(report, settings, backend, host_bytes, needed_bytes, workers.count)
    source, evaluated = _open_sources(asked, folder, settled, workers, report)
    run = TrainingRun(
        folder,
        settings,
        backend,
        source,
        source.vocabulary,
        asked.intervals,
        checkpoint,
        needed_bytes,
        eos_id=settled.separator,
        init=asked.start.model,
        origin=Origin(_command(), [text.path for each in asked.corpora for text in each.files]),
        evaluation_source=evaluated,
        workers=workers,
        **callbacks(report, steps),
    )
    if workers.is_first and asked.resume:  # not before: what is refused changes nothing
        keep_options(folder.path)
    return run, host_bytes


def _open_sources(
    asked: _Asked, folder: RunFolder, settled: _Settled, workers: Workers, report: Reporter
) -> tuple[TokenSource, TokenSource | None]:
    """Open the tokens of a run; change what is in its folder, now that nothing can be wrong."""
    if workers.is_first and not asked.resume:  # before a text is tokenized, which may end early
        keep_options(folder.path)
    resume = asked.resume or not workers.is_first
    encoding = _encoding_backend(settled.backend, asked.device)
    source, evaluated = _open_tokens(
        asked,
        folder,
        report,
        settled.vocabulary,
        encoding,
        separator=settled.separator,
        resume=resume,
    )
    if source.foreign_files:
        report.note(note_of_foreign(source.foreign_files, asked.start.name))
    if asked.force and workers.is_first:
        _remove_replaced(folder, (source, evaluated))
    if settled.checkpoint is not None and workers.is_first:
        _set_decayed_aside(folder, settled.checkpoint, report)
    return source, evaluated


def _open_tokens(
    asked: _Asked,
    folder: RunFolder,
    report: Reporter,
    vocabulary: Vocabulary,
    backend: Backend,
    **how: Any,
) -> tuple[TokenSource, TokenSource | None]:
    """Return the tokens to train on, and those to evaluate on instead of a part of them, if any."""
    dtype = asked.reading.pop("token_dtype")
    options = make_corpus_options(**asked.reading)
    templates = Conversations(vocabulary) if asked.chat else nullcontext()
    with closing(report), templates as conversations:
        opened: Callable[..., TokenSource] = partial(
            open_tokens,
            vocabulary=vocabulary,
            vocabulary_name=asked.start.name,
            backend=backend,
            reading=with_chat(options, conversations),
            progress=report,
            dtype=dtype,
            told=lambda text: report.note_left_out(left_out_of(text)),
            **how,
        )
        source = opened(asked.corpora, folder=folder.tokens)
        if asked.evaluated is None:
            return source, None
        return source, opened([asked.evaluated], folder=folder.evaluation_tokens)


def _command() -> str:
    """Return the command line, as a shell takes it; bytes that are not UTF-8 are escaped."""
    return printable(shlex.join(["llmgpu", *sys.argv[1:]]))


def _own_device(workers: Workers, device: str, corpus: Sequence[str]) -> str:
    """Return where this worker computes; InputError if the workers can't train together."""
    if workers.count == 1:
        return device
    if STANDARD_INPUT in corpus:
        raise InputError("several workers can't read standard input: name files")
    gpus = [info for info in list_adapters() if not info.is_software] if device != "cpu" else []
    return workers.device(device, len(gpus))


def _open_folder(workers: Workers, path: str, *, resume: bool, force: bool) -> RunFolder:
    """Return the run's folder, locked by the first worker."""
    if workers.is_first:
        return open_run_folder(path, resume=resume, force=force)
    return RunFolder(Path(path))


def _encoding_backend(training: Backend, device: str) -> Backend:
    """Return where text is encoded: by wgpu, no matter what trains."""
    return training if training.driver == "wgpu" else select_backend(device)


def _piped_corpus(report: Reporter) -> tuple[str, ...]:
    corpus = piped_input(report)
    if not corpus:
        raise click.UsageError("give CORPUS: text or token files, or - for standard input")
    return corpus


def _separator(start: StartingPoint, eos: str | None) -> int | None:
    named = id_or_text(eos)
    if named is not None:
        return token_id(start.vocabulary, named)
    found = default_separator(start.vocabulary)
    return start.model.eos_id if found is None and start.model is not None else found


def _check_same_init(folder: RunFolder, init: str | None) -> None:
    """Raise InputError if --init names another model than the run that is resumed began with."""
    before = read_log(folder.log).facts.get("init")
    if init is None:
        return
    if before is None or Path(init) not in (Path(before), Path(before).parent):
        began = "began with new weights" if before is None else f"began with --init {before}"
        raise InputError(
            f"--init is {init}, but the run in {folder.path} {began}: drop it to resume that "
            "run, or start a new one"
        )


def _remove_replaced(folder: RunFolder, sources: Sequence[TokenSource | None]) -> None:
    """Remove what is left of the earlier run, but for tokens that the new one reads."""
    in_use = {path for source in sources if source is not None for path in source.folders}
    folder.remove(REPLACED, in_use)


def _set_decayed_aside(folder: RunFolder, checkpoint: Checkpoint, report: Reporter) -> None:
    """Keep the checkpoints after the one that the run continues from, under other names."""
    for path, renamed in set_aside_checkpoints(folder.path, checkpoint.state.step).items():
        with output_errors(str(renamed)):
            shutil.copyfile(folder.log, renamed / folder.log.name)
        report.note(
            f"{path} belongs to the decay of the earlier schedule; the decay now starts later, so "
            f"it is kept as {renamed}, with its log"
        )


def _written(folder: str, force: bool) -> list[Output]:
    """Return the files in a run folder that a run writes; with `force`, all that it removes."""
    patterns = (*(REPLACED if force else ("log.jsonl", "loss.svg")), OPTIONS_NAME)
    found = [path for pattern in patterns for path in Path(folder).glob(pattern)]
    inside = [file for path in found if path.is_dir() for file in path.rglob("*")]
    return [Output(str(path), None) for path in (*found, *inside)]


def _explicit(settings: dict[str, Any]) -> dict[str, Any]:
    """Return those of `settings` that were given on the command line or in a file."""
    context = click.get_current_context()
    given = (
        ParameterSource.COMMANDLINE,
        ParameterSource.ENVIRONMENT,
        ParameterSource.DEFAULT_MAP,
    )
    return {
        name: value
        for name, value in settings.items()
        if context.get_parameter_source(name) in given
    }


def _same_separator(checkpoint: Checkpoint, eos: str | None, given: int | None) -> int | None:
    """Return the token between documents of a run that is resumed, which --eos may only repeat."""
    if eos is not None and given != checkpoint.eos_id:
        raise InputError(
            f"--eos is id {given}, but the run in {checkpoint.folder.parent} has "
            f"{checkpoint.eos_id}: drop it to resume that run, or start a new one"
        )
    return checkpoint.eos_id


def _find_checkpoint(
    folder: RunFolder, explicit: Mapping[str, Any], report: Reporter
) -> Checkpoint | None:
    """Return the checkpoint that a run continues from; None if it ended before its first."""
    steps = list_checkpoints(folder.path)
    if not steps:
        return None
    newest = load_checkpoint(folder.path)
    step = step_to_resume_from(newest, explicit.get("steps"))
    if step == newest.state.step:
        return newest
    if step not in steps:
        report.note(f"{folder.path} has no checkpoint of step {step}, where its decay began")
        return newest
    return load_checkpoint(steps[step])
