"""Manifests of parts put together: the list of all shards, in the order of the text.

Shards stay as they are, so those at the ends of parts may be shorter than the others. The ids end
to end are those that one job for all the text gives.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmgpu.errors import InputError, LlmgpuError
from llmgpu.input_files import listed, quote
from llmgpu.outputs import MANIFEST, Output, check_outputs
from llmgpu.text.parts import Part
from llmgpu.tokens.manifest import (
    describe_manifest,
    digest,
    is_whole,
    read_manifest,
    write_manifest,
)

_OWN = ("format", "version", "part", "work_sha256", "shards")  # of the manifest of a part


def merge_shards(
    manifests: Sequence[str | Path], output: str | Path, *, force: bool = False
) -> dict[str, Any]:
    """Write one manifest of the shards of all parts; return its content.

    manifests: of the parts, in any order, each once. output: the manifest, in the folder of the
        shards. force: replace even a file of another kind.

    Raises:
        InputError: a manifest is not that of a part, parts are missing or of different jobs, or
            a shard is missing or damaged.
        OutputError: the output would replace a file of another kind, or can't be written.
    """
    check_outputs([Output(str(output), MANIFEST)], map(str, manifests), force=force)
    parts = _in_order(manifests)
    _check_folder([*manifests, output])
    shards = []
    for path in parts:
        for name, shard in read_manifest(path):
            if not is_whole(name, shard):
                raise InputError(f"{name} is missing or differs from {path}: do that part again")
            shards.append(shard)
    full = [shard for shard in shards if shard.count or shard.documents]
    contents = [describe_manifest(path) for path in parts]
    facts = {name: value for name, value in contents[0].items() if name not in _OWN}
    facts["run_sha256"] = digest({"parts": [content["run_sha256"] for content in contents]})
    return write_manifest(output, facts, full or shards[:1])


def _in_order(manifests: Sequence[str | Path]) -> list[str | Path]:
    """Return the manifests by their parts; InputError unless these are the parts of one job."""
    by_number: dict[int, str | Path] = {}
    first: dict[str, Any] = {}
    for path in manifests:
        content = describe_manifest(path)
        part = _part_of(content, path)
        if not isinstance(content.get("run_sha256"), str):
            raise InputError(f"{path} does not say of which run it is: do that part again")
        first = first or {**content, "path": path, "of": part.count}
        for fact in ("fingerprint", "layout", "dtype", "shard_tokens", "work_sha256"):
            if content.get(fact) != first.get(fact):
                what = "the text, or how it was read," if fact == "work_sha256" else fact
                raise InputError(
                    f"{first['path']} and {path} are not parts of one job: {what} differs"
                )
        if part.count != first["of"]:
            raise InputError(f"{path} is part {part}, but {first['path']} one of {first['of']}")
        if part.number in by_number:
            raise InputError(f"{path} and {by_number[part.number]} are both part {part}")
        by_number[part.number] = path
    numbers = range(1, first["of"] + 1)
    missing = [f"{number}/{first['of']}" for number in numbers if number not in by_number]
    if missing:
        raise InputError(f"parts are missing: {listed(missing)}")
    return [by_number[number] for number in numbers]


def _part_of(content: dict[str, Any], path: str | Path) -> Part:
    try:
        number, count = map(int, content["part"].split("/"))
        return Part(number, count)
    except (KeyError, ValueError, AttributeError, LlmgpuError):
        shown = f" ({quote(str(content['part']))})" if "part" in content else ""
        raise InputError(
            f"{path} is not the manifest of a part{shown}: it was written without --part"
        ) from None


def _check_folder(paths: Sequence[str | Path]) -> None:
    """Raise InputError unless all paths are in one folder, as a manifest names files of its own."""
    folders = [os.path.dirname(os.path.realpath(path)) for path in paths]
    for path, folder in zip(paths, folders, strict=True):
        if folder != folders[0]:
            raise InputError(
                f"{path} is not in the folder of {paths[0]}: a manifest lists files of its own "
                "folder, so move the shards with their side files and manifests to one"
            )
