"""Draws docs/peers.svg from the recorded measurements: llmgpu beside the tools it is measured with.

usage: python scripts/draw_peers.py
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs" / "recorded"
PICTURE = ROOT / "docs" / "peers.svg"

WIDTH, PANEL_WIDTH, MARGIN = 760, 350, 20
ROW, BAR, TITLE, GAP = 20, 14, 24, 16
NAME_WIDTH, NUMBER_WIDTH = 122, 48
OWN, PEER = "#1d70b8", "#b4bcc4"


class Bar(NamedTuple):
    """A tool's rate; is_own: whether the tool is llmgpu."""

    name: str
    rate: float
    is_own: bool


def text_bars(results: list[dict[str, Any]], what: str) -> list[Bar]:
    """Return the rates in MB/s of one job on the largest text, fastest first."""
    measured = [r for r in results if r["what"] == what and "seconds" in r]
    chosen = [r for r in measured if r.get("variant") != "greedy"]  # which peers don't do
    largest = max(r["text_bytes"] for r in chosen)
    return sort_bars(make_bar(r, r["mb_per_second"]) for r in chosen if r["text_bytes"] == largest)


def large_bars(results: list[dict[str, Any]]) -> list[Bar]:
    """Return the rates in GB/s of tokenizing 3 GB of English, fastest first."""
    return sort_bars(
        make_bar(r, r["text_bytes"] / r["seconds"]["median"] / 1e9)
        for r in results
        if (r["text"], r["text_bytes"]) == ("English", 3_000_000_000)
    )


def make_bar(result: dict[str, Any], rate: float) -> Bar:
    engine = result["engine"].split(" (")[0]
    is_own = not result.get("peer", engine.startswith("gigatoken"))
    return Bar(f"llmgpu, {engine}" if is_own else engine, rate, is_own)


def sort_bars(bars: Any) -> list[Bar]:
    return sorted(bars, key=lambda bar: -bar.rate)


def draw_panel(title: str, bars: list[Bar], left: float, top: float) -> list[str]:
    """Return the lines of a panel: a title, and a bar with its number for each tool."""
    lines = [f'<text x="{left}" y="{top + 14}" class="t">{escape(title)}</text>']
    scale = (PANEL_WIDTH - NAME_WIDTH - NUMBER_WIDTH) / bars[0].rate
    for index, bar in enumerate(bars):
        y = top + TITLE + index * ROW
        x = left + NAME_WIDTH
        length = max(1.0, bar.rate * scale)
        lines += [
            f'<text x="{x - 6}" y="{y + 11}" class="n">{escape(bar.name)}</text>',
            f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{BAR}" '
            f'fill="{OWN if bar.is_own else PEER}"/>',
            f'<text x="{x + length + 5:.1f}" y="{y + 11}">{bar.rate:.1f}</text>',
        ]
    return lines


def draw(recorded: Path = RECORDED) -> str:
    """Return the picture: training on the left, tokenizing on the right, a row for each machine."""

    def load(name: str) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = json.loads((recorded / name).read_text())["results"]
        return results

    cores, h200 = load("two-cpu-cores.json"), load("nvidia-h200-text.json")
    rows = [
        (
            ("Train a vocabulary, 2 CPU cores, MB/s", text_bars(cores, "bpe-train")),
            ("Tokenize, 2 CPU cores, MB/s", text_bars(cores, "tokenize")),
        ),
        (
            ("Train, NVIDIA H200 and 16 cores, MB/s", text_bars(h200, "bpe-train")),
            ("Tokenize, NVIDIA H200 and 16 cores, MB/s", text_bars(h200, "tokenize")),
        ),
        (
            (
                "Tokenize 3 GB, NVIDIA H200 and 16 cores, GB/s",
                large_bars(load("growth/nvidia-h200-tokenize.json")),
            ),
        ),
    ]
    lines: list[str] = []
    top = float(MARGIN)
    for panels in rows:
        for column, (title, bars) in enumerate(panels):
            lines += draw_panel(title, bars, MARGIN + column * (PANEL_WIDTH + MARGIN), top)
        top += TITLE + max(len(bars) for _, bars in panels) * ROW + GAP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" '
        'font-family="sans-serif" font-size="11">',
        "<title>Rates of llmgpu and of other tools, longer is faster</title>",
        "<style>text{fill:#24292f}.t{font-size:13px;font-weight:bold}.n{text-anchor:end}</style>",
        '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
