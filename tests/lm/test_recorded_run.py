"""What torch recorded is what the float64 model gives; and torch, where there is one, again."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.lm.config import ModelConfig
from tests.lm.samples import random_weights
from tests.reference.lm.llama import Llama, loss
from tests.reference.lm.recorded_run import recorded, reference_setup


def train_in_float64() -> tuple[list[float], list[float]]:
    """AdamW written out; returns losses and gradient norms."""
    setup = reference_setup()
    options = setup.hyperparameters
    model = Llama(setup.config, setup.weights)
    first = {name: np.zeros_like(weight) for name, weight in model.weights.items()}
    second = {name: np.zeros_like(weight) for name, weight in model.weights.items()}
    losses, norms = [], []
    for step, (tokens, targets) in enumerate(setup.batches):
        value, grads = model.loss_and_gradients(tokens, targets)
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        losses.append(value)
        norms.append(float(norm))
        rate = options.rate(step)
        for weight in setup.config.weights():
            name = weight.name
            grad = grads[name] * min(1.0, options.clip_norm / norm)
            first[name] += (1 - options.beta1) * (grad - first[name])
            second[name] += (1 - options.beta2) * (grad**2 - second[name])
            mean = first[name] / (1 - options.beta1 ** (step + 1))
            square = second[name] / (1 - options.beta2 ** (step + 1))
            if weight.decays:
                model.weights[name] *= 1 - rate * options.weight_decay
            model.weights[name] -= rate * mean / (np.sqrt(square) + options.epsilon)
    return losses, norms


def test_the_recorded_run_is_this_one() -> None:
    setup, kept = reference_setup(), recorded()
    assert setup.checksum == kept["checksum"]
    rates = [setup.hyperparameters.rate(step) for step in range(100)]
    assert kept["learning_rates"] == pytest.approx(rates, rel=1e-15)
    norms = kept["float32"]["gradient_norms"]
    assert min(norms) < setup.hyperparameters.clip_norm < max(norms)


@pytest.mark.slow
def test_float64_gives_the_recorded_losses() -> None:
    kept = recorded()
    losses, norms = train_in_float64()
    # To clip, torch divides by 1e-6 more than the norm.
    assert losses == pytest.approx(kept["float64"]["losses"], rel=1e-7)
    assert norms == pytest.approx(kept["float64"]["gradient_norms"], rel=1e-6)
    assert kept["float32"]["losses"] == pytest.approx(losses, rel=2e-6)
    assert np.mean(losses[-10:]) < 0.5 * losses[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_gives_the_recorded_losses(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.reference.lm.record_torch import train

    losses, norms = train(reference_setup(), getattr(torch, dtype), steps=20)
    kept = recorded()[dtype]
    tolerance = {"float32": 2e-6, "float64": 1e-10}[dtype]
    assert losses == pytest.approx(kept["losses"][:20], rel=tolerance)
    assert norms == pytest.approx(kept["gradient_norms"][:20], rel=10 * tolerance)


@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
@pytest.mark.parametrize("tied", [True, False])
def test_torch_differentiates_to_the_same(activation: str, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    from tests.reference.lm.record_torch import logits_of

    config = ModelConfig(
        60,
        dim=24,
        layers=2,
        heads=6,
        kv_heads=2,
        ffn_dim=20,
        seq_len=9,
        tied=tied,
        activation=activation,  # type: ignore[arg-type]
    )
    model = Llama(config, random_weights(config, 1))
    tokens, targets = np.random.default_rng(2).integers(0, 60, (2, 3, 9))
    targets[:, 4] = 64
    options = {"smoothing": 0.1, "z_weight": 0.01}
    value, grads = model.loss_and_gradients(tokens, targets, **options)
    weights = {name: torch.from_numpy(w).requires_grad_() for name, w in model.weights.items()}
    logits = logits_of(config, weights, torch.from_numpy(tokens))[..., :60]
    np.testing.assert_allclose(logits.detach().numpy(), model.forward(tokens), rtol=1e-9)
    valid = torch.from_numpy(targets < 64)
    total = torch.nn.functional.cross_entropy(
        logits[valid], torch.from_numpy(targets)[valid], label_smoothing=0.1
    )
    total = total + 0.01 * (torch.logsumexp(logits[valid], -1) ** 2).mean()
    total.backward()
    assert float(total.detach()) == pytest.approx(value, rel=1e-12)
    assert loss(logits.detach().numpy(), targets, **options)[0] == pytest.approx(value, rel=1e-12)
    for name, grad in grads.items():
        np.testing.assert_allclose(weights[name].grad.numpy(), grad, rtol=1e-8, atol=1e-12)
