"""The commands ``llmgpu import`` and ``llmgpu export`` for vocabularies of other tools."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from llmgpu.bpe.interchange.formats import WRITERS, VocabularyFiles, find_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import with_chat_template
from llmgpu.cli.commands.vocabularies import ExportVocabularyCommand, ImportVocabularyCommand
from llmgpu.cli.console import Reporter
from llmgpu.cli.options import was_asked
from llmgpu.errors import OutputError, VocabularyError
from llmgpu.file_kinds import ENDINGS, VOCABULARY
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.input_files import number_of
from llmgpu.outputs import Output, check_outputs

if TYPE_CHECKING:
    from llmgpu.lm.checkpoints.huggingface import SavedModel


def import_vocabulary(asked: ImportVocabularyCommand, report: Reporter) -> None:
    """Import a vocabulary of another tool, with exactly the same ids."""
    output = asked.output
    # Find the files, and read the vocabulary.
    if asked.merges is None:
        files = find_vocabulary(asked.source, asked.format_name)
    else:
        files = VocabularyFiles(asked.source, "gpt2", asked.merges)
    if asked.format_name is not None:
        files = replace(files, format=asked.format_name)
    if files.format is None:
        files.read()  # raises an error for a file of unknown content
        raise VocabularyError(
            f"{files.path} is already an llmgpu vocabulary: use it directly, or export it"
        )
    vocabulary = files.read(
        report.note, pattern=asked.pattern, special_tokens=dict(asked.special_tokens)
    )
    # Write the vocabulary.
    written = Output(output, VOCABULARY, is_chosen=was_asked("output"))
    check_outputs([written], files.inputs, force=asked.force)
    vocabulary.save(output, force=asked.force)
    report.line(
        f"{output}: {vocabulary.size:,} ids, {len(vocabulary.special_tokens):,} of them special, "
        f"pattern {vocabulary.pattern}, from {files.format}"
    )
    report.summarize(_facts(vocabulary, files.format), to_stderr=output == STANDARD_OUTPUT)


def export_vocabulary(asked: ExportVocabularyCommand, report: Reporter) -> None:
    """Export the vocabulary VOCAB for another tool, with exactly the same ids."""
    output, chat_template = asked.output, asked.chat_template
    # Choose the format, and refuse options that the format does not support.
    by_name = "huggingface" if output.endswith("/") else ENDINGS.get(os.path.splitext(output)[1])
    format_name = asked.format_name or by_name
    if format_name is None:
        raise click.UsageError(f"give --to FORMAT: one of {', '.join(WRITERS)}")
    writer = WRITERS[format_name]
    options: dict[str, Any] = {"note": report.note, "force": asked.force}
    to_folder = format_name == "huggingface" and (output.endswith("/") or os.path.isdir(output))
    takes_model = format_name == "gguf" or to_folder
    model = _open_model(asked.vocab, report) if takes_model else None
    if (model is None or to_folder) and asked.weights is not None:
        raise click.UsageError("--weights is only for exporting a model to gguf")
    if format_name not in ("gguf", "huggingface") and chat_template is not None:
        raise click.UsageError("--chat-template is only for gguf and huggingface")
    # Check the outputs, and write the model or the vocabulary.
    _check_folder(output, writes_model=model is not None, force=asked.force)
    if model is not None:
        inputs = [chat_template, *map(str, model.folder.iterdir())]
        vocabulary = with_chat_template(model.vocabulary, chat_template)
        model = replace(model, vocabulary=vocabulary)
        if to_folder:
            from llmgpu.lm.checkpoints.checkpoint import export_model, export_outputs

            check_outputs(export_outputs(output), inputs, force=asked.force)
            export_model(model, output, **options)
        else:
            from llmgpu.lm.checkpoints.gguf import write_model

            check_outputs(writer.outputs(output), inputs, force=asked.force)
            write_model(model, output, weights=asked.weights or "f32", **options)
    else:
        files = find_vocabulary(asked.vocab)
        vocabulary = with_chat_template(files.read(report.note), chat_template)
        check_outputs(writer.outputs(output), [chat_template, *files.inputs], force=asked.force)
        writer.write(vocabulary, output, **options)
        _note_model(os.path.dirname(files.path), report)
    what = "" if model is None else f"the model of {model.folder} with "
    report.line(f"{output}: {what}{number_of(vocabulary.size, 'id')}")
    if format_name == "huggingface" and os.path.isfile(output) and not os.path.splitext(output)[1]:
        report.note(f"{output} is a tokenizer.json; {output}/ is a folder for AutoTokenizer")
    report.summarize(_facts(vocabulary, format_name), to_stderr=output == STANDARD_OUTPUT)


def _check_folder(folder: str, *, writes_model: bool, force: bool) -> None:
    """Raise OutputError if the export would spoil the folder of a run or of a model.

    An exported model would hide the checkpoints of a run folder, and an exported vocabulary would
    replace the tokenizer of a model.
    """
    if not os.path.isdir(folder):
        return
    from llmgpu.lm.checkpoints.huggingface import has_model
    from llmgpu.lm.runs.run_folder import LOCK_NAME

    if os.path.isfile(os.path.join(folder, LOCK_NAME)):
        raise OutputError(
            f"{folder} is a run folder, whose model is its newest checkpoint: choose another folder"
        )
    if not (writes_model or force) and has_model(folder):
        raise OutputError(
            f"{folder} has a model, whose tokenizer would be replaced: choose another folder, or "
            "use --force"
        )


def _open_model(path: str, report: Reporter) -> SavedModel | None:
    """Return the model of a run, a checkpoint or a Hugging Face folder; None without a model."""
    from llmgpu.lm.checkpoints.checkpoint import TRAINING, list_checkpoints, open_model
    from llmgpu.lm.checkpoints.huggingface import has_model

    is_one = os.path.isfile(os.path.join(path, TRAINING)) or has_model(path)
    return open_model(path, report.note) if is_one or list_checkpoints(path) else None


def _note_model(folder: str, report: Reporter) -> None:
    """Print a note, with advice, if the folder also has a model, which is not exported."""
    if not os.path.isfile(os.path.join(folder, "config.json")):
        return
    from llmgpu.lm.checkpoints.huggingface import has_model

    if has_model(folder):
        report.note(
            f"only the tokenizer is exported: transformers opens the model in {folder}, tokenizer "
            "included; -o FOLDER/ writes both for transformers, and --to gguf for llama.cpp"
        )


def _facts(vocabulary: Vocabulary, format_name: str) -> dict[str, Any]:
    """Return the summary of `import` and `export`."""
    return {
        "format": format_name,
        "vocabulary_size": vocabulary.size,
        "merges": len(vocabulary.merges),
        "special_tokens": len(vocabulary.special_tokens),
        "pattern": vocabulary.pattern,
        "fingerprint": vocabulary.fingerprint,
    }
