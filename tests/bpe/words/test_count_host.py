"""Words counted by any number of threads, in any pieces, against a Counter."""

from __future__ import annotations

import random
import threading
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.slices import SliceReader
from llmgpu.bpe.words import count_host
from llmgpu.bpe.words.count_host import (
    ENGINE_COSTS,
    ENGINE_THREAD_BYTES,
    NUMPY_COSTS,
    NUMPY_THREAD_BYTES,
    count_words,
)
from llmgpu.bpe.words.spilling import WordAccumulator
from llmgpu.cpu.library import default_threads, library
from llmgpu.errors import InputError
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from tests.bpe.word_lists import listed
from tests.conftest import examples
from tests.reference import bpe as reference

pytestmark = pytest.mark.usefixtures("cpu_engine")

PARTS = [b" ", b" ", b"  ", b"\n", b"\n", b"a", b"b", b"'s", b"'ll", b"\x00", b"\xc3", b"\xa9"]
PARTS += ["\u3000".encode(), "\u0663".encode(), "\U0001f600".encode(), b".", b"7", b"\r", b"\xff"]
TEXT = st.lists(st.sampled_from(PARTS), max_size=60).map(b"".join)
PATTERN = st.sampled_from(list(reference.EXPRESSIONS))


def expected(documents: list[bytes], pattern: str) -> Counter[bytes]:
    return Counter(word for text in documents for word in reference.pre_tokens(text, pattern))


@settings(deadline=None, max_examples=examples(300))
@given(
    documents=st.lists(TEXT, max_size=4),
    pattern=PATTERN,
    slice_bytes=st.integers(1, 80),
    threads=st.integers(1, 3),
    memory_bytes=st.sampled_from([None, 0, 100_000]),
)
def test_counts_do_not_depend_on_how_they_were_made(
    documents: list[bytes], pattern: str, slice_bytes: int, threads: int, memory_bytes: int | None
) -> None:
    words = count_words(
        corpus_from_bytes(documents),
        pattern,
        threads=threads,
        memory_bytes=memory_bytes,
        slice_bytes=slice_bytes,
    )
    counted = listed(words)
    assert dict(counted) == expected(documents, pattern)
    assert len(counted) == len(dict(counted))


def hostile_text(seed: int, parts: int) -> bytes:
    rng = random.Random(seed)
    words = [bytes(rng.choices(b"abcdefgh", k=rng.randint(1, 30))) for _ in range(3000)]
    return b"".join(rng.choice(words if rng.random() < 0.6 else PARTS) for _ in range(parts))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["class", "gpt2"])
@pytest.mark.parametrize("slice_bytes", [1000, 30_000, 1 << 20])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_of_many_pieces(
    tmp_path: Path, pattern: str, slice_bytes: int, threads: int
) -> None:
    documents = [hostile_text(seed, 20_000) for seed in range(3)]
    (tmp_path / "text").write_bytes(b"<|x|>".join(documents))
    with Corpus([str(tmp_path / "text")], CorpusOptions(separators=(b"<|x|>",))) as corpus:
        words = count_words(corpus, pattern, threads=threads, slice_bytes=slice_bytes)
    assert dict(listed(words)) == expected(documents, pattern)


@cache
def text_of_many_words() -> tuple[bytes, Counter[bytes]]:
    text = hostile_text(7, 60_000)
    return text, expected([text], "gpt2")


@pytest.mark.parametrize("memory_bytes", [0, 1 << 18, 1 << 21])
def test_tables_that_are_full_are_moved_to_runs(memory_bytes: int) -> None:
    text, by_word = text_of_many_words()
    words = count_words(
        corpus_from_bytes(text), "gpt2", threads=2, memory_bytes=memory_bytes, slice_bytes=20_000
    )
    counted = listed(words)
    assert dict(counted) == by_word
    assert counted == sorted(counted)


def test_a_long_word_that_comes_first_is_found_when_there_are_many() -> None:
    text = b"abcdefghijklmnopqrstuvwxyz" + b"".join(b" %d" % k for k in range(5000))
    text += b"\nabcdefghijklmnopqrstuvwxyz"
    counted = listed(count_words(corpus_from_bytes(text), "gpt2", threads=1))
    assert dict(counted) == expected([text], "gpt2") and len(counted) == len(dict(counted))


def test_words_longer_than_a_piece() -> None:
    documents = [b"x" * 5000, b"y" * 100 + b" " + b"z" * 3000, b"x" * 5000, b" " * 4000]
    for pattern in reference.EXPRESSIONS:
        words = count_words(corpus_from_bytes(documents), pattern, threads=2, slice_bytes=64)
        assert dict(listed(words)) == expected(documents, pattern)


