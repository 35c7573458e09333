"""Token ids written and read back in every format."""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.cpu.library import library
from llmgpu.cpu.texts import CELL_IDS, format_ids, format_numbers, spell_cells
from llmgpu.errors import InputError, OutputError
from llmgpu.text import jsonl
from llmgpu.tokens import ids as decimal_text
from llmgpu.tokens import sinks
from llmgpu.tokens.bin import read_bin, read_side_file
from llmgpu.tokens.formats import FORMATS, open_writer, read_tokens
from llmgpu.tokens.sinks import TokenWriter
from tests.conftest import examples
from tests.tokens.writing import sized

VOCABULARY = 70_000
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def opened(path: object, format: str, size: int = VOCABULARY) -> TokenWriter:
    return open_writer(str(path), format, sized(size))


def read_in_blocks_of(block: int, patch: pytest.MonkeyPatch) -> None:
    for module in (decimal_text, sinks):
        patch.setattr(module, "BLOCK_BYTES", block)


def ids_of(*values: int) -> NDArray[np.uint32]:
    return np.array(values, np.uint32)


def starts_of(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def write_documents(writer: TokenWriter, documents: list[list[int]], cuts: list[int]) -> None:
    """Write the documents in pieces that end at `cuts`, which may fall anywhere."""
    stream = [i for document in documents for i in document]
    starts = np.cumsum([0, *map(len, documents)])[: len(documents)]
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    done = 0
    for begin, end in pairwise(bounds):
        # A start at a cut may come with either piece; here empty documents go with the first.
        upto = int(np.searchsorted(starts, end, side="right"))
        if end < len(stream) and upto > done:
            upto -= int(starts[upto - 1] == end)
        writer.write(EncodedSlice(ids_of(*stream[begin:end]), starts[done:upto] - begin, 3))
        done = upto


def read_all(path: object, format: str, **options: Any) -> list[int]:
    is_bin = format == "bin"
    blocks = list(read_bin(str(path), **options) if is_bin else read_tokens(str(path), format))
    assert all(block.dtype == np.int64 and block.ndim == 1 for block in blocks)
    return [i for block in blocks for i in block.tolist()]


def expected_text(documents: list[list[int]], format: str) -> bytes:
    if format == "ids":
        return "".join(" ".join(map(str, d)) + "\n" for d in documents).encode()
    return "".join('{"ids": [' + ",".join(map(str, d)) + "]}\n" for d in documents).encode()


@contextmanager
def collected(fifo: Path) -> Iterator[list[bytes]]:
    """What is written to a new pipe at `fifo`, once the block is left."""
    os.mkfifo(fifo)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    yield received
    reader.join()


# Round trips

some_ids = st.integers(0, VOCABULARY - 1)
documents_strategy = st.lists(st.lists(some_ids, max_size=6), max_size=8)
cuts_strategy = st.lists(st.integers(0, 40), max_size=4)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("piece", [3, 1 << 20])
def test_round_trip(tmp_path: Path, format: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decimal_text, "_BLOCK_IDS", piece)
        check_round_trip(tmp_path / "out", format)


def check_round_trip(path: Path, format: str) -> None:
    @settings(max_examples=examples(50))
    @given(documents_strategy, cuts_strategy, st.booleans())
    def check(documents: list[list[int]], cuts: list[int], small: bool) -> None:
        size = 1000 if small else VOCABULARY
        documents = [[i % size for i in document] for document in documents]
        with opened(path, format, size) as writer:
            write_documents(writer, documents, cuts)
        everything = [i for document in documents for i in document]
        assert (writer.ids, writer.documents) == (len(everything), len(documents))
        assert read_all(path, format) == everything
        if format in ("ids", "jsonl"):
            assert path.read_bytes() == expected_text(documents, format)
        if format == "npy":
            assert np.load(path).tolist() == everything
        if format == "bin":
            side = read_side_file(path)
            starts = np.cumsum([0, *map(len, documents)])[: len(documents)]
            assert side["document_offsets"] == starts.tolist()

    check()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("block", [1, 3, 10, 11])
def test_numbers_cut_by_a_block_of_the_reader(tmp_path: Path, format: str, block: int) -> None:
    path, ids = tmp_path / "out", [0, 7, 65_535, 65_536, 69_999, 12_345, 1, 2, 3]
    with opened(path, format) as writer:
        write_documents(writer, [ids, [], ids], [])
    with pytest.MonkeyPatch.context() as patch:
        read_in_blocks_of(block, patch)
        assert read_all(path, format) == ids * 2


def test_no_number_is_cut_in_two_by_a_block(tmp_path: Path) -> None:
    """Eleven digits are no id, even where a block ends after ten of them."""
    path = tmp_path / "f"
    for text in ("12345678901", "00000000001", "1 42949672951 2"):
        path.write_text(text)
        for block in range(1, 14):
            with pytest.MonkeyPatch.context() as patch:
                read_in_blocks_of(block, patch)
                with pytest.raises(InputError, match="is not a token id"):
                    read_all(path, "ids")


@pytest.mark.parametrize("format", FORMATS)
def test_no_documents_and_empty_documents(tmp_path: Path, format: str) -> None:
    for documents in ([], [[]], [[], []], [[], [7], []]):
        path = tmp_path / "out"
        with opened(path, format) as writer:
            if documents:
                write_documents(writer, documents, [])
        assert read_all(path, format) == [i for d in documents for i in d]
        if format in ("ids", "jsonl"):
            assert path.read_bytes() == expected_text(documents, format)


@pytest.mark.parametrize("format, after", [("ids", b"1 2\n"), ("jsonl", b'{"ids": [1,2]}\n')])
def test_a_closed_document_is_written_at_once(format: str, after: bytes) -> None:
    read_end, write_end = os.pipe()
    writer = opened(f"/dev/fd/{write_end}", format)
    writer.write(EncodedSlice(ids_of(1, 2), starts_of(0), closed=True))
    assert os.read(read_end, 100) == after
    # The second document has no id yet.
    writer.write(EncodedSlice(ids_of(1, 2), starts_of(0, 2), closed=True))
    writer.write(EncodedSlice(ids_of(3), starts_of()))
    writer.close()
    os.close(write_end)
    documents = expected_text([[1, 2], [3]], format)
    assert os.read(read_end, 100) == documents
    os.close(read_end)


@pytest.mark.parametrize("format", ["ids", "jsonl"])
def test_a_document_whose_ids_come_late(tmp_path: Path, format: str) -> None:
    with opened(tmp_path / "out", format) as writer:
        for ids, starts in (([], [0]), ([1, 2], []), ([3], []), ([], [0]), ([], [0]), ([4], [])):
            writer.write(EncodedSlice(ids_of(*ids), starts_of(*starts)))
    expected = expected_text([[1, 2, 3], [], [4]], format)
    assert (tmp_path / "out").read_bytes() == expected


@pytest.mark.parametrize("size, dtype", [(1, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
@pytest.mark.parametrize("format", ["npy", "bin"])
def test_the_number_of_ids_sets_the_dtype(
    tmp_path: Path, size: int, dtype: str, format: str
) -> None:
    path = tmp_path / "out"
    with opened(path, format, size) as writer:
        writer.write(EncodedSlice(ids_of(size - 1, 0), starts_of(0)))
    assert read_all(path, format) == [size - 1, 0]
    if format == "npy":
        assert np.load(path).dtype == np.dtype(dtype)
    else:
        assert np.fromfile(path, dtype).tolist() == [size - 1, 0]
        assert read_side_file(path)["dtype"] == dtype


def test_the_side_file(tmp_path: Path) -> None:
    path = tmp_path / "shard.bin"
    with opened(path, "bin") as writer:
        write_documents(writer, [[1, 2], [], [3]], [1])
    assert sorted(os.listdir(tmp_path)) == ["shard.bin", "shard.bin.json"]
    assert read_side_file(path) == {
        "format": "llmgpu-tokens",
        "version": 1,
        "dtype": "uint32",
        "byte_order": "little",
        "layout": "raw",
        "offset": 0,
        "count": 3,
        "bytes": 6,
        "vocabulary_size": VOCABULARY,
        "fingerprint": "f00d",
        "documents": 3,
        "continues": False,
        "length": 12,
        "sample_sha256": hashlib.sha256(np.array([1, 2, 3], "<u4").tobytes()).hexdigest(),
        "document_offsets": [0, 2, 2],
    }


def test_thenpy_header_has_one_length() -> None:
    for count in (0, 10**18):
        header = sinks.npy_header(np.dtype("<u4"), count)
        assert len(header) == 128
        stream = io.BytesIO(header)
        np.lib.format.read_magic(stream)
        assert np.lib.format.read_array_header_1_0(stream) == ((count,), False, np.dtype("<u4"))


# Where output goes


@pytest.mark.parametrize("format", FORMATS)
def test_an_exception_leaves_nothing(tmp_path: Path, format: str) -> None:
    with pytest.raises(KeyboardInterrupt), opened(tmp_path / "out", format) as writer:
        writer.write(EncodedSlice(ids_of(1), starts_of(0)))
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_a_side_file_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out.json").mkdir()
    expected = pytest.raises(OutputError, match=r"out.json: Is a directory")
    with expected, opened(tmp_path / "out", "bin") as writer:
        writer.write(EncodedSlice(ids_of(1), starts_of(0)))
    assert os.listdir(tmp_path) == ["out.json"]


@pytest.mark.parametrize("format", FORMATS)
def test_through_a_pipe(tmp_path: Path, format: str) -> None:
    documents = [[1, 69_999], [], [3]]
    with collected(tmp_path / "fifo") as received, opened(tmp_path / "fifo", format) as writer:
        write_documents(writer, documents, [1])
    (data,) = received
    if format in ("ids", "jsonl"):
        assert data == expected_text(documents, format)
    elif format == "npy":
        assert np.load(io.BytesIO(data)).tolist() == [1, 69_999, 3]
    else:
        assert np.frombuffer(data, "<u4").tolist() == [1, 69_999, 3]
    assert os.listdir(tmp_path) == ["fifo"]


@pytest.mark.parametrize("format", FORMATS)
def test_an_exception_on_a_pipe(tmp_path: Path, format: str) -> None:
    fifo = tmp_path / "fifo"
    interrupted = pytest.raises(KeyboardInterrupt)
    with collected(fifo) as received, interrupted, opened(fifo, format) as writer:
        writer.write(EncodedSlice(ids_of(1), starts_of(0)))
        raise KeyboardInterrupt
    assert received[0] == {"ids": b"1", "jsonl": b'{"ids": [1', "npy": b""}.get(format, b"\1\0\0\0")


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_device(format: str) -> None:
    expected = pytest.raises(OutputError, match="can't write /dev/full: No space left")
    with expected, opened("/dev/full", format) as writer:
        writer.write(EncodedSlice(ids_of(1), starts_of(0)))


@pytest.mark.parametrize("format", FORMATS)
def test_a_broken_pipe_passes(format: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with pytest.raises(BrokenPipeError), opened(f"/dev/fd/{write_end}", format) as writer:
        writer.write(EncodedSlice(ids_of(1), starts_of(0)))
    os.close(write_end)


@pytest.mark.parametrize("format", FORMATS)
def test_standard_streams(monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    stdout = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout))
    with opened("-", format) as writer:
        write_documents(writer, [[5, 6]], [])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdout.getvalue())))
    assert read_all("-", format, vocabulary_size=VOCABULARY) == [5, 6]


def test_an_id_beyond_the_vocabulary(tmp_path: Path) -> None:
    expected = pytest.raises(OutputError, match="id 300 is beyond the vocabulary of 300 tokens")
    with expected, opened(tmp_path / "out", "npy", 300) as writer:
        writer.write(EncodedSlice(ids_of(299, 300), starts_of(0)))


def test_unknown_formats_and_missing_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'txt': use one of ids, jsonl, npy, bin"):
        opened(tmp_path / "out", "txt")
    with pytest.raises(InputError, match="'txt': use one of ids, jsonl, npy, bin"):
        read_tokens(tmp_path / "out", "txt")
    with pytest.raises(OutputError, match="No such file"):
        opened(tmp_path / "no" / "out", "ids")


# Reading decimal text


@same_folder
@given(st.lists(st.integers(0, 2**32 - 1), max_size=20), st.integers(1, 20))
def test_numbers_split_across_reads(tmp_path: Path, ids: list[int], block: int) -> None:
    path = tmp_path / "f"
    path.write_text(" ".join(map(str, ids)))
    with pytest.MonkeyPatch.context() as patch:
        read_in_blocks_of(block, patch)
        assert read_all(path, "ids") == ids


@pytest.mark.parametrize("block", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    "word", ["x", "-1", "1.5", "1;2", "4294967296", "99999999999", "9" * 99, "\u00e9", "0x1", "\0"]
)
def test_what_is_no_id_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, word: str
) -> None:
    read_in_blocks_of(block, monkeypatch)
    path = tmp_path / "f"
    path.write_text(f"1 2\n\n 3\t4 {word} 5\n6", encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(f"{path}, line 3: ") + ".* is not a token id"):
        read_all(path, "ids")


