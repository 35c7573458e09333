"""A vocabulary: building, decoding, its fingerprint; saving and loading."""

from __future__ import annotations

import dataclasses
import os
import pprint
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.pretty import pretty_repr

from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary import file as vocabulary_file
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, LlmgpuError, OutputError, VocabularyError
from tests.bpe.vocabularies import build_vocabulary
from tests.conftest import examples
from tests.reference import bpe as reference

MERGES = [(97, 98), (256, 99), (0, 0), (32, 257), (255, 258)]
FIELDS = [entry.name for entry in dataclasses.fields(Vocabulary)]


def small_vocabulary(**changes: Any) -> Vocabulary:
    options: dict[str, Any] = {
        "pattern": "class",
        "tie": "hf",
        "special_tokens": ["<s>", "fin\u00e9"],
        "training": {"corpus_bytes": 123, "bytes_per_token": 3.5, "tool": "llmgpu 0.1.0"},
    }
    merges = changes.pop("merges", MERGES)
    return build_vocabulary(merges, **(options | changes))


def imported_vocabulary() -> Vocabulary:
    """Ids in no order, a gap, a repeat, missing bytes, several merges for one token."""
    tokens = (b"<unk>", b"abc", b"", b"a", b"ab", b"b", b"c", b"ab", b"bc", b"[PAD]")
    return Vocabulary(
        tokens=tokens,
        merges=np.array([[3, 5, 4], [5, 6, 8], [4, 6, 1], [3, 8, 1]], np.uint32),
        pattern="none",
        expression=get_pattern("none").expression,
        special_tokens={"[PAD]": 9, "<unk>": 0},
        match="bpe",
        ignore_merges=True,
        normalizer="NFC",
        unknown_token=0,
    )


def assert_same(left: Vocabulary, right: Vocabulary) -> None:
    for name in FIELDS:
        if name == "merges":
            assert np.array_equal(left.merges, right.merges)
        else:
            assert getattr(left, name) == getattr(right, name), name
    assert left.fingerprint == right.fingerprint
    assert np.array_equal(left.trie.nodes, right.trie.nodes)
    assert np.array_equal(left.trie.edges, right.trie.edges)


