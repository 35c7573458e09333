"""Documents from JSON Lines."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgpu.errors import InputError
from llmgpu.text import jsonl
from llmgpu.text.corpus import Corpus, CorpusOptions
from tests.text.reading import read_documents, split_lines, write

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@same_folder
@given(st.lists(st.text(max_size=9), max_size=6), st.integers(1, 20), st.booleans(), st.booleans())
def test_jsonl(tmp_path: Path, texts: list[str], size: int, plain: bool, lines: bool) -> None:
    data = "".join(json.dumps({"n": 1, "t": t}, ensure_ascii=plain) + "\r\n\n" for t in texts)
    path = write(tmp_path, "f.jsonl", b"\xef\xbb\xbf" + data.rstrip().encode())
    documents = [text.encode() for text in texts]
    options = CorpusOptions(text_field="t", line_documents=lines)
    expected = split_lines(documents) if lines else documents
    assert read_documents(Corpus([path], options), size) == expected


def test_compressed_jsonl_with_separators(tmp_path: Path) -> None:
    data = b'{"text": "a<s>b<"}\n{"text": "s>c"}'
    path = write(tmp_path, "f.jsonl.gz", gzip.compress(data))
    options = CorpusOptions(separators=(b"<s>",))
    assert read_documents(Corpus([path], options)) == [b"a", b"b<", b"s>c"]


@pytest.mark.parametrize(
    "line, message",
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object but a list"),
        (b'"x"', "not a JSON object but a string"),
        (b"null", "not a JSON object but null"),
        (b'{"txt": "x", "id": 1}', "no field 'text'; the fields are: 'id', 'txt'"),
        (b"{}", "the fields are: none"),
        (b'{"text": 5}', "field 'text' is not a string but a number"),
        (b'{"text": null}', "but null"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path, "f.jsonl", b'{"text": "good"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=re.escape(f"{path}, line 3: ") + f".*{message}"):
        read_documents(Corpus([path]))


@pytest.mark.parametrize(
    "line, raw, replaced",
    [
        (b"x\xff", b"x\xff", "x\ufffd"),
        (b"\\ud800x", b"\xed\xa0\x80x", "\ufffdx"),
        (b"\\udc80", b"\xed\xb2\x80", "\ufffd"),
        (b"\xff\\ud800\\udfff", b"\xff\xf0\x90\x8f\xbf", "\ufffd\U000103ff"),
        (
            b"\xff \\udfff\\ud800\xe4z",
            b"\xff \xed\xbf\xbf\xed\xa0\x80\xe4z",
            "\ufffd " + "\ufffd" * 3 + "z",
        ),
    ],
)
def test_jsonl_that_is_no_text(tmp_path: Path, line: bytes, raw: bytes, replaced: str) -> None:
    path = write(tmp_path, "f.jsonl", b'{"text": "' + line + b'"}')
    assert read_documents(Corpus([path])) == [raw]
    corpus = Corpus([path], CorpusOptions(encoding_errors="replace"))
    assert read_documents(corpus) == [replaced.encode()]
    assert corpus.invalid_sequences == replaced.count("\ufffd")
    with pytest.raises(InputError, match=re.escape(f"{path}, line 1: ")):
        read_documents(Corpus([path], CorpusOptions(encoding_errors="strict")))


def test_a_line_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LINE_BYTES", 20)
    path = write(tmp_path, "f.jsonl", b'{"text": "0123456"}\n{"text": "01234567890"}\n')
    with pytest.raises(InputError, match="line 2: longer than 20 bytes"):
        read_documents(Corpus([path]))


def test_a_field_of_an_object_within(tmp_path: Path) -> None:
    lines = [{"a": {"b": {"c": "one"}}}, {"a.b.c": "two", "a": {"b": {"c": "not this"}}}]
    path = write(tmp_path, "f.jsonl", "\n".join(map(json.dumps, lines)).encode())
    options = CorpusOptions(text_field="a.b.c")
    assert read_documents(Corpus([path], options)) == [b"one", b"two"]
    for line, message in (
        ({"a": {"x": 1}}, "line 1: no field 'a.b.c'; the fields are: 'x'"),
        ({"a": {"b": "text"}}, "line 1: no field 'a.b.c'; the fields are: none"),
        ({"a": {"b": {"c": 5}}}, "line 1: field 'a.b.c' is not a string but a number"),
    ):
        path = write(tmp_path, "f.jsonl", json.dumps(line).encode())
        with pytest.raises(InputError, match=re.escape(message)):
            read_documents(Corpus([path], options))
