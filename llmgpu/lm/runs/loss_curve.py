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

from llmgpu.charts import Axis, escape_text, step_axis, value_axis
from llmgpu.files import atomic_output
from llmgpu.lm.runs.run_folder import StepRecord

WIDTH, HEIGHT = 860, 480
MOST_POINTS = 1_000  # most points of a line, because more can't be told apart

COLUMNS = 72  # width of a plot in characters, without labels
LABEL_COLUMNS = 11  # characters before the plot: a label of the vertical axis, and its line

_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 836, 92, 424  # edges of the area with the lines
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
    parts = [f'<text class="title" x="{_LEFT}" y="34">{escape_text(title)}</text>']
    if any(map(len, losses.values())):
        parts += _chart(**losses)
    parts.append(f'<text x="{_LEFT}" y="56">{_summary(losses) or "no losses yet"}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img">',
            f"<title>{escape_text(title)}</title>",
            f"<style>\n{style}</style>",
            f'<rect class="surface" width="{WIDTH}" height="{HEIGHT}"/>',
            *parts,
            "</svg>\n",
        ]
    )


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
    every = -(-len(points) // MOST_POINTS)
    if every <= 1:
        return points
    # Average groups of `every` neighbours; the last group may be smaller.
    firsts = np.arange(0, len(points), every)
    counts = np.diff(np.append(firsts, len(points)))
    means: Points = np.add.reduceat(points, firsts) / counts[:, None]
    return means


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
    x = step_axis(int(everything[:, 0].max()), _LEFT, _RIGHT)
    y = value_axis(everything[:, 1], _BOTTOM, _TOP)
    # Choose the lines: class of the line, class of the dots on it, name and points.
    lines = [("thin", "", "training", training), ("strong", "", "smoothed", _smooth(training))]
    if len(training) < _LEAST_SMOOTHED:
        lines = [("strong", "strong-dot", "training", training)]
    lines.append(("dashed", "dot", "validation", validation))
    # Draw the lines, and the legend above the chart: a sample of each line with its name.
    parts, legend = [*_horizontal_axis(x), *_vertical_axis(y)], list[str]()
    left, middle = _LEFT, _TOP - 17
    for kind, dot, name, points in (line for line in lines if len(line[-1])):
        places = [*zip(x.place(points[:, 0]), y.place(points[:, 1]), strict=True)]
        drawn = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
        parts.append(f'<polyline class="{kind}" points="{drawn}"/>')
        if dot:
            parts += [_dot(dot, f"{at:.1f}", f"{down:.1f}") for at, down in places]
        sample = f'<path class="{kind}" d="M{left} {middle}h22"/>'
        if kind == "dashed":
            sample = _dot(dot, left + 11, middle)
        legend += [sample, f'<text x="{left + 30}" y="{middle + 4.5}">{name}</text>']
        left += 116
    return [*parts, *legend]


def _dot(kind: str, x: object, y: object) -> str:
    return f'<circle class="{kind}" cx="{x}" cy="{y}" r="4"/>'


def _horizontal_axis(x: Axis) -> list[str]:
    middle = (_LEFT + _RIGHT) / 2
    parts = [
        f'<line class="axis" x1="{_LEFT}" y1="{_BOTTOM}" x2="{_RIGHT}" y2="{_BOTTOM}"/>',
        f'<text class="x" x="{middle:.1f}" y="{_BOTTOM + 44}">step</text>',
    ]
    for at, label in x.marks():
        parts.append(
            f'<line class="axis" x1="{at:.1f}" y1="{_BOTTOM}" x2="{at:.1f}" y2="{_BOTTOM + 5}"/>'
        )
        parts.append(f'<text class="x" x="{at:.1f}" y="{_BOTTOM + 21}">{label}</text>')
    return parts


def _vertical_axis(y: Axis) -> list[str]:
    middle, name = (_TOP + _BOTTOM) / 2, _name_of(y)
    parts = [f'<text class="x" transform="translate(20 {middle:.1f}) rotate(-90)">{name}</text>']
    for at, label in y.marks():
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{_RIGHT}" y2="{at:.1f}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 9}" y="{at + 4.5:.1f}">{label}</text>')
    return parts


def _summary(losses: Mapping[str, Points]) -> str:
    """Return a sentence with the last loss of each name."""
    said = []
    for name, points in losses.items():
        if len(points):
            step, loss = points[-1]
            said.append(f"{name} loss {loss:,.4g} at step {step:,.0f}")
    return ", ".join(said)
