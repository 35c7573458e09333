"""The command ``llmgpu train``: train a language model on text or token files."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from llmgpu.backend import NUMPY, Backend, list_adapters, select_backend
from llmgpu.bpe.encoding.special_options import SpecialOptions, token_id
from llmgpu.bpe.interchange.formats import find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import check_chat, rendering, with_chat, with_chat_template
from llmgpu.cli.commands.train import TrainCommand
from llmgpu.cli.console import Reporter, human_count, human_time, left_out_of
from llmgpu.cli.groups import READING_OPTIONS, check_text_field, id_or_text, required_input
from llmgpu.cli.option_files import keep_options
from llmgpu.cli.options import refuse_given, was_asked
from llmgpu.errors import InputError, error_line, shorten
from llmgpu.input_files import STANDARD_INPUT, number_of, printable
from llmgpu.lm.checkpoints.checkpoint import (
    VOCABULARY,
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    open_model,
)
from llmgpu.lm.checkpoints.huggingface import SavedModel
from llmgpu.lm.data.batches import TokenSource
from llmgpu.lm.data.inputs import are_tokens, default_separator, open_tokens
from llmgpu.lm.model import initial_weights
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.runs.run import RunListener, RunPlan, TrainingRun
from llmgpu.lm.runs.run_folder import (
    EVALUATION_TOKENS_NAME,
    OPTIONS_NAME,
    SAMPLES_NAME,
    TOKENS_NAME,
    RunFolder,
    StepRecord,
    open_run_folder,
    read_log,
)
from llmgpu.lm.runs.settings import (
    RunSettings,
    explain_schedule,
    gains_by_halves,
    host_memory,
    new_settings,
    require_free,
    require_layers,
    resumed_settings,
    step_to_resume_from,
    training_memory,
)
from llmgpu.lm.workers import Workers, start_workers
from llmgpu.machine import Memory, free_memory
from llmgpu.outputs import Output, check_outputs
from llmgpu.text.corpus import Corpus
from llmgpu.text.sources import Selection, Sources, resolve_sources
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


def train(given: TrainCommand, report: Reporter) -> None:
    """Train a Llama-style language model on CORPUS: text, or token files written by `tokenize`."""
    begun = time.perf_counter()
    workers = start_workers()
    if workers.count > 1:  # the memory of MPI belongs to the process, not to the job
        quiet = report.quiet or not workers.is_first
        report = Reporter(quiet=quiet, as_json=report.as_json, log_format=report.log_format)
    if workers.count == 1 and (number := os.environ.get("WORLD_SIZE", "1")) != "1":
        report.note(
            f"WORLD_SIZE={number} has no effect: to train on several GPUs use mpiexec -n {number} "
            "llmgpu train"
        )
    with workers.all_or_none():
        job = _Job(given, workers, report)
        backend = None if given.resume else job.select_new()
        check_outputs(_written(given.output, given.force), job.inputs)
    with workers.together(say_failure), job.open_folder() as folder:
        with workers.first_alone():
            run, host_bytes = job.open_run(folder, backend, begun)
        with report:
            summary = run.run()
    if workers.is_first:
        summary |= {"estimated_memory_bytes": max(host_bytes, report.needed_bytes)}
        print_summary(report, summary)


class _Job:
    """The job of this worker: checked options, and the files that they name.

    device: the device of this worker. corpora: one corpus, or several with --weights. settings:
    arguments of `new_settings`. explicit: the settings that the user has given. vocabulary_name:
    the vocabulary's name in messages. model: the model of --init; None without --init, and for a
    run that resumes from a checkpoint. separator: the id of --eos, or of the default separator.
    inputs: all files that the command reads. A run that resumes from a checkpoint replaces the
    vocabulary and the separator by those of the checkpoint.
    """

    def __init__(self, given: TrainCommand, workers: Workers, report: Reporter) -> None:
        """Find the files, the vocabulary and the model that the options name.

        Invalid options raise errors here, before the run folder is created.
        """
        self.given, self.workers, self.report = given, workers, report
        # Find the files of text or ids.
        corpus = given.files.named(given.corpus)
        if given.resume and not corpus:
            _require_run(given.output)
        corpus = corpus or required_input(report, "CORPUS: text or token files")
        selection = replace(given.files.selection(), may_be_tokens=True)
        self.corpora = resolve_corpora(corpus, selection, given.training["corpus_weights"])
        # Choose the device of this worker, and find the text of --eval-corpus.
        self.device = given.device
        if workers.count > 1:
            if STANDARD_INPUT in corpus:
                raise InputError("several workers can't read standard input: name files")
            adapters = list_adapters() if given.device != "cpu" else []
            gpus = [info for info in adapters if not info.is_software]
            self.device = workers.device(given.device, len(gpus))
        self.evaluated: Sources | None = None
        if given.eval_corpus is not None:
            held_out = ("evaluation_fraction", "evaluation_parts")
            refuse_given(held_out, "can't be combined with --eval-corpus")
            self.evaluated = resolve_sources([given.eval_corpus], Selection(may_be_tokens=True))
        # Open the vocabulary, and the model to start from.
        check_chat(given.chat.chat, given.chat.chat_template, SpecialOptions(eos=given.eos))
        self.vocabulary, self.vocabulary_name, read, self.model = _find_start(given, report)
        self.settings = {"preset": given.preset, **given.model, **given.training}
        self.explicit = {name: each for name, each in self.settings.items() if was_asked(name)}
        if self.model is not None and "preset" in self.explicit:
            raise InputError("--preset can't be combined with --init, whose model sets the sizes")
        named = id_or_text(given.eos)
        if named is not None:
            self.separator: int | None = token_id(self.vocabulary, named)
        else:
            self.separator = default_separator(self.vocabulary)
            if self.separator is None and self.model is not None:
                self.separator = self.model.eos_id
        texts = (
            text.path for each in (*self.corpora, self.evaluated) if each for text in each.files
        )
        options = given.config, given.chat.chat_template, given.files.files_from
        self.inputs = [*texts, *read, *options]

    def _check(self, options: TrainOptions) -> None:
        """Raise InputError for options that contradict the number of workers or the intervals."""
        self.workers.check(options.grad_accum)
        self.given.intervals.check(options)

    def _select(self, settings: RunSettings, **how: Any) -> Backend:
        """Return the backend of `device`; how: arguments of `select_backend`.

        Raises DeviceError, before an adapter is opened, for a model with too many layers.
        """
        require_layers(settings.config)
        return select_backend(self.device, note=self.report.note, **how)

    def select_new(self) -> Backend:
        """Return the backend of a new run.

        With --precision f16, or if half precision makes the run faster, a driver with matrix units
        is preferred.
        """
        wanted, settings = self.settings["precision"], self._new_settings()
        self._check(settings.options)
        halves = wanted == "f16" if wanted else gains_by_halves(settings)
        return self._select(settings, matrices=halves)

    def _new_settings(self, backend: Backend = NUMPY) -> RunSettings:
        """Return the settings of a new run; their defaults depend on the backend."""
        settings = self.settings | {"driver": backend.driver}
        sizes = None if self.model is None else self.model.config
        return new_settings(settings, self.vocabulary.size, sizes, backend)

    def open_folder(self) -> AbstractContextManager[RunFolder]:
        """Open the run's folder, which the first worker locks."""
        given = self.given
        if self.workers.is_first:
            return open_run_folder(given.output, resume=given.resume, force=given.force)
        return nullcontext(RunFolder(Path(given.output)))

    def open_run(
        self, folder: RunFolder, backend: Backend | None, begun: float
    ) -> tuple[TrainingRun, int]:
        """Start or resume the run of a folder; return the run and its memory on the host, in bytes.

        backend: the backend of a new run, None to select one. begun: see `RunPlan`.
        """
        given, report, workers = self.given, self.report, self.workers
        # Read the settings from the checkpoint, or choose the settings of a new run.
        checkpoint = self._find_checkpoint(folder) if given.resume else None
        if checkpoint is not None:
            settings = self._resume_settings(folder, checkpoint)
            backend = self._select(settings, driver=settings.options.driver)
            announce_resuming(report, checkpoint, settings.options)
        else:
            backend = backend or self.select_new()
            settings = self._new_settings(backend)
            if given.resume:
                report.line(f"{folder.path} has no checkpoint yet: starting at the first step")
        options = settings.options
        # Before the text is read, refuse a run that does not fit into memory.
        unread = given.intervals.unread_steps(options.steps)
        needed_bytes = training_memory(settings, backend, unread)
        host_bytes = host_memory(settings, backend, needed_bytes, workers.count)
        if checkpoint is None or checkpoint.state.step < options.steps:
            on_device = 0 if backend.device is None else needed_bytes
            self._announce(settings, backend, Memory(host_bytes, on_device))
        # Make the run. Open the data while threads draw the weights.
        weights = None if self.model is None else self.model.weights.__getitem__
        if weights is None and checkpoint is None:
            seed, initialisation = options.seed, options.initialisation
            weights = initial_weights(settings.config, seed, initialisation, backend)
        source, evaluated = self._open_sources(folder, backend, checkpoint)
        plan = RunPlan(
            settings=settings,
            intervals=given.intervals,
            backend=backend,
            source=source,
            evaluation_source=evaluated,
            eos_id=self.separator,
            checkpoint=checkpoint,
            init=self.model,
            weights=weights,
            command=printable(shlex.join(["llmgpu", *sys.argv[1:]])),
            data=[text.path for each in self.corpora for text in each.files],
            needed_bytes=needed_bytes,
            begun=begun,
        )
        run = TrainingRun(folder, plan, RunReporter(report, options.steps), workers)
        # Store the options last, so that a command that fails earlier changes no file.
        if workers.is_first and given.resume:
            keep_options(folder.path)
        return run, host_bytes

    def _find_checkpoint(self, folder: RunFolder) -> Checkpoint | None:
        """Return the checkpoint to continue from; None if the run has no checkpoint yet."""
        steps = list_checkpoints(folder.path)
        if not steps:
            return None
        newest = load_checkpoint(folder.path)
        step = step_to_resume_from(newest, self.explicit.get("steps"))
        if step == newest.state.step:
            return newest
        if step not in steps:
            self.report.note(
                f"{folder.path} has no checkpoint of step {step}, where its decay began"
            )
            return newest
        return load_checkpoint(steps[step])

    def _resume_settings(self, folder: RunFolder, checkpoint: Checkpoint) -> RunSettings:
        """Return the settings of a checkpoint's run; store its vocabulary and separator in self.

        Raises InputError for options of another run, CheckpointError for another vocabulary or for
        stored options that can't be read.
        """
        # Compare --init and --eos, if given, with the model and the token that the run began with.
        init, before = self.given.init, read_log(folder.log).facts.get("init")
        if init is not None and (
            before is None or Path(init) not in (Path(before), Path(before).parent)
        ):
            began = "began with new weights" if before is None else f"began with --init {before}"
            raise InputError(
                f"--init is {init}, but the run in {folder.path} {began}: drop it to resume that "
                "run, or start a new one"
            )
        checkpoint.require_vocabulary(self.vocabulary, self.vocabulary_name)
        settings = resumed_settings(checkpoint, self.explicit)
        self._check(settings.options)
        if len(settings.options.shares) != len(self.corpora):
            raise InputError(
                f"the run has --weights {settings.options.corpus_weights}: name CORPUS and "
                "--weights as before"
            )
        if self.given.eos is not None and self.separator != checkpoint.eos_id:
            raise InputError(
                f"--eos is id {self.separator}, but the run in {folder.path} has "
                f"{checkpoint.eos_id}: drop it to resume that run, or start a new one"
            )
        template = self.given.chat.chat_template
        self.vocabulary = with_chat_template(checkpoint.vocabulary, template)
        self.separator = checkpoint.eos_id
        return settings

    def _announce(self, settings: RunSettings, backend: Backend, memory: Memory) -> None:
        """Report the model, the steps and the memory; DeviceError if there is too little memory."""
        report, config, options = self.report, settings.config, settings.options
        if backend.is_software:
            require_free(memory.host, free_memory())
        text = f"training {human_count(config.parameters)} parameters on {backend.description}"
        if self.workers.count > 1:
            text += f" and {self.workers.count - 1} more"
        tokens = human_count(options.sequences * config.seq_len)
        text += f": {number_of(options.steps, 'step')} of {tokens} tokens"
        if options.is_mixed:
            has_units = backend.device is not None and backend.device.matrix_shapes
            slow = ", slower than f32 without matrix units, with smaller activations"
            text += f" in f16{'' if has_units else slow}"
        report.line(text)
        report.note_missing_engine(backend)
        if options.learning_rate == 0:
            report.note("--lr 0 leaves all weights as they are")
        report.need_memory(memory)

    def _open_sources(
        self, folder: RunFolder, backend: Backend, checkpoint: Checkpoint | None
    ) -> tuple[TokenSource, TokenSource | None]:
        """Open the tokens of a run. This is the first step that changes the run folder.

        Returns the tokens to train on, and the tokens of --eval-corpus. Without --eval-corpus the
        second result is None, and some of the training tokens are held out.
        """
        given, report, is_first = self.given, self.report, self.workers.is_first
        # Store the options before tokenizing: --resume needs them if tokenizing is interrupted.
        if is_first and not given.resume:
            keep_options(folder.path)
        # Text is encoded through wgpu, even if the model is trained through Dawn.
        encoding = backend if backend.driver == "wgpu" else select_backend(self.device)
        options = given.reading.corpus_options()
        with report, rendering(given.chat, self.vocabulary) as conversations:

            def note_text(text: Corpus) -> None:
                report.note_left_out(left_out_of(text))
                if self.separator is None and conversations is None and text.documents > 1:
                    report.note(
                        "no token ends a document: the vocabulary has none such as <|endoftext|>, "
                        "which bpe-train --special-token adds"
                    )

            opened: Callable[..., TokenSource] = partial(
                open_tokens,
                vocabulary=self.vocabulary,
                vocabulary_name=self.vocabulary_name,
                backend=encoding,
                reading=with_chat(options, conversations),
                separator=self.separator,
                resume=given.resume or not is_first,
                progress=report,
                dtype=given.token_dtype,
                told=note_text,
            )
            source, evaluated = opened(self.corpora, folder=folder.tokens), None
            if self.evaluated is not None:
                evaluated = opened([self.evaluated], folder=folder.evaluation_tokens)
        if source.foreign_files:
            report.note(note_of_foreign(source.foreign_files, self.vocabulary_name))
        if is_first and given.force:
            # Remove the old run, but not its tokens if the new run reads them.
            folder.remove(REPLACED, source.folders | (evaluated.folders if evaluated else set()))
        if is_first and checkpoint is not None:
            for path, kept in folder.set_aside(checkpoint.state.step):
                report.note(
                    f"{path} belongs to the decay of the earlier schedule; the decay now starts "
                    f"later, so it is kept as {kept}, with its log"
                )
        return source, evaluated


