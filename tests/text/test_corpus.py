"""Text from files, folders, globs and pipes, and the documents in it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from llmgpu.errors import InputError
from llmgpu.text import documents, streams
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from llmgpu.text.documents import DocumentSplitter, InputPolicy
from llmgpu.text.streams import binary_format
from tests.conftest import by_nobody
from tests.text.reading import read_documents, split_lines, write

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


# Documents in one file, whatever the buffer


@same_folder
@given(st.binary(max_size=60), st.integers(1, 70), st.sampled_from(["strict", "raw"]))
def test_a_file_is_a_document(tmp_path: Path, data: bytes, size: int, policy: str) -> None:
    if policy == "strict":
        data = data.decode("latin-1").encode()
    assume(binary_format(data) is None)
    path = write(tmp_path, "f.txt", data)
    assert read_documents(Corpus([path], CorpusOptions(encoding_errors=policy)), size) == [data]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 127, 128, 129, 640, 1000])
@pytest.mark.parametrize("buffer", [128, 130, 300, 4096])
def test_a_file_read_in_pieces_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, buffer: int
) -> None:
    monkeypatch.setattr(streams, "_PART_BYTES", 64)
    data = np.random.default_rng(size).bytes(size)
    path = write(tmp_path, "f.txt", data)
    corpus = Corpus([path, path], CorpusOptions())
    assert read_documents(corpus, buffer) == [data, data]
    assert corpus.bytes_read == 2 * size


few_letters = st.lists(st.sampled_from([b"a", b"b", b"\n", b"-"]), max_size=40).map(b"".join)
separators_strategy = st.lists(
    st.sampled_from([b"a", b"ab", b"aba", b"bb", b"---", b"\n", b"a\n"]), max_size=3
).map(tuple)


def split_at(data: bytes, separators: tuple[bytes, ...]) -> list[bytes]:
    """The slow way: at each position the longest separator that fits."""
    documents, begin, position = [], 0, 0
    while position < len(data):
        fits = [s for s in separators if data.startswith(s, position)]
        if fits:
            documents.append(data[begin:position])
            begin = position = position + max(map(len, fits))
        else:
            position += 1
    return [*documents, data[begin:]]


@given(few_letters, separators_strategy, st.integers(1, 50), st.integers(1, 7), st.booleans())
def test_separators_and_lines_do_not_depend_on_reads(
    data: bytes, separators: tuple[bytes, ...], size: int, step: int, lines: bool
) -> None:
    expected = split_at(data, separators)
    if len(separators) == 1:
        assert expected == data.split(separators[0])
    if lines:
        expected = split_lines(expected)
    options = CorpusOptions(separators=separators, line_documents=lines)
    with piped(data[i : i + step] for i in range(0, len(data), step)) as path:
        assert read_documents(Corpus([path], options), size) == expected


class piped:  # noqa: N801 - reads as a verb
    """A pipe that gives `parts`, one a read, as each is written only when the last was taken."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._read_end, write_end = os.pipe()
        self._thread = threading.Thread(target=self._feed, args=(write_end, list(parts)))

    def _feed(self, write_end: int, parts: list[bytes]) -> None:
        with os.fdopen(write_end, "wb", buffering=0) as stream:
            for part in parts:
                stream.write(part)

    def __enter__(self) -> str:
        self._thread.start()
        return f"/dev/fd/{self._read_end}"

    def __exit__(self, *error: object) -> None:
        self._thread.join()
        os.close(self._read_end)


@given(
    st.lists(
        st.sampled_from([b"a", "\u00e9".encode(), b"\xff", b"\xe4\xb8", "\U0001f600".encode()])
    ),
    st.integers(1, 50),
    st.integers(1, 7),
)
def test_replacing_does_not_depend_on_reads(parts: list[bytes], size: int, step: int) -> None:
    data = b"".join(parts)
    text = data.decode("utf-8", "replace")
    with piped(data[i : i + step] for i in range(0, len(data), step)) as path:
        corpus = Corpus([path], CorpusOptions(encoding_errors="replace"))
        assert read_documents(corpus, size) == [text.encode()]
    assert corpus.policy.invalid_sequences == text.count("\ufffd")


