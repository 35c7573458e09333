"""Whole training steps: the loss and gradients of a float64 model, and torch's recorded run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from llmgpu.errors import DeviceError
from llmgpu.gpu.device import Device
from llmgpu.lm.config import ACTIVATIONS, Activation, ModelConfig, RopeScaling
from llmgpu.lm.data.batches import IGNORED_TARGET, Batch
from llmgpu.lm.gradients import LossGraph
from llmgpu.lm.model import Model, make_weights
from llmgpu.lm.ops import recording
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.products import FixedProducts, has_fixed_products
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.trainer import Trainer
from tests.lm.ops.checking import assert_close
from tests.lm.samples import read_weights
from tests.reference.lm import optimizer
from tests.reference.lm.llama import Llama
from tests.reference.lm.recorded_run import recorded, reference_setup

pytestmark = pytest.mark.usefixtures("few_partial_norms")

SMALL = ModelConfig(vocab_size=70, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, seq_len=9)
LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_position_embeddings=40)
KINDS = [
    SMALL,
    replace(SMALL, tied=False, activation="gelu", dim=48, kv_heads=1, ffn_dim=50, seq_len=7),
    replace(SMALL, layers=1, heads=1, kv_heads=1, seq_len=33),
    replace(SMALL, dim=36, head_width=12, qkv_bias=True, rope_scaling=RopeScaling("linear", 3.0)),
    replace(SMALL, head_width=16, qk_norm=True, rope_scaling=LLAMA3, norm_epsilon=1e-3),
]
KIND_NAMES = ["grouped", "gelu", "one head", "biases", "norms of heads"]


def random_batch(config: ModelConfig, batch: int, seed: int) -> Batch:
    """Ids of which some come up often, and a few ignored targets."""
    rng = np.random.default_rng(seed)
    shape = (batch, config.seq_len)
    tokens = (config.vocab_size * rng.random(shape) ** 3).astype(np.uint32)
    targets = (config.vocab_size * rng.random(shape) ** 3).astype(np.uint32)
    targets[rng.random(shape) < 0.2] = IGNORED_TARGET
    return tokens, targets


def run(operations: Operations, program: Any) -> None:
    operations.run(program)


# Blocks of logits are alike for all kinds whose tables are tied, and for all others.
@pytest.mark.parametrize(
    ("config", "block_rows"),
    [*((config, None) for config in KINDS), (KINDS[0], 64), (KINDS[1], 64)],
    ids=[*KIND_NAMES, "blocks, tied", "blocks, gelu"],
)
def test_gradients_are_those_of_the_float64_model(
    operations: Operations,
    config: ModelConfig,
    block_rows: int | None,
    monkeypatch: Any,
) -> None:
    if block_rows:
        monkeypatch.setattr("llmgpu.lm.gradients.LOGITS_BYTES", 4 * 128 * block_rows)
    batch = 10
    tokens, targets = random_batch(config, batch, 1)
    count = int(np.count_nonzero(targets < config.vocab_size))
    model = Model(operations, config)
    model.initialise(5)
    first = {name: values * 3 for name, values in read_weights(model).items()}
    for name in first:  # which all are alike at first
        if name.endswith((".bias", "q_norm.weight", "k_norm.weight")):
            first[name] += np.linspace(-0.5, 0.4, len(first[name]), dtype=np.float32)
    for table in {"model.embed_tokens.weight", "lm_head.weight"} & first.keys():
        first[table][config.vocab_size :] = 1e30
    model.load(first.__getitem__)
    gradients, packed = make_weights(operations, config.weights(), np.float32, "gradient of {}")
    graph = LossGraph(model, batch, config.seq_len, gradients, packed)
    graph.write_loss_params(count, 0.1, 1e-3)
    with operations.record("gradients") as program:
        graph.record_gradients()
    graph.write_batch((tokens, targets))
    run(operations, program)
    weights = {name: values.astype(np.float64) for name, values in read_weights(model).items()}
    reference = Llama(config, weights)
    loss, expected = reference.loss_and_gradients(tokens, targets, smoothing=0.1, z_weight=1e-3)
    parts = [operations.read(part).sum() for part in graph.losses.parts]
    assert sum(parts) / count == pytest.approx(loss, rel=1e-5)
    # Norms of heads divide by small numbers: float32 errs by 5e-5 in NumPy and 1.6e-4 on an H200.
    tolerance = 3e-4 if config.qk_norm else 3e-5
    for name, gradient in gradients.items():
        found = operations.read(gradient).reshape(1, -1)
        assert_close(found, expected[name].reshape(1, -1), tolerance)


WIDE = replace(SMALL, head_width=16, dim=36)  # matrix units attend by heads of this width
HALVES = {
    "side by side": WIDE,
    "with columns between": replace(WIDE, heads=3, kv_heads=1, ffn_dim=52, dim=33),
    "odd gate": replace(WIDE, ffn_dim=50),
    "gelu": replace(WIDE, activation="gelu", tied=False),
    "biases": replace(WIDE, qkv_bias=True),
    "norms of heads": replace(WIDE, qk_norm=True),
}


@pytest.mark.parametrize("config", HALVES.values(), ids=HALVES)
@np.errstate(under="ignore")
def test_gradients_of_half_precision_are_near_those_of_float64(
    operations: Operations, config: ModelConfig
) -> None:
    if not operations.has_half_precision:
        pytest.skip("the device has no half precision")
    tokens, targets = random_batch(config, 10, 1)
    count, scale = int(np.count_nonzero(targets < config.vocab_size)), 1024.0
    model = Model(operations, config, half=True, mixed=True)
    model.initialise(5)
    model.load({name: 3 * values for name, values in read_weights(model).items()}.__getitem__)
    gradients, packed = make_weights(operations, config.weights(), np.float32, "gradient of {}")
    graph = LossGraph(model, 10, config.seq_len, gradients, packed)
    graph.write_loss_params(count, 0.0, 0.0, scale)
    with operations.record("gradients") as program:
        graph.record_gradients()
    graph.write_batch((tokens, targets))
    run(operations, program)
    weights = {name: values.astype(np.float64) for name, values in read_weights(model).items()}
    loss, expected = Llama(config, weights).loss_and_gradients(
        tokens, targets, smoothing=0.0, z_weight=0.0
    )
    found_loss = operations.read(graph.losses.cross_entropy).sum() / count
    assert found_loss == pytest.approx(loss, rel=1e-3)
    for name, gradient in gradients.items():
        error = operations.read(gradient).astype(np.float64) / scale - expected[name]
        assert np.linalg.norm(error) <= 0.02 * np.linalg.norm(expected[name]) + 1e-6, name


@pytest.mark.parametrize("config", [KINDS[0], KINDS[2]], ids=["grouped", "one head"])
def test_documents_are_trained_on_as_if_each_were_alone(
    operations: Operations, config: ModelConfig
) -> None:
    """Against the float64 model on each document by itself, from position 0."""
    separator = 3
    tokens, targets = random_batch(config, 6, 4)
    tokens[:, ::4] = np.where(tokens[:, ::4] % 2, separator, tokens[:, ::4])
    model = Model(operations, config)
    model.initialise(5)
    model.load({name: 3 * values for name, values in read_weights(model).items()}.__getitem__)
    gradients, packed = make_weights(operations, config.weights(), np.float32, "gradient of {}")
    graph = LossGraph(model, 6, config.seq_len, gradients, packed, separator=separator)
    count = int(np.count_nonzero(targets < config.vocab_size))
    graph.write_loss_params(count, 0.0, 0.0)
    with operations.record("gradients") as program:
        graph.record_gradients()
    graph.write_batch((tokens, targets))
    run(operations, program)
    weights = {name: values.astype(np.float64) for name, values in read_weights(model).items()}
    reference, loss = Llama(config, weights), 0.0
    expected = {name: np.zeros_like(values) for name, values in weights.items()}
    for row, aims in zip(tokens, targets, strict=True):
        starts = [0, *(k for k in range(1, len(row)) if row[k] == separator), len(row)]
        for first, last in pairwise(starts):
            counted = np.count_nonzero(aims[first:last] < config.vocab_size)
            if not counted:
                continue
            document = (row[None, first:last], aims[None, first:last])
            alone, slopes = reference.loss_and_gradients(*document, smoothing=0.0, z_weight=0.0)
            loss += alone * counted / count
            for name in expected:
                expected[name] += slopes[name] * counted / count
    found_loss = operations.read(graph.losses.cross_entropy).sum() / count
    assert found_loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        found = operations.read(gradient).reshape(1, -1)
        assert_close(found, expected[name].reshape(1, -1), 3e-5)


@pytest.mark.parametrize("config", [KINDS[1], KINDS[4]], ids=["gelu", "norms of heads"])
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_activations_that_are_computed_again_are_the_same_bits(
    operations: Operations, config: ModelConfig, precision: Any
) -> None:
    if precision == "f16" and not operations.has_half_precision:
        pytest.skip("the device has no half precision")
    config = replace(config, layers=3)
    options = TrainOptions(batch_size=3, steps=2, precision=precision)
    results, sizes = [], []
    for recompute in (False, True):
        before = operations.nbytes
        chosen = replace(options, recompute=recompute)
        trainer = Trainer(operations, config, chosen, slots=2, separator=1)
        sizes.append(operations.nbytes - before)
        trainer.model.initialise(1)
        for step in range(2):
            trainer.take_step([random_batch(config, 3, step)], 1e-3)
        results.append(read_weights(trainer.model))
    assert sizes[1] < sizes[0]
    for name, values in results[0].items():
        assert values.tobytes() == results[1][name].tobytes(), name


def reference_trainer(operations: Operations, **changes: Any) -> Trainer:
    setup = reference_setup()
    wanted = setup.hyperparameters
    options = TrainOptions(
        batch_size=4,
        steps=wanted.steps,
        learning_rate=wanted.learning_rate,
        beta1=wanted.beta1,
        beta2=wanted.beta2,
        epsilon=wanted.epsilon,
        weight_decay=wanted.weight_decay,
        grad_clip=wanted.clip_norm,
        z_loss=0.0,
    )
    trainer = Trainer(operations, setup.config, replace(options, **changes), slots=100)
    trainer.model.load(setup.weights.__getitem__)
    return trainer


def losses_of(trainer: Trainer, steps: int) -> list[float]:
    """Train on the reference run's batches from where the trainer is, and return the losses."""
    setup = reference_setup()
    for step in range(trainer.step, trainer.step + steps):
        trainer.take_step([setup.batches[step]], setup.hyperparameters.rate(step))
    return [result.loss for result in trainer.results(steps)]


