"""The command ``llmgpu train``: train a language model on text or token files."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from llmgpu.backend import NUMPY, Backend, list_adapters, select_backend
from llmgpu.bpe.encoding.special_encoding import token_id
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.interchange.open import find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import check_chat, rendering, with_chat, with_chat_template
from llmgpu.cli.commands.train import TrainCommand
from llmgpu.cli.console import Reporter, human_count, human_time, left_out_of, print_json
from llmgpu.cli.groups import READING_OPTIONS, check_text_field, id_or_text, required_input
from llmgpu.cli.option_files import keep_options
from llmgpu.cli.options import refuse_given, was_asked
from llmgpu.errors import InputError, error_line, shorten
from llmgpu.files import output_errors
from llmgpu.input_files import number_of, printable
from llmgpu.lm.checkpoints.checkpoint import (
    VOCABULARY,
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    open_model,
    set_aside_checkpoints,
)
from llmgpu.lm.checkpoints.huggingface import Origin
from llmgpu.lm.checkpoints.pretrained import SavedModel
from llmgpu.lm.data.inputs import are_tokens, default_separator, open_tokens
from llmgpu.lm.data.token_source import TokenSource
from llmgpu.lm.exchange import exchange_memory, local_memory
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.runs.memory import host_memory, require_free, require_layers, training_memory
from llmgpu.lm.runs.records import StepRecord, read_log
from llmgpu.lm.runs.run import RunListener, RunPlan, TrainingRun, initial_weights
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
    explain_schedule,
    gains_by_halves,
    new_settings,
    resumed_settings,
    step_to_resume_from,
)
from llmgpu.lm.workers import Workers, start_workers
from llmgpu.memory import Memory, free_memory
from llmgpu.outputs import Output, check_outputs
from llmgpu.text.corpus import Corpus
from llmgpu.text.sources import Selection, Sources, resolve_sources
from llmgpu.text.streams import STANDARD_INPUT
from llmgpu.tokens.bin import note_of_foreign

# Entries of a run folder that --force removes.
REPLACED = (
    "log.jsonl",
    "loss.svg",
    TOKENS_NAME,
    EVALUATION_TOKENS_NAME,
    SAMPLES_NAME,
    "step-*",
    ".step-*",
    "decayed-*",
)


def train(given: TrainCommand) -> None:
    """Train a Llama-style language model on CORPUS: text, or token files written by `tokenize`."""
    begun = time.perf_counter()
    workers = start_workers()
    report = Reporter(quiet=given.report.quiet or not workers.is_first)
    if workers.count == 1 and (number := os.environ.get("WORLD_SIZE", "1")) != "1":
        report.note(
            f"WORLD_SIZE={number} has no effect: to train on several GPUs use mpiexec -n {number} "
            "llmgpu train"
        )
    with workers.all_or_none():
        asked = replace(_take_options(given, workers, report), begun=begun)
        backend = None if given.resume else asked.select_new()
        check_outputs(_written(given.output, given.force), asked.inputs)
    with workers.together(say_failure), _open_folder(asked, given.output) as folder:
        with workers.first_alone():
            run, host_bytes = _open_run(asked, folder, backend)
        with report:
            summary = run.run()
    if workers.is_first:
        summary |= {"estimated_memory_bytes": max(host_bytes, report.needed_bytes)}
        print_summary(report, summary, as_json=given.report.as_json)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The command's options after checks, the workers that train, and the reporter.

    device: the device of this worker. corpora: one corpus, or several with --weights. settings:
    arguments of `new_settings`. explicit: the settings that the user has given. separator: the id
    of --eos, or of the default separator. inputs: all files that the command reads. begun: see
    `RunPlan`.
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
    begun: float = 0.0

    def select(self, settings: RunSettings, **how: Any) -> Backend:
        """Return the backend of `device`; how: arguments of `select_backend`.

        Raises DeviceError, before an adapter is opened, for a model with too many layers.
        """

        def check(is_software: bool) -> None:
            require_layers(settings.config, is_software=is_software)

        return select_backend(self.device, note=self.report.note, check=check, **how)

    def select_new(self) -> Backend:
        """Return the backend of a new run.

        With --precision f16, or if half precision makes the run faster, a driver with matrix units
        is preferred.
        """
        wanted = self.settings["precision"]
        settings = self.new_settings()
        halves = wanted == "f16" if wanted else gains_by_halves(settings)
        return self.select(settings, matrices=halves)

    def new_settings(self, backend: Backend = NUMPY) -> RunSettings:
        """Return the settings of a new run; their defaults depend on the backend."""
        settings = self.settings | {"driver": backend.driver}
        start, model = self.start, self.start.model
        sizes = None if model is None else model.config
        return new_settings(settings, start.vocabulary.size, sizes, backend)

    def check(self, options: TrainOptions) -> None:
        """Raise InputError for options that contradict the number of workers or the intervals."""
        self.workers.check(options.grad_accum)
        self.given.intervals.check(options)


def _take_options(given: TrainCommand, workers: Workers, report: Reporter) -> _Asked:
    """Check the options, and find the files, the vocabulary and the model that they name.

    Invalid options raise errors here, before the run folder is created.
    """
    # Find the files of text or ids.
    corpus = given.files.named(given.corpus)
    if given.resume and not (corpus or os.path.lexists(given.output)):
        raise InputError(f"{given.output} does not exist, so there is no run to resume")
    corpus = corpus or required_input(report, "CORPUS: text or token files")
    selection = replace(given.files.selection(), may_be_tokens=True)
    corpora = resolve_corpora(corpus, selection, given.training["corpus_weights"])
    device = _own_device(workers, given.device, corpus)
    evaluated = resolve_evaluated(given.eval_corpus)

    # Open the vocabulary, and the model to start from.
    check_chat(given.chat.chat, given.chat.chat_template, SpecialOptions(eos=given.eos))
    start = find_starting_point(given, report)
    texts = (text.path for each in (*corpora, evaluated) if each for text in each.files)
    named = filter(None, (given.config, given.chat.chat_template))
    settings = {"preset": given.preset, **given.model, **given.training}
    explicit = {name: value for name, value in settings.items() if was_asked(name)}
    if start.model is not None and "preset" in explicit:
        raise InputError("--preset can't be combined with --init, whose model sets the sizes")
    asked = _Asked(
        given=given,
        device=device,
        corpora=corpora,
        evaluated=evaluated,
        start=start,
        settings=settings,
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
    """Settings, backend and state of a new run, or of a run that continues from a checkpoint."""

    settings: RunSettings
    backend: Backend
    vocabulary: Vocabulary
    separator: int | None
    checkpoint: Checkpoint | None = None


def _settle_resumed(asked: _Asked, folder: RunFolder, checkpoint: Checkpoint) -> _Settled:
    """Return the settings of a resumed run; InputError for options that belong to another run."""
    _check_same_init(folder, asked.given.init)
    checkpoint.require_vocabulary(asked.start.vocabulary, asked.start.name)
    settings = resumed_settings(checkpoint, asked.explicit)
    asked.check(settings.options)
    return _Settled(
        settings,
        asked.select(settings, driver=settings.options.driver),
        with_chat_template(checkpoint.vocabulary, asked.given.chat.chat_template),
        _same_separator(checkpoint, asked),
        checkpoint,
    )


def _open_run(asked: _Asked, folder: RunFolder, backend: Backend | None) -> tuple[TrainingRun, int]:
    """Start or resume the run of a folder; return the run and its memory on the host, in bytes.

    backend: the backend of a new run, None to select one.
    """
    report, workers, resume = asked.report, asked.workers, asked.given.resume
    # Read the settings from the checkpoint, or choose the settings of a new run.
    checkpoint = _find_checkpoint(asked, folder) if resume else None
    if checkpoint is not None:
        settled = _settle_resumed(asked, folder, checkpoint)
        announce_resuming(report, checkpoint, settled.settings.options)
    else:
        backend = backend or asked.select_new()
        new, vocabulary = asked.new_settings(backend), asked.start.vocabulary
        settled = _Settled(new, backend, vocabulary, asked.separator)
        if resume:
            report.line(f"{folder.path} has no checkpoint yet: starting at the first step")
    settings, backend = settled.settings, settled.backend
    check_shares(asked.corpora, settings.options)
    # Before the text is read, refuse a run that does not fit into memory.
    steps = settings.options.steps
    needed_bytes = training_memory(settings, backend, asked.given.intervals.unread_steps(steps))
    host_bytes = host_memory(settings, backend, needed_bytes)
    if settings.options.sync_every:
        host_bytes += local_memory(settings.config.parameters)
    elif workers.count > 1:
        host_bytes += exchange_memory(settings.config.parameters)
    if checkpoint is None or checkpoint.state.step < steps:
        announce(report, settings, backend, host_bytes, needed_bytes, workers.count)
    # Make the run. Open the data while threads draw the weights.
    is_new = checkpoint is None and asked.start.model is None
    initial = initial_weights(settings) if is_new else None
    source, evaluated = _open_sources(asked, folder, settled)
    plan = RunPlan(
        settings=settings,
        intervals=asked.given.intervals,
        backend=backend,
        source=source,
        evaluation_source=evaluated,
        eos_id=settled.separator,
        checkpoint=checkpoint,
        init=asked.start.model,
        initial=initial,
        origin=Origin(_command(), [text.path for each in asked.corpora for text in each.files]),
        needed_bytes=needed_bytes,
        begun=asked.begun,
    )
    run = TrainingRun(folder, plan, RunReporter(report, steps), workers)
    if workers.is_first and resume:  # last, so that a command that fails earlier changes no file
        keep_options(folder.path)
    return run, host_bytes


def _open_sources(
    asked: _Asked, folder: RunFolder, settled: _Settled
) -> tuple[TokenSource, TokenSource | None]:
    """Open the tokens of a run. This is the first step that changes the run folder.

    Returns the tokens to train on, and the tokens of --eval-corpus. Without --eval-corpus the
    second result is None, and some of the training tokens are held out.
    """
    given, report, is_first = asked.given, asked.report, asked.workers.is_first
    # Store the options before tokenizing: if tokenizing is interrupted, --resume needs the options.
    if is_first and not given.resume:
        keep_options(folder.path)
    # Text is encoded through wgpu, even if the model is trained through Dawn.
    uses_wgpu = settled.backend.driver == "wgpu"
    backend = settled.backend if uses_wgpu else select_backend(asked.device)
    options = given.reading.corpus_options()
    with report, rendering(given.chat, settled.vocabulary) as conversations:
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
            told=partial(
                _note_text, report, needs_end=settled.separator is None and conversations is None
            ),
        )
        source, evaluated = opened(asked.corpora, folder=folder.tokens), None
        if asked.evaluated is not None:
            evaluated = opened([asked.evaluated], folder=folder.evaluation_tokens)
    if source.foreign_files:
        report.note(note_of_foreign(source.foreign_files, asked.start.name))
    if is_first and given.force:
        # Remove the old run, but not its tokens if the new run reads them.
        sources = (each for each in (source, evaluated) if each is not None)
        folder.remove(REPLACED, {path for each in sources for path in each.folders})
    if is_first and settled.checkpoint is not None:
        _set_decayed_aside(folder, settled.checkpoint, report)
    return source, evaluated


def _command() -> str:
    """Return the command line as written in a shell; bytes that are not UTF-8 are escaped."""
    return printable(shlex.join(["llmgpu", *sys.argv[1:]]))


def _own_device(workers: Workers, device: str, corpus: Sequence[str]) -> str:
    """Return this worker's device; InputError if the workers can't train together."""
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


def _note_text(report: Reporter, text: Corpus, *, needs_end: bool) -> None:
    """Report the rows of a text that were left out.

    needs_end: report that no token ends a document, if there are several documents.
    """
    report.note_left_out(left_out_of(text))
    if needs_end and text.documents > 1:
        report.note(
            "no token ends a document: the vocabulary has none such as <|endoftext|>, which "
            "bpe-train --special-token adds"
        )


def _separator(start: StartingPoint, eos: str | None) -> int | None:
    named = id_or_text(eos)
    if named is not None:
        return token_id(start.vocabulary, named)
    found = default_separator(start.vocabulary)
    return start.model.eos_id if found is None and start.model is not None else found


def _check_same_init(folder: RunFolder, init: str | None) -> None:
    """Raise InputError if --init names another model than the run began with."""
    before = read_log(folder.log).facts.get("init")
    if init is None:
        return
    if before is None or Path(init) not in (Path(before), Path(before).parent):
        began = "began with new weights" if before is None else f"began with --init {before}"
        raise InputError(
            f"--init is {init}, but the run in {folder.path} {began}: drop it to resume that "
            "run, or start a new one"
        )


def _set_decayed_aside(folder: RunFolder, checkpoint: Checkpoint, report: Reporter) -> None:
    """Rename the checkpoints after the step from which the run continues; none is deleted."""
    for path, renamed in set_aside_checkpoints(folder.path, checkpoint.state.step).items():
        with output_errors(str(renamed)):
            shutil.copyfile(folder.log, renamed / folder.log.name)
        report.note(
            f"{path} belongs to the decay of the earlier schedule; the decay now starts later, so "
            f"it is kept as {renamed}, with its log"
        )


def _written(folder: str, force: bool) -> list[Output]:
    """Return the existing files in a run folder that a run replaces or, with `force`, removes."""
    patterns = (*(REPLACED if force else ("log.jsonl", "loss.svg")), OPTIONS_NAME)
    found = [path for pattern in patterns for path in Path(folder).glob(pattern)]
    inside = [file for path in found if path.is_dir() for file in path.rglob("*")]
    return [Output(str(path), None) for path in (*found, *inside)]


def _same_separator(checkpoint: Checkpoint, asked: _Asked) -> int | None:
    """Return a resumed run's token between documents; InputError if --eos names another."""
    if asked.given.eos is not None and asked.separator != checkpoint.eos_id:
        raise InputError(
            f"--eos is id {asked.separator}, but the run in {checkpoint.folder.parent} has "
            f"{checkpoint.eos_id}: drop it to resume that run, or start a new one"
        )
    return checkpoint.eos_id


