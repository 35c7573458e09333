"""The picture of a run's losses: valid, complete, readable, for any numbers."""

from __future__ import annotations

import math
import os
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.charts import HEIGHT, WIDTH, Axis, step_axis, value_axis
from llmgpu.errors import OutputError
from llmgpu.input_files import printable
from llmgpu.lm.runs.loss_curve import (
    MOST_POINTS,
    draw_loss_curve,
    plot_losses,
    write_loss_curve,
)
from llmgpu.lm.runs.run_folder import StepRecord
from tests.lm.runs.test_run_folder_log import record_of

SVG = "{http://www.w3.org/2000/svg}"
Point = tuple[float, float]


def labels_of(axis: Axis) -> list[str]:
    return [label for _, label in axis.marks()]


def records_of(losses: list[float], every: int = 0) -> list[StepRecord]:
    """Records at steps 10, 20 and so on; every `every`th has a validation loss, 0.5 more."""
    return [
        record_of(
            10 * number,
            loss=loss,
            validation_loss=loss + 0.5 if every and number % every == 0 else None,
        )
        for number, loss in enumerate(losses, 1)
    ]


class Picture:
    """What a picture shows."""

    def __init__(self, records: list[StepRecord], title: str = "a run") -> None:
        self.root = ElementTree.fromstring(draw_loss_curve(records, title).encode())
        texts = [node.text or "" for node in self.root.iter(f"{SVG}text")]
        self.texts, self.title, self.summary = texts, texts[0], texts[-1]

    def line(self, kind: str) -> list[Point]:
        found = [n for n in self.root.iter(f"{SVG}polyline") if n.get("class") == kind]
        assert len(found) <= 1
        pairs = [pair.split(",") for node in found for pair in str(node.get("points")).split()]
        return [(float(x), float(y)) for x, y in pairs]

    def dots(self) -> list[Point]:
        found = [n for n in self.root.iter(f"{SVG}circle") if n.get("class") == "dot"]
        return [(float(str(n.get("cx"))), float(str(n.get("cy")))) for n in found]


def test_lines_points_and_legend() -> None:
    losses = [10.0 - number / 10 for number in range(40)]
    picture = Picture(records_of(losses, every=8), "tiny")
    assert picture.title == "tiny" and picture.root.findtext(f"{SVG}title") == "tiny"
    assert picture.summary == "training loss 6.1 at step 400, validation loss 6.6 at step 400"
    for name in ("training", "smoothed", "validation", "step", "loss, nats per token"):
        assert picture.texts.count(name) == 1
    thin = picture.line("thin")
    assert len(thin) == len(picture.line("strong")) == 40
    assert len(picture.line("dashed")) == 5 and len(picture.dots()) == 5 + 1  # one in the legend
    (base,) = (n.get("y") for n in picture.root.iter(f"{SVG}text") if n.text == "validation")
    sample = min(y for _, y in picture.dots())
    assert sample < float(base or 0) < sample + 10  # the name is beside its sample
    for (x, y), (right, below) in pairwise(thin):
        assert x < right and y < below
    # The smoothed line does not lag: means of an even fall are the fall itself.
    assert np.allclose(picture.line("strong"), thin, atol=0.11)


def test_the_smoothed_line_is_smoother() -> None:
    rng = np.random.default_rng(1)
    picture = Picture(records_of((5 + rng.standard_normal(300)).tolist()))
    thin, strong = (np.array(picture.line(kind))[:, 1] for kind in ("thin", "strong"))
    assert np.abs(np.diff(strong)).mean() < 0.2 * np.abs(np.diff(thin)).mean()
    assert strong.mean() == pytest.approx(thin.mean(), abs=3)


def test_a_few_losses_are_one_line() -> None:
    picture = Picture(records_of([3.0, 2.5]))
    assert len(picture.line("strong")) == 2 and not picture.line("thin") and not picture.dots()
    assert "training" in picture.texts and "smoothed" not in picture.texts
    assert "validation" not in picture.texts


def test_no_losses() -> None:
    for records in ([], records_of([math.nan, math.inf, -math.inf])):
        picture = Picture(records)
        assert picture.texts == ["a run", "no losses yet"]


def test_losses_that_are_no_number_are_left_out() -> None:
    picture = Picture(records_of([5.0, math.nan, 4.0, math.inf, 1e200]))
    assert len(picture.line("strong")) == 2
    assert picture.summary == "training loss 4 at step 30"


def test_far_apart_losses_have_a_logarithmic_axis() -> None:
    picture = Picture(records_of([10.0, 1.0, 0.1]))
    (_, top), (_, middle), (_, bottom) = picture.line("strong")
    assert middle - top == pytest.approx(bottom - middle, abs=0.11)
    assert "loss, nats per token (logarithmic)" in picture.texts


def test_a_long_run_is_drawn_by_means() -> None:
    losses = [5.0 + number % 2 for number in range(3 * MOST_POINTS)]
    picture = Picture(records_of(losses, every=1))
    assert len(picture.line("thin")) == MOST_POINTS == len(picture.dots()) - 1
    assert len(draw_loss_curve(records_of(losses), "")) < 100_000
    first, second = picture.line("thin")[:2]
    assert first[1] != second[1]  # means of 5, 6, 5 and of 6, 5, 6