def test_a_policy_treats_a_long_text_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_CHECK_BYTES", 3)
    data = "aé😀b₤".encode()
    text, broken = (np.frombuffer(each, np.uint8) for each in (data, data + b"\xe2\x82"))
    assert InputPolicy("strict").apply(text, final=True) is text
    with pytest.raises(InputError, match=r"invalid UTF-8 at byte 11 \(e2 82\)"):
        InputPolicy("strict").apply(broken, final=True)
    policy = InputPolicy("replace")
    assert policy.apply(broken, final=True).tobytes() == data + "\ufffd".encode()
    assert policy.invalid_sequences == 1


@pytest.mark.parametrize("text", [b"\n" * 1000, b"\x8a\x0b\n" * 5, b"a" * 100 + b"\n", b""])
def test_lines_as_python_finds_them(text: bytes) -> None:
    expected = [0, *(place + 1 for place, byte in enumerate(text) if byte == 10)]
    piece = DocumentSplitter([], line_documents=True).feed(np.frombuffer(text, np.uint8), True)
    assert piece.starts.tolist() == [start for start in expected if start < len(text)]


unpacked = st.binary(max_size=5).filter(
    lambda data: not any(binary_format(data[:end]) for end in range(6))
)


@same_folder
@given(st.lists(unpacked, min_size=1, max_size=8), st.integers(1, 20), st.booleans())
def test_many_files(tmp_path: Path, files: list[bytes], size: int, lines: bool) -> None:
    paths = [write(tmp_path, f"{i}.txt", data) for i, data in enumerate(files)]
    corpus = Corpus(paths, CorpusOptions(line_documents=lines))
    assert read_documents(corpus, size) == (split_lines(files) if lines else files)
    assert corpus.total_bytes == corpus.bytes_read == sum(map(len, files))


def test_the_file_of_a_place(tmp_path: Path) -> None:
    files = [b"12345", b"", b"67", b"8"]
    paths = [write(tmp_path, f"{i}.txt", data) for i, data in enumerate(files)]
    corpus = Corpus(paths)
    corpus.read_into(np.zeros(3, np.uint8))
    assert corpus.place(2) == (paths[0], 2)
    while not corpus.read_into(np.zeros(4, np.uint8)).end:
        pass
    places = [(paths[0], k) for k in range(5)] + [(paths[2], 0), (paths[2], 1), (paths[3], 0)]
    assert [corpus.place(offset) for offset in range(8)] == places
    assert corpus_from_bytes([b"ab", b"c"]).place(2) == ("", 2)


@same_folder
@given(
    st.lists(few_letters, min_size=1, max_size=4),
    separators_strategy,
    st.integers(1, 30),
    st.integers(1, 40),
)
def test_limit_cuts_exactly(
    tmp_path: Path, files: list[bytes], separators: tuple[bytes, ...], size: int, limit: int
) -> None:
    expected: list[bytes] = []
    left = limit
    for document in [d for data in files for d in split_at(data, separators)]:
        if left:
            expected.append(document[:left])
            left -= len(expected[-1])
    paths = [write(tmp_path, f"{i}.txt", data) for i, data in enumerate(files)]
    options = CorpusOptions(separators=separators, limit=limit)
    assert read_documents(Corpus(paths, options), size) == expected


@pytest.mark.parametrize("size", [1, 2, 40])
@pytest.mark.parametrize("data", [b"ab|", b"ab||c", b"|ab||", b"ab|c|d|"])
def test_a_document_that_starts_at_the_limit_is_left_out(
    tmp_path: Path, data: bytes, size: int
) -> None:
    paths = [write(tmp_path, name, data) for name in ("0", "1")]
    documents = data.split(b"|") * 2
    for limit in range(1, len(b"".join(documents)) + 1):
        starts = accumulate(map(len, documents), initial=0)
        expected = [
            document[: limit - start]
            for document, start in zip(documents, starts, strict=False)
            if start < limit
        ]
        options = CorpusOptions(separators=(b"|",), limit=limit)
        assert read_documents(Corpus(paths, options), size) == expected