def _find_checkpoint(asked: _Asked, folder: RunFolder) -> Checkpoint | None:
    """Return the checkpoint to continue from; None if the run ended before its first checkpoint."""
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


@dataclass(frozen=True)
class StartingPoint:
    """The vocabulary, and maybe the model, from which a run starts.

    name: the vocabulary's name in messages. inputs: the files that are read. model: the model of
    --init; None without --init, and for a run that resumes from a checkpoint.
    """

    vocabulary: Vocabulary
    name: str
    inputs: list[str]
    model: SavedModel | None = None


def find_starting_point(given: TrainCommand, report: Reporter) -> StartingPoint:
    """Open the vocabulary of --vocab and the model of --init.

    Without --vocab, the vocabulary comes from the model or from the run's last checkpoint.

    Raises click.MissingParameter without a vocabulary; InputError if the model has another
    vocabulary than --vocab.
    """
    vocab, init, chat_template = given.vocab, given.init, given.chat.chat_template
    steps = list_checkpoints(given.output) if given.resume else {}
    model = open_model(init, report.note) if init is not None and not steps else None
    # Without --vocab, use the vocabulary of the model or of the run.
    if vocab is None and init is not None:
        if model is None:
            vocab = str(steps[max(steps)] / VOCABULARY)
        else:
            files = [str(path) for path in model.folder.iterdir()]
            vocabulary = _as_trained(model.vocabulary, chat_template)
            return StartingPoint(vocabulary, str(model.folder), files, model)
    if vocab is None:
        context = click.get_current_context()
        named = {parameter.name: parameter for parameter in context.command.params}
        raise click.MissingParameter(ctx=context, param=named["vocab"])
    # With --vocab, require the vocabulary of the model; only the match rule may differ.
    found = find_vocabulary(vocab)
    vocabulary = _as_trained(found.read(report.note), chat_template)
    if model is not None:
        matched = vocabulary.with_match(model.vocabulary.match)
        if matched.fingerprint != model.vocabulary.fingerprint:
            raise InputError(
                f"{vocab} has the fingerprint {matched.fingerprint[:12]}, but the model in {init} "
                f"needs {model.vocabulary.fingerprint[:12]}; drop --vocab"
            )
        model = replace(model, vocabulary=matched)
    return StartingPoint(vocabulary, vocab, found.inputs, model)


