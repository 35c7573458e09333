"""--part, merge-word-counts and merge-shards: the parts together are what one command makes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from llmgpu.bpe.words.counts_file import load_counts
from llmgpu.tokens.bin import read_side_file
from llmgpu.tokens.manifest import shard_files
from tests.cli.conftest import Run, fails, killed_before
from tests.conftest import require_adapter

SPECIAL = ("--special-token", "<|end|>", "--device", "cpu", "-q")
COUNT = ("--counts-only", "--save-counts")
TOKENIZE = ("tokenize", "--vocab", "v.bin", "--device", "cpu", "-q")
SHARDS = (*TOKENIZE, "--shard-tokens", "200")


@pytest.fixture
def files(vocab: Path, corpus_text: bytes) -> tuple[str, ...]:
    """A text, JSON lines of its lines, and an empty file."""
    folder = vocab.parent
    lines = corpus_text.decode().split("\n")
    rows = "".join(json.dumps({"text": line}) + "\n" for line in lines[::3])
    (folder / "lines.jsonl").write_text(rows)
    (folder / "text.txt").write_bytes(corpus_text[:9_000] + b"<|end|>" + corpus_text[-6_000:])
    (folder / "empty.txt").write_bytes(b"")
    return "text.txt", "lines.jsonl", "empty.txt"


def ids_of(manifest: Path) -> tuple[list[int], list[int]]:
    """All ids of a manifest's shards, and where documents start in them."""
    ids: list[int] = []
    starts: list[int] = []
    for path in shard_files(manifest):
        offsets = cast(list[int], read_side_file(path)["document_offsets"])
        starts += [len(ids) + start for start in offsets]
        ids += np.fromfile(path, np.uint16).tolist()
    return ids, starts


@pytest.mark.parametrize(("count", "device"), [(1, "cpu"), (3, "cpu"), (8, "cpu"), (3, "gpu")])
def test_counts_of_all_parts_are_those_of_the_whole(
    llmgpu: Run, vocab: Path, files: tuple[str, ...], count: int, device: str
) -> None:
    folder = vocab.parent
    if device == "gpu":
        require_adapter()
    special = (*SPECIAL[:2], "--device", device, "-q")
    done = llmgpu("bpe-train", *files, *SPECIAL, *COUNT, "whole")
    assert done.returncode == 0, done.stderr
    for number in range(1, count + 1):
        part = ("--part", f"{number}/{count}")
        done = llmgpu("bpe-train", *files, *special, *COUNT, "c-%P", *part)
        assert done.returncode == 0, done.stderr
    names = [f"c-{number}-of-{count}" for number in range(1, count + 1)]
    assert llmgpu("merge-word-counts", *names[::-1], "-o", "sum").returncode == 0
    assert (folder / "sum").read_bytes() == (folder / "whole").read_bytes()
    if count == 3:  # the text is cut, too
        assert all(len(load_counts(folder / name).words) > 0 for name in names)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_shards_of_all_parts_are_those_of_the_whole(
    llmgpu: Run, vocab: Path, files: tuple[str, ...], count: int
) -> None:
    folder = vocab.parent
    assert llmgpu(*SHARDS, *files, "-o", "whole.bin").returncode == 0
    for number in range(1, count + 1):
        part = ("--part", f"{number}/{count}")
        done = llmgpu(*SHARDS, *files, "-o", "p-%P.bin", *part)
        assert done.returncode == 0, done.stderr
    manifests = [f"p-{number}-of-{count}.json" for number in range(count, 0, -1)]
    done = llmgpu("merge-shards", *manifests, "-o", "all.json", "--json")
    assert done.returncode == 0, done.stderr
    assert ids_of(folder / "all.json") == ids_of(folder / "whole.json")
    whole, summary = json.loads((folder / "whole.json").read_text()), json.loads(done.stdout)
    for fact in ("count", "bytes", "documents", "fingerprint"):
        assert summary[fact] == whole[fact]
    every = sorted(path.name for path in folder.glob("p-*.json"))  # as a shell's p-*.json
    done = llmgpu("merge-shards", *every, "-o", "same.json")
    assert f"note: {len(every) - count} side files".encode() in done.stderr
    assert (folder / "same.json").read_bytes() == (folder / "all.json").read_bytes()


