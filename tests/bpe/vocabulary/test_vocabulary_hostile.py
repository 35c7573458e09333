"""Damaged and hostile vocabulary files: an error or a sound vocabulary, in bounded memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from tests.bpe.vocabulary.test_vocabulary import imported_vocabulary, small_vocabulary

MULTIPLE = 40  # of the file's size that reading may allocate
CONSTANT = 16 << 20
SPECIAL_BYTES = b"\x00\x01\x7f\x80\x8f\x90\x9f\xa0\xc0\xc1\xc4\xc6\xc7\xc9\xd9\xdc\xdd\xde\xdf\xff"


def read(data: bytes) -> Vocabulary | None:
    """Read a file; None if it is refused. Any other exception is a failure of the test."""
    try:
        vocabulary = Vocabulary.from_bytes(data)
    except VocabularyError as error:
        assert str(error).startswith("vocabulary: ")
        assert len(str(error)) < 500
        return None
    assert Vocabulary.from_bytes(vocabulary.to_bytes()).fingerprint == vocabulary.fingerprint
    return vocabulary


def peak_of_reading(data: bytes) -> int:
    tracemalloc.start()
    try:
        read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_bounded(data: bytes) -> None:
    assert peak_of_reading(data) <= MULTIPLE * len(data) + CONSTANT


def changed(make: Any = small_vocabulary, **entries: Any) -> bytes:
    """A file with other entries; one set to ... is left out."""
    content = msgpack.unpackb(make().to_bytes()) | entries
    kept = {name: value for name, value in content.items() if value is not ...}
    packed: bytes = msgpack.packb(kept)
    return packed


def words(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def mutations(data: bytes, count: int) -> Iterator[bytes]:
    rng = random.Random(20)
    # Half of the places lie in the first bytes and the last: there the structure is.
    edges = [*range(400), *range(len(data) - 300, len(data))]
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            place = rng.choice(edges) if rng.random() < 0.5 else rng.randrange(len(data))
            place = min(place, len(damaged) - 1)
            match rng.randrange(6):
                case 0:
                    damaged[place] ^= 1 << rng.randrange(8)
                case 1:
                    damaged[place] = rng.choice(SPECIAL_BYTES)
                case 2:
                    damaged[place:place] = rng.randbytes(rng.randrange(1, 6))
                case 3:
                    del damaged[place : place + rng.randrange(1, 6)]
                case 4:
                    length = struct.pack(">I", rng.choice((0, 255, 2**16, 2**31, 2**32 - 1)))
                    damaged[place : place + 4] = length
                case 5:
                    headers = b"\xdd\xdf\xdb\xc6\xc9"  # 32-bit array, map, text, bytes, extension
                    header = bytes([rng.choice(headers)]) + struct.pack(">I", 2**32 - 1)
                    damaged[place:place] = header * rng.randrange(1, 4)
            if not damaged:
                break
        yield bytes(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("make", [small_vocabulary, imported_vocabulary])
def test_mutations_are_refused_or_harmless(make: Any) -> None:
    original = make()
    accepted = 0
    tracemalloc.start()
    for damaged in mutations(original.to_bytes(), 3000):
        vocabulary = read(damaged)
        if vocabulary is not None:
            accepted += 1
            # What changes ids is covered by the fingerprint, and the trie is that of the tokens.
            assert vocabulary.fingerprint == original.fingerprint
            assert vocabulary.tokens == original.tokens
            assert np.array_equal(vocabulary.trie.nodes, original.trie.nodes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert accepted < 600
    assert peak < CONSTANT


@pytest.mark.parametrize("make", [small_vocabulary, imported_vocabulary])
def test_every_truncation_is_refused(make: Any) -> None:
    data = make().to_bytes()
    step = 1 if len(data) < 2000 else 7
    for length in (*range(0, len(data) - 1, step), len(data) - 1):
        assert read(data[:length]) is None
    assert read(data + b"\x00") is None


def test_random_bytes_are_refused() -> None:
    rng = random.Random(7)
    for _ in range(500):
        assert read(rng.randbytes(rng.randrange(60))) is None


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc0", b"text", b"\x93\x01\x02\x03", b"\xdd"])
def test_other_files_are_named_as_such(data: bytes) -> None:
    with pytest.raises(VocabularyError, match=r"mine\.bin: not an llmgpu vocabulary"):
        Vocabulary.from_bytes(data, "mine.bin")


@pytest.mark.parametrize("version", [4, 2**40])
def test_newer_version_is_refused(version: int) -> None:
    # What a newer version holds is not looked at: here it is something this one has no room for.
    with pytest.raises(VocabularyError, match=f"version {version}.*use a newer llmgpu"):
        Vocabulary.from_bytes(changed(version=version, merges=[[1] * 100]))


@pytest.mark.parametrize("version", [2, 3.0, "3", None, True])
def test_other_versions_are_refused(version: object) -> None:
    with pytest.raises(VocabularyError, match="this llmgpu reads version 3; it is older than"):
        Vocabulary.from_bytes(changed(version=version))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"merges": ...}, "unexpected or missing entries"),
        ({"surprise": 1}, "unexpected or missing entries"),
        ({"merges": "text"}, "merges in the file is a str"),
        ({"ignore_merges": 0}, "ignore_merges in the file is a int"),
        ({"unknown_token": True}, "unknown_token in the file is a bool"),
        ({"trie": {}}, "the trie has unexpected or missing entries"),
        ({"merges": b"12345"}, "merges has 5 bytes"),
        ({"token_lengths": words(1, 2)}, "do not add up"),
        ({"token_lengths": words(*[2**32 - 1] * 300)}, "do not add up"),
        ({"token_lengths": b"", "token_data": b""}, "special_ids"),
        ({"token_lengths": b"", "token_data": b"", "special_ids": b""}, "0 tokens"),
        ({"special_ids": words(262, 261)}, "ascending"),
        ({"special_ids": words(2**32 - 1)}, "ascending"),
        ({"special_ids": words(255)}, "not UTF-8"),
        ({"special_ids": words(261)}, "fingerprint"),
        ({"fingerprint": "0" * 64}, "fingerprint"),
        ({"match": "greedy"}, "fingerprint"),
        ({"tie": "random"}, "tie rule"),
        ({"merges": words(97, 98, 263)}, "not in the vocabulary"),
        ({"merges": words(97, 98, 257)}, "does not spell"),
        ({"training": {"x": None}}, "neither a number nor a string"),
        ({"training": {"x": {"y": {}}}}, "more than three maps"),
        ({"training": {"x": [1]}}, "max_array_len"),
        ({"training": {str(k): k for k in range(65)}}, "65 entries of training data"),
        ({"training": {"normalized_tokens": 5}}, "not ids with commas"),
        ({"training": {"normalized_tokens": ""}}, "not ids with commas"),
        ({"training": {"normalized_tokens": "261,,262"}}, "not ids with commas"),
        ({"training": {"normalized_tokens": "5"}}, "not different ids of special tokens"),
        ({"training": {"normalized_tokens": "262,262"}}, "not different ids of special tokens"),
        ({"training": {"normalized_tokens": "262"}}, "fingerprint"),
        ({"training": {str(k): k for k in range(75)}}, "max_map_len"),
        ({"expression": "x" * 70000}, "max_str_len"),
    ],
)
def test_unfit_entries(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        Vocabulary.from_bytes(changed(**entries))


def test_two_special_tokens_with_the_same_text() -> None:
    vocabulary = imported_vocabulary()
    ids = [4, 7]
    assert [vocabulary.tokens[i] for i in ids] == [b"ab", b"ab"]
    with pytest.raises(VocabularyError, match="same text"):
        Vocabulary.from_bytes(changed(imported_vocabulary, special_ids=words(*ids)))


@pytest.mark.parametrize(
    "entries",
    [
        {"chat_template": 1},
        {"chat_tokens": "{}", "chat_template": 1.5},
        *(
            {"chat_template": "", "chat_tokens": text}
            for text in ("", "[]", '{"a": 1}', "[" * 9999)
        ),
    ],
)
def test_a_damaged_chat_template_is_refused(entries: dict[str, Any]) -> None:
    with pytest.raises(VocabularyError, match="damaged: the chat template"):
        Vocabulary.from_bytes(changed(training=entries))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (1, "damaged: prefix_ids are not ids with commas"),
        ("", "damaged: prefix_ids are not ids with commas"),
        ("1,", "damaged: prefix_ids are not ids with commas"),
        ("1,99999", "id 99999, added around a text, is not in the vocabulary"),
    ],
)
def test_damaged_ids_around_a_text_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        Vocabulary.from_bytes(changed(training={"prefix_ids": ids}))


def test_repeated_keys_are_refused() -> None:
    data = small_vocabulary().to_bytes()
    key = b"\xa3tie\xa2hf"
    assert key in data
    twice = b"\xde" + struct.pack(">H", 17) + data[3:].replace(key, key + key)
    with pytest.raises(VocabularyError, match="repeated key"):
        Vocabulary.from_bytes(twice)


def test_a_trie_of_other_tokens_is_refused() -> None:
    trie = dict(msgpack.unpackb(small_vocabulary().to_bytes())["trie"])
    other = msgpack.unpackb(small_vocabulary(merges=[(97, 98)]).to_bytes())["trie"]
    for wrong in (other, trie | {"longest_token": 3}, trie | {"node_count": 1}):
        with pytest.raises(VocabularyError, match="trie"):
            Vocabulary.from_bytes(changed(trie=wrong))


class TestMemory:
    """Files made to allocate much: nested headers, one long token, many tiny things."""

    def test_sound_file(self) -> None:
        assert_bounded(small_vocabulary().to_bytes())
        chain = [(97, 97)] + [(256 + k, 256 + k) for k in range(16)]
        assert_bounded(small_vocabulary(merges=chain).to_bytes())

    @pytest.mark.parametrize(
        "filler",
        [
            b"\xdd\x00\x0f\x42\x40",  # arrays of a million, nested
            b"\xdc\xff\xff",
            b"\x90",
            b"\x81\xa1a",  # maps in maps
            b"\xa1a\x80",  # empty maps
            b"\xdf\x00\x0f\x42\x40",
            b"\xd4\x01\x00",  # extensions
            b"\xc7\x00\x01",
            b"\xc0",
            b"\xa2ab\xa2cd",
        ],
    )
    def test_nested_headers(self, filler: bytes) -> None:
        data = small_vocabulary().to_bytes()
        for key in (b"\xa4trie", b"\xa8training", b"\xa7pattern"):
            place = data.index(key) + len(key)
            assert_bounded(data[:place] + filler * (1_000_000 // len(filler)))

    @pytest.mark.parametrize("size", [1_000_000])
    def test_one_long_token_without_its_trie(self, size: int) -> None:
        long = changed(
            token_lengths=words(size),
            token_data=bytes(size),
            merges=b"",
            special_ids=b"",
            fingerprint=fingerprint_of([bytes(size)], match="bpe"),
        )
        with pytest.raises(VocabularyError, match="the trie does not match the tokens"):
            Vocabulary.from_bytes(long)
        assert_bounded(long)

    def test_many_short_tokens(self) -> None:
        tokens = [i.to_bytes(3, "big") for i in range(200_000)]
        for chosen in (tokens, [b""] * 300_000, [b"a"] * 300_000):
            data = changed(
                token_lengths=words(*map(len, chosen)),
                token_data=b"".join(chosen),
                merges=b"",
                special_ids=b"",
                fingerprint=fingerprint_of(chosen),
            )
            assert_bounded(data)

    def test_many_merges_of_a_long_token(self) -> None:
        half = 20_000
        tokens = [b"a" * half, b"a" * 2 * half]
        data = changed(
            token_lengths=words(*map(len, tokens)),
            token_data=b"".join(tokens),
            merges=words(0, 0, 1) * 10_000,
            special_ids=b"",
            fingerprint=fingerprint_of(tokens),
        )
        assert_bounded(data)

    @pytest.mark.slow
    def test_many_special_tokens(self) -> None:
        tokens = [f"<{i}>".encode() for i in range(100_000)]
        data = changed(
            token_lengths=words(*map(len, tokens)),
            token_data=b"".join(tokens),
            merges=b"",
            special_ids=words(*range(len(tokens))),
            fingerprint=fingerprint_of(tokens),
        )
        assert_bounded(data)


def fingerprint_of(tokens: list[bytes], match: str = "greedy") -> str:
    """The fingerprint of a vocabulary of these tokens, so that a file gets past that check."""
    base = small_vocabulary()
    made = Vocabulary(tuple(tokens), base.merges[:0], base.pattern, base.expression, match=match)
    return made.fingerprint
