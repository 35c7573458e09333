"""The learning rate at the corners of its schedule."""

from __future__ import annotations

import math

import pytest

from llmgpu.errors import LlmgpuError
from llmgpu.lm.schedule import LearningRate, learning_rate


def test_corners() -> None:
    options = LearningRate(peak=1.0, minimum=0.1, warmup_steps=10, total_steps=110)
    expected = {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 60: 0.55, 110: 0.1, 10**9: 0.1}
    assert {step: learning_rate(step, options) for step in expected} == pytest.approx(expected)
    assert 0.1 < learning_rate(109, options) < 0.101


def test_it_rises_to_the_peak_and_falls_from_there() -> None:
    options = LearningRate(peak=3e-4, minimum=0, warmup_steps=7, total_steps=50)
    rates = [learning_rate(step, options) for step in range(60)]
    assert rates[:7] == sorted(rates[:7])
    assert rates[7:] == sorted(rates[7:], reverse=True)
    assert max(rates) == 3e-4
    assert rates[50:] == [0] * 10


def test_no_warm_up_and_nothing_but_it() -> None:
    assert learning_rate(0, LearningRate(2.0, 1.0, 0, 10)) == 2
    assert learning_rate(9, LearningRate(2.0, 1.0, 10, 10)) == 2
    assert learning_rate(10, LearningRate(2.0, 1.0, 10, 10)) == 1
    assert learning_rate(0, LearningRate(2.0, 1.0, 0, 0)) == 1
    assert {learning_rate(step, LearningRate(2.0, 2.0, 0, 10)) for step in range(20)} == {2}


@pytest.mark.parametrize(
    "numbers",
    [
        *((peak, 0, 0, 9) for peak in (math.nan, math.inf, -1)),
        *((1, minimum, 0, 9) for minimum in (2, -1)),
        *((1, 0, warmup_steps, 9) for warmup_steps in (-1, 10)),
    ],
)
def test_impossible_schedules(numbers: tuple[float, float, int, int]) -> None:
    with pytest.raises(LlmgpuError, match="use 0"):
        LearningRate(*numbers)
