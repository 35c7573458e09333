"""The table of words that threads of the CPU engine share: its limit, its growth, its races."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.bpe.encoding import encoder_c
from llmgpu.bpe.encoding.encoder_host import HostEncoder
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu import library
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.host_encoders import CpuEncoder
from tests.engines import NumpyEngine, train

pytestmark = pytest.mark.skipif(library.library() is None, reason="the CPU engine is not built")

# Words that a slot holds, that it does not, with few ids and with many; most of them come twice.
WORDS = [
    *(b"%d" % (k * k) for k in range(6000)),
    *(b"word" + b"%05d" % k for k in range(6000)),
    *(bytes([97 + k % 26]) * (16 + k % 240) + b"%d" % k for k in range(1500)),
]
TEXT = b" ".join([*WORDS, *WORDS[::-2], *WORDS])


@cache
def vocabulary() -> Vocabulary:
    options = TrainingOptions(400, pattern="gpt2", tie="hf")
    return train(NumpyEngine(), [TEXT], options).vocabulary


@cache
def ids_of_numpy() -> NDArray[np.uint32]:
    return ids_of(NumpyEncoder(vocabulary()))


def ids_of(encoder: HostEncoder) -> NDArray[np.uint32]:
    pieces = [piece.ids.copy() for piece in encoder.encode(corpus_from_bytes(TEXT))]
    return np.concatenate(pieces)


@pytest.mark.parametrize("most_bytes", [0, 100_000, 3 << 20])
@pytest.mark.parametrize("threads", [1, 8])
def test_its_limit_changes_no_ids(
    most_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_c, "MAX_TABLE_BYTES", most_bytes)
    expected = ids_of_numpy()
    encoder = CpuEncoder(vocabulary(), 20_000, threads)
    for _ in range(2):  # with no words in the table, and with those of the first time
        assert np.array_equal(ids_of(encoder), expected)


@pytest.mark.parametrize("most_bytes", [100_000, 1 << 30])
def test_it_is_replaced_when_it_is_spent(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit it grows as often as it must, and never is."""
    monkeypatch.setattr(encoder_c, "MAX_TABLE_BYTES", most_bytes)
    slices = encoder_c.CSliceEncoder(vocabulary())
    first = slices._words
    for k in range(60):
        slices.encode_document(
            b" ".join(b"%d" % number for number in range(900 * k, 900 * k + 900))
        )
    assert (slices._words is first) == (most_bytes == 1 << 30)


def test_it_grows_up_to_its_limit_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of three bytes and a line break need no room beside their slots."""
    monkeypatch.setattr(encoder_c, "MAX_TABLE_BYTES", 100_000)
    slices = encoder_c.CSliceEncoder(vocabulary())
    slices.encode_document("\n".join(map(chr, range(0x4E00, 0x9000))).encode())
    assert slices._words.is_spent
