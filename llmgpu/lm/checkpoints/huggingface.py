"""A model as Hugging Face's libraries describe it: config.json and the files about its tokenizer.

- A model with a SwiGLU network is a Llama, and opens there as one. Those libraries have no Llama
  without gate, so a model with GeLU gets the type "llmgpu".
- `vocab_size` is the number of rows of the tables, as it is there; the number of ids is stated
  beside it. Tables of earlier versions are padded: they have rows for ids that the tokenizer does
  not have, which were trained as others are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmgpu.bpe.interchange.huggingface import describe_config
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import CheckpointError, InputError
from llmgpu.lm.config import ModelConfig

OWN_KEY = "llmgpu"  # in config.json, and the type of models that are not Llamas

_ACTIVATIONS = {"swiglu": "silu", "gelu": "gelu_pytorch_tanh"}
_SIZES = {
    "hidden_size": "dim",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn_dim",
    "max_position_embeddings": "seq_len",
}
_SHOWN = 60  # characters of a value in a message
_REFUSED = ("attention_bias", "mlp_bias", "rope_scaling")


def is_llama(config: ModelConfig) -> bool:
    """Whether other libraries can open the model, as a Llama."""
    return config.is_gated


def describe_model(
    config: ModelConfig,
    *,
    padded: bool = False,
    bos_id: int | None = None,
    eos_id: int | None = None,
) -> dict[str, Any]:
    """Return the content of config.json; padded: whether the tables are."""
    llama = is_llama(config)
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    return {
        "architectures": ["LlamaForCausalLM"] if llama else [],
        "model_type": "llama" if llama else OWN_KEY,
        **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
        "head_dim": config.head_dim,
        "vocab_size": config.padded_vocab_size if padded else config.vocab_size,
        "tie_word_embeddings": config.tied,
        "hidden_act": _ACTIVATIONS[config.activation],
        "rms_norm_eps": config.norm_epsilon,
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,  # where versions before 5 look
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",  # where versions before 5 look
        OWN_KEY: {"vocab_size": config.vocab_size},
    }


def read_model(content: Mapping[str, Any]) -> ModelConfig:
    """Return what a config.json describes.

    Without our entry, all rows of the tables are ids.

    Raises CheckpointError for an entry that is missing, of the wrong type or not supported.
    """
    for name in _REFUSED:
        if content.get(name):
            raise CheckpointError(f"models with {name} are not supported")
    own = _get(content, OWN_KEY, dict) if OWN_KEY in content else content
    sizes = {ours: _get(content, theirs, int) for theirs, ours in _SIZES.items()}
    try:
        config = ModelConfig(
            vocab_size=_get(own, "vocab_size", int),
            **sizes,
            tied=_get(content, "tie_word_embeddings", bool),
            activation=_read_activation(content),  # type: ignore[arg-type]
            rope_theta=_read_rope_theta(content),
            norm_epsilon=_get(content, "rms_norm_eps", float),
        )
    except InputError as error:
        raise CheckpointError(str(error)) from error
    heights = tuple(dict.fromkeys((config.vocab_size, config.padded_vocab_size)))
    for name, allowed in (("vocab_size", heights), ("head_dim", (config.head_dim,))):
        found = content.get(name, allowed[0])
        if found not in allowed:
            raise CheckpointError(
                f"{name} is {_show(found)}, with the other sizes it must be "
                f"{' or '.join(map(str, allowed))}"
            )
    return config


def has_padded_tables(content: Mapping[str, Any], config: ModelConfig) -> bool:
    """Whether the tables of the model that a config.json describes have rows without a token."""
    return bool(content.get("vocab_size", config.padded_vocab_size) != config.vocab_size)


def _read_activation(content: Mapping[str, Any]) -> str:
    found = (_get(content, "model_type", str), _get(content, "hidden_act", str))
    for ours, theirs in _ACTIVATIONS.items():
        if found == ("llama" if ours == "swiglu" else OWN_KEY, theirs):
            return ours
    raise CheckpointError(
        f"models of type {_show(found[0])} with {_show(found[1])} are not supported"
    )


def _read_rope_theta(content: Mapping[str, Any]) -> float:
    if "rope_parameters" not in content:
        return float(_get(content, "rope_theta", float))
    parameters = _get(content, "rope_parameters", dict)
    if parameters.get("rope_type", "default") != "default":
        raise CheckpointError(f"rope_type {_show(parameters['rope_type'])} is not supported")
    return float(_get(parameters, "rope_theta", float))


def _get(content: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return an entry of exactly this type, or a whole number for a float."""
    if name not in content:
        raise CheckpointError(f"{name} is missing")
    value: Any = content[name]
    kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds:
        raise CheckpointError(f"{name} is {_show(value)}, it must be of type {kind.__name__}")
    if kind is float and not 0 < value < math.inf:
        raise CheckpointError(f"{name} is {_show(value)}, it must be above 0")
    return value


def _show(value: object) -> str:
    """Return a value for a message, cut short if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def read_token_id(content: Mapping[str, Any], name: str, vocabulary: Vocabulary) -> int | None:
    """Return bos_token_id or eos_token_id of config.json, None if there is none."""
    number = content.get(name)
    if number is None:
        return None
    if type(number) is not int or not 0 <= number < vocabulary.size:
        raise CheckpointError(f"{name} is {_show(number)}, but ids are below {vocabulary.size}")
    return number


def describe_generation(
    config: ModelConfig,
    *,
    padded: bool = False,
    bos_id: int | None = None,
    eos_id: int | None = None,
) -> dict[str, Any]:
    """Return the content of generation_config.json, which suppresses rows without a token."""
    content: dict[str, Any] = {"bos_token_id": bos_id, "eos_token_id": eos_id, "do_sample": True}
    no_tokens = list(range(config.vocab_size, config.padded_vocab_size)) if padded else []
    return content | ({"suppress_tokens": no_tokens} if no_tokens else {})


def describe_tokenizer(
    config: ModelConfig,
    vocabulary: Vocabulary,
    *,
    bos_id: int | None = None,
    eos_id: int | None = None,
) -> dict[str, Any]:
    """Return the content of tokenizer_config.json.

    Both tokens are named by their text, which only special tokens have.
    """
    texts = {number: text for text, number in vocabulary.special_tokens.items()}
    named = {"bos_token": texts.get(bos_id), "eos_token": texts.get(eos_id)}  # type: ignore[arg-type]
    chosen = {name: text for name, text in named.items() if text is not None}
    tokens = vocabulary.chat.tokens if vocabulary.chat else {}
    return describe_config(vocabulary, {**tokens, **chosen}, config.seq_len)
