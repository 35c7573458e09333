"""Writes the tables of docs/ideas.md and the picture docs/ideas.svg from recorded measurements.

The records of ``llmgpu bench ideas`` are docs/recorded/ideas/DEVICE-1.json and, of a second call
on the same device, DEVICE-2.json.

usage: python scripts/draw_ideas.py
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs" / "recorded" / "ideas"
PAGE = ROOT / "docs" / "ideas.md"
PICTURE = ROOT / "docs" / "ideas.svg"

NOT_MEASURED = "not measured"
MATCHING = ("trie_tokenizer_chunked", "trie_chunk_entry")
KERNELS = {  # kernels that an idea of a whole job changes
    "counting in workgroup memory": ("bpe_pair_count_b",),
    "symbols that a workgroup counts": ("bpe_pair_count_b",),
    "scan of marks": (
        "bpe_merge_reduce_b",
        "bpe_scan_pass1",
        "bpe_scan_pass2",
        "bpe_scan_blocks",
        "bpe_finalize_compact_b",
    ),
    "cached levels of the trie": MATCHING,
    "branchless search": MATCHING,
    "sums of chunks": ("trie_prefix_sum",),
    "coalesced copy of ids": ("trie_tokenizer_compact",),
    "bytes of a chunk": MATCHING,
    "scan of counts": ("trie_prefix_sum",),
}
SORTING = "the host sorts tokens for grouping"
WIDTH, NAME_WIDTH, ROW, BAR, MARGIN = 760, 330, 15, 11, 20
COLOURS = ("#1d70b8", "#b4bcc4")
MOST = 4.0  # ratio at which bars end


class Measured(NamedTuple):
    """A way of an idea on one device.

    seconds: median of the kernels that the idea changes, in each call. job: the same of all
    kernels. runs: seconds of all kernels in each run of each call.
    """

    seconds: tuple[float, ...]
    job: tuple[float, ...]
    runs: tuple[tuple[float, ...], ...]


class Comparison(NamedTuple):
    """A way of an idea beside the way of llmgpu, by device."""

    idea: str
    own: str
    other: str
    devices: dict[str, tuple[Measured, Measured]]

    def ratios(self, device: str, *, of_job: bool = False) -> list[float]:
        """Return the times of the other way, in times of llmgpu's, in each call."""
        own, other = self.devices[device]
        pairs = zip(
            *((own.job, other.job) if of_job else (own.seconds, other.seconds)), strict=True
        )
        return [there / here for here, there in pairs]

    def is_beyond_noise(self, device: str) -> bool:
        """Whether, in all calls, all runs of one and the same way are faster than the other's."""
        own, other = self.devices[device]
        calls = list(zip(own.runs, other.runs, strict=True))
        wins = all(max(here) < min(there) for here, there in calls)
        return wins or all(max(there) < min(here) for here, there in calls)


def load(recorded: Path = RECORDED) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the results of each call by device."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for path in sorted(recorded.glob("*.json")):
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
        name = next(r["engine"] for r in results if r["engine"] != "NumPy")
        device = " ".join(name.split()[:2])  # without memory and form
        found.setdefault(device, []).append(results)
    return found


def compare(calls: dict[str, list[list[dict[str, Any]]]]) -> list[Comparison]:
    """Return all ways but llmgpu's, which is the first way of each idea, in their order."""
    ways: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for device, records in calls.items():
        for results in records:
            for result in results:
                idea, _, way = result["variant"].partition(": ")
                if "seconds" in result and way != SORTING:
                    ways.setdefault((idea, way), {}).setdefault(device, []).append(result)
    own: dict[str, str] = {}
    made = []
    for (idea, way), by_device in ways.items():
        first = own.setdefault(idea, way)
        if way != first:
            both = {
                device: (_measured(idea, ways[idea, first][device]), _measured(idea, results))
                for device, results in by_device.items()
            }
            made.append(Comparison(idea, first, way, both))
    return made


def _measured(idea: str, results: list[dict[str, Any]]) -> Measured:
    whole = tuple(result["seconds"]["median"] for result in results)
    runs = tuple(tuple(result["seconds"]["runs"]) for result in results)
    if idea not in KERNELS or any("kernels" not in result for result in results):
        return Measured(whole, whole, runs)
    parts = (result["kernels"]["seconds"] for result in results)
    of_idea = tuple(sum(part.get(k, 0.0) for k in KERNELS[idea]) for part in parts)
    return Measured(of_idea, whole, runs)


