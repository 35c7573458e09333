"""Export of a trained model to a GGUF file for llama.cpp, with weights, sizes and vocabulary.

- The architecture is llama, qwen2 or qwen3. For llama, the rotary embedding of llama.cpp rotates
  pairs of neighbouring numbers of a head. Hugging Face and llmgpu rotate a number of the first half
  with a number of the second half. So the rows of llama's query and key matrices are reordered: row
  i of the first half of a head comes before row i of the second half. For qwen2 and qwen3,
  llama.cpp rotates halves, too.
- For positions stretched as in Llama 3, the file has a tensor with the divisor of each frequency.
- Norms stay float32. With q8_0, q5_0 and q4_0 (blocks of 32 numbers with one scale), a matrix whose
  rows can't be divided into blocks becomes float16.
- Tensors are converted one by one, to save memory.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange import formats, gguf
from llmgpu.errors import CheckpointError
from llmgpu.input_files import Note, no_notes
from llmgpu.lm.checkpoints.huggingface import SavedModel, model_type, not_a_llama
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.model import scaled_frequencies
from llmgpu.lm.ops.layers import rotary_frequencies

_BLOCK = 32  # numbers in a block of q8_0, q5_0 and q4_0
_LLAMA, _LLAMA3 = "llama", "llama3"  # an architecture, and a kind of `RopeScaling`


def write_model(
    model: SavedModel,
    path: str | Path,
    *,
    weights: str = "f32",
    note: Note = no_notes,
    force: bool = False,
) -> None:
    """Write a model and its vocabulary to a GGUF file.

    weights: a name in `formats.WEIGHT_TYPES`. note: called with a note on texts that get other ids
    in llama.cpp. force: replace even a file of another kind.

    Raises CheckpointError for a model that llama.cpp can't run, and for weights too large for their
    type; VocabularyError if llama.cpp can't give the same ids; OutputError for a file that can't be
    written.
    """
    # Describe the vocabulary before opening the file, because some vocabularies are refused.
    config = model.config
    architecture = _architecture(config)
    described = gguf.describe(
        model.vocabulary,
        note,
        bos_id=model.bos_id,
        eos_id=min(model.stop_ids, default=None) if model.eos_id is None else model.eos_id,
        rows=config.vocab_size,
    )
    # List the tensors: all weights, and the divisors of the frequencies.
    package = gguf.load_package()
    names = package.get_tensor_name_map(package.MODEL_ARCH[architecture.upper()], config.layers)
    more = _frequency_divisors(config)
    shapes = {name: values.shape for name, values in more.items()}
    shapes |= {weight.name: weight.used_shape for weight in config.weights()}
    with gguf.new_file(
        path,
        _describe_sizes(config, weights, package) | described,
        force=force,
        architecture=architecture,
    ) as writer:
        for name, shape in shapes.items():
            kind = package.GGMLQuantizationType[_type_of(shape, weights).upper()]
            size = math.prod(package.quant_shape_to_byte_shape(shape, kind))
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
            writer.add_tensor_info(theirs, shape, np.dtype(np.float32), size, raw_dtype=kind)
        # Write the header, then the tensors in the order of `shapes`.
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, shape in shapes.items():
            values = more[name] if name in more else model.weights[name][: shape[0]]
            if architecture == _LLAMA:
                values = _in_their_order(name, values, config)
            writer.write_tensor_data(_convert(name, values, _type_of(shape, weights), package))


def _architecture(config: ModelConfig) -> str:
    """Return llama.cpp's name for the architecture.

    Raises CheckpointError for a model that llama.cpp can't run.
    """
    kind = model_type(config)
    if kind is None:
        raise CheckpointError(f"llama.cpp can't run the model: {not_a_llama(config)}")
    scaling = config.rope_scaling
    if kind != _LLAMA and scaling is not None and scaling.kind == _LLAMA3:
        raise CheckpointError(
            f"llama.cpp applies rope_scaling of kind {_LLAMA3} only to llama models, not to {kind}"
        )
    return kind


def _frequency_divisors(config: ModelConfig) -> dict[str, NDArray[np.float32]]:
    """Return the tensor of frequency divisors by name; {} unless the scaling is Llama 3's."""
    if config.rope_scaling is None or config.rope_scaling.kind != _LLAMA3:
        return {}
    plain = rotary_frequencies(config.head_dim, config.rope_theta)
    return {"rope_freqs.weight": (plain / scaled_frequencies(config)).astype(np.float32)}


def _describe_sizes(config: ModelConfig, weights: str, package: Any) -> dict[str, Any]:
    scaling: dict[str, Any] = {}
    if config.rope_scaling is not None and config.rope_scaling.kind == "linear":
        scaling["rope_scaling_type"] = package.RopeScalingType.LINEAR
        scaling["rope_scaling_factor"] = config.rope_scaling.factor
    return scaling | {
        "block_count": config.layers,
        "context_length": config.max_positions or config.seq_len,
        "embedding_length": config.dim,
        "feed_forward_length": config.ffn_dim,
        "head_count": config.heads,
        "head_count_kv": config.kv_heads,
        "layer_norm_rms_eps": config.norm_epsilon,
        "rope_freq_base": config.rope_theta,
        "rope_dimension_count": config.head_dim,
        "key_length": config.head_dim,
        "value_length": config.head_dim,
        "vocab_size": config.vocab_size,
        "file_type": formats.WEIGHT_TYPES[weights],
    }


def _type_of(shape: tuple[int, ...], weights: str) -> str:
    if len(shape) == 1:
        return "f32"
    return "f16" if weights.startswith("q") and shape[-1] % _BLOCK else weights


def _in_their_order(
    name: str, values: NDArray[np.float32], config: ModelConfig
) -> NDArray[np.float32]:
    """Return a weight with the rows of each head in the order of llama.cpp's rotary embedding."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return values
    halves = values.reshape(-1, 2, config.head_dim // 2, config.dim)
    return halves.swapaxes(1, 2).reshape(values.shape)


def _convert(name: str, values: NDArray[np.float32], kind: str, package: Any) -> NDArray[Any]:
    largest = float(np.abs(values).max(initial=0))
    if kind != "f32" and largest > float(np.finfo(np.float16).max):
        raise CheckpointError(
            f"{name} has the weight {largest:g}, which is too large for {kind}: use --weights f32"
        )
    with np.errstate(under="ignore"):
        number = package.GGMLQuantizationType[kind.upper()]
        converted: NDArray[Any] = package.quantize(values, number)
    return converted
