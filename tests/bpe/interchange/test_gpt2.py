"""vocab.json and merges.txt: read, written, and compared with tokenizers itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from llmgpu.bpe.interchange import gpt2
from llmgpu.bpe.interchange.token_tables import to_bytes, to_text
from llmgpu.bpe.vocabulary.building import ALPHABET
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError, OutputError, VocabularyError
from tests.bpe.interchange.samples import (
    assert_same_ids,
    random_ranks,
    rank_vocabulary,
    texts,
    train_peer,
    trained,
)
from tests.reference.bpe import bytes_to_unicode
from tests.reference.encoding import bpe_encode


def open_with_peer(folder: Path) -> Tokenizer:
    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def read_folder(folder: Path, **options: Any) -> Vocabulary:
    return gpt2.read(folder / "vocab.json", folder / "merges.txt", **options)


class TestAlphabet:
    def test_it_is_the_published_one(self) -> None:
        assert dict(enumerate(ALPHABET)) == bytes_to_unicode()
        assert set(ALPHABET) == set(pre_tokenizers.ByteLevel.alphabet())

    def test_there_and_back(self) -> None:
        every = bytes(range(256))
        assert to_text(every) == "".join(ALPHABET)
        assert to_bytes(to_text(every)) == every

    def test_characters_outside(self) -> None:
        for number in [*range(0x200), 0x4E2D, 0xD800, 0xFFFD, 0x1F600]:
            if chr(number) not in ALPHABET:
                with pytest.raises(VocabularyError, match="byte-level alphabet"):
                    to_bytes(f"a{chr(number)}")


class TestFiles:
    def test_trained_there(self, tmp_path: Path) -> None:
        peer = train_peer()
        peer.model.save(str(tmp_path))
        notes: list[str] = []
        read = read_folder(tmp_path, note=notes.append)
        assert read.special_tokens == {"<|endoftext|>": 0, "<pad>": 1}
        assert notes == ["special tokens: '<|endoftext|>', '<pad>'"]
        assert (read.pattern, read.ignore_merges) == ("gpt2", False)
        assert_same_ids(read, peer)

    def test_byte_for_byte(self, tmp_path: Path) -> None:
        gpt2.write(trained(), tmp_path / "first")
        read = read_folder(tmp_path / "first")
        assert read.fingerprint == trained().fingerprint
        gpt2.write(read, tmp_path / "second")
        for name in ("vocab.json", "merges.txt"):
            data = (tmp_path / "first" / name).read_bytes()
            assert (tmp_path / "second" / name).read_bytes() == data
        assert (tmp_path / "first" / "merges.txt").read_bytes().startswith(b"#version: 0.2\n")
        # As GPT-2's file is: ascending ids, ASCII, the separators of Python's json.
        text = (tmp_path / "first" / "vocab.json").read_text()
        assert text.isascii() and text == json.dumps(json.loads(text))
        assert list(json.loads(text).values()) == list(range(400))

    def test_trained_here(self, tmp_path: Path) -> None:
        gpt2.write(trained(), tmp_path)
        assert_same_ids(trained(), open_with_peer(tmp_path))

    def test_ranks(self, tmp_path: Path) -> None:
        ranks = random_ranks(1)
        for token in sorted(ranks):  # keep what can be merged
            if len(token) > 2:
                del ranks[token]
        vocabulary = rank_vocabulary(ranks, "gpt2")
        gpt2.write(vocabulary, tmp_path)
        assert_same_ids(vocabulary, open_with_peer(tmp_path))

    def test_crlf_and_lines_like_the_first(self, tmp_path: Path) -> None:
        vocabulary = trained()
        gpt2.write(vocabulary, tmp_path)
        path = tmp_path / "merges.txt"
        path.write_bytes(path.read_bytes().partition(b"\n")[2].replace(b"\n", b"\r\n"))
        assert read_folder(tmp_path).fingerprint == vocabulary.fingerprint
        ids = {character: byte for byte, character in enumerate(ALPHABET)}
        ids |= {"#version:0.2": 256, "#version": 257, ":0.2": 258}
        (tmp_path / "vocab.json").write_text(json.dumps(ids))
        path.write_text("#version: 0.2\n#version :0.2\n")
        read = read_folder(tmp_path)
        assert read.merges.tolist() == [[257, 258, 256]]

    def test_another_pattern(self, tmp_path: Path) -> None:
        gpt2.write(trained(), tmp_path)
        read = read_folder(tmp_path, pattern="class")
        expected = dataclasses.replace(trained(), pattern=read.pattern, expression=read.expression)
        for text in texts(1, 50):
            assert bpe_encode(read, text.encode()) == bpe_encode(expected, text.encode())
        for vocabulary in (read, trained("none")):
            message = rf"are for pattern gpt2, but this vocabulary has '{vocabulary.pattern}'"
            with pytest.raises(VocabularyError, match=message):
                gpt2.write(vocabulary, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_special_tokens_that_are_given(self, tmp_path: Path) -> None:
        gpt2.write(trained(), tmp_path)
        read = read_folder(tmp_path, special_tokens={"<x>": 500, "<|endoftext|>": 399})
        assert read.special_tokens == {"<|endoftext|>": 399, "<x>": 500}
        with pytest.raises(VocabularyError, match="has the id 399, not 5"):
            read_folder(tmp_path, special_tokens={"<|endoftext|>": 5})


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "data", "message"),
        [
            ("vocab.json", b"[]", r"vocab\.json: the map of tokens is missing"),
            ("vocab.json", b"{", r"vocab\.json: not valid JSON"),
            ("vocab.json", b'{"a": 0, "b": 0}', "'a' and 'b' have the same id"),
            ("vocab.json", b'{"a": 0}', r"merges\.txt: a merge needs the token"),
            ("merges.txt", b"", r"vocab\.json: its tokens need merges"),
            (
                "merges.txt",
                b"#version: 0.2\na b c\n",
                "line 2 is not two tokens: 'a b c'",
            ),
            ("merges.txt", b"a\n", r"merges\.txt: line 1 is not two tokens"),
            ("merges.txt", b" a\n", r"merges\.txt: line 1 is not two tokens"),
            ("merges.txt", b"a  b\n", r"merges\.txt: line 1 is not two tokens"),
            ("merges.txt", b"\xff\n", r"merges\.txt: not UTF-8 at byte 0"),
            ("merges.txt", b"zz zz\n", "needs the token 'zz'"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, name: str, data: bytes, message: str) -> None:
        gpt2.write(trained(), tmp_path)
        (tmp_path / name).write_bytes(data)
        with pytest.raises(VocabularyError, match=message):
            read_folder(tmp_path)

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(VocabularyError, match=r"vocab\.json: can't read"):
            read_folder(tmp_path)
        gpt2.write(trained(), tmp_path)
        with pytest.raises(LlmgpuError, match="unknown pattern"):
            read_folder(tmp_path, pattern="gpt9")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"match": "greedy"}, "greedy matching"),
            ({"normalizer": "NFC"}, "NFC"),
            ({"ignore_merges": True}, "ignore_merges"),
            ({"normalized_tokens": (399,)}, "can't hold normalized special tokens"),
        ],
    )
    def test_not_exported(self, tmp_path: Path, change: dict[str, Any], message: str) -> None:
        with pytest.raises(VocabularyError, match=message):
            gpt2.write(dataclasses.replace(trained(), **change), tmp_path / "out")
        assert not list(tmp_path.iterdir())

    def test_ranks_that_no_merges_reach(self, tmp_path: Path) -> None:
        ranks = {bytes([value]): value for value in range(256)} | {b"abc": 256}
        with pytest.raises(VocabularyError, match="ignore_merges"):
            gpt2.write(rank_vocabulary(ranks, "gpt2"), tmp_path / "out")

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "missing" / "out"):
            with pytest.raises(OutputError):
                gpt2.write(trained(), path)
