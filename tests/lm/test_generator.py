"""Generating with a cache gives what the float64 model gives without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from llmgpu.errors import DeviceError, InputError
from llmgpu.gpu.device import Device
from llmgpu.lm.config import ModelConfig, RopeScaling
from llmgpu.lm.generator import Generator, Request
from llmgpu.lm.model import Model
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.options import SamplingOptions
from llmgpu.lm.sampling import Sampler
from tests.lm.samples import generated, logits_after, read_weights
from tests.reference.lm.llama import Llama

# More than FEW_ROWS of the products. Software takes long for each row.
PROMPT_ROWS = 24
CONFIG = ModelConfig(
    vocab_size=300, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, seq_len=PROMPT_ROWS + 20
)
GREEDY = SamplingOptions(temperature=0)
IDS = np.random.default_rng(1).integers(0, CONFIG.vocab_size, CONFIG.seq_len).tolist()


@pytest.fixture(scope="module", autouse=True)
def short_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmgpu.lm.generator.PROMPT_ROWS", PROMPT_ROWS)
        yield


def make_model(operations: Operations, config: ModelConfig = CONFIG) -> Model:
    """A model whose logits are far enough apart for the likeliest id to be certain."""
    model = Model(operations, config)
    model.initialise(3)
    values = {n: v * 20 if v.ndim == 2 else v for n, v in read_weights(model).items()}
    model.load(values.__getitem__)
    return model


def reference_logits(model: Model, ids: list[int]) -> np.ndarray:
    weights = {name: values.astype(np.float64) for name, values in read_weights(model).items()}
    logits: np.ndarray = Llama(model.config, weights).forward(np.array([ids], np.uint32))[0]
    return logits


@pytest.mark.parametrize("count", [1, 2, PROMPT_ROWS, PROMPT_ROWS + 1, PROMPT_ROWS + 2, len(IDS)])
def test_logits_after_a_prompt_of_any_length(operations: Operations, count: int) -> None:
    model = make_model(operations)
    logits = logits_after(Generator(model), IDS[:count])
    expected = reference_logits(model, IDS[:count])[-1]
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "gelu", "tied": False, "kv_heads": 4},
        {"head_width": 12, "qk_norm": True, "rope_scaling": RopeScaling("linear", 2.0)},
        {"qkv_bias": True, "norm_epsilon": 1e-6},
    ],
)
def test_models_of_other_kinds(operations: Operations, changes: dict[str, Any]) -> None:
    config = replace(CONFIG, **changes)
    model = make_model(operations, config)
    expected = reference_logits(model, IDS[:5])[-1]
    logits = logits_after(Generator(model), IDS[:5])
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


def test_the_likeliest_ids_one_after_the_other(operations: Operations) -> None:
    model = make_model(operations)
    made = list(generated(Generator(model), IDS[:5], 20, Sampler(GREEDY)))
    logits = reference_logits(model, [*IDS[:5], *made])[4:-1, : CONFIG.vocab_size]
    assert made == logits.argmax(axis=1).tolist()


def test_generation_continues_after_the_longest_sequence(operations: Operations) -> None:
    model = make_model(operations)
    generator = Generator(model)
    length = CONFIG.seq_len
    made = list(generated(generator, IDS, length, Sampler(GREEDY)))
    assert len(made) == length
    # After the first id the sequence is full: the cache starts again from its last half.
    half = [*IDS, made[0]][-(length // 2) :]
    assert made[1:4] == list(generated(generator, half, 3, Sampler(GREEDY)))
    long_prompt = [*IDS, *IDS]
    assert list(generated(generator, long_prompt, 2, Sampler(GREEDY))) == list(
        generated(generator, long_prompt[-(length // 2) :], 2, Sampler(GREEDY))
    )


def test_steps_under_way_are_dropped_with_what_asked_for_them(operations: Operations) -> None:
    generator = Generator(make_model(operations))
    whole = list(generated(generator, IDS[:3], 20, Sampler(GREEDY)))
    for taken in (1, 2, 5, 9):
        continued = generated(generator, IDS[:3], 60, Sampler(GREEDY))
        assert list(islice(continued, taken)) == whole[:taken]
        del continued
        assert next(generated(generator, IDS[4:9], 60, Sampler(GREEDY))) is not None
    assert list(generated(generator, IDS[:3], 20, Sampler(GREEDY))) == whole


def test_no_id_beyond_the_vocabulary_is_drawn(operations: Operations) -> None:
    model = make_model(operations, replace(CONFIG, vocab_size=3))
    assert model.config.padded_vocab_size > 3
    options = SamplingOptions(temperature=100, top_k=0)
    assert set(generated(Generator(model), [0], 40, Sampler(options))) == {0, 1, 2}


def test_a_seed_repeats_what_was_drawn(operations: Operations) -> None:
    generator = Generator(make_model(operations))
    runs = [
        list(generated(generator, IDS[:3], 10, Sampler(SamplingOptions(temperature=5, seed=seed))))
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


class FromAllLogits(Sampler):
    """Draws as `Sampler` does, from all logits."""

    def largest_wanted(self, count: int) -> int | None:
        return None


class Misled(Sampler):
    """Tells the device other numbers than it draws by, so that most of its ids are others."""

    def draws_ahead(self, skip: int, count: int) -> np.ndarray:
        draws = super().draws_ahead(skip, count)
        draws[:, 0] = 1 - draws[:, 0]
        return draws


def test_no_step_is_computed_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    operations, runs = open_operations(None), []
    run = operations.run
    monkeypatch.setattr(operations, "run", lambda program: (runs.append(program), run(program)))
    for options in (GREEDY, SamplingOptions(temperature=4, top_k=9)):
        generator = Generator(make_model(operations))
        runs.clear()
        for made, _ in enumerate(islice(generated(generator, IDS[:1], 30, Sampler(options)), 9)):
            assert len(runs) == made + 1


DRAWN = (
    SamplingOptions(temperature=4, top_k=9, seed=1),
    SamplingOptions(temperature=2, top_k=40, top_p=0.7, seed=2),
    SamplingOptions(temperature=0),
    SamplingOptions(temperature=9, top_k=3, seed=4),
)


@pytest.mark.parametrize("sampler", [Sampler, Misled])
def test_ids_drawn_ahead_are_those_drawn_from_all_logits(
    operations: Operations, sampler: type[Sampler]
) -> None:
    model = make_model(operations)
    alone = [
        list(generated(Generator(model), IDS[k : k + 5], 14, FromAllLogits(options)))
        for k, options in enumerate(DRAWN)
    ]
    requests = [Request(IDS[k : k + 5], 14, sampler(options)) for k, options in enumerate(DRAWN)]
    made: list[list[int | None]] = [[] for _ in requests]
    for number, token in Generator(model, sequences=3).continue_all(requests):
        made[number].append(token)
    assert made == [[*ids, None] for ids in alone]


@pytest.mark.parametrize("logit", [0.0, np.nan])
def test_where_the_largest_logits_do_not_decide_all_are_read(
    operations: Operations, logit: float
) -> None:
    model = make_model(operations)
    values = read_weights(model)
    values["model.norm.weight"][:] = logit  # all logits are equal, or none is a number
    model.load(values.__getitem__)
    options = SamplingOptions(temperature=1, top_k=200, seed=3)
    ids = [
        list(generated(Generator(model), [1], 6, kind(options)))
        for kind in (Sampler, FromAllLogits)
    ]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("dim", [20, 32])
def test_a_batch_of_prompts(operations: Operations, dim: int) -> None:
    # More prompts than the batch has room for, some longer than a block, one than the model takes.
    config = replace(CONFIG, dim=dim, heads=dim // 4, kv_heads=dim // 4)
    model = make_model(operations, config)
    sizes = ((1, 9), (PROMPT_ROWS + 5, 30), (3, 0), (len(IDS) + 7, 4), (2, 12), (7, 1))
    requests = [
        Request([*IDS, *IDS][k : k + size], count, Sampler(GREEDY))
        for k, (size, count) in enumerate(sizes)
    ]
    made: dict[int, list[int | None]] = {k: [] for k in range(len(requests))}
    for number, token in Generator(model, sequences=3).continue_all(iter(requests)):
        made[number].append(token)
    alone = Generator(model)
    for k, request in enumerate(requests):
        expected = generated(alone, request.prompt, request.count, Sampler(GREEDY))
        assert made[k] == [*expected, None]


def test_sequences_of_a_batch_are_drawn_as_alone_and_end_at_their_stop(
    operations: Operations,
) -> None:
    model = make_model(operations)

    def request(seed: int, *stops: int) -> Request:
        options = SamplingOptions(temperature=float(seed % 2) * 5, seed=seed)
        return Request(IDS[seed : seed + 6], 25, Sampler(options), frozenset(stops))

    alone = [
        list(generated(Generator(model), r.prompt, 25, r.sampler)) for r in map(request, range(4))
    ]
    stops = [made[k * 5] for k, made in enumerate(alone)]
    requests = [request(k, stop) for k, stop in enumerate(stops)]
    made: list[list[int | None]] = [[] for _ in requests]
    for number, token in Generator(model, sequences=4).continue_all(requests):
        made[number].append(token)
    assert made == [[*ids[: ids.index(stop)], None] for ids, stop in zip(alone, stops, strict=True)]


def test_a_batch_that_the_device_can_not_bind_is_refused(portable_device: Device) -> None:
    config = replace(CONFIG, seq_len=1 << 14)
    model = Model(open_operations(portable_device), config)
    with pytest.raises(DeviceError, match="of 16384 tokens take 419,430,528 bytes"):
        Generator(model, sequences=200)


@pytest.mark.parametrize("prompt", [[], [300], [-1], [1 << 40]])
def test_prompts_that_the_model_does_not_know_are_refused(prompt: list[int]) -> None:
    generator = Generator(make_model(open_operations(None)))
    with pytest.raises(InputError, match="the prompt"):
        next(generated(generator, prompt, 1, Sampler(GREEDY)))
