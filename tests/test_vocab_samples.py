"""Every sample vocabulary loads and gives back a text of its language, on NumPy and the adapter."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes

SAMPLES = Path(__file__).parents[1] / "vocab_samples"
TEXTS = {
    "english-8k": "The quick measure of a good tokenizer is whether every word comes back whole.\n",
    "turkish-4k": "İyi bir sözcük parçalayıcı, şu cümledeki ğ, ı ve ç harflerini de geri verir.\n",
    "turkish-4k-class": "Evlerimizden göle inen yol, ağaçların arasından sessizce geçiyordu.\n",
    "python-8k": "def encode(self, x: bytes) -> list[int]:\n    return [self.ids[b] for b in x]\n",
}


def test_every_sample_has_a_text() -> None:
    assert {path.stem for path in SAMPLES.glob("*.bin")} == set(TEXTS)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_sample_round_trips_its_language(name: str, device: Device) -> None:
    vocabulary = Vocabulary.load(SAMPLES / f"{name}.bin")
    text = TEXTS[name].encode() * 20
    ids = {}
    for backend in (NUMPY, Backend(device, device.name)):
        pieces = open_encoder(vocabulary, backend).encode(corpus_from_bytes(text))
        ids[backend.description] = np.concatenate([piece.ids for piece in pieces])
        assert vocabulary.decode(ids[backend.description]) == text
    first, second = ids.values()
    np.testing.assert_array_equal(first, second)
    assert len(first) < 0.6 * len(text)  # the vocabulary knows the language


def test_the_page_has_the_bytes_per_token_of_both_match_rules() -> None:
    page = (SAMPLES.parent / "docs/tokenizing.md").read_text(encoding="utf-8")
    text = (SAMPLES / "turkish.txt").read_bytes()
    rows = re.findall(
        r"^\| `(turkish.*)\.bin` \| `(\w+)` \| (\S+) \| (\S+) \|$", page, re.MULTILINE
    )
    assert [name for name, *_ in rows] == ["turkish-4k", "turkish-4k-class"]
    for name, pattern, *figures in rows:
        vocabulary = Vocabulary.load(SAMPLES / f"{name}.bin")
        assert vocabulary.pattern == pattern
        for match, figure in zip(("bpe", "greedy"), figures, strict=True):
            encoder = open_encoder(vocabulary.with_match(match), NUMPY)
            tokens = sum(len(piece.ids) for piece in encoder.encode(corpus_from_bytes(text)))
            assert f"{len(text) / tokens:.3f}" == figure
