"""Pre-tokens that are longer than the blocks that are decoded, with blocks of a few bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.pretokens import blocks, expressions, unicode_classes
from llmgpu.bpe.pretokens.blocks import RulePattern
from llmgpu.bpe.pretokens.names import PATTERNS
from tests.bpe.patterns import last_start, start_mask
from tests.conftest import examples
from tests.cpu.texts import CHARACTERS
from tests.reference.bpe import pre_token_starts

RULES = sorted(name for name, pattern in PATTERNS.items() if isinstance(pattern, RulePattern))
PARTS = st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=3).map(b"".join)
TEXTS = st.lists(st.tuples(PARTS, st.integers(1, 12)), min_size=1, max_size=5).map(
    lambda parts: b"".join(part * count for part, count in parts)
)


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {"_LONGEST_BLOCK": 18, "_WINDOW": 4}.items():
            patch.setattr(blocks, name, size)
        patch.setattr(expressions, "_BLOCK", 3)
        patch.setattr(unicode_classes, "_BLOCK", 8)
        yield


@settings(deadline=None, max_examples=examples(150))
@given(st.sampled_from(RULES), st.lists(TEXTS, min_size=1, max_size=3))
def test_starts_of_documents(name: str, documents: list[bytes]) -> None:
    text = np.frombuffer(b"".join(documents), np.uint8)
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    mask = start_mask(text, name, starts)
    assert mask.tolist() == pre_token_starts(documents, name)


@settings(deadline=None, max_examples=examples(150))
@given(st.sampled_from(RULES), TEXTS, PARTS)
def test_the_last_start_does_not_depend_on_what_follows(
    name: str, text: bytes, more: bytes
) -> None:
    last = last_start(np.frombuffer(text, np.uint8), name, np.zeros(1, np.int64))
    expected = pre_token_starts([text + more], name)
    assert expected[last]
    mask = start_mask(np.frombuffer(text, np.uint8), name, np.zeros(1, np.int64))
    assert mask[:last].tolist() == expected[:last]


def test_a_character_that_is_cut_off_may_be_any() -> None:
    """White space before the first bytes of U+2028 goes with the newline after it."""
    text = b"\n" + b" " * 100 + "\u2028".encode()
    for size in range(len(text) - 3, len(text) + 1):
        data = np.frombuffer(text[:size], np.uint8)
        assert last_start(data, "cl100k", np.zeros(1, np.int64)) == 0
    data = np.frombuffer(text + b"\nab!!!!!!!!", np.uint8)
    starts = np.flatnonzero(start_mask(data, "cl100k", np.zeros(1, np.int64)))
    assert starts.tolist() == [0, len(text) + 1, len(text) + 3]


def test_a_start_is_found_after_a_long_pretoken() -> None:
    for text, expected in ((b"a" * 100 + b"!" * 100, 100), (b"a" * 200, 0)):
        assert last_start(np.frombuffer(text, np.uint8), "gpt2", np.zeros(1, np.int64)) == expected


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("character", ["a", "\0", " ", "中"])
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k"])
def test_memory_is_a_small_multiple_of_the_length(
    name: str, character: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unicode_classes, "_BLOCK", 1 << 12)
    monkeypatch.setattr(blocks, "_LONGEST_BLOCK", 1 << 14)
    text = np.frombuffer((character * 400_000).encode(), np.uint8)
    start = np.zeros(1, np.int64)
    start_mask(text[:99], name, start)
    last_start(text[:99_999], name, start)  # what is kept, such as tables
    assert peak_of(lambda: start_mask(text, name, start)) < 3.5 * len(text) + (1 << 20)
    assert peak_of(lambda: last_start(text, name, start)) < 1.5 * len(text) + (1 << 20)
