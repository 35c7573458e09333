"""Folders of models as others save them: config.json, safetensors and a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange import huggingface
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.lm.checkpoints.huggingface import OWN_KEY, describe_model
from llmgpu.lm.config import ModelConfig, RopeScaling
from tests.lm.samples import random_weights, small_vocabulary, used_rows

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "wide heads": {"head_width": 12, "tied": False},
    "qwen2": {"qkv_bias": True, "norm_epsilon": 1e-6, "rope_theta": 1e6},
    "qwen3": {"qk_norm": True, "head_width": 16, "norm_epsilon": 1e-6},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 16), "rope_theta": 5e5},
}


def kind_of_model(kind: str, rows: int = 270) -> ModelConfig:
    """A small model whose tables have rows for more ids than its tokenizer has."""
    sizes = {"dim": 40, "layers": 2, "heads": 5, "kv_heads": 5, "ffn_dim": 24, "seq_len": 64}
    return ModelConfig(rows, **(sizes | KINDS[kind]))


def weights_of(config: ModelConfig, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    return used_rows(config, random_weights(config, seed))


def as_stored(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """The bits of numbers in a file; those of BF16 are cut off, not rounded."""
    if dtype == "BF16":
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2")
    with np.errstate(under="ignore"):
        return values.astype({"F32": "<f4", "F16": "<f2"}[dtype])


def write_safetensors(path: Path, tensors: dict[str, NDArray[np.float32]], dtype: str) -> None:
    """The format taken from its description, with nothing of the package."""
    header, data = {}, b""
    for name, values in tensors.items():
        part = as_stored(values, dtype).tobytes()
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += part
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def write_folder(
    folder: Path,
    config: ModelConfig,
    weights: dict[str, NDArray[np.float32]],
    *,
    dtype: str = "F32",
    files: int = 1,
    vocabulary: Vocabulary | None = None,
    **changes: Any,
) -> Path:
    """Write a model to a new folder; `changes` to its config.json, of which ... removes."""
    folder.mkdir()
    described = describe_model(config, eos_id=262) | changes
    del described[OWN_KEY]
    content = {key: value for key, value in described.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(content))
    huggingface.write(vocabulary or small_vocabulary("qwen2"), f"{folder}/", force=True)
    if files == 1:
        write_safetensors(folder / "model.safetensors", weights, dtype)
        return folder
    names = sorted(weights)
    table = {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = {name: weights[name] for name in names[number::files]}
        write_safetensors(folder / file, part, dtype)
        table |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
