"""``llmgpu tokenize --shard-tokens``: shards as a process writes them, and goes on with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.tokens.manifest import read_progress
from tests.cli.conftest import Run, fails, killed_before
from tests.harness.arguments import overridden

OPTIONS: tuple[str, ...] = ("--vocab", "v.bin", "--format", "bin", "--device", "cpu")


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    """A text of many shards and many documents."""
    rng = np.random.default_rng(5)
    letters = rng.integers(97, 105, (150_000, 12), dtype=np.uint8)
    letters[:, -1] = ord(" ")
    letters[::1000, -1] = ord("\n")
    path = tmp_path / "long.txt"
    path.write_bytes(letters.tobytes())
    (tmp_path / "made").mkdir()
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_after(shards: int, folder: Path, *arguments: str) -> None:
    """Kill the command after this many finished shards, before the next is in place."""
    killed_before("out-*.bin", shards + 1, folder, *arguments)
    assert_unfinished(shards, folder / "made")


def assert_unfinished(shards: int, made: Path) -> None:
    assert len(read_progress(made / "out.progress.json")[1]) == shards
    assert not (made / "out.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["raw", "llmc"])
def test_a_killed_run_is_resumed(
    llmgpu: Run, vocab: Path, corpus: Path, long_text: Path, layout: str
) -> None:
    folder, made = long_text.parent, long_text.parent / "made"
    arguments = ("tokenize", "corpus.txt", "long.txt", *OPTIONS, "--line-documents")
    arguments += ("--shard-tokens", "10K", "--layout", layout)
    (folder / "alone").mkdir()
    alone = llmgpu(*arguments, "-o", "alone/out.bin", "-q")
    assert alone.returncode == 0, alone.stderr
    arguments += ("-o", "made/out.bin")
    kill_after(2, folder, *arguments)
    # The second run dies too, when a fourth shard of its own is in place and not noted yet.
    killed_before("out.progress.json", 4, folder, *arguments, "--resume")
    assert_unfinished(5, made)
    kept = {path: path.stat() for path in (made / f"out-{i:06d}.bin" for i in range(5))}
    done = llmgpu(*arguments, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert "resuming from made/out.progress.json: 5 shards" in done.stderr.decode()
    for path, before in kept.items():
        after = path.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert files_of(made) == files_of(folder / "alone")
    manifest: dict[str, Any] = json.loads((made / "out.json").read_bytes())
    summary = json.loads(done.stdout)
    assert (manifest["count"], manifest["bytes"]) == (summary["tokens"], summary["text_bytes"])
    assert manifest["bytes"] == corpus.stat().st_size + long_text.stat().st_size
    assert manifest["documents"] == summary["documents"]
    names = [f"made/{shard['file']}" for shard in manifest["shards"]]
    back = llmgpu("tokenize", *names, *OPTIONS[:4], "--decode")
    assert back.stdout == corpus.read_bytes() + long_text.read_bytes()
    assert llmgpu("tokenize", "made/out.json", *OPTIONS[:4], "--decode").stdout == back.stdout
    onto = llmgpu("tokenize", "made/out.json", *OPTIONS[:4], "--decode", "-o", "made/out.json")
    fails(onto, 1, "made/out.json is an input")


def test_a_run_of_something_else_is_refused(llmgpu: Run, vocab: Path, long_text: Path) -> None:
    folder = long_text.parent
    arguments = ("tokenize", "long.txt", *OPTIONS, "-o", "made/out.bin", "--shard-tokens", "10K")
    kill_after(1, folder, *arguments)
    resumed = (*arguments, "--resume")
    fails(llmgpu(*resumed, "--limit", "1MB"), 1, "another run: limit was null and is 1000000 now")
    fails(llmgpu(*resumed, "--match", "greedy"), 1, 'match was "bpe" and is "greedy" now (and')
    with open(long_text, "ab") as text:
        text.write(b"more")
    fails(llmgpu(*resumed), 1, 'corpus files (name, bytes, time of change) was ["long.txt", 1800')
    assert (folder / "made" / "out.progress.json").exists()


def test_nothing_to_resume(llmgpu: Run, vocab: Path, corpus: Path) -> None:
    folder = corpus.parent / "made"
    folder.mkdir()
    arguments = ("tokenize", "corpus.txt", *OPTIONS, "-o", "made/out.bin", "--shard-tokens", "1M")
    done = llmgpu(*arguments, "--resume")
    assert done.returncode == 0
    assert b"made/out.progress.json lists no finished shard" in done.stderr
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = llmgpu(  # the device is not needed
        *overridden(*arguments, "--device", "no such GPU"), "--resume", "--json"
    )
    assert again.returncode == 0 and b"nothing to do" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    manifest = json.loads((folder / "out.json").read_bytes())
    assert json.loads(again.stdout)["tokens"] == manifest["count"]
    other = llmgpu(*arguments, "--resume", "--eos", "65")
    assert other.returncode == 0 and b"starting from scratch" in other.stderr
    assert set(files_of(folder)) == {"out-000000.bin", "out-000000.bin.json", "out.json"}


def test_decoding_checks_the_counts_of_a_manifest(llmgpu: Run, vocab: Path, corpus: Path) -> None:
    path = corpus.parent / "out.json"
    arguments = ("tokenize", "corpus.txt", *OPTIONS, "-o", "out.bin", "--shard-tokens", "1M")
    assert llmgpu(*arguments, "-q").returncode == 0
    manifest = json.loads(path.read_bytes())
    (shard,) = manifest["shards"]
    for changes, message in (
        ({"documents": 9}, "documents is 9, but 1 by its shards"),
        ({"count": 1, "shards": [shard | {"count": 1}]}, "lists 1: it was replaced"),
        ({"shards": [shard | {"count": "1"}]}, "is not a list of token shards"),
        ({"bytes": 1, "shards": [shard | {"bytes": 1}]}, "bytes of text, but out.json lists 1"),
        ({"documents": 2, "shards": [shard | {"documents": 2}]}, "1 documents, but out.json lists"),
    ):
        path.write_text(json.dumps(manifest | changes))
        fails(llmgpu("tokenize", "out.json", *OPTIONS[:4], "--decode"), 1, message)
    (corpus.parent / "out-000000.bin.json").unlink()
    path.write_text(json.dumps(manifest))
    foreign = ("tokenize", "out.json", *OPTIONS[:4], "--decode", "--token-dtype", "uint16")
    assert llmgpu(*foreign).stdout == corpus.read_bytes()
    path.write_text(json.dumps(manifest | {"count": 1, "shards": [shard | {"count": 1}]}))
    fails(llmgpu(*foreign), 1, "ids, but out.json lists 1: it was replaced")


def test_devices_write_the_same_shards(
    llmgpu: Run, vocab: Path, corpus: Path, device_name: str
) -> None:
    arguments = ("tokenize", "corpus.txt", *OPTIONS[:4], "--shard-tokens", "1000")
    folders = corpus.parent / "a", corpus.parent / "b"
    for folder, device in zip(folders, (device_name, "cpu"), strict=True):
        folder.mkdir()
        done = llmgpu(*arguments, "-o", f"{folder.name}/out.bin", "--device", device)
        assert done.returncode == 0, done.stderr
    assert len(files_of(folders[0])) > 10
    assert files_of(folders[0]) == files_of(folders[1])


@pytest.mark.parametrize("layout", ["raw", "llmc"])
def test_layouts_come_back_through_pipes(llmgpu: Run, vocab: Path, layout: str) -> None:
    arguments = ("tokenize", *OPTIONS, "--layout", layout, "-q")
    ids = llmgpu(*arguments, stdin=b"some text")
    assert ids.returncode == 0, ids.stderr
    assert llmgpu(*arguments, "--decode", stdin=ids.stdout).stdout == b"some text"


def test_a_damaged_llmc_file(llmgpu: Run, vocab: Path, corpus: Path) -> None:
    arguments = ("--layout", "llmc", *OPTIONS)
    assert llmgpu("tokenize", "corpus.txt", "-o", "x.bin", *arguments).returncode == 0
    decode = ("tokenize", "--decode", *arguments)
    path = corpus.parent / "x.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    fails(llmgpu(*decode, "x.bin"), 1, "after a header of 1024 bytes: they don't belong together")
    path.write_bytes(b"\1" + whole[1:])
    fails(
        llmgpu(*decode, "x.bin"), 1, "x.bin is not the file that its side file x.bin.json describes"
    )
    path.write_bytes(whole[:8] + b"\1\0\0\0" + whole[12:])
    fails(
        llmgpu(*decode, "x.bin"), 1, "x.bin is not the file that its side file x.bin.json describes"
    )
    fails(llmgpu(*decode, stdin=whole[:99]), 1, "-: 99 bytes, but a header takes 1024")
    fails(llmgpu(*decode, stdin=whole[:-1]), 1, "ends after")


def test_options_that_do_not_go_together(llmgpu: Run, vocab: Path) -> None:
    fails(llmgpu("tokenize", "--vocab", "v.bin", "--layout", "llmc"), 2, "or -o NAME.bin")
    run = ("tokenize", *OPTIONS)
    fails(llmgpu(*run, "--resume"), 2, "--resume needs --shard-tokens N")
    run += ("--shard-tokens", "5")
    fails(llmgpu(*run), 2, "--shard-tokens needs --format bin and -o OUT.bin")
    fails(llmgpu(*run, "--decode"), 2, "can't be combined with --decode")
    fails(llmgpu(*run, "--count"), 2, "can't be combined with --count")
    fails(llmgpu(*run, "-o", "o.bin", "--resume"), 1, "can't tell whether - is the same text")
    for number, message in [
        ("0", "'0' is less than one token"),
        ("-5", "'-5' is less than one token"),
        ("3.5", "'3.5' is not a whole number; write 4096, 100M or 1B"),
        ("1MB", "'1MB' is not a number of tokens; write 4096, 100M or 1B"),
        ("x", "is not a number of tokens"),
    ]:
        fails(llmgpu("tokenize", *OPTIONS, "--shard-tokens", number), 2, message)


def test_a_parquet_file_becomes_shards(llmgpu: Run, vocab: Path, corpus: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = corpus.read_text().splitlines()
    rows = [*lines[:300], None, *lines[300:], None]
    table = pa.table({"body": pa.array(rows, pa.string())})
    parquet.write_table(table, corpus.parent / "c.parquet", row_group_size=100)
    arguments = ("tokenize", "c.parquet", "--text-field", "body", *OPTIONS, "-o", "o.bin")
    done = llmgpu(*arguments, "--shard-tokens", "1000")
    assert done.returncode == 0, done.stderr
    assert b"note: 2 rows without text skipped" in done.stderr
    manifest = json.loads((corpus.parent / "o.json").read_bytes())
    assert manifest["documents"] == len(lines)
    assert manifest["bytes"] == sum(map(len, lines))
    names = [shard["file"] for shard in manifest["shards"]]
    back = llmgpu("tokenize", *names, *OPTIONS, "--decode")
    assert back.stdout == "".join(lines).encode()
    fails(
        llmgpu(*overridden(*arguments, "--text-field", "text")),
        1,
        "the columns are: 'body' (string)",
    )


def test_tokens_around_documents_stand_for_no_text(llmgpu: Run, vocab: Path, corpus: Path) -> None:
    text = corpus.read_bytes().replace(b"0", b"")
    corpus.write_bytes(text)
    arguments = ("tokenize", "corpus.txt", *OPTIONS, "-o", "o.bin", "--line-documents")
    arguments += ("--bos", "0", "--eos", str(ord("0")), "--shard-tokens", "1000")
    done = llmgpu(*arguments)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((corpus.parent / "o.json").read_bytes())
    assert manifest["bytes"] == len(text)


def test_other_tokens_around_documents_are_another_run(
    llmgpu: Run, vocab: Path, long_text: Path
) -> None:
    arguments = ("tokenize", "long.txt", *OPTIONS, "-o", "made/out.bin", "--shard-tokens", "10K")
    kill_after(1, long_text.parent, *arguments)
    done = llmgpu(*arguments, "--resume", "--eos", "0")
    fails(done, 1, "another run: token behind documents was null and is 0 now")


def test_documents_are_decoded_to_json_lines(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    texts = ["low é", "", *corpus.read_text().splitlines()[:9], "new\nest", ""]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (corpus.parent / "d.jsonl").write_text("\n".join(lines) + "\n")
    encode = ("tokenize", "--vocab", "v.bin", "--device", "cpu", "-q", "d.jsonl", "-o")
    decode = ("tokenize", "--vocab", "v.bin", "-q", "--decode")
    for made, read, more in (("a.bin", "a.bin", ()), ("s.bin", "s.json", ("--shard-tokens", "9"))):
        assert llmgpu(*encode, made, *more).returncode == 0
        assert llmgpu(*decode, read, "-o", "back.jsonl", "--force").returncode == 0
        assert (corpus.parent / "back.jsonl").read_text().splitlines() == lines
    assert llmgpu(*decode, "s-000001.bin", "-o", "one.jsonl").returncode == 0
    lines = (corpus.parent / "one.jsonl").read_text().splitlines()
    part = "".join(json.loads(line)["text"] for line in lines)
    assert part == llmgpu(*decode, "s-000001.bin").stdout.decode()
    (corpus.parent / "d.jsonl").write_text('{"text": ""}\n' * 2)
    assert llmgpu(*encode, "empty.bin").returncode == 0
    assert llmgpu(*decode, "empty.bin", "-o", "back.jsonl", "--force").returncode == 0
    assert (corpus.parent / "back.jsonl").read_text() == '{"text": ""}\n' * 2
    assert llmgpu(*encode, "a.npy").returncode == 0
    fails(
        llmgpu(*decode, "a.npy", "-o", "x.jsonl"),
        1,
        "does not say where its documents begin, as a .bin",
    )
    assert not (corpus.parent / "x.jsonl").exists()
