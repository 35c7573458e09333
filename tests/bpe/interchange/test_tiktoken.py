"""Rank files: read, written, and compared with tiktoken itself."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tiktoken as peer
from tiktoken.load import load_tiktoken_bpe

from llmgpu.bpe.interchange import tiktoken
from llmgpu.bpe.interchange.token_tables import TIKTOKEN
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, LlmgpuError, OutputError, VocabularyError
from llmgpu.input_files import MAX_BYTES
from tests.bpe.interchange.samples import (
    cl100k_path,
    random_ranks,
    rank_vocabulary,
    texts,
    trained,
)
from tests.reference.encoding import bpe_encode


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tiktoken from taking a file for another that had its name before."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")


def rank_file(ranks: dict[bytes, int]) -> bytes:
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    return b"".join(lines)


BYTES = {bytes([value]): value for value in range(256)}


def open_with_peer(path: Path) -> peer.Encoding:
    """Do what the side file is made for."""
    side = json.loads(Path(tiktoken.side_path(path)).read_text())
    return peer.Encoding(
        path.name,
        pat_str=side["pat_str"],
        mergeable_ranks=load_tiktoken_bpe(str(path)),
        special_tokens=side["special_tokens"],
    )


def assert_same_meaning(left: Vocabulary, right: Vocabulary) -> None:
    assert left.fingerprint == right.fingerprint
    assert (left.pattern, left.special_tokens) == (right.pattern, right.special_tokens)


class TestIds:
    @pytest.mark.parametrize("pattern", PATTERNS)
    @pytest.mark.parametrize("seed", range(4))
    def test_any_ranks(self, tmp_path: Path, pattern: str, seed: int) -> None:
        vocabulary = rank_vocabulary(random_ranks(seed), pattern)
        tiktoken.write(vocabulary, tmp_path / "r")
        encoding = open_with_peer(tmp_path / "r")
        for text in texts(seed, 100):
            assert bpe_encode(vocabulary, text.encode()) == encoding.encode_ordinary(text), text

    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_trained_here(self, tmp_path: Path, pattern: str) -> None:
        vocabulary = trained(pattern if pattern in ("class", "none") else "gpt2")
        tiktoken.write(vocabulary, tmp_path / "r")
        encoding = open_with_peer(tmp_path / "r")
        read = tiktoken.read(tmp_path / "r")
        for text in texts(9, 200):
            ids = encoding.encode_ordinary(text)
            assert bpe_encode(vocabulary, text.encode()) == ids
            assert bpe_encode(read, text.encode()) == ids
        assert encoding.encode("<|endoftext|>", allowed_special="all") == [vocabulary.size - 1]
        assert read.special_tokens == vocabulary.special_tokens
        assert read.tokens == vocabulary.tokens


class TestFiles:
    def test_there_and_back(self, tmp_path: Path) -> None:
        data = rank_file(dict(sorted(random_ranks(7).items(), key=lambda item: item[1])))
        (tmp_path / "r").write_bytes(data)
        special = {"<|a|>": 600, "<|b|>": 700}
        read = tiktoken.read(tmp_path / "r", pattern="gpt2", special_tokens=special)
        assert (read.match, read.ignore_merges, read.merges.shape) == ("bpe", True, (0, 3))
        assert (read.size, read.special_tokens) == (701, special)
        tiktoken.write(read, tmp_path / "s")
        assert (tmp_path / "s").read_bytes() == data
        assert_same_meaning(tiktoken.read(tmp_path / "s"), read)
        assert_same_meaning(Vocabulary.from_bytes(read.to_bytes()), read)

    def test_disorder_blank_lines_and_crlf(self, tmp_path: Path) -> None:
        ranks = random_ranks(8)
        (tmp_path / "r").write_bytes(b"\r\n" + rank_file(ranks).replace(b"\n", b"\r\n\n"))
        assert tiktoken.read(tmp_path / "r", pattern="none").tokens == (
            rank_vocabulary(ranks, "none").tokens
        )

    def test_side_file_of_other_ranks(self, tmp_path: Path) -> None:
        tiktoken.write(trained(), tmp_path / "r")
        (tmp_path / "r").write_bytes(rank_file(BYTES))
        notes: list[str] = []
        with pytest.raises(VocabularyError, match="--pattern"):
            tiktoken.read(tmp_path / "r", note=notes.append)
        assert "another vocabulary" in notes[0]

    def test_the_caller_has_the_last_word(self, tmp_path: Path) -> None:
        tiktoken.write(trained(), tmp_path / "r")
        read = tiktoken.read(tmp_path / "r", pattern="none", special_tokens={"<x>": 500})
        assert read.pattern == "none"
        assert read.special_tokens == {"<|endoftext|>": 399, "<x>": 500}

    def test_one_text_for_each_id(self, tmp_path: Path) -> None:
        tiktoken.write(trained(), tmp_path / "r")
        notes: list[str] = []
        read = tiktoken.read(tmp_path / "r", special_tokens={"<x>": 399}, note=notes.append)
        assert read.special_tokens == {"<x>": 399}
        assert (
            notes[-1] == "special token '<|endoftext|>' is skipped: its id 399 belongs to another"
        )

    def test_an_empty_token(self, tmp_path: Path) -> None:
        (tmp_path / "r").write_bytes(rank_file(BYTES | {b"ab": 256}) + b"= 257\n")
        encoding = peer.Encoding(
            "r",
            pat_str=TIKTOKEN["gpt2"],
            mergeable_ranks=load_tiktoken_bpe(str(tmp_path / "r")),
            special_tokens={"<x>": 258},
        )
        notes: list[str] = []
        read = tiktoken.read(
            tmp_path / "r", pattern="gpt2", special_tokens={"<x>": 258}, note=notes.append
        )
        assert notes == ["id 257 has an empty token, so it is never used"]
        assert read.size == encoding.n_vocab == 259
        for text in texts(6, 100):
            assert bpe_encode(read, text.encode()) == encoding.encode_ordinary(text)
        with pytest.raises(InputError, match="id 257 at position 1 is not in the vocabulary"):
            read.decode([97, 257])

    def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="missing"):
            tiktoken.write(trained(), tmp_path / "missing" / "r")
        (tmp_path / "r.json").mkdir()
        with pytest.raises(OutputError, match=r"r\.json"):
            tiktoken.write(trained(), tmp_path / "r")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json"]

    def test_a_side_file_replaces_only_its_like(self, tmp_path: Path) -> None:
        for data in (b'{"!": 0}', b"[]", b"\xff"):
            (tmp_path / "vocab.json").write_bytes(data)
            with pytest.raises(OutputError, match=r"vocab\.json is .*, and the side file"):
                tiktoken.write(trained(), tmp_path / "vocab")
            assert (tmp_path / "vocab.json").read_bytes() == data
            assert not (tmp_path / "vocab").exists()
        tiktoken.write(trained(), tmp_path / "r")
        tiktoken.write(trained("class"), tmp_path / "r")
        assert tiktoken.read(tmp_path / "r").pattern == "class"


class TestRefused:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"YQ==", "line 1: not a token in base64"),
            (b"YQ== 1 2", "line 1: not a token in base64"),
            (b"YQ== -1", "line 1: not a token in base64"),
            (b"YQ== 1_0", "line 1: not a token in base64"),
            (b"YQ== \xd9\xa1", "line 1: not a token in base64"),
            (b"YQ== 4294967295", "line 1: token b'a' has id 4294967295"),
            (b"\nY!== 1", "line 2: .* not base64"),
            (b"YQ 1", "line 1: .* not base64"),
            (b"== 1", "line 1: .* not base64"),
            (b"= 1\n= 2", "line 2: token b'' already has rank 1"),
            (b"YQ== 1\nYg== 2\nYQ== 3", "line 3: token b'a' already has rank 1"),
            (b"YQ== 1\nYg== 1", "line 2: tokens b'a' and b'b' have the same rank, 1"),
            (b"", "it has no tokens"),
            (b"\n\n", "it has no tokens"),
            (rank_file(BYTES)[:-9], "1 bytes have no token, the first is 0xff"),
            (b"\x00\xff" * 1000, "line 1: not a token in base64"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, data: bytes, message: str) -> None:
        (tmp_path / "bad.tiktoken").write_bytes(data)
        with pytest.raises(VocabularyError, match=rf"bad\.tiktoken: {message}"):
            tiktoken.read(tmp_path / "bad.tiktoken", pattern="gpt2")

    @pytest.mark.parametrize(
        ("special", "message"),
        [
            ({"x": 97}, "and b'a' have the same id, 97"),
            ({"x": 300, "y": 300}, "and 'x' have the same id, 300: remove"),
            ({"x": -1}, "id -1"),
            ({"x": 2**40}, "below"),
            ({"": 300}, "special token ''"),
            ({"\ud800": 300}, "Unicode"),
        ],
    )
    def test_special_tokens(self, tmp_path: Path, special: dict[str, int], message: str) -> None:
        (tmp_path / "r").write_bytes(rank_file(BYTES))
        with pytest.raises(VocabularyError, match=message):
            tiktoken.read(tmp_path / "r", pattern="gpt2", special_tokens=special)

    @pytest.mark.parametrize(
        "change",
        [
            {"version": 2},
            {"pattern": 3},
            {"special_tokens": ["a"]},
            {"special_tokens": {"a": 1.0}},
            {"special_tokens": {"a": True}},
        ],
    )
    def test_bad_side_files(self, tmp_path: Path, change: dict[str, object]) -> None:
        tiktoken.write(trained(), tmp_path / "r")
        side = tmp_path / "r.json"
        side.write_text(json.dumps(json.loads(side.read_text()) | change))
        with pytest.raises(VocabularyError, match="/r: "):
            tiktoken.read(tmp_path / "r")

    def test_a_file_that_is_too_long(self, tmp_path: Path) -> None:
        with open(tmp_path / "r", "wb") as stream:
            stream.truncate(MAX_BYTES["vocabulary of another tool"] + 1)
        with pytest.raises(VocabularyError, match="/r: longer than 64 MiB"):
            tiktoken.read(tmp_path / "r")

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "missing", "\0"):
            with pytest.raises(VocabularyError, match="can't read"):
                tiktoken.read(path)
        (tmp_path / "r").write_bytes(rank_file(BYTES))
        with pytest.raises(LlmgpuError, match="unknown pattern"):
            tiktoken.read(tmp_path / "r", pattern="gpt9")


def by_merges(tokens: list[bytes], merges: list[list[int]], **changes: object) -> Vocabulary:
    """The bytes, then `tokens`."""
    start = dataclasses.replace(byte_vocabulary("none", "hf"), match="bpe")
    merged = np.array(merges, np.uint32).reshape(-1, 3)
    return dataclasses.replace(start, tokens=(*start.tokens, *tokens), merges=merged, **changes)  # type: ignore[arg-type]


class TestNotExported:
    def test_merges_in_another_order_than_ids(self, tmp_path: Path) -> None:
        unfit = by_merges([b"bc", b"ab"], [[97, 98, 257], [98, 99, 256]])
        with pytest.raises(VocabularyError, match="another order"):
            tiktoken.write(unfit, tmp_path / "r")

    def test_merges_of_another_pair(self, tmp_path: Path) -> None:
        unfit = by_merges([b"ab", b"bc", b"abc"], [[97, 98, 256], [98, 99, 257], [97, 257, 258]])
        with pytest.raises(VocabularyError, match="another merge"):
            tiktoken.write(unfit, tmp_path / "r")

    def test_the_first_merge_of_another_pair(self, tmp_path: Path) -> None:
        unfit = by_merges([b"aaa", b"aa"], [[97, 97, 257], [257, 97, 256]])
        with pytest.raises(VocabularyError, match="another order"):
            tiktoken.write(unfit, tmp_path / "r")
        unfit = by_merges([b"ab", b"cd"], [[99, 100, 257]])
        with pytest.raises(VocabularyError, match=r"b'ab' .* is made by another merge"):
            tiktoken.write(unfit, tmp_path / "r")

    def test_classes_of_another_version_are_noted(self, tmp_path: Path) -> None:
        notes: list[str] = []
        tiktoken.write(rank_vocabulary(random_ranks(1), "gpt2"), tmp_path / "r", note=notes.append)
        made_before = dataclasses.replace(rank_vocabulary(random_ranks(1), "gpt2"), unicode="18.0")
        tiktoken.write(made_before, tmp_path / "s", note=notes.append)
        assert [note for note in notes if "the character classes of Unicode 18" in note] == notes[
            -1:
        ]
        kept = f"the pattern and 0 special tokens are in {tmp_path / 'r'}.json, not in the ranks"
        assert notes[0] == kept
        surrounded = dataclasses.replace(made_before, prefix_ids=(65,))
        tiktoken.write(surrounded, tmp_path / "t", note=notes.append)
        assert "can't hold the tokens that --add-special-tokens adds" in notes[-1]

    def test_a_token_that_no_merge_makes(self, tmp_path: Path) -> None:
        unfit = by_merges([b"ab", b"abcd"], [[97, 98, 256]])
        with pytest.raises(VocabularyError, match="1 tokens are made by no merge"):
            tiktoken.write(unfit, tmp_path / "r")
        tiktoken.write(dataclasses.replace(unfit, ignore_merges=True), tmp_path / "r")
        assert len(tiktoken.read(tmp_path / "r").tokens) == 258

    def test_more_merges_than_are_needed(self, tmp_path: Path) -> None:
        tokens = [b"ab", b"bc", b"abc"]
        every = [[97, 98, 256], [98, 99, 257], [256, 99, 258], [97, 257, 258]]
        tiktoken.write(by_merges(tokens, every), tmp_path / "r")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"match": "greedy"}, "greedy matching"),
            ({"normalizer": "NFC"}, "NFC"),
            ({"special_tokens": {"a": 97}, "normalized_tokens": (97,)}, "normalized special"),
            ({"special_tokens": {"a": 97}}, "1 bytes have no token"),
            ({"pattern": "own", "expression": "x"}, "'own' has no spelling"),
        ],
    )
    def test_rules(self, tmp_path: Path, change: dict[str, object], message: str) -> None:
        with pytest.raises(VocabularyError, match=message):
            tiktoken.write(by_merges([], [], **change), tmp_path / "r")
        assert not list(tmp_path.iterdir())

    def test_two_ids_of_the_same_bytes(self, tmp_path: Path) -> None:
        with pytest.raises(VocabularyError, match="same bytes"):
            tiktoken.write(by_merges([b"a"], []), tmp_path / "r")


class TestCl100k:
    def test_byte_for_byte(self, tmp_path: Path) -> None:
        path = cl100k_path()
        read = tiktoken.read(path, pattern="gpt2")
        assert (read.size, len(read.special_tokens)) == (100277, 5)
        assert read.tokens[100276] == b"<|endofprompt|>" and read.tokens[100256] == b""
        tiktoken.write(read, tmp_path / "r")
        assert (tmp_path / "r").read_bytes() == path.read_bytes()

    def test_ids(self, tmp_path: Path) -> None:
        pattern = "cl100k" if "cl100k" in PATTERNS else "gpt2"
        read = tiktoken.read(cl100k_path(), pattern=pattern)
        tiktoken.write(read, tmp_path / "r")
        encoding = open_with_peer(tmp_path / "r")
        text = "".join(texts(2, 300)) + Path(__file__).read_text()
        # One document by the reference takes a while for its table, so all texts are one.
        assert bpe_encode(read, text.encode()) == encoding.encode_ordinary(text)


def test_the_token_that_is_not_base64_is_named() -> None:
    with pytest.raises(VocabularyError, match=r"^line 2: b'\*\*' is not base64"):
        tiktoken._parse_ranks(b"YQ== 0\n** 1\n")


def test_special_tokens_of_published_ranks() -> None:
    end, prompt = "<|endoftext|>", "<|endofprompt|>"
    middle = {
        f"<|fim_{part}|>": 100258 + k for k, part in enumerate(("prefix", "middle", "suffix"))
    }
    assert {one.name: one.special_tokens for one in tiktoken.ENCODINGS.values()} == {
        "r50k_base": {end: 50256},
        "p50k_base": {end: 50256},
        "cl100k_base": {end: 100257, **middle, prompt: 100276},
        "o200k_base": {end: 199999, prompt: 200018},
    }
