"""Models in Hugging Face's files: the description in config.json, and the folder of a model.

- A model with a SwiGLU network is a Llama; with biases of queries, keys and values it is a Qwen2,
  with norms of heads a Qwen3. Mistral without a sliding window is a Llama by another name.
  transformers has no such model with an ungated network, so a model with GeLU gets the type
  "llmgpu".
- A config.json with a feature that models of llmgpu lack is refused; the error names key and value.
- A folder has config.json, safetensors files and a tokenizer, and may be malicious. So all files
  are validated before the model's memory is allocated, and links out of the folder are refused.
  Weights stay in mapped files; reading a weight converts it to float32.
"""

from __future__ import annotations

import json
import os
import re
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange.formats import NAMES, find_in_folder
from llmgpu.bpe.interchange.huggingface import describe_config
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import CheckpointError
from llmgpu.input_files import Note, no_notes, parse_json, quote, read_limited
from llmgpu.lm.checkpoints.safetensors_file import (
    WEIGHT_DTYPES,
    as_float32,
    naming,
    read_tensors,
    require_tensors,
)
from llmgpu.lm.config import OUTPUT, ModelConfig, RopeScaling

OWN_KEY = "llmgpu"  # key in config.json, and type of models that transformers lacks
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"

_TOKENIZER_FILES = (
    *NAMES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model.json",  # the side file of ranks
)
_WEIGHT_FILE = re.compile(r"[^/\\]+\.safetensors")
# Old versions of transformers stored tensors with this ending. These tensors are ignored.
_COMPUTED = ".rotary_emb.inv_freq"

_ACTIVATIONS = {"swiglu": "silu", "gelu": "gelu_pytorch_tanh"}
_SIZES = {
    "hidden_size": "dim",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn_dim",
    "max_position_embeddings": "seq_len",
}
# Numbers of `RopeScaling`, by kind.
_SCALING_NUMBERS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_LARGEST = float(np.finfo(np.float32).max)
_MOST = 2**53  # largest whole number accepted; a float64 represents it and all smaller numbers
_KINDS = ("llama", "mistral", "qwen2", "qwen3")  # model types of transformers
# Keys of config.json for features that models of llmgpu lack, with the values that turn the
# features off.
_HARMLESS: dict[str, tuple[object, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False, None),
    "quantization_config": (None,),
    "auto_map": (None,),
    "sliding_window": (None,),
}
_PLAIN = "full_attention"  # the only supported type of a layer
_QWEN3_HEAD_DIM = 128  # width of heads if config.json has no head_dim
_MISTRAL_WINDOW = 4096  # sliding window if config.json has no sliding_window


def model_type(config: ModelConfig) -> str | None:
    """Return the model type of transformers; None if transformers has no such model."""
    if config.activation != "swiglu":
        return None
    return "qwen2" if config.qkv_bias else "qwen3" if config.qk_norm else "llama"


def not_a_llama(config: ModelConfig) -> str:
    """Return why `model_type` is None, for messages."""
    return f"with activation {config.activation} it is not a Llama model"


