"""Checkpoints of a model in training: runs resume from checkpoints, and other tools open them.

- config.json, model.safetensors, generation_config.json, tokenizer.json, tokenizer_config.json: the
  model and its tokenizer in the formats of Hugging Face's libraries. If tokenizer.json can't
  express the vocabulary, the checkpoint has no tokenizer files, and the user gets a note.
- adapter: with low-rank adapters, a folder for the library peft; model.safetensors has the weights
  with the adapters merged.
- vocabulary.bin, optimizer.safetensors, training.json: the rest of a run's state. training.json has
  the checksums of all files that a resumed run reads, see `hash_file`, and the SHA-256 of its
  own content.
- Each checkpoint is a folder named after its step. The folder is written under a temporary name,
  synced and renamed, so a folder with the name of a step is complete, even after a kill or a power
  failure. Old checkpoints are renamed before they are removed, for the same reason. The next run
  removes temporary folders of killed runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange import huggingface as tokenizer_json
from llmgpu.bpe.interchange.formats import download_advice
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import CheckpointError, OutputError, VocabularyError
from llmgpu.file_kinds import TEXT
from llmgpu.files import atomic_output, output_errors, sync
from llmgpu.input_files import Note, no_notes, quote
from llmgpu.lm.checkpoints.huggingface import (
    CONFIG,
    GENERATION_CONFIG,
    OWN_KEY,
    WEIGHTS,
    SavedModel,
    describe_generation,
    describe_model,
    describe_tokenizer,
    model_type,
    not_a_llama,
    open_pretrained,
    read_model_files,
    read_object,
)
from llmgpu.lm.checkpoints.safetensors_file import (
    Kinds,
    hash_file,
    naming,
    read_tensors,
    write_tensors,
)
from llmgpu.lm.config import ModelConfig
from llmgpu.outputs import Output, check_outputs
from llmgpu.pipeline import in_order

Begin = Callable[[Callable[[], None]], object]  # calls a function, maybe in another thread

FORMAT_NAME = "llmgpu model checkpoint"
FORMAT_VERSION = 2
_WHOLE_FILES = 1  # version whose checksums are the SHA-256 of whole files

OPTIMIZER = "optimizer.safetensors"
VOCABULARY = "vocabulary.bin"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TRAINING = "training.json"
ADAPTER = "adapter"
CARD = "README.md"

_READ_AGAIN = (CONFIG, WEIGHTS, OPTIMIZER, VOCABULARY)
_MODEL_FILES = (CONFIG, WEIGHTS, VOCABULARY)
_UNCHANGING = (VOCABULARY, CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG)
_CHECKSUM = "sha256"
_PT = {"format": "pt"}  # metadata of weights, without which transformers refuses a file
_DAMAGED = "damaged or changed since it was written"
_STEP = re.compile(r"step-(?P<step>[0-9]{8,})")
_TEMPORARY = re.compile(r"\.step-[0-9]{8,}\.[0-9a-f]{12}\.tmp")


@dataclass(frozen=True)
class TrainingState:
    """The progress and the options of a run.

    step: optimizer steps done. tokens_seen: tokens of all batches so far. sequence_position: number
    of the first sequence that no batch has used. random_state, options: JSON objects, which
    checkpoints store without interpreting them; whole numbers may have any size.
    """

    step: int
    tokens_seen: int
    sequence_position: int
    random_state: dict[str, Any]
    options: dict[str, Any]


# Types of the entries of training.json that `_read_training` reads.
_STATE_TYPES: dict[str, type] = {
    **{name: get_origin(kind) or kind for name, kind in get_type_hints(TrainingState).items()},
    **{"vocabulary": str, "files": dict},
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint(SavedModel):
    """A checkpoint: a model, the state of its optimizer, and the state of its run."""

    optimizer: dict[str, NDArray[Any]]
    state: TrainingState


def save_checkpoint(
    run_folder: str | Path,
    config: ModelConfig,
    vocabulary: Vocabulary,
    read: Callable[[str], NDArray[Any]],
    optimizer: Kinds,
    state: TrainingState,
    *,
    eos_id: int | None = None,
    keep: int = 2,
    spare: int | None = None,
    write_adapter: Callable[[Path], None] | None = None,
    stop_ids: Iterable[int] = (),
    card: str | None = None,
    unchanging: dict[str, bytes] | None = None,
    note: Note = no_notes,
    in_memory: bool = False,
) -> Path:
    """Write the checkpoint of a step, then remove all but the `keep` newest; return its folder.

    read: returns a tensor by name: the weights of `config.weights()`, float32, and the tensors of
        `optimizer`. Rows of tables that belong to no token are left out.
    optimizer: any tensors.
    eos_id: token at the end of a text. stop_ids: other tokens after which a text is complete.
    spare: step of a checkpoint that is never removed.
    write_adapter: called with the path of the folder "adapter", which does not exist yet.
    card: text of README.md.
    unchanging: by name, the contents of files that are equal in all checkpoints of a run. An empty
        map receives the contents from this checkpoint; later calls write them.
    note: called with a line about each part of the checkpoint that other tools can't use.
    in_memory: whether the tensors are arrays in memory, so that threads write the files at the same
        time. Otherwise the calling thread reads tensors one by one.

    Raises OutputError if the checkpoint can't be written, or if its folder exists; nothing has
    changed then.
    """
    if model_type(config) is None:
        note(f"{not_a_llama(config)}: other libraries can't open its checkpoint")
    with new_checkpoint(run_folder, state.step) as folder:
        hashes: dict[str, str] = {}

        def write(name: str, *content: Any) -> None:
            hashes[name] = write_tensors(folder / name, *content)

        weights, kept = _weight_kinds(config), {} if unchanging is None else unchanging
        # The optimizer's file comes first, because it is the largest.
        files: list[Callable[[], None]] = [
            partial(write, OPTIMIZER, optimizer, read),
            partial(write, WEIGHTS, weights, lambda name: read(name)[: weights[name][1][0]], _PT),
            partial(_write_model_files, folder, config, vocabulary, eos_id, stop_ids, kept, note),
        ]
        threads = len(files) if in_memory else 0
        list(in_order(files, lambda file: file(), len(files), threads=threads))
        if card is not None:
            _write_bytes(folder / CARD, card.encode())
        if write_adapter is not None:
            write_adapter(folder / ADAPTER)
        _write_training(folder, vocabulary, state, hashes)
    remove_old_checkpoints(run_folder, keep, spare)
    return Path(run_folder) / step_folder_name(state.step)


def _weight_kinds(config: ModelConfig) -> Kinds:
    """Return the weights of a file, without the rows of tables that belong to no token."""
    return {weight.name: (np.dtype("<f4"), weight.used_shape) for weight in config.weights()}


def _write_model_files(
    folder: Path,
    config: ModelConfig,
    vocabulary: Vocabulary,
    eos_id: int | None,
    stop_ids: Iterable[int],
    unchanging: dict[str, bytes],
    note: Note,
) -> None:
    """Write the files that are equal in all checkpoints of a run: `_UNCHANGING`.

    unchanging: the contents by name. If the map is empty, the contents are made and added to it.
    """
    for name, content in unchanging.items():
        _write_bytes(folder / name, content)
    if unchanging:
        return
    vocabulary.save(folder / VOCABULARY)
    write_json(folder / CONFIG, describe_model(config, eos_id=eos_id))
    write_json(folder / GENERATION_CONFIG, describe_generation(eos_id, stop_ids))
    if _write_tokenizer(folder / TOKENIZER, vocabulary, note):
        write_json(folder / TOKENIZER_CONFIG, describe_tokenizer(config, vocabulary, eos_id))
    with output_errors(str(folder)):
        found = [folder / name for name in _UNCHANGING if (folder / name).exists()]
        unchanging |= {path.name: path.read_bytes() for path in found}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an object as indented JSON, atomically; raise OutputError if this fails."""
    _write_bytes(path, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")


def _write_bytes(path: Path, content: bytes) -> None:
    with atomic_output(path) as stream:
        stream.write(content)


def _write_tokenizer(path: Path, vocabulary: Vocabulary, note: Note) -> bool:
    """Write tokenizer.json; return False, after a note, if it can't express the vocabulary."""
    try:
        # Leave out the chat template, because tokenizer_config.json has it.
        tokenizer_json.write(replace(vocabulary, chat=None), path, note=note)
    except VocabularyError as error:
        note(f"the checkpoint has no {path.name}: {error}")
        return False
    return True


def _write_training(
    folder: Path, vocabulary: Vocabulary, state: TrainingState, written: Mapping[str, str]
) -> None:
    """Write training.json; written: checksums, by name, of files that were hashed while written."""
    with output_errors(str(folder)):
        hashes = {name: written.get(name) or hash_file(folder / name) for name in _READ_AGAIN}
    content = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        **asdict(state),
        "vocabulary": vocabulary.fingerprint,
        "files": hashes,
    }
    write_json(folder / TRAINING, content | {_CHECKSUM: _hash_json(content)})