@given(st.lists(st.binary(max_size=6), max_size=6), st.integers(1, 20))
def test_documents_in_memory(documents: list[bytes], size: int) -> None:
    corpus = corpus_from_bytes(documents)
    assert read_documents(corpus, size) == documents
    assert corpus.total_bytes == corpus.bytes_read == sum(map(len, documents))
    assert read_documents(corpus_from_bytes(b"".join(documents)), size) == [b"".join(documents)]


@pytest.mark.parametrize("lines, expected", [(False, [b""]), (True, [])])
def test_an_empty_file(tmp_path: Path, lines: bool, expected: list[bytes]) -> None:
    path = write(tmp_path, "empty", b"")
    assert read_documents(Corpus([path], CorpusOptions(line_documents=lines))) == expected


@pytest.mark.parametrize("policy", ["strict", "replace"])
def test_separators_together_with_an_encoding_policy(tmp_path: Path, policy: str) -> None:
    path = write(tmp_path, "f", "\u00e9<s>\u00e8".encode())
    options = CorpusOptions(separators=(b"<s>",), encoding_errors=policy)
    assert read_documents(Corpus([path], options), 1) == ["\u00e9".encode(), "\u00e8".encode()]


def test_text_longer_than_a_block(tmp_path: Path) -> None:
    data = b"0123456789<sep>" * 200_000
    path = write(tmp_path, "f", data)
    documents = read_documents(Corpus([path], CorpusOptions(separators=(b"<sep>",))), 1 << 22)
    assert documents == data.split(b"<sep>")


# Where text comes from


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_files(tmp_path: Path, suffix: str) -> None:
    data = bytes(range(256)) * 5000
    packed = COMPRESSORS[suffix](data)
    corpus = Corpus([write(tmp_path, "f.txt" + suffix, packed)])
    assert read_documents(corpus, 100_000) == [data]
    assert corpus.total_bytes == corpus.bytes_read == len(packed)


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("lines", [False, True])
def test_damaged_compressed_files(tmp_path: Path, suffix: str, lines: bool) -> None:
    packed = COMPRESSORS[suffix](np.random.default_rng(0).bytes(50_000))
    name = f"f.jsonl{suffix}" if lines else f"f{suffix}"
    for number, data in enumerate([packed[:-20], packed[:5], b"no such format" * 9]):
        path = write(tmp_path, f"{number}{name}", data)
        what = re.escape(f"{path}: damaged or truncated {suffix}")
        with pytest.raises(InputError, match=f"{what}.*--exclude"):
            read_documents(Corpus([path]))


def test_compressed_files_end_to_end(tmp_path: Path) -> None:
    path = write(tmp_path, "f.gz", gzip.compress(b"one ") + gzip.compress(b"two"))
    assert read_documents(Corpus([path]), 3) == [b"one two"]


def test_a_folder_is_walked_in_order(tmp_path: Path) -> None:
    for name in ["b.txt", "a/z.txt", "a.txt", "a/b/c.txt", "a0.txt"]:
        write(tmp_path, name, name.encode())
    for hidden in [".hidden", ".git/object", "a/.x"]:
        write(tmp_path, hidden, b"hidden")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "fifo")
    corpus = Corpus([str(tmp_path)])
    assert read_documents(corpus) == [b"a.txt", b"a/b/c.txt", b"a/z.txt", b"a0.txt", b"b.txt"]
    assert corpus.sources.left_out == 5


def test_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ["d/b.txt", "d/a.txt", "d/a.md", "e/c.txt"]:
        write(tmp_path, name, name.encode())
    assert read_documents(Corpus(["d/*.txt"])) == [b"d/a.txt", b"d/b.txt"]
    assert read_documents(Corpus(["*"])) == [b"d/a.md", b"d/a.txt", b"d/b.txt", b"e/c.txt"]
    assert read_documents(Corpus(["**"])) == read_documents(Corpus(["*"]))
    assert read_documents(Corpus(["**/c.txt", "d/a.txt"])) == [b"e/c.txt", b"d/a.txt"]


