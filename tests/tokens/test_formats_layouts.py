"""Token files as other tools read them: Megatron's pair, and nanoGPT's."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.errors import InputError, OutputError
from llmgpu.tokens.bin import describe_bin_file, make_index
from llmgpu.tokens.formats import LAYOUTS, open_writer, outputs, read_tokens
from llmgpu.tokens.shards import ShardWriter
from tests.bpe.interchange.samples import trained
from tests.tokens.writing import sized

# As Megatron-LM's indexed_dataset.py numbers them.
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


def read_megatron(stem: Path) -> list[list[int]]:
    """The documents of a pair of files, each of them all its sequences."""
    data = stem.with_suffix(".idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, bounds = struct.unpack_from("<QBQQ", data, 9)
    assert version == 1
    offset = 9 + 25
    lengths = np.frombuffer(data, "<i4", sequences, offset)
    pointers = np.frombuffer(data, "<i8", sequences, offset + 4 * sequences)
    documents = np.frombuffer(data, "<i8", bounds, offset + 12 * sequences)
    assert offset + 12 * sequences + 8 * bounds == len(data)
    numbers = stem.with_suffix(".bin").read_bytes()
    rows = [
        np.frombuffer(numbers, TYPES[code], length, pointer).tolist()
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
    return [list(chain(*rows[a:b])) for a, b in pairwise(documents)]


def write(path: Path, pieces: list[EncodedSlice], layout: str, size: int = 400) -> None:
    with open_writer(path, "bin", sized(size), layout=layout) as writer:
        for piece in pieces:
            writer.write(piece)


def slice_of(ids: list[int], starts: list[int]) -> EncodedSlice:
    return EncodedSlice(np.array(ids, np.uint32), np.array(starts, np.int64), len(ids))


@pytest.mark.parametrize("size", [400, 1 << 16, 1 << 17])
def test_megatron(tmp_path: Path, size: int) -> None:
    last = size - 1
    # A document over three slices, and empty ones, which have no sequence.
    pieces = [
        slice_of([1, 2, 3], [0, 2, 2]),
        slice_of([4], []),
        slice_of([5, last, 6], [1, 2, 3]),
        slice_of([], [0]),
    ]
    write(tmp_path / "x.bin", pieces, "megatron", size)
    assert read_megatron(tmp_path / "x") == [[1, 2], [3, 4, 5], [last], [6]]
    assert (tmp_path / "x.idx").read_bytes()[17] == (8 if size <= 1 << 16 else 4)
    blocks = read_tokens(tmp_path / "x.bin", "bin")
    assert np.concatenate(list(blocks)).tolist() == [1, 2, 3, 4, 5, last, 6]


def test_megatron_without_ids(tmp_path: Path) -> None:
    write(tmp_path / "x.bin", [], "megatron")
    assert read_megatron(tmp_path / "x") == []


@pytest.mark.parametrize("layout", ["raw", "llmc", "nanogpt"])
def test_an_index_goes_with_the_ids_that_it_is_of(tmp_path: Path, layout: str) -> None:
    write(tmp_path / "x.bin", [slice_of([1, 2, 3], [0])], "megatron")
    write(tmp_path / "y.bin", [slice_of([1, 2, 3], [0])], "megatron")
    (tmp_path / "z.idx").write_bytes((tmp_path / "y.idx").read_bytes())
    np.save(tmp_path / "x.bin.mask.npy", np.ones(3, np.bool_))
    for name in ("x.bin", "z.bin"):
        write(tmp_path / name, [slice_of([4, 5], [0])], layout)
    assert not (tmp_path / "x.bin.mask.npy").exists()
    assert sorted(path.name for path in tmp_path.glob("*.idx")) == ["y.idx", "z.idx"]
    assert read_megatron(tmp_path / "y") == [[1, 2, 3]]


def test_indexes_of_surplus_shards_go_with_them(tmp_path: Path) -> None:
    for layout, length in (("megatron", 1), ("raw", 2)):
        with ShardWriter(tmp_path / "x.bin", trained(), length, layout=layout) as writer:
            writer.write(slice_of([1, 2, 3, 4], [0]))
    assert not list(tmp_path.glob("*.idx")) and len(list(tmp_path.glob("*.bin"))) == 2


def test_shards_of_megatron(tmp_path: Path) -> None:
    ids, starts = list(range(10)), [0, 3, 9]
    old = ShardWriter(tmp_path / "x.bin", trained(), 2, layout="megatron")
    with old as writer:
        writer.write(slice_of(ids, starts))
    (tmp_path / "x-000001.idx").unlink()  # so that the second shard is written again
    with ShardWriter(tmp_path / "x.bin", trained(), 4, layout="megatron") as writer:
        writer.write(slice_of(ids, starts))
    found = [read_megatron(tmp_path / f"x-00000{k}") for k in range(3)]
    assert found == [[[0, 1, 2], [3]], [[4, 5, 6, 7]], [[8], [9]]]
    names = {path.name for path in tmp_path.iterdir()}
    assert "x-000003.idx" not in names and len(names) == 3 * 3 + 1


def test_a_shard_without_its_index_is_written_again(tmp_path: Path) -> None:
    given = slice_of(list(range(10)), [0, 3, 9])
    writer = ShardWriter(tmp_path / "x.bin", trained(), 4, layout="megatron")
    writer.write(given)
    writer.abort()
    again = ShardWriter(tmp_path / "x.bin", trained(), 4, layout="megatron", resume=True)
    assert again.kept == 2
    again.abort()
    (tmp_path / "x-000001.idx").unlink()
    with ShardWriter(tmp_path / "x.bin", trained(), 4, layout="megatron", resume=True) as again:
        assert again.kept == 1
        again.write(given)
    assert read_megatron(tmp_path / "x-000001") == [[4, 5, 6, 7]]


def test_names_and_files_that_megatron_can_not_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Megatron's token files end in \.bin"):
        write(tmp_path / "x.ids", [], "megatron")
    with pytest.raises(InputError, match="is two files"):
        outputs("-", "bin", "megatron")
    (tmp_path / "x.idx").write_text("notes")
    with pytest.raises(OutputError, match=r"x\.idx is text, and an index of Megatron"):
        write(tmp_path / "x.bin", [], "megatron")
    assert [path.name for path in tmp_path.iterdir()] == ["x.idx"]
    with pytest.raises(OutputError, match="a document of 2147483648 ids"):
        make_index("uint16", np.array([0, 2**31]), 2**31 + 1)


def test_megatron_reads_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    pieces = [slice_of([1, 2, 3, 4], [0, 1, 1, 3])]
    write(tmp_path / "x.bin", pieces, "megatron")
    theirs = datasets.IndexedDataset(str(tmp_path / "x"))
    assert [row.tolist() for row in theirs] == [[1], [2, 3], [4]]
    assert theirs.document_indices.tolist() == [0, 1, 2, 3]


def test_as_many_ids_as_a_layout_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = replace(LAYOUTS["llmc"], max_tokens=3)
    monkeypatch.setitem(LAYOUTS, "llmc", limited)
    write(tmp_path / "x.bin", [slice_of([1, 2], [0]), slice_of([3], [])], "llmc")
    assert describe_bin_file(tmp_path / "x.bin").count == 3
    with pytest.raises(OutputError, match=r"more than 3 tokens.* layout llmc: use --shard-tokens"):
        write(tmp_path / "y.bin", [slice_of([1, 2], [0]), slice_of([3, 4], [])], "llmc")
    assert not (tmp_path / "y.bin").exists()


def test_what_is_no_header_of_llmc() -> None:
    with pytest.raises(InputError, match=r"x: not a header of llm.c tokens \(magic 0, version 0"):
        LAYOUTS["llmc"].parse_header(bytes(1024), "x")


def test_nanogpt(tmp_path: Path) -> None:
    write(tmp_path / "train.bin", [slice_of([5, 65535], [0])], "nanogpt", 1 << 16)
    # As nanoGPT's train.py opens it.
    found = np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="r")
    assert found.tolist() == [5, 65535]
    assert describe_bin_file(tmp_path / "train.bin").count == 2
    with pytest.raises(InputError, match="65537 ids: layout nanogpt holds up to 65536"):
        write(tmp_path / "x.bin", [], "nanogpt", (1 << 16) + 1)
    assert list(LAYOUTS) == ["raw", "llmc", "megatron", "nanogpt"]
