"""What the host does for the device's table of words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.words.word_table_gpu import long_spans


@given(
    lengths=st.lists(
        st.integers(1, 100) | st.integers(120, 140) | st.integers(190, 700), min_size=1, max_size=40
    ),
    longest=st.sampled_from([128, 130, 191, 192, 256, 512]),
)
def test_long_words_are_found_by_their_bits(lengths: list[int], longest: int) -> None:
    text = np.arange(sum(lengths)).astype(np.uint8)
    ends = np.cumsum(lengths)
    mask = np.zeros(len(text), np.bool_)
    mask[ends - lengths] = True
    found = long_spans(np.packbits(mask, bitorder="little"), len(text), longest)
    words = np.split(text, ends[:-1])
    assert [text[begin:end].tolist() for begin, end in found] == [
        w.tolist() for w in words if len(w) > longest
    ]
