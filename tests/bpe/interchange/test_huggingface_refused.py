"""What of a tokenizer.json is refused, each with the reason."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from llmgpu.bpe.interchange import huggingface
from llmgpu.bpe.interchange.token_tables import HUGGINGFACE
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from tests.bpe.interchange.samples import train_peer

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def notes() -> list[str]:
    return []


def set_at(*path: Any) -> Change:
    """Return a change that sets the value at a path of keys; the last of `path` is the value."""

    def change(content: Any) -> None:
        *keys, last, value = path
        for key in keys:
            content = content[key]
        if isinstance(content, list) and last == len(content):
            content.append(value)
        else:
            content[last] = value

    return change


def places(content: Any) -> Iterator[list[Any]]:
    """Yield the path of keys to every value."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield [key]
        if isinstance(value, (dict, list)):
            yield from ([key, *rest] for rest in places(value))


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
NO_REGEX = BYTE_LEVEL | {"use_regex": False}
SPLIT = {
    "type": "Split",
    "pattern": {"Regex": HUGGINGFACE["gpt2"]},
    "behavior": "Isolated",
    "invert": False,
}
ADDED = {"id": 500, "content": "<x>", "special": True}


def sequence(*steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (set_at("extra", 1), "unknown part 'extra'"),
            (set_at("model", "extra", 1), "unknown part of the model 'extra'"),
            (set_at("model", "type", "Unigram"), "model 'Unigram'"),
            (set_at("model", "type", 3), "model has no type"),
            (set_at("model", []), "model is not a JSON object"),
            (set_at("model", "dropout", 0.1), "dropout"),
            (set_at("model", "byte_fallback", True), "pre_tokenizer 'ByteLevel' is not supported"),
            (set_at("model", "fuse_unk", True), "fuse_unk"),
            (set_at("model", "continuing_subword_prefix", "##"), "continuing_subword_prefix"),
            (set_at("model", "end_of_word_suffix", "</w>"), "end_of_word_suffix"),
            (set_at("model", "unk_token", "<none>"), "unk_token '<none>'"),
            (set_at("model", "unk_token", ["x"]), r"unk_token \['x'\]"),
            (set_at("model", "vocab", []), "the map of tokens is missing"),
            (set_at("model", "vocab", {}), "the map of tokens is missing"),
            (set_at("model", "vocab", "a", -1), "token 'a' has id -1"),
            (set_at("model", "vocab", "a", 2**32), "token 'a' has id"),
            (set_at("model", "vocab", "a", 10**400), "token 'a' has id"),
            (set_at("model", "vocab", "a", 1.0), "token 'a' has id 1.0"),
            (set_at("model", "vocab", "a", True), "token 'a' has id True"),
            (
                set_at("model", "vocab", "a", 2),
                "'a' have the same id, 2|'a' and .* the same id",
            ),
            (set_at("model", "vocab", "a b", 600), "'a b' is not written in the byte-level"),
            (set_at("model", "vocab", "\u4e2d", 600), "not written in the byte-level"),
            (set_at("model", "vocab", "\ud800", 600), "not written in the byte-level"),
            (set_at("model", "merges", {}), "merges is not a list"),
            (set_at("model", "merges", []), "no merges"),
            (set_at("model", "merges", 0, "a"), "merge 1 of the list"),
            (set_at("model", "merges", 0, "a b c"), "merge 1 of the list"),
            (set_at("model", "merges", 0, ["a", 3]), "merge 1 of the list"),
            (set_at("model", "merges", 0, None), "merge 1 of the list"),
            (set_at("model", "merges", 0, ["a", "\u4e2d"]), "the token '\u4e2d'"),
            (set_at("model", "merges", 0, ["<pad>", "a"]), "a merge needs the token"),
            (set_at("normalizer", {"type": "NFKC"}), "normalizer 'NFKC'"),
            (set_at("normalizer", {"type": "BertNormalizer"}), "normalizer 'BertNormalizer'"),
            (set_at("normalizer", {"type": "Lowercase", "x": 1}), '"Lowercase", "x": 1'),
            (
                set_at("normalizer", {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}),
                "not for a Regex",
            ),
            (set_at("normalizer", {}), "normalizer has no type"),
            (set_at("pre_tokenizer", None), "but must be a ByteLevel"),
            (set_at("pre_tokenizer", {"type": "Whitespace"}), "pre_tokenizer 'Whitespace'"),
            (set_at("pre_tokenizer", "add_prefix_space", True), "add_prefix_space"),
            (set_at("pre_tokenizer", {"type": "ByteLevel"}), "add_prefix_space"),
            (set_at("pre_tokenizer", sequence(SPLIT)), "but must be a ByteLevel"),
            (set_at("pre_tokenizer", sequence(SPLIT, NO_REGEX, NO_REGEX)), "must be a ByteLevel"),
            (set_at("pre_tokenizer", sequence(sequence(NO_REGEX))), "Sequence in a Sequence"),
            (
                set_at("pre_tokenizer", {"type": "Sequence"}),
                "Sequence in pre_tokenizer is not",
            ),
            (
                set_at("pre_tokenizer", {"type": "Metaspace"}),
                "decoder 'ByteLevel' is not supported",
            ),
            (
                set_at("pre_tokenizer", sequence(SPLIT | {"behavior": "Contiguous"}, NO_REGEX)),
                "must be Isolated",
            ),
            (
                set_at("pre_tokenizer", sequence(SPLIT | {"invert": True}, NO_REGEX)),
                "must be Isolated",
            ),
            (
                set_at("pre_tokenizer", sequence(SPLIT | {"pattern": {"String": ""}}, NO_REGEX)),
                "neither a Regex nor a String",
            ),
            (
                set_at("pre_tokenizer", sequence(SPLIT | {"pattern": {"Regex": r"\w+"}}, NO_REGEX)),
                r"the expression '\\\\w\+' is not that of a known pattern, .* from '\\\\w\+' on",
            ),
            (set_at("post_processor", {"type": "Other"}), "post_processor 'Other'"),
            (
                lambda content: content.update(
                    model={"type": "WordPiece"}, pre_tokenizer={"type": "BertPreTokenizer"}
                ),
                "model 'WordPiece' is not supported; supported: BPE",
            ),
            (set_at("decoder", {"type": "WordPiece"}), "decoder 'WordPiece'"),
            (set_at("added_tokens", {}), "added_tokens is not a list"),
            (set_at("added_tokens", 2, 3), "an added token is not a JSON object"),
            (set_at("added_tokens", 2, {"id": 500}), "no content"),
            (set_at("added_tokens", 2, ADDED | {"content": ""}), "no content"),
            (set_at("added_tokens", 2, ADDED | {"content": "\ud800"}), "Unicode"),
            (set_at("added_tokens", 2, ADDED | {"content": "<pad>"}), "'<pad>' is listed twice"),
            (set_at("added_tokens", 2, ADDED | {"id": None}), "'<x>' has id None"),
            (set_at("added_tokens", 2, ADDED | {"id": 2**30}), "'<x>' has id"),
            (set_at("added_tokens", 2, ADDED | {"id": 7}), "'<x>' has id 7, but .* 500"),
            (set_at("added_tokens", 2, ADDED | {"id": 501}), "'<x>' has id 501, but .* 500"),
            (set_at("added_tokens", 2, ADDED | {"content": "a"}), "'a' has id 500, but"),
            (set_at("added_tokens", 0, "id", 40), "'<|endoftext|>' has id 40, but .* 0"),
        ],
    )
    def test_components(self, tmp_path: Path, change: Change, message: str) -> None:
        content = json.loads(train_peer().to_str())
        change(content)
        (tmp_path / "t.json").write_text(json.dumps(content))
        with pytest.raises(VocabularyError, match=rf"t\.json: .*({message})"):
            huggingface.read(tmp_path / "t.json")

    def test_an_added_token_in_a_merge(self, tmp_path: Path) -> None:
        content = json.loads(train_peer().to_str())
        left = content["model"]["merges"][0][0]
        entry = {"id": content["model"]["vocab"][left], "content": left, "special": True}
        content["added_tokens"].append(entry)
        (tmp_path / "t.json").write_text(json.dumps(content))
        with pytest.raises(VocabularyError, match="in a merge"):
            huggingface.read(tmp_path / "t.json")

    def test_a_merge_that_is_there_twice(self, tmp_path: Path) -> None:
        content = json.loads(train_peer().to_str())
        content["model"]["merges"].append(content["model"]["merges"][5])
        (tmp_path / "t.json").write_text(json.dumps(content))
        count = len(content["model"]["merges"])
        with pytest.raises(VocabularyError, match=f"merge {count} repeats an earlier one"):
            huggingface.read(tmp_path / "t.json")

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "not valid JSON: the file is empty"),
            (b"\xff{}", "not UTF-8 at byte 0"),
            (b"[1]", "not a JSON object"),
            (b"{}", "no model"),
            (b'{"!": 0}', "no model"),
            (b'{"model": NaN}', "NaN"),
            (b'{"model": {"dropout": -Infinity}}', "-Infinity"),
            (b'{"model": {}, "model": {}}', "'model' is repeated"),
            (b'{"model": {"vocab": {"a": 0, "a": 0}}}', "'a' is repeated"),
            (b'{"model":' + b"[" * 100_000, "nested too deep"),
            (b'{"model":' + b'{"a":' * 100_000, "nested too deep"),
            (b'{"model": 1' + b"0" * 10_000 + b"}", "not valid JSON"),
            (b'{"model": {}} x', "not valid JSON"),
            (b"PK\x03\x04" * 100, "not valid JSON|not UTF-8"),
        ],
    )
    def test_files_that_are_none(self, tmp_path: Path, data: bytes, message: str) -> None:
        (tmp_path / "t.json").write_bytes(data)
        with pytest.raises(VocabularyError, match=rf"t\.json: .*({message})"):
            huggingface.read(tmp_path / "t.json")

    def test_ids_are_those_that_the_library_gives(self, tmp_path: Path) -> None:
        content = json.loads(train_peer().to_str())
        content["model"]["vocab"]["<w>"] = 599
        for number, text in [(599, "<w>"), (501, "<x>"), (502, "<y>")]:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            content["added_tokens"].append(ADDED | flags | {"id": number, "content": text})
        (tmp_path / "t.json").write_text(json.dumps(content))
        read = huggingface.read(tmp_path / "t.json")
        peer = Tokenizer.from_file(str(tmp_path / "t.json"))
        for text, number in read.special_tokens.items():
            assert peer.token_to_id(text) == number

    def test_any_part_may_be_anything(self, tmp_path: Path) -> None:
        content = {
            "added_tokens": [ADDED | {"id": 4, "lstrip": True}],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
            "pre_tokenizer": sequence(SPLIT, NO_REGEX),
            "post_processor": {"type": "Sequence", "processors": [BYTE_LEVEL]},
            "decoder": {"type": "Sequence", "decoders": [BYTE_LEVEL]},
            "model": {
                "unk_token": "u",
                "ignore_merges": True,
                "vocab": {"a": 0, "b": 1, "ab": 2, "u": 3},
                "merges": [["a", "b"]],
            },
        }
        path = tmp_path / "t.json"
        path.write_text(json.dumps(content))
        assert huggingface.read(path).special_tokens == {"<x>": 4}
        junk = [None, True, 0, -1, 1.5, 2**70, "", "x", "\ud800", [], [[]], {}, {"type": "BPE"}]
        read = 0
        for where in places(content):
            for value in junk:
                changed = json.loads(json.dumps(content))
                set_at(*where, value)(changed)
                path.write_text(json.dumps(changed))
                with contextlib.suppress(VocabularyError):
                    read += isinstance(huggingface.read(path), Vocabulary)
        assert read > 20

    def test_every_cut(self, tmp_path: Path) -> None:
        data = train_peer().to_str().encode()
        for end in range(0, len(data), 997):
            (tmp_path / "t.json").write_bytes(data[:end])
            with pytest.raises(VocabularyError):
                huggingface.read(tmp_path / "t.json")
