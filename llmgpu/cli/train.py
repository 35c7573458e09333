"""What ``llmgpu train`` does: text or token files in, a language model out."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from llmgpu.backend import NUMPY, Backend, list_adapters, select_backend
from llmgpu.bpe.encoding.special_encoding import token_id
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import check_chat, with_chat, with_chat_template
from llmgpu.cli.commands.train import TrainCommand
from llmgpu.cli.console import Reporter, left_out_of
from llmgpu.cli.groups import id_or_text, required_input
from llmgpu.cli.option_files import keep_options
from llmgpu.cli.options import was_asked
from llmgpu.cli.starting_points import StartingPoint, find_starting_point
from llmgpu.cli.train_corpora import check_shares, resolve_corpora, resolve_evaluated
from llmgpu.cli.train_report import (
    RunReporter,
    announce,
    announce_resuming,
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
from llmgpu.lm.checkpoints.huggingface import Origin
from llmgpu.lm.data.inputs import default_separator, open_tokens
from llmgpu.lm.data.token_source import TokenSource
from llmgpu.lm.exchange import exchange_memory
from llmgpu.lm.local_steps import local_memory
from llmgpu.lm.options import TrainOptions
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
from llmgpu.lm.runs.settings import (
    RunSettings,
    gains_by_halves,
    new_settings,
    resumed_settings,
    step_to_resume_from,
)
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


def train(given: TrainCommand) -> None:
    """Train a Llama-style language model on CORPUS: text, or token files written by `tokenize`."""
    workers = start_workers()
    report = Reporter(quiet=given.report.quiet or not workers.is_first)
    if workers.count == 1 and (number := os.environ.get("WORLD_SIZE", "1")) != "1":
        report.note(
            f"WORLD_SIZE={number} has no effect: to train on several GPUs use mpiexec -n {number} "
            "llmgpu train"
        )
    with workers.all_or_none():
        asked = _take_options(given, workers, report)
        backend = None if given.resume else asked.select_new()
        check_outputs(_written(given.output, given.force), asked.inputs)
    with workers.together(say_failure), _open_folder(asked, given.output) as folder:
        with workers.first_alone():
            run, host_bytes = _open_run(asked, folder, backend)
        summary = run.run()
    if workers.is_first:
        summary |= {"estimated_memory_bytes": host_bytes}
        print_summary(report, summary, as_json=given.report.as_json)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the command was given, the workers that train, and where to report.

    device: of this worker. corpora: several with --weights. settings: for `new_settings`;
    `explicit` are the settings that were given. separator: the id of --eos, or the default one.
    inputs: all files that are read.
    """

    given: TrainCommand
    device: str
    corpora: list[Sources]
    evaluated: Sources | None
    start: StartingPoint
    settings: dict[str, Any]
    explicit: dict[str, Any]
    separator: int | None
    inputs: list[str]
    workers: Workers
    report: Reporter

    def select(self, **how: Any) -> Backend:
        """Return where to compute."""
        return select_backend(self.device, note=self.report.note, **how)

    def select_new(self) -> Backend:
        """Return where a run that starts now computes."""
        wanted = self.settings["precision"]
        halves = wanted == "f16" if wanted else gains_by_halves(self.new_settings())
        return self.select(matrices=halves)

    def new_settings(self, backend: Backend = NUMPY) -> RunSettings:
        """Return the settings of a run that starts now; what they lack depends on the backend."""
        settings = self.settings | {"driver": backend.driver}
        return new_settings(settings, self.start.vocabulary.size, self.start.config, backend)

    def check(self, options: TrainOptions) -> None:
        """Raise InputError for options that do not suit the workers or the intervals."""
        self.workers.check(options.grad_accum)
        self.given.intervals.check(options)


def _take_options(given: TrainCommand, workers: Workers, report: Reporter) -> _Asked:
    """Return what the options ask for; what can't work is refused before there is a folder."""
    # The texts.
    corpus = given.files.named(given.corpus)
    if given.resume and not (corpus or os.path.lexists(given.output)):
        raise InputError(f"{given.output} does not exist, so there is no run to resume")
    corpus = corpus or required_input(report, "CORPUS: text or token files")
    selection = replace(given.files.selection(), may_be_tokens=True)
    corpora = resolve_corpora(corpus, selection, given.training["corpus_weights"])
    device = _own_device(workers, given.device, corpus)
    evaluated = resolve_evaluated(given.eval_corpus)

    # The vocabulary and the model to begin with.
    check_chat(given.chat, SpecialOptions(eos=given.eos))
    start = find_starting_point(given, report)
    texts = (text.path for each in (*corpora, evaluated) if each for text in each.files)
    named = filter(None, (given.config, given.chat.chat_template))
    settings = {"preset": given.preset, **given.model, **given.training}
    explicit = {name: value for name, value in settings.items() if was_asked(name)}
    asked = _Asked(
        given=given,
        device=device,
        corpora=corpora,
        evaluated=evaluated,
        start=start,
        settings=start.with_defaults(settings, explicit),
        explicit=explicit,
        separator=_separator(start, given.eos),
        inputs=[*texts, *start.inputs, *named, *given.files.lists],
        workers=workers,
        report=report,
    )
    if not given.resume:
        asked.check(asked.new_settings().options)
    return asked


@dataclass(frozen=True)
class _Settled:
    """What a run does: as asked if it is new, else as its checkpoint says."""

    settings: RunSettings
    backend: Backend
    vocabulary: Vocabulary
    separator: int | None
    checkpoint: Checkpoint | None = None


def _settle_new(asked: _Asked, backend: Backend | None) -> _Settled:
    """Settle a run that starts at its first step; backend: if there is one already."""
    backend = backend or asked.select_new()
    settings = asked.new_settings(backend)
    return _Settled(settings, backend, asked.start.vocabulary, asked.separator)


