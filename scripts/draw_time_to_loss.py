"""Draws docs/time-to-loss.svg from docs/recorded/recipes/nvidia-h200-time-to-loss.json.

usage: python scripts/draw_time_to_loss.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from llmgpu.charts import Axis, value_axis

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "recorded" / "recipes" / "nvidia-h200-time-to-loss.json"
PICTURE = ROOT / "docs" / "time-to-loss.svg"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 50, 110, 20, 46
CONTENDERS = {"llmgpu": "#1d70b8", "PyTorch": "#d4351c"}
TARGET = 4.5


def draw(record: Path = RECORD) -> str:
    """Return the picture: seconds across, nats a token down, a curve for each contender."""
    found = json.loads(record.read_text(encoding="utf-8"))["curves"]
    curves = {
        name: np.array(points)[:, 1:]
        for name in CONTENDERS
        for key, points in found.items()
        if key.startswith(name.lower())
    }
    both = np.concatenate([*curves.values()])
    across = value_axis(np.append(both[:, 0], 0.0), LEFT, WIDTH - RIGHT)
    down = value_axis(both[:, 1], HEIGHT - BOTTOM, TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        "<title>Held-out loss by the seconds since the start of the command</title>",
        "<style>text{fill:#24292f}.n{text-anchor:end}.m{text-anchor:middle}</style>",
        '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
        *_axes(across, down),
    ]
    for name, points in curves.items():
        places = np.stack([across.place(points[:, 0]), down.place(points[:, 1])], axis=1)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines += [
            f'<polyline points="{path}" fill="none" stroke="{CONTENDERS[name]}" stroke-width="2"/>',
            f'<text x="{places[-1, 0] + 6:.1f}" y="{places[-1, 1] + 4:.1f}">{name}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _axes(across: Axis, down: Axis) -> Iterator[str]:
    for x, label in across.marks():
        yield f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e5e8eb"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" class="m">{label}</text>'
    for y, label in down.marks():
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e5e8eb"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="n">{label}</text>'
    y = float(down.place(TARGET))
    yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#6b7280" stroke-dasharray="4 3"/>'
    yield f'<text x="{WIDTH - RIGHT + 6}" y="{y - 6:.1f}">{TARGET} nats</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 10}" class="m">seconds</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
