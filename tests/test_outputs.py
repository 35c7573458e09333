"""What may be written where, and what a file is by its first bytes."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import numpy as np
import pytest

from llmgpu import Tokenizer
from llmgpu.errors import OutputError
from llmgpu.file_kinds import DECIMAL_IDS, TEXT, TOKEN_FILE, VOCABULARY, kind_of
from llmgpu.outputs import Output, check_outputs


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", None),
        (b" \n\n", None),
        (b"1 2 3\n\n4\n", DECIMAL_IDS),
        (b"1 2 3 and text", TEXT),
        (b'{"ids": [1, 2]}\n', "ids as JSON lines"),
        (b'{"text": "hello"}\n', TEXT),
        (b'{"format": "llmgpu-tokens", "version": 1}', "the side file of a token file"),
        (b'{"format": "llmgpu-token-shards-in-progress"}', "the progress of token shards"),
        (b'{"format": "llmgpu-part"}', "the record of a finished part"),
        (b'{"format": "llmgpu-bench"}', "benchmark results"),
        (b'{"format": "of another program"}', TEXT),
        ("größer\n".encode("latin-1"), TEXT),
        ("größer\n".encode("utf-16"), TEXT),
        (b"\xfe\xff" + "größer\n".encode("utf-16-be"), TEXT),
        (b"YQ== 0\nYg== 1\n", "a rank file"),
        (b"word 0\nother 1\n" * 9, "a rank file"),
        (b"words 0\n" * 9, TEXT),
        (gzip.compress(b"text", mtime=0), "a compressed file"),
        (np.arange(999, dtype="<u2").tobytes(), None),
        (np.array([20240520, 1, 5], "<i4").tobytes(), TOKEN_FILE),
        (np.array([20240801, 7, 5], "<i4").tobytes(), TOKEN_FILE),
        ((90).to_bytes(8, "little") + b'{"__metadata__": {}}', "a file of weights"),
        (b'12345678{"text"', TEXT),
        (b'{"version": "1.0", "truncation": null, "model": "\x7f"}', "a tokenizer.json"),
        (b'{"added_tokens": [{"id": 0, ', "a tokenizer.json"),
        (b'{"config": {"num_vocab_tokens": 9, ', "a tekken.json"),
        (b'{"vocab": [{"rank": 0, "token_bytes": "AA=="', "a tekken.json"),
        (b'{"bos_token": "<s>"}', "a special_tokens_map.json"),
        (b'{"a": 0, "b": 1,', "a vocab.json"),
        (b"\n\x0e\n\5<unk>\x15\0\0\0\0\x18\2", "a SentencePiece model"),
        (b"\n\x09\n\5<unk>\x18\2", "a SentencePiece model"),
        (b"MMIDIDX\0\0\1", "an index of Megatron"),
        (b"\n<!DOCTYPE html>", "an HTML page"),
        (b"<HTML>", "an HTML page"),
        (b"SQLite format 3\0" + bytes(9), "a database"),
        (b"\x89PNG\r\n\x1a\n" + bytes(9), "a picture"),
        (b"GIF89a\1\0", "a picture"),
        (b"\xff\xd8\xff\xe0\0", "a picture"),
        (b"%PDF-1.7\n%\xe2\xe3\0", "a PDF"),
        (b"\x7fELF\2\1\1\0", "a program"),
        (b"\xcf\xfa\xed\xfe\7\0\0\1", "a program"),
    ],
)
def test_the_kind_of_a_file(tmp_path: Path, data: bytes, kind: str | None) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert kind_of(str(path)) == kind


def test_ids_without_a_header_are_known_by_their_side_file(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    path.write_bytes(b"abcd")
    assert kind_of(str(path)) == TEXT
    (tmp_path / "ids.bin.json").write_bytes(b'{"format": "llmgpu-tokens", "version": 1}')
    assert kind_of(str(path)) == TOKEN_FILE


def test_files_are_compared_by_identity(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    text, hard = tmp_path / "text", tmp_path / "there" / "hard"
    text.write_bytes(b"text")
    os.link(text, hard)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "there" / "new")
    for name in (hard, tmp_path / "link" / "hard", tmp_path / "there" / ".." / "text"):
        with pytest.raises(OutputError, match="is an input, the same file as"):
            check_outputs([Output(str(name), TEXT)], [str(text)], force=True)
    for name in (tmp_path / "there" / "new", tmp_path / "link" / "new"):
        with pytest.raises(OutputError, match="given for two outputs, the same file as"):
            check_outputs([Output(str(name), TEXT), Output(str(dangling), TEXT)])
    check_outputs([Output(str(tmp_path / "a"), TEXT), Output(str(tmp_path / "b"), TEXT)], ["-"])


def test_standard_input_is_named_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"text")
    with open(path) as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stream)
        with pytest.raises(OutputError, match="an input, the same file as standard input: "):
            check_outputs([Output(str(path), TEXT)], ["-"])


def test_streams_without_descriptors_are_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook."""
    with monkeypatch.context() as patch:
        for name in ("sys.stdin", "sys.stdout"):
            patch.setattr(name, io.StringIO())
        check_outputs([Output("-", TEXT)], ["-"])


def test_an_output_without_a_name_is_refused_before_the_work() -> None:
    with pytest.raises(OutputError, match="can't write '': an output needs a name"):
        check_outputs([Output("", TEXT)])


def test_a_pipe_takes_one_output(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    check_outputs([Output(fifo, VOCABULARY)])
    with pytest.raises(OutputError, match="given for two outputs"):
        check_outputs([Output(fifo, VOCABULARY), Output(fifo, VOCABULARY)])
    check_outputs([Output("/dev/null", VOCABULARY)] * 2)


def test_the_python_api_keeps_files_of_another_kind(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"low lower lowest " * 9)
    tokenizer = Tokenizer.train(text, vocab_size=260, device="cpu")
    with pytest.raises(OutputError, match=r"text is text, .* force=True"):
        tokenizer.save(text)
    tokenizer.save(tmp_path / "v.bin")
    tokenizer.save(tmp_path / "v.bin")
    tokenizer.save(text, force=True)
    assert text.read_bytes() == (tmp_path / "v.bin").read_bytes()


@pytest.mark.parametrize("name", ["tokenizer.json", "own.tiktoken", "own.GGUF"])
def test_a_vocabulary_is_not_named_as_that_of_another_tool(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    tokenizer = Tokenizer.train_from_iterator(["low lower lowest " * 9], vocab_size=260)
    with pytest.raises(OutputError) as raised:
        tokenizer.save(path)
    assert f"{path} would be a vocabulary of llmgpu, not what its name says" in str(raised.value)
    assert not path.exists()
    tokenizer.save(path, force=True)
    assert Tokenizer.load(path).vocabulary.fingerprint == tokenizer.vocabulary.fingerprint
    tokenizer.save(tmp_path / "json")


def test_a_working_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(OutputError, match=r"can't write o\.bin: No such file or directory"):
        check_outputs([Output("o.bin", "a token file")])
