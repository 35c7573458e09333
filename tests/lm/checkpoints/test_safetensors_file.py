"""The safetensors format: bytes written by hand, the library itself, and hostile files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.errors import CheckpointError, OutputError
from llmgpu.lm.checkpoints.safetensors_file import (
    MAX_HEADER_BYTES,
    Kinds,
    hash_file,
    read_tensors,
    require_tensors,
    write_tensors,
)
from tests.lm.samples import kinds_of, sum_of_parts

PART = 16 * 1024 * 1024  # bytes of a part of a file, for its sum
DTYPES = (np.float32, np.float16, np.uint32, np.uint8)
F32, F16, U8 = ([np.dtype(kind)] for kind in (np.float32, np.float16, np.uint8))


def sources(tensors: dict[str, NDArray[Any]]) -> tuple[Kinds, Callable[[str], NDArray[Any]]]:
    return kinds_of(tensors), tensors.__getitem__


def sample() -> dict[str, NDArray[Any]]:
    """Tensors of all dtypes, odd sizes and none, one name that is not ASCII."""
    generator = np.random.default_rng(1)
    return {
        "b.weight": generator.standard_normal((3, 5)).astype(np.float32),
        "a.bytes": generator.integers(0, 256, 7).astype(np.uint8),
        "ids": generator.integers(0, 1 << 32, (2, 1, 3)).astype(np.uint32),
        "ağırlık": generator.standard_normal(9).astype(np.float16),
        "empty": np.empty((0, 4), np.float32),
        "scalar": np.array(2.5, np.float32),
        "a.weight": np.array([np.nan, -np.inf, -0.0], np.float32),
    }


def assert_same(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def by_hand(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: object, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_the_bytes_that_are_written(tmp_path: Path) -> None:
    tensors = {"b": np.array([7], np.uint8), "a": np.array([[1.0, -2.0]], np.float32)}
    write_tensors(tmp_path / "x", *sources(tensors), {"format": "pt"})
    header = (
        b'{"__metadata__":{"format":"pt"},'
        b'"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
        b'"b":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}}'
    )
    header += b" " * (-len(header) % 8)
    data = b"\x00\x00\x80\x3f\x00\x00\x00\xc0\x07"
    assert (tmp_path / "x").read_bytes() == by_hand(header, data)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", *sources(sample()), {"z": "é", "a": ""})
    found = read_tensors(tmp_path / "x")
    assert_same(found, sample())
    with pytest.raises(ValueError, match="read-only"):
        found["ids"][0] = 1


def test_nothing_is_a_file_too(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", *sources({}))
    assert read_tensors(tmp_path / "x") == {}


def test_the_order_of_tensors_does_not_change_the_bytes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", *sources(sample()))
    write_tensors(tmp_path / "y", *sources(dict(reversed(sample().items()))))
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_the_array_of_one_source_is_held_at_a_time(tmp_path: Path) -> None:
    alive: list[str] = []

    class Tracked(np.ndarray):
        def __del__(self) -> None:
            alive.remove("array")

    def read(name: str) -> NDArray[np.float32]:
        assert not alive
        alive.append("array")
        return np.zeros(5, np.float32).view(Tracked)

    write_tensors(tmp_path / "x", {name: (np.float32, (5,)) for name in "abc"}, read)
    assert read_tensors(tmp_path / "x").keys() == set("abc")


@pytest.mark.parametrize("size", [0, 9, 2 * PART + 9])
def test_the_sum_of_a_written_file(tmp_path: Path, size: int) -> None:
    """size: bytes of the tensors. A tensor ends within a part."""
    path, data = tmp_path / "x", np.random.default_rng(2).integers(0, 256, size, np.uint8)
    tensors = {"a": data[: PART + 9], "b": data[PART + 9 :]}
    found = write_tensors(path, *sources(tensors))
    assert found == hash_file(path) == sum_of_parts(path.read_bytes())
    assert_same(read_tensors(path), tensors)


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, 2 * PART + 1])
def test_the_sum_of_any_file(tmp_path: Path, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "x").write_bytes(data[:size])
    assert hash_file(tmp_path / "x") == sum_of_parts(data[:size])


@pytest.mark.parametrize("array", [np.zeros(3, np.float16), np.zeros((3, 1), np.float32)])
def test_a_tensor_that_is_not_as_announced(tmp_path: Path, array: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=r"'w' came as .* float32 \(3,\) was announced"):
        write_tensors(tmp_path / "x", {"w": (np.dtype(np.float32), (3,))}, lambda name: array)
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'w' of int64"):
        write_tensors(tmp_path / "x", *sources({"w": np.zeros(1, np.int64)}))
    with pytest.raises(ValueError, match="__metadata__"):
        write_tensors(tmp_path / "x", *sources({"__metadata__": np.zeros(1, np.uint8)}))
    with pytest.raises(OutputError, match="no/such"):
        write_tensors(tmp_path / "no" / "such", *sources(sample()))


def test_bytes_made_by_hand_are_read(tmp_path: Path) -> None:
    header = {
        "late": entry("U8", [3], 8, 11),
        "early": entry("F32", [2, 1], 0, 8),
    }
    data = np.array([1.5, -3.0], "<f4").tobytes() + b"\x01\x02\xff"
    (tmp_path / "x").write_bytes(by_hand(header, data))
    found = read_tensors(tmp_path / "x")
    assert list(found) == ["early", "late"]
    assert found["early"].tolist() == [[1.5], [-3.0]] and found["late"].tolist() == [1, 2, 255]


def test_the_library_reads_and_writes_the_same(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    write_tensors(tmp_path / "ours", *sources(sample()), {"format": "pt"})
    assert_same(library.load_file(tmp_path / "ours"), sample())
    library.save_file(sample(), tmp_path / "theirs", {"format": "pt"})
    assert_same(read_tensors(tmp_path / "theirs"), sample())
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4)),
        max_size=6,
    )
)
def test_any_tensors_round_trip(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, tuple[Any, list[int]]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "x"
    generator = np.random.default_rng(2)
    tensors = {
        name: generator.integers(0, 200, shape).astype(dtype)
        for name, (dtype, shape) in shapes.items()
    }
    write_tensors(path, *sources(tensors))
    assert_same(read_tensors(path), tensors)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", *sources(sample()))
    whole = (tmp_path / "x").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "x").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"x: (damaged|can't read)"):
            read_tensors(tmp_path / "x")
    (tmp_path / "x").write_bytes(whole + b"\x00")
    with pytest.raises(CheckpointError, match="tensors have 125 bytes, but the file has 126"):
        read_tensors(tmp_path / "x")


HOSTILE: list[tuple[bytes, str]] = [
    (b"", "0 bytes, but at most 0 fit in a file of 0 bytes"),
    (bytes(7), "0 bytes, but at most 0 fit in a file of 7 bytes"),
    (
        (1 << 63).to_bytes(8, "little"),
        "9223372036854775808 bytes, but at most 0 fit",
    ),
    ((2).to_bytes(8, "little") + b"{", "the header has 2 bytes, but at most 1 fit"),
    (by_hand(b"{"), "not valid JSON"),
    (by_hand(b"\xff{}"), "not UTF-8 at byte 0"),
    (by_hand(b"[" * 100_000), "not valid JSON"),
    (by_hand([]), "the header is not a JSON object"),
    (by_hand({"__metadata__": []}), "__metadata__ is not a map of strings"),
    (by_hand({"__metadata__": {"a": 1}}), "__metadata__ is not a map of strings"),
    (by_hand(b'{"a":1,"a":2}'), "the key 'a' is repeated"),
    (by_hand({"w": 1}), "'w' needs dtype, shape and data_offsets"),
    (by_hand({"w": {"dtype": "F32", "shape": []}}), "'w' needs dtype, shape and data_offsets"),
    (by_hand({"w": entry("F32", [1], 0, 4) | {"x": 1}}, bytes(4)), "'w' needs dtype"),
    (
        by_hand({"w": entry("I64", [1], 0, 8)}, bytes(8)),
        "dtype 'I64'; use one of F32, U32, F16, U8, BF16",
    ),
    (by_hand({"w": entry(["F32"], [1], 0, 4)}, bytes(4)), r"dtype \['F32'\]; use one of F32"),
    (
        by_hand({"w": entry("F32", [-1], 0, 4)}, bytes(4)),
        r"shape of tensor 'w' is \[-1(, -1)?\], but must be up to 7",
    ),
    (
        by_hand({"w": entry("F32", [-1, -1], 0, 4)}, bytes(4)),
        r"shape of tensor 'w' is \[-1(, -1)?\], but must be up to 7",
    ),
    (by_hand({"w": entry("F32", [True], 0, 4)}, bytes(4)), r"shape of tensor 'w' is \[True\]"),
    (by_hand({"w": entry("F32", [1.0], 0, 4)}, bytes(4)), r"shape of tensor 'w' is \[1\.0\]"),
    (by_hand({"w": entry("F32", 1, 0, 4)}, bytes(4)), "shape of tensor 'w' is 1, but must be"),
    (
        by_hand({"w": entry("F32", [1] * 99, 0, 4)}, bytes(4)),
        r"'w' is \[1, 1, .*, but must be up to 7",
    ),
    (by_hand({"w": entry("F32", [1 << 64], 0, 4)}, bytes(4)), r"shape of tensor 'w' is \[18446"),
    (by_hand({"w": entry("F32", [0, 1 << 40, 1 << 40], 0, 0)}), "array is too big"),
    (by_hand({"w": entry("F32", [1 << 33, 1 << 33], 0, 4)}, bytes(4)), r"must have \[0, 2951"),
    (by_hand({"w": entry("F32", [2], 0, 4)}, bytes(4)), r"\[2\] has .* \[0, 4\], .* \[0, 8\]"),
    (by_hand({"w": entry("F32", [1], 4, 0)}, bytes(4)), r"has .* \[4, 0\], but must have \[0, 4\]"),
    (
        by_hand({"w": entry("F32", [1], -4, 0)}, bytes(4)),
        r"data_offsets of tensor 'w' is \[-4, 0\]",
    ),
    (
        by_hand({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}}, bytes(4)),
        r"has the data_offsets \[0, 2, 4\], but must have \[0, 4\]",
    ),
    (
        by_hand({"w": entry("F32", [1], 4, 8)}, bytes(8)),
        r"'w' of F32 .* \[4, 8\], but must have \[0, 4\]",
    ),
    (
        by_hand({"v": entry("F32", [1], 0, 4), "w": entry("F32", [1], 2, 6)}, bytes(6)),
        r"'w' of F32 .* \[2, 6\], but must have \[4, 8\]",
    ),
    (
        by_hand({"v": entry("F32", [1], 0, 4), "w": entry("F32", [1], 0, 4)}, bytes(4)),
        r"'w' of F32 .* \[0, 4\], but must have \[4, 8\]",
    ),
    (by_hand({"w": entry("F32", [2], 0, 8)}, bytes(6)), "tensors have 8 bytes, but the file has 6"),
    (by_hand({"w": entry("F32", [1], 0, 4)}, bytes(5)), "tensors have 4 bytes, but the file has 5"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_tensors(tmp_path / "model")
    shown = str(caught.value)
    assert shown.startswith(f"{tmp_path / 'model'}: ") and "\n" not in shown and len(shown) < 500


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb") as stream:
        stream.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        stream.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(CheckpointError, match=f"{MAX_HEADER_BYTES} fit"):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: None])
def test_what_can_not_be_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    with pytest.raises(CheckpointError, match="x: can't read it: "):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"v": (F32, (2,)), "w": (U8, (1,))}, None),
        ({"v": (F32, (2,))}, "x: tensor 'w' is unexpected"),
        (
            {"v": (F32, (2,)), "u": (U8, (1,))},
            "x: tensor 'u' is missing",
        ),
        (
            {"v": (F32, (1, 2))},
            r"tensor 'v' is F32 \[2\], but must be F32 \[1, 2\]",
        ),
        ({"v": (F16, (2,))}, r"tensor 'v' is F32 \[2\], but must be F16 \[2\]"),
    ],
)
def test_tensors_that_are_required(
    tmp_path: Path, expected: dict[str, Any], message: str | None
) -> None:
    tensors = {"v": np.zeros(2, np.float32), "w": np.zeros(1, np.uint8)}
    write_tensors(tmp_path / "x", *sources(tensors))
    found = read_tensors(tmp_path / "x")
    if message is None:
        require_tensors(tmp_path / "x", found, expected)
    else:
        with pytest.raises(CheckpointError, match=message):
            require_tensors(tmp_path / "x", found, expected)


def test_a_name_that_occurs_in_the_message_is_given_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(
        CheckpointError, match=r"^file: damaged or cut short: .* in a file of 0 bytes"
    ):
        read_tensors("file")