@pytest.mark.slow
def test_a_hundred_steps_are_those_of_torch(operations: Operations) -> None:
    expected = recorded()["float32"]["losses"]
    losses = losses_of(reference_trainer(operations), 100)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.slow
@np.errstate(under="ignore")
def test_half_precision_follows_single_precision(operations: Operations) -> None:
    if not operations.has_half_precision:
        with pytest.raises(DeviceError, match="no half-precision numbers"):
            reference_trainer(operations, precision="f16")
        return
    trainer = reference_trainer(operations, precision="f16")
    losses = losses_of(trainer, 20)
    np.testing.assert_allclose(losses, recorded()["float32"]["losses"][:20], rtol=1e-3)
    for name, half_copy in trainer.model.half_copies.items():
        master = operations.read(trainer.model.weights[name])
        np.testing.assert_array_equal(operations.read(half_copy), master.astype(np.float16))


@pytest.mark.slow
def test_two_runs_are_the_same_bit_by_bit(operations: Operations) -> None:
    trainers = [reference_trainer(operations) for _ in range(2)]
    assert losses_of(trainers[0], 5) == losses_of(trainers[1], 5)
    one, other = (read_weights(trainer.model) for trainer in trainers)
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bits_do_not_depend_on_the_number_of_threads(
    activation: Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_fixed_products():
        pytest.skip("NumPy has no OpenBLAS here")
    monkeypatch.setattr(recording, "BLOCK_ELEMENTS", 1 << 10)
    config = replace(SMALL, activation=activation)
    states = []
    for threads in (1, 2, 5):
        operations = Operations(FixedProducts(threads))
        trainer = Trainer(operations, config, TrainOptions(batch_size=7, steps=9), slots=3)
        trainer.model.initialise(1)
        for step in range(3):
            trainer.take_step([random_batch(config, 7, step)], 1e-2)
        weights = read_weights(trainer.model)
        states.append((trainer.results(3), {name: w.tobytes() for name, w in weights.items()}))
    assert states[0] == states[1] == states[2]


@pytest.mark.slow
def test_trainings_on_one_device_do_not_share_memory(device: Device) -> None:
    alone = losses_of(reference_trainer(open_operations(device)), 4)
    trainers = [reference_trainer(open_operations(device)) for _ in range(2)]
    taken = [[losses_of(trainer, 1)[0] for trainer in trainers] for _ in range(4)]
    assert taken == [[loss, loss] for loss in alone]


def test_accumulated_batches_are_one_large_batch(operations: Operations) -> None:
    setup = reference_setup()
    tokens = np.concatenate([batch[0] for batch in setup.batches[:2]])
    targets = np.concatenate([batch[1] for batch in setup.batches[:2]])
    targets[0, :] = IGNORED_TARGET  # one batch has fewer valid targets than the other
    whole = reference_trainer(operations, batch_size=8)
    parts = reference_trainer(operations, batch_size=4, grad_accum=2)
    whole.take_step([(tokens, targets)], 1e-3)
    parts.take_step([(tokens[:4], targets[:4]), (tokens[4:], targets[4:])], 1e-3)
    one, other = whole.results(1)[0], parts.results(1)[0]
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)


