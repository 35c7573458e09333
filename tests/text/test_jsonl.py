"""Documents from JSON Lines."""

from __future__ import annotations

import gzip
import json
import os
import re
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.cpu.library import TEXT_PADDING, library
from llmgpu.cpu.texts import JsonlTexts
from llmgpu.errors import InputError
from llmgpu.text import jsonl
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.documents import InputPolicy
from llmgpu.text.streams import Source
from tests.conftest import examples
from tests.text.reading import read_documents, split_lines, write

Outcome = tuple[list[bytes], int, int, bool]  # see `read_texts`

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
        (b"[1]", r"not a JSON object but a list; jq -c '\.\[\]' makes JSON Lines of an array"),
        (b"[", r"not JSON \(Expecting value at character \d\); jq -c '\.\[\]' makes JSON Lines"),
        (b'"x"', "not a JSON object but a string"),
        (b"null", "not a JSON object but null"),
        (b'{"text": 5}', "field 'text' is not a string but a number"),
        (b'{"text": "a\tb"}', r"not JSON \(Invalid control character at character 12\)"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"text": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path, "f.jsonl", b'{"text": "good"}\n\n' + line + b"\n")
    with pytest.raises(
        InputError, match=re.escape(f"{path}, line 3: ") + f".*{message}.*--bad-row"
    ):
        read_documents(Corpus([path]))
    corpus = Corpus([path], CorpusOptions(bad_rows="skip"))
    assert read_documents(corpus) == [b"good"]
    assert (corpus.policy.bad_rows, corpus.policy.null_rows) == (1, 0)
    assert corpus.notes[0].startswith(f"1 bad row skipped; the first: {path}, line 3: ")


@pytest.mark.parametrize(
    "line, message",
    [
        (
            b'{"txt": "x", "id": 1}',
            "no field 'text'; the fields are: 'id', 'txt'; choose one with --text-field, or leave",
        ),
        (b"{}", "no field 'text'; the fields are: none"),
    ],
)
def test_a_field_that_no_row_has_is_refused(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path, "f.jsonl", (b"\n" + line) * 3)
    for policy in ("error", "skip"):
        with pytest.raises(InputError, match=re.escape(f"{path}, line 2: {message}")):
            read_documents(Corpus([path], CorpusOptions(bad_rows=policy)))


@pytest.mark.parametrize(
    "line, raw, replaced",
    [
        (b"x\xff", b"x\xff", "x\ufffd"),
        (b"\\ud800x", b"\xef\xbf\xbdx", "\ufffdx"),
        (b"\\udc80", b"\xef\xbf\xbd", "\ufffd"),
        (b"\xff\\ud800\\udfff", b"\xff\xf0\x90\x8f\xbf", "\ufffd\U000103ff"),
        (
            b"\xff \\udfff\\ud800\xe4z",
            b"\xff \xef\xbf\xbd\xef\xbf\xbd\xe4z",
            "\ufffd " + "\ufffd" * 3 + "z",
        ),
    ],
)
def test_jsonl_that_is_no_text(tmp_path: Path, line: bytes, raw: bytes, replaced: str) -> None:
    path = write(tmp_path, "f.jsonl", b'{"text": "' + line + b'"}')
    assert read_documents(Corpus([path])) == [raw]
    corpus = Corpus([path], CorpusOptions(encoding_errors="replace"))
    assert read_documents(corpus) == [replaced.encode()]
    assert corpus.policy.invalid_sequences == replaced.count("\ufffd")
    with pytest.raises(InputError, match=re.escape(f"{path}, line 1: ")):
        read_documents(Corpus([path], CorpusOptions(encoding_errors="strict")))


def test_a_line_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl.JsonlFile, "longest", 20)
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


@pytest.mark.parametrize("point", [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF])
def test_escapes_of_each_length_in_utf8(tmp_path: Path, point: int) -> None:
    line = json.dumps({"text": f"<{chr(point)}>"}).replace("\x7f", "\\u007f").encode()
    assert b"\\u" in line
    with Corpus([write(tmp_path, "f.jsonl", line)]) as corpus:
        assert read_documents(corpus) == [f"<{chr(point)}>".encode()]


# What C takes is what Python's json says

atoms = st.sampled_from(
    [
        *(
            '"',
            '\\"',
            "\\\\",
            "\\/",
            "\\b\\f\\n\\r\\t",
            "\\u0041",
            "\\u00e9",
            "\\u20AC",
            "\\u12",
            "\\u00eg",
        ),
        *("\\ud83d\\ude00", "\\ud83d", "\\udc00", "\\ud83dx", "\\ud83d\\u0041", "\\x", "\\", "é"),
        *("語", "😀", "\x00", "\t", "\x7f", "a plain text of some words", "b"),
    ]
)
strings = st.lists(atoms, max_size=4).map(lambda parts: f'"{"".join(parts)}"')
numbers = st.sampled_from(
    [
        *("0", "-0", "12", "-1.5e+3", "1E5", "0.10", "01", "1.", ".5", "1e", "-", "+1", "NaN"),
        *("Infinity", "-Infinity", "9" * 300, "9" * 5000, "1e999", "0x1", "true", "false", "null"),
        *("tru", "nul", "True"),
    ]
)
names = st.sampled_from(['"t"', '"a"', '"b"', '"a.b"', '"\\u0074"', '"é"', '""', "t"])


