"""Normalizers: each as tokenizers has it, in blocks of any size; what can't be exact is refused."""

from __future__ import annotations

import json
import random
import runpy
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import normalizers

from llmgpu.errors import VocabularyError
from llmgpu.text import normalizing
from llmgpu.text.corpus import MOST_BYTES as FILTER_BYTES
from llmgpu.text.corpus import FilteredSource
from llmgpu.text.documents import Piece
from llmgpu.text.normalizing import (
    BLOCK_BYTES,
    Normalizer,
    get_normalizer,
    spell_normalizer,
    steps_of,
)
from tests.conftest import ROOT
from tests.reference.characters import CHARACTERS

LOWERCASE, NFC = {"type": "Lowercase"}, {"type": "NFC"}
PREPEND = {"type": "Prepend", "prepend": "_\u00c9"}


def strip(left: bool, right: bool) -> dict[str, Any]:
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


CASES = [
    [LOWERCASE],
    [PREPEND],
    [strip(True, False)],
    [strip(False, True)],
    [strip(True, True)],
    [replace("aab", "ba")],
    [replace(" ", "\u2581")],
    [replace("aa", "")],
    [replace(".*", "x")],
    [PREPEND, NFC, LOWERCASE],
    [strip(True, True), PREPEND, replace("aa", "a")],
    [NFC, replace("\u00e9", "e\u0301"), NFC, LOWERCASE, strip(False, True), replace("b", " ")],
]
ALPHABETS = (
    "aab .*",
    "\u0130\u03a3\u00c9E\u0301\u0300",
    "a \t\n\u00a0\u2003\u200b\x1c\x85\u3000",
    "Aa \U0001f600",
)


def texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    made = [
        "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(12)))
        for _ in range(count // 2)
    ]
    for _ in range(count // 2):
        alphabet = rng.choice(ALPHABETS)
        made.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(20))))
    return made


def theirs(steps: list[dict[str, Any]]) -> Any:
    """The normalizer of the library."""
    from tokenizers import Tokenizer, models

    content = json.loads(Tokenizer(models.BPE()).to_str())
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return Tokenizer.from_str(json.dumps(content)).normalizer


@pytest.mark.parametrize("steps", CASES)
def test_texts_are_those_of_tokenizers(steps: list[dict[str, Any]]) -> None:
    spelled = spell_normalizer(steps)
    assert spelled is not None
    ours, library = get_normalizer(spelled), theirs(steps)
    for text in texts(1, 3_000):
        assert ours.apply(text) == library.normalize_str(text), ascii(text)