@pytest.mark.parametrize(
    ("length", "shown"), [(40, "'" + "x" * 40 + "' is"), (41, "x" * 40 + "...")]
)
def test_forty_characters_of_a_word_are_shown(tmp_path: Path, length: int, shown: str) -> None:
    path = tmp_path / "f"
    path.write_text("1 " + "x" * length)
    with pytest.raises(InputError, match=re.escape(shown)):
        read_all(path, "ids")


def test_the_whole_word_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("1 12-5\n")
    with pytest.raises(InputError, match="line 1: '12-5' is not"):
        read_all(path, "ids")


def test_the_first_number_that_is_no_id_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("4294967295 4294967296 4294967297\n")
    with pytest.raises(InputError, match="line 1: '4294967296' is not"):
        read_all(path, "ids")


def test_white_space_between_ids(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\r\n 1\t\t2\r\n007   4294967295\n\n")
    assert read_all(path, "ids") == [1, 2, 7, 2**32 - 1]


def test_ids_flow_through_a_pipe() -> None:
    read_end, write_end = os.pipe()
    blocks = read_tokens(f"/dev/fd/{read_end}", "ids")
    os.write(write_end, b"1 2\n3")
    assert next(blocks).tolist() == [1, 2]
    os.write(write_end, b"4\n")
    assert next(blocks).tolist() == [34]
    os.close(write_end)
    assert list(blocks) == []
    os.close(read_end)


# Reading JSON Lines


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"id": [1]}', "no list of ids"),
        ('{"ids": 1}', "no list of ids"),
        ('{"ids": [1, "x"]}', '"x" is not a token id'),
        ('{"ids": [true]}', "true is not a token id"),
        ('{"ids": [1.0]}', "1.0 is not a token id"),
        ('{"ids": [0, -1]}', "-1 is not a token id"),
        ('{"ids": [4294967296]}', "4294967296 is not a token id"),
        ('{"ids": [[1]]}', r"\[1\] is not a token id"),
    ],
)
def test_bad_lines_of_jsonl(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "f"
    path.write_text('{"ids": [1]}\n' + line)
    with pytest.raises(InputError, match=re.escape(f"{path}, line 2: ") + message):
        read_all(path, "jsonl")


def test_other_fields_and_blocks_of_jsonl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decimal_text, "_BLOCK_IDS", 2)
    path = tmp_path / "f"
    path.write_text('{"text": "x", "ids": [1, 2, 3]}\n\n{"ids": []}\n{"ids": [4]}')
    assert read_all(path, "jsonl") == [1, 2, 3, 4]


