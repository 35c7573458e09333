"""Low-rank adapters: their gradients, and fine-tuning as peft and transformers do it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.lm import adapters
from llmgpu.lm.adapters import Adapters, adapted_weights
from llmgpu.lm.checkpoints.safetensors_file import read_tensors
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.data.batches import IGNORED_TARGET, Batch
from llmgpu.lm.gradients import LossGraph
from llmgpu.lm.model import Model
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.options import LORA_TARGETS, TrainOptions
from llmgpu.lm.trainer import Trainer
from tests.lm.ops.checking import assert_close
from tests.lm.pretrained_folders import kind_of_model, weights_of, write_folder
from tests.reference.lm.llama import Llama

pytestmark = pytest.mark.usefixtures("few_partial_norms")

LORA = TrainOptions(
    batch_size=3,
    lora_rank=3,
    lora_alpha=12.0,
    lora_targets=",".join(LORA_TARGETS),
    learning_rate=5e-3,
    z_loss=0.0,
    steps=50,
)


def batch_of(config: ModelConfig, seed: int) -> Batch:
    """Ids of a few kinds, which can be learnt, with some targets that a mask leaves out."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 30, (3, config.seq_len + 1)).cumsum(axis=1) % 250
    targets = ids[:, 1:].astype(np.uint32)
    targets[rng.random(targets.shape) < 0.3] = IGNORED_TARGET
    return ids[:, :-1].astype(np.uint32), targets


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_gradients_are_those_of_the_float64_model(operations: Operations, kind: str) -> None:
    """Of two batches that add up, by the chain rule from the gradient of the merged matrices."""
    config = kind_of_model(kind)
    options = LORA
    model = Model(operations, config)
    adapters = Adapters(model, options)
    weights = weights_of(config)
    model.load(weights.__getitem__)
    adapters.load(weights.__getitem__)
    rng = np.random.default_rng(3)
    factors = {}
    for each in adapters.adapters.values():
        for tensor in (each.a, each.b):
            factors[tensor.name] = (rng.standard_normal(tensor.shape) * 0.1).astype(np.float32)
            operations.write(tensor, factors[tensor.name])
    adapters.merge()
    merged = {name: values.astype(np.float64) for name, values in weights.items()}
    scale = options.lora_alpha / options.lora_rank
    for name, each in adapters.adapters.items():
        a, b = (factors[tensor.name].astype(np.float64) for tensor in (each.a, each.b))
        merged[name] += scale * b @ a.T
        found = operations.read(model.weights[name])
        np.testing.assert_allclose(found, merged[name], rtol=1e-5, atol=1e-6)

    gradients = {
        weight.name: operations.tensor(weight.name, tensor.shape)
        for weight, tensor in adapters.trained.items()
    }
    graph = LossGraph(model, 3, config.seq_len, adapters.gradients, adapters.packed_gradients)
    graph.write_loss_params(100, 0.0, 0.0)
    with operations.record("gradients") as program:
        graph.record_gradients(lambda start: adapters.record_gradients(start, gradients))
    reference, expected = Llama(config, merged), {}
    for seed in (1, 2):
        tokens, targets = batch_of(config, seed)
        graph.write_batch((tokens, targets))
        operations.run(program)
        _, whole = reference.loss_and_gradients(tokens, targets)
        count = np.count_nonzero(targets < config.vocab_size) / 100
        for name, each in adapters.adapters.items():
            a, b = (factors[tensor.name].astype(np.float64) for tensor in (each.a, each.b))
            of_a = scale * count * whole[name].T @ b
            of_b = scale * count * whole[name] @ a
            expected[each.a.name] = expected.get(each.a.name, 0) + of_a
            expected[each.b.name] = expected.get(each.b.name, 0) + of_b
    for name, tensor in gradients.items():
        assert_close(operations.read(tensor).reshape(1, -1), expected[name].reshape(1, -1), 2e-4)


def test_only_the_matrices_asked_for_change(operations: Operations) -> None:
    config = kind_of_model("llama")
    weights = weights_of(config)
    options = TrainOptions(
        batch_size=3, lora_rank=2, lora_alpha=4.0, lora_targets="q_proj, up_proj"
    )
    trainer = Trainer(operations, config, options, slots=3)
    trainer.load(weights.__getitem__)
    for step in range(3):
        trainer.take_step([batch_of(config, step)], 1e-2)
    changed = set()
    for name, values in weights.items():
        found = operations.read(trainer.model.weights[name])[: len(values)]
        if not np.array_equal(found, values):
            changed.add(name)
    assert changed == {each.name for each in adapted_weights(config, ("q_proj", "up_proj"))}
    assert len(changed) == 4


