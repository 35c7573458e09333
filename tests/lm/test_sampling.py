"""Drawing ids: what may be drawn, how often, and that a seed repeats it."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.errors import InputError
from llmgpu.lm.options import SamplingOptions
from llmgpu.lm.sampling import Sampler
from llmgpu.option_fields import flag_of

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def sampler(**options: float) -> Sampler:
    return Sampler(SamplingOptions(**options))  # type: ignore[arg-type]


def test_temperature_zero_takes_the_likeliest_and_the_first_of_equals() -> None:
    assert sampler(temperature=0).draw(LOGITS) == 1
    assert sampler(temperature=0).draw(np.array([1, 5, 5], np.float32)) == 1


def test_candidates_are_the_softmax_in_order() -> None:
    ids, probabilities = sampler(temperature=1, top_k=0).candidates(LOGITS)
    assert ids.tolist() == [1, 3, 2, 0]
    np.testing.assert_allclose(probabilities, [0.4, 0.3, 0.2, 0.1], rtol=1e-6)
    _, sharper = sampler(temperature=0.5, top_k=0).candidates(LOGITS)
    np.testing.assert_allclose(sharper, np.array([16, 9, 4, 1]) / 30, rtol=1e-6)


def test_of_equal_logits_the_smaller_ids_come_first() -> None:
    """In each of many ties, also where top-k cuts through one; an unstable sort mixes them."""
    logits = np.tile(np.array([1, 3, 2], np.float32), 400)
    by_logit = [np.arange(first, 1200, 3).tolist() for first in (1, 2, 0)]
    expected = [i for ids in by_logit for i in ids]
    assert sampler(temperature=1, top_k=0).candidates(logits)[0].tolist() == expected
    assert sampler(temperature=1, top_k=150).candidates(logits)[0].tolist() == expected[:150]
    kept = sampler(temperature=1, top_k=0, top_p=0.3).candidates(logits)[0].tolist()
    assert kept == expected[: len(kept)] and 100 < len(kept) < 400


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    ids, probabilities = sampler(temperature=1, top_k=2).candidates(LOGITS)
    assert ids.tolist() == [1, 3]
    np.testing.assert_allclose(probabilities, [4 / 7, 3 / 7], rtol=1e-6)
    assert sampler(temperature=1, top_k=0, top_p=0.6).candidates(LOGITS)[0].tolist() == [1, 3]
    assert sampler(temperature=1, top_k=0, top_p=0.75).candidates(LOGITS)[0].tolist() == [1, 3, 2]
    assert sampler(temperature=1, top_k=0, top_p=1e-9).candidates(LOGITS)[0].tolist() == [1]


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-9])
@pytest.mark.parametrize("top_k", [0, 1, 2, 50, 299, 300, 1000])
def test_candidates_are_those_of_a_full_sort_to_the_bit(top_k: int, top_p: float) -> None:
    """With many ties, zeros of both signs and infinities; the seed repeats its draws with them."""
    rng = np.random.default_rng(top_k)
    logits = (3 * rng.standard_normal(300)).astype(np.float32)
    ties = np.round(logits)
    ties[rng.integers(0, 300, 40)] = -0.0
    ties[rng.integers(0, 300, 40)] = -np.inf
    for values in (logits, ties, np.zeros(300, np.float32)):
        ids = sorted(range(300), key=lambda i, values=values: -values[i])[: top_k or None]
        numbers = np.array([float(values[i]) - float(values[ids[0]]) for i in ids])
        expected = np.exp(numbers / 0.7)
        expected /= expected.sum()
        total, kept = 0.0, 0
        while top_p < 1 and total < top_p:
            total, kept = total + expected[kept], kept + 1
        if kept:
            ids, expected = ids[:kept], expected[:kept] / expected[:kept].sum()
        found, probabilities = sampler(temperature=0.7, top_k=top_k, top_p=top_p).candidates(values)
        assert found.tolist() == ids
        np.testing.assert_array_equal(probabilities, expected)


def test_draws_follow_the_probabilities_and_repeat() -> None:
    draws = [
        [one.draw(LOGITS) for _ in range(4000)]
        for one in (sampler(temperature=1, top_k=0, seed=7) for _ in range(2))
    ]
    assert draws[0] == draws[1]
    np.testing.assert_allclose(np.bincount(draws[0]) / 4000, np.exp(LOGITS), atol=0.03)


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([3e38, -3e38, 0], np.float32)
    assert sampler(temperature=1e-3, top_k=0).draw(logits) == 0


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"seed": -1}],
)
def test_senseless_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{flag_of(next(iter(options)), SamplingOptions)} is"):
        sampler(**options)


def test_values_at_their_limits() -> None:
    """The defaults are part of what a seed repeats."""
    assert SamplingOptions() == SamplingOptions(0.8, 200, 1.0, 1337)
    SamplingOptions(top_p=1, seed=0)
    SamplingOptions(top_p=1e-9, seed=(1 << 63) - 1)
    for options in ({"top_p": 1.01}, {"seed": 1 << 63}, {"temperature": float("inf")}):
        with pytest.raises(InputError, match=f"{flag_of(next(iter(options)), SamplingOptions)} is"):
            sampler(**options)


@pytest.mark.parametrize("temperature", [1e-300, 1e-320])
def test_a_tiny_temperature_takes_the_likeliest(temperature: float) -> None:
    logits = np.array([-3, 60, 59.999], np.float32)
    ids, probabilities = sampler(temperature=temperature, top_k=0).candidates(logits)
    assert ids.tolist() == [1, 2, 0]
    assert probabilities.tolist() == [1, 0, 0]


def test_ids_that_came_up_are_less_likely() -> None:
    logits = np.array([3.0, -2.0, 2.9, 1.0], np.float32)
    sampler = Sampler(SamplingOptions(temperature=0, repetition_penalty=1.5))
    assert sampler.largest_wanted(4) is None
    sampler.see([1])
    drawn = [sampler.draw(logits) for _ in range(3)]
    # 3 / 1.5 is below 2.9, then 2.9 / 1.5 below 2, and 0 is the likeliest again.
    assert drawn == [0, 2, 0]
    assert logits.tolist() == np.array([3.0, -2.0, 2.9, 1.0], np.float32).tolist()
    with pytest.raises(InputError, match=r"--repetition-penalty is 0\.5"):
        SamplingOptions(repetition_penalty=0.5)


def test_a_small_logit_is_lowered_too() -> None:
    sampler = Sampler(SamplingOptions(temperature=0, repetition_penalty=4))
    sampler.see([0])
    assert sampler.draw(np.array([0.5, 0.25], np.float32)) == 1


def test_log_probabilities_are_the_model_s() -> None:
    logits = np.array([1e4, 1e4 - 1, 0.0], np.float32)
    options = SamplingOptions(temperature=0.3, top_k=1, log_probabilities=True)
    sampler = Sampler(options)
    assert [sampler.draw(logits) for _ in range(2)] == [0, 0]
    expected = -np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(sampler.log_probabilities, [expected] * 2, rtol=1e-12)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 30.0])
@pytest.mark.parametrize(("top_k", "top_p"), [(1, 1.0), (7, 1.0), (40, 0.6), (40, 1e-9)])
def test_the_largest_logits_decide_like_all(temperature: float, top_k: int, top_p: float) -> None:
    options = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, seed=5)
    all_logits, largest = Sampler(options), Sampler(options)
    rng = np.random.default_rng(1)
    for _ in range(60):
        logits = np.rint(rng.standard_normal(300) * 5).astype(np.float32) / 2
        wanted = largest.largest_wanted(300)
        assert wanted == (0 if temperature == 0 else top_k)
        ids = np.argsort(-logits, kind="stable")[: wanted + 3]
        assert largest.draw_largest(ids, logits[ids]) == all_logits.draw(logits)


def test_all_logits_are_wanted_without_top_k() -> None:
    assert Sampler(SamplingOptions(top_k=0)).largest_wanted(300) is None
    assert Sampler(SamplingOptions(top_k=300)).largest_wanted(300) is None
    for options in ({"repetition_penalty": 1.5}, {"log_probabilities": True}):
        for temperature in (0.0, 1.0):
            chosen = SamplingOptions(temperature=temperature, top_k=5, **options)
            assert Sampler(chosen).largest_wanted(300) is None


def test_ids_are_drawn_as_numpy_chooses() -> None:
    options = SamplingOptions(temperature=0.9, top_k=0, seed=11)
    sampler, random = Sampler(options), np.random.Generator(np.random.Philox(11))
    rng = np.random.default_rng(1)
    for _ in range(100):
        logits = rng.standard_normal(50).astype(np.float32)
        ids, probabilities = sampler.candidates(logits)
        assert sampler.draw(logits) == ids[random.choice(len(ids), p=probabilities)]


def test_the_largest_number_draws_the_last_id() -> None:
    """Ten times 0.1 adds up to just that number."""
    one = sampler(temperature=1, top_k=10)
    one._uniform.append(np.nextafter(1, 0))
    assert one.draw_largest(np.arange(10), np.zeros(10, np.float32)) == 9


def test_numbers_made_ahead_are_those_drawn_by() -> None:
    values = -np.sort(-np.random.default_rng(0).standard_normal(50)).astype(np.float32)
    options = SamplingOptions(temperature=0.7, top_k=50, top_p=0.9, seed=5)
    plain, ahead = Sampler(options), Sampler(options)
    ids = np.arange(50)
    drawn = [plain.draw_largest(ids, values) for _ in range(9)]
    numbers = np.random.Generator(np.random.Philox(5)).random(9)
    assert [ahead.draw_largest(ids, values) for _ in range(2)] == drawn[:2]
    first = ahead.draws_ahead(1, 3)
    np.testing.assert_array_equal(first[:, 0], numbers[3:6])
    np.testing.assert_allclose(first[:, 1:], [[1 / 0.7, 0.9, 50]] * 3)
    np.testing.assert_array_equal(ahead.draws_ahead(0, 1)[:, 0], numbers[2:3])
    assert [ahead.draw_largest(ids, values) for _ in range(7)] == drawn[2:]
    tiny = Sampler(SamplingOptions(temperature=1e-300)).draws_ahead(0, 1).astype(np.float32)
    assert np.isfinite(tiny).all()
    assert Sampler(SamplingOptions(temperature=0)).draws_ahead(3, 2).tolist() == [[1] * 4] * 2