@pytest.mark.slow
def test_writing_takes_no_multiple_of_a_long_token() -> None:
    """The trie of a token of 16 MB has 20 times its bytes, and is never whole."""
    merges = [(97, 97), *((number, number) for number in range(256, 279))]
    vocabulary = small_vocabulary(merges=merges, special_tokens=[])
    length = len(vocabulary.tokens[-1])
    tracemalloc.start()
    try:
        written = sum(map(len, vocabulary.packed()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length == 1 << 24
    assert written > 20 * length
    assert peak < 4 * length


def test_tokens_of_a_file_are_those_of_a_tuple() -> None:
    tokens = (b"a", b"", b"\xc3\xa9", b"abc")
    packed = vocabulary_file.PackedTokens.of(tokens)
    assert (len(packed), packed, tokens) == (4, tokens, packed)
    assert packed != tokens[:3] and packed != 4
    assert [packed[np.int64(k)] for k in range(-4, 4)] == [*tokens, *tokens]
    assert (packed[1:], tuple(packed), b"" in packed) == (tokens[1:], tokens, True)
    assert packed.__add__((b"d",)) == (*tokens, b"d")
    for outside in (4, -5):
        with pytest.raises(IndexError):
            packed[outside]


def test_a_trie_that_is_written_block_by_block_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    merges = [(97, 97), *((number, number) for number in range(256, 276)), (97, 98), (270, 277)]
    whole = small_vocabulary(merges=merges, special_tokens=[]).to_bytes()
    monkeypatch.setattr("llmgpu.bpe.vocabulary.vocabulary.FEW_NODES", 0)
    assert small_vocabulary(merges=merges, special_tokens=[]).to_bytes() == whole
    assert Vocabulary.from_bytes(whole).tokens[-1].endswith(b"ab")


@pytest.mark.parametrize("size", [0, 255, 256, 65_535, 65_536])
def test_heads_of_binary_strings_are_those_of_msgpack(size: int) -> None:
    parts = vocabulary_file.pack_data("x", size, [bytes(size)])
    assert b"".join(parts) == msgpack.packb(bytes(size))


def test_what_is_too_long_for_the_file_is_refused() -> None:
    with pytest.raises(VocabularyError, match=r"nodes would have 4294967296 bytes.*shorter tokens"):
        next(vocabulary_file.pack_data("nodes", 1 << 32, []))


class TestBuild:
    def test_ids(self) -> None:
        vocabulary = small_vocabulary()
        ordinary = reference.spell(MERGES)
        assert vocabulary.tokens == (*ordinary, b"<s>", "fin\u00e9".encode())
        assert vocabulary.special_tokens == {"<s>": 261, "fin\u00e9": 262}
        assert vocabulary.merges.dtype == np.uint32
        assert vocabulary.merges.tolist() == [[*p, 256 + k] for k, p in enumerate(MERGES)]
        assert (vocabulary.size, vocabulary.match) == (263, "bpe")
        assert vocabulary.missing_bytes == []
        trie = vocabulary.trie
        found = reference.tokens_of_trie(trie.nodes.tolist(), trie.edges.tolist())
        assert found == {token: i for i, token in enumerate(ordinary)}

    def test_flat_tokens(self) -> None:
        vocabulary = small_vocabulary()
        offsets, data = vocabulary.token_offsets.tolist(), vocabulary.token_data.tobytes()
        assert len(offsets) == vocabulary.size + 1
        for i, token in enumerate(vocabulary.tokens):
            assert data[offsets[i] : offsets[i + 1]] == token
            assert vocabulary.token_lengths[i] == len(token)

    def test_bytes_only(self) -> None:
        vocabulary = small_vocabulary(merges=[], special_tokens=[], training={})
        assert vocabulary.size == 256
        assert vocabulary.merges.shape == (0, 3)
        assert_same(Vocabulary.from_bytes(vocabulary.to_bytes()), vocabulary)

    @pytest.mark.parametrize("pair", [(256, 97), (97, 256), (-1, 97), (97, 2**40)])
    def test_merge_of_what_does_not_exist_yet(self, pair: tuple[int, int]) -> None:
        with pytest.raises(VocabularyError, match="merge 0"):
            small_vocabulary(merges=[pair])

    @pytest.mark.parametrize(
        "texts", [[""], ["a"], ["abc"], ["<s>", "<s>"], ["\ud800"], ["\x00\x00"]]
    )
    def test_unfit_special_tokens(self, texts: list[str]) -> None:
        with pytest.raises(VocabularyError, match="special token"):
            small_vocabulary(special_tokens=texts)

    def test_unknown_rules(self) -> None:
        with pytest.raises(LlmgpuError, match="unknown pattern"):
            small_vocabulary(pattern="gpt5")
        with pytest.raises(VocabularyError, match="tie rule"):
            small_vocabulary(tie="random")

    @pytest.mark.parametrize(
        "training",
        [
            {"x": True},
            {"x": None},
            {"x": 2**63},
            {"x": "\ud800"},
            {"x": "y" * 70000},
            {1: 2},
            {str(k): k for k in range(65)},
        ],
    )
    def test_unfit_training_data(self, training: dict[Any, Any]) -> None:
        with pytest.raises(VocabularyError, match="training data"):
            small_vocabulary(training=training)


class TestConsistency:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"tokens": ()}, "0 tokens"),
            ({"match": "best"}, "match rule"),
            ({"normalizer": "NFKC"}, "normalizer"),
            ({"unknown_token": 10}, "unknown token is 10"),
            ({"unknown_token": -1}, "unknown token is -1"),
            ({"pattern": "class"}, "pattern 'class'"),
            ({"pattern": "other"}, "pattern 'other'"),
            ({"special_tokens": {"[PAD]": 10}}, "id 10"),
            ({"special_tokens": {"[PAD]": 1}}, "id 1 spells"),
            ({"special_tokens": {"\ud800": 1}}, "id 1 spells"),
            ({"special_tokens": {"": 2}}, "id 2 spells"),
            ({"merges": np.zeros((1, 2), np.uint32)}, "uint32"),
            ({"merges": np.zeros((1, 3), np.int64)}, "uint32"),
            ({"merges": np.array([[3, 5, 10]], np.uint32)}, "not in the vocabulary"),
            ({"merges": np.array([[0, 5, 1]], np.uint32)}, "special"),
            ({"merges": np.array([[2, 3, 3]], np.uint32)}, "empty part"),
            ({"merges": np.array([[3, 5, 8]], np.uint32)}, "does not spell"),
            ({"merges": np.array([[3, 5, 1]], np.uint32)}, "does not spell"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(VocabularyError, match=message):
            dataclasses.replace(imported_vocabulary(), **changes)

    def test_a_pattern_that_is_not_known_can_be_kept(self) -> None:
        other = dataclasses.replace(imported_vocabulary(), pattern="other", expression=r"\w+|\W")
        assert_same(Vocabulary.from_bytes(other.to_bytes()), other)


class TestDecode:
    @settings(deadline=None)
    @given(ids=st.lists(st.integers(0, 262), max_size=50))
    def test_decode_joins_tokens(self, ids: list[int]) -> None:
        vocabulary = small_vocabulary()
        expected = b"".join(vocabulary.tokens[i] for i in ids)
        for dtype in (np.uint16, np.int32, np.uint64):
            assert vocabulary.decode(np.array(ids, dtype)) == expected
        assert vocabulary.decode(ids) == expected

    def test_many_ids(self) -> None:
        vocabulary = small_vocabulary()
        ids = np.random.default_rng(3).integers(0, vocabulary.size, 200_000)
        assert vocabulary.decode(ids) == b"".join(vocabulary.tokens[i] for i in ids)

    def test_long_tokens(self) -> None:
        merges = [(97, 97)] + [(256 + k, 256 + k) for k in range(15)]
        vocabulary = small_vocabulary(merges=merges, pattern="none")
        assert vocabulary.decode([271, 98, 271]) == b"a" * 65536 + b"b" + b"a" * 65536

    def test_ids_that_stand_for_nothing(self) -> None:
        assert imported_vocabulary().decode([]) == b""
        for ids, position in (([2], 0), ([1, 2, 1], 1), ([1] * 70_000 + [2], 70_000)):
            with pytest.raises(
                InputError,
                match=rf"^id 2 at position {position} is not in the vocabulary of 10 tokens",
            ):
                imported_vocabulary().decode(ids)

    @pytest.mark.parametrize(
        "ids", [[[1, 1], [1, 1]], [[1]], [[]], [[1], [1, 1]], np.ones((2, 3), int)]
    )
    def test_rows(self, ids: Any) -> None:
        with pytest.raises(InputError, match=r"^ids must be one row, not"):
            small_vocabulary().decode(ids)

    @pytest.mark.parametrize(
        ("bad", "dtype"),
        [
            (-1, np.int8),
            (263, np.uint16),
            (263, np.int64),
            (-(2**63), np.int64),
            (2**63 - 1, np.int64),
            (2**64 - 1, np.uint64),
            (2**32, np.uint64),
            (2**32 - 1, np.uint32),
        ],
    )
    def test_bad_id(self, bad: int, dtype: type[np.integer[Any]]) -> None:
        ids = np.array([5, 7, 0, 3], dtype)
        ids[2:] = bad
        with pytest.raises(InputError, match=rf"^id {bad} at position 2 .* 263 tokens"):
            small_vocabulary().decode(ids)

    @pytest.mark.parametrize("ids", [[1.5], [2**70], ["a"], [True]])
    def test_no_integers(self, ids: list[Any]) -> None:
        with pytest.raises(InputError, match="whole numbers"):
            small_vocabulary().decode(ids)


class TestFingerprint:
    def test_does_not_change_with_what_does_not_matter(self) -> None:
        one = small_vocabulary()
        assert one.fingerprint == small_vocabulary(tie="bytes").fingerprint
        assert one.fingerprint == small_vocabulary(training={}).fingerprint
        # No byte is missing, so the unknown token is never used; a greedy match has no merges.
        one = one.with_match("greedy")
        assert one.fingerprint == dataclasses.replace(one, unknown_token=3).fingerprint
        fewer = dataclasses.replace(one, merges=one.merges[:2])
        assert one.fingerprint == fewer.fingerprint
        assert one.fingerprint == dataclasses.replace(one, ignore_merges=True).fingerprint

    def test_changes_with_what_matters(self) -> None:
        one = imported_vocabulary()
        changes: list[dict[str, Any]] = [
            {},
            {"tokens": (*one.tokens[:-1], b"x", b"[PAD]"), "special_tokens": {"[PAD]": 10}},
            {"tokens": (*one.tokens[:2], b"z", *one.tokens[3:])},
            {"merges": one.merges[:3]},
            {"merges": one.merges[::-1]},
            {"pattern": "class", "expression": get_pattern("class").expression},
            {"special_tokens": {"[PAD]": 9}},
            {"match": "greedy"},
            {"ignore_merges": False},
            {"normalizer": None},
            {"unknown_token": None},
            {"unknown_token": 9},
        ]
        found = {dataclasses.replace(one, **change).fingerprint for change in changes}
        assert len(found) == len(changes)

    def test_the_version_of_unicode_matters_to_patterns_with_character_classes(self) -> None:
        for pattern, count in (("gpt2", 2), ("o200k", 2), ("class", 1), ("none", 1)):
            one = byte_vocabulary(pattern, "hf")
            newer = dataclasses.replace(one, unicode="18.0")
            assert len({one.fingerprint, newer.fingerprint}) == count

    def test_boundaries_between_tokens_matter(self) -> None:
        one = imported_vocabulary()
        plain = {"merges": one.merges[:0], "special_tokens": {}, "unknown_token": None}
        left = dataclasses.replace(one, tokens=(b"ab", b"c"), **plain)
        right = dataclasses.replace(one, tokens=(b"a", b"bc"), **plain)
        assert left.fingerprint != right.fingerprint

    def test_is_a_sha256(self) -> None:
        assert len(bytes.fromhex(small_vocabulary().fingerprint)) == 32


class TestFile:
    @pytest.mark.parametrize("make", [small_vocabulary, imported_vocabulary])
    def test_round_trip(self, make: Any, tmp_path: Path) -> None:
        vocabulary = make()
        path = tmp_path / "v.bin"
        vocabulary.save(path)
        loaded = Vocabulary.load(path)
        assert_same(loaded, vocabulary)
        assert loaded.to_bytes() == path.read_bytes() == make().to_bytes()
        assert os.listdir(tmp_path) == ["v.bin"]

    @settings(deadline=None, max_examples=examples(40))
    @given(data=st.data())
    def test_round_trip_of_any_merges(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, 20))
        merges = [tuple(data.draw(st.integers(0, 255 + k)) for _ in "lr") for k in range(count)]
        vocabulary = small_vocabulary(merges=merges, special_tokens=[])
        assert_same(Vocabulary.from_bytes(vocabulary.to_bytes()), vocabulary)

    def test_files_of_old_keep_their_version_of_unicode(self) -> None:
        samples = sorted((Path(__file__).parents[3] / "vocab_samples").glob("*.bin"))
        assert samples
        for path in samples:
            vocabulary = Vocabulary.load(path)
            if path.stem != "turkish-4k-class":  # a pattern without classes
                assert vocabulary.classes_version == vocabulary.cut.unicode == "18.0"
            assert vocabulary.to_bytes() == path.read_bytes()

    def test_the_version_of_unicode_is_kept(self) -> None:
        one = byte_vocabulary("cl100k", "hf")
        again = Vocabulary.from_bytes(one.to_bytes())
        assert (again.unicode, again.training) == ("16.0", {})
        full = dataclasses.replace(one, training={str(k): k for k in range(64)})
        assert_same(Vocabulary.from_bytes(full.to_bytes()), full)
        assert byte_vocabulary("class", "hf").classes_version is None
        with pytest.raises(VocabularyError, match=r"unknown Unicode version '17.0'"):
            dataclasses.replace(one, unicode="17.0")
        with pytest.raises(VocabularyError, match="which is an argument of its own"):
            dataclasses.replace(one, training={"unicode": "16.0"})

    def test_order_of_dictionaries_does_not_matter(self) -> None:
        training = {"b": 1, "a": 2.5, "c": "x"}
        one = small_vocabulary(training=training)
        two = small_vocabulary(training=dict(reversed(training.items())))
        backwards = dict(reversed(two.special_tokens.items()))
        two = dataclasses.replace(two, special_tokens=backwards)
        assert one.to_bytes() == two.to_bytes()

    def test_errors_name_the_file(self, tmp_path: Path) -> None:
        damaged = tmp_path / "damaged.bin"
        damaged.write_bytes(small_vocabulary().to_bytes()[:-1])
        with pytest.raises(VocabularyError, match=r"damaged\.bin: damaged or cut short"):
            Vocabulary.load(damaged)
        with pytest.raises(VocabularyError, match=r"absent\.bin: No such file"):
            Vocabulary.load(tmp_path / "absent.bin")
        with pytest.raises(VocabularyError, match="directory"):
            Vocabulary.load(tmp_path)
        with pytest.raises(VocabularyError, match="null"):
            Vocabulary.load("a\0b")

    def test_failed_save_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut, too
        resource = pytest.importorskip("resource")
        path = tmp_path / "v.bin"
        small_vocabulary().save(path)
        before = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # bytes a file may have
            with pytest.raises(OutputError, match=r"can't write .*v\.bin: "):
                imported_vocabulary().save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["v.bin"]

    def test_save_into_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="absent"):
            small_vocabulary().save(tmp_path / "absent" / "v.bin")

    def test_version_and_name_come_first(self) -> None:
        data = small_vocabulary().to_bytes()
        assert data.startswith(b"\xde\x00\x10\xa6format\xb1llmgpu vocabulary\xa7version\x03")
        assert vocabulary_file.FORMAT_VERSION == 3


def test_a_notebook_shows_a_vocabulary_in_one_line() -> None:
    vocabulary = byte_vocabulary("gpt2", "hf")
    expected = "<Vocabulary: 256 ids, 0 merges, pattern 'gpt2'>"
    assert repr(vocabulary) == pprint.pformat(vocabulary) == pretty_repr(vocabulary) == expected
