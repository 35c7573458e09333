"""What a training run starts with: a vocabulary, and with --init the weights of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from llmgpu.bpe.interchange.open import find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import with_chat_template
from llmgpu.cli.commands.train import TrainCommand
from llmgpu.cli.console import Reporter
from llmgpu.errors import InputError
from llmgpu.lm.checkpoints.checkpoint import VOCABULARY, list_checkpoints, open_model
from llmgpu.lm.checkpoints.pretrained import SavedModel
from llmgpu.lm.config import ModelConfig

# Defaults of --lr with --init: weights that are good already move little, adapters start from 0.
FINE_TUNING_RATE, ADAPTER_RATE = 2e-5, 2e-4


@dataclass(frozen=True)
class StartingPoint:
    """A vocabulary, its name in messages and its files; and perhaps a model.

    model: the one of --init. None without it, and for a run that resumes from a checkpoint.
    """

    vocabulary: Vocabulary
    name: str
    inputs: list[str]
    model: SavedModel | None = None

    @property
    def config(self) -> ModelConfig | None:
        """The sizes of the model, if there is one."""
        return None if self.model is None else self.model.config

    def with_defaults(self, settings: dict[str, Any], explicit: Mapping[str, Any]) -> Any:
        """Return the settings of a new run, with the defaults that go with --init.

        Raises InputError for an option that the model decides.
        """
        if self.model is None:
            return settings
        if "preset" in explicit:
            raise InputError("--preset can't be combined with --init, whose model sets the sizes")
        if "learning_rate" not in explicit:
            rate = ADAPTER_RATE if settings["lora_rank"] else FINE_TUNING_RATE
            settings = settings | {"learning_rate": rate}
        return settings


def find_starting_point(given: TrainCommand, report: Reporter) -> StartingPoint:
    """Open what --vocab and --init name.

    Without --vocab the vocabulary is that of the model, or of the run.

    Raises click.MissingParameter where that leaves none; InputError for a model with another
    vocabulary than --vocab.
    """
    vocab, init, chat_template = given.vocab, given.init, given.chat.chat_template
    steps = list_checkpoints(given.output) if given.resume else {}
    model = open_model(init, report.note) if init is not None and not steps else None
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
    """Return the vocabulary of a run, which adds nothing to its texts but the separator."""
    return replace(with_chat_template(vocabulary, chat_template), prefix_ids=(), suffix_ids=())
