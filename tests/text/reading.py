"""Reading a corpus to its end, with a check of every piece on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from llmgpu.text.corpus import Corpus
from llmgpu.text.documents import Piece


def read_pieces(corpus: Corpus, size: int = 1 << 16) -> Iterator[tuple[Piece, bytes]]:
    """Yield every piece with its text, checking what must hold for each."""
    buffer = np.full(size, 0xEE, np.uint8)
    closed, end = True, False
    while not end:
        piece = corpus.read_into(buffer)
        starts = piece.starts
        assert starts.dtype == np.int64
        assert all(0 <= start <= piece.length for start in starts)
        assert (np.diff(starts) >= 0).all()
        assert piece.length or piece.end or len(starts)
        closed, end = piece.closed, piece.end
        yield piece, buffer[: piece.length].tobytes()
    assert closed
    last = corpus.read_into(buffer)
    assert (last.length, len(last.starts), last.closed, last.end) == (0, 0, True, True)


def read_documents(corpus: Corpus, size: int = 1 << 16) -> list[bytes]:
    """Return the documents, read through a buffer of `size` bytes."""
    text, starts = b"", []
    closed_at = [0]
    for piece, data in read_pieces(corpus, size):
        starts += (piece.starts + len(text)).tolist()
        text += data
        if piece.closed:
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