NUMBERS = st.floats(-1e31, 1e31) | st.floats(0, 20) | st.floats(1e-9, 1e9) | st.just(math.nan)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 10**12), NUMBERS, NUMBERS), max_size=30))
def test_everything_is_inside_the_picture(values: list[tuple[int, float, float]]) -> None:
    values.sort(key=lambda value: value[0])
    picture = Picture([record_of(step, loss=a, validation_loss=b) for step, a, b in values])
    places = [*picture.line("thin"), *picture.line("strong"), *picture.dots()]
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)


@given(st.text(st.characters(), max_size=30) | st.text("<>&\"'\0\x1b\ud800\uffff]", max_size=9))
def test_any_title(title: str) -> None:
    shown = Picture([], title).title
    in_xml = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", title)
    title = printable(in_xml, keep="\t\n\r")  # marks of direction and controls are escaped
    title = title.replace("\r\n", "\n")  # as XML reads it
    assert all(a in (b, "\ufffd", "\n") for a, b in zip(shown, title, strict=True))


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_ticks_go_around_the_values(a: float, b: float) -> None:
    values = np.array([a, b])
    check_axis(values)
    check_axis(10.0 ** (values % 60 - 30))


def check_axis(values: NDArray[np.float64]) -> None:
    axis = value_axis(values, 400.0, 100.0)
    places = axis.place(np.array(axis.ticks))
    inside = axis.place(values)
    assert 100 - 1e-6 <= inside.min() <= inside.max() <= 400 + 1e-6
    assert (axis.ticks[0], axis.ticks[-1]) == (axis.low, axis.high)
    assert 2 <= len(axis.ticks) <= 12
    assert len(set(labels_of(axis))) == len(axis.ticks)
    assert (np.diff(places) < 0).all()
    assert places[0] == 400 and places[-1] == pytest.approx(100)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([2.1, 9.7], ["2", "4", "6", "8", "10"]),
        ([0.2, 0.7], ["0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]),
        ([3.0, 3.0], ["2.7", "2.8", "2.9", "3", "3.1", "3.2", "3.3"]),
        ([0.0, 0.0], ["-1", "-0.5", "0", "0.5", "1"]),
        ([0.4, 11.0], ["0.2", "0.5", "1", "2", "5", "10", "20"]),
        ([0.01, 100.0], ["0.01", "0.1", "1", "10", "100"]),
        ([1.0, 1000.0], ["1", "2", "5", "10", "20", "50", "100", "200", "500", "1,000"]),
        ([0.2, 70_000.0], ["0.1", "1", "10", "100", "1,000", "10,000", "100,000"]),
        ([1e-9, 1e5], ["1e-10", "1e-05", "1", "100,000"]),
        (
            [30_000.0, 90_000.0],
            ["30,000", "40,000", "50,000", "60,000", "70,000", "80,000", "90,000"],
        ),
    ],
)
def test_labels_of_losses(values: list[float], labels: list[str]) -> None:
    assert labels_of(value_axis(np.array(values), 0.0, 1.0)) == labels


@pytest.mark.parametrize(
    ("last", "labels"),
    [
        (0, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (45, ["0", "10", "20", "30", "40"]),
        (3_000, ["0", "500", "1,000", "1,500", "2,000", "2,500", "3,000"]),
        (123_456, ["0", "50,000", "100,000"]),
        (5_000_000, ["0", *(f"{k},000,000" for k in range(1, 6))]),
    ],
)
def test_labels_of_steps(last: int, labels: list[str]) -> None:
    axis = step_axis(last, 0.0, 100.0)
    assert labels_of(axis) == labels
    assert axis.place(np.array([0.0]))[0] == 0 and axis.ticks[-1] <= axis.high


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "loss.svg"
    records = records_of([5.0, 4.0], every=1)
    path.write_bytes(b"an older picture")
    write_loss_curve(path, records, "rün \ud800")
    assert path.read_bytes().decode() == draw_loss_curve(records, "rün \ufffd")
    assert os.listdir(tmp_path) == ["loss.svg"]
    style = ElementTree.fromstring(path.read_bytes()).findtext(f"{SVG}style") or ""
    assert style.count("prefers-color-scheme: dark") == 1
    with pytest.raises(OutputError, match=r"can't write .*loss.svg"):
        write_loss_curve(tmp_path / "missing" / "loss.svg", records, "")


def test_losses_are_plotted_in_plain_characters() -> None:
    plot = plot_losses(records_of([4.0, 3.0, 2.0, 2.0], every=4), columns=31, rows=6).splitlines()
    assert plot[0] == "loss, nats per token; . training, o validation"
    assert plot[1:9] == [
        "        4 |        .",
        "      3.5 |",
        "        3 |               .",
        "          |",
        "      2.5 |                              o",
        "        2 |                      .       .",
        "          +-------------------------------",
        "           0      10     20     30      40",
    ]
    assert plot[9] == "training loss 2 at step 40, validation loss 2.5 at step 40"


def test_numbers_of_steps_never_touch() -> None:
    plot = plot_losses(records_of([4.0, 3.0, 2.0, 2.0] * 700, every=4), columns=21).splitlines()
    assert plot[-2] == "           0 10,000 20,000"
    assert max(map(len, plot[1:-1])) <= 11 + 21


@pytest.mark.parametrize("losses", [[], [math.nan], [math.inf]])
def test_without_losses_there_is_nothing_to_plot(losses: list[float]) -> None:
    assert plot_losses(records_of(losses)) == "no losses yet"


@given(st.lists(st.floats(), max_size=30))
def test_any_losses_are_plotted(losses: list[float]) -> None:
    plot = plot_losses(records_of(losses, every=3))
    assert plot.isascii() and max(map(len, plot.splitlines()[:-1]), default=0) <= 84
