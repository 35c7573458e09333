"""NFC of texts that come in pieces against that of whole documents, and ids against tokenizers."""

from __future__ import annotations

import sys
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding.encoder import open_encoder
from llmgpu.bpe.encoding.normalization import NfcFilter, starts_anew
from llmgpu.bpe.encoding.special_encoding import SpecialOptions, with_special_tokens
from llmgpu.bpe.interchange import huggingface
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.gpu import Device
from llmgpu.text.corpus import FilteredSource, corpus_from_bytes

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
    text = data.decode(errors="surrogateescape")
    return unicodedata.normalize("NFC", text).encode(errors="surrogateescape")


def read(documents: list[bytes], block: int, room: int) -> list[bytes]:
    """Return normalized documents, read in blocks through a buffer of `room` bytes."""
    source = FilteredSource(corpus_from_bytes(documents), NfcFilter(), block)
    buffer = np.empty(room, np.uint8)
    text, starts, end = b"", [], False
    while not end:
        fill = source.read_into(buffer)
        starts += (fill.starts + len(text)).tolist()
        text += buffer[: fill.length].tobytes()
        end = fill.end
    assert fill.closed
    return [text[begin:stop] for begin, stop in pairwise([*starts, len(text)])]


@settings(max_examples=500)
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
        nfc, found, starts = NfcFilter(), b"", 0
        for i, half in enumerate(halves):
            begins = np.zeros(int(i == 0 or final), np.int64)
            chunk = nfc.feed(np.frombuffer(half, np.uint8), begins, final or i == 1)
            found += chunk.text.tobytes()
            starts += len(chunk.starts)
        assert found == b"".join(map(normalize, documents)) and starts == len(documents)


def test_long_texts_are_not_held_back() -> None:
    for repeated in ("漢字", "각", "한", "a\u0301\u0323", "क़"):
        nfc = NfcFilter()
        data = (repeated * 5000).encode()
        chunk = nfc.feed(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), False)
        rest = nfc.feed(np.empty(0, np.uint8), np.empty(0, np.int64), True)
        assert chunk.text.tobytes() + rest.text.tobytes() == normalize(data)
        assert len(rest.text) < 16
    stray = NfcFilter().feed(np.full(5000, 0x80, np.uint8), np.zeros(1, np.int64), False)
    assert len(stray.text) > 4990


def test_what_starts_anew_does_so() -> None:
    seconds = set()
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        decomposed = unicodedata.normalize("NFD", character)
        if unicodedata.normalize("NFC", decomposed) == character and len(decomposed) > 1:
            seconds.update(decomposed[1:])
    assert not any(starts_anew(character) for character in seconds)
    assert all(starts_anew(c) for c in "aé漢가\uf900😀\udc80") and not starts_anew("\u0301")


def test_nothing_else_is_copied_or_changed() -> None:
    data = ("plain \u00e9 漢" * 100).encode()
    assert read([data, b"", data], 64, 1000) == [data, b"", data]


@pytest.fixture(scope="module")
def peer() -> Tokenizer:
    """A byte-level vocabulary of tokenizers with NFC and a special token."""
    from tokenizers.trainers import BpeTrainer

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([texts(i) for i in range(60)], trainer)
    made.add_special_tokens([AddedToken("<e\u0301>", special=True, normalized=False)])
    return made


def texts(seed: int) -> str:
    generator = np.random.default_rng(seed)
    return "".join(CHARACTERS[i] for i in generator.integers(0, len(CHARACTERS), 200))


@pytest.fixture(scope="module")
def imported(peer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tmp_path_factory.mktemp("nfc") / "tokenizer.json"
    peer.save(str(path))
    vocabulary = huggingface.read(path, note=lambda text: None)
    assert vocabulary.normalizer == "NFC"
    return vocabulary


def same_ids(peer: Tokenizer, vocabulary: Vocabulary, backend: Backend) -> None:
    documents = [texts(seed) for seed in range(100, 130)]
    data = [document.encode() for document in documents]
    expected = [peer.encode(document).ids for document in documents]
    pieces = list(open_encoder(vocabulary, backend, 100).encode(corpus_from_bytes(data)))
    ids = np.concatenate([piece.ids for piece in pieces])
    assert ids.tolist() == [token for ids in expected for token in ids]
    assert vocabulary.decode(ids) == b"".join(map(normalize, data))


def test_ids_are_those_of_tokenizers(peer: Tokenizer, imported: Vocabulary) -> None:
    same_ids(peer, imported, NUMPY)


def test_a_device_gives_them_too(peer: Tokenizer, imported: Vocabulary, device: Device) -> None:
    same_ids(peer, imported, Backend(device, ""))


def test_special_tokens_come_before_normalizing(peer: Tokenizer, imported: Vocabulary) -> None:
    token = "<e\u0301>"
    documents = [f"a{token}\u0301e{token}", f"{token}", f"e\u0301 {token[:-1]}"]
    encoder = open_encoder(imported, NUMPY, 50)
    plain = with_special_tokens(encoder, imported, SpecialOptions("all"), 5)
    ids = [piece.ids for piece in plain.encode(corpus_from_bytes([d.encode() for d in documents]))]
    expected = [token for document in documents for token in peer.encode(document).ids]
    assert np.concatenate(ids).tolist() == expected