def _written(folder: str, force: bool) -> list[Output]:
    """Return the existing files in a run folder that a run replaces or, with `force`, removes."""
    patterns = (*(REPLACED if force else ("log.jsonl", "loss.svg")), OPTIONS_NAME)
    found = [path for pattern in patterns for path in Path(folder).glob(pattern)]
    inside = [file for path in found if path.is_dir() for file in path.rglob("*")]
    return [Output(str(path), None) for path in (*found, *inside)]


def _require_run(folder: str) -> None:
    """Raise InputError if a folder has no run to resume."""
    if not os.path.lexists(folder):
        raise InputError(f"{folder} does not exist, so there is no run to resume")
    if not (os.path.lexists(os.path.join(folder, OPTIONS_NAME)) or list_checkpoints(folder)):
        raise InputError(
            f"{folder} has neither {OPTIONS_NAME} nor a checkpoint, so there is no run to resume: "
            "start one, with --force if the last was interrupted before it stored its options"
        )


def _find_start(
    given: TrainCommand, report: Reporter
) -> tuple[Vocabulary, str, list[str], SavedModel | None]:
    """Open the vocabulary of --vocab and the model of --init, from which a run starts.

    Without --vocab, the vocabulary comes from the model or from the run's last checkpoint.

    Returns the vocabulary, its name in messages, the files that are read, and the model. There is
    no model without --init, or if the run has a checkpoint to resume from.

    Raises click.MissingParameter without a vocabulary; CheckpointError if the model has another
    vocabulary than --vocab.
    """
    vocab, init, chat_template = given.vocab, given.init, given.chat.chat_template
    steps = list_checkpoints(given.output) if given.resume else {}
    model = open_model(init, report.note) if init is not None and not steps else None
    # Without --vocab, use the vocabulary of the model or of the run.
    if vocab is None and model is not None:
        files = [str(path) for path in model.folder.iterdir()]
        return _as_trained(model.vocabulary, chat_template), str(model.folder), files, model
    if vocab is None and init is not None:
        vocab = str(steps[max(steps)] / VOCABULARY)
    if vocab is None:
        context = click.get_current_context()
        named = {parameter.name: parameter for parameter in context.command.params}
        raise click.MissingParameter(ctx=context, param=named["vocab"])
    # With --vocab, require the vocabulary of the model; only the match rule may differ.
    found = find_vocabulary(vocab)
    vocabulary = _as_trained(found.read(report.note), chat_template)
    if model is not None:
        model.require_vocabulary(vocabulary, vocab)
    return vocabulary, vocab, found.inputs, model


def _as_trained(vocabulary: Vocabulary, chat_template: str | None) -> Vocabulary:
    """Return a vocabulary with a chat template, and without tokens around texts.

    A run adds only the separator to a text.
    """
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


def print_summary(report: Reporter, summary: dict[str, Any]) -> None:
    """Print the summary of a run, with --json also as JSON on stdout."""
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
    report.summarize(summary)


def say_failure(line: str) -> None:
    """Print the error that ends a worker, on one line."""
    click.echo(error_line(shorten(printable(" ".join(line.split()))), 1), err=True)
