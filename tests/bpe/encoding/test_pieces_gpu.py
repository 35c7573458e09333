"""Vocabularies of SentencePiece's kind on an adapter, compared with the encoders of the host."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.bpe.pretokens import neighbours
from llmgpu.bpe.vocabulary import pieces as rules_of_pieces
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import constant
from tests.bpe.encoding.test_encoder_gpu import encode
from tests.bpe.interchange.models import model, random_pieces, random_text
from tests.bpe.interchange.test_piece_files_reading import CASES
from tests.bpe.patterns import start_mask
from tests.bpe.pretokens.test_pretoken_gpu import Marker
from tests.reference.pieces import MARK, NORMAL, Piece

# Parts of characters, bytes of no character, surrogates and code points without a token. The last
# is a byte whose value is the code point of a character with a token.
BROKEN = (
    b"\xe6\x97",
    b"\xa5",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xf0\x9f",
    b"\xc0\x80",
    b"\xf4\x90",
    b"\xe9",
)
OTHERS = ("\u00df", "\u6f22", "\U0001f680", "z", "\x7f", "\x80")


@cache
def vocabulary_of(pieces: tuple[Piece, ...], folder: Path) -> Vocabulary:
    path = folder / "tokenizer.model"
    path.write_bytes(model(pieces))
    return open_vocabulary(path)


def random_documents(draw: random.Random, count: int = 40) -> list[bytes]:
    """Return texts in the vocabulary's spelling, some of them not UTF-8."""
    documents = []
    for _ in range(count):
        text = random_text(draw, OTHERS).replace(MARK, " ").encode()
        at = draw.randrange(len(text) + 1)
        documents.append(text[:at] + draw.choice([b"", *BROKEN]) + text[at:])
    return documents


@pytest.mark.parametrize("unknown", ["bytes", "fused", "one by one"])
@pytest.mark.parametrize("seed", range(6))
def test_ids_are_those_of_the_host(
    any_device: Device, seed: int, unknown: str, tmp_path: Path
) -> None:
    pieces = random_pieces(seed, has_bytes=unknown == "bytes", has_unused=seed % 2 == 1)
    vocabulary = vocabulary_of(tuple(pieces), tmp_path)
    assert vocabulary.pieces is not None
    if unknown == "one by one":
        rules = replace(vocabulary.pieces, fuses=False)
        vocabulary = replace(vocabulary, pieces=rules)
    draw = random.Random(seed)
    documents = random_documents(draw, 16)
    more = random_documents(draw, 16)
    on_host = NumpyEncoder(vocabulary)
    expected = encode(on_host, documents)
    # A repeated text has known words: two times half of it are many slices of 64 bytes.
    for size, repeated in ((64, more[::2] * 2), (1 << 16, more * 9)):
        joined = b" ".join(repeated)
        encoder = GpuEncoder(any_device, vocabulary, size, first_words=64)
        assert encode(encoder, documents) == expected
        assert encode(encoder, [joined]) == encode(on_host, [joined])


@pytest.mark.parametrize("has_bytes", [True, False])
def test_long_words_and_equal_hashes(any_device: Device, has_bytes: bool, tmp_path: Path) -> None:
    """Words of more than 512 bytes, which the host merges, between others, on a crowded table."""
    vocabulary = vocabulary_of(tuple(random_pieces(2, has_bytes=has_bytes)), tmp_path)
    draw = random.Random(2)
    runs = ["\u65e5" * 400, "a" * 700, "z" * 2000, "ab" * 300, "\U0001f680" * 129]
    parts = [random_text(draw, [*OTHERS, *runs]) for _ in range(60)]
    text = " ".join(parts).replace(MARK, " ").encode()
    encoder = GpuEncoder(any_device, vocabulary, 1 << 14, hash_mask=7, table_bytes=10_000)
    assert encode(encoder, [text]) == encode(NumpyEncoder(vocabulary), [text])


def marks(vocabulary: Vocabulary, documents: list[bytes]) -> NDArray[np.bool_]:
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    text = np.frombuffer(b"".join(documents), np.uint8)
    return start_mask(text, vocabulary.cut, starts.astype(np.int64))


