"""Models of other tools: folders with config.json, safetensors files and a tokenizer.

Such a folder is a checkpoint of Hugging Face's Llama or a relative, see `huggingface.read_model`.
The folder may be malicious. So all files are validated before the model's memory is allocated, and
links out of the folder are refused. Weights stay in mapped files; reading a weight converts it to
float32.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange.open import find_in_folder
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import CheckpointError, VocabularyError
from llmgpu.input_files import Note, no_notes, parse_json, quote, read_limited
from llmgpu.lm.checkpoints.huggingface import read_model, read_token_ids
from llmgpu.lm.checkpoints.safetensors_file import WEIGHT_DTYPES, as_float32, read_tensors
from llmgpu.lm.config import OUTPUT, ModelConfig

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tekken.json",
    "tokenizer.model",
)
_WEIGHT_FILE = re.compile(r"[^/\\]+\.safetensors")
# Old versions of transformers stored tensors with this ending. These tensors are ignored.
_COMPUTED = ".rotary_emb.inv_freq"


@dataclass(frozen=True, eq=False, kw_only=True)
class SavedModel:
    """A model in a folder.

    config: vocab_size may be larger than the vocabulary; the last rows of the tables then belong
    to no token. weights: float32 by name; tables have vocab_size rows. bos_id, eos_id: tokens at
    the beginning and the end of a text, if any. stop_ids: tokens after which a text is complete.
    """

    folder: Path
    config: ModelConfig
    vocabulary: Vocabulary
    weights: Mapping[str, NDArray[np.float32]]
    bos_id: int | None
    eos_id: int | None
    stop_ids: frozenset[int] = field(default_factory=frozenset)


class WeightFiles(Mapping[str, NDArray[np.float32]]):
    """Weights in safetensors files, by name.

    Each access reads a weight and converts it to float32.
    """

    def __init__(self, folder: Path) -> None:
        """Map the weight files of a folder; raise CheckpointError for files that can't be used."""
        self.folder = folder
        self._tensors: dict[str, NDArray[Any]] = {}
        self._paths: dict[str, Path] = {}
        for path, names in _weight_files(folder).items():
            found = read_tensors(path).tensors
            for name in names or found:
                if name not in found:
                    raise CheckpointError(f"{path}: tensor {quote(name)} is missing")
                self._tensors[name] = found[name]
                self._paths[name] = path

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Return a weight; raise CheckpointError for numbers that are not finite."""
        values = as_float32(self._tensors[name])
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"{self._paths[name]}: tensor {quote(name)} has numbers that are not finite"
            )
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def require(self, config: ModelConfig) -> None:
        """Raise CheckpointError for a weight that is missing, unexpected, of another shape or type.

        The output layer of a tied model is ignored: the embedding table replaces it.
        """
        # A damaged config may have very many layers. `config.weights` would name them all.
        if config.layers > len(self):
            raise CheckpointError(
                f"{self.folder}: {len(self)} tensors are too few for {config.layers} layers"
            )
        expected = {weight.name: weight.used_shape for weight in config.weights()}
        for name, shape in expected.items():
            if name not in self._tensors:
                raise CheckpointError(f"{self.folder}: tensor {quote(name)} is missing")
            found = self._tensors[name].shape
            if found != shape:
                raise CheckpointError(
                    f"{self._paths[name]}: tensor {quote(name)} is {list(found)}, but by the sizes "
                    f"in {CONFIG} it must be {list(shape)}"
                )
            if (kind := self._tensors[name].dtype) not in WEIGHT_DTYPES:
                raise CheckpointError(
                    f"{self._paths[name]}: tensor {quote(name)} is of {kind}, but weights are F32, "
                    "F16 or BF16: convert it"
                )
        for name in self:
            unused = name.endswith(_COMPUTED) or (config.tied and name == OUTPUT)
            if name not in expected and not unused:
                raise CheckpointError(f"{self._paths[name]}: tensor {quote(name)} is unexpected")


def has_model(path: str | Path) -> bool:
    """Whether a folder has config.json and weights, not only a tokenizer."""
    folder = Path(path)
    weights = any(os.path.lexists(folder / name) for name in (WEIGHTS, INDEX))
    return weights and os.path.lexists(folder / CONFIG)


def open_pretrained(path: str | Path, note: Note = no_notes) -> SavedModel:
    """Open the folder of a model that Hugging Face's libraries saved.

    note: called with a note on each part of the tokenizer that has no effect here.

    Raises CheckpointError, with the file, for files that are missing, damaged or not supported,
    VocabularyError for a tokenizer that can't be read exactly.
    """
    folder = Path(path)
    for name in (CONFIG, GENERATION_CONFIG, *_TOKENIZER_FILES):
        if name == CONFIG or os.path.lexists(folder / name):
            _inside(folder, name)
    model = read_model_files(folder)
    vocabulary = find_in_folder(folder).read(note)
    if vocabulary.size > model["config"].vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {vocabulary.size:,} ids, but vocab_size in {CONFIG} is "
            f"{model['config'].vocab_size:,}"
        )
    return SavedModel(vocabulary=vocabulary, **model)


def read_model_files(folder: Path) -> dict[str, Any]:
    """Return the fields of a `SavedModel` except the vocabulary.

    Raises CheckpointError, with the file, for files that can't be used.
    """
    content = read_object(folder / CONFIG)
    with naming(folder / CONFIG):
        config = read_model(content)
    weights = WeightFiles(folder)
    weights.require(config)
    with naming(folder / CONFIG):
        first, last = (
            read_token_ids(content, f"{end}_token_id", config.vocab_size) for end in ("bos", "eos")
        )
    stop_ids = {*last}
    if os.path.lexists(folder / GENERATION_CONFIG):
        generation = read_object(folder / GENERATION_CONFIG)
        with naming(folder / GENERATION_CONFIG):
            stop_ids |= {*read_token_ids(generation, "eos_token_id", config.vocab_size)}
    return {
        "folder": folder,
        "config": config,
        "weights": weights,
        "bos_id": next(iter(first), None),
        "eos_id": next(iter(last), None),
        "stop_ids": frozenset(stop_ids),
    }


def _weight_files(folder: Path) -> dict[Path, list[str]]:
    """Return the weight files, each with the names of its tensors.

    An empty list means all tensors.
    """
    if not os.path.lexists(folder / INDEX):
        if not os.path.lexists(folder / WEIGHTS):
            raise CheckpointError(
                f"{folder} has neither {WEIGHTS} nor {INDEX}: weights in other files, such as "
                "pickles, are not read; save_pretrained of transformers writes these"
            )
        return {_inside(folder, WEIGHTS): []}
    path = _inside(folder, INDEX)
    table = read_object(path).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{path}: weight_map is missing")
    files: dict[str, list[str]] = {}
    for name, file in table.items():
        if not isinstance(file, str) or not _WEIGHT_FILE.fullmatch(file):
            raise CheckpointError(
                f"{path}: the file of {quote(name)} is {quote(file)}, but must be a .safetensors "
                "in this folder"
            )
        files.setdefault(file, []).append(name)
    return {_inside(folder, file): names for file, names in files.items()}


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file of the folder.

    A link may lead to another place in the folder. If the folder is a snapshot in Hugging Face's
    cache, a link may also lead to the blobs of the same model. Raises CheckpointError for other
    links, and if the file does not exist.
    """
    path, home = folder / name, folder.resolve()
    with naming(path):
        target = path.resolve(strict=True)
    roots = [home]
    if home.parent.name == "snapshots":
        roots.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(root) for root in roots):
        raise CheckpointError(f"{path} is a link out of the folder, to {target}: copy the file")
    if not target.is_file():
        raise CheckpointError(f"{path} is not a file")
    return path


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise CheckpointError, with the path, for other content."""
    with naming(path):
        content = parse_json(read_limited(path, "model description"))
        if not isinstance(content, dict):
            raise CheckpointError("damaged: not a JSON object")
    return content


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an error of the block into a CheckpointError that names `path`."""
    try:
        yield
    except (CheckpointError, VocabularyError) as error:
        text = str(error)
        raise CheckpointError(text if str(path) in text else f"{path}: {text}") from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: the links form a circle
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: can't read it: {reason}") from error