def test_a_jsonl_line_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LINE_BYTES", 10)
    path = tmp_path / "f"
    path.write_text('{"ids": [1, 2, 3]}')
    with pytest.raises(InputError, match="line 1: longer than 10 bytes"):
        read_all(path, "jsonl")


@pytest.mark.parametrize("format", FORMATS)
def test_a_missing_file(tmp_path: Path, format: str) -> None:
    with pytest.raises(InputError, match=r"no such file: '.*gone'"):
        read_tokens(tmp_path / "gone", format)


@pytest.mark.parametrize("format", ["ids", "jsonl"])
@pytest.mark.parametrize("least", [0, 1 << 30])  # ids of a slice from which on C spells them
@settings(same_folder, max_examples=examples(50))
@given(documents_strategy, cuts_strategy)
def test_c_and_numpy_spell_ids(
    tmp_path: Path, format: str, least: int, documents: list[list[int]], cuts: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decimal_text, "_LEAST_IDS", least)
        with opened(tmp_path / "ids", format) as writer:
            write_documents(writer, documents, cuts)
    assert (tmp_path / "ids").read_bytes() == expected_text(documents, format)


@pytest.mark.skipif(library() is None, reason="there is no CPU engine")
def test_every_id_is_spelled() -> None:
    cells = spell_cells(CELL_IDS, b",")
    text = bytes(format_ids(cells, np.arange(CELL_IDS, dtype=np.uint32), starts_of(0), b"["))
    assert text == b"[" + ",".join(map(str, range(CELL_IDS))).encode()


@pytest.mark.parametrize("numbers", [[], [0], [0, 9, 10, 99, 100], [0, 10**18, 2**63 - 1]])
def test_document_offsets_are_written_as_json_does(numbers: list[int]) -> None:
    assert bytes(format_numbers(np.array(numbers, np.int64))) == str(numbers)[1:-1].encode()


@pytest.mark.parametrize("block", [3, 1 << 20])
def test_lists_as_programs_print_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    read_in_blocks_of(block, monkeypatch)
    (tmp_path / "x").write_text("[15339, 1917]\n1,2,[3]\n[]")
    found = np.concatenate(list(read_tokens(tmp_path / "x", "ids")))
    assert found.tolist() == [15339, 1917, 1, 2, 3]
    (tmp_path / "x").write_text('1\n{"ids": [1]}')
    with pytest.raises(InputError, match=r"line 2: '{\"id.* \(JSON lines need --format jsonl\)"):
        list(read_tokens(tmp_path / "x", "ids"))
    (tmp_path / "x").write_text('{"ids": [1]}')  # which only a pipe may begin with
    with pytest.raises(InputError, match=r"line 1: '{\"ids\":' \(JSON lines need"):
        list(read_tokens(tmp_path / "x", "ids"))
