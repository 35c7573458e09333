"""A chart of a training run's losses: a self-contained SVG, for light and dark backgrounds.

- Training losses are a thin line, with their moving average as a thick line. Validation losses are
  points on a dashed line. All losses are cross-entropies.
- The axis of losses is logarithmic if losses are far apart. Losses that are NaN or too large to
  draw are left out.
- In a long run each point of a line is the mean of several records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    draw_axes,
    draw_line,
    draw_picture,
    element,
    step_axis,
    value_axis,
)
from llmgpu.files import atomic_output
from llmgpu.lm.runs.run_folder import StepRecord

MOST_POINTS = 1_000  # most points of a line, because more can't be told apart

COLUMNS = 72  # width of a plot in characters, without labels
LABEL_COLUMNS = 11  # characters before the plot: a label of the vertical axis, and its line

_LARGEST = 1e30
_SMOOTHED_PART = 0.02  # share of all points that is averaged on either side of a point
_LEAST_SMOOTHED = 10  # least points of a line that is smoothed

Points = NDArray[np.float64]  # (n, 2): step, loss


def write_loss_curve(path: str | Path, records: Sequence[StepRecord], title: str) -> None:
    """Write the chart of a run atomically; raise OutputError if writing fails."""
    with atomic_output(path) as file:
        file.write(draw_loss_curve(records, title).encode())


def draw_loss_curve(records: Sequence[StepRecord], title: str) -> str:
    """Return a chart of the losses of `records` as the text of an SVG; title: any text."""
    # The style repeats colours in each rule, because many viewers lack CSS variables.
    style = (resources.files(__package__) / "loss_curve.css").read_text(encoding="utf-8")
    losses = _losses_by_name(records)
    parts = [
        f"<style>\n{style}</style>",
        element("rect", "surface", width=WIDTH, height=HEIGHT),
        element("text", "title", title, x=LEFT, y=34),
    ]
    if any(map(len, losses.values())):
        parts += _chart(**losses)
    parts.append(element("text", text=_summary(losses) or "no losses yet", x=LEFT, y=56))
    return draw_picture(title, parts, xmlns="http://www.w3.org/2000/svg") + "\n"


def plot_losses(records: Sequence[StepRecord], columns: int = COLUMNS, rows: int = 18) -> str:
    """Return a chart of the losses of `records` in plain characters, for a terminal.

    columns, rows: size of the area with marks: "." for training, "o" for validation.
    """
    losses = _losses_by_name(records)
    everything = np.concatenate([*losses.values()])
    if not len(everything):
        return "no losses yet"
    x = step_axis(int(everything[:, 0].max()), 0, columns - 1)
    y = value_axis(everything[:, 1], rows - 1, 0)
    # Place marks by row and column. Marks of validation come last, so that they stay visible.
    area = [[" "] * columns for _ in range(rows)]
    for mark, points in zip(".o", losses.values(), strict=True):
        for across, down in zip(x.place(points[:, 0]), y.place(points[:, 1]), strict=True):
            area[round(down)][round(across)] = mark
    # Add the labels of both axes. A number on the axis of steps ends below its tick. Leave out a
    # number that would touch the previous number.
    labels = {round(at): label for at, label in y.marks()}
    lines = [f"{labels.get(n, ''):>9} |{''.join(row)}".rstrip() for n, row in enumerate(area)]
    steps = ""
    for at, label in x.marks():
        room = round(at) + 1 - len(steps)
        steps += label.rjust(room) if room > len(label) or not steps else ""
    lines += [f"{'':9} +{'-' * columns}", f"{'':{LABEL_COLUMNS}}{steps}"]
    return "\n".join([f"{_name_of(y)}; . training, o validation", *lines, _summary(losses)])


def _losses_by_name(records: Sequence[StepRecord]) -> dict[str, Points]:
    """Return the training losses and the validation losses that can be drawn."""
    return {
        "training": _points([(record.step, record.loss) for record in records]),
        "validation": _points([(record.step, record.validation_loss) for record in records]),
    }


def _points(values: Sequence[tuple[int, float | None]]) -> Points:
    """Return the values that can be drawn; leave out None, NaN and very large losses."""
    known = [(step, loss) for step, loss in values if loss is not None and abs(loss) < _LARGEST]
    return np.array(known, np.float64).reshape(-1, 2)


def _name_of(y: Axis) -> str:
    """Return the name of the axis of losses."""
    return "loss, nats per token (logarithmic)" if y.is_log else "loss, nats per token"


def _thin(points: Points) -> Points:
    """Return at most MOST_POINTS points; if there are more, means of neighbouring points."""
    if len(points) <= MOST_POINTS:
        return points
    return np.array([part.mean(axis=0) for part in np.array_split(points, MOST_POINTS)])


def _smooth(points: Points) -> Points:
    """Return the mean of each point and its neighbours, equally many on both sides.

    A mean of earlier points only would be too high while the loss falls.
    """
    losses, last = points[:, 1], len(points) - 1
    most = max(1, round(_SMOOTHED_PART * len(points)))
    smoothed = points.copy()
    for index in range(len(points)):
        # Near the ends of the line, fewer neighbours are averaged on both sides.
        sides = min(most, index, last - index)
        smoothed[index, 1] = losses[index - sides : index + sides + 1].mean()
    return smoothed


def _chart(training: Points, validation: Points) -> list[str]:
    """Return the axes, the lines and the legend."""
    everything = np.concatenate([training, validation])
    training, validation = _thin(training), _thin(validation)
    x = step_axis(int(everything[:, 0].max()), LEFT, RIGHT)
    y = value_axis(everything[:, 1], BOTTOM, TOP)
    # Choose the lines: class of the line, class of the dots on it, name and points.
    lines = [("thin", "", "training", training), ("strong", "", "smoothed", _smooth(training))]
    if len(training) < _LEAST_SMOOTHED:
        lines = [("strong", "strong-dot", "training", training)]
    lines.append(("dashed", "dot", "validation", validation))
    # Draw the lines, and the legend above the chart: a sample of each line with its name.
    parts, legend = draw_axes(x, y, "step", _name_of(y)), list[str]()
    left, middle = LEFT, TOP - 17
    for kind, dot, name, points in (line for line in lines if len(line[-1])):
        across, down = x.place(points[:, 0]), y.place(points[:, 1])
        parts.append(draw_line(kind, across, down))
        if dot:
            places = zip(across, down, strict=True)
            parts += [element("circle", dot, cx=at, cy=top, r=4) for at, top in places]
        sample = element("path", kind, d=f"M{left} {middle}h22")
        if kind == "dashed":
            sample = element("circle", dot, cx=left + 11, cy=middle, r=4)
        legend += [sample, element("text", text=name, x=left + 30, y=middle + 4.5)]
        left += 116
    return [*parts, *legend]


def _summary(losses: Mapping[str, Points]) -> str:
    """Return a sentence with the last loss of each name."""
    said = []
    for name, points in losses.items():
        if len(points):
            step, loss = points[-1]
            said.append(f"{name} loss {loss:,.4g} at step {step:,.0f}")
    return ", ".join(said)
