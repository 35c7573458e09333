"""Options of a run: the learning rate at the corners of its schedule, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from llmgpu.errors import InputError
from llmgpu.lm.options import TrainOptions


def schedule(peak: float, minimum: float, warmup_steps: int, steps: int) -> TrainOptions:
    return TrainOptions(
        learning_rate=peak, min_learning_rate=minimum, warmup_steps=warmup_steps, steps=steps
    )


def test_corners() -> None:
    options = schedule(1.0, 0.1, 10, 110)
    expected = {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 60: 0.55, 110: 0.1, 10**9: 0.1}
    assert {step: options.rate(step) for step in expected} == pytest.approx(expected)
    assert 0.1 < options.rate(109) < 0.101


def test_it_rises_to_the_peak_and_falls_from_there() -> None:
    options = schedule(3e-4, 0, 7, 50)
    rates = [options.rate(step) for step in range(60)]
    assert rates[:7] == sorted(rates[:7])
    assert rates[7:] == sorted(rates[7:], reverse=True)
    assert max(rates) == 3e-4
    assert rates[50:] == [0] * 10


def test_no_warm_up_and_nothing_but_it() -> None:
    assert schedule(2.0, 1.0, 0, 10).rate(0) == 2
    assert schedule(2.0, 1.0, 10, 10).rate(9) == 2
    assert schedule(2.0, 1.0, 10, 10).rate(10) == 1
    assert schedule(2.0, 1.0, 0, 1).rate(1) == 1
    assert {schedule(2.0, 2.0, 0, 10).rate(step) for step in range(20)} == {2}
    assert [schedule(2.0, 1.0, 4, 2).rate(step) for step in range(6)] == [0.5, 1, 1.5, 2, 1, 1]


def test_a_rate_that_falls_linearly_from_the_end_of_the_warm_up() -> None:
    options = replace(schedule(1.0, 0.2, 10, 200), schedule="linear")
    expected = {0: 0.1, 9: 1.0, 10: 1.0, 105: 0.6, 200: 0.2, 10**9: 0.2}
    assert {step: options.rate(step) for step in expected} == pytest.approx(expected)
    assert options.decay_start is None


def test_a_momentum_that_rises() -> None:
    options = TrainOptions(
        optimizer="muon", momentum=0.9, momentum_start=0.5, momentum_steps=4, steps=3
    )
    expected = {0: 0.5, 1: 0.6, 3: 0.8, 4: 0.9, 5: 0.9, 10**9: 0.9}
    assert {step: options.momentum_of(step) for step in expected} == pytest.approx(expected)
    assert replace(options, momentum_steps=0).momentum_of(0) == 0.9


@pytest.mark.parametrize(
    ("name", "value"), [("momentum", 0.9), ("momentum_start", 0.9), ("momentum_steps", 3)]
)
def test_a_momentum_needs_muon(name: str, value: float) -> None:
    flag = f"--{name.replace('_', '-')}"
    asked: dict[str, Any] = {name: value}
    assert getattr(TrainOptions(optimizer="muon", **asked), name) == value
    with pytest.raises(InputError, match=f"{flag} needs --optimizer muon, not adamw"):
        TrainOptions(**asked)
    with pytest.raises(InputError, match=r"--momentum is 1\.0, but must be less than 1"):
        TrainOptions(optimizer="muon", momentum=1.0)


def test_a_rate_that_is_stable_and_decays_at_the_end() -> None:
    options = replace(schedule(1.0, 0.2, 10, 200), schedule="wsd", decay_steps=100)
    expected = {0: 0.1, 9: 1.0, 10: 1.0, 100: 1.0, 125: 0.6, 200: 0.2, 10**9: 0.2}
    assert {step: options.rate(step) for step in expected} == pytest.approx(expected)
    assert options.decay_start == 100
    assert replace(options, decay_steps=0).rate(199) == 1
    assert replace(options, decay_steps=300).decay_start == 10
    with pytest.raises(InputError, match="--decay-steps needs --schedule wsd"):
        replace(options, schedule="cosine")


@pytest.mark.parametrize(
    "numbers",
    [
        *((peak, 0, 0, 9) for peak in (math.nan, math.inf, -1.0)),
        *((1, minimum, 0, 9) for minimum in (2, -1.0)),
        (1, 0, -1, 9),
    ],
)
def test_impossible_schedules(numbers: tuple[float, float, int, int]) -> None:
    with pytest.raises(InputError, match=r"at least 0|less than inf|must not be above --lr"):
        schedule(*numbers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": -1}, "--batch-size is -1, but must be at least 1"),
        ({"seed": -1}, r"--seed is -1, but must be at least 0"),
        (
            {"seed": 1 << 63},
            r"--seed is 9223372036854775808, .* less than 9223372036854775808",
        ),
        ({"evaluation_fraction": 1.0}, r"--eval-fraction is 1.0, .* less than 1"),
        ({"evaluation_fraction": math.nan}, r"--eval-fraction is nan"),
        *(({"epsilon": value}, "epsilon is .* at least 0") for value in (math.nan, math.inf, -1.0)),
        ({"schedule": "step"}, "--schedule is step; use one of cosine, linear, wsd"),
        ({"initialisation": "zero"}, "--initialisation is zero; use one of normal, fan-in"),
        ({"driver": "vulkan"}, "--driver is vulkan; use one of wgpu, dawn"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainOptions(**options)
