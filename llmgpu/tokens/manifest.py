"""Lists of token shards: the manifest of a finished job, the progress file of an unfinished job.

Both files have the facts of the job and an entry for each shard, and name only files in the folder
that they are in. A manifest is a JSON object. A progress file has JSON lines: one line for the job
and one for each finished shard, so that appending a line adds a shard.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmgpu.errors import InputError, LlmgpuError
from llmgpu.file_kinds import MANIFEST, PROGRESS, TEXT, kind_of
from llmgpu.files import atomic_output, output_errors
from llmgpu.input_files import listed, quote, read_whole
from llmgpu.outputs import Output, check_outputs
from llmgpu.resume_key import Run
from llmgpu.spelling import spelled
from llmgpu.text.parts import Part
from llmgpu.tokens.bin import describe_bin_file, numbers_of
from llmgpu.tokens.formats import has_side_file, index_name

MANIFEST_FORMAT = "llmgpu-token-shards"
PROGRESS_FORMAT = "llmgpu-token-shards-in-progress"
VERSION = 1  # version of the format of manifests
PROGRESS_VERSION = 2

_DTYPES = ("uint16", "uint32")
# Entries of a manifest about all shards together: three sums, and a quotient of two sums.
SUMS = ("count", "bytes", "documents", "bytes_per_token")


@dataclass(frozen=True)
class Shard:
    """A shard as manifests list it.

    file: name without the folder. count: number of tokens. bytes: bytes of the text that was
    encoded. documents: number of document starts. continues: whether the first ids belong to the
    last document of the previous shard.
    """

    file: str
    count: int
    bytes: int
    documents: int
    continues: bool


def write_manifest(path: str | Path, facts: dict[str, Any], shards: list[Shard]) -> dict[str, Any]:
    """Write a manifest and return its content; facts: the entries besides shards and sums."""
    tokens = sum(shard.count for shard in shards)
    nbytes = sum(shard.bytes for shard in shards)
    totals = {
        "count": tokens,
        "bytes": nbytes,
        "documents": sum(shard.documents for shard in shards),
        "bytes_per_token": nbytes / tokens if tokens else None,
        "shards": [asdict(shard) for shard in shards],
    }
    content = {**facts, **totals}
    with atomic_output(path) as file:
        whole = {"format": MANIFEST_FORMAT, "version": VERSION, **content}
        file.write(json.dumps(whole, indent=1).encode() + b"\n")
    return content


def write_progress(path: str, run: Run, shards: list[Shard]) -> None:
    """Write the resume key of a job and its finished shards."""
    job = {"format": PROGRESS_FORMAT, "version": PROGRESS_VERSION, "run": run}
    with atomic_output(path) as file:
        file.writelines(map(_line, [job, *map(asdict, shards)]))


def add_progress(path: str, shard: Shard) -> None:
    """Append a finished shard to the progress file that this process wrote, and sync the file."""
    with output_errors(path), open(path, "ab") as file:
        file.write(_line(asdict(shard)))
        file.flush()
        os.fsync(file.fileno())


def shard_files(path: str | Path, *, may_be_foreign: bool = False) -> list[str]:
    """Return the paths of a manifest's shards; InputError if a shard has another size than listed.

    may_be_foreign: accept shards without side files. Of such shards, only the number of ids is
    checked, by the type of numbers that the manifest names.
    """
    content, shards = read_facts(path)
    dtype = content.get("dtype")
    paths = [os.path.join(os.path.dirname(path), shard.file) for shard in shards]
    for shard_path, shard in zip(paths, shards, strict=True):
        if not may_be_foreign or has_side_file(shard_path):
            file = describe_bin_file(shard_path)
            found = {"count": file.count, "bytes": file.text_bytes, "documents": file.documents}
        elif dtype in _DTYPES:
            found = {"count": numbers_of(shard_path, dtype)[2]}
        else:
            continue
        for name, what in (("count", "ids"), ("bytes", "bytes of text"), ("documents",) * 2):
            listed_size = getattr(shard, name)
            if found.get(name, listed_size) != listed_size:
                raise InputError(
                    f"{shard_path} has {found[name]} {what}, but {path} lists {listed_size}: "
                    "it was replaced"
                )
    return paths


def read_facts(path: str | Path) -> tuple[dict[str, Any], list[Shard]]:
    """Return the content of a manifest, and its shards in order.

    Raises InputError for an unreadable or damaged file and for a file of another kind.
    """
    failure = f"is not a list of token shards, as {spelled('--shard-tokens')} writes OUT.json"
    return _read(path, json.loads, MANIFEST_FORMAT, VERSION, failure)


def read_progress(path: str | Path) -> tuple[dict[str, Any], list[Shard]]:
    """Return the content of a progress file, and the finished shards; InputError if damaged."""
    failure = "does not say what a run has finished"
    content, shards = _read(path, _parse_progress, PROGRESS_FORMAT, PROGRESS_VERSION, failure)
    if not isinstance(content.get("run"), dict):
        raise InputError(f"{path} {failure} (its run is not an object)")
    return content, shards


def _parse_progress(data: bytes) -> dict[str, Any]:
    """Return the lines of a progress file as one object, with an entry "shards".

    An incomplete last line, which a killed job may have left, is ignored.
    """
    if data.startswith(b"{\n"):  # a file of version 1 is a single object: let `_read` refuse it
        return {**json.loads(data)}
    job, _, rest = data.partition(b"\n")
    lines = rest[: rest.rfind(b"\n") + 1].splitlines()
    return {**json.loads(job), "shards": [json.loads(line) for line in lines]}


def _read(
    path: str | Path,
    parse: Callable[[bytes], dict[str, Any]],
    format: str,
    version: int,
    failure: str,
) -> tuple[dict[str, Any], list[Shard]]:
    """Return the content of a manifest or progress file, and its shards.

    failure: the beginning of the message about a damaged file.
    """
    try:
        content = parse(read_whole(path, "list of shards"))
        found = content["format"], content["version"]
        shards = [Shard(**entry) for entry in content["shards"]]
        # Shards are files beside the list, and their sums are the sums of the list.
        for shard in shards:
            if not isinstance(shard.file, str) or os.path.basename(shard.file) != shard.file:
                raise ValueError(
                    f"{quote(str(shard.file))} is not a file in its folder: name token files of "
                    "other folders one by one"
                )
        for name in ("count", "bytes", "documents"):
            total = sum(getattr(shard, name) for shard in shards)
            if content.get(name, total) != total:
                raise ValueError(f"{name} is {quote(content[name])}, but {total} by its shards")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        kind = kind_of(str(path))
        what = f"it is {kind}" if kind not in (None, TEXT, MANIFEST, PROGRESS) else error
        raise InputError(f"{path} {failure} ({what})") from error
    if found[0] != format or found[1] != version:
        raise InputError(
            f"{path}: {quote(found[0])} version {quote(found[1])}, not {format} {version}"
        )
    return content, shards


def is_whole(path: str, shard: Shard) -> bool:
    """Whether a shard, its side file and its index exist and agree."""
    try:
        file = describe_bin_file(path)
        if file.layout.has_index and not os.path.isfile(index_name(path)):
            return False
    except InputError:
        return False
    facts = file.count, file.text_bytes, file.documents, file.continues
    return facts == (shard.count, shard.bytes, shard.documents, shard.continues)


def digest(run: Run) -> str:
    """Return the SHA-256 of a resume key."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