def test_a_finished_part_is_skipped(llmgpu: Run, vocab: Path, files: tuple[str, ...]) -> None:
    folder = vocab.parent
    part = ("--part", "1/2", "--json")
    tokenize = (*TOKENIZE[:-1], *files, "-o", "p-%P.npy", *part)
    first = llmgpu(*tokenize)
    assert first.returncode == 0, first.stderr
    written = (folder / "p-1-of-2.npy").stat()
    again = llmgpu(*tokenize)
    assert b"nothing to do" in again.stderr and again.stdout == first.stdout
    assert (folder / "p-1-of-2.npy").stat().st_mtime_ns == written.st_mtime_ns
    count = ("bpe-train", *files, *SPECIAL[:-1], *COUNT, "c-%P", *part)
    first, again = llmgpu(*count), llmgpu(*count)
    assert b"nothing to do" in again.stderr and again.stdout == first.stdout
    for change in ("option", "text", "output", "record", "nested record"):
        if change == "text":
            with open(folder / "text.txt", "ab") as file:
                file.write(b"more")
        elif change == "output":
            os.utime(folder / "p-1-of-2.npy", (1, 1))
        elif change == "record":
            (folder / "p-1-of-2.npy.part.json").write_text('{"format": "llmgpu-part"')
        elif change == "nested record":
            nested = '{"format": "llmgpu-part", "run": ' + "[" * 100_000
            (folder / "p-1-of-2.npy.part.json").write_text(nested)
        more = ("--bos", "0") if change == "option" else ()
        done = llmgpu(*tokenize, *more)
        assert done.returncode == 0 and b"nothing to do" not in done.stderr, change
        llmgpu(*tokenize)


def test_a_part_killed_before_its_record_is_done_again(
    llmgpu: Run, vocab: Path, files: tuple[str, ...]
) -> None:
    folder = vocab.parent
    tokenize = (*TOKENIZE[:-1], *files, "-o", "p.bin", "--part", "2/2")
    assert llmgpu(*tokenize).returncode == 0
    whole = (folder / "p.bin").read_bytes()
    (folder / "p.bin.part.json").unlink()
    killed_before("*.part.json", 1, folder, *tokenize)
    done = llmgpu(*tokenize)
    assert done.returncode == 0 and b"nothing to do" not in done.stderr
    assert (folder / "p.bin").read_bytes() == whole
    assert b"nothing to do" in llmgpu(*tokenize).stderr


def test_counts_of_tokens_add_up(llmgpu: Run, vocab: Path, files: tuple[str, ...]) -> None:
    count = ("count", *files, "--vocab", "v.bin", "--device", "cpu", "-q", "--json")
    whole = json.loads(llmgpu(*count).stdout)
    parts = [json.loads(llmgpu(*count, "--part", f"{k}/3").stdout) for k in (1, 2, 3)]
    for fact in ("text_bytes", "documents"):
        assert sum(part[fact] for part in parts) == whole[fact]
    assert [sum(part["tokens"][0] for part in parts)] == whole["tokens"]


def test_a_part_by_the_environment(
    llmgpu: Run, vocab: Path, files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    whole = llmgpu(*TOKENIZE, *files, "-o", "whole.npy")
    assert whole.returncode == 0  # nothing but --part reads the environment
    done = llmgpu(*TOKENIZE[:-1], *files, "-o", "%P.npy", "--part", "auto")
    assert b"part 2/2, by RANK and WORLD_SIZE" in done.stderr
    assert (vocab.parent / "2-of-2.npy").exists()
    fails(
        llmgpu(*TOKENIZE, *files, "-o", "p.npy", "--part", "auto"),
        2,
        "which stands for the part, in the name",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([*TOKENIZE, "text.txt", "--part", "3"], 2, "'3' is not a part: use I/N"),
        ([*TOKENIZE, "text.txt", "--part", "0/2"], 2, "numbered from 1/N to N/N"),
        ([*TOKENIZE, "text.txt", "--part", "3/2"], 2, "numbered from 1/N to N/N"),
        ([*TOKENIZE, "text.txt", "--part", f"1/{'9' * 5000}"], 2, "is not a part"),
        ([*TOKENIZE, "--part", "1/2"], 1, "--part needs files, not -"),
        ([*TOKENIZE, "text.txt", "--limit", "9", "--part", "1/2"], 1, "combined with --limit"),
        ([*TOKENIZE, "text.txt", "--decode", "--part", "1/2"], 2, "combined with --decode"),
        (["bpe-train", "text.txt", "--part", "1/2"], 2, "--part needs CORPUS and --counts-only"),
        (["merge-word-counts", "v.bin", "-o", "s"], 1, "v.bin: not a file of llmgpu word counts"),
        (["merge-word-counts", "v.bin", "-o", "v.bin"], 1, "v.bin is an input"),
        (["merge-word-counts", "a", "-o", "s", "--weight", "b=2"], 2, "not one of COUNTS"),
        (["merge-word-counts", "a", "-o", "s", "--weight", "a=0"], 2, "write code.counts=3"),
        (["merge-shards", "text.txt", "-o", "m"], 1, "is not a list of token shards"),
        (["merge-shards", "v.bin", "-o", "m"], 1, "OUT.json (it is a vocabulary)"),
    ],
)
def test_what_is_refused(
    llmgpu: Run, files: tuple[str, ...], arguments: list[str], code: int, message: str
) -> None:
    fails(llmgpu(*arguments), code, message)