def test_a_step_that_is_not_finite_changes_nothing_and_is_explained(
    operations: Operations,
) -> None:
    trainer = reference_trainer(operations)
    losses_of(trainer, 2)
    name = "model.layers.1.mlp.up_proj.weight"
    broken = operations.read(trainer.model.weights[name])
    broken[3, 4] = np.inf
    operations.write(trainer.model.weights[name], broken)
    before = read_weights(trainer.model)
    batches = [[batch] for batch in reference_setup().batches[2:4]]
    for step in batches:
        trainer.take_step(step, 1e-3)
    assert [result.is_bad for result in trainer.results(2)] == [True, True]
    for key, values in read_weights(trainer.model).items():
        np.testing.assert_array_equal(values, before[key])
    error = trainer.explain_bad_step(2, batches[0])
    assert "step 3: the gradient of model." in str(error)
    assert "is not finite" in str(error)


def test_steps_near_the_limits_of_counters(operations: Operations) -> None:
    """Late steps are all alike: their moments need no correction."""
    trainers = []
    for step in (10**4, 2**32 - 1, 2**62):
        trainer = reference_trainer(operations)
        trainer.step = step
        for batch in reference_setup().batches[:2]:
            trainer.take_step([batch], 1e-3)
        assert trainer.step == step + 2
        trainers.append(trainer)
    expected, *late = ([r.loss for r in trainer.results(2)] for trainer in trainers)
    assert late == [expected, expected]
    weights = read_weights(trainers[0].model)
    for trainer in trainers[1:]:
        assert not any(result.is_bad for result in trainer.results(2))
        for name, values in read_weights(trainer.model).items():
            np.testing.assert_array_equal(values, weights[name])


