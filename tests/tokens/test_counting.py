"""Statistics of the numbers of tokens in documents, against lengths counted one by one."""

from __future__ import annotations

import random

import numpy as np

from llmgpu.tokens.counting import DocumentLengths


def test_documents_may_end_in_a_later_slice() -> None:
    rng = random.Random(7)
    lengths = [rng.choice((0, 1, 5, 200)) for _ in range(300)]
    starts, ids = np.cumsum([0, *lengths[:-1]]), sum(lengths)
    counted, first = DocumentLengths(), 0
    while first < ids:
        last = min(first + rng.randrange(1, 400), ids)
        is_end = last == ids  # documents without ids at the end belong to the last slice
        own = starts[(starts >= first) & ((starts < last) | is_end)]
        counted.add(own - first, last - first)
        first = last
    found = counted.summary()
    assert counted.summary() == found  # the last document is counted once
    assert found["documents"] == len(lengths)
    assert found["median"] == sorted(lengths)[len(lengths) // 2 - 1]
    assert found["above"]["128"] == lengths.count(200)