@pytest.mark.parametrize("steps", CASES)
def test_blocks_make_no_difference(steps: list[dict[str, Any]]) -> None:
    spelled = spell_normalizer(steps)
    assert spelled is not None
    normalizer = Normalizer(spelled)
    rng = random.Random(2)
    for _ in range(60):
        documents = [
            text.encode() + rng.choice((b"", b"", b"\xff\xc3")) for text in texts(rng.random(), 6)
        ]
        data, starts = b"".join(documents), np.cumsum([0, *map(len, documents)])[:-1]
        made, places = b"", []
        filtering = normalizer.filter()
        position = 0
        while position <= len(data):
            end = position + rng.randrange(1, 9)
            final = end > len(data)
            inside = starts[(starts >= position) & (starts < end)] - position
            block = np.frombuffer(data[position:end], np.uint8)
            piece = filtering.feed(block, inside, final)
            places += [int(start) + len(made) for start in piece.starts]
            made += piece.text.tobytes()
            position = end
        expected = [
            normalizer.apply(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")
            for text in documents
        ]
        assert made == b"".join(expected)
        assert places == np.cumsum([0, *map(len, expected)])[:-1].tolist()


def in_slices(steps: list[dict[str, Any]], data: bytes, seed: int) -> bytes:
    """One document normalized in slices of random sizes."""
    filtering, rng, made = Normalizer(json.dumps(steps)).filter(), random.Random(seed), b""
    none, position = np.empty(0, np.int64), 0
    while position < len(data):
        end = position + rng.choice((1, 1000, 1 << 16, 100_000, len(data)))
        piece = np.frombuffer(data[position:end], np.uint8)
        is_last = end >= len(data) and rng.random() < 0.5
        made += filtering.feed(piece, none, is_last).text.tobytes()
        position = end
        if is_last:
            return made
    return made + filtering.feed(np.empty(0, np.uint8), none, True).text.tobytes()


@cache
def long_documents() -> list[str]:
    rng = random.Random(3)
    alphabets = (*ALPHABETS, "a\u0301", "ab ")
    return ["".join(rng.choices(alphabet, k=100_000)) for alphabet in alphabets]


@pytest.mark.parametrize("steps", CASES)
def test_long_documents_are_those_of_tokenizers(steps: list[dict[str, Any]]) -> None:
    normalizer, library = Normalizer(json.dumps(steps)), theirs(steps)
    for seed, text in enumerate(long_documents()):
        expected = library.normalize_str(text)
        assert normalizer.apply(text) == expected
        assert in_slices(steps, text.encode(), seed).decode() == expected


def test_steps_that_multiply_end_with_an_error_in_little_memory() -> None:
    steps = [replace("a", "a" * 10)] * 12
    expected = "step 7 of the normalizer, Replace, makes 10,000,000 bytes of a block of 64 KB"
    tracemalloc.start()
    with pytest.raises(VocabularyError, match=expected):
        Normalizer(json.dumps(steps)).apply("a")
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    # The error comes for the block with it, however the text is cut.
    text = b"b" * 200_000 + b"a" + b"b" * 100_000
    for seed in range(20):
        with pytest.raises(VocabularyError, match=r"step 7 .* makes 10,0"):
            in_slices(steps, text, seed)
    with pytest.raises(VocabularyError, match="step 7"):  # in the second document of several
        Normalizer(json.dumps(steps)).filter().feed(
            np.frombuffer(b"bab", np.uint8), np.array([0, 1, 2]), True
        )
    assert Normalizer(json.dumps(steps[:6])).apply("aba") == "a" * 10**6 + "b" + "a" * 10**6
    longest = [replace("a", "a" * 64)]
    assert len(in_slices(longest, b"a" * 200_000, 5)) == 64 * 200_000
    with pytest.raises(VocabularyError, match="makes 4,259,840 bytes"):
        in_slices([replace("a", "a" * 65)], b"b" * 65_536 + b"a" * 65_536, 5)


def test_held_text_counts_as_the_blocks_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalizing, "BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(normalizing, "MOST_BYTES", 1 << 19)
    spaces = 190_000  # 570 KB as \u2581, more than one block may become
    steps = [strip(True, True), replace(" ", "\u2581")]
    for seed in range(3):
        made = in_slices(steps, b" a" + b" " * spaces + b"b  ", seed)
        assert made.decode() == "a" + "\u2581" * spaces + "b"
    with pytest.raises(VocabularyError, match=r"step 2 .* Replace"):
        in_slices([strip(True, True), replace(" ", " " * 99)], b"a" + b" " * spaces + b"b", 1)
    marks = "a" + "\u0323" * 320_000
    assert in_slices([NFC, LOWERCASE], marks.encode(), 1).decode() == "\u1ea1" + marks[2:]


@pytest.mark.parametrize("length", [2, BLOCK_BYTES])
def test_a_text_after_a_special_token(length: int) -> None:
    text = "a" * length
    for scheme, expected in (("first", text), ("always", f" {text}")):
        made = get_normalizer(json.dumps([{"prepend_scheme": scheme, "type": "Metaspace"}]))
        assert made.apply(text) == f" {text}"
        assert made.apply(text, follows=True) == expected


def test_text_that_is_not_unicode_stays() -> None:
    assert get_normalizer('[{"type":"Lowercase"}]').apply("A\ud800") == "A\ud800"


def test_lowercase_of_every_character() -> None:
    lower, library = get_normalizer('[{"type":"Lowercase"}]').apply, normalizers.Lowercase()
    assert lower(CHARACTERS) == library.normalize_str(CHARACTERS)


@pytest.mark.slow
def test_the_script_makes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llmgpu" / "text").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "scripts" / "make_lowercase_table.py"), run_name="__main__")
    made = tmp_path / "llmgpu" / "text" / "lowercase.txt"
    assert made.read_bytes() == (ROOT / "llmgpu" / "text" / "lowercase.txt").read_bytes()


def test_how_they_are_spelled() -> None:
    assert spell_normalizer([]) is None
    assert spell_normalizer([NFC, NFC]) == "NFC" and steps_of("NFC") == [NFC]
    spelled = spell_normalizer([LOWERCASE, {"prepend": "\u00e9", "type": "Prepend"}])
    assert spelled == '[{"type":"Lowercase"},{"prepend":"\u00e9","type":"Prepend"}]'
    assert get_normalizer(spelled).name == "Lowercase, Prepend"
    assert steps_of(spelled) == json.loads(spelled) and steps_of(None) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "unknown normalizer") for text in ("nfc", "[]", "{}", "[1]", "[" * 9999, "")),
        ('[{"type":"NFKC"}]', "is not supported; supported: Lowercase, NFC, Prepend, Replace, St"),
        ('[{"type":"Lowercase","x":1}]', "is not supported"),
        ('[{"type":"Prepend","prepend":1}]', "is not supported"),
        ('[{"type":"Prepend","prepend":"\\ud800"}]', "is not supported"),
        ('[{"type":"Strip","strip_left":1,"strip_right":true}]', "is not supported"),
        ('[{"type":"Replace","pattern":{"String":""},"content":"a"}]', "is not supported"),
        ('[{"type":"Replace","pattern":{"Regex":"a"},"content":"a"}]', "not for a Regex"),
        (json.dumps([replace("a", "b" * 65_537)]), "Replace puts in 65,537 bytes; the limit is 65"),
        (json.dumps([{"type": "Prepend", "prepend": "\u00e9" * 40_000}]), "puts in 80,000 bytes"),
        (json.dumps([NFC] * 101), "unknown normalizer"),
    ],
)
def test_what_is_not_exact_is_refused(text: str, message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        get_normalizer(text)


class OneBlock:
    """A text source like a pipe that has delivered one block; a second read would wait."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.reads = nbytes, 0

    def read_into(self, buffer: NDArray[np.uint8]) -> Piece:
        self.reads += 1
        assert self.reads == 1, "read again although text is ready"
        buffer[: self.nbytes] = ord("a")
        return Piece(buffer[: self.nbytes], np.zeros(1, np.int64), closed=False)


class Lines:
    """A text source of documents that a filter removes whole: each block has 3 of them a byte."""

    def __init__(self, blocks: int) -> None:
        self.left = blocks

    def read_into(self, buffer: NDArray[np.uint8]) -> Piece:
        self.left -= 1
        buffer[:] = ord("a")
        starts = np.arange(len(buffer)).repeat(3)
        return Piece(buffer, starts, closed=True, end=not self.left)


def test_filtered_text_returns_the_documents_of_one_block() -> None:
    drop = '[{"content":"","pattern":{"String":"a"},"type":"Replace"}]'
    source = FilteredSource(Lines(5), get_normalizer(drop).filter())
    pieces = []
    while not (pieces and pieces[-1].end):
        pieces.append(source.read_into(np.empty(1 << 15, np.uint8)))
    assert [len(piece.starts) for piece in pieces] == [3 << 15] * 5
    assert not any(piece.length for piece in pieces)


@pytest.mark.parametrize("nbytes", [1000, FILTER_BYTES, 3 * FILTER_BYTES, 3 * FILTER_BYTES + 1])
def test_filtered_text_does_not_wait_for_more_text(nbytes: int) -> None:
    source = FilteredSource(
        OneBlock(nbytes), get_normalizer('[{"prepend":"_","type":"Prepend"}]').filter()
    )
    piece = source.read_into(np.empty(4 * FILTER_BYTES, np.uint8))
    assert piece.text.tobytes() == b"_" + b"a" * nbytes
    assert piece.starts.tolist() == [0]