def test_a_batch_without_targets_changes_only_by_decay(operations: Operations) -> None:
    trainer = reference_trainer(operations, weight_decay=0.0)
    before = read_weights(trainer.model)
    tokens, targets = reference_setup().batches[0]
    trainer.take_step([(tokens, np.full_like(targets, IGNORED_TARGET))], 1e-3)
    result = trainer.results(1)[0]
    assert (result.loss, result.grad_norm, result.is_bad) == (0, 0, False)
    for name, values in read_weights(trainer.model).items():
        np.testing.assert_array_equal(values, before[name])


def test_tables_have_a_learning_rate_of_their_own(operations: Operations) -> None:
    def after_a_step(rate: float, **options: Any) -> dict[str, Any]:
        config = replace(SMALL, tied=False)
        trainer = Trainer(operations, config, TrainOptions(batch_size=2, **options), slots=4)
        trainer.model.initialise(3)
        trainer.take_step([random_batch(config, 2, 0)], rate)
        return read_weights(trainer.model)

    found = after_a_step(1e-3, table_rate=3.0, output_rate=2.0)
    slow, faster, fast = (after_a_step(rate) for rate in (1e-3, 2e-3, 3e-3))
    of_tables = {"model.embed_tokens.weight": fast, "lm_head.weight": faster}
    assert of_tables.keys() <= found.keys()
    for name, values in found.items():
        expected = of_tables.get(name, slow)
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
        assert not np.array_equal(slow[name], fast[name])


