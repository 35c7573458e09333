"""Draws docs/calls.svg and prints the table of docs/benchmarks.md, from docs/recorded/calls.

The records are those of scripts/measure_calls.py, each in a file that is named after its machine.

usage: python scripts/draw_calls.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs" / "recorded" / "calls"
PICTURE = ROOT / "docs" / "calls.svg"
INTERFACES = ("extension module", "ctypes")
PEERS = ("tiktoken", "tokenizers", "gigatoken")
NOTHING = "none"

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 70, 170, 20, 46
COLORS = ("#1d70b8", "#d4351c", "#00703c", "#f47738")
SIZES = [(1 << 8, "256 B"), (1 << 12, "4 KiB"), (1 << 16, "64 KiB"), (1 << 20, "1 MiB")]
SIZES += [(1 << 26, "64 MiB")]
TIMES = [(1e-6, "1 µs"), (1e-5, "10 µs"), (1e-4, "100 µs"), (1e-3, "1 ms"), (1e-2, "10 ms")]
TIMES += [(1e-1, "100 ms")]


def load(recorded: Path = RECORDED) -> dict[str, dict[str, Any]]:
    """Return the records by machine."""
    return {
        path.stem.replace("-", " "): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(recorded.glob("*.json"))
    }


def micros(seconds: float | None) -> str:
    """Return microseconds with three digits."""
    if seconds is None:
        return NOTHING
    digits = max(0, 2 - math.floor(math.log10(seconds * 1e6)))
    return f"{seconds * 1e6:,.{min(digits, 2)}f}"


def rows(recorded: Path = RECORDED) -> list[list[str]]:
    """Return the rows of the table: machine, call, times of llmgpu and of peers, and their ratio.

    The ratio is that of llmgpu's time to the least of peers, whose results may be lists.
    """
    made = []
    for machine, record in load(recorded).items():
        own, by_ctypes = (
            {
                (result["call"], result["engine"]): result["seconds"]["median"]
                for result in record[interface]["results"]
                if "seconds" in result
            }
            for interface in INTERFACES
        )
        for call in dict.fromkeys(call for call, _ in own):
            lists = own.get((call, "llmgpu, a list"), own.get((call, "llmgpu, lists")))
            peers = [own.get((call, peer)) for peer in PEERS]
            least = min((spent for spent in peers if spent is not None), default=None)
            first = own[call, "llmgpu"]
            times = [first, lists, by_ctypes.get((call, "llmgpu")), *peers]
            ratio = NOTHING if least is None else f"{first / least:.2f}"
            made.append([machine, call, *map(micros, times), ratio])
    return made


def curves(recorded: Path = RECORDED) -> dict[str, list[tuple[int, float]]]:
    """Return bytes and seconds of encoding texts, by machine and interface."""
    return {
        f"{machine}, {interface}": [
            (point["bytes"], point["seconds"]) for point in record[interface]["curve"]
        ]
        for machine, record in load(recorded).items()
        for interface in INTERFACES
    }


def steepest(recorded: Path = RECORDED) -> float:
    """Return the largest ratio of the times of neighbours, by the extension module."""
    ratios: list[float] = []
    for record in load(recorded).values():
        seconds = [point["seconds"] for point in record["extension module"]["curve"]]
        ratios += [after / before for before, after in pairwise(seconds)]
    return max(ratios)


def across(size: float) -> float:
    low, high = math.log(SIZES[0][0]), math.log(SIZES[-1][0])
    return LEFT + (math.log(size) - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def down(seconds: float) -> float:
    low, high = math.log(TIMES[0][0]), math.log(TIMES[-1][0])
    return HEIGHT - BOTTOM - (math.log(seconds) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def draw(recorded: Path = RECORDED) -> str:
    """Return the picture: both axes are logarithms."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        "<title>Time of encoding a text by its size</title>",
        "<style>text{fill:#24292f}.n{text-anchor:end}.m{text-anchor:middle}</style>",
        '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *_axes(), *_lines(recorded), "</svg>"]) + "\n"


def _axes() -> Iterator[str]:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for size, name in SIZES:
        x = across(size)
        yield f'<path d="M{x:.1f} {TOP}V{floor}" stroke="#e5e8eb"/>'
        yield f'<text x="{x:.1f}" y="{floor + 16}" class="m">{name}</text>'
    for seconds, name in TIMES:
        y = down(seconds)
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e5e8eb"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="n">{name}</text>'
    yield f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" class="m">bytes of text</text>'


def _lines(recorded: Path) -> Iterator[str]:
    for color, (name, points) in zip(COLORS, curves(recorded).items(), strict=False):
        places = [(across(size), down(max(seconds, TIMES[0][0]))) for size, seconds in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        x, y = places[-1]
        above = -10 if name.endswith("ctypes") else 8
        yield f'<text x="{x + 6:.1f}" y="{y + above:.1f}">{escape(name)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    for row in rows():
        print(f"| {' | '.join(row)} |")
