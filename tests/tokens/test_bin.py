"""Token files and their side files belong together, wherever a process is killed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.errors import InputError, OutputError, VocabularyError
from llmgpu.tokens.bin import describe_bin_file, matched_as, read_bin, read_side_file, sample_digest
from llmgpu.tokens.formats import masked_file, open_writer, read_tokens
from tests.tokens.killed_token_file import NEW, OLD, write_ids
from tests.tokens.test_formats import VOCABULARY, opened, read_all, write_documents
from tests.tokens.writing import sized


def read_ids(path: Path) -> list[int]:
    return [int(i) for block in read_bin(str(path), None, "raw") for i in block]


def test_a_kill_never_leaves_ids_with_the_side_file_of_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tokens.killed_token_file", str(tmp_path)]
    subprocess.run(command, check=True, timeout=100)
    runs = sorted(tmp_path.glob("run-*"), key=lambda run: int(run.name[4:]))
    seen = set()
    for run in runs:
        path = run / "ids.bin"
        try:
            told, ids = describe_bin_file(path).fingerprint, read_ids(path)
        except InputError as error:
            assert f"can't read {path}.json, the side file" in str(error)
            seen.add("refused")
        else:
            assert (told, ids) in [(str(known[0]), known) for known in (OLD, NEW)]
            seen.add("old" if ids == OLD else "new")
        write_ids(run, NEW)  # a run that is not killed
        assert read_ids(path) == NEW
        assert sorted(os.listdir(run)) == ["ids.bin", "ids.bin.json"]
    assert len(runs) > 7 and seen == {"old", "refused", "new"}


@pytest.mark.parametrize("length", [0, 1, 64 * 4096 - 1, 64 * 4096, 64 * 4096 + 1, 10**6 + 7])
def test_samples_of_a_file(tmp_path: Path, length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    path = tmp_path / "file"
    path.write_bytes(data)
    firsts = [k * (length - 4096) // 63 for k in range(64)]
    taken = b"".join(data[i : i + 4096] for i in firsts) if length > 64 * 4096 else data
    assert sample_digest(path) == hashlib.sha256(taken).hexdigest()


def test_a_damaged_mask_is_refused(tmp_path: Path) -> None:
    path, mask = tmp_path / "ids.bin", tmp_path / "ids.bin.mask.npy"
    with open_writer(path, "bin", sized(300), masked=True) as writer:
        ids = np.arange(5, dtype=np.uint32)
        writer.write(EncodedSlice(ids, np.zeros(1, np.int64), mask=ids % 2 == 0))
    assert np.load(mask).tolist() == [True, False, True, False, True]
    assert describe_bin_file(path).has_mask
    whole = mask.read_bytes()
    for data in (whole[:-1], whole + b"\1", whole[:-1] + b"\0", whole[:-5]):
        mask.write_bytes(data)
        with pytest.raises(InputError, match=r"mask.npy is not the file that its side file"):
            describe_bin_file(path)
    mask.unlink()
    with pytest.raises(InputError, match=r"can't read .*ids.bin.mask.npy: No such file"):
        describe_bin_file(path)
    side = json.loads((tmp_path / "ids.bin.json").read_bytes())
    for wrong in (5, [], {}, {"sample_sha256": "", "x": 1}):
        (tmp_path / "ids.bin.json").write_text(json.dumps(side | {"loss_mask": wrong}))
        with pytest.raises(InputError, match="'loss_mask' is not an object"):
            describe_bin_file(path)


def test_a_failed_job_leaves_no_mask(tmp_path: Path) -> None:
    given = tmp_path / "a.bin", "bin", sized(300)
    with pytest.raises(ZeroDivisionError), open_writer(*given, masked=True):
        raise ZeroDivisionError
    (tmp_path / "a.bin.mask.npy").mkdir()
    with pytest.raises(OutputError, match=r"can't write .*a.bin.mask.npy"):
        open_writer(*given, masked=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin.mask.npy"]


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    write_ids(tmp_path, OLD)
    path.write_bytes(np.array(NEW, "<u2").tobytes())
    for read in (describe_bin_file, read_ids):
        with pytest.raises(
            InputError, match=r"ids.bin is not the file that its side file .*describes"
        ):
            read(path)


@pytest.mark.parametrize("field", ["layout", "documents", "continues", "length", "sample_sha256"])
def test_a_side_file_without_a_field_is_refused(tmp_path: Path, field: str) -> None:
    """Unreleased versions wrote fewer fields; none is filled in."""
    path, side_path = tmp_path / "ids.bin", tmp_path / "ids.bin.json"
    write_ids(tmp_path, OLD)
    side = json.loads(side_path.read_bytes())
    del side[field]
    side_path.write_text(json.dumps(side))
    for read in (describe_bin_file, read_ids):
        with pytest.raises(InputError, match=f"field '{field}' is missing or not of type"):
            read(path)


@pytest.mark.parametrize("rule", ["bpe", "greedy"])
def test_a_vocabulary_matches_by_the_rule_of_the_file(rule: str) -> None:
    vocabulary = byte_vocabulary("class", "hf")
    made_with = vocabulary.with_match(rule).fingerprint
    assert matched_as("ids.bin", made_with, vocabulary, "v.bin").match == rule
    assert matched_as("ids.bin", "", vocabulary, "v.bin") is vocabulary
    with pytest.raises(
        VocabularyError, match=r"^ids\.bin was made with vocabulary 0{12}, but v\.bin"
    ):
        matched_as("ids.bin", "0" * 64, vocabulary, "v.bin")


def test_the_file_of_a_loss_mask(tmp_path: Path) -> None:
    ids, mask = str(tmp_path / "ids.bin"), str(tmp_path / "ids.bin.mask.npy")
    assert masked_file(mask) is None
    Path(f"{ids}.json").touch()
    assert masked_file(mask) == ids
    assert masked_file(ids) is None


def written_bin(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "f.bin"
    with opened(path, "bin") as writer:
        write_documents(writer, [[1, 2], [3]], [])
    return path, json.loads(Path(f"{path}.json").read_text())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"format": "other"}, "not a side file"),
        ({"version": 2}, "version 2, but this llmgpu reads 1"),
        ({"dtype": "float32"}, "unknown dtype 'float32': use one of uint16, uint32"),
        ({"dtype": None}, "'dtype' is missing or not of type str"),
        ({"count": -1}, "'count' is missing or not of type int"),
        ({"count": True}, "'count' is missing or not of type int"),
        ({"count": 4}, "has 12 bytes, but by its side file .* 4 ids of 4 bytes"),
        ({"dtype": "uint16"}, "has 12 bytes, but by its side file .* 3 ids of 2 bytes"),
        ({"document_offsets": [0, "x"]}, "are not whole numbers from 0 to 3, ascending"),
        ({"document_offsets": [2, 0]}, "are not whole numbers from 0 to 3, ascending"),
        ({"document_offsets": [-1]}, "are not whole numbers from 0 to 3, ascending"),
        ({"document_offsets": [4]}, "are not whole numbers from 0 to 3, ascending"),
        ({"layout": "x"}, "unknown layout 'x': use one of raw, llmc, megatron, nanogpt"),
    ],
)
def test_wrong_side_files(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path, side = written_bin(tmp_path)
    Path(f"{path}.json").write_text(json.dumps(side | change))
    with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{message}"):
        list(read_tokens(path, "bin"))


@pytest.mark.parametrize("text", ["", "[]", "\xff", '{"format": '])
def test_side_files_that_are_none(tmp_path: Path, text: str) -> None:
    path, _ = written_bin(tmp_path)
    Path(f"{path}.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"f\.bin\.json: not "):
        read_side_file(path)


def test_a_missing_side_file(tmp_path: Path) -> None:
    path, _ = written_bin(tmp_path)
    os.unlink(f"{path}.json")
    with pytest.raises(InputError, match=r"f\.bin has no side file .*--token-dtype"):
        list(read_bin(str(path), VOCABULARY))


def test_a_bin_stream_needs_the_size_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\1\0\2\0\3")))
    with pytest.raises(InputError, match="has no side file, which records its integer type"):
        list(read_tokens("-", "bin"))
    with pytest.raises(InputError, match="ends after 2 ids and 1 bytes"):
        read_all("-", "bin", vocabulary_size=300)