space = st.sampled_from(["", "", " ", "\t\r ", "\x0b"])
changed_bytes = st.tuples(st.integers(0, 200), st.sampled_from(b'\xff"\\{}[],:\n\xed 0\xa0'))


def containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = st.tuples(space, names, space, values, space)
    members = parts.map(lambda found: "{0}{1}{2}:{4}{3}".format(*found))
    objects = st.lists(members, max_size=4).map(lambda parts: f"{{{','.join(parts)}}}")
    arrays = st.tuples(st.lists(values, max_size=3), space)
    return objects | arrays.map(lambda found: f"[{','.join(found[0])}{found[1]}]")


values = st.recursive(strings | numbers, containers, max_leaves=6)
plain = st.dictionaries(st.sampled_from(["t", "a", "b"]), st.text(), min_size=1).map(json.dumps)
others = st.sampled_from(["", " ", "x", "\x0c"])
lines = st.lists(plain | containers(values) | others, max_size=5)


def expected_texts(data: bytes, field: str, skips: bool) -> Outcome:
    """What `read_texts` returns."""
    texts: list[bytes] = []
    without = bad = 0
    has_field = False
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode())
            assert isinstance(value, dict)
            for name in [field] if field in value else field.split("."):
                is_there = isinstance(value, dict) and name in value
                value = value[name] if is_there else None
            has_field |= is_there
            assert value is None or isinstance(value, str)
        except (ValueError, RecursionError, AssertionError):
            bad += 1
            if not skips:
                return texts, without, 0, True
            continue
        if value is None:
            without += 1
        else:
            texts.append(value.encode("utf-8", "surrogatepass"))
    return texts, without, bad, bool(without) and not has_field


