"""Reading a corpus to its end, with a check of every fill on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from llmgpu.text.corpus import Corpus, Fill


def read_fills(corpus: Corpus, size: int = 1 << 16) -> Iterator[tuple[Fill, bytes]]:
    """Yield every fill with its text, checking what must hold for each."""
    buffer = np.full(size, 0xEE, np.uint8)
    closed, end = True, False
    while not end:
        fill = corpus.read_into(buffer)
        starts = fill.document_starts
        assert starts.dtype == np.int64
        assert all(0 <= start <= fill.length for start in starts)
        assert (np.diff(starts) >= 0).all()
        assert fill.length or fill.end or len(starts)
        closed, end = fill.closed, fill.end
        yield fill, buffer[: fill.length].tobytes()
    assert closed
    last = corpus.read_into(buffer)
    assert (last.length, len(last.document_starts), last.closed, last.end) == (0, 0, True, True)


def read_documents(corpus: Corpus, size: int = 1 << 16) -> list[bytes]:
    """Return the documents, read through a buffer of `size` bytes."""
    text, starts = b"", []
    closed_at = [0]
    for fill, data in read_fills(corpus, size):
        starts += (fill.document_starts + len(text)).tolist()
        text += data
        if fill.closed:
            closed_at.append(len(text))
    assert corpus.text_bytes == len(text)
    assert corpus.documents == len(starts)
    assert set(closed_at) <= {0, len(text), *starts}, "closed where no document ends"
    if not starts:
        assert not text
        return []
    assert starts[0] == 0
    ends = [*starts[1:], len(text)]
    return [text[begin:end] for begin, end in zip(starts, ends, strict=True)]


def write(folder: Path, name: str, data: bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def split_lines(pieces: list[bytes]) -> list[bytes]:
    """What line documents are: pieces cut behind every newline."""
    return [line for piece in pieces for line in re.findall(rb"[^\n]*\n|[^\n]+", piece)]