def _as_trained(vocabulary: Vocabulary, chat_template: str | None) -> Vocabulary:
    """Return a run's vocabulary, without tokens around texts: a run adds only the separator."""
    return replace(with_chat_template(vocabulary, chat_template), prefix_ids=(), suffix_ids=())


def resolve_corpora(
    corpus: Sequence[str], selection: Selection, weights: str | None
) -> list[Sources]:
    """Return the files of each corpus: with --weights one corpus per name, else a single corpus.

    Raises UsageError for options about text if no file is text, InputError if the number of weights
    is not the number of names.
    """
    count = weights.count(",") + 1 if weights else 0
    if count not in (0, len(corpus)):
        have = f"{number_of(count, 'value')}, but CORPUS has {number_of(len(corpus), 'name')}"
        raise InputError(f"--weights has {have}")
    names = [[name] for name in corpus] if weights else [corpus]
    corpora = [resolve_sources(each, selection) for each in names]
    texts = [file for sources in corpora if not are_tokens(sources) for file in sources.files]
    if texts:
        check_text_field(texts)
    else:
        path = corpora[0].files[0].path
        refuse_given((*READING_OPTIONS, "chat"), f"is for text, and {path} has tokens")
    return corpora


def resolve_evaluated(path: str | None) -> Sources | None:
    """Return the files of --eval-corpus or None; UsageError if tokens are to be held out, too."""
    if path is None:
        return None
    refuse_given(
        ("evaluation_fraction", "evaluation_parts"), "can't be combined with --eval-corpus"
    )
    return resolve_sources([path], Selection(may_be_tokens=True))


