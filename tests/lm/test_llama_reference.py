"""The float64 model, which is the oracle of the others: finite differences, torch, transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.lm.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from llmgpu.lm.config import ModelConfig, RopeScaling
from tests.lm.samples import random_weights, small_config, small_vocabulary, sources, state_of
from tests.reference.lm.llama import Llama, loss

MODELS: list[dict[str, Any]] = [
    {},
    {"tied": False, "kv_heads": 4},
    {"activation": "gelu", "kv_heads": 1, "layers": 1},
    {"activation": "gelu", "tied": False, "rope_theta": 300.0},
    {"head_width": 8, "qk_norm": True, "rope_scaling": RopeScaling("linear", 4.0)},
    {"qkv_bias": True, "rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 16)},
]
LOSSES = [(0.0, 0.0), (0.1, 0.0), (0.0, 0.01), (0.3, 1e-2)]


def tiny(**sizes: Any) -> ModelConfig:
    given = {"dim": 16, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 12, "seq_len": 8}
    return ModelConfig(60, **(given | sizes))


def batch(config: ModelConfig, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets (2, 7), some of the targets ignored."""
    generator = np.random.default_rng(seed)
    tokens, targets = generator.integers(0, config.vocab_size, (2, 2, 7))
    tokens[0, 3] = tokens[1, 2]
    targets[0, 1:3] = config.padded_vocab_size
    targets[1, 6] = 0xFFFFFFFF
    return tokens, targets


@pytest.mark.parametrize("sizes", MODELS)
@pytest.mark.parametrize(("smoothing", "z_weight"), LOSSES)
def test_gradients_are_slopes(sizes: dict[str, Any], smoothing: float, z_weight: float) -> None:
    """Along random directions of one weight after the other, by central differences."""
    config = tiny(**sizes)
    model = Llama(config, random_weights(config, 1))
    tokens, targets = batch(config, 2)
    options = {"smoothing": smoothing, "z_weight": z_weight}
    _, grads = model.loss_and_gradients(tokens, targets, **options)
    assert grads.keys() == model.weights.keys()
    generator = np.random.default_rng(3)
    step = 3e-6  # norms of heads are strongly curved
    for name, weight in list(model.weights.items()):
        assert grads[name].shape == weight.shape
        direction = generator.standard_normal(weight.shape)
        values = []
        for sign in (1, -1):
            model.weights[name] = weight + sign * step * direction
            values.append(loss(model.forward(tokens), targets, **options)[0])
        model.weights[name] = weight
        slope = (values[0] - values[1]) / (2 * step)
        assert slope == pytest.approx((grads[name] * direction).sum(), rel=1e-6, abs=1e-9), name


def test_ignored_targets_count_for_nothing() -> None:
    logits = np.random.default_rng(1).standard_normal((1, 3, 5))
    value, grad = loss(logits, np.array([[2, 5, 9]]), smoothing=0.1, z_weight=0.1)
    alone, grad_alone = loss(logits[:, :1], np.array([[2]]), smoothing=0.1, z_weight=0.1)
    assert value == alone
    np.testing.assert_array_equal(grad, np.concatenate([grad_alone, np.zeros((1, 2, 5))], axis=1))
    assert loss(logits, np.full((1, 3), 5))[0] == 0.0


def test_later_tokens_change_nothing() -> None:
    config = tiny()
    model = Llama(config, random_weights(config, 1))
    tokens, _ = batch(config, 2)
    changed = tokens.copy()
    changed[:, 4:] = (changed[:, 4:] + 1) % config.vocab_size
    before, after = model.forward(tokens), model.forward(changed)
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(-1).all()


def transformers_model(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("sizes", [{}, {"tied": False, "kv_heads": 4}, {"rope_theta": 300.0}])
def test_transformers_gives_the_same_logits_and_gradients(
    tmp_path: Path, sizes: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    vocabulary = small_vocabulary()
    config = small_config(vocabulary, **sizes)
    given = sources(random_weights(config, 1))
    folder = save_checkpoint(tmp_path, config, vocabulary, *given, state_of(1))
    theirs = transformers_model(folder)
    ours = Llama(config, load_checkpoint(folder).weights)
    tokens, targets = batch(config, 2)
    expected = ours.forward(tokens)
    with torch.no_grad():
        found = theirs(torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)

    exact = theirs.double()
    logits = exact(torch.from_numpy(tokens)).logits
    np.testing.assert_allclose(logits.detach().numpy(), expected, atol=1e-5, rtol=1e-5)
    value, grads = ours.loss_and_gradients(tokens, targets, smoothing=0.1, z_weight=0.01)
    vocab = config.vocab_size
    labels = torch.from_numpy(np.where(targets < vocab, targets, -100))
    flat = logits.reshape(-1, vocab)
    total = torch.nn.functional.cross_entropy(
        flat, labels.reshape(-1), label_smoothing=0.1, ignore_index=-100
    )
    squares = torch.logsumexp(flat, -1)[labels.reshape(-1) >= 0] ** 2
    total = total + 0.01 * squares.mean()
    assert float(total.detach()) == pytest.approx(value, rel=1e-6)
    total.backward()
    named = dict(exact.named_parameters())
    for name, grad in grads.items():
        theirs = named[name].grad.numpy()  # their tables have no unused rows
        np.testing.assert_allclose(theirs, grad[: len(theirs)], rtol=1e-4, atol=1e-6)
        assert not grad[len(theirs) :].any()
