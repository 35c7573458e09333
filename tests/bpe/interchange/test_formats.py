"""Vocabularies of all kinds by a path, and published ones by name."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmgpu import Tokenizer
from llmgpu.bpe.interchange import formats
from llmgpu.bpe.interchange.formats import VocabularyFiles, find_vocabulary, open_vocabulary
from llmgpu.bpe.interchange.tiktoken import (
    ENCODINGS,
    added_tokens,
    encoding_of,
    find_ranks,
    pattern_of,
)
from llmgpu.errors import VocabularyError
from tests.bpe.interchange.samples import cl100k_path, trained

CACHED_CL100K = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A vocabulary in every format, alone and in folders."""
    trained().save(tmp_path / "v.bin")
    for name, out in (("huggingface", "t.json"), ("tiktoken", "ranks"), ("gpt2", "pair")):
        formats.WRITERS[name].write(trained(), tmp_path / out)
    (tmp_path / "hf").mkdir()
    shutil.copy(tmp_path / "t.json", tmp_path / "hf" / "tokenizer.json")
    for half in ("vocab.json", "merges.txt"):
        shutil.copy(tmp_path / "pair" / half, tmp_path / f"own-{half}")
        shutil.copy(tmp_path / "pair" / half, tmp_path / "hf" / half)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("v.bin", None),
        ("t.json", "huggingface"),
        ("ranks", "tiktoken"),
        ("pair", "gpt2"),
        ("pair/vocab.json", "gpt2"),
        ("pair/merges.txt", "gpt2"),
        ("own-vocab.json", "gpt2"),
        ("own-merges.txt", "gpt2"),
        ("hf", "huggingface"),
    ],
)
def test_a_path_is_opened_by_its_content(folder: Path, name: str, format: str | None) -> None:
    found = find_vocabulary(folder / name)
    assert found.format == format and all(map(os.path.exists, found.inputs))
    opened = open_vocabulary(folder / name)
    assert (opened.tokens, opened.special_tokens) == (trained().tokens, trained().special_tokens)
    text = "it's a text  12"
    ids = Tokenizer.load(folder / "v.bin", "cpu").encode(text)
    assert list(Tokenizer.load(folder / name, "cpu").encode(text)) == list(ids)


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("x", b"\nIQ== 0\nIg== 1\n", "tiktoken"),
        ("x", b" IQ==\t0\n", "tiktoken"),
        ("x", b"IQ==  0 \r\n", "tiktoken"),
        ("tokenizer.model", b"= 9\nIQ== 0\n", "tiktoken"),
        ("x", b'{"model": {"type": "BPE", "vocab": {', "huggingface"),
        ("x", b'{"version": "1.0", "normalizer": null, "pre_tokenizer": {', "huggingface"),
        ("x", b'{"special_tokens": [{"rank": 0, "is_control": true}, ', "tekken"),
        ("tekken.json", b'{"image": "' + b"x" * 5000, "tekken"),
    ],
)
def test_files_that_begin_in_another_way(
    tmp_path: Path, name: str, content: bytes, format: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert find_vocabulary(tmp_path / name).format == format


@pytest.mark.parametrize("format", sorted(formats.READERS.keys() - {"tiktoken", "gpt2"}))
def test_arguments_for_files_that_are_complete(format: str) -> None:
    with pytest.raises(VocabularyError, match=r"v: .* merges\.txt is for gpt2"):
        VocabularyFiles("v", format, "merges.txt").read()
    for arguments in ({"pattern": "gpt2"}, {"special_tokens": {"<x>": 1}}):
        with pytest.raises(VocabularyError, match=f"v: .*{format} has its own pattern"):
            VocabularyFiles("v", format).read(**arguments)


def test_special_tokens_of_a_name_and_of_the_caller(tmp_path: Path) -> None:
    """As for `import o200k_harmony --special-token '<b>=301'`."""
    lines = [b"%s %d\n" % (base64.b64encode(bytes([value])), value) for value in range(256)]
    (tmp_path / "ranks").write_bytes(b"".join(lines))
    files = VocabularyFiles(str(tmp_path / "ranks"), "tiktoken", special_tokens={"<a>": 300})
    read = files.read(pattern="gpt2", special_tokens={"<b>": 301})
    assert read.special_tokens == {"<a>": 300, "<b>": 301}


def test_a_folder_by_a_format(folder: Path) -> None:
    assert find_vocabulary(folder / "hf", "gpt2").format == "gpt2"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("merges.txt", b"#version: 0.2\n", r"is a merges.txt, which needs .*vocab.json next to it"),
        ("merges.txt", b"a b\n", r"is a merges.txt, which needs .*vocab.json next to it"),
        ("x", b"#version: 0.2\n", r"is a merges.txt, which needs .*vocab.json next to it"),
        ("x.pkl", b"\x80\4", r"x\.pkl: pickles are not read, since they can run code: use the"),
        ("vocab.json", b'{"a": 0}', r"is a vocab.json, which needs .*merges.txt next to it"),
        ("x.json", b'{"b": "c"}', "not a tokenizer.json: no model"),
        ("x.jsonl", b'{"id": 7, "text": "b"}', "not an llmgpu vocabulary but text: give"),
        (
            "x.jsonl",
            b'{"id": 7, "label": 1, "text": "b"}',
            "not an llmgpu vocabulary but text: give",
        ),
        ("v.json", b'{"a": 0, "\\": ": 1, "' + b"b" * 4096, r"is a vocab.json, which needs"),
        ("v.json", b'{"a": 0, "b": 1' + b"1" * 4096, r"is a vocab.json, which needs"),
        ("x", b"\0\1", "not an llmgpu vocabulary$"),
        ("x.tiktoken", b"\nYQ== 0\n", "how to split text: import it with --pattern"),
        ("folder/tokenizer.model", b"YQ== 0\n", "how to split text: import it with --pattern"),
        ("folder/tokenizer.json", b"", "not valid JSON: the file is empty"),
        ("x.txt", b"a text", "not an llmgpu vocabulary but text: give a file of bpe-train or"),
        ("x.npy", b"\x93NUMPY", "not an llmgpu vocabulary but a NumPy array: give a file"),
        ("cl100k", b"YQ== 0\n", "how to split text: import it with --pattern"),
        (
            "folder/tekken_2.json",
            b"{}",
            "nor a checkpoint; if tekken_2.json is its vocabulary, name",
        ),
        ("folder/x", b"", "has neither tokenizer.json nor vocab.json, nor a checkpoint"),
    ],
)
def test_what_is_no_vocabulary(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(VocabularyError, match=message):
        open_vocabulary(path.parent if "/" in name else path)


def test_a_missing_file_is_no_published_name(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"can't read the vocabulary .*No such file"):
        open_vocabulary(tmp_path / "cl100k")


def test_tiktokens_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published ranks are found where tiktoken finds them; others there are refused."""
    load = pytest.importorskip("tiktoken.load")
    ranks = cl100k_path()
    digest = hashlib.sha256(ranks.read_bytes()).hexdigest()
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(tmp_path))
    cached = tmp_path / CACHED_CL100K
    shutil.copy(ranks, cached)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    address = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
    assert load.read_file_cached(address, digest) == ranks.read_bytes()
    assert find_ranks("cl100k") == find_ranks("cl100k_base") == str(cached)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    assert find_ranks("cl100k") == str(ranks)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with cached.open("ab") as stream:
        stream.write(b"IQIi 100256\n")
    assert find_ranks("cl100k") == str(ranks)
    shutil.copy(cached, tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790")
    with pytest.raises(
        VocabularyError, match=r"o200k_base on this machine; .*fb374.* is not as published"
    ):
        find_ranks("o200k")


def test_a_side_file_in_the_cache_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    shutil.copy(cl100k_path(), tmp_path / CACHED_CL100K)
    (tmp_path / f"{CACHED_CL100K}.json").write_text("{}")
    assert find_ranks("cl100k") == str(cl100k_path())


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert find_ranks("of-nobody") is encoding_of("gpt-9") is pattern_of("gpt-9") is None
    for name, encoding in (("o200k", "o200k_base"), ("gpt-4o", "o200k_base")):
        with pytest.raises(VocabularyError, match=f"get_encoding\\('{encoding}'\\)"):
            find_ranks(name)
    assert find_ranks("gpt-4-turbo") == find_ranks("gpt4") == find_ranks("cl100k")
    assert (pattern_of("gpt-oss-20b"), pattern_of("davinci")) == ("o200k", "gpt2")


def test_models_are_those_of_tiktoken() -> None:
    """Each name in its tables, and with something after each beginning, has its encoding."""
    model = pytest.importorskip("tiktoken.model")
    for name, encoding in model.MODEL_TO_ENCODING.items():
        assert encoding_of(name) == encoding.replace("gpt2", "r50k_base"), name
    for begin in model.MODEL_PREFIX_TO_ENCODING:
        assert encoding_of(f"{begin}-2026") == model.encoding_name_for_model(f"{begin}-2026"), begin
    for name in ("gpt-4o-mini", "gpt-4-turbo", "gpt-5-nano", "gpt-oss-120b"):
        assert encoding_of(name) == model.encoding_name_for_model(name)


def test_special_tokens_of_encodings_that_share_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    public = pytest.importorskip("tiktoken_ext.openai_public")
    monkeypatch.setattr(public, "load_tiktoken_bpe", lambda *_, **__: {})
    for name, base in (("o200k_harmony", "o200k_base"), ("p50k_edit", "p50k_base")):
        known = next(made for made in ENCODINGS.values() if made.name == base)
        theirs = getattr(public, name)()["special_tokens"]
        theirs.pop("<|reserved_200018|>", None)  # a second text of the id of <|endofprompt|>
        assert {**known.special_tokens, **added_tokens(name)} == theirs
    assert not added_tokens("o200k")


def test_a_vocabulary_of_our_own_imports_no_other_format(folder: Path) -> None:
    code = (
        "import sys; from llmgpu.bpe.interchange.formats import open_vocabulary;"
        "open_vocabulary('v.bin');"
        "print([m for m in sys.modules if m.startswith('llmgpu.bpe.interchange.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    modules = {name.rpartition(".")[2] for name in json.loads(done.stdout.replace("'", '"'))}
    assert modules == {"formats"}, done.stderr
