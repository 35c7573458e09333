"""Token files of llm.c, Megatron-LM and nanoGPT, which have no side file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from llmgpu.errors import InputError
from llmgpu.lm.data.batches import open_token_files
from llmgpu.tokens.bin import describe_bin_file, numbers_of, read_bin
from tests.tokens.writing import sized

IDS = np.array([3, 1, 258, 7, 0, 259], np.int64)


def llmc(kind: str) -> bytes:
    """A file as llm.c's dev/data/data_common.py writes it."""
    header = np.zeros(256, np.int32)
    header[0], header[1] = {"uint16": (20240520, 1), "uint32": (20240801, 7)}[kind]
    header[2] = len(IDS)
    return header.tobytes() + IDS.astype(kind).tobytes()


def index_of(code: int) -> bytes:
    """The head of an index as Megatron-LM's indexed_dataset.py writes it."""
    return b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 1, 2)


@pytest.mark.parametrize("kind", ["uint16", "uint32"])
def test_files_that_say_what_they_are(tmp_path: Path, kind: str) -> None:
    (tmp_path / "c.bin").write_bytes(llmc(kind))
    (tmp_path / "m.bin").write_bytes(IDS.astype(kind).tobytes())
    (tmp_path / "m.idx").write_bytes(index_of({"uint16": 8, "uint32": 4}[kind]))
    for name, offset in (("c.bin", 1024), ("m.bin", 0)):
        path = str(tmp_path / name)
        layout, dtype, count = numbers_of(path)
        assert (layout.header_bytes, dtype, count) == (offset, np.dtype(kind), len(IDS))
        assert np.concatenate([*read_bin(path, None, "raw")]).tolist() == IDS.tolist()
        other = {"uint16": "uint32", "uint32": "uint16"}[kind]
        with pytest.raises(InputError, match=f"by its header, its numbers are {kind}, not {other}"):
            numbers_of(path, other)
        with pytest.raises(InputError, match=r"can't read .*the side file of"):
            describe_bin_file(path)  # one of our own lacks its side file
        described = describe_bin_file(path, may_be_foreign=True)
        assert (described.count, described.text_bytes) == (len(IDS), 0)
        assert (described.fingerprint, described.has_mask) == ("", False)


def test_a_file_that_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(IDS.astype(np.uint16).tobytes())
    with pytest.raises(InputError, match=r"train\.bin has no side file .*--token-dtype uint16"):
        numbers_of(str(path))
    assert np.concatenate([*read_bin(str(path), None, "raw", "uint16")]).tolist() == IDS.tolist()
    assert numbers_of(str(path), "uint32")[2] == len(IDS) // 2
    path.write_bytes(b"\1\0\2")
    with pytest.raises(InputError, match="3 bytes of ids, not a whole number of 2 bytes each"):
        numbers_of(str(path), "uint16")


def test_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "c.bin"
    for may_be_foreign in (False, True):
        with pytest.raises(InputError, match=r"^no such file: '"):
            describe_bin_file(path, may_be_foreign=may_be_foreign)
    path.write_bytes(llmc("uint16")[:-2])
    with pytest.raises(InputError, match="10 bytes of ids, not 6 of 2 bytes each: it is cut short"):
        numbers_of(str(path))
    (tmp_path / "c.idx").write_bytes(index_of(5))
    with pytest.raises(InputError, match=r"numbers of type 5, which are neither uint16 \(8\)"):
        numbers_of(str(path))
    (tmp_path / "c.idx").write_bytes(b"MMID")
    path.write_bytes(llmc("uint16")[:1023])
    with pytest.raises(InputError, match="has no side file"):
        numbers_of(str(path))


def test_a_side_file_wins(llmgpu_ids: str) -> None:
    assert describe_bin_file(llmgpu_ids, "uint16", may_be_foreign=True).fingerprint == "f"
    with pytest.raises(InputError, match="by its side file, its numbers are uint16, not"):
        describe_bin_file(llmgpu_ids, "uint32", may_be_foreign=True)
    with pytest.raises(InputError, match="by its side file, its numbers are uint16, not"):
        [*read_bin(llmgpu_ids, None, "raw", "uint32")]


@pytest.fixture
def llmgpu_ids(tmp_path: Path) -> str:
    """A token file of our own."""
    from llmgpu.bpe.encoding.encoder import EncodedSlice
    from llmgpu.tokens.formats import open_writer

    path = tmp_path / "own.bin"
    with open_writer(path, "bin", sized(300, "f")) as writer:
        writer.write(EncodedSlice(IDS.astype(np.uint32), np.zeros(1, np.int64), 9))
    return str(path)


def test_training_on_them(tmp_path: Path) -> None:
    from llmgpu import Tokenizer

    (tmp_path / "t.txt").write_text("low lower lowest newer newest " * 20)
    tokenizer = Tokenizer.train([tmp_path / "t.txt"], vocab_size=262, device="cpu")
    (tmp_path / "c.bin").write_bytes(llmc("uint16"))
    (tmp_path / "n.bin").write_bytes(IDS.astype(np.uint16).tobytes())
    paths = [str(tmp_path / "c.bin"), str(tmp_path / "n.bin")]
    with pytest.raises(InputError, match="has no side file"):
        open_token_files(paths, tokenizer.vocabulary, "v.bin")
    source = open_token_files(paths, tokenizer.vocabulary, "v.bin", dtype="uint16")
    assert source.foreign_files == paths and len(source) == 12
