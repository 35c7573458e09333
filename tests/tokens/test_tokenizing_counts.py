"""Counts of a corpus: of each file, against the file encoded alone, and of documents by length."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from llmgpu.tokens.tokenizing import DocumentLengths, FileCount, count_files, encode_corpus
from tests.bpe.encoding.test_encoder_gpu import hostile_text, train


def files_in(folder: Path) -> list[Path]:
    """Write files of many sizes and kinds; some are empty, some have no document."""
    text = hostile_text(5, 9_000)
    rng = np.random.default_rng(5)
    paths = []
    for number in range(30):
        size = int(rng.choice([0, 1, 7, 300, 3_000]))
        begin = int(rng.integers(len(text) - size))
        data = text[begin : begin + size]
        kind = ("txt", "jsonl", "txt.gz")[number % 3]
        if kind == "jsonl":
            data = b'{"text": "a|b c"}\n' * (size // 100)
        paths.append(folder / f"{number:02}.{kind}")
        paths[-1].write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    return paths


@pytest.mark.parametrize(
    "options",
    [
        CorpusOptions(),
        CorpusOptions(separators=(b"|", b"e")),
        CorpusOptions(line_documents=True),
        CorpusOptions(encoding_errors="replace"),
    ],
    ids=["plain", "separators", "lines", "replace"],
)
def test_counts_are_those_of_each_file_alone(tmp_path: Path, options: CorpusOptions) -> None:
    paths = [str(path) for path in files_in(tmp_path)]
    encoder = open_encoder(train(hostile_text(5, 9_000)), NUMPY, 1000)
    expected = []
    for path in paths:
        with Corpus([path], options) as alone:
            tokens = sum(len(piece.ids) for piece in encode_corpus(encoder, alone))
            expected.append(FileCount(path, alone.text_bytes, tokens))
    calls: list[int] = []
    with Corpus(paths, options) as text:
        counts = count_files(encoder, text, lambda phase, done, total: calls.append(done))
        assert counts == expected
        assert sum(count.text_bytes for count in counts) == text.text_bytes
    assert calls[-1] == text.total_bytes


def test_tokens_around_documents_belong_to_their_file(tmp_path: Path) -> None:
    for name, data in (("a", b"low low"), ("b", b""), ("c", b"low")):
        (tmp_path / name).write_bytes(data)
    around = SpecialOptions(bos=65, eos=66)
    encoder = open_encoder(train(b"low " * 50), NUMPY, special=around)
    with Corpus([str(tmp_path)]) as text:
        with_both = [count.tokens for count in count_files(encoder, text)]
    with Corpus([str(tmp_path)]) as text:
        plain = [
            count.tokens for count in count_files(open_encoder(train(b"low " * 50), NUMPY), text)
        ]
    assert with_both == [tokens + 2 for tokens in plain] and plain[1] == 0


def test_a_limit_ends_the_list(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"0123456789")
    encoder = open_encoder(train(b"low " * 50), NUMPY)
    with Corpus([str(tmp_path)], CorpusOptions(limit=15)) as text:
        counts = count_files(encoder, text)
    assert [(Path(count.path).name, count.text_bytes) for count in counts] == [("a", 10), ("b", 5)]
    assert sum(count.tokens for count in counts) == 15
    assert count_files(encoder, corpus_from_bytes(b"no file")) == []


def test_how_often_each_id_is_used(tmp_path: Path) -> None:
    paths = [str(path) for path in files_in(tmp_path)]
    vocabulary = train(hostile_text(5, 9_000))
    encoder = open_encoder(vocabulary, NUMPY, 1000)
    with Corpus(paths) as text:
        ids = np.concatenate([piece.ids for piece in encode_corpus(encoder, text)])
    used = np.zeros(vocabulary.size, np.int64)
    with Corpus(paths) as text:
        count_files(encoder, text, used=used)
    assert used.tolist() == np.bincount(ids, minlength=vocabulary.size).tolist()


def test_files_without_a_document_at_the_end(tmp_path: Path) -> None:
    for name, content in (("a.txt", "a b"), ("b.jsonl", ""), ("c.jsonl", "")):
        (tmp_path / name).write_text(content)
    paths = [str(tmp_path / name) for name in ("a.txt", "b.jsonl", "c.jsonl")]
    encoder = open_encoder(train(hostile_text(5, 900)), NUMPY, 1000)
    with Corpus(paths, CorpusOptions()) as text:
        found = [(count.text_bytes, count.tokens) for count in count_files(encoder, text)]
    assert found[0][1] > 0 and found[1:] == [(0, 0), (0, 0)]


def test_documents_may_end_in_a_later_slice() -> None:
    rng = random.Random(7)
    lengths = [rng.choice((0, 1, 5, 200)) for _ in range(300)]
    starts, ids = np.cumsum([0, *lengths[:-1]]), sum(lengths)
    counted, first = DocumentLengths(), 0
    while first < ids:
        last = min(first + rng.randrange(1, 400), ids)
        is_end = last == ids  # documents without ids at the end belong to the last slice
        own = starts[(starts >= first) & ((starts < last) | is_end)]
        counted.add(own - first, last - first)
        first = last
    found = counted.summary()
    assert counted.summary() == found  # the last document is counted once
    assert found["documents"] == len(lengths)
    assert found["median"] == sorted(lengths)[len(lengths) // 2 - 1]
    assert found["above"]["128"] == lengths.count(200)
