"""Text from ``.parquet`` files: a column, each row a document."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgpu.errors import InputError
from llmgpu.text import tables
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import Selection, resolve_sources
from tests.conftest import examples
from tests.text.reading import read_documents, split_lines, write

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
BYTES = pa.binary()


def table(path: Path, values: list[Any], kind: Any = None, **options: Any) -> str:
    columns = {"id": pa.array(range(len(values))), "text": pa.array(values, kind or pa.string())}
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def read_and_close(paths: list[str], options: CorpusOptions | None = None) -> list[bytes]:
    with Corpus(paths, options) as corpus:
        return read_documents(corpus)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(
    st.lists(st.none() | st.text(max_size=9), max_size=20),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 40),
)
def test_rows_are_documents(
    tmp_path: Path, texts: list[str | None], group: int, rows: int, size: int
) -> None:
    path = table(tmp_path / "f.parquet", texts, row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_BATCH_ROWS", rows)
        patch.setattr(tables, "_AHEAD_BYTES", 20)  # of each row group, the rest in its turn
        corpus = Corpus([path])
        assert read_documents(corpus, size) == [t.encode() for t in texts if t is not None]
    assert corpus.policy.null_rows == texts.count(None)
    assert corpus.total_bytes == os.path.getsize(path)
    assert corpus.bytes_read == (corpus.total_bytes if texts else 0)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_types_of_text(tmp_path: Path, kind: Any, compression: str) -> None:
    values: list[Any] = ["one", None, "", "\u00e9", "one"]
    if "binary" in str(kind):
        values = [value and value.encode() for value in values]
    path = table(tmp_path / "F.PARQUET", values, kind, compression=compression)
    assert read_documents(Corpus([path])) == [b"one", b"", "\u00e9".encode(), b"one"]


def test_null_rows_of_several_files(tmp_path: Path) -> None:
    paths = [table(tmp_path / f"{i}.parquet", ["a", None, None]) for i in range(2)]
    corpus = Corpus([*paths, write(tmp_path, "f.txt", b"plain")])
    assert read_documents(corpus) == [b"a", b"a", b"plain"]
    assert corpus.policy.null_rows == 4


def test_separators_lines_and_limits(tmp_path: Path) -> None:
    path = table(tmp_path / "f.parquet", ["a-b\nc", "", "d"])
    assert read_documents(Corpus([path], CorpusOptions(separators=(b"-",)))) == [
        b"a",
        b"b\nc",
        b"",
        b"d",
    ]
    lines = CorpusOptions(line_documents=True)
    assert read_documents(Corpus([path], lines)) == split_lines([b"a-b\nc", b"", b"d"])
    assert read_documents(Corpus([path], CorpusOptions(limit=3))) == [b"a-b"]


def test_another_column(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a.b": ["dotted"], "text": ["text"], "n": [1]}), path)
    assert read_documents(Corpus([str(path)], CorpusOptions(text_field="a.b"))) == [b"dotted"]
    columns = "the columns are: 'a.b' (string), 'text' (string), 'n' (int64)"
    for column, message in [("body", "no column 'body'"), ("n", "column 'n' is not text")]:
        expected = re.escape(f"{path}: {message}; {columns}")
        with pytest.raises(InputError, match=expected):
            read_documents(Corpus([str(path)], CorpusOptions(text_field=column)))


def test_a_field_of_a_column(tmp_path: Path) -> None:
    rows = [{"b": {"c": "one"}}, None, {"b": None}, {"b": {"c": None}}, {"b": {"c": "two"}}]
    pq.write_table(pa.table({"a": rows, "x.y": list("12345")}), tmp_path / "f.parquet")
    path = str(tmp_path / "f.parquet")
    assert read_and_close([path], CorpusOptions(text_field="a.b.c")) == [b"one", b"two"]
    assert read_and_close([path], CorpusOptions(text_field="x.y")) == [b"1", b"2", b"3", b"4", b"5"]
    for name, message in (
        ("a.b", "column 'a.b' is not text"),
        ("a.b.d", "no column 'a.b.d'"),
        ("a.b.c.d", "no column 'a.b.c.d'"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            read_and_close([path], CorpusOptions(text_field=name))


def test_columns_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(InputError, match="2 columns 'text'"):
        read_documents(Corpus([str(path)]))


def test_many_columns(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({f"c{i}": [i] for i in range(1000)}), path)
    with pytest.raises(
        InputError, match=r"no column 'text'; .*'c19' \(int64\), \.\.\.; choose one with"
    ):
        read_documents(Corpus([str(path)]))


def test_invalid_utf8(tmp_path: Path) -> None:
    path = table(tmp_path / "f.parquet", [b"ok", None, b"a\xff", b"\xe2\x82"], BYTES)
    assert read_documents(Corpus([path])) == [b"ok", b"a\xff", b"\xe2\x82"]
    corpus = Corpus([path], CorpusOptions(encoding_errors="replace"))
    assert read_documents(corpus) == [b"ok", "a\ufffd".encode(), "\ufffd".encode()]
    assert corpus.policy.invalid_sequences == 2
    with pytest.raises(InputError, match="row 3: invalid UTF-8 at byte 1"):
        read_and_close([path], CorpusOptions(encoding_errors="strict"))


def test_damaged_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.bytes(300).hex() for _ in range(300)]
    whole = Path(table(tmp_path / "whole.parquet", texts, row_group_size=50)).read_bytes()
    middle = bytearray(whole)
    middle[5000:60_000] = rng.bytes(55_000)
    end = bytearray(whole)
    end[-200:-8] = rng.bytes(192)
    damaged = [b"", b"x", b"PAR1PAR1", b"no such format" * 9, whole[:-20], whole[:5000], whole[9:]]
    for number, data in enumerate([*damaged, bytes(middle), bytes(end)]):
        path = write(tmp_path, f"{number}.parquet", data)
        with pytest.raises(
            InputError, match=re.escape(f"{path}: damaged, or not a parquet file (")
        ):
            read_and_close([path])


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.parquet")
    with pytest.raises(InputError, match="can't be read from a pipe"):
        Corpus([str(tmp_path / "f.parquet")])


def test_a_file_whose_name_is_not_utf8(tmp_path: Path) -> None:
    path = str(tmp_path / os.fsdecode(b"\xff.parquet"))
    os.rename(table(tmp_path / "f.parquet", ["a", "b"]), path)
    assert read_and_close([path]) == [b"a", b"b"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_arrow_file_as_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    data = pa.table({"text": ["one", None, "two"]})
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(str(tmp_path / "f"), data.schema) as writer:
        writer.write_table(data, max_chunksize=1)
    with open(tmp_path / "f", "rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        sources = resolve_sources(["-"], Selection(input_format="arrow"))
        with Corpus(sources) as corpus:
            assert read_documents(corpus) == [b"one", b"two"]


def test_a_file_that_went_away(tmp_path: Path) -> None:
    path = table(tmp_path / "f.parquet", ["a"])
    corpus = Corpus([path])
    os.unlink(path)
    with pytest.raises(InputError, match=re.escape(f"can't read {path}: No such file")):
        read_documents(corpus)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "f.parquet", ["a"])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    message = "needs the package pyarrow.parquet: pip install 'llmgpu[parquet]'"
    with pytest.raises(InputError, match=re.escape(message)):
        Corpus([path])


def test_a_page_that_claims_two_gigabytes_takes_no_such_memory(tmp_path: Path) -> None:
    path = Path(table(tmp_path / "f.parquet", ["abc"] * 99, compression="NONE", use_dictionary=[]))
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(1)
    # The header of the page: its type, its size, and its size when compressed (zigzag varints).
    data, first = path.read_bytes(), chunk.data_page_offset
    sizes = re.compile(rb"\x15\x00(\x15[\x80-\xff]*[\x00-\x7f])\x15([\x80-\xff]*[\x00-\x7f])")
    header = sizes.match(data, first)
    assert header is not None
    claimed = b"\xfe\xff\xff\xff\x0f"  # 2^31 - 1
    rest = data[header.end() : first + chunk.total_compressed_size]
    cut = len(rest) - (len(claimed) - len(header[2]))  # so that all offsets stay
    end = data[first + chunk.total_compressed_size :]
    path.write_bytes(data[: header.start(2)] + claimed + rest[:cut] + end)
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    with pytest.raises(InputError, match="Page was smaller"):
        read_and_close([str(path)])
    assert pool.max_memory() <= max(before, 1 << 24)
