"""Files of word counts added up in bounded memory: the sum is that of adding them up in memory."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgpu.bpe.words import counts_file as module
from llmgpu.bpe.words.counts_file import (
    CountsReader,
    add_counts,
    load_counts,
    merge_counts,
    save_counts,
)
from llmgpu.bpe.words.distinct_words import MAX_TEXT_BYTES, WordCounts
from llmgpu.errors import InputError
from tests.bpe.word_lists import as_words, listed

WORD = st.lists(st.sampled_from(b"\x00ab\xff"), min_size=1, max_size=9).map(bytes)
COUNTS = st.dictionaries(WORD, st.integers(1, 1 << 40), max_size=9)


def write(path: Path, counts: dict[bytes, int], documents: int = 2) -> Path:
    save_counts(path, WordCounts(as_words(counts), documents, "gpt2", (b"<|end|>",)))
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(COUNTS, st.integers(1, 5)), min_size=1, max_size=5), st.integers(1, 200))
def test_the_sum_is_that_of_all_in_memory(
    tmp_path: Path, parts: list[tuple[dict[bytes, int], int]], block_bytes: int
) -> None:
    paths = [write(tmp_path / f"{k}", counts) for k, (counts, _) in enumerate(parts)]
    weights = [weight for _, weight in parts]
    repeated = [path for path, weight in zip(paths, weights, strict=True) for _ in range(weight)]
    expected = add_counts([load_counts(path) for path in repeated])
    save_counts(tmp_path / "expected", expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_BYTES", block_bytes)
        patch.setattr(module, "_LEAST_BLOCK", 1)
        made = merge_counts(paths, tmp_path / "sum", weights)
    assert (tmp_path / "sum").read_bytes() == (tmp_path / "expected").read_bytes()
    assert made == {
        "output": str(tmp_path / "sum"),
        "distinct_words": len(expected.words),
        "text_bytes": expected.words.text_bytes,
        "documents": expected.documents,
    }
    assert expected.documents == 2 * sum(weights)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1 << 14)
    draw = random.Random(3)

    def peak(words: int) -> int:
        counts = [{draw.randbytes(12): 1 + k % 7 for k in range(words)} for _ in range(3)]
        paths = [write(tmp_path / f"{k}", part) for k, part in enumerate(counts)]
        tracemalloc.start()
        merge_counts(paths, tmp_path / "sum")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    small = peak(3_000)
    assert peak(30_000) < 2 * small + (1 << 20)


def test_words_that_were_not_counted_alike(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", {b"a": 1}), tmp_path / "two"
    save_counts(two, WordCounts(as_words({b"b": 1}), 1, "cl100k"))
    with pytest.raises(InputError, match=r"one and .*two can't be added up: pattern 'gpt2'"):
        merge_counts([one, two], tmp_path / "sum")
    assert not (tmp_path / "sum").exists()


def test_sums_that_counts_can_not_hold(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, {b"ab": MAX_TEXT_BYTES // 4}) for name in "ab"]
    merge_counts(paths[:1], tmp_path / "sum", [2])
    assert listed(load_counts(tmp_path / "sum").words) == [(b"ab", MAX_TEXT_BYTES // 4 * 2)]
    with pytest.raises(InputError, match="the limit is 9,223,372,036,854,775,807"):
        merge_counts(paths, tmp_path / "sum", [2, 1])


def damaged(data: bytes) -> list[bytes]:
    """A file cut at every byte, with more at its end, and with every byte changed."""
    cut = [data[:k] for k in range(len(data))]
    changed = [data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :] for k in range(len(data))]
    return [*cut, data + b"\0", *changed]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "good", {b"a": 1, b"ab": 3, b"b": 2})
    for data in damaged(path.read_bytes()):
        (tmp_path / "bad").write_bytes(data)
        with pytest.raises(InputError, match="bad"):
            merge_counts([path, tmp_path / "bad"], tmp_path / "sum")
    with pytest.raises(InputError, match=r"can't read .*none: No such file"):
        CountsReader(tmp_path / "none")


def test_forged_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose digest is right are checked block by block, and from block to block."""
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(module, "_LEAST_BLOCK", 1)
    data = write(tmp_path / "good", {b"a": 1, b"b": 2}).read_bytes()[:-32]
    assert data.endswith(b"\x02" + bytes(7) + b"ab")
    for old, new, message in (
        (b"ab", b"ba", "not in order"),
        (b"ab", b"aa", "not in order"),
        (b"\x02" + bytes(7) + b"ab", bytes(8) + b"ab", "less than 1"),
        (b"\x02" + bytes(7) + b"ab", b"\x03" + bytes(7) + b"ab", "don't add up"),
    ):
        content = data.removesuffix(old) + new
        (tmp_path / "bad").write_bytes(content + hashlib.sha256(content).digest())
        with pytest.raises(InputError, match=f"bad: damaged: .*{message}"):
            merge_counts([tmp_path / "bad"], tmp_path / "sum")


def test_counts_without_words_add_nothing(tmp_path: Path) -> None:
    paths = [write(tmp_path / "none", {}, documents=0), write(tmp_path / "some", {b"a": 2})]
    made = merge_counts(paths, tmp_path / "sum")
    assert (made["documents"], made["distinct_words"]) == (2, 1)
    assert (tmp_path / "sum").read_bytes() == paths[1].read_bytes()
    merge_counts(paths[:1], tmp_path / "sum")
    assert (tmp_path / "sum").read_bytes() == paths[0].read_bytes()
