"""Once at the sizes that users have: default slices, whole reads, tables of more than 2^20 words.

Other tests take small slices and tables, where borders come often; these find what overflows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import READ_BYTES, train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.word_lists import listed
from tests.engines import Engine, NumpyEngine, train
from tests.reference import bpe as reference

pytestmark = pytest.mark.slow

WORDS = (1 << 20) + 1000
OPTIONS = TrainingOptions(300, pattern="class", tie="hf")


@cache
def lines() -> list[bytes]:
    """Over a million words of 5 to 20 letters."""
    numbers = np.arange(WORDS)[:, None] // 26 ** np.arange(5) % 26 + ord("a")
    letters = np.random.default_rng(3).integers(ord("a"), ord("f"), (WORDS, 15))
    spelled = np.concatenate([numbers, letters], axis=1).astype(np.uint8).tobytes()
    return [spelled[20 * k : 20 * k + 5 + k % 16] for k in range(WORDS)]


@cache
def documents() -> list[bytes]:
    """All words once, some again; documents end where what is read at a time does, or are empty."""
    text = b"\n".join([*lines(), *lines()[: 1 << 18]])
    ends = [k * READ_BYTES + more for k in (1, 2) for more in (-1, 0, 0, 1)]
    assert ends[-1] < len(text)
    return [text[begin:end] for begin, end in pairwise([0, 0, *ends, len(text), len(text)])]


@cache
def vocabulary() -> Vocabulary:
    return train(NumpyEngine(), documents(), OPTIONS).vocabulary


def encoded(encoder: Encoder, texts: Sequence[bytes]) -> tuple[NDArray[np.uint32], list[int]]:
    """Return all ids, and where the documents start."""
    ids: list[NDArray[np.uint32]] = []
    starts: list[int] = []
    before = 0
    for piece in encoder.encode(corpus_from_bytes(list(texts))):
        ids.append(piece.ids.copy())
        starts += (piece.document_starts + before).tolist()
        before += len(piece.ids)
    return np.concatenate(ids), starts


def test_words(engine: Engine) -> None:
    counted = dict(listed(engine.counter(corpus_from_bytes(documents()), "class")))
    words = (word for text in documents() for word in reference.pre_tokens(text, "class"))
    assert counted == Counter(words)


def test_vocabularies(engine: Engine) -> None:
    made = train(engine, documents(), OPTIONS).vocabulary
    assert made.merges.tolist() == vocabulary().merges.tolist()


def test_ids(engine: Engine) -> None:
    ids, starts = encoded(engine.encoder(vocabulary()), documents())
    expected, expected_starts = encoded(NumpyEncoder(vocabulary(), 1 << 16), documents())
    assert starts == expected_starts and np.array_equal(ids, expected)
    spelled = b"".join(map(vocabulary().tokens.__getitem__, ids.tolist()))
    assert spelled == b"".join(documents())


def test_documents_that_are_read_in_blocks(engine: Engine) -> None:
    if engine.backend.device is None:
        pytest.skip("recounts on adapters")
    texts = lines()[: READ_BYTES // 10]
    assert sum(map(len, texts)) > READ_BYTES
    found, expected = (
        train_vocabulary(corpus_from_bytes(texts), options, backend).vocabulary.merges.tolist()
        for options, backend in (
            (TrainingOptions(260, pattern="none", tie="hf", engine="recount"), engine.backend),
            (TrainingOptions(260, pattern="none", tie="hf"), NUMPY),
        )
    )
    assert found == expected