def _settle_resumed(asked: _Asked, folder: RunFolder, checkpoint: Checkpoint) -> _Settled:
    """Settle the rest of a run; InputError if what is asked for is another run."""
    _check_same_init(folder, asked.given.init)
    checkpoint.require_vocabulary(asked.start.vocabulary, asked.start.name)
    settings = resumed_settings(checkpoint, asked.explicit)
    asked.check(settings.options)
    return _Settled(
        settings,
        asked.select(driver=settings.options.driver),
        with_chat_template(checkpoint.vocabulary, asked.given.chat.chat_template),
        _same_separator(checkpoint, asked),
        checkpoint,
    )


def _open_run(asked: _Asked, folder: RunFolder, backend: Backend | None) -> tuple[TrainingRun, int]:
    """Start or resume the run of a folder; return it and the bytes of memory that it takes.

    backend: of a new run.
    """
    report, workers, resume = asked.report, asked.workers, asked.given.resume
    checkpoint = _find_checkpoint(asked, folder) if resume else None
    if checkpoint is not None:
        settled = _settle_resumed(asked, folder, checkpoint)
        announce_resuming(report, checkpoint, settled.settings.options)
    else:
        settled = _settle_new(asked, backend)
        if resume:
            report.line(f"{folder.path} has no checkpoint yet: starting at the first step")
    settings, backend = settled.settings, settled.backend
    check_shares(asked.corpora, settings.options)
    steps = settings.options.steps
    needed_bytes = training_memory(settings, backend, asked.given.intervals.unread_steps(steps))
    host_bytes = host_memory(settings, backend, needed_bytes)
    if workers.count > 1:
        host_bytes += exchange_memory(settings.config.parameters)
    if settings.options.sync_every:
        host_bytes += local_memory(settings.config.parameters)
    if checkpoint is None or checkpoint.state.step < steps:
        announce(report, settings, backend, host_bytes, needed_bytes, workers.count)
    source, evaluated = _open_sources(asked, folder, settled)
    run = TrainingRun(
        folder,
        settings,
        backend,
        source,
        asked.given.intervals,
        checkpoint,
        needed_bytes,
        eos_id=settled.separator,
        init=asked.start.model,
        origin=Origin(_command(), [text.path for each in asked.corpora for text in each.files]),
        evaluation_source=evaluated,
        workers=workers,
        listener=RunReporter(report, steps),
    )
    if workers.is_first and resume:  # not before: what is refused changes nothing
        keep_options(folder.path)
    return run, host_bytes


def _open_sources(
    asked: _Asked, folder: RunFolder, settled: _Settled
) -> tuple[TokenSource, TokenSource | None]:
    """Open the tokens of a run; change what is in its folder, now that nothing can be wrong.

    Return those to train on, and those to evaluate on instead of a part of them, if any.
    """
    given, report, is_first = asked.given, asked.report, asked.workers.is_first
    if is_first and not given.resume:  # before a text is tokenized, which may end early
        keep_options(folder.path)
    # Text is encoded by wgpu, even where Dawn trains.
    uses_wgpu = settled.backend.driver == "wgpu"
    backend = settled.backend if uses_wgpu else select_backend(asked.device)
    options = given.reading.corpus_options()
    templates = Conversations(settled.vocabulary) if given.chat.chat else nullcontext()
    with closing(report), templates as conversations:
        opened: Callable[..., TokenSource] = partial(
            open_tokens,
            vocabulary=settled.vocabulary,
            vocabulary_name=asked.start.name,
            backend=backend,
            reading=with_chat(options, conversations),
            separator=settled.separator,
            resume=given.resume or not is_first,
            progress=report,
            dtype=given.token_dtype,
            told=lambda text: report.note_left_out(left_out_of(text)),
        )
        source, evaluated = opened(asked.corpora, folder=folder.tokens), None
        if asked.evaluated is not None:
            evaluated = opened([asked.evaluated], folder=folder.evaluation_tokens)
    if source.foreign_files:
        report.note(note_of_foreign(source.foreign_files, asked.start.name))
    if is_first and given.force:
        _remove_replaced(folder, (source, evaluated))
    if is_first and settled.checkpoint is not None:
        _set_decayed_aside(folder, settled.checkpoint, report)
    return source, evaluated


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


def _open_folder(asked: _Asked, path: str) -> RunFolder:
    """Return the run's folder, locked by the first worker."""
    if asked.workers.is_first:
        return open_run_folder(path, resume=asked.given.resume, force=asked.given.force)
    return RunFolder(Path(path))


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
    """Remove what is left of the earlier run, except for tokens that the new one reads."""
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


def _same_separator(checkpoint: Checkpoint, asked: _Asked) -> int | None:
    """Return the token between documents of a run that is resumed, which --eos may only repeat."""
    if asked.given.eos is not None and asked.separator != checkpoint.eos_id:
        raise InputError(
            f"--eos is id {asked.separator}, but the run in {checkpoint.folder.parent} has "
            f"{checkpoint.eos_id}: drop it to resume that run, or start a new one"
        )
    return checkpoint.eos_id


def _find_checkpoint(asked: _Asked, folder: RunFolder) -> Checkpoint | None:
    """Return the checkpoint that a run continues from; None if it ended before its first."""
    steps = list_checkpoints(folder.path)
    if not steps:
        return None
    newest = load_checkpoint(folder.path)
    step = step_to_resume_from(newest, asked.explicit.get("steps"))
    if step == newest.state.step:
        return newest
    if step not in steps:
        asked.report.note(f"{folder.path} has no checkpoint of step {step}, where its decay began")
        return newest
    return load_checkpoint(steps[step])
