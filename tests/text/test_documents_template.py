"""Text made of several fields of a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgpu.errors import InputError
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.documents import Template
from tests.text.reading import read_documents

ROWS = [
    {"q": "low", "a": "new", "in": {"b": "x"}},
    {"q": "ä☃", "a": "", "in": {"b": "{q}"}},
    {"q": None, "a": "left out", "in": {"b": "y"}},
    {"q": "last", "a": "end", "in": {"b": "z"}},
]


@pytest.mark.parametrize("name", ["c.jsonl", "c.parquet"])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{q}\n{a}", ["low\nnew", "ä☃\n", "last\nend"]),
        ("Q: {q} {{{in.b}}}", ["Q: low {x}", "Q: ä☃ {{q}}", "Q: last {z}"]),
        ("{a}{a}.", ["newnew.", ".", "left outleft out.", "endend."]),
        ("{q}", ["low", "ä☃", "last"]),
    ],
)
def test_rows_are_what_a_template_says(
    tmp_path: Path, name: str, source: str, expected: list[str]
) -> None:
    """A row with a null has no text, as with one field."""
    path = tmp_path / name
    if name == "c.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        arrow = pytest.importorskip("pyarrow")
        table = arrow.Table.from_pylist(ROWS)
        codes = table["a"].dictionary_encode()
        table = table.set_column(table.schema.get_field_index("a"), "a", codes)
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=3)
    for errors in ("raw", "strict"):
        options = CorpusOptions(template=Template.parse(source), encoding_errors=errors)
        with Corpus([str(path)], options) as corpus:
            assert read_documents(corpus) == [text.encode() for text in expected]
            assert corpus.policy.null_rows == len(ROWS) - len(expected)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_numbers_are_no_positions(tmp_path: Path, ending: str) -> None:
    """A field may have a number as its name."""
    path = tmp_path / f"c.{ending}"
    rows = [{"a": ["x", "y"], "in": {"1": "z"}, "7": "u"}]
    if ending == "jsonl":
        path.write_text(json.dumps(rows[0]))
    else:
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    with Corpus([str(path)], CorpusOptions(template="{in.1}{7}")) as corpus:
        assert read_documents(corpus) == [b"zu"]
    for source, number in (("{a.0}", 0), ("{0}", 0), ("{in.1.2}", 2)):
        message = f"fields are chosen by name, and {number} is no position in a row or a list"
        with pytest.raises(InputError, match=message):
            read_documents(Corpus([str(path)], CorpusOptions(template=source)))
    if ending == "jsonl":
        where = r"no field 'a.0'; the fields are: none in 'a', which is a list; "
        with pytest.raises(InputError, match=where):
            read_documents(Corpus([str(path)], CorpusOptions(text_field="a.0")))


def test_a_missing_field_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"q": "x", "a": "y"}\n{"q": "x"}\n{"q": "x", "a": 3}\n')
    names = [str(tmp_path / "c.jsonl")]
    template = Template.joined(["q", "a"])
    message = r"line 2: no field 'a'.*--bad-rows"
    with (
        Corpus(names, CorpusOptions(template=template)) as corpus,
        pytest.raises(InputError, match=message),
    ):
        read_documents(corpus)
    with Corpus(names, CorpusOptions(template=template, bad_rows="skip")) as corpus:
        assert read_documents(corpus) == [b"x\ny"] and corpus.policy.bad_rows == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("plain {{}}", "has no field such as"),
        ("{a} {", "stray { at character 5"),
        ("a}", "stray } at character 2"),
        ("{}", "has {}, which is not a field"),
        ("{a!r}", "has {a!r}, which is not a field"),
        ("{a:>9}", "has {a:>9}, which is not a field"),
        ("{a[0]}", "which is not a field"),
        ("{a {b}}", "stray { at character 1"),
    ],
)
def test_what_is_no_template(source: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Template.parse(source)
    assert message in str(caught.value)


def test_a_template_is_spelled_as_it_was_given() -> None:
    for source in ("{a}", "x {{{a}}} {b.c}\n"):
        assert Template.parse(source).source == source
    assert Template.joined(["a", "b"]) == Template.parse("{a}\n{b}")


def test_options_of_a_corpus_take_a_template_as_text() -> None:
    options = CorpusOptions(template="{a} {b}")
    assert options.row_template == Template.parse("{a} {b}")
    with pytest.raises(InputError, match="has no field"):
        CorpusOptions(template="no field")
    with pytest.raises(TypeError, match="text_field names one field"):
        CorpusOptions(text_field=["a", "b"])