Edges = list[tuple[int, list[bytes], NDArray[np.bool_]]]  # size of slices, documents, marks


@cache
def edges_of_words(has_bytes: bool) -> tuple[Vocabulary, Edges]:
    """Return a vocabulary, and documents with the marks of the host, which takes long."""
    with TemporaryDirectory() as folder:
        vocabulary = vocabulary_of(tuple(random_pieces(4, has_bytes=has_bytes)), Path(folder))
    draw = random.Random(4)
    every = [chr(point) for point in (*range(0x3000), *range(0xD000, 0x110000, 97))]
    points = [p for p in every if not "\ud800" <= p <= "\udfff"]
    documents = [*random_documents(draw), b"", *(d + b"\xe6" for d in random_documents(draw))]
    pairs = [f" {p}{draw.choice(points)}".encode() for p in points]
    # Every code point in large slices; slices of 64 bytes end between some of them.
    cases = ((64, [*documents, *pairs[::24]]), (1 << 16, [*documents, *pairs]))
    return vocabulary, [(size, texts, marks(vocabulary, texts)) for size, texts in cases]


@pytest.mark.parametrize("has_bytes", [True, False])
def test_words_start_where_the_host_lets_them(any_device: Device, has_bytes: bool) -> None:
    vocabulary, cases = edges_of_words(has_bytes)
    for size, documents, expected in cases:
        found = Marker(any_device, vocabulary.cut, 1 << 16).documents(documents, size)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("has_bytes", [True, False])
def test_words_start_around_the_last_characters_of_each_length(
    any_device: Device, has_bytes: bool, tmp_path: Path
) -> None:
    """No word starts inside a piece, and each character is in one piece with a letter."""
    points = [*map(chr, (0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF))]
    added = [
        (text, -20.0, NORMAL) for point in points for text in (point, f"{point}q", f"q{point}")
    ]
    pieces = [*random_pieces(4, has_bytes=has_bytes), ("q", -20.0, NORMAL), *added]
    vocabulary = vocabulary_of(tuple(pieces), tmp_path)
    documents = [f"{a}q{b}{a} {b}q".encode() for a in points for b in points]
    found = Marker(any_device, vocabulary.cut, 1 << 12).documents(documents, 1 << 12)
    np.testing.assert_array_equal(found, marks(vocabulary, documents))


@pytest.mark.parametrize("name", CASES)
def test_files_of_other_kinds(
    any_device: Device, name: str, tmp_path: Path, logged: list[str]
) -> None:
    """Listed merges, unknown characters that fuse, special tokens and normalizers."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(CASES[name](6)))
    vocabulary = open_vocabulary(path)
    draw = random.Random(6)
    texts = [random_text(draw, ["<s>", "<|user|>", *OTHERS]).encode() for _ in range(90)]
    special = SpecialOptions(["all"])
    ours = open_encoder(vocabulary, Backend(any_device, "a device"), special=special)
    assert encode(ours, texts) == encode(open_encoder(vocabulary, NUMPY, special=special), texts)
    assert any("encoded on the CPU" in line for line in logged) == (name == "whole")


@pytest.mark.parametrize("seed", range(2))
def test_the_package_gives_the_same_ids(any_device: Device, seed: int, tmp_path: Path) -> None:
    package = pytest.importorskip("sentencepiece")
    data = model(random_pieces(seed, has_bytes=True), None, {4: seed})
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    theirs = package.SentencePieceProcessor(model_proto=data)
    ours = open_encoder(open_vocabulary(path), Backend(any_device, "a device"))
    draw = random.Random(seed)
    texts = [random_text(draw, OTHERS) for _ in range(200)]
    assert encode(ours, [text.encode() for text in texts]) == theirs.encode(texts)


def test_constants_are_those_of_the_host() -> None:
    assert constant("pretoken/neighbours_starts.wgsl", "PAIR_BITS") == neighbours.PAIR_BITS
    assert constant("encode/02_items.wgsl", "CONTINUES") == rules_of_pieces._CONTINUES