@settings(same_folder, max_examples=examples(60))
@given(
    lines,
    st.sampled_from(["t", "a.b", "", "é"]),
    st.sampled_from(["\n", "\r\n"]),
    st.none() | changed_bytes,
    st.integers(30, 4000),
    st.booleans(),
)
def test_texts_are_those_of_json(
    tmp_path: Path,
    lines: list[str],
    field: str,
    newline: str,
    change: tuple[int, int] | None,
    block: int,
    skips: bool,
) -> None:
    data = bytearray(newline.join(lines).encode())
    if change and data:
        data[change[0] % len(data)] = change[1]
    path = write(tmp_path, "f.jsonl", bytes(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_BLOCK_BYTES", block)
        patch.setattr(jsonl, "_SPAN_BYTES", 1 + block // 9)
        patch.setattr(jsonl, "_SEARCHED_BYTES", 1 + block % 9)
        outcomes = [read_texts(path, field, skips)]
        patch.setattr(jsonl.JsonlFile, "reads_anywhere", False)  # as what is compressed
        outcomes.append(read_texts(path, field, skips))
        patch.setenv("LLMGPU_CPU", "numpy")
        outcomes.append(read_texts(path, field, skips))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    try:
        data.decode()
    except UnicodeDecodeError:
        return
    assert outcomes[0] == expected_texts(bytes(data), field, skips)


@pytest.mark.parametrize("tail", [1, 3, 100])
@pytest.mark.parametrize("span", [1, 2, 7, 30, 1000])
def test_parts_of_a_file_are_read_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, span: int, tail: int
) -> None:
    monkeypatch.setattr(jsonl, "_SPAN_BYTES", span)
    monkeypatch.setattr(jsonl, "_SEARCHED_BYTES", tail)
    lines = [json.dumps({"t": "x" * (k * 37 % 50)}) + "\n" * (1 + k % 2) for k in range(40)]
    path = write(tmp_path, "f.jsonl", "".join(lines).encode().removesuffix(b"\n"))
    cuts = [0, 0, *(len("".join(lines[:k])) for k in (7, 8, 30)), os.path.getsize(path)]
    found = []
    for begin, end in pairwise(cuts):
        source = Source(path, os.path.getsize(path), os.stat(path).st_mtime_ns, span=(begin, end))
        with closing(jsonl.JsonlFile(source, "t")) as file:
            if begin % 2 == 0:
                file.begin()
            for piece in file.documents(InputPolicy("raw")):
                bounds = [*piece.starts.tolist(), piece.length]
                found += [piece.text[a:b].tobytes() for a, b in pairwise(bounds)]
            assert file.position == end - begin
    assert found == [b"x" * (k * 37 % 50) for k in range(40)]


@pytest.mark.skipif(library() is None, reason="without C, no spans are read")
def test_spans_inside_a_long_line_do_not_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_SPAN_BYTES", 100)
    monkeypatch.setattr(jsonl, "_SEARCHED_BYTES", 10)
    path = write(tmp_path, "f.jsonl", b'{"t": "' + b"x" * 5000 + b'"}\n{"t": "y"}\n')
    sizes: list[int] = []
    read_at = jsonl.JsonlFile.read_at

    def counted(self: jsonl.JsonlFile, data: NDArray[np.uint8], offset: int) -> None:
        sizes.append(len(data))
        read_at(self, data, offset)

    monkeypatch.setattr(jsonl.JsonlFile, "read_at", counted)
    with Corpus([path], CorpusOptions(text_field="t")) as corpus:
        assert read_documents(corpus) == [b"x" * 5000, b"y"]
    # Each span is searched once; the long line is searched for its end, and read.
    assert os.path.getsize(path) < sum(sizes) < 3 * os.path.getsize(path)


@pytest.mark.skipif(library() is None, reason="the CPU engine is not used")
@pytest.mark.parametrize(
    ("line", "field", "is_taken"),
    [
        (b'\t {\t"a"\r:\t1.5e3 , "t" : "x" }\t', "t", True),
        (b'{"a.b": "x"}', "a.b", True),
        (b'{"a": {"c": 1, "b": "x"}}', "a.b", True),
        (b'{"a": , "t": "x"}', "t", False),
        (b'{"a": 10, "b": 0, "t": "x"}', "t", True),
        (b'{"a": 01, "t": "x"}', "t", False),
        (b'{"a": 1., "t": "x"}', "t", False),
        (b'{"a": 1e, "t": "x"}', "t", False),
        (b'{"t": "x", "a": ', "t", False),
        (b'{"a": {"c": "x"}}', "a.bc", False),
        (rb'{"t": "\ud800\ue000"}', "t", False),
        (rb'{"t": "\u0078"}', "t", True),
        (b' { "t" : "x" } ', "t", True),
        (rb'{"t": "\u00eg"}', "t", False),
        (rb'{"t": "\ug078"}', "t", False),
        (rb'{"t": "\ud800\udbff"}', "t", False),
    ],
)
def test_lines_that_c_takes(line: bytes, field: str, is_taken: bool) -> None:
    padded = np.frombuffer(line + b"\n" + bytes(TEXT_PADDING), np.uint8).copy()
    taken = JsonlTexts(field, 1 << 20).take(padded, 0, len(line) + 1, is_last=True)
    assert taken.end == (len(line) + 1) * is_taken
    assert taken.text.tobytes() == b"x" * is_taken


@pytest.mark.parametrize("span", [3, 1 << 20])
def test_a_long_line_is_refused_wherever_spans_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, span: int
) -> None:
    monkeypatch.setattr(jsonl, "_SPAN_BYTES", span)
    monkeypatch.setattr(jsonl, "_SEARCHED_BYTES", 5)
    monkeypatch.setattr(jsonl.JsonlFile, "longest", 30)
    path = write(tmp_path, "f.jsonl", b'{"t": "a"}\n' * 3 + b'{"t": "' + b"b" * 200 + b'"}\n')
    with pytest.raises(InputError, match=f"{path}, line 4: longer than 30 bytes: split the docu"):
        read_documents(Corpus([path], CorpusOptions(text_field="t", bad_rows="skip")))


def read_texts(path: str, field: str, skips: bool) -> Outcome:
    """Return the texts of a file, its rows without text, bad rows, and whether it is refused."""
    file = jsonl.JsonlFile(Source(path, None), field)
    policy = InputPolicy("raw", "skip" if skips else "error")
    texts = []
    is_refused = False
    try:
        for piece in file.documents(policy):
            bounds = [*piece.starts.tolist(), piece.length]
            assert bounds[0] == 0 and piece.closed
            texts += [piece.text[begin:end].tobytes() for begin, end in pairwise(bounds)]
    except InputError:
        is_refused = True
    finally:
        file.close()
    return texts, policy.null_rows, policy.bad_rows, is_refused


@pytest.mark.skipif(library() is None, reason="there is no CPU engine")
def test_c_takes_plain_lines() -> None:
    """Left to Python they would be right, too, but slow."""
    texts = ["a", "", 'é"\\\n\t/\b\f\r', "\U0001f600", "x" * 1000, "語" * 30]
    plain = [json.dumps({"n": [1, 2.5e-3, {"a": None}], "text": t}) for t in texts]
    spelled = [json.dumps({"text": t, "b": True, "c": False}, ensure_ascii=False) for t in texts]
    data = "\n".join([*plain, "", '{"text": null}', *spelled]).encode()
    padded = np.frombuffer(data + bytes(TEXT_PADDING), np.uint8).copy()
    taken = JsonlTexts("text", 1 << 20).take(padded, 0, len(data), is_last=True)
    text, starts, used, lines, nulls = taken
    assert (text.tobytes(), len(starts)) == ("".join(texts * 2).encode(), 2 * len(texts))
    assert (used, lines, nulls) == (len(data), 2 * len(texts) + 2, 1)


def test_the_other_ending_of_json_lines(tmp_path: Path) -> None:
    data = b'{"text": "one"}\n{"text": "two"}\n'
    names = [write(tmp_path, "a.ndjson", data), write(tmp_path, "B.NDJSON.gz", gzip.compress(data))]
    assert read_documents(Corpus(names)) == [b"one", b"two"] * 2