def test_groups_of_weights_have_decays_of_their_own(operations: Operations) -> None:
    config = replace(SMALL, tied=False)
    options = TrainOptions(
        **{"batch_size": 2, "grad_clip": 0.0, "optimizer": "muon", "weight_decay": 0.3},
        **{"table_decay": 2.5, "table_beta1": 0.5, "beta1": 0.8, "table_rate": 2.0},
        **{"momentum": 0.9, "momentum_start": 0.3, "momentum_steps": 3},
    )
    of_tables = replace(options, weight_decay=0.75, beta1=0.5)
    trainer = Trainer(operations, config, options, slots=4)
    trainer.model.initialise(3)
    before = read_weights(trainer.model)
    moments = {name: (np.zeros_like(before[name], np.float64),) * 2 for name in before}
    for step in range(4):
        trainer.take_step([random_batch(config, 2, step)], 1e-2)
        after = read_weights(trainer.model)
        for weight in config.weights():
            name = weight.name
            gradient = operations.read(trainer.updates.gradients[name]).astype(np.float64)
            if weight.is_hidden:
                state = before[name], moments[name][0]
                expected, *first = optimizer.muon(state, gradient, options, step, 1e-2, decay=True)
                moments[name] = first[0], first[0]
            else:
                own = of_tables if weight.is_table else options
                rate = 2e-2 if name == "model.embed_tokens.weight" else 1e-2
                expected, *both = optimizer.adamw(
                    (before[name], *moments[name]), gradient, own, step, rate, decay=weight.decays
                )
                moments[name] = both[0], both[1]
            # The step of an element whose gradients are tiny is not held to its rounding.
            close = np.isclose(after[name], expected, rtol=0, atol=1e-4)
            assert close.mean() > 0.995, (name, step)
        before = after


@pytest.mark.slow
def test_moments_in_eight_bits_train_as_well(operations: Operations) -> None:
    losses = losses_of(reference_trainer(operations, optimizer="adamw-8bit"), 40)
    np.testing.assert_allclose(losses, recorded()["float32"]["losses"][:40], rtol=0.03)


def test_sparse_updates_are_those_of_a_whole_gradient(operations: Operations) -> None:
    """The gradient has the rows of a step's ids, and one step is that of all rows."""
    config = replace(SMALL, tied=False, vocab_size=500)
    dense = TrainOptions(batch_size=2, grad_accum=3, weight_decay=0.0, grad_clip=0.1)
    sparse = replace(dense, sparse_embedding=True)
    batches = [random_batch(config, 2, seed) for seed in range(3)]
    ids = np.unique([tokens for tokens, _ in batches])
    trainers = [Trainer(operations, config, options, slots=1) for options in (sparse, dense)]
    for trainer in trainers:
        trainer.model.initialise(3)
        # Rows of the step before must leave nothing.
        trainer.take_step([random_batch(config, 2, 9)] * 3, 0.0)
        trainer.take_step(batches, 0.01)
    gradients = [t.updates.gradients["model.embed_tokens.weight"] for t in trainers]
    rows, whole = (operations.read(gradient) for gradient in gradients)
    assert (whole[ids] != 0).any(axis=1).sum() > 10
    assert gradients[0].shape == (2 * 3 * config.seq_len, config.dim)
    assert not rows[len(ids) :].any()
    np.testing.assert_array_equal(rows[: len(ids)], whole[ids])
    assert not whole[np.setdiff1d(np.arange(len(whole)), ids)].any()
    one, other = (trainer.results(1)[0] for trainer in trainers)
    assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-6)
    weights = [read_weights(trainer.model) for trainer in trainers]
    for name, values in weights[0].items():
        # Rows that came up in an earlier step only would move on with their moments.
        some = ids if name == "model.embed_tokens.weight" else slice(None)
        assert_close(values[some], weights[1][name][some], 1e-4)


def test_sparse_updates_leave_other_rows_alone(operations: Operations) -> None:
    config = replace(SMALL, tied=False)
    options = TrainOptions(batch_size=2, grad_accum=2, sparse_embedding=True, weight_decay=0.0)
    dense = replace(options, sparse_embedding=False)
    trainers = [Trainer(operations, config, kind, slots=4) for kind in (options, dense)]
    for trainer in trainers:
        trainer.model.initialise(3)
    before = operations.read(trainers[0].model.weights["model.embed_tokens.weight"])
    seen: set[int] = set()
    for step in range(2):
        batches = [random_batch(config, 2, 10 * step + index) for index in range(2)]
        seen |= {int(token) for tokens, _ in batches for token in tokens.reshape(-1)}
        for trainer in trainers:
            trainer.take_step(batches, 1e-3)
    results = [trainer.results(2) for trainer in trainers]
    assert [r.loss for r in results[0]] == pytest.approx([r.loss for r in results[1]], rel=1e-4)
    after = operations.read(trainers[0].model.weights["model.embed_tokens.weight"])
    changed = {int(row) for row in np.flatnonzero((after != before).any(axis=1))}
    assert changed <= seen  # a token whose targets are ignored has no gradient
    assert 2 * len(changed) > len(seen)
