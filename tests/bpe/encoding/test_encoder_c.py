"""When the CPU engine's encoder looks for places to cut words; the ids never depend on that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from llmgpu.bpe.encoding.encoder_c import LONG_TEXT, CSliceEncoder
from llmgpu.cpu.library import library
from llmgpu.tokenizer import Tokenizer
from tests.bpe.vocabularies import build_vocabulary

pytestmark = pytest.mark.skipif(library() is None, reason="the CPU engine is not built")


def slices(doublings: int) -> CSliceEncoder:
    """An encoder whose longest token is an e with an accent, doubled this many times."""
    pairs = [(0xC3, 0xA9), *((256 + k, 256 + k) for k in range(doublings))]
    vocabulary = build_vocabulary(pairs, pattern="gpt2", tie="hf", special_tokens=[], training={})
    return CSliceEncoder(vocabulary)


@pytest.mark.parametrize(
    ("text", "doublings", "are_found"),
    [
        ("\u00e9" * LONG_TEXT, 0, True),
        ("\u00e9" * (LONG_TEXT // 2 - 1), 0, False),  # a short text
        ("e" * LONG_TEXT, 0, False),
        ("\u00e9" * LONG_TEXT, 7, False),  # tokens have most neighbours
    ],
)
def test_cuts_are_found_where_they_pay_off(text: str, doublings: int, are_found: bool) -> None:
    encoder = slices(doublings)
    encoder._find_cuts_for(np.frombuffer(text.encode(), np.uint8))
    assert encoder._matching.has_cuts is are_found


def test_nobody_waits_for_cuts() -> None:
    matching = slices(0)._matching
    with matching._finding_cuts:
        matching.find_cuts()
        assert not matching.has_cuts
    matching.find_cuts()
    assert matching.has_cuts


def test_merges_in_any_order_of_memory_give_the_same_ids() -> None:
    vocabulary = slices(3)._vocabulary
    by_columns = dataclasses.replace(vocabulary, merges=np.asfortranarray(vocabulary.merges))
    text = "\u00e9" * 13
    expected = Tokenizer(vocabulary, device="cpu").encode(text)
    np.testing.assert_array_equal(Tokenizer(by_columns, device="cpu").encode(text), expected)
    assert len(expected) == 3  # 8, 4 and 1 characters
