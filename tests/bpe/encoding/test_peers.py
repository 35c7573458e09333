"""Ids against tiktoken's and Hugging Face's own, with their vocabularies and with one of ours.

LLMGPU_TEST_STRINGS sets how many random strings there are; with 10000 and more all code points are
tried as well.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange import huggingface, tiktoken
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.interchange.samples import cl100k_path
from tests.reference import encoding as reference
from tests.reference.bpe import greedy as greedy_reference

pytestmark = pytest.mark.usefixtures("cpu_engine")

STRINGS = int(os.environ.get("LLMGPU_TEST_STRINGS", "400"))
STEP = 1 if STRINGS >= 10_000 else 29
ALPHABETS = (
    "abcdeE tTsS'  \n",
    "\u00e9\u00df\u0131\u0130\u017f'sS aZ",
    "0123456789\u0663\u00b2\u2167 .,",
    " \t\n\r\x0b\u00a0\u2003\u3000\u2028a.",
    "\u6f22\u5b57\u304b\u306a\u30ab\ud55c\uae00\u0e01\u0e33 \u3002",
    "\u0410\u0431\u0432\u03b1\u03a9\u05d0\u0627\u0915\u094d\u0937",
    "e\u0301\u0308a\u20dd\u0591'",
    "\U0001f600\U0001f468\u200d\U0001f469\ufe0f\U0001f3fd!",
    "{}[]()<>/\\|=+-*&^%$#@!~`\"'_;:\n ",
    "\0\x01\x7f\ufffd\ufeff a\n",
)
SPECIALS = [
    *(" " * n for n in range(1, 40)),
    *("\n" * n + " a" for n in range(1, 6)),
    *("1234567890123"[:n] for n in range(1, 11)),
    *("\r\n" * n for n in range(1, 5)),
    "a\r\nb\n\rc\r\r\n\n \n",
    "\0",
    "a\0b",
    " \u3000 \n\t a",
    "don't DON'T dON'lL we'Re 's 'S '\u017f x'd",
    "a\n ",
    " " * 300 + "\n" + " " * 300,
    "=" * 700,
    "ab" * 900,
]


def random_texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    texts = list(SPECIALS)
    for _ in range(STRINGS):
        alphabet = rng.choice((*ALPHABETS, "".join(ALPHABETS)))
        if rng.random() < 0.2:
            alphabet = "".join(map(chr, rng.sample(code_points(), 30)))
        texts.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(60))))
    return texts


@cache
def code_points() -> list[int]:
    """All but the surrogates."""
    return [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]


def every_code_point() -> list[str]:
    points = code_points()[::STEP]
    return [*map(chr, points), *(f"a{chr(c)}b {chr(c)}1{chr(c)}" for c in points)]


def encode(encoder: Encoder, documents: list[bytes]) -> list[list[int]]:
    """Return the ids of each document."""
    pieces = list(encoder.encode(corpus_from_bytes(documents)))
    ids = np.concatenate([piece.ids for piece in pieces])
    before = np.cumsum([0, *(len(piece.ids) for piece in pieces)])
    starts = [piece.document_starts + n for piece, n in zip(pieces, before, strict=False)]
    bounds = [*np.concatenate(starts).tolist(), len(ids)]
    return [ids[begin:end].tolist() for begin, end in pairwise(bounds)]


@pytest.fixture(scope="module", params=["numpy", "adapter"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """NumPy and the adapter."""
    if request.param == "numpy":
        return NUMPY
    device: Device = request.getfixturevalue("device")
    return Backend(device, device.name)


@cache
def cl100k() -> Vocabulary:
    return tiktoken.read(cl100k_path())


@cache
def trained() -> Vocabulary:
    text = " ".join(random_texts(1)).encode() + Path(__file__).read_bytes() * 3
    options = TrainingOptions(900, "cl100k")
    return train_vocabulary(corpus_from_bytes(text), options, NUMPY).vocabulary


def by_tiktoken(vocabulary: Vocabulary) -> Callable[[list[str]], list[list[int]]]:
    package = pytest.importorskip("tiktoken")
    ranks = {vocabulary.tokens[i]: i for i in vocabulary.ordinary_ids.tolist()}
    encoding = package.Encoding(
        "test",
        pat_str=get_pattern(vocabulary.pattern).expression,
        mergeable_ranks={token: rank for token, rank in ranks.items() if token},
        special_tokens={},
    )
    return lambda texts: encoding.encode_ordinary_batch(texts)


def by_tokenizers(vocabulary: Vocabulary, folder: Path) -> Callable[[list[str]], list[list[int]]]:
    package = pytest.importorskip("tokenizers")
    huggingface.write(vocabulary, folder / "tokenizer.json")
    tokenizer = package.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda texts: [found.ids for found in tokenizer.encode_batch(texts)]


def compare(
    vocabulary: Vocabulary,
    backend: Backend,
    peer: Callable[[list[str]], list[list[int]]],
    texts: list[str],
) -> None:
    ours = encode(open_encoder(vocabulary, backend), [text.encode() for text in texts])
    for text, found, expected in zip(texts, ours, peer(texts), strict=True):
        assert found == expected, repr(text)


@pytest.mark.slow
def test_cl100k_as_tiktoken(backend: Backend) -> None:
    compare(cl100k(), backend, by_tiktoken(cl100k()), random_texts(2) + every_code_point())


@pytest.mark.slow
def test_a_vocabulary_trained_here_in_tiktoken(backend: Backend) -> None:
    compare(trained(), backend, by_tiktoken(trained()), random_texts(3) + every_code_point())


@pytest.mark.parametrize("pattern", ["cl100k", "gpt2"])
def test_a_vocabulary_trained_here_in_tokenizers(
    backend: Backend, pattern: str, tmp_path: Path
) -> None:
    text = " ".join(random_texts(1)).encode()
    options = TrainingOptions(700, pattern)
    vocabulary = train_vocabulary(corpus_from_bytes(text), options, NUMPY).vocabulary
    compare(vocabulary, backend, by_tokenizers(vocabulary, tmp_path), random_texts(4))


# Characters that newer versions of Unicode class otherwise: U+0295 was a small letter, the others
# were not assigned.
CHANGED = (
    "\u0295Ali \u0295Umar \u0295Abd \u0295Ayn \u0295Iraq x\u0558y b\u0c5cb "
    "\u4e2d\U000323b0 \U00012550 "
)
TEXTS_OF_CHANGED = [CHANGED, *CHANGED.split(), *(f" {word}" for word in CHANGED.split())]


@pytest.mark.parametrize("pattern", ["o200k", "cl100k", "llama3", "gpt2"])
def test_characters_that_unicode_changed(backend: Backend, pattern: str, tmp_path: Path) -> None:
    corpus = corpus_from_bytes((CHANGED * 20).encode())
    vocabulary = train_vocabulary(corpus, TrainingOptions(290, pattern), backend).vocabulary
    compare(vocabulary, backend, by_tiktoken(vocabulary), TEXTS_OF_CHANGED)
    compare(vocabulary, backend, by_tokenizers(vocabulary, tmp_path), TEXTS_OF_CHANGED)


@pytest.mark.pinned_regex
@pytest.mark.parametrize("pattern", ["o200k", "cl100k", "gpt2"])
def test_vocabularies_with_the_classes_of_another_version(backend: Backend, pattern: str) -> None:
    corpus = corpus_from_bytes((CHANGED * 20).encode())
    options = TrainingOptions(290, pattern, unicode="18.0")
    vocabulary = train_vocabulary(corpus, options, backend).vocabulary
    documents = [text.encode() for text in TEXTS_OF_CHANGED]
    found = encode(open_encoder(vocabulary, backend), documents)
    assert found == [reference.bpe_encode(vocabulary, document) for document in documents]
    older = replace(vocabulary, unicode="16.0")
    assert found != encode(open_encoder(older, backend), documents)
    greedy = encode(open_encoder(vocabulary.with_match("greedy"), backend), documents)
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    assert greedy == [
        greedy_reference(document, ids, pattern, unicode="18.0") for document in documents
    ]


def test_bytes_of_any_kind_as_in_the_reference(backend: Backend) -> None:
    rng = random.Random(5)
    documents = [b"\x80", b"\xff\xfe", b"\xe2\x82", b"a\xe2\x82 b", b"\xf0\x9f\x98", b"\xc0\xaf"]
    documents += [
        bytes(rng.choices(rng.choice((range(256), b"ab \n1\xe2\x82\xac\xc3\xa9\xf0\x9f'")), k=k))
        for k in (rng.randrange(40) for _ in range(STRINGS))
    ]
    vocabulary = trained()
    expected = [reference.bpe_encode(vocabulary, document) for document in documents]
    assert encode(open_encoder(vocabulary, backend), documents) == expected