def check_shares(corpora: Sequence[Sources], options: TrainOptions) -> None:
    """Raise InputError unless there is a corpus for each of the run's weights."""
    if len(options.shares) != len(corpora):
        raise InputError(
            f"the run has --weights {options.corpus_weights}: name CORPUS and --weights as before"
        )


def announce(
    report: Reporter,
    asked: RunSettings,
    backend: Backend,
    host_bytes: int,
    needed_bytes: int,
    workers: int,
) -> None:
    """Report the model, the steps and the memory; DeviceError if there is too little memory."""
    if backend.is_software:
        require_free(host_bytes, free_memory())
    report.line(_description(asked, backend, workers))
    report.note_missing_engine(backend)
    if asked.options.learning_rate == 0:
        report.note("--lr 0 leaves all weights as they are")
    report.need_memory(Memory(host_bytes, 0 if backend.device is None else needed_bytes))


def announce_resuming(report: Reporter, checkpoint: Checkpoint, options: TrainOptions) -> None:
    """Report the checkpoint from which a run continues, and changes of its learning rate."""
    done, steps = checkpoint.state.step, options.steps
    report.line(f"resuming from {checkpoint.folder}")
    change = explain_schedule(checkpoint, options)
    if change is not None:
        report.note(change)
    if done >= steps:
        report.line(
            f"nothing to do: {done} of {steps} steps are done; use a larger --steps to continue"
        )


