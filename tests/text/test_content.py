"""What is compressed, what is not text, what is JSON Lines: by the first bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import numpy as np
import pytest

from llmgpu.errors import InputError
from llmgpu.text.streams import (
    HEAD_BYTES,
    binary_format,
    check_text,
    looks_like_jsonl,
    read_mark,
)

COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def archive(kind: str) -> bytes:
    memory = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(memory, "w") as file:
            file.writestr("a.txt", "text")
    else:
        with tarfile.open(fileobj=memory, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("a.txt"))
    return memory.getvalue()


def array() -> bytes:
    memory = io.BytesIO()
    np.save(memory, np.arange(300))
    return memory.getvalue()


def test_marks_of_compression() -> None:
    """Bytes that come one at a time are waited for only while they may be a mark."""
    for suffix, compress in COMPRESS.items():
        data = compress(b"text")
        assert read_mark(io.BytesIO(data).read) == (data, suffix)
        slow = io.BytesIO(data)
        head, found = read_mark(lambda _, slow=slow: slow.read(1))
        assert (found, len(head)) == (suffix, {".gz": 3, ".bz2": 3, ".xz": 6}[suffix])
    for text in (b"", b"B", b"BZ", b"\x1f", b"hello", b"\x1f\x8b", b"\x28\xb5\x2f"):
        assert read_mark(io.BytesIO(text).read) == (text, "")
    slow = io.BytesIO(b"a line\n")
    assert read_mark(lambda _: slow.read(1)) == (b"a", "")  # a terminal is not waited for


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a picture"),
        (b"\x7fELF\x02\x01\x01\0\0", "a program"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF"),
        (archive("zip"), "a compressed file"),
        (archive("tar"), "an archive of tar"),
        (gzip.compress(b"text", mtime=0), "a compressed file"),
        (array(), "a NumPy array"),
        (b"SQLite format 3\0\x10\0", "a database"),
        (b"PAR1\x15\x04\x15", "a Parquet file"),
        (b"ARROW1\0\0\xff\xff\xff\xff", "an Arrow file"),
        ("text".encode("utf-16"), "text in UTF-16, not UTF-8"),
        (b"\xfe\xff\0t\0e", "text in UTF-16, not UTF-8"),
    ],
)
def test_what_is_not_text(data: bytes, what: str) -> None:
    assert binary_format(data) == what
    with pytest.raises(
        InputError, match=f"x is {what}: .* or read it as raw bytes with --input-format bytes"
    ):
        check_text(data, "x")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"PAR1 is how Parquet files begin",
        b"%PDF-1.7 begins a PDF",
        b"BZh is the mark of bzip2",
        "déjà vu".encode(),
        "é".encode() * HEAD_BYTES,  # cut in a character
        b"latin: d\xe9j\xe0 vu",
        b"\xef\xbb\xbfwith a byte order mark",
        b"a\0b",
        b"\xff\xfe not UTF-16 \0",
    ],
)
def test_what_may_be_text(text: bytes) -> None:
    check_text(text[: HEAD_BYTES - 1], "x")


def test_json_lines() -> None:
    row = json.dumps({"text": "a", "n": [1, {"b": 2}]}).encode()
    for text in (row, row + b"\n", b"\n".join([row] * 3), row + b"\r\n" + row[:9]):
        assert looks_like_jsonl(text, 1), text
    assert not looks_like_jsonl(row, 2) and looks_like_jsonl(row + b"\n" + row, 2)
    long = json.dumps({"text": "a" * 2 * HEAD_BYTES}).encode()[:HEAD_BYTES]
    assert looks_like_jsonl(long, 1) and not looks_like_jsonl(long[:-1], 1)
    pretty = json.dumps({"text": "a", "n": 2}, indent=1).encode()
    for text in (b"", pretty, b"[1]\n[2]", b'{"a": 1} and more', row + b"\nnot JSON", b"{x"):
        assert not looks_like_jsonl(text, 1), text
