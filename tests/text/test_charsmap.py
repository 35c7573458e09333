"""SentencePiece's normalizer, compared with the oracle; its map of strings, built by hand."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from llmgpu.errors import VocabularyError
from llmgpu.text.charsmap import MOST_MAP_BYTES, CharsMap
from llmgpu.text.normalizing import BLOCK_BYTES, get_normalizer
from tests.reference.pieces import MARK, normalize_model

MAP = {"\n": " ", "\x01": "", "\uff21": "A", "a\u0301": "\u00e1", "a\u0301\u0323": "\u1ea1\u0301"}
MAP |= {"\ufdfa": " x y ", "\U0001d400": "A", "bc": "d", MARK: " ", "e": "e"}


def charsmap(values: Mapping[str, str]) -> bytes:
    """Return a double array of a map, with the units of each node in a block of their own.

    A block has 256 units. The unit of a node points to its block; unit 0 of the block is the value.
    """
    tree: dict[bytes, set[int]] = {b"": set()}
    for key in values:
        data = key.encode()
        for end, byte in enumerate(data):
            tree.setdefault(data[:end], set()).add(byte)
            tree.setdefault(data[: end + 1], set())
    nodes = sorted(tree)
    block = {node: 256 * (number + 1) for number, node in enumerate(nodes)}
    units = [0] * (256 * (len(nodes) + 1))
    blob = b"".join(value.encode() + b"\0" for value in values.values())
    keys = {key.encode(): key for key in values}
    starts = {}
    at = 0
    for key, value in values.items():
        starts[key] = at
        at += len(value.encode()) + 1

    def unit(node: bytes, place: int) -> int:
        offset = place ^ block[node]
        shifted = offset >> 8 << 10 | 1 << 9 if offset >= 1 << 21 else offset << 10
        return shifted | (node in keys) << 8 | (node[-1] if node else 0)

    units[0] = unit(b"", 0)
    for node in nodes:
        for byte in tree[node]:
            child = node + bytes([byte])
            place = block[node] ^ byte
            units[place] = unit(child, place)
        if node in keys:
            units[block[node]] = 1 << 31 | starts[keys[node]]
    data = b"".join(value.to_bytes(4, "little") for value in units)
    return len(data).to_bytes(4, "little") + data + blob


def step(blob: bytes = b"", **rules: object) -> str:
    plain = {"dummy_prefix": True, "remove_extra_whitespaces": True, "suffix": False}
    rules = plain | {"charsmap": base64.b64encode(blob).decode(), "symbols": []} | rules
    return json.dumps([{"type": "SentencePiece", **rules}])


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("removes", [False, True])
@pytest.mark.parametrize("suffix", [False, True])
def test_texts_are_normalized_as_by_the_oracle(prefix: bool, removes: bool, suffix: bool) -> None:
    symbols = ["bcd", "<x>", "\n\n"]
    rules = {"dummy_prefix": prefix, "remove_extra_whitespaces": removes, "suffix": suffix}
    normalizer = get_normalizer(step(charsmap(MAP), symbols=symbols, **rules))
    draw = random.Random(1)
    for _ in range(300):
        text = "".join(draw.choice([*MAP, *symbols, "a", "b", "  ", "z"]) for _ in range(9))
        text = text[: draw.randint(0, len(text))]
        expected = normalize_model(
            text, MAP, symbols, prefix=prefix, removes=removes, suffix=suffix
        )
        assert normalizer.apply(text) == expected.replace(MARK, " "), repr(text)


def test_blocks_make_no_difference() -> None:
    normalizer = get_normalizer(step(charsmap(MAP), symbols=["<x>"]))
    text = "a\u0301\u0323 <x>  \n" * (BLOCK_BYTES // 4)
    expected = normalize_model(text[:1000], MAP, ["<x>"]).replace(MARK, " ")
    assert normalizer.apply(text).startswith(expected)
    assert normalizer.apply(text) == " \u1ea1\u0301 <x>" + " \u1ea1\u0301 <x>" * (
        len(text) // 10 - 1
    )


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize("suffix", [True, False])
@pytest.mark.parametrize("symbols", [[], ["<x>", "z"]])
def test_many_documents_at_once(
    prefix: bool, removes: bool, suffix: bool, symbols: list[str]
) -> None:
    rules = {"dummy_prefix": prefix, "remove_extra_whitespaces": removes, "suffix": suffix}
    normalizer = get_normalizer(step(charsmap(MAP), symbols=symbols, **rules))
    draw = random.Random(2)
    strings = [*MAP, "<x>", "a", "b", " ", "  ", "z", "\udcff", "\udcce"]  # two bytes of no text
    documents = ["".join(draw.choices(strings, k=draw.randrange(6))) for _ in range(400)]
    documents[9:9] = ["", "\x01", " \x01 ", "a" * (BLOCK_BYTES + 9), "", "b" * BLOCK_BYTES, MARK]
    encoded = [document.encode(errors="surrogateescape") for document in documents]
    documents = [data.decode(errors="surrogateescape") for data in encoded]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    starts = np.cumsum([0, *map(len, encoded)])[:-1]
    piece = normalizer.filter().feed(data, starts, True)
    bounds = [*piece.starts.tolist(), len(piece.text)]
    for document, (begin, end) in zip(documents, pairwise(bounds), strict=True):
        found = piece.text[begin:end].tobytes().decode(errors="surrogateescape")
        assert found == normalizer.apply(document), repr(document)


def test_a_document_among_others_that_grows_too_much_is_refused() -> None:
    normalizer = get_normalizer(step(charsmap({"q": "x" * 200})))
    documents = [b"a", b"q" * BLOCK_BYTES, b"b"]
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    with pytest.raises(VocabularyError, match="makes 13,107,201 bytes of a block"):
        normalizer.filter().feed(np.frombuffer(b"".join(documents), np.uint8), starts, True)


def test_the_maps_first_characters() -> None:
    found = CharsMap(charsmap(MAP))
    assert found.singles == {key for key in MAP if len(key) == 1}
    assert found.firsts == {"a", "b"}
    assert found.seconds == {"\u0301", "c"}
    assert found.find("xbcd", 1) == (2, "d")
    assert found.find("xbd", 1) == (0, "")


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"\x08\0\0\0" + bytes(4), "has no units: 8 of 8 bytes"),
        (b"\0" * 8, "has no units: 0"),
        (bytes(MOST_MAP_BYTES + 1), "the limit is"),
        (charsmap({"a": "x" * 300}), "values of over 256 bytes"),
        (charsmap({"a": "x  y"}), "two spaces in a row, which"),
    ],
)
def test_refused(blob: bytes, message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        get_normalizer(step(blob))


def test_a_unit_that_leads_to_itself_is_refused() -> None:
    units = [0x400 << 10] + [0] * 0x800
    for byte in range(1, 256):  # each child has the children of the root
        place = 0x400 ^ byte
        units[place] = byte << 10 | byte
    data = b"".join(value.to_bytes(4, "little") for value in units)
    with pytest.raises(VocabularyError, match="more than 65536 nodes"):
        CharsMap(len(data).to_bytes(4, "little") + data + b"x\0")