def test_parts_that_do_not_go_together(llmgpu: Run, vocab: Path, files: tuple[str, ...]) -> None:
    folder = vocab.parent
    for number in (1, 2):
        part = ("--part", f"{number}/2")
        assert llmgpu(*SHARDS, *files, "-o", "p-%P.bin", *part).returncode == 0
    assert llmgpu(*SHARDS, *files, "-o", "whole.bin").returncode == 0
    assert llmgpu(*SHARDS, *files, "-o", "b-%P.bin", "--bos", "0", *part).returncode == 0
    one, two, other = "p-1-of-2.json", "p-2-of-2.json", "b-2-of-2.json"
    merge = ("merge-shards", "-o", "all.json")
    fails(llmgpu(*merge, one), 1, "parts are missing: '2/2'")
    fails(llmgpu(*merge, one, two, two), 1, "are both part 2/2: name one manifest of each part")
    fails(llmgpu(*merge, one, "whole.json"), 1, "whole.json is not the manifest of a part")
    content = json.loads((folder / two).read_text())
    del content["run_sha256"]
    (folder / "damaged.json").write_text(json.dumps(content))
    fails(llmgpu(*merge, one, "damaged.json"), 1, "damaged.json does not say of which run it is")
    fails(llmgpu(*merge, one, other), 1, "are not parts of one job: the text, or how it was read")
    fails(llmgpu("merge-shards", one, two, "-o", one), 1, f"{one} is an input")
    fails(llmgpu("merge-shards", one, two, "-o", "v.bin"), 1, "v.bin is a vocabulary")
    (folder / "elsewhere").mkdir()
    fails(llmgpu("merge-shards", one, two, "-o", "elsewhere/all.json"), 1, "is not in the folder")
    (folder / "p-2-of-2-000000.bin").unlink()
    fails(llmgpu(*merge, one, two), 1, "p-2-of-2-000000.bin is missing or differs from")


def test_a_part_does_not_replace_another(llmgpu: Run, vocab: Path, files: tuple[str, ...]) -> None:
    folder = vocab.parent
    for command in (
        (*TOKENIZE, *files, "-o", "p.bin"),
        (*SHARDS, *files, "-o", "s.bin"),
        ("bpe-train", *files, *SPECIAL, *COUNT, "c"),
    ):
        assert llmgpu(*command, "--part", "1/2").returncode == 0
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        fails(llmgpu(*command, "--part", "2/2"), 1, "has part '1/2', which part 2/2 would replace")
        assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_manifests_of_a_split_are_merged_by_themselves(
    llmgpu: Run, vocab: Path, files: tuple[str, ...]
) -> None:
    split = ("-o", "p-%P.bin", "--split", "val=0.5")
    for number in (1, 2):
        done = llmgpu(*SHARDS, *files, *split, "--part", f"{number}/2")
        assert done.returncode == 0, done.stderr
    merge = ("merge-shards", "-o", "all.json")
    for first, second in (("", "-val"), ("-val", "")):
        mixed = llmgpu(*merge, f"p-1-of-2{first}.json", f"p-2-of-2{second}.json")
        fails(mixed, 1, "-val.json is named like a --split of p-%P.json: the manifests of a split")
    for name in ("", "-val"):
        done = llmgpu(*merge, f"p-1-of-2{name}.json", f"p-2-of-2{name}.json", "--force")
        assert done.returncode == 0, done.stderr
