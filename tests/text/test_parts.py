"""Parts of a corpus: together they are the whole, wherever it is cut."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmgpu.errors import InputError
from llmgpu.text import jsonl
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.parts import CutText, Part, part_from_environment, split_by_position, take_part
from llmgpu.text.sources import resolve_sources
from llmgpu.text.streams import binary_format
from tests.text.reading import read_documents, write

LINES = CorpusOptions(line_documents=True)
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def parts_of(
    names: list[str], count: int, options: CorpusOptions, cut: CutText | None = None
) -> list[Corpus]:
    sources = resolve_sources(names)
    parts = [Part(number, count) for number in range(1, count + 1)]
    return [Corpus(take_part(sources, part, options, cut), options) for part in parts]


def documents_of(corpora: list[Corpus], size: int) -> list[bytes]:
    return [document for corpus in corpora for document in read_documents(corpus, size)]


def text_of(corpus: Corpus) -> bytes:
    """Return the text of a corpus, which may begin inside a document."""
    pieces, end = [], False
    while not end:
        piece = corpus.read_into(np.empty(7, np.uint8))
        pieces.append(piece.text.tobytes())
        end = piece.end
    return b"".join(pieces)


@same_folder
@given(
    st.lists(
        st.binary(max_size=40).filter(lambda data: not binary_format(data)), min_size=1, max_size=5
    ),
    st.integers(1, 9),
    st.booleans(),
    st.integers(1, 50),
)
@example([b"", b"", b"a"], 1, False, 9)
def test_documents_of_all_parts_are_those_of_the_whole(
    tmp_path: Path, files: list[bytes], count: int, lines: bool, size: int
) -> None:
    names = [write(tmp_path, f"{k}.txt", data) for k, data in enumerate(files)]
    options = LINES if lines else CorpusOptions()
    whole = read_documents(Corpus(names, options), size)
    assert documents_of(parts_of(names, count, options), size) == whole


@same_folder
@given(
    st.lists(st.one_of(st.none(), st.text(max_size=12)), max_size=12),
    st.integers(1, 9),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.booleans(),
)
def test_json_lines_are_cut_at_lines(
    tmp_path: Path, documents: list[str | None], count: int, mark: bytes, ends: bool
) -> None:
    odd = [b"", b'{"text": null}', b'{"text": 5}', b"{"]
    rows = [
        odd[k % len(odd)] if text is None else json.dumps({"text": text}).encode()
        for k, text in enumerate(documents)
    ]
    data = mark + b"\n".join(rows) + (b"\n" if ends else b"")
    names = [write(tmp_path, "a.jsonl", data), write(tmp_path, "b.txt", b"b")]
    options = CorpusOptions(bad_rows="skip")
    whole = Corpus(names, options)
    parts = parts_of(names, count, options)
    assert documents_of(parts, 64) == read_documents(whole)
    assert sum(part.policy.null_rows for part in parts) == whole.policy.null_rows
    assert sum(part.policy.bad_rows for part in parts) == whole.policy.bad_rows


@pytest.mark.parametrize("first", [0, 1, 3])
def test_the_first_rows_say_whether_the_field_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(jsonl, "FIRST_ROWS", 3)
    rows = [b'{"x": 1}\n'] * first + [b'{"text": "a"}\n'] + [b'{"x": 1}\n'] * 9
    path = write(tmp_path, "f.jsonl", b"".join(rows))
    for count in (1, 2, 20):
        corpora = parts_of([path], count, CorpusOptions())
        if first == 3:
            with pytest.raises(InputError, match="line 1: no field 'text'"):
                documents_of(corpora, 64)
        else:
            assert documents_of(corpora, 64) == [b"a"]
            assert sum(corpus.policy.null_rows for corpus in corpora) == first + 9


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_rows_of_parquet_are_cut_anywhere(tmp_path: Path, count: int) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [f"document {k}" * (k % 5) if k % 7 else None for k in range(30)]
    path = str(tmp_path / "a.parquet")
    parquet.write_table(arrow.table({"text": arrow.array(rows, arrow.string())}), path, 8)
    corpora = parts_of([path], count, CorpusOptions())
    documents = documents_of(corpora, 64)
    assert documents == [row.encode() for row in rows if row is not None]
    assert sum(corpus.policy.null_rows for corpus in corpora) == sum(row is None for row in rows)
    if count == 2:
        assert all(0 < corpus.documents < len(documents) for corpus in corpora)


def test_compressed_files_and_texts_are_not_cut(tmp_path: Path) -> None:
    text = b"line\n" * 100
    names = [write(tmp_path, "a.gz", gzip.compress(text)), write(tmp_path, "b.txt", text)]
    corpora = parts_of(names, 8, CorpusOptions())
    assert sorted(documents_of(corpora, 64)) == [text, text]
    whole = parts_of(names[:1], 3, LINES)
    assert [len(read_documents(corpus)) for corpus in whole] == [100, 0, 0]


def test_a_text_cut_inside_is_one_document(tmp_path: Path) -> None:
    def cut_at_spaces(file: BinaryIO, offset: int) -> int:
        file.seek(offset)
        rest = file.read()
        return offset + rest.index(b" ") if b" " in rest else offset + len(rest)

    text = b"one two three four five"
    names = [write(tmp_path, "a.txt", text), write(tmp_path, "b.txt", b"six seven")]
    for separators in ((), (b"two",)):
        options = CorpusOptions(separators=separators)
        corpora = parts_of(names, 4, options, cut_at_spaces)
        texts = [text_of(corpus) for corpus in corpora]
        assert b"".join(texts) == (text + b"six seven").replace(*(separators or (b"",)), b"")
        assert sum(corpus.documents for corpus in corpora) == 2 + len(separators)
        assert max(map(len, texts)) < len(text)


def test_offsets_are_those_in_the_file(tmp_path: Path) -> None:
    name = write(tmp_path, "a.txt", b"a line\n" * 20 + b"\xff")
    *_, last = parts_of([name], 4, CorpusOptions(line_documents=True, encoding_errors="strict"))
    with pytest.raises(InputError, match="invalid UTF-8 at byte 140"):
        text_of(last)
    assert last.place(0)[1] > 100
    rows = write(tmp_path, "a.jsonl", b'{"text": "a"}\n' * 10 + b"no")
    *_, last = parts_of([rows], 2, CorpusOptions())
    with pytest.raises(InputError, match="line 5 after byte 84: not JSON"):
        text_of(last)


def test_what_has_no_parts(tmp_path: Path) -> None:
    name = write(tmp_path, "a.txt", b"text")
    with pytest.raises(InputError, match="--part needs files, not -"):
        take_part(resolve_sources(["-"]), Part(1, 2), CorpusOptions())
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match=r"--part needs files, not .*pipe: it can't be cut"):
            take_part(resolve_sources([str(tmp_path / "pipe")]), Part(1, 2), CorpusOptions())
    with pytest.raises(InputError, match="--part can't be combined with --limit"):
        take_part(resolve_sources([name]), Part(1, 2), CorpusOptions(limit=5))
    for number, count in ((0, 2), (3, 2), (-1, -1)):
        with pytest.raises(InputError, match="parts are numbered from 1/N to N/N"):
            Part(number, count)


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({"RANK": "0", "WORLD_SIZE": "4"}, "1/4"),
        ({"JOB_COMPLETION_INDEX": "3", "JOB_COMPLETIONS": "4", "RANK": "0"}, "4/4"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "9"}, "4/9"),
        (
            {
                "SLURM_ARRAY_TASK_ID": "3",
                "SLURM_ARRAY_TASK_COUNT": "9",
                "SLURM_ARRAY_TASK_MIN": "1",
                "RANK": "2",
                "WORLD_SIZE": "9",
            },
            "3/9",
        ),
    ],
)
def test_parts_of_the_environment(environment: dict[str, str], part: str) -> None:
    found, names = part_from_environment(environment)
    assert str(found) == part
    assert all(name in environment for name in names.split(" and "))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no environment variable says which part"),
        ({"RANK": "1"}, "no environment variable says which part"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "there is no part 5/4"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "RANK is 'one', not a part number"),
        (
            {
                "RANK": "1",
                "WORLD_SIZE": "4",
                "JOB_COMPLETION_INDEX": "1",
                "JOB_COMPLETIONS": "5",
            },
            "name different parts",
        ),
    ],
)
def test_environments_that_name_no_part(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        part_from_environment(environment)


def test_a_split_by_position(tmp_path: Path) -> None:
    """Ranges of bytes, each from the first line that begins in it; together they are the text."""
    lines = b"".join(b"line %d\n" % number for number in range(100))
    (tmp_path / "a.txt").write_bytes(lines)
    (tmp_path / "b.txt").write_bytes(b"the end")
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "x"}\n' * 20)
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl")]
    sources = resolve_sources(names)
    options = CorpusOptions()
    found, firsts = split_by_position(sources, {"test": 0.5, "val": 0.25}, options)
    assert len(firsts) == 2 and 0 < firsts[0] < firsts[1] < len(found.files)
    texts = [text_of(Corpus(found._replace(files=[file]), options)) for file in found.files]
    assert b"".join(texts) == lines + b"the end" + b"x" * 20
    begins = [found.files[first].begin for first in firsts]
    assert lines[begins[0] - 1 : begins[0]] == b"\n"
    assert not any(file.continues for file in found.files)
    documents = documents_of([Corpus(found, options)], 99)
    assert len(documents) == 2 + 20 + 1


def test_a_split_by_position_has_every_byte_and_file_once(tmp_path: Path) -> None:
    """The second range begins in the last line of a file, and gets no text of that file."""
    for name, text in (("a", b"line\n" * 8 + b"the last line"), ("b", b"two\n\n"), ("c", b"")):
        write(tmp_path, f"{name}.txt", text)
    found, firsts = split_by_position(
        resolve_sources([str(tmp_path)]), {"val": 0.2}, CorpusOptions()
    )
    assert [file.length for file in found.files] == [53, 5, 0] and firsts == [1]


@pytest.mark.parametrize(
    ("shares", "options", "message"),
    [
        ({"val": 0.1}, CorpusOptions(limit=9), "limit or separators"),
        ({"val": 0.1}, CorpusOptions(separators=(b"x",)), "limit or separators"),
        ({"val": 0.0001}, CorpusOptions(), "the split val gets no text"),
        ({"val": 0.9999}, CorpusOptions(), "what is left gets no text"),
    ],
)
def test_a_split_by_position_that_can_not_be(
    tmp_path: Path, shares: dict[str, float], options: CorpusOptions, message: str
) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    with pytest.raises(InputError, match=message):
        split_by_position(resolve_sources([str(tmp_path / "a.txt")]), shares, options)
    with pytest.raises(InputError, match="needs files, not -"):
        split_by_position(resolve_sources(["-"]), {"val": 0.1}, CorpusOptions())


@pytest.mark.parametrize("shares", [{"val": 0.01, "test": 0.01}, {"val": 0.1}])
def test_files_without_bytes_are_no_text_of_a_split(
    tmp_path: Path, shares: dict[str, float]
) -> None:
    """The shares are less than a byte, or less than a line."""
    for name, text in (("a.txt", b"one two three\n"), ("b.txt", b""), ("c.txt", b"")):
        (tmp_path / name).write_bytes(text)
    with pytest.raises(InputError, match="the split val gets no text"):
        split_by_position(resolve_sources([str(tmp_path)]), shares, CorpusOptions())
