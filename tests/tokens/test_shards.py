"""Token shards: cut at exact borders, laid out as other programs read them, and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.texts import replaced_bytes
from llmgpu.errors import InputError, OutputError
from llmgpu.tokens.bin import read_side_file
from llmgpu.tokens.formats import LAYOUTS, open_writer, read_tokens
from llmgpu.tokens.shards import ShardNames, ShardWriter, finished_job
from llmgpu.tokens.sinks import TokenSink
from tests.conftest import examples
from tests.tokens.test_formats import (
    cuts_strategy,
    documents_strategy,
    ids_of,
    starts_of,
    write_documents,
)

SMALL = byte_vocabulary("none", "hf")
LARGE = replace(SMALL, tokens=SMALL.tokens + (b"ab",) * 69_744)
RUN = {"limit": None, "files": [["a.txt", 5, 1], ["b.txt", 6, 2]]}
DOCUMENTS = [[1, 2, 3], [], [4, 5, 6, 7, 8], [9], [10, 11]]


def shards_in(folder: Path, vocabulary: Vocabulary = SMALL, tokens: int = 4, **options: Any) -> Any:
    return ShardWriter(folder / "out.bin", vocabulary, tokens, run=RUN, **options)


def write_bytes(writer: TokenSink, values: list[int]) -> None:
    writer.write(EncodedSlice(ids_of(*values), starts_of(0), len(values)))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_shards(folder: Path) -> tuple[dict[str, Any], list[list[int]]]:
    """Return the manifest, and the documents put together from the shards that it lists."""
    manifest = json.loads((folder / "out.json").read_bytes())
    documents: list[list[int]] = []
    for shard in manifest["shards"]:
        side: Any = read_side_file(folder / shard["file"])
        assert {name: side[name] for name in ("count", "bytes", "documents", "continues")} == {
            name: shard[name] for name in ("count", "bytes", "documents", "continues")
        }
        ids = [i for block in read_tokens(folder / shard["file"], "bin") for i in block.tolist()]
        offsets = side["document_offsets"]
        if side["continues"]:
            documents[-1] += ids[: [*offsets, len(ids)][0]]
        documents += [ids[begin:end] for begin, end in pairwise([*offsets, len(ids)])]
    return manifest, documents


@pytest.mark.parametrize("layout", ["raw", "llmc"])
def test_shards_hold_the_documents(tmp_path: Path, layout: str) -> None:
    @settings(max_examples=examples(60))
    @given(documents_strategy, cuts_strategy, st.integers(1, 9), st.booleans())
    def check(documents: list[list[int]], cuts: list[int], tokens: int, small: bool) -> None:
        vocabulary = SMALL if small else LARGE
        documents = [[i % vocabulary.size for i in document] for document in documents]
        with shards_in(tmp_path, vocabulary, tokens, layout=layout) as writer:
            write_documents(writer, documents, cuts)
        manifest, found = read_shards(tmp_path)
        assert found == documents
        everything = [i for document in documents for i in document]
        assert (writer.ids, writer.documents) == (len(everything), len(documents))
        counts = [shard["count"] for shard in manifest["shards"]]
        assert sum(counts) == manifest["count"] == len(everything)
        assert set(counts[:-1]) <= {tokens} and counts[-1] <= tokens
        assert counts[-1] > 0 or len(counts) == 1
        assert manifest["documents"] == len(documents)
        lengths = [len(vocabulary.tokens[i]) for i in everything]
        assert manifest["bytes"] == sum(lengths)
        names = {shard["file"] for shard in manifest["shards"]}
        assert set(os.listdir(tmp_path)) == {"out.json"} | names | {f"{n}.json" for n in names}

    check()


def test_bytes_of_text_are_those_of_all_ids_but_the_added_ones(tmp_path: Path) -> None:
    """Ids of several blocks, of tokens of one byte and of two; an added id stands for no text."""
    ids = np.tile(np.array([5, 300, 7, 301, 2], np.uint32), 30_000)
    with shards_in(tmp_path, LARGE, 90_000, special=SpecialOptions(bos=7, eos=301)) as writer:
        writer.write(EncodedSlice(ids, starts_of(0), 1))
    manifest, found = read_shards(tmp_path)
    assert found == [ids.tolist()]
    assert manifest["bytes"] == 30_000 * (1 + 2 + 0 + 0 + 1)
    assert [shard["bytes"] for shard in manifest["shards"]] == [18_000 * 4, 12_000 * 4]


def test_the_manifest(tmp_path: Path) -> None:
    with shards_in(tmp_path, layout="llmc") as writer:
        write_documents(writer, DOCUMENTS, [])
    manifest = json.loads((tmp_path / "out.json").read_bytes())
    assert manifest == {
        "format": "llmgpu-token-shards",
        "version": 1,
        "dtype": "uint16",
        "byte_order": "little",
        "layout": "llmc",
        "offset": 1024,
        "shard_tokens": 4,
        "count": 11,
        "bytes": 11,
        "documents": 5,
        "bytes_per_token": 1.0,
        "vocabulary_size": 256,
        "fingerprint": SMALL.fingerprint,
        "run_sha256": manifest["run_sha256"],  # the next test takes others
        "shards": [
            {"file": "out-000000.bin", "count": 4, "bytes": 4, "documents": 3, "continues": False},
            {"file": "out-000001.bin", "count": 4, "bytes": 4, "documents": 0, "continues": True},
            {"file": "out-000002.bin", "count": 3, "bytes": 3, "documents": 2, "continues": False},
        ],
    }


def test_a_finished_job_is_known_by_its_key_and_its_shards(tmp_path: Path) -> None:
    job = tmp_path / "out.bin", SMALL, 4, "llmc"
    assert finished_job(*job, RUN) is None
    with shards_in(tmp_path, layout="llmc") as writer:
        write_documents(writer, DOCUMENTS, [])
    manifest = json.loads((tmp_path / "out.json").read_bytes())
    assert finished_job(*job, RUN) == manifest
    assert finished_job(*job, RUN | {"limit": 3}) is None
    assert finished_job(tmp_path / "out.bin", SMALL, 5, "llmc", RUN) is None
    assert finished_job(tmp_path / "out.bin", SMALL, 4, "raw", RUN) is None
    shard = tmp_path / "out-000001.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + b"x")
    assert finished_job(*job, RUN) is None
    shard.write_bytes(data)
    del manifest["run_sha256"]  # as earlier versions wrote it
    (tmp_path / "out.json").write_text(json.dumps(manifest))
    assert finished_job(*job, RUN) is None


@pytest.mark.parametrize(
    ("vocabulary", "magic", "version", "dtype"),
    [(SMALL, 20240520, 1, np.uint16), (LARGE, 20240801, 7, np.uint32)],
)
def test_a_shard_is_read_as_llm_c_does(
    tmp_path: Path, vocabulary: Vocabulary, magic: int, version: int, dtype: type
) -> None:
    values = [vocabulary.size - 1, 0, 7, 8, 9, 10, 11]
    with shards_in(tmp_path, vocabulary, 5, layout="llmc") as writer:
        write_bytes(writer, values)
    for name, expected in [("out-000000.bin", values[:5]), ("out-000001.bin", values[5:])]:
        with open(tmp_path / name, "rb") as file:
            header = np.frombuffer(file.read(256 * 4), np.int32)
            tokens = np.frombuffer(file.read(), dtype)
        assert header[0] == magic and header[1] == version and not header[3:].any()
        assert header[2] == len(tokens)
        assert (tmp_path / name).stat().st_size == 256 * 4 + len(tokens) * np.dtype(dtype).itemsize
        assert tokens.tolist() == expected


def test_more_tokens_than_a_header_can_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"shards of 2147483648 tokens: .* is 2147483647"):
        shards_in(tmp_path, tokens=2**31, layout="llmc")
    shards_in(tmp_path, tokens=2**31 - 1, layout="llmc").abort()
    with pytest.raises(InputError, match="shards of 0 tokens"):
        shards_in(tmp_path, tokens=0)
    monkeypatch.setitem(LAYOUTS, "llmc", replace(LAYOUTS["llmc"], max_tokens=5))
    with (
        pytest.raises(OutputError, match=r"more than 5 tokens, .*: use --shard-tokens"),
        open_writer(tmp_path / "one.bin", "bin", SMALL, layout="llmc") as writer,
    ):
        write_bytes(writer, [1, 2, 3])
        write_bytes(writer, [4, 5, 6])
    assert os.listdir(tmp_path) == []


def interrupted(folder: Path, values: list[int], **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt), shards_in(folder, **options) as writer:
        write_bytes(writer, values)
        raise KeyboardInterrupt


@pytest.mark.parametrize("layout", ["raw", "llmc"])
@pytest.mark.parametrize("done", [0, 3, 4, 5, 9, 12, 13, 17])
def test_a_resumed_run_gives_the_same_bytes(tmp_path: Path, layout: str, done: int) -> None:
    values = list(range(17))
    folders = [tmp_path / "whole", tmp_path / "resumed"]
    for folder in folders:
        folder.mkdir()
    with shards_in(folders[0], layout=layout) as writer:
        write_bytes(writer, values)
    interrupted(folders[1], values[:done], layout=layout)
    kept = max(0, done - 1) // 4
    assert (folders[1] / "out.progress.json").exists() == (kept > 0)
    before = [folders[1] / f"out-{i:06d}.bin" for i in range(kept)]
    times = [path.stat().st_mtime_ns for path in before]
    with shards_in(folders[1], layout=layout, resume=True) as writer:
        assert writer.kept == kept
        for begin in range(0, 17, 3):
            starts = starts_of(0) if begin == 0 else starts_of()
            writer.write(EncodedSlice(ids_of(*values[begin : begin + 3]), starts))
    assert [path.stat().st_mtime_ns for path in before] == times
    assert files_of(folders[1]) == files_of(folders[0])


@pytest.mark.parametrize(
    ("options", "run", "message"),
    [
        ({"tokens": 5}, {}, "progress.json belongs to another run: shard tokens was 4 and is 5"),
        ({"layout": "llmc"}, {}, 'layout was "raw" and is "llmc" now'),
        ({"vocabulary": LARGE}, {}, "vocabulary was"),
        ({}, {"limit": 3}, "limit was null and is 3 now"),
        (
            {},
            {"files": [["a.txt", 5, 1], ["b.txt", 7, 2]]},
            r'files was \["b.txt", 6, 2\] and is \["b.txt", 7, 2\] now',
        ),
        ({}, {"files": [["a.txt", 5, 1]]}, r'files was \["b.txt", 6, 2\] and is null now'),
    ],
)
def test_another_run_is_refused(
    tmp_path: Path, options: dict[str, Any], run: dict[str, Any], message: str
) -> None:
    interrupted(tmp_path, list(range(9)))
    before = files_of(tmp_path)
    arguments: dict[str, Any] = {"vocabulary": SMALL, "tokens": 4} | options
    tokens = arguments.pop("tokens")
    with pytest.raises(InputError, match=message):
        ShardWriter(
            tmp_path / "out.bin", shard_tokens=tokens, run=RUN | run, resume=True, **arguments
        )
    assert files_of(tmp_path) == before


def test_other_ids_than_those_of_the_kept_shards_are_refused(tmp_path: Path) -> None:
    for values in ([0, 1, 2, 9, 4, 5, 6, 7, 8], [0, 1], [0, 1, 2]):
        interrupted(tmp_path, list(range(9)))
        before = files_of(tmp_path)
        with (
            pytest.raises(InputError, match=r"out-000000.bin does not match the text"),
            shards_in(tmp_path, resume=True) as writer,
        ):
            write_bytes(writer, values)
        assert files_of(tmp_path) == before


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("damage", ["missing", "short", "no side file", "other side file"])
def test_shards_from_the_first_damaged_one_on_are_written_again(
    tmp_path: Path, damage: str, number: int
) -> None:
    with shards_in(tmp_path) as writer:
        write_bytes(writer, list(range(14)))
    whole = files_of(tmp_path)
    interrupted(tmp_path, list(range(14)))
    shard, side = tmp_path / f"out-00000{number}.bin", tmp_path / f"out-00000{number}.bin.json"
    if damage == "missing":
        shard.unlink()
    elif damage == "short":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "no side file":
        side.unlink()
    else:
        side.write_bytes((tmp_path / f"out-00000{1 - number}.bin.json").read_bytes())
    with shards_in(tmp_path, resume=True) as writer:
        assert writer.kept == number
        write_bytes(writer, list(range(14)))
    assert files_of(tmp_path) == whole


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": "x"}', b"\xff"])
def test_a_damaged_progress_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "out.progress.json").write_bytes(content)
    with pytest.raises(InputError, match=r"out.progress.json does not say what a run has finished"):
        shards_in(tmp_path, resume=True)


def test_a_progress_file_of_another_format(tmp_path: Path) -> None:
    interrupted(tmp_path, list(range(9)))
    path = tmp_path / "out.progress.json"
    path.write_bytes(path.read_bytes().replace(b'"version": 2', b'"version": 3'))
    with pytest.raises(InputError, match="version 3, not llmgpu-token-shards-in-progress 2"):
        shards_in(tmp_path, resume=True)


def test_a_progress_file_of_an_unreleased_version(tmp_path: Path) -> None:
    """Version 1 was one object; a line without its run has been written by nothing."""
    interrupted(tmp_path, list(range(9)))
    path = tmp_path / "out.progress.json"
    job, *shards = map(json.loads, path.read_bytes().splitlines())
    path.write_text(json.dumps(job | {"version": 1, "shards": shards}, indent=1))
    with pytest.raises(InputError, match="version 1, not llmgpu-token-shards-in-progress 2"):
        shards_in(tmp_path, resume=True)
    del job["run"]
    path.write_text("".join(json.dumps(each) + "\n" for each in (job, *shards)))
    with pytest.raises(InputError, match=r"what a run has finished \(its run is not an object\)"):
        shards_in(tmp_path, resume=True)


def test_the_progress_file_is_added_to(tmp_path: Path) -> None:
    """Writing it again for each shard would take time quadratic in the number of shards."""
    path = tmp_path / "out.progress.json"
    with pytest.raises(KeyboardInterrupt), shards_in(tmp_path) as writer:
        write_bytes(writer, list(range(5)))
        before, content = path.stat().st_ino, path.read_bytes()
        write_bytes(writer, list(range(5, 13)))
        raise KeyboardInterrupt
    assert path.stat().st_ino == before and path.read_bytes().startswith(content)
    job, *shards = map(json.loads, path.read_bytes().splitlines())
    assert job["format"] == "llmgpu-token-shards-in-progress" and job["version"] == 2
    assert [shard["file"] for shard in shards] == [f"out-00000{k}.bin" for k in range(3)]


def whole_before_interrupted(folder: Path, values: list[int]) -> dict[str, bytes]:
    """Return the files of a job, and leave those of the same job when it was interrupted."""
    with shards_in(folder) as writer:
        write_bytes(writer, values)
    whole = files_of(folder)
    interrupted(folder, values)
    return whole


def test_a_progress_file_that_ends_within_a_line(tmp_path: Path) -> None:
    """As a kill may leave it: what its whole lines list is kept, and the job ends as any other."""
    values, path = list(range(17)), tmp_path / "out.progress.json"
    whole = whole_before_interrupted(tmp_path, values)
    progress = path.read_bytes()
    first = progress.index(b"\n") + 1  # put in place as a whole
    for end in range(first, len(progress), 7):
        path.write_bytes(progress[:end])
        with pytest.raises(KeyboardInterrupt), shards_in(tmp_path, resume=True) as writer:
            assert writer.kept == progress[first:end].count(b"\n")
            write_bytes(writer, values[:14])
            raise KeyboardInterrupt
        assert path.read_bytes() == progress[: path.stat().st_size]
        with shards_in(tmp_path, resume=True) as writer:
            assert writer.kept == 3
            write_bytes(writer, values)
        assert files_of(tmp_path) == whole


def test_shards_of_a_former_run_go_away(tmp_path: Path) -> None:
    with shards_in(tmp_path, tokens=1) as writer:
        write_bytes(writer, list(range(9)))
    (tmp_path / "out-000020.bin").write_bytes(b"of somebody else")
    for name in ("out-000003.bin", "out-000003.bin.json", "out.json", "out.progress.json"):
        (tmp_path / f".{name}.0123456789ab.tmp").write_bytes(b"of a killed run")
    (tmp_path / ".other-000003.bin.0123456789ab.tmp").write_bytes(b"of another output")
    interrupted(tmp_path, [5])
    assert len(json.loads((tmp_path / "out.json").read_bytes())["shards"]) == 9
    interrupted(tmp_path, list(range(5)))  # one shard is finished
    assert not (tmp_path / "out.json").exists()
    with shards_in(tmp_path) as writer:
        write_bytes(writer, [5, 6, 7, 8, 9])
    assert read_shards(tmp_path)[1] == [[5, 6, 7, 8, 9]]
    assert sorted(os.listdir(tmp_path)) == [
        ".other-000003.bin.0123456789ab.tmp",
        *(f"out-00000{i}.bin{end}" for i in range(2) for end in ("", ".json")),
        "out-000020.bin",
        "out.json",
    ]


def test_a_shard_of_a_former_run_that_can_not_be_looked_at(tmp_path: Path) -> None:
    """It may have to go, so the job does not end as if all were done."""
    (tmp_path / "out-000002.bin.json").mkdir()
    expected = pytest.raises(InputError, match=r"can't read .*out-000002\.bin\.json")
    with expected, shards_in(tmp_path) as writer:
        write_bytes(writer, list(range(8)))


@pytest.mark.slow
def test_a_kill_at_any_call_leaves_what_the_next_job_cleans_up(tmp_path: Path) -> None:
    """A manifest lists whole shards, and no shard of the longer job is left over."""
    from tests.tokens.killed_shards import SHORTER, write_shards

    command = [sys.executable, "-m", "tests.tokens.killed_shards", str(tmp_path)]
    subprocess.run(command, check=True, timeout=100)
    runs = sorted(tmp_path.glob("run-*"), key=lambda run: int(run.name[4:]))
    whole = files_of(runs.pop())  # the last was not killed
    assert len(runs) > 10 and sorted(whole) == sorted(
        ["out.json", *(f"out-00000{k}.bin{end}" for k in range(2) for end in ("", ".json"))]
    )
    for run in runs:
        if (run / "out.json").exists():
            documents = read_shards(run)[1]
            assert documents in ([list(range(9))], [SHORTER])
            if documents == [SHORTER]:
                assert {name for name in files_of(run) if name.startswith("out-")} < whole.keys()
        write_shards(run, SHORTER)
        assert files_of(run) == whole


def test_another_file_with_the_name_of_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text('{"text": "precious"}')
    with pytest.raises(OutputError, match=r"out.json is text, and a manifest of token shards"):
        shards_in(tmp_path)
    assert files_of(tmp_path) == {"out.json": b'{"text": "precious"}'}


def test_what_can_not_be_written(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="id 256 is beyond the vocabulary"),
        shards_in(tmp_path) as writer,
    ):
        write_bytes(writer, [256])
    with (
        pytest.raises(OutputError, match=r"can't write .*out.lock: No such file"),
        shards_in(tmp_path / "missing") as writer,
    ):
        write_bytes(writer, [1])
    with pytest.raises(
        InputError, match="unknown layout 'x': use one of raw, llmc, megatron, nanogpt"
    ):
        shards_in(tmp_path, layout="x")


def test_shards_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with shards_in(Path()) as writer:
        write_documents(writer, DOCUMENTS, [])
    assert read_shards(Path())[1] == DOCUMENTS
    listed = [output.path for output in ShardNames("out.bin").outputs()]
    assert sorted(listed) == sorted(["out.progress.json", *os.listdir()])


def test_a_shard_does_not_replace_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "out-000001.bin").write_text("precious")
    with (
        pytest.raises(OutputError, match=r"out-000001\.bin is text, and"),
        shards_in(tmp_path) as writer,
    ):
        write_documents(writer, DOCUMENTS, [])
    assert (tmp_path / "out-000001.bin").read_text() == "precious"
    with shards_in(tmp_path, force=True) as writer:
        write_documents(writer, DOCUMENTS, [])
    assert read_shards(tmp_path)[1] == DOCUMENTS


def test_a_mask_ends_with_the_ids(tmp_path: Path) -> None:
    """Also where an empty document is the last."""
    with shards_in(tmp_path, masked=True) as writer:
        mask = np.array([True, False, True])
        writer.write(EncodedSlice(ids_of(1, 2, 3), starts_of(0, 3), 3, mask=mask))
    found = np.load(tmp_path / "out-000000.bin.mask.npy")
    assert found.tolist() == [True, False, True]


def test_only_one_job_writes_the_shards_of_an_output(tmp_path: Path) -> None:
    vocabulary = byte_vocabulary("gpt2", "hf")
    first = ShardWriter(tmp_path / "out.bin", vocabulary, 5)
    with pytest.raises(OutputError, match=rf"out.bin is in use by process {os.getpid()}: wait"):
        ShardWriter(tmp_path / "out.bin", vocabulary, 5)
    ShardWriter(tmp_path / "other.bin", vocabulary, 5).abort()
    first.abort()
    ShardWriter(tmp_path / "out.bin", vocabulary, 5).close()
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_bytes_that_ids_replace(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGPU_CPU", engine)
    spans = np.arange(1000, dtype=np.int64) << 30
    ids = np.random.default_rng(1).integers(0, 1000, (150_000, 2)).astype(np.uint32)
    for given_ids in (ids[:, 1], ids[:0, 0], ids.reshape(-1)):  # the first is not contiguous
        assert replaced_bytes(spans, given_ids) == sum(spans[i] for i in given_ids.tolist())
