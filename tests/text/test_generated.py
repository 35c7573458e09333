"""Generated text: its size, its bytes, and how many distinct words it has."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from llmgpu.text.generated import _Words, generate_text


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


def test_blocks_are_the_same_without_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Words()
    monkeypatch.setenv("LLMGPU_CPU", "numpy")
    plain = _Words()
    # Block 5087 has a word of rank 2^19, the first one of four syllables.
    for seed, numbers in ((0, [0, 1, 5087]), (3, [10**9]), (1 << 40, [7, 5])):
        assert made.blocks(seed, numbers) == plain.blocks(seed, numbers)


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
