"""A small model, its vocabulary and what a run of it would save."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.gpu.commands import Download
from llmgpu.lm.checkpoints.checkpoint import TrainingState, save_checkpoint
from llmgpu.lm.checkpoints.safetensors_file import Kinds
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.generator import Generator, Request
from llmgpu.lm.model import Model
from llmgpu.lm.ops.operations import GpuOperations
from llmgpu.lm.options import SamplingOptions
from llmgpu.lm.sampling import Sampler
from tests.bpe.vocabularies import build_vocabulary

END = "<|end|>"


def small_vocabulary(pattern: str = "gpt2") -> Vocabulary:
    merges = [(116, 104), (256, 101), (32, 257), (97, 110), (259, 100)]  # th, the, " the", an, and
    return build_vocabulary(
        merges, pattern=pattern, tie="hf", special_tokens=["<|x|>", END], training={}
    )


def small_config(vocabulary: Vocabulary, **sizes: Any) -> ModelConfig:
    given = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 40, "seq_len": 16}
    return ModelConfig(vocabulary.size, **(given | sizes))


def random_weights(config: ModelConfig, seed: int) -> dict[str, NDArray[np.float32]]:
    """Weights large enough that no part of the model is without effect; unused rows are 0."""
    generator = np.random.default_rng(seed)
    weights = {}
    for weight in config.weights():
        values = generator.standard_normal(weight.shape) * 0.2 + (weight.deviation is None)
        values[weight.used_shape[0] :] = 0
        weights[weight.name] = values.astype(np.float32)
    return weights


def used_rows(
    config: ModelConfig, weights: dict[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return weights without the rows that stand for no token, as checkpoints have them."""
    return {
        weight.name: weights[weight.name][: weight.used_shape[0]] for weight in config.weights()
    }


def read_weights(model: Model) -> dict[str, NDArray[np.float32]]:
    """Return a model's weights by name, which a device copies in one submission."""
    operations, weights = model.operations, model.weights
    if not isinstance(operations, GpuOperations):
        return {name: operations.read(each) for name, each in weights.items()}
    arrays = {name: np.empty(each.shape, each.dtype) for name, each in weights.items()}
    download = Download(operations.device)
    download.start(*((each.buffer, each.nbytes) for each in weights.values()))
    download.finish(*(array.reshape(-1).view(np.uint8) for array in arrays.values()))
    return arrays


def generated(
    generator: Generator, prompt: Sequence[int], count: int, sampler: Sampler
) -> Iterator[int]:
    """Yield the `count` ids after a prompt."""
    for _, token in generator.continue_all([Request(prompt, count, sampler)]):
        if token is not None:
            yield token


class _KeptLogits(Sampler):
    """Draws from all logits, and keeps them."""

    def draw(self, logits: NDArray[np.float32]) -> int:
        self.logits = logits
        return super().draw(logits)


def logits_after(generator: Generator, ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits of what follows `ids`: one for each id that stands for a token."""
    sampler = _KeptLogits(SamplingOptions(log_probabilities=True))
    assert len(list(generated(generator, ids, 1, sampler))) == 1
    return sampler.logits


def moments(config: ModelConfig, seed: int) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return {
        f"{weight.name}.{kind}": generator.integers(0, 256, weight.shape).astype(dtype)
        for weight in config.weights()
        for kind, dtype in (("first", np.float32), ("second", np.uint8))
    }


def state_of(step: int) -> TrainingState:
    return TrainingState(
        step=step,
        tokens_seen=64 * step,
        sequence_position=4 * step,
        random_state={"state": (1 << 127) + step, "order": [1, 2]},
        options={"learning rate": 3e-4, "schedule": None},
    )


def save(run: Path, step: int, *, seed: int | None = None, **options: Any) -> Path:
    """Save a checkpoint of the small model with values of its step's own."""
    vocabulary = small_vocabulary()
    config = small_config(vocabulary)
    seed = step if seed is None else seed
    return save_checkpoint(
        run,
        config,
        vocabulary,
        *sources(random_weights(config, seed), moments(config, seed)),
        state_of(step),
        **options,
    )


def kinds_of(tensors: dict[str, Any]) -> Kinds:
    """Return the dtypes and the shapes of arrays."""
    return {name: (array.dtype, array.shape) for name, array in tensors.items()}


def sources(
    weights: dict[str, Any], optimizer: dict[str, Any] | None = None
) -> tuple[Callable[[str], NDArray[Any]], Kinds]:
    """Return what `save_checkpoint` receives: a reader of tensors, and the optimizer's kinds."""
    optimizer = optimizer or {}
    return (weights | optimizer).__getitem__, kinds_of(optimizer)


def sum_of_parts(data: bytes) -> str:
    """Return the sum that training.json has of a file with these bytes."""
    parts = [data[at : at + 16 * 1024 * 1024] for at in range(0, len(data), 16 * 1024 * 1024)]
    digests = [hashlib.sha256(part).digest() for part in parts]
    return hashlib.sha256(b"".join(digests)).hexdigest()