def table(comparisons: list[Comparison], devices: list[str]) -> list[str]:
    """Return the lines of the table of all ways."""
    heads = [f"{device}: {what}" for device in devices for what in ("time", "instead")]
    lines = [
        f"| idea | llmgpu | instead | {' | '.join(heads)} |",
        f"|{' --- |' * (len(heads) + 3)}",
    ]
    for each in comparisons:
        cells = [each.idea, each.own, each.other]
        for device in devices:
            cells += _cells(each, device) if device in each.devices else ["-", "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cells(each: Comparison, device: str) -> list[str]:
    own, _ = each.devices[device]
    ratios = " ".join(f"{ratio:.2f}" for ratio in each.ratios(device))
    said = ratios if each.is_beyond_noise(device) else f"{ratios}, noise"
    if own.seconds != own.job:
        job = " ".join(f"{ratio:.2f}" for ratio in each.ratios(device, of_job=True))
        said += f" (job {job})"
    return [f"{1e6 * mean(own.seconds):,.0f} µs", said]


def sorting(calls: dict[str, list[list[dict[str, Any]]]]) -> list[str]:
    """Return the lines of the table of times in which the host sorts tokens."""
    lines = ["| idea | host of | time |", "| --- | --- | --- |"]
    for device, records in calls.items():
        for result in records[0]:
            idea, _, way = result["variant"].partition(": ")
            if way == SORTING:
                lines.append(f"| {idea} | {device} | {1e6 * result['seconds']['median']:,.0f} µs |")
    return lines


def not_measured(calls: dict[str, list[list[dict[str, Any]]]]) -> list[str]:
    """Return the lines of the table of ideas without times, each with its reason."""
    reasons = {
        result["variant"].partition(": ")[2]: result["note"]
        for records in calls.values()
        for results in records
        for result in results
        if result["variant"].startswith(NOT_MEASURED)
    }
    lines = ["| idea | why it is not measured |", "| --- | --- |"]
    return lines + [f"| {idea} | {reason} |" for idea, reason in reasons.items()]


def draw(comparisons: list[Comparison], devices: list[str]) -> str:
    """Return the picture: a bar for each way and device, from llmgpu's time at 1."""
    scale = (WIDTH - NAME_WIDTH - 2 * MARGIN - 40) / MOST
    left = MARGIN + NAME_WIDTH
    lines: list[str] = []
    top, idea = MARGIN + 20.0, ""
    for each in comparisons:
        if each.idea != idea:
            idea = each.idea
            top += 8
            lines.append(f'<text x="{MARGIN}" y="{top + 10:.0f}" class="t">{escape(idea)}</text>')
            top += ROW + 2
        lines.append(
            f'<text x="{left - 6}" y="{top + 10:.0f}" class="n">{escape(each.other)}</text>'
        )
        for device, colour in zip(devices, COLOURS, strict=False):
            if device in each.devices:
                ratio = mean(each.ratios(device))
                length = scale * min(ratio, MOST)
                after = left + max(length, scale) + 4  # the number is beyond the line at 1
                lines.append(
                    f'<rect x="{left}" y="{top:.0f}" width="{length:.1f}" height="{BAR}" '
                    f'fill="{colour}"/><text x="{after:.1f}" y="{top + 9:.0f}">'
                    f"{ratio:.2f}</text>"
                )
                top += ROW
    one = left + scale
    legend = "; ".join(
        f"{name}: {shade}" for name, shade in zip(devices, ("blue", "grey"), strict=False)
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + MARGIN:.0f}" '
        'font-family="sans-serif" font-size="10">',
        "<title>Time without an idea, in times of llmgpu with the idea</title>",
        "<style>text{fill:#24292f}.t{font-size:11px;font-weight:bold}.n{text-anchor:end}</style>",
        '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN}">time of the kernels, llmgpu = 1; longer bars: the idea '
        f"helps more ({escape(legend)})</text>",
        f'<line x1="{one:.1f}" y1="{MARGIN + 14}" x2="{one:.1f}" y2="{top:.0f}" stroke="#24292f"/>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def fill(page: str, tables: dict[str, list[str]]) -> str:
    """Return the page with each table between its two comments ``<!-- NAME -->``."""
    for name, lines in tables.items():
        mark = f"<!-- {name} -->"
        inside = re.compile(f"{re.escape(mark)}.*?{re.escape(mark)}", re.DOTALL)
        text = "\n".join([mark, "", *lines, "", mark])
        page = inside.sub(lambda _, text=text: text, page)  # type: ignore[misc]
    return page


def written(page: str, recorded: Path = RECORDED) -> tuple[str, str]:
    """Return the page with its tables, and the picture."""
    calls = load(recorded)
    comparisons, devices = compare(calls), [*calls]
    tables = {"ways": table(comparisons, devices), "sorting": sorting(calls)}
    tables[NOT_MEASURED] = not_measured(calls)
    return fill(page, tables), draw(comparisons, devices)


if __name__ == "__main__":
    text, picture = written(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    PICTURE.write_text(picture, encoding="utf-8")
