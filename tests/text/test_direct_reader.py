"""Files whose bytes are the text: small ones, many at once."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from itertools import accumulate, cycle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgpu.cpu.library import library
from llmgpu.cpu.texts import SMALL_BYTES
from llmgpu.errors import InputError
from llmgpu.text import corpus as corpus_module
from llmgpu.text.corpus import Corpus, CorpusOptions, is_small, read_small
from llmgpu.text.sources import Selection, resolve_sources
from llmgpu.text.streams import BYTES, Source
from tests.text.reading import read_documents, write

needs_engine = pytest.mark.skipif(library() is None, reason="there is no CPU engine")
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["c", "numpy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "c" and library() is None:
        pytest.skip("there is no CPU engine")
    monkeypatch.setenv("LLMGPU_CPU", request.param)
    return str(request.param)


ODD_FILES = [
    b"plain",
    b"",
    b"\xef\xbb\xbfa mark",
    b"a\0zero",
    b"broken \xff and \xfe",
    b'{"text": 1}\n{"text": 2}\n',
    "ünïcödé".encode(),
    b'\n {\t"text": 1}',
    b"half a character \xc3",
    b"more text\n" * 9,
]


@pytest.mark.usefixtures("engine")
@same_folder
@given(
    files=st.lists(st.sampled_from(ODD_FILES), min_size=1, max_size=12),
    small=st.integers(0, 100),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5),
    limit=st.one_of(st.none(), st.integers(1, 200)),
)
def test_small_files_that_are_read_at_once_are_as_others(
    tmp_path: Path, files: list[bytes], small: int, sizes: list[int], limit: int | None
) -> None:
    """But for how the text is divided, which documents and offsets must not depend on."""
    paths = [write(tmp_path, f"{number}.txt", data) for number, data in enumerate(files)]
    paths.insert(len(paths) // 2, write(tmp_path, "packed.txt.gz", gzip.compress(b"more")))

    def read(small_bytes: int) -> tuple[object, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(corpus_module, "SMALL_BYTES", small_bytes)
            corpus = Corpus(paths, CorpusOptions(limit=limit))
            text, starts = b"", []
            for size in cycle(sizes):
                piece = corpus.read_into(np.zeros(size, np.uint8))
                starts += (piece.starts + len(text)).tolist()
                text += piece.text.tobytes()
                if piece.end:
                    break
        found = corpus.begun, corpus.notes, corpus.policy.invalid_sequences, corpus.documents
        return text, starts, corpus.bytes_read, *found

    assert read(small) == read(0)


def test_a_small_file_that_is_not_as_it_was_found_is_an_error(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{number}.txt", b"some text") for number in range(3)]
    corpus = Corpus(paths)
    write(tmp_path, "1.txt", b"other text")
    with pytest.raises(InputError, match=r"1\.txt was changed while it was read"):
        read_documents(corpus, 100)
    corpus = Corpus(paths)
    os.unlink(paths[2])
    with pytest.raises(InputError, match=r"can't read .*2\.txt: No such file"):
        read_documents(corpus, 100)


def test_several_small_files_fill_one_buffer(tmp_path: Path) -> None:
    paths = [write(tmp_path, name, b"12345") for name in "abc"]
    piece = Corpus(paths).read_into(np.zeros(12, np.uint8))
    assert (piece.length, piece.starts.tolist()) == (12, [0, 5, 10])
    assert not piece.closed
    assert not piece.end


def sources_of(folder: Path, files: list[bytes], input_format: str = "auto") -> list[Source]:
    paths = [write(folder, f"{number}.txt", data) for number, data in enumerate(files)]
    return resolve_sources(paths, Selection(input_format=input_format)).files


def read_at_once(sources: list[Source]) -> list[bytes]:
    sizes = [source.size or 0 for source in sources]
    view = np.full(sum(sizes) + 1, 0xEE, np.uint8)
    count = read_small(sources, view[:-1])
    assert view[-1] == 0xEE
    ends = [*accumulate(sizes[:count], initial=0)]
    return [view[end - size : end].tobytes() for end, size in zip(ends[1:], sizes, strict=False)]


PLAIN = [
    b"a",
    b"\a\b\t\n\v\f\r\x1b text \x7f",
    "é ₤ 😀".encode(),
    b"{",
    b'{a\n{"a": 1}',
    b"x" * SMALL_BYTES,
    b"a\xef\xbb\xbf",
    b'{\x1b"\n{\x1b"',
]
MARK = b"\xef\xbb\xbf"
NOT_PLAIN = [
    *(bytes([code]) for code in range(32) if bytes([code]) not in PLAIN[1]),
    *(b"a\xff", b"a\0", MARK, MARK + b"a", b'{"a": 1}\n{"a": 2}'),
]


@needs_engine
def test_plain_text_is_read_at_once(tmp_path: Path) -> None:
    files = PLAIN * 40
    assert read_at_once(sources_of(tmp_path, files)) == files


@pytest.fixture(scope="module")
def plain_sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Source]]:
    """Many files of plain text, by the format in which they are read."""
    folder = tmp_path_factory.mktemp("plain")
    return {form: sources_of(folder / form, PLAIN * 21, form) for form in ("auto", BYTES)}


@needs_engine
@pytest.mark.parametrize("data", NOT_PLAIN)
def test_what_is_not_plain_text_ends_what_is_read_at_once(
    tmp_path: Path, plain_sources: dict[str, list[Source]], data: bytes
) -> None:
    found = {}
    for form, sources in plain_sources.items():
        first, others = sources[: len(PLAIN)], sources[len(PLAIN) :]
        found[form] = read_at_once([*first, *sources_of(tmp_path, [data], form), *others])
    assert found == {"auto": PLAIN, BYTES: [*PLAIN, data, *PLAIN * 20]}


@needs_engine
@pytest.mark.parametrize(
    "data", [b"\xc3", b'{"', b' \t\n\r\v\f{ \t\r"a', b' {\n "a": 1}\n {\n "a": 1}', b'[ {"a": 1}]']
)
def test_c_leaves_what_it_is_not_sure_of(tmp_path: Path, data: bytes) -> None:
    assert read_at_once(sources_of(tmp_path, [b"a", data])) == [b"a"]


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


@needs_engine
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"longer"),
        lambda path: path.write_bytes(b"s"),
        *(Path.unlink, replace_by_folder, touch),
    ],
)
def test_a_changed_file_ends_what_is_read_at_once(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    sources = sources_of(tmp_path, [b"same"] * 9)
    assert read_at_once(sources) == [b"same"] * 9
    change(Path(sources[4].path))
    assert read_at_once(sources) == [b"same"] * 4


def test_which_files_are_small() -> None:
    small = Source("a.txt", SMALL_BYTES, 1)
    assert is_small(small)
    for changes in (
        *({"size": SMALL_BYTES + 1}, {"size": 0}, {"size": None}, {"changed_ns": None}),
        *({"path": "a.gz"}, {"span": (1, 2)}, {"continues": True}),
    ):
        assert not is_small(small._replace(**changes)), changes


@needs_engine
def test_after_a_file_that_is_read_alone_others_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[tuple[int, int]] = []

    def counted(sources: list[Source], view: np.ndarray) -> int:
        count = read_small(sources, view)
        counts.append((len(sources), count))
        return count

    monkeypatch.setattr("llmgpu.text.corpus.read_small", counted)
    files = [b"a", b"b\xff", b"c\xff", *[b"d"] * 20]
    sources = sources_of(tmp_path, files)
    assert read_documents(Corpus([source.path for source in sources])) == files
    # As many as before, doubled, and one more.
    assert counts == [(23, 1), (3, 0), (1, 0), (1, 1), (3, 3), (7, 7), (9, 9)]


class _SlowMemory(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Like memory of a device: made for writing, so no bytes may be taken from it."""

    def tobytes(self, order: str | None = "C") -> bytes:
        raise AssertionError("read from the caller's buffer")


def test_invalid_bytes_are_counted_without_reading_the_callers_buffer(tmp_path: Path) -> None:
    text = (b"\xff broken " + "ünïcödé ".encode() * 40) * (SMALL_BYTES // 100)
    corpus = Corpus([write(tmp_path, "latin.txt", text)])
    buffer = np.zeros(len(text) + 1, np.uint8)
    length = 0
    while not (piece := corpus.read_into(buffer[length:].view(_SlowMemory))).end:
        length += piece.length
    assert buffer[: length + piece.length].tobytes() == text
    assert corpus.policy.invalid_sequences == text.count(b"\xff")
