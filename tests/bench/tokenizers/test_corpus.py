"""The text that is measured on: reproducible, UTF-8 by default, and cut after a line; what is
generated: its size, its bytes, and how many distinct words it has.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from llmgpu.bench.tokenizers.corpus import (
    _Words,
    generate_text,
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
    with pytest.raises(InputError, match="no other sources"):
        load_text(["generated", "file"], 100)


def generated(nbytes: int, seed: int = 0) -> bytes:
    return b"".join(generate_text(nbytes, seed))


@pytest.mark.parametrize("nbytes", [0, 1, 2, 5, 1000, 99_991, 400_001])
def test_size_is_exact_and_text_is_utf8(nbytes: int) -> None:
    text = generated(nbytes)
    assert len(text) == nbytes
    assert text.decode().encode() == text
    assert text.endswith(b"\n" if nbytes else b"")


def test_every_cut_is_utf8() -> None:
    text = generated(3000)
    first = next(index for index, byte in enumerate(text) if byte >= 0x80)
    for nbytes in range(first - 2, first + 8):
        cut = generated(nbytes)
        assert cut.decode()
        assert text.startswith(cut[: nbytes - 4])


def test_a_seed_gives_the_same_bytes_everywhere() -> None:
    text = generated(1_000_000)
    assert text == generated(1_000_000)
    assert text != generated(1_000_000, seed=1)
    assert text[:699_996] == generated(700_000)[:-4]
    digest = "5fd62d81facc4d2d7db20fb6c32c8a4ae91c90fbecdefa296a77bb7af0d5d578"
    assert hashlib.sha256(text).hexdigest() == digest


def test_blocks_are_small_and_differ() -> None:
    blocks = list(generate_text(1_500_000))
    assert max(map(len, blocks)) < 250_000
    assert len(set(blocks)) == len(blocks)


def test_words_look_like_words() -> None:
    words = generated(1_000_000).decode().split()
    letters = [len(word.strip(".,;:?")) for word in words]
    assert 4 < sum(letters) / len(letters) < 6
    assert max(letters) < 20
    assert 0.003 < sum(not word.isascii() for word in words) / len(words) < 0.05
    assert set(".,;:?0") < set("".join(words))


def test_distinct_words_grow_as_in_real_text() -> None:
    words = generated(12_000_000).split()
    few, some, many = (len(set(words[: len(words) >> shift])) for shift in (6, 3, 0))
    assert 0.6 < math.log(some / few, 8) < 0.75
    assert 0.55 < math.log(many / some, 8) < 0.65


def test_ranks_have_spellings_of_their_own() -> None:
    words = _Words()
    for first in (0, 2000, (1 << 19) - 5000, (1 << 32) - 10_000):
        ranks = np.arange(first, first + 10_000, dtype=np.uint64)
        assert len(set(map(bytes, words._spell(ranks)[:, :4]))) == len(ranks)
