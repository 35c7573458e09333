"""Files that are read before their turn: the texts, and what fails, come in order all the same."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmgpu.errors import InputError
from llmgpu.text import streams
from llmgpu.text.corpus import Corpus, CorpusOptions
from tests.text.reading import read_documents, write

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.fixture(params=[0, 3], ids=["in turn", "ahead"])
def files_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in ("llmgpu.text.corpus", "llmgpu.text.streams"):
        monkeypatch.setattr(f"{module}.files_ahead", lambda: request.param)
    monkeypatch.setattr(streams, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(streams, "_BLOCKS_AHEAD", 5)
    return int(request.param)


def text_of(number: int, nbytes: int) -> bytes:
    letters = np.random.default_rng(number).integers(97, 123, nbytes, np.uint8)
    letters[::20] = ord("\n")
    return letters.tobytes()


def make_files(folder: Path, lengths: list[int]) -> tuple[list[str], list[bytes]]:
    """Make files of all compressions by turns, with a plain one between, and .jsonl."""
    paths, texts = [], []
    endings = [*COMPRESS, ""]
    for number, nbytes in enumerate(lengths):
        text, ending = text_of(number, nbytes), endings[number % len(endings)]
        data = text
        if number % 3 == 2:
            data = json.dumps({"text": text.decode()}).encode()
            ending = f".jsonl{ending}"
        packed = COMPRESS.get(f".{ending.rpartition('.')[2]}", bytes)(data)
        paths.append(write(folder, f"{number}{ending}", packed))
        texts.append(text)
    return paths, texts


def test_the_texts_are_in_order(tmp_path: Path, files_ahead: int) -> None:
    paths, texts = make_files(tmp_path, [10, 20_000, 0, 3000, 1, 12_000, 7, 7000, 5000, 30])
    for size in (100, 1 << 16):
        corpus = Corpus(paths)
        assert read_documents(corpus, size) == texts
        assert corpus.bytes_read == corpus.total_bytes


def test_what_fails_is_said_in_its_turn(tmp_path: Path, files_ahead: int) -> None:
    paths, texts = make_files(tmp_path, [9000] * 5)
    damaged = Path(paths[1])
    damaged.write_bytes(damaged.read_bytes()[:-9])
    corpus, buffer, found = Corpus(paths), np.empty(700, np.uint8), b""
    with corpus, pytest.raises(InputError, match=r"damaged or truncated \.bz2 file"):
        while True:
            found += corpus.read_into(buffer).text.tobytes()
    assert found.startswith(texts[0]) and texts[1].startswith(found[len(texts[0]) :])
    # A limit before it is reached without a word.
    with Corpus(paths, CorpusOptions(limit=9000)) as corpus:
        assert read_documents(corpus) == texts[:1]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are not listed here")
def test_nothing_is_left_open(tmp_path: Path, files_ahead: int) -> None:
    paths, texts = make_files(tmp_path, [9000] * 6)
    before = os.listdir("/proc/self/fd")
    for options in (CorpusOptions(limit=9500), CorpusOptions()):
        with Corpus(paths, options) as corpus:
            corpus.read_into(np.empty(100, np.uint8))
        assert os.listdir("/proc/self/fd") == before
    corpus = Corpus(paths, CorpusOptions(limit=9500))
    assert read_documents(corpus) == [texts[0], texts[1][:500]]
    assert os.listdir("/proc/self/fd") == before


def test_a_fast_gzip_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("isal", reason="the package isal is not installed")
    parts = [text_of(1, 3000), b"", text_of(2, 100_000)]
    path = write(tmp_path, "a.gz", b"".join(map(gzip.compress, parts)))
    assert read_documents(Corpus([path])) == [b"".join(parts)]
    for data in (gzip.compress(parts[2])[:-20], b"\x1f\x8b\x08" + bytes(50), b"no gzip"):
        path = write(tmp_path, "b.gz", data)
        with pytest.raises(InputError, match=r"damaged or truncated \.gz file"):
            read_documents(Corpus([path]))