def describe_model(config: ModelConfig, *, eos_id: int | None = None) -> dict[str, Any]:
    """Return the content of config.json."""
    # llmgpu's own entries: vocab_size, and seq_len if the model supports longer sequences.
    kind = model_type(config)
    scaling: dict[str, Any] | None = None
    if (stretched := config.rope_scaling) is not None:
        numbers = {name: getattr(stretched, name) for name in _SCALING_NUMBERS[stretched.kind]}
        scaling = {"rope_type": stretched.kind, **numbers}
    own = {"vocab_size": config.vocab_size}
    if config.max_positions is not None:
        own["seq_len"] = config.seq_len
    return {
        "architectures": [] if kind is None else [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind or OWN_KEY,
        **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
        "max_position_embeddings": config.max_positions or config.seq_len,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied,
        "hidden_act": _ACTIVATIONS[config.activation],
        "rms_norm_eps": config.norm_epsilon,
        "rope_parameters": {
            **(scaling or {"rope_type": "default"}),
            "rope_theta": config.rope_theta,
        },
        "rope_theta": config.rope_theta,  # for transformers before version 5
        "rope_scaling": scaling,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "bos_token_id": None,  # no token marks the beginning of a text
        "eos_token_id": eos_id,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",  # for transformers before version 5
        OWN_KEY: own,
    }


def read_model(content: Mapping[str, Any]) -> ModelConfig:
    """Return the model that a config.json describes.

    Raises CheckpointError for an entry that is missing, of the wrong type or not supported,
    InputError for sizes that do not fit together.
    """
    # Checkpoints of llmgpu also have some entries under OWN_KEY.
    own = _get(content, OWN_KEY, dict) if OWN_KEY in content else content
    name = _get(content, "model_type", str)
    activation = _read_activation(name, content)
    _refuse_unsupported(name, content)
    # Read the sizes and the positions.
    sizes = {
        ours: _get(content, theirs, int)
        for theirs, ours in _SIZES.items()
        if theirs != "num_key_value_heads" or content.get(theirs) is not None
    }
    sizes.setdefault("kv_heads", sizes["heads"])
    max_positions = None
    if OWN_KEY in content and "seq_len" in own:
        max_positions, sizes["seq_len"] = sizes["seq_len"], _get(own, "seq_len", int)
    theta, scaling = _read_rope(content)
    width = _QWEN3_HEAD_DIM if name == "qwen3" else None
    if content.get("head_dim") is not None:
        width = _get(content, "head_dim", int)
    # If transformers has resized the tables, it has kept llmgpu's own entries as they were.
    is_resized = "transformers_version" in content
    config = ModelConfig(
        vocab_size=_get(content if is_resized else own, "vocab_size", int),
        **sizes,
        tied=_get(content, "tie_word_embeddings", bool),
        activation=activation,  # type: ignore[arg-type]
        rope_theta=theta,
        norm_epsilon=_get(content, "rms_norm_eps", float),
        # The width is dim / heads unless config.json or the model type says something else.
        head_width=None if sizes["dim"] == sizes["heads"] * (width or 0) else width,
        rope_scaling=scaling,
        qkv_bias=name == "qwen2",
        qk_norm=name == "qwen3",
        max_positions=max_positions,
    )
    # The tables must have exactly one row for each id.
    rows = _get(content, "vocab_size", int)
    if rows != config.vocab_size:
        raise CheckpointError(
            f"vocab_size is {rows}, but by the other sizes it must be {config.vocab_size}"
        )
    return config


def _refuse_unsupported(name: str, content: Mapping[str, Any]) -> None:
    """Raise CheckpointError for the first entry with a feature that models of llmgpu lack."""
    found = {"sliding_window": _MISTRAL_WINDOW if name == "mistral" else None, **content}
    if name != "mistral" and not content.get("use_sliding_window", True):  # a switch of Qwen alone
        found["sliding_window"] = None
    for key, values in _HARMLESS.items():
        if found.get(key) not in values:
            only = json.dumps(values[0])
            raise CheckpointError(f"{key} is {quote(found[key])}, but only {only} is supported")
    kinds = content.get("layer_types") or []
    others = [kind for kind in kinds if kind != _PLAIN] if isinstance(kinds, list) else kinds
    if others:
        raise CheckpointError(f"layer_types has {quote(others)}, which is not supported")


def _read_activation(name: str, content: Mapping[str, Any]) -> str:
    found = content.get("hidden_act")
    for ours, theirs in _ACTIVATIONS.items():
        if found == theirs and (name == OWN_KEY or (name in _KINDS and ours == "swiglu")):
            return ours
    raise CheckpointError(
        f"models of type {quote(name)} with hidden_act {quote(found)} are not supported; models of "
        f"type {', '.join(_KINDS)} with {_ACTIVATIONS['swiglu']} are"
    )


def _read_rope(content: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Return theta and the scaling of rotary positions."""
    # transformers 5 writes rope_parameters; earlier versions write rope_theta and rope_scaling.
    is_new = content.get("rope_parameters") is not None
    where = "rope_parameters" if is_new else "rope_scaling"
    parameters = {} if content.get(where) is None else _get(content, where, dict)
    theta = float(_get(parameters if is_new else content, "rope_theta", float))
    # Read the scaling.
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return theta, None
    if not isinstance(kind, str) or kind not in _SCALING_NUMBERS:
        raise CheckpointError(
            f"rope_type of {where} is {quote(kind)}, which is not supported; use default, "
            f"{', '.join(_SCALING_NUMBERS)}"
        )
    types = get_type_hints(RopeScaling)
    numbers = {name: _get(parameters, name, types[name]) for name in _SCALING_NUMBERS[kind]}
    return theta, RopeScaling(kind, **numbers)  # type: ignore[arg-type]


def _get(content: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return an entry of type `kind`. A float may be written as a whole number."""
    if name not in content:
        raise CheckpointError(f"{name} is missing")
    value: Any = content[name]
    kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds:
        raise CheckpointError(f"{name} is {quote(value)}, but must be of type {kind.__name__}")
    most = {float: _LARGEST, int: _MOST}.get(kind)
    if most is not None and not 0 < value <= most:
        raise CheckpointError(
            f"{name} is {quote(value)}, but must be above 0 and at most {most:.4g}"
        )
    return float(value) if kind is float and value > _MOST else value


def read_token_ids(content: Mapping[str, Any], name: str, ids: int) -> tuple[int, ...]:
    """Return the ids in the entry bos_token_id or eos_token_id: null, an id or a list of ids.

    ids: number of the model's ids. Raises CheckpointError for an id that is not below `ids`.
    """
    found = content.get(name)
    numbers = found if isinstance(found, list) else [] if found is None else [found]
    for number in numbers:
        if type(number) is not int or not 0 <= number < ids:
            raise CheckpointError(f"{name} is {quote(number)}, but ids are below {ids}")
    return tuple(numbers)


def describe_generation(eos_id: int | None, stop_ids: Iterable[int] = ()) -> dict[str, Any]:
    """Return the content of generation_config.json.

    stop_ids: tokens after which a text is complete, in addition to `eos_id`.
    """
    stops = sorted({*stop_ids, *(() if eos_id is None else (eos_id,))})
    return {
        "bos_token_id": None,
        "eos_token_id": stops if len(stops) > 1 else next(iter(stops), None),
        "pad_token_id": eos_id,  # the token with which tools fill up batches
        "do_sample": True,
    }


def describe_tokenizer(
    config: ModelConfig, vocabulary: Vocabulary, eos_id: int | None = None
) -> dict[str, Any]:
    """Return the content of tokenizer_config.json.

    Entries name special tokens by their text, and are left out for other tokens. The padding token
    is the padding token of the vocabulary's chat template, or else the token at the end of a text.
    """
    texts = {number: text for text, number in vocabulary.special_tokens.items()}
    end = {} if eos_id not in texts else {"eos_token": texts[eos_id]}
    padding = {"pad_token": end["eos_token"]} if end else {}
    named_there = {} if vocabulary.chat is None else vocabulary.chat.tokens
    tokens = {**end, **padding, **named_there, **end}
    return describe_config(vocabulary, tokens, config.max_positions or config.seq_len)


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

    def require_vocabulary(self, vocabulary: Vocabulary, source: str) -> None:
        """Raise CheckpointError unless `vocabulary` equals the model's; match rules may differ.

        source: the file of the vocabulary, for the error.
        """
        matched = vocabulary.with_match(self.vocabulary.match)
        if matched.fingerprint != self.vocabulary.fingerprint:
            raise CheckpointError(
                f"{source} is vocabulary {matched.fingerprint[:12]}, but the model in "
                f"{self.folder} needs {self.vocabulary.fingerprint[:12]}: use the vocabulary the "
                "model was trained with"
            )


class WeightFiles(UserDict[str, NDArray[Any]]):
    """Weights in safetensors files, by name.

    Each access reads a weight and converts it to float32.
    """

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Map the weight files of a folder.

        Raises CheckpointError for a file that can't be used, and for a weight that is missing,
        unexpected, of another shape or type. The output layer of a tied model is ignored: the
        embedding table replaces it.
        """
        super().__init__()
        self._files: dict[str, Path] = {}
        for path, names in _weight_files(folder).items():
            found = read_tensors(path)
            for name in names or found:
                is_unused = name.endswith(_COMPUTED) or (config.tied and name == OUTPUT)
                if name in found and not is_unused:
                    self.data[name], self._files[name] = found[name], path
        # A damaged config may have very many layers. `config.weights` would name them all.
        if config.layers > len(self):
            raise CheckpointError(
                f"{folder}: {len(self)} tensors are too few for {config.layers} layers"
            )
        expected = {weight.name: (WEIGHT_DTYPES, weight.used_shape) for weight in config.weights()}
        why = f" by the sizes in {CONFIG}; convert tensors of other types"
        require_tensors(folder, self.data, expected, why, self._files)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Return a weight; raise CheckpointError for numbers that are not finite."""
        values = as_float32(self.data[name])
        if not np.isfinite(values).all():
            reason = "has numbers that are not finite"
            raise CheckpointError(f"{self._files[name]}: tensor {quote(name)} {reason}")
        return values


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
    return read_model_files(folder, lambda: find_in_folder(folder).read(note))


def read_model_files(folder: Path, read_vocabulary: Callable[[], Vocabulary]) -> SavedModel:
    """Return the model in a folder; `read_vocabulary` is called after the other files are read.

    Raises CheckpointError, with the file, for files that can't be used.
    """
    content = read_object(folder / CONFIG)
    with naming(folder / CONFIG):
        config = read_model(content)
    weights = WeightFiles(folder, config)
    with naming(folder / CONFIG):
        first = read_token_ids(content, "bos_token_id", config.vocab_size)
        last = read_token_ids(content, "eos_token_id", config.vocab_size)
    stop_ids = {*last}
    if os.path.lexists(folder / GENERATION_CONFIG):
        generation = read_object(folder / GENERATION_CONFIG)
        with naming(folder / GENERATION_CONFIG):
            stop_ids |= {*read_token_ids(generation, "eos_token_id", config.vocab_size)}
    vocabulary = read_vocabulary()
    if vocabulary.size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {vocabulary.size:,} ids, but vocab_size in {CONFIG} is "
            f"{config.vocab_size:,}"
        )
    return SavedModel(
        folder=folder,
        config=config,
        vocabulary=vocabulary,
        weights=weights,
        bos_id=next(iter(first), None),
        eos_id=next(iter(last), None),
        stop_ids=frozenset(stop_ids),
    )


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
