"""``llmgpu import`` and ``llmgpu export`` as processes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from llmgpu.bpe.interchange.formats import FORMATS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from tests.bpe.interchange.samples import trained
from tests.bpe.interchange.test_huggingface import assert_same_ids, train_peer
from tests.cli.conftest import Run, fails


@pytest.fixture
def v_bin(tmp_path: Path) -> Path:
    trained().save(tmp_path / "v.bin")
    return tmp_path / "v.bin"


@pytest.mark.parametrize("name", FORMATS)
def test_there_and_back(llmgpu: Run, v_bin: Path, name: str) -> None:
    done = llmgpu("export", "v.bin", "--to", name, "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["format"], summary["vocabulary_size"]) == (name, 400)
    sources = ["out/vocab.json", "out/merges.txt"] if name == "gpt2" else ["out"]
    for chosen in ([], ["--from", name]):
        done = llmgpu("import", *sources, *chosen, "-o", "back.bin", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["format"] == name
        back = Vocabulary.load(v_bin.parent / "back.bin")
        assert back.tokens == trained().tokens
        assert back.special_tokens == trained().special_tokens
        assert (back.fingerprint == trained().fingerprint) == (name != "tiktoken")


def test_streams(llmgpu: Run, v_bin: Path) -> None:
    done = llmgpu("export", "v.bin", "--to", "huggingface", "-o", "-", "--json", "-q")
    assert_same_ids(trained(), Tokenizer.from_str(done.stdout.decode()), 20)
    assert json.loads(done.stderr)["fingerprint"] == trained().fingerprint
    ranks = llmgpu("export", "v.bin", "--to", "tiktoken", "-o", "-").stdout
    assert ranks.count(b"\n") == 399 and ranks.startswith(b"AA== 0\n")
    assert sorted(path.name for path in v_bin.parent.iterdir()) == ["v.bin"]


def test_options_of_import(llmgpu: Run, tmp_path: Path) -> None:
    lines = [b"%s %d\n" % (base64.b64encode(bytes([value])), value) for value in range(256)]
    (tmp_path / "r").write_bytes(b"".join(lines))
    special = ("--special-token", "<a=b>=300", "--special-token", "<c>=256")
    done = llmgpu("import", "r", "--pattern", "class", *special)
    assert done.returncode == 0, done.stderr
    made = Vocabulary.load(tmp_path / "v.bin")
    assert (made.pattern, made.special_tokens) == ("class", {"<a=b>": 300, "<c>": 256})


def test_notes_are_on_stderr(llmgpu: Run, tmp_path: Path) -> None:
    peer = train_peer()
    peer.add_tokens(["<plain>"])
    peer.save(str(tmp_path / "t.json"))
    done = llmgpu("import", "t.json", "--json")
    assert b"note: added tokens that are not special" in done.stderr and b"<plain>" in done.stderr
    assert json.loads(done.stdout)["special_tokens"] == 3
    assert llmgpu("import", "t.json", "-q", "--force").stderr == b""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["import", "missing"], 1, "missing"),
        (["import", "missing", "--from", "huggingface"], 1, "missing"),
        (["import", "ranks"], 1, "--pattern"),
        (["import", "ranks", "--from", "huggingface"], 1, "ranks"),
        (["import", "t.json", "--from", "tiktoken"], 1, "t.json: line 1"),
        (["import", "t.json", "--from", "gpt2"], 1, "merges.txt"),
        (["import", "t.json", "ranks"], 1, "t.json"),
        (["import", "t.json", "ranks", "--from", "tiktoken"], 1, "merges.txt"),
        (["import", "t.json", "--pattern", "gpt2"], 1, "brings its own pattern"),
        (["import", "t.json", "-o", "/dev/full"], 1, "/dev/full"),
        (["import", "t.json", "--from", "xml"], 2, "xml"),
        (["import", "ranks", "--special-token", "x"], 2, "is not a text and an id"),
        (["import", "ranks", "--special-token", "=5"], 2, "is not a text and an id"),
        (["import", "ranks", "--pattern", "gpt9"], 2, "gpt9"),
        (["export", "missing.bin", "--to", "gpt2", "-o", "out"], 1, "missing.bin"),
        (["export", "t.json", "--to", "gpt2", "-o", "out"], 1, "t.json"),
        (["export", "v.bin", "--to", "tiktoken", "-o", "/dev/full"], 1, "/dev/full"),
        (["export", "v.bin", "--to", "gpt2", "-o", "t.json"], 1, "t.json"),
        (["export", "v.bin", "--to", "gpt2"], 2, "--output"),
        (["export", "v.bin", "-o", "out"], 2, "--to"),
    ],
)
def test_bad_input(llmgpu: Run, v_bin: Path, arguments: list[str], code: int, message: str) -> None:
    folder = v_bin.parent
    train_peer().save(str(folder / "t.json"))
    (folder / "ranks").write_bytes(b"YQ== 0\n")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    fails(llmgpu(*arguments), code, message)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
