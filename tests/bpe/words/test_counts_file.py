"""Files of word counts: what is read is what was written, and nothing else is read."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.slices import MAX_WORD_BYTES
from llmgpu.bpe.words import counts_file
from llmgpu.bpe.words.counts_file import (
    CountsReader,
    add_counts,
    load_counts,
    save_counts,
)
from llmgpu.bpe.words.distinct_words import DistinctWords, WordCounts
from llmgpu.errors import InputError, LlmgpuError, OutputError
from tests.bpe.word_lists import as_words, listed

WORD = st.lists(st.sampled_from(b"\x00ab\xff"), min_size=1, max_size=20).map(bytes)
COUNTS = st.dictionaries(WORD, st.integers(1, 1 << 50), max_size=12)
INFO = (3, "gpt2", (b"<|end|>", b"\xff\x00", b"<|end|>"))  # documents, pattern, separators
SAMPLE = {b"b": 1 << 40, b"a": 2, b"a\x00": 3, b"\xff" * 300: 4, b"\xff" * 300 + b"a": 1}
HASH_BYTES = 32
Info = tuple[int, str, tuple[bytes, ...]]


def written(path: Path, counts: dict[bytes, int], info: Info = INFO) -> bytes:
    save_counts(path, WordCounts(as_words(counts), *info))
    return path.read_bytes()


def sealed(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def sample_with(
    path: Path, header: dict[str, Any] | None = None, parts: dict[str, bytes] | None = None
) -> bytes:
    """A sealed file with other entries in its header, or with other arrays."""
    words = as_words(dict(sorted(SAMPLE.items())))
    unpacker = msgpack.Unpacker()
    unpacker.feed(written(path, SAMPLE))
    made = unpacker.unpack() | (header or {})
    arrays = {
        "lengths": words.lengths.astype("<u4").tobytes(),
        "counts": words.counts.astype("<i8").tobytes(),
        "data": words.data.tobytes(),
    } | (parts or {})
    kept = {name: value for name, value in made.items() if value is not ...}
    return sealed(msgpack.packb(kept) + b"".join(arrays.values()))


def refusal(path: Path, data: bytes) -> str:
    """The message with which a file is refused."""
    path.write_bytes(data)
    with pytest.raises(InputError) as refused:
        load_counts(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@settings(deadline=None)
@given(counts=COUNTS, pattern=st.sampled_from(["class", "gpt2", "none"]))
def test_what_was_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, counts: dict[bytes, int], pattern: str
) -> None:
    path = tmp_path_factory.mktemp("counts") / "c"
    info = (7, pattern, ())
    data = written(path, counts, info)
    loaded = load_counts(path)
    assert listed(loaded.words) == sorted(counts.items())
    found = (loaded.documents, loaded.pattern, loaded.separators)
    assert (found, loaded.source) == (info, str(path))
    backwards = dict(reversed(counts.items()))
    assert written(path, backwards, info) == data


def test_separators_are_a_set(tmp_path: Path) -> None:
    data = written(tmp_path / "a", SAMPLE)
    assert load_counts(tmp_path / "a").separators == (b"<|end|>", b"\xff\x00")
    others = (3, "gpt2", (b"\xff\x00", b"<|end|>"))
    assert written(tmp_path / "b", SAMPLE, others) == data


@settings(deadline=None)
@given(parts=st.lists(COUNTS, min_size=1, max_size=4))
def test_parts_add_up_to_the_whole(
    tmp_path_factory: pytest.TempPathFactory, parts: list[dict[bytes, int]]
) -> None:
    folder = tmp_path_factory.mktemp("counts")
    total: Counter[bytes] = Counter()
    for number, part in enumerate(parts):
        written(folder / str(number), part, (number, "class", ()))
        total.update(part)
    added = add_counts([load_counts(folder / str(number)) for number in range(len(parts))])
    save_counts(folder / "sum", added)
    documents = sum(range(len(parts)))
    whole = written(folder / "whole", total, (documents, "class", ()))
    assert (folder / "sum").read_bytes() == whole


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ((1, "class", ()), "one and two can't be added up: pattern 'gpt2' and 'class'"),
        ((1, "gpt2", (b"x",)), r"one and two .* document separators \(\) and \(b'x'"),
    ],
)
def test_counts_of_different_kinds_are_not_added(other: Info, message: str) -> None:
    words = as_words(SAMPLE)
    with pytest.raises(InputError, match=message):
        add_counts(
            [WordCounts(words, 1, "gpt2", (), "one"), WordCounts(words, *other, source="two")]
        )


def test_a_file_that_does_not_record_the_version_of_unicode_is_refused(tmp_path: Path) -> None:
    """Unreleased versions wrote version 1 for all patterns."""
    (tmp_path / "c").write_bytes(sample_with(tmp_path / "c", {"version": 1, "unicode": ...}))
    with pytest.raises(
        InputError,
        match="damaged: its header is not in canonical form",
    ):
        load_counts(tmp_path / "c")


def test_counts_of_two_versions_of_unicode_are_not_added(tmp_path: Path) -> None:
    for unicode in ("16.0", "18.0"):
        save_counts(
            tmp_path / unicode, WordCounts(as_words(SAMPLE), 1, "gpt2", (), unicode=unicode)
        )
    loaded = [load_counts(tmp_path / unicode) for unicode in ("18.0", "16.0")]
    assert [each.unicode for each in loaded] == ["18.0", "16.0"]
    with pytest.raises(InputError, match=r"Unicode version '18.0' and '16.0'; count one"):
        add_counts(loaded)


def test_patterns_without_character_classes_have_no_version(tmp_path: Path) -> None:
    counts = WordCounts(as_words(SAMPLE), 1, "class")
    save_counts(tmp_path / "one", counts)
    save_counts(tmp_path / "other", replace(counts, unicode="18.0"))
    data = (tmp_path / "one").read_bytes()
    assert data[0] == 0x89 and b"unicode" not in data
    assert data == (tmp_path / "other").read_bytes()
    assert add_counts([counts, replace(counts, unicode="18.0")]).documents == 2


def test_unknown_pattern() -> None:
    with pytest.raises(LlmgpuError, match="unknown pattern 'gpt9'"):
        WordCounts(as_words(SAMPLE), 1, "gpt9")


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "c", SAMPLE)
    for length in range(len(data)):
        refusal(tmp_path / "c", data[:length])
    refusal(tmp_path / "c", data + b"\x00")


@pytest.mark.slow
def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.counts"
    written(path, {b"a": 1, b"b": 2, b"cc": 3})
    with CountsReader(path) as file:
        os.truncate(path, path.stat().st_size - 40)
        with pytest.raises(InputError, match="it was changed while it was read"):
            list(file.blocks(100))


def test_a_file_with_one_byte_changed_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "c", SAMPLE)
    rng = random.Random(5)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= rng.randrange(1, 256)
        refusal(tmp_path / "c", bytes(changed))
        if position < len(data) - HASH_BYTES:  # with a fitting hash it is refused, or is canonical
            resealed = sealed(bytes(changed[:-HASH_BYTES]))
            try:
                (tmp_path / "c").write_bytes(resealed)
                loaded = load_counts(tmp_path / "c")
            except InputError:
                continue
            save_counts(tmp_path / "again", loaded)
            assert (tmp_path / "again").read_bytes() == resealed


HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"format": "other"}, "not a file of llmgpu word counts"),
    ({"version": 3}, "version 3 of the format, but this llmgpu reads versions up to 2"),
    ({"version": [2]}, r"version \[2\] of the format"),
    ({"version": "x" * 5000}, "version 'xxxxxxx"),
    ({"version": True, "unicode": ...}, "damaged: its header is not in canonical form"),
    ({"version": 1}, "damaged: its header is not in canonical form"),
    ({"unicode": "17.0"}, "of Unicode 17.0, which this llmgpu does not know: count the corpus"),
    ({"pattern": "class", "expression": PATTERNS["class"].expression}, "not in canonical form"),
    ({"unicode": 16}, "of Unicode 16, which this llmgpu does not know: count the corpus"),
    ({"documents": -1}, "damaged: its header is not in canonical form"),
    ({"documents": 1.0}, "damaged: its header is not in canonical form"),
    ({"words": 1 << 63}, "damaged: its header is not in canonical form"),
    ({"words": (1 << 63) - 1}, "damaged or cut short"),
    ({"words": 4}, "damaged or cut short"),
    ({"data_bytes": 0}, "damaged or cut short"),
    ({"text_bytes": 1}, "damaged: its words don't add up to 1 bytes"),
    ({"separators": [b"b", b"a"]}, "damaged: its header is not in canonical form"),
    ({"separators": [b"a", b"a"]}, "damaged: its header is not in canonical form"),
    ({"separators": ["a"]}, "damaged: its header is not in canonical form"),
    ({"separators": [b""]}, "damaged: its header is not in canonical form"),
    ({"separators": [[]]}, "damaged: its header is not in canonical form"),
    ({"pattern": "p50k"}, "its words were cut by pattern 'p50k'"),
    ({"expression": "x+"}, "its words were cut by pattern 'gpt2', 'x\\+'"),
    ({"documents": ...}, "damaged: its header is not in canonical form"),
    ({"more": 1}, "damaged"),
]


@pytest.mark.parametrize(("header", "message"), HEADERS)
def test_headers_that_say_what_is_not(tmp_path: Path, header: dict[str, Any], message: str) -> None:
    data = sample_with(tmp_path / "c", header)
    with pytest.raises(InputError, match=message):
        (tmp_path / "c").write_bytes(data)
        load_counts(tmp_path / "c")


def test_a_header_written_otherwise_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "c", SAMPLE)
    assert data[0] == 0x8A  # a map of ten
    assert "not in canonical form" in refusal(
        tmp_path / "c", sealed(b"\xde\x00\x0a" + data[1:-HASH_BYTES])
    )


def numbers(dtype: str, *values: int) -> bytes:
    return np.array(values, dtype).tobytes()


LENGTHS = tuple(map(len, sorted(SAMPLE)))  # 1, 2, 1, 300, 301


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"counts": numbers("<i8", 2, 3, 1 << 40, 0, 1)}, "a count is less than 1"),
        ({"counts": numbers("<i8", 2, 3, 1 << 40, -4, 1)}, "a count is less than 1"),
        ({"counts": numbers("<i8", 2, 3, 1 << 40, 4, 2)}, "don't add up to"),
        ({"counts": numbers("<i8", *[(1 << 63) - 1] * 5)}, "don't add up to"),
        ({"lengths": numbers("<u4", 1, 2, 1, 301, 301)}, "the lengths of its words"),
        ({"lengths": numbers("<u4", 0, 3, *LENGTHS[2:])}, "a word has no bytes, or too many"),
        ({"lengths": numbers("<u4", *[MAX_WORD_BYTES + 1] * 5)}, "the lengths of its words"),
    ],
)
def test_numbers_that_cannot_be(tmp_path: Path, parts: dict[str, bytes], message: str) -> None:
    assert message in refusal(tmp_path / "c", sample_with(tmp_path / "c", parts=parts))


@pytest.mark.parametrize("words", [[b"b", b"a"], [b"a", b"a"], [b"\xff" * 300 + b"b"] * 2])
def test_words_out_of_order(tmp_path: Path, words: list[bytes]) -> None:
    text_bytes = sum(map(len, words))
    data = sample_with(
        tmp_path / "c",
        {"words": 2, "data_bytes": text_bytes, "text_bytes": text_bytes},
        {
            "lengths": numbers("<u4", *map(len, words)),
            "counts": numbers("<i8", 1, 1),
            "data": b"".join(words),
        },
    )
    assert refusal(tmp_path / "c", data) == "damaged: its words are not in order"


@pytest.mark.parametrize("data", [b"", b"\x81", b"hello\n" * 100, b"\xdf\xff\xff\xff\xff" * 20])
def test_other_files(tmp_path: Path, data: bytes) -> None:
    told = refusal(tmp_path / "c", data)
    assert told.startswith("not a file of llmgpu word counts; counts of other tools are read from")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't read .*missing: No such file"):
        load_counts(tmp_path / "missing")
    with pytest.raises(InputError, match="can't read"):
        load_counts(tmp_path)


def test_reading_takes_a_few_times_the_files_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    spelled = np.unique(rng.integers(0, 1 << 62, 200_000)).astype(">u8").view(np.uint8)
    count = len(spelled) // 8
    words = DistinctWords(spelled, np.arange(count + 1) * 8, np.ones(count, np.int64))
    save_counts(tmp_path / "c", WordCounts(words, *INFO))
    huge = sample_with(tmp_path / "s", {"separators": [b"a"] * 100_000})
    (tmp_path / "s").write_bytes(huge)
    for name in ("c", "s"):
        tracemalloc.start()
        try:
            load_counts(tmp_path / name)
        except InputError:
            assert name == "s"
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 12 * (tmp_path / name).stat().st_size + (8 << 20)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't write"):
        save_counts(tmp_path / "missing" / "c", WordCounts(as_words(SAMPLE), *INFO))
    with pytest.raises(OutputError, match="document separators are too long"):
        long = WordCounts(as_words(SAMPLE), 1, "class", (b"x" * (1 << 24),))
        save_counts(tmp_path / "c", long)
    assert list(tmp_path.iterdir()) == []


# As columns


def test_columns_have_the_words_and_what_is_known(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    counts = WordCounts(as_words(SAMPLE), 3, "gpt2", (b"<|end|>", b"\xff\x00"), unicode="18.0")
    save_counts(tmp_path / "c.parquet", counts)
    read = load_counts(tmp_path / "c.parquet")
    assert listed(read.words) == sorted(SAMPLE.items())
    for fact in ("documents", "pattern", "separators", "unicode"):
        assert getattr(read, fact) == getattr(counts, fact)
    rows = parquet.read_table(tmp_path / "c.parquet").to_pydict()
    assert dict(zip(rows["word"], rows["count"], strict=True)) == SAMPLE


def test_columns_of_another_program(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "c.parquet"
    columns = {"count": [1, 2, 3], "word": ["b", "é", "b"], "other": [None, 1, 2]}
    parquet.write_table(arrow.table(columns), path)
    read = load_counts(path, "gpt2", (b"<|end|>",))
    assert listed(read.words) == [(b"b", 4), ("é".encode(), 2)]
    assert (read.pattern, read.separators, read.documents) == ("gpt2", (b"<|end|>",), 0)
    with pytest.raises(InputError, match=r"does not record the pattern .* give"):
        load_counts(path)


def test_columns_that_are_no_counts(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "c.parquet"
    for columns, message in (
        ({"word": ["a"]}, "no columns word and count"),
        ({"word": ["a"], "count": ["x"]}, "can't read .* as word counts"),
        ({"word": ["a"], "count": [None]}, "a row has no word or no count"),
        ({"word": [""], "count": [1]}, "words have 1 byte or more"),
        ({"word": ["a"], "count": [0]}, "word b'a' has the count 0"),
        ({"word": [["a"]], "count": [1]}, "can't read .* as word counts"),
        ({"word": ["a"], "count": arrow.array([2**63], "uint64")}, "can't read .* as word counts"),
        ({"word": ["aa", "a"], "count": [2**63 - 1, 9]}, "which is the limit"),
    ):
        parquet.write_table(arrow.table(columns), path)
        with pytest.raises(InputError, match=message):
            load_counts(path, "gpt2")
    metadata = {"llmgpu": '{"pattern": 1}'}
    table = arrow.table({"word": ["a"], "count": [1]}).replace_schema_metadata(metadata)
    parquet.write_table(table, path)
    with pytest.raises(InputError, match="its metadata does not describe word counts"):
        load_counts(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match=r"can't read .* as word counts"):
        load_counts(path)


@pytest.mark.parametrize("more_blocks", [0, 1, HASH_BYTES, HASH_BYTES + 1, 400])
def test_bytes_after_a_file_that_is_read_in_whole_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more_blocks: int
) -> None:
    """more_blocks: bytes of the file after the first block."""
    data = written(tmp_path / "c", SAMPLE)
    monkeypatch.setattr(counts_file, "_MAX_HEADER_BYTES", len(data) - more_blocks)
    assert len(load_counts(tmp_path / "c").words) == len(SAMPLE)
    assert "damaged" in refusal(tmp_path / "c", data + b"x")


def test_counts_are_read_from_a_pipe(tmp_path: Path) -> None:
    data = written(tmp_path / "c", SAMPLE)
    os.mkfifo(tmp_path / "pipe")

    def load(content: bytes) -> WordCounts:
        writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
        writer.start()
        try:
            return load_counts(tmp_path / "pipe")
        finally:
            writer.join()

    assert listed(load(data).words) == listed(load_counts(tmp_path / "c").words)
    with pytest.raises(InputError, match="damaged"):
        load(data + b"x")
    with pytest.raises(InputError, match="damaged"):
        load(data[:-1])


def test_a_pipe_is_read_no_further_than_its_file(tmp_path: Path) -> None:
    data = written(tmp_path / "c", SAMPLE)
    os.mkfifo(tmp_path / "pipe")

    def write() -> None:
        with suppress(BrokenPipeError), open(tmp_path / "pipe", "wb") as pipe:
            pipe.write(data)
            for _ in range(128):
                pipe.write(bytes(1 << 20))

    writer = threading.Thread(target=write)
    writer.start()
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="damaged"):
            load_counts(tmp_path / "pipe")
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()
        writer.join()