def test_a_file_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    path = write(tmp_path, "a[1].txt", b"itself")
    write(tmp_path, "a1.txt", b"match")
    assert read_documents(Corpus([path])) == [b"itself"]


@pytest.mark.parametrize(
    "names, message",
    [
        ([], "no corpus given"),
        (["missing.txt"], "no such file or folder: 'missing.txt'"),
        ([""], "no such file or folder: ''"),
        (["a\0b"], "no such file"),
        (["*.nothing"], "no file matches '[*].nothing'"),
        (["empty"], "no files in the folder 'empty'"),
        (["emp*"], "no files in the folder 'empty'"),
        (["hidden"], r"no files in the folder 'hidden' \(1 entries skipped\)"),
        (["loop"], "can't read loop: .*symbolic links"),
        (["dangling"], "can't read dangling: No such file"),
        (["f.txt/x"], "no such file or folder"),
        (["-", "-"], "named twice"),
    ],
)
def test_sources_that_can_not_be_read_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ["f.txt", "hidden/.f"]:
        write(tmp_path, name, b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InputError, match=message):
        Corpus(names)


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such permissions")
def test_an_unreadable_file_is_refused_at_once(open_folder: Path) -> None:
    path = write(open_folder, "f", b"x")
    os.chmod(path, 0)
    assert by_nobody(lambda: Corpus([path])) == f"error: can't read {path}: permission denied"


def test_a_file_that_went_away(tmp_path: Path) -> None:
    path = write(tmp_path, "f", b"x")
    corpus = Corpus([path])
    os.unlink(path)
    with pytest.raises(InputError, match=re.escape(f"can't read {path}: No such file")):
        read_documents(corpus)


@pytest.mark.parametrize(
    "options, message",
    [
        (CorpusOptions(encoding_errors="ignore"), "'ignore': use one of strict, replace, raw"),
        (CorpusOptions(separators=(b"",)), "separator is empty"),
        (CorpusOptions(limit=0), "limit of 0 bytes"),
    ],
)
def test_unfit_options(tmp_path: Path, options: CorpusOptions, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Corpus([write(tmp_path, "f", b"x")], options)


def test_closing_early_keeps_the_count(tmp_path: Path) -> None:
    with Corpus([write(tmp_path, "f", b"123456")]) as corpus:
        corpus.read_into(np.zeros(4, np.uint8))
    assert corpus.bytes_read == 4


# Encoding


LONG = "\u00e9" * (1 << 19)


@pytest.mark.parametrize(
    "before, size",
    [("", 1), ("caf\u00e9 \U0001f600", 1), ("\u00e9", 2), (LONG, 999), (LONG, 1 << 21)],
)
@pytest.mark.parametrize("bad", [b"\xff", b"\xe4\xb8A", b"\xf0\x9f\x98"])
def test_strict_names_file_and_offset(tmp_path: Path, before: str, size: int, bad: bytes) -> None:
    path = write(tmp_path, "f", before.encode() + bad)
    message = re.escape(f"{path}: invalid UTF-8 at byte {len(before.encode())} (")
    with pytest.raises(InputError, match=message):
        read_documents(Corpus([path], CorpusOptions(encoding_errors="strict")), size)


def test_a_sequence_does_not_go_on_in_the_next_file(tmp_path: Path) -> None:
    paths = [write(tmp_path, "a", b"\xc3"), write(tmp_path, "b", b"\xa9")]
    with pytest.raises(InputError, match="a: invalid UTF-8 at byte 0"):
        read_documents(Corpus(paths, CorpusOptions(encoding_errors="strict")))
    replaced = Corpus(paths, CorpusOptions(encoding_errors="replace"))
    assert read_documents(replaced) == ["\ufffd".encode()] * 2
    assert replaced.policy.invalid_sequences == 2
    assert read_documents(Corpus(paths)) == [b"\xc3", b"\xa9"]


@pytest.mark.parametrize(
    "options", [{}, {"line_documents": True}, {"separators": (b"|",)}], ids=str
)
def test_an_incomplete_sequence_at_the_end_is_counted(
    tmp_path: Path, options: dict[str, object]
) -> None:
    path = write(tmp_path, "f", b"a\xffb" + "é".encode()[:1])
    corpus = Corpus([path], CorpusOptions(**options))  # type: ignore[arg-type]
    assert b"".join(read_documents(corpus)) == b"a\xffb\xc3"
    assert corpus.policy.invalid_sequences == 2


def test_a_replacement_character_in_the_text_is_not_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "f", "\ufffd".encode() + b"\xff")
    corpus = Corpus([path], CorpusOptions(encoding_errors="replace"))
    assert read_documents(corpus, 2) == ["\ufffd\ufffd".encode()]
    assert corpus.policy.invalid_sequences == 1