# Entries that `merge_shards` does not copy from the parts' manifests.
_OWN = ("format", "version", "part", "work_sha256", "shards")


def merge_shards(
    manifests: Sequence[str | Path], output: str | Path, *, force: bool = False
) -> dict[str, Any]:
    """Merge the manifests of all parts of a job into one manifest; return its content.

    manifests: paths of the manifests of all parts, each once, in any order. output: path of the new
    manifest, in the folder of the shards. force: replace even a file of another kind.

    Raises:
        InputError: a manifest is not that of a part, parts are missing or of different jobs, or a
            shard is missing or damaged.
        OutputError: the output would replace a file of another kind, or can't be written.
    """
    check_outputs([Output(str(output), MANIFEST)], map(str, manifests), force=force)
    parts = _in_order(manifests)
    _check_folder([*manifests, output])
    all_shards = []
    for path, _, shards in parts:
        for shard in shards:
            name = os.path.join(os.path.dirname(path), shard.file)
            if not is_whole(name, shard):
                raise InputError(f"{name} is missing or differs from {path}: do that part again")
        all_shards += shards
    full = [shard for shard in all_shards if shard.count or shard.documents]
    facts = {name: value for name, value in parts[0][1].items() if name not in _OWN}
    facts["run_sha256"] = digest({"parts": [content["run_sha256"] for _, content, _ in parts]})
    return write_manifest(output, facts, full or all_shards[:1])