def _description(settings: RunSettings, backend: Backend, workers: int) -> str:
    config, options = settings.config, settings.options
    tokens = options.sequences * config.seq_len
    has_units = backend.device is not None and backend.device.matrix_shapes
    slow = "" if has_units else ", slower than f32 without matrix units, with smaller activations"
    return (
        f"training {human_count(config.parameters)} parameters on {backend.description}"
        f"{f' and {workers - 1} more' if workers > 1 else ''}: "
        f"{number_of(options.steps, 'step')} of {human_count(tokens)} tokens"
        + (f" in f16{slow}" if options.is_mixed else "")
    )


class RunReporter(RunListener):
    """Prints the progress of a run of `steps` steps."""

    def __init__(self, report: Reporter, steps: int) -> None:
        self._report, self._steps = report, steps

    def note(self, text: str) -> None:
        self._report.line(text)

    def on_first_step(self, step: int, loss: float) -> None:
        text = f"step {step}/{self._steps}: loss {loss:.4f}"
        self._report.line(text, step=step, steps=self._steps, loss=loss)

    def on_step(self, step: int) -> None:
        """Show the progress on a terminal, between the printed records."""
        if self._report.has_bars:
            self._report("training", step, self._steps)

    def on_record(self, record: StepRecord, seconds_left: float) -> None:
        """Print the loss, all other logged figures and the time left."""
        text = (
            f"step {record.step}/{self._steps}: loss {record.loss:.4f}, "
            f"norm {record.grad_norm:.3f}, lr {record.learning_rate:.2e}, "
            f"{human_count(record.tokens_per_second)} tokens/s"
        )
        if record.validation_loss is not None:
            text += f", validation loss {record.validation_loss:.4f}"
        if record.bits_per_byte is not None:
            text += f" ({record.bits_per_byte:.4f} bits per byte)"
        if seconds_left:
            text += f", {human_time(seconds_left)} left"
        facts = {"steps": self._steps, "seconds_left": round(seconds_left, 3)}
        self._report.line(text, **asdict(record), **facts)


def print_summary(report: Reporter, summary: dict[str, Any], *, as_json: bool) -> None:
    """Print the summary of a run; with `as_json`, also as JSON on stdout."""
    seconds = summary["seconds"]
    taken = human_time(seconds) if seconds >= 60 else f"{seconds:.1f} s"
    text = f"{human_count(summary['tokens'])} tokens in {taken}"
    if summary["perplexity"] is not None:
        text += f"; perplexity {summary['perplexity']:,.2f}"
    report.line(f"{text}; checkpoint in {summary['checkpoint']}")
    spent = ", ".join(f"{name} {each:.1f} s" for name, each in summary["seconds_spent"].items())
    if rate := summary["tokens_per_second_of_all"]:  # the rate is 0 if the run was already finished
        report.line(f"beside steps: {spent}; with these {human_count(rate)} tokens/s")
    if "adapter" in summary:
        report.line(f"adapter for peft in {summary['adapter']}")
    if as_json:
        print_json(summary, to_stderr=False)


def say_failure(line: str) -> None:
    """Print the error that ends a worker, on one line."""
    click.echo(error_line(shorten(printable(" ".join(line.split()))), 1), err=True)