# Pipes


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"separators": (b"<s>", b"\t")}, {"encoding_errors": "strict"}]
)
def test_what_is_there_is_handed_over(options: dict[str, object], lines: bool) -> None:
    read_end, write_end = os.pipe()
    merged = CorpusOptions(line_documents=lines, **options)  # type: ignore[arg-type]
    corpus = Corpus([f"/dev/fd/{read_end}"], merged)
    assert corpus.total_bytes is None
    buffer = np.zeros(1 << 16, np.uint8)
    for number in range(3):
        # The writer waits for the reader: a read that waited for more would never return.
        os.write(write_end, b"a line\n!"[: 8 - lines])
        piece = corpus.read_into(buffer)
        assert piece.length == 8 - lines
        assert piece.closed == lines
        assert piece.starts.tolist() == ([0, 7][: 2 - lines] if lines else [0][number:])
    os.close(write_end)
    assert corpus.read_into(buffer).end
    os.close(read_end)


def test_a_pipe_that_is_not_ready_does_not_hold_back_files(tmp_path: Path) -> None:
    path = write(tmp_path, "f", b"a file")
    read_end, write_end = os.pipe()
    corpus = Corpus([path, f"/dev/fd/{read_end}"])
    buffer = np.zeros(100, np.uint8)
    piece = corpus.read_into(buffer)
    assert (piece.length, piece.closed, piece.end) == (6, True, False)
    os.write(write_end, b"pipe")
    os.close(write_end)
    assert read_documents_after(corpus, buffer) == (b"pipe", [0])
    os.close(read_end)


def read_documents_after(corpus: Corpus, buffer: np.ndarray) -> tuple[bytes, list[int]]:
    text, starts = b"", []
    while not (piece := corpus.read_into(buffer)).end:
        starts += (piece.starts + len(text)).tolist()
        text += buffer[: piece.length].tobytes()
    starts += (piece.starts + len(text)).tolist()
    return text + buffer[: piece.length].tobytes(), starts


def test_a_non_blocking_pipe() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    stdin = os.fdopen(read_end, "r")
    thread = threading.Timer(0.05, lambda: (os.write(write_end, b"late"), os.close(write_end)))
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        assert read_documents(Corpus(["-"])) == [b"late"]
    thread.join()
    stdin.close()


def test_standard_input_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00")))
    with Corpus(["-"]) as corpus:
        assert corpus.total_bytes is None
        assert read_documents(corpus, 1) == [b"\xff\x00"]
    assert not sys.stdin.closed


def test_standard_input_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(write(tmp_path, "f", b"skipped rest")) as stdin:
        os.lseek(stdin.fileno(), 8, os.SEEK_SET)
        monkeypatch.setattr(sys, "stdin", stdin)
        corpus = Corpus(["-"])
        assert corpus.total_bytes == 4
        assert read_documents(corpus) == [b"rest"]


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="can't read -: standard input is closed"):
        read_documents(Corpus(["-"]))
