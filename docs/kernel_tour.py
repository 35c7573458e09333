"""The tour of the kernels, which the page `kernels.md` shows: the heads of WGSL files.

A head is the comment at the top of a kernel's file, see "A kernel" in ARCHITECTURE.md. In
`kernels.md`, a line ``{kernels FOLDER}`` stands for the kernels of a folder of wgsl/, in order, and
``{sources}`` for a table of the kernels of the documents that llmgpu implements.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WGSL = Path(__file__).parents[1] / "wgsl"
RECORD = Path(__file__).parent / "recorded" / "kernels" / "nvidia-h200.json"
MEASURED_ON = "NVIDIA H200"
_ENTRY = re.compile(r"^fn (\w+)", re.MULTILINE)
_BINDING = re.compile(r"binding (\d+)\s+(\w+)\s+(read_write|read|uniform)\s*(.*)")
_FIELD = re.compile(r"(dispatch|limits|source): (.*)")
_PLACE = re.compile(r"^\{kernels (\w+)\}$", re.MULTILINE)
_NAME = re.compile(r"\b[a-z]+[a-z0-9]*(?:_[a-z0-9]+)+\b")
_FOLDERS = ("recount", "trie", "lm", "bench")  # with kernels that the documents have, too


@dataclass(frozen=True)
class Head:
    """The head of a kernel's file.

    file: path below wgsl/. name: name of the kernel. purpose: the first paragraph. text: other
    paragraphs, as Markdown. bindings: number, name, access and meaning. dispatch: the number of
    workgroups. limits, source: "" in a head without them.
    """

    file: str
    name: str
    purpose: str
    text: tuple[str, ...]
    bindings: tuple[tuple[str, str, str, str], ...]
    dispatch: str
    limits: str
    source: str


def read_head(file: str) -> Head:
    """Return the head of a file below wgsl/.

    Raises:
        ValueError: the head has no purpose or no dispatch.
    """
    content = (WGSL / file).read_text(encoding="utf-8")
    paragraphs: list[list[str]] = [[]]
    bindings: list[list[str]] = []
    fields = {"dispatch": "", "limits": "", "source": ""}
    kind = ""  # the entry that a line continues: a field, a binding, or text
    for line in _comment(content):
        if found := _BINDING.match(line):
            bindings.append(list(found.groups()))
            kind = "binding"
        elif found := _FIELD.match(line):
            kind = found[1]
            fields[kind] = found[2]
        elif not line:
            paragraphs.append([])
            kind = ""
        elif kind == "binding":
            bindings[-1][3] += f" {line.strip()}"
        elif kind:
            fields[kind] += f" {line.strip()}"
        elif not fields["dispatch"]:  # later comments explain declarations
            paragraphs[-1].append(line)
    purpose, *text = [lines for lines in paragraphs if lines] or [[]]
    entry = _ENTRY.search(content, content.index("@compute"))
    name = entry[1] if entry else Path(file).stem.partition("_")[2]
    text = [lines for lines in text if lines != [name]]
    spoken = " ".join(purpose).removeprefix(f"{name}: ")
    if not spoken or not fields["dispatch"]:
        raise ValueError(f"wgsl/{file}: the head lacks its purpose or its dispatch")
    rows = tuple((number, bound, access, what) for number, bound, access, what in bindings)
    return Head(file, name, spoken, tuple(map(_markdown, text)), rows, **fields)


def _comment(content: str) -> list[str]:
    """Return the lines of all comments before the first binding or function, without slashes."""
    lines = []
    for line in content.splitlines():
        if line.startswith(("//!", "override ")):
            continue
        if line and not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").removeprefix(" "))
    return lines


def _markdown(lines: list[str]) -> str:
    """Return a paragraph as Markdown. Formulas are indented; lines of a list begin with "- "."""
    blocks: list[tuple[bool, list[str]]] = []
    is_list = False
    for line in lines:
        is_list = is_list or line.startswith("- ")
        is_formula = line.startswith("  ") and not is_list
        if not blocks or blocks[-1][0] != is_formula:
            blocks.append((is_formula, []))
        blocks[-1][1].append(line.removeprefix("  ") if is_formula else _escaped(line))
    made = ("\n".join(["```text", *b, "```"] if is_formula else b) for is_formula, b in blocks)
    return "\n\n".join(made)


def _escaped(text: str) -> str:
    """Return a text in which only `code` and the start of a list have a meaning for Markdown."""
    outside = text.split("`")
    outside[::2] = (re.sub(r"([\\*_<>\[\]|$~#]|^\+)", r"\\\1", part) for part in outside[::2])
    return "`".join(outside)


def kernel_files(folder: str) -> list[str]:
    """Return the files of a folder of wgsl/ that have a kernel, in order."""
    paths = sorted((WGSL / folder).glob("*.wgsl"))
    return [f"{folder}/{p.name}" for p in paths if "@compute" in p.read_text(encoding="utf-8")]


@cache
def recorded_shares() -> dict[str, tuple[str, float]]:
    """Return sizes and the share of the limit by kernel, of results with one kernel on one device.

    The limit is that of a device's memory or arithmetic, see `llmgpu bench kernels`. Of several
    results of a kernel, the first counts.
    """
    shares: dict[str, tuple[str, float]] = {}
    for result in json.loads(RECORD.read_text(encoding="utf-8"))["results"]:
        kernels = list(result.get("kernels", {}).get("seconds", {}))
        if result["engine"] == MEASURED_ON and len(kernels) == 1 and "share_of_floor" in result:
            shares.setdefault(kernels[0], (result["job"], result["share_of_floor"]))
    return shares


def describe(head: Head) -> str:
    """Return a section about a kernel, as Markdown."""
    parts = [f"### {head.name}", _sentence(head.purpose), *head.text]
    if head.bindings:
        table = ["| binding | name | access | content |", "| --- | --- | --- | --- |"]
        for number, name, access, content in head.bindings:
            table.append(f"| {number} | `{name}` | {access} | {_escaped(content.lstrip(', '))} |")
        parts.append("\n".join(table))
    parts.append(f"Dispatch: {_sentence(head.dispatch)}")
    if head.limits:
        parts.append(f"Limits: {_sentence(head.limits)}")
    if head.source:
        parts.append(f"In the source: {_escaped(head.source)}")
    if head.name in recorded_shares():
        sizes, share = recorded_shares()[head.name]
        parts.append(f"Measured: {100 * share:.0f} % of the limit on an {MEASURED_ON} ({sizes})")
    parts.append(f"File: [wgsl/{head.file}](../wgsl/{head.file})")
    return "\n\n".join(parts)


def source_table() -> str:
    """Return a table of the documents' kernels, each with the kernels that implement it."""
    found: dict[str, list[str]] = {}
    for head in (read_head(file) for folder in _FOLDERS for file in kernel_files(folder)):
        begin = re.sub("`.*?`", "", head.source.partition(". ")[0])  # without names of settings
        for name in _NAME.findall(begin if not begin.startswith(("none", "the ")) else ""):
            found.setdefault(name, []).append(
                f"[{_escaped(head.name)}](#{head.name}), `{head.file}`"
            )
    rows = [f"| `{name}` | {'; '.join(kernels)} |" for name, kernels in found.items()]
    return "\n".join(["| kernel of the source | in llmgpu |", "| --- | --- |", *rows])


def _sentence(text: str) -> str:
    """Return a text with a full stop, and with a capital unless the first word is a name."""
    first = text.split()[0]
    begun = text[0].upper() + text[1:] if first.isalpha() else text
    return _escaped(begun if begun.endswith(".") else f"{begun}.")


def fill_page(text: str) -> str:
    """Fill in a page: the table at ``{sources}``, and kernels at each line ``{kernels FOLDER}``."""

    def kernels(found: re.Match[str]) -> str:
        return "\n\n".join(describe(read_head(file)) for file in kernel_files(found[1]))

    return _PLACE.sub(kernels, text.replace("{sources}", source_table()))
