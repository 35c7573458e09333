"""NFC of texts that come in pieces against what tokenizers makes of whole documents."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import NFC

from llmgpu.text.corpus import FilteredSource, corpus_from_bytes
from llmgpu.text.normalizing import NFC as FORM
from llmgpu.text.normalizing import get_normalizer
from tests.conftest import examples

# Marks that compose, reorder or do neither; Hangul letters; singletons; exclusions; a stray half.
CHARACTERS = "aeO \n\u0300\u0301\u0308\u0323\u0327\u0345\u0338각가각Å\u212b\u1e9b\u0958\u093c\u0915"
CHARACTERS += "\u09c7\u09be\u0dd9\u0dcf\u0dca\U000110a5\U000110ba漢\uf900😀=é\u1ec7\u0f71\u0f72"
PIECES = [
    *(character.encode() for character in CHARACTERS),
    *(b"\x80", b"\xc3", b"\xe1\x84", b"\xf0\x9f", b"\xed\xa0\x80", b"\xff", b"\xcc"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)
DOCUMENTS = st.lists(TEXTS, max_size=4)


def normalize(data: bytes) -> bytes:
    """Normalize the valid runs of a document."""
    parts = re.split("([\udc80-\udcff]+)", data.decode(errors="surrogateescape"))
    parts[::2] = map(NFC().normalize_str, parts[::2])
    return "".join(parts).encode(errors="surrogateescape")


def read(documents: list[bytes], block: int, room: int) -> list[bytes]:
    """Return normalized documents, read in blocks through a buffer of `room` bytes."""
    source = FilteredSource(corpus_from_bytes(documents), get_normalizer(FORM).filter(), block)
    buffer = np.empty(room, np.uint8)
    text, starts, end = b"", [], False
    while not end:
        fill = source.read_into(buffer)
        starts += (fill.starts + len(text)).tolist()
        text += buffer[: fill.length].tobytes()
        end = fill.end
    assert fill.closed
    return [text[begin:stop] for begin, stop in pairwise([*starts, len(text)])]


@settings(max_examples=examples(500))
@given(DOCUMENTS, st.integers(1, 40), st.integers(1, 20))
def test_documents_are_normalized_wherever_they_are_cut(
    documents: list[bytes], block: int, room: int
) -> None:
    assert read(documents, block, room) == [normalize(document) for document in documents]


@pytest.mark.parametrize("final", [True, False])
def test_every_cut_of_a_text(final: bool) -> None:
    generator = np.random.default_rng(3)
    data = b"".join(PIECES[i] for i in generator.integers(0, len(PIECES), 300))
    for cut in range(len(data) + 1):
        halves = [data[:cut], data[cut:]]
        documents = halves if final else [data]
        nfc, found, starts = get_normalizer(FORM).filter(), b"", 0
        for i, half in enumerate(halves):
            begins = np.zeros(int(i == 0 or final), np.int64)
            chunk = nfc.feed(np.frombuffer(half, np.uint8), begins, final or i == 1)
            found += chunk.text.tobytes()
            starts += len(chunk.starts)
        assert found == b"".join(map(normalize, documents)) and starts == len(documents)


def test_long_texts_are_not_held_back() -> None:
    for repeated in ("漢字", "각", "한", "a\u0301\u0323", "क़"):
        nfc = get_normalizer(FORM).filter()
        data = (repeated * 5000).encode()
        chunk = nfc.feed(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), False)
        rest = nfc.feed(np.empty(0, np.uint8), np.empty(0, np.int64), True)
        assert chunk.text.tobytes() + rest.text.tobytes() == normalize(data)
        assert len(rest.text) < 16
    stray = (
        get_normalizer(FORM)
        .filter()
        .feed(np.full(5000, 0x80, np.uint8), np.zeros(1, np.int64), False)
    )
    assert len(stray.text) > 4990


def test_nothing_else_is_copied_or_changed() -> None:
    data = ("plain \u00e9 漢" * 100).encode()
    assert read([data, b"", data], 64, 1000) == [data, b"", data]
