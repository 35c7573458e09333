"""The text that is measured on: reproducible, UTF-8 by default, and cut after a line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from llmgpu.bench.results import TextFacts
from llmgpu.bench.tokenizers import (
    Job,
    describe_text,
    is_utf8,
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
    assert text == load_text([], LIMIT)
    assert text.endswith(b"\n")
    facts = TextFacts("Python's standard library", len(text), hashlib.sha256(text).hexdigest())
    assert describe_text([], text) == facts


def test_default_text_is_utf8_for_the_peers() -> None:
    text = load_text([], 1 << 40)
    assert is_utf8(text)
    assert len(text) > 1_000_000


def test_text_is_cut_after_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert load_text([str(path)], 14) == b"one\ntwo\nthree\n"
    assert load_text([str(path)], 13) == b"one\ntwo\n"
    assert load_text([str(path)], 2) == b"on"
    job = Job(load_text([str(path)], 100), tmp_path, 300, "gpt2", 1)
    assert job.smaller(5, 300).text == b"one\n"


def test_empty_corpus(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(InputError, match="no text"):
        load_text([str(path)], 100)


def test_generated_text_stands_alone() -> None:
    with pytest.raises(InputError, match="with other sources"):
        load_text(["generated", "file"], 100)