def losses_of(trainer: Trainer, config: ModelConfig, options: TrainOptions) -> list[float]:
    for step in range(options.steps):
        trainer.take_step([batch_of(config, step % 2)], options.learning_rate)
    return [result.loss for result in trainer.results(options.steps)]


def torch_losses(torch: Any, model: Any, config: ModelConfig, options: TrainOptions) -> list[float]:
    trained = [each for each in model.parameters() if each.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim == 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.ndim != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=options.learning_rate,
        betas=(options.beta1, options.beta2),
        eps=options.epsilon,
    )
    losses = []
    for step in range(options.steps):
        tokens, targets = batch_of(config, step % 2)
        logits = model(torch.from_numpy(tokens.astype(np.int64))).logits
        signed = targets.astype(np.int64)
        wanted = torch.from_numpy(np.where(signed == IGNORED_TARGET, -100, signed))
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(wanted.numel(), -1), wanted.reshape(-1), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, options.grad_clip)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def open_theirs(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder).float().train()


@pytest.mark.parametrize("kind", ["wide heads", "qwen2", "qwen3"])
def test_fine_tuning_a_checkpoint_is_that_of_transformers(
    operations: Operations, tmp_path: Path, kind: str
) -> None:
    torch = pytest.importorskip("torch")
    config, options = kind_of_model(kind), replace(LORA, lora_rank=0, learning_rate=2e-3)
    folder = write_folder(tmp_path / "m", config, weights_of(config))
    trainer = Trainer(operations, config, options, slots=options.steps)
    trainer.load(weights_of(config).__getitem__)
    found = losses_of(trainer, config, options)
    expected = torch_losses(torch, open_theirs(folder), config, options)
    assert found[-1] < found[0] - 0.2
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_adapters_are_those_of_peft(operations: Operations, tmp_path: Path, kind: str) -> None:
    """peft opens what we begin with, trains it to the same losses, and opens what we end with."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    config = kind_of_model(kind)
    folder = write_folder(tmp_path / "m", config, weights_of(config))
    trainer = Trainer(operations, config, LORA, slots=LORA.steps)
    trainer.load(weights_of(config).__getitem__)

    def saved(name: str) -> Path:
        assert trainer.adapters is not None
        trainer.adapters.write(trainer.reader(None), str(folder), tmp_path / name)
        return tmp_path / name

    begun = saved("begun")
    theirs = peft.PeftModel.from_pretrained(open_theirs(folder), begun, is_trainable=True)
    found = losses_of(trainer, config, LORA)
    expected = torch_losses(torch, theirs, config, LORA)
    assert found[-1] < found[0] - 0.2
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)

    again = peft.PeftModel.from_pretrained(open_theirs(folder), saved("ended")).eval()
    tokens, _ = batch_of(config, 99)
    with torch.no_grad():
        logits = again(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()
    merged = {name: operations.read(each) for name, each in trainer.model.weights.items()}
    np.testing.assert_allclose(logits, Llama(config, merged).forward(tokens), atol=1e-4, rtol=1e-4)


def test_a_factor_is_written_transposed(tmp_path: Path) -> None:
    trainer = Trainer(open_operations(None), kind_of_model("llama"), LORA, slots=1)
    trainer.load(weights_of(kind_of_model("llama")).__getitem__)
    assert trainer.adapters is not None
    trainer.adapters.write(trainer.reader(None), "", tmp_path / "adapter")
    tensors = read_tensors(tmp_path / "adapter" / "adapter_model.safetensors")
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
    assert tensors[name].shape == (3, 40)
    assert np.abs(tensors[name]).max() <= 40**-0.5
    assert not tensors[name.replace("lora_A", "lora_B")].any()


def test_factors_are_read_one_by_one_when_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(open_operations(None), kind_of_model("llama"), LORA, slots=1)
    trainer.load(weights_of(kind_of_model("llama")).__getitem__)
    steps: list[str] = []

    def read(name: str) -> np.ndarray:
        steps.append("read")
        return trainer.reader(None)(name)

    def write(path: Path, kinds: Any, read: Any, metadata: Any) -> None:
        for name, (dtype, shape) in kinds.items():
            steps.append("write")
            content = read(name)
            assert (content.dtype, content.shape) == (dtype, shape)

    monkeypatch.setattr(adapters, "write_tensors", write)
    assert trainer.adapters is not None
    trainer.adapters.write(read, "", tmp_path / "adapter")
    assert steps == 2 * len(trainer.adapters.adapters) * ["write", "read"]