@pytest.mark.parametrize("slice_bytes", [16, 100, 10_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_word_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int, threads: int
) -> None:
    monkeypatch.setattr(count_host, "MAX_WORD_BYTES", 500)

    def count(text: bytes) -> dict[bytes, int]:
        corpus = corpus_from_bytes(text)
        words = count_words(corpus, "class", threads=threads, slice_bytes=slice_bytes)
        return dict(listed(words))

    longest = b"x" * 500
    text = b"ab\n" + longest + b"\nend"
    assert count(text) == expected([text], "class")
    for ending in (b"\nend", b""):
        with pytest.raises(InputError, match=r"a pre-token has [0-9]+ bytes or more"):
            count(b"ab\n" + longest + b"x" + ending)


def test_nothing_to_count() -> None:
    for documents in ([], [b""], [b"", b""]):
        assert listed(count_words(corpus_from_bytes(documents), "gpt2")) == []


def test_an_error_of_the_corpus_ends_all_threads(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"some words " * 10_000 + b"\xff")
    before = threading.active_count()
    options = CorpusOptions(encoding_errors="strict")
    with (
        Corpus([str(tmp_path / "text")], options) as corpus,
        pytest.raises(InputError, match="invalid UTF-8 at byte 110000"),
    ):
        count_words(corpus, "gpt2", threads=3, slice_bytes=1000)
    assert threading.active_count() == before


@pytest.mark.parametrize("threads", [1, 3])
def test_words_so_far_are_told_while_text_is_read(threads: int) -> None:
    words = (bytes(97 + int(digit) for digit in f"{k:08d}") for k in range(20_000))
    text = b"".join(b" " + word for word in words)  # 9 bytes each, none twice
    told: list[tuple[int, int]] = []
    slice_bytes = 4500
    count_words(
        corpus_from_bytes(text),
        "class",
        threads=threads,
        slice_bytes=slice_bytes,
        on_words=lambda *call: told.append(call),
    )
    assert len(told) >= 20_000 * 9 // slice_bytes - threads - 1
    for read, (count, nbytes) in enumerate(told, threads + 1):
        assert 0.9 * count * 9 <= nbytes <= 1.1 * count * 9
        assert 0.9 * (read - threads) <= count / (slice_bytes / 9) <= 1.3 * read + 1


def test_tables_never_hold_more_than_they_may() -> None:
    rng = random.Random(3)
    texts = [b" ".join(b"%d" % rng.randrange(1 << 40) for _ in range(3000)) for _ in range(9)]
    words = WordAccumulator(1 << 30)
    counter = count_host.HostCounter(PATTERNS["class"], words, 1 << 18)
    for text in texts:
        piece = SliceReader(corpus_from_bytes(text), PATTERNS["class"]).read(
            np.empty(len(text) + 1000, np.uint8)
        )
        assert piece is not None
        counter.add(piece)
        assert counter._table.nbytes <= 1 << 18
    assert words.size[0] > 10_000


def test_costs_are_those_of_the_engine_that_counts() -> None:
    expected = ENGINE_COSTS.fixed + 3 * ENGINE_THREAD_BYTES
    if library() is None:
        expected = NUMPY_COSTS.fixed + 3 * NUMPY_THREAD_BYTES
    assert count_host.memory_costs(3).fixed == expected


def test_progress_ends_at_the_total() -> None:
    seen: list[tuple[str, int, int | None]] = []
    corpus = corpus_from_bytes(b"a b " * 100)
    count_words(corpus, "class", lambda *call: seen.append(call), slice_bytes=64)
    assert seen[-1] == ("counting words", 400, 400)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_threads_are_the_processors_there_are() -> None:
    assert default_threads() >= 1


@pytest.mark.parametrize("longest", [9, 300])
def test_the_memory_of_a_table_is_what_its_arrays_take(longest: int) -> None:
    rng = random.Random(1)
    text = b" ".join(bytes(rng.choices(b"abcdefgh", k=longest)) for _ in range(9000))
    reader = SliceReader(corpus_from_bytes(text), PATTERNS["class"])
    piece = reader.read(np.empty(len(text) + 1000, np.uint8))
    assert piece is not None
    table = count_host.make_table(PATTERNS["class"])
    empty = table.nbytes
    table.add(piece)
    words, nbytes = table.size
    words_bytes = nbytes * (longest > 15) + 24 * words  # short ones may be in the slots
    assert words >= 9000 and empty < words_bytes <= table.nbytes <= 8 * (nbytes + 24 * words)


def test_the_words_of_one_slice() -> None:
    text = b"a b a c's " * 30
    reader = SliceReader(corpus_from_bytes(text), PATTERNS["gpt2"])
    piece = reader.read(np.empty(len(text) + 1000, np.uint8))
    assert piece is not None
    table = count_host.make_table(PATTERNS["gpt2"])
    table.add(piece)
    words = table.words()
    begun = text[: piece.main_end]
    assert dict(listed(words)) == expected([begun], "gpt2")
