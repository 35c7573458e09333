"""The text that is measured on: reproducible, UTF-8 by default, and cut after a line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from llmgpu.bench.tokenizers import (
    load_text,
    standard_library_files,
)
from llmgpu.errors import InputError

LIMIT = 20_000


def test_default_text_is_reproducible() -> None:
    files = standard_library_files()
    assert files == sorted(files)
    assert not any("site-packages" in path.parts for path in files)
    text = load_text([], LIMIT)
    assert text.data == load_text([], LIMIT).data
    assert text.data.endswith(b"\n")
    assert text.describe().sha256 == hashlib.sha256(text.data).hexdigest()


def test_default_text_is_utf8_for_the_peers() -> None:
    text = load_text([], 1 << 40)
    assert text.is_utf8
    assert len(text.data) > 1_000_000


def test_text_is_cut_after_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert load_text([str(path)], 14).data == b"one\ntwo\nthree\n"
    assert load_text([str(path)], 13).data == b"one\ntwo\n"
    assert load_text([str(path)], 2).data == b"on"
    assert load_text([str(path)], 100).first(5).data == b"one\n"


def test_empty_corpus(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(InputError, match="no text"):
        load_text([str(path)], 100)


def test_generated_text_stands_alone() -> None:
    with pytest.raises(InputError, match="with other sources"):
        load_text(["generated", "file"], 100)
