"""Files that change while they are read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmgpu.errors import InputError
from llmgpu.text.corpus import Corpus, CorpusOptions

LINES = b"".join(json.dumps({"text": f"line {k}"}).encode() + b"\n" for k in range(2000))


def parquet(data: bytes) -> bytes:
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    made = io.BytesIO()
    rows = data.decode().splitlines()
    files.write_table(arrow.table({"text": rows}), made, row_group_size=100, compression="none")
    return made.getvalue()


FORMATS: dict[str, Callable[[bytes], bytes]] = {
    "a.txt": bytes,
    "a.jsonl": bytes,
    "a.txt.gz": gzip.compress,
    "a.jsonl.bz2": bz2.compress,
    "a.txt.xz": lzma.compress,
    "a.parquet": parquet,
}


def shrink(path: Path, data: bytes) -> None:
    os.truncate(path, len(data) - 1)


def grow(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data[:1])


def rewrite(path: Path, data: bytes) -> None:
    """As many bytes, later: the clock of a file system moves in steps.

    The file is not emptied first, because a thread that reads ahead would see no bytes.
    """
    with path.open("r+b") as file:
        file.write(data)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


@pytest.mark.parametrize("change", [shrink, grow, rewrite])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("limit", [None, 5000])
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, name: str, change: Callable[[Path, bytes], None], limit: int | None
) -> None:
    path = tmp_path / name
    data = FORMATS[name](LINES)
    path.write_bytes(data)
    (tmp_path / "b.txt").write_bytes(b"unchanged")
    names = [str(path), str(tmp_path / "b.txt")]
    buffer = np.empty(1000, np.uint8)
    with Corpus(names, CorpusOptions(limit=limit)) as corpus:
        corpus.read_into(buffer)
        change(path, data)
        what = "was rewritten at the same length" if change is rewrite else r"has \d+ now"
        found = rf"{name} was changed while it was read: it had \d+ bytes and {what};"
        with pytest.raises(InputError, match=found):
            while not corpus.read_into(buffer).end:
                pass


def test_a_file_that_changes_after_it_was_found(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one")
    with Corpus([str(path)]) as corpus:
        path.write_bytes(b"three")
        with pytest.raises(InputError, match="it had 3 bytes and has 5 now"):
            while not corpus.read_into(np.empty(100, np.uint8)).end:
                pass