_Manifest = tuple[str | Path, dict[str, Any], list[Shard]]  # a path, and the result of `read_facts`


def _in_order(manifests: Sequence[str | Path]) -> list[_Manifest]:
    """Read manifests, and return them in the order of their parts.

    Raises InputError unless they are the manifests of all parts of one job.
    """
    found: dict[int, _Manifest] = {}
    first: dict[str, Any] = {}
    for path in manifests:
        content, shards = read_facts(path)
        part = _part_of(content, path)
        if not isinstance(content.get("run_sha256"), str):
            raise InputError(f"{path} does not say of which run it is: do that part again")
        # Compare the manifest with the first one, and list it by its part's number.
        first = first or {**content, "path": path, "of": part.count}
        for fact in ("fingerprint", "layout", "dtype", "shard_tokens", "work_sha256"):
            if content.get(fact) != first.get(fact):
                what = "the text, or how it was read," if fact == "work_sha256" else fact
                raise InputError(
                    f"{first['path']} and {path} are not parts of one job: {what} differs"
                )
        if part.count != first["of"]:
            raise InputError(f"{path} is part {part}, but {first['path']} one of {first['of']}")
        if part.number in found:
            raise InputError(
                f"{path} and {found[part.number][0]} are both part {part}: name one manifest of "
                f"each part; those of a {spelled('--split')} are merged by themselves"
            )
        found[part.number] = path, content, shards
    # All manifests must belong to one output, and each part of the output must have one.
    names = [(Path(path).stem, number) for number, (path, _, _) in found.items()]
    _check_one_output(names, first["of"])
    numbers = range(1, first["of"] + 1)
    missing = [f"{number}/{first['of']}" for number in numbers if number not in found]
    if missing:
        raise InputError(f"parts are missing: {listed(missing)}")
    return [found[number] for number in numbers]


def _check_one_output(names: Sequence[tuple[str, int]], count: int) -> None:
    """Raise InputError if some manifests are of a split (`--split`) and others are not.

    names: a manifest's name without ending, and its part's number. count: number of parts.
    """
    stems = {name.replace(f"{number}-of-{count}", "%P"): name for name, number in names}
    shortest = min(stems, key=len)
    for stem, name in stems.items():
        if "%P" in shortest and stem.startswith(f"{shortest}-"):
            raise InputError(
                f"{name}.json is named like a {spelled('--split')} of {shortest}.json: the "
                "manifests of a split are merged by themselves"
            )


def _part_of(content: dict[str, Any], path: str | Path) -> Part:
    try:
        number, count = map(int, content["part"].split("/"))
        return Part(number, count)
    except (KeyError, ValueError, AttributeError, LlmgpuError):
        shown = f" ({quote(str(content['part']))})" if "part" in content else ""
        raise InputError(
            f"{path} is not the manifest of a part{shown}: it was written without "
            f"{spelled('--part')}"
        ) from None


def _check_folder(paths: Sequence[str | Path]) -> None:
    """Raise InputError unless all paths are in one folder, because manifests name no folders."""
    folders = [os.path.dirname(os.path.realpath(path)) for path in paths]
    for path, folder in zip(paths, folders, strict=True):
        if folder != folders[0]:
            raise InputError(
                f"{path} is not in the folder of {paths[0]}: a manifest lists files of its own "
                "folder, so move the shards with their side files and manifests to one"
            )