def _hash_whole_file(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash_json(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the JSON of `content`.

    `content` is first converted to JSON and back, so that the sum is the same before it is written
    to a file and after it is read.
    """
    read_back = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(read_back, sort_keys=True).encode()).hexdigest()


def open_model(path: str | Path, note: Note = no_notes, begin: Begin | None = None) -> SavedModel:
    """Open the model in a run folder, in a checkpoint or in a Hugging Face model folder.

    The optimizer's file in a checkpoint is neither needed nor checked.

    note: called with a note on each part of a Hugging Face tokenizer that has no effect here.
    begin: starts the check of a checkpoint's weights, which reads the whole file. Until the check
    has succeeded, the weights may be damaged. None: check the weights here.

    Raises CheckpointError and VocabularyError, with the file, for a model that can't be used.
    """
    folder = Path(path)
    if not _is_step(folder) and os.path.lexists(folder / CONFIG):
        return open_pretrained(folder, note)
    return _load_newest(folder, _MODEL_FILES, begin)


def export_outputs(folder: str | Path) -> list[Output]:
    """Return the files that `export_model` writes.

    Without `force`, `export_model` only replaces the files of a model that it wrote itself.
    """
    own: dict[str, str | None] = {
        CONFIG: TEXT,
        GENERATION_CONFIG: TEXT,
        WEIGHTS: "a file of weights",
    }
    if _is_own_model(Path(folder)):
        own = dict.fromkeys(own)
    files = [Output(str(Path(folder) / name), kind, is_chosen=False) for name, kind in own.items()]
    return [*files, *tokenizer_json.outputs(os.path.join(folder, ""))]


def _is_own_model(folder: Path) -> bool:
    """Whether `export_model` wrote the model in a folder.

    llmgpu's key in config.json does not suffice: other tools keep the key when they save a model.
    """
    if os.path.lexists(folder / TRAINING):  # the folder is a checkpoint
        return False
    try:
        content = read_object(folder / CONFIG)
    except CheckpointError:
        return False
    # transformers adds its version when it saves a model.
    return OWN_KEY in content and "transformers_version" not in content


def export_model(
    model: SavedModel, folder: str | Path, *, note: Note = no_notes, force: bool = False
) -> None:
    """Write a model and its tokenizer to a folder that transformers opens, in float32.

    note: called with a note on each part of the vocabulary that other tools can't use.

    Raises CheckpointError for a model that transformers can't open, VocabularyError for a
    vocabulary that tokenizer.json can't express, OutputError for files that can't be written.
    """
    config, folder = model.config, Path(folder)
    if model_type(config) is None:
        raise CheckpointError(
            f"{model.folder}: {not_a_llama(config)}, and transformers can't open it"
        )
    check_outputs(export_outputs(folder), force=force)
    # Write the tokenizer first, since its vocabulary may be refused. Then write
    # tokenizer_config.json again, with the entries that depend on the model.
    tokenizer_json.write(model.vocabulary, os.path.join(folder, ""), note=note, force=force)
    described = describe_tokenizer(config, model.vocabulary, model.eos_id)
    write_json(folder / TOKENIZER_CONFIG, described)
    # Write the weights, then the description of the model.
    write_tensors(folder / WEIGHTS, _weight_kinds(config), model.weights.__getitem__, _PT)
    write_json(folder / CONFIG, describe_model(config, eos_id=model.eos_id))
    generation = describe_generation(model.eos_id, model.stop_ids)
    write_json(folder / GENERATION_CONFIG, generation)


def _is_step(folder: Path) -> bool:
    return (folder / TRAINING).is_file() or _STEP.fullmatch(folder.name) is not None


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read and validate a checkpoint.

    path: folder of the checkpoint, or a run folder, whose newest checkpoint is read. If the newest
    checkpoint is damaged, the error names the previous checkpoint, which is not used.

    Raises CheckpointError, with the file, for files that are missing, damaged, of another version
    or inconsistent.
    """
    return _load_newest(Path(path), _READ_AGAIN)


def _load_newest(folder: Path, names: Sequence[str], begin: Begin | None = None) -> Checkpoint:
    """Load a checkpoint, or the newest checkpoint of a run folder, see `_load`."""
    if _is_step(folder):
        return _load(folder, names, begin)
    if not folder.is_dir():
        missing = f"no such folder{download_advice(str(folder))}"
        hint = "; llama.cpp runs GGUF files" if folder.suffix.lower() == ".gguf" else ""
        takes = "name a run of train, one of its checkpoints or the folder of a model's config.json"
        what = f"a file, not a run folder: {takes}{hint}" if folder.exists() else missing
        raise CheckpointError(f"{folder}: {what}")
    folders = list(list_checkpoints(folder).values())
    if not folders:
        raise CheckpointError(f"{folder} has no checkpoint")
    try:
        return _load(folders[-1], names, begin)
    except CheckpointError as error:
        if len(folders) == 1:
            raise
        raise CheckpointError(f"{error}; the previous checkpoint is {folders[-2]}") from error


def _load(folder: Path, names: Sequence[str], begin: Begin | None) -> Checkpoint:
    """Check the files with these names; load the model, the state of its run, and the optimizer.

    The optimizer has no tensors if its file is not in `names`.
    """
    state, fingerprint = _read_training(folder, names, begin)
    with naming(folder / VOCABULARY):
        vocabulary = Vocabulary.load(folder / VOCABULARY)
    if vocabulary.fingerprint != fingerprint:
        raise CheckpointError(
            f"{folder / VOCABULARY} is vocabulary {vocabulary.fingerprint[:12]}, "
            f"but {folder / TRAINING} belongs to {fingerprint[:12]}"
        )
    model = read_model_files(folder, lambda: vocabulary)
    optimizer = read_tensors(folder / OPTIMIZER) if OPTIMIZER in names else {}
    return Checkpoint(optimizer=optimizer, state=state, **vars(model))


def _read_training(
    folder: Path, names: Sequence[str], begin: Begin | None
) -> tuple[TrainingState, str]:
    """Check the files with these names; return the state and the vocabulary's fingerprint."""
    content = read_object(folder / TRAINING)
    with naming(folder / TRAINING):
        # Check the format, the checksum of the content, and the types of all entries.
        if content.get("format") != FORMAT_NAME:
            raise CheckpointError("not the training state of a checkpoint")
        if (version := content.get("version")) not in (_WHOLE_FILES, FORMAT_VERSION):
            newer = isinstance(version, int) and version > FORMAT_VERSION
            raise CheckpointError(
                f"version {quote(str(version))} of the format, but this llmgpu reads versions "
                f"{_WHOLE_FILES} and {FORMAT_VERSION}{'; use a newer llmgpu' if newer else ''}"
            )
        if content.pop(_CHECKSUM, None) != _hash_json(content):
            raise CheckpointError(_DAMAGED)
        for name, kind in _STATE_TYPES.items():
            if type(content.get(name)) is not kind:
                raise CheckpointError(f"damaged: {name} must be of type {kind.__name__}")
            if kind is int and content[name] < 0:
                raise CheckpointError(f"damaged: {name} must not be negative")

    # Compare the files with their recorded checksums, side by side.
    checksum = _hash_whole_file if version == _WHOLE_FILES else hash_file

    def check(name: str) -> None:
        with naming(folder / name):
            if checksum(folder / name) != content["files"].get(name):
                raise CheckpointError(_DAMAGED)

    if begin is not None:
        begin(partial(check, WEIGHTS))
        names = [name for name in names if name != WEIGHTS]
    list(in_order(names, check, len(names)))
    state = TrainingState(**{field.name: content[field.name] for field in fields(TrainingState)})
    return state, content["vocabulary"]


def step_folder_name(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"


def list_checkpoints(run_folder: str | Path) -> dict[int, Path]:
    """Return the checkpoint folders of a run by step, ascending; {} if there is no run folder."""
    folder = Path(run_folder)
    if not folder.is_dir():
        return {}
    found = ((_STEP.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return dict(sorted((int(match["step"]), path) for match, path in found if match))


def prepare_step_folders(run_folder: str | Path, step: int = 0) -> None:
    """Remove temporary folders of killed runs from the folder of a run that starts after `step`.

    Raises OutputError if the folder can't be written, or has checkpoints of later steps, which
    would be mixed with the checkpoints of this run.
    """
    folder = Path(run_folder)
    steps = list_checkpoints(folder)
    if steps and max(steps) > step:
        raise OutputError(
            f"{folder} has a checkpoint of step {max(steps)}, but this run starts at step {step}: "
            "resume from that one, remove it, or choose another folder"
        )
    with output_errors(str(folder)):
        for path in folder.iterdir():
            if _TEMPORARY.fullmatch(path.name):
                shutil.rmtree(path)


@contextmanager
def new_checkpoint(run_folder: str | Path, step: int) -> Iterator[Path]:
    """Yield a temporary folder for a checkpoint; rename the folder when the block ends.

    The new name is `step_folder_name(step)`. An exception in the block removes the folder. Raises
    OutputError if the step already has a checkpoint, or if the folder can't be written.
    """
    target = Path(run_folder) / step_folder_name(step)
    if os.path.lexists(target):
        raise OutputError(f"{target} already exists")
    temporary = _temporary_name(target)
    try:
        with output_errors(str(temporary)):
            temporary.mkdir()
        yield temporary
        with output_errors(str(target)):
            for path in temporary.rglob("*"):
                sync(path)
            sync(temporary)
            temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(target.parent)


def remove_old_checkpoints(run_folder: str | Path, keep: int, spare: int | None = None) -> None:
    """Remove all but the `keep` newest checkpoints of a run.

    spare: step of a checkpoint that is never removed. Raises OutputError if a checkpoint can't be
    removed.
    """
    steps = list_checkpoints(run_folder)
    for path in [path for step, path in steps.items() if step != spare][:-keep]:
        temporary = _temporary_name(path)
        with output_errors(str(path)):
            path.rename(temporary)
            shutil.rmtree(temporary)


def _temporary_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
