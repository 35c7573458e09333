"""How the CPU engine prepares documents before it encodes them; see `llmgpu/cpu/documents.c`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import CVocabulary


def prepare_documents(
    vocabulary: CVocabulary,
    changeable: NDArray[np.uint8] | None,
    added: Mapping[bytes, int],
    *,
    has_prefix: bool = False,
    is_late: bool = True,
) -> None:
    """Let `encode_plain` of the engine prepare documents.

    changeable: uint8, a bit for each code point, the lowest bit of a byte first: whether NFC may
        change the code point. None: do not check for NFC, but turn U+2581 into spaces.
    has_prefix: whether to put a space before a text that is not empty.
    added: ids, by their text, of the tokens that are recognized in every text.
    is_late: whether these tokens are searched after U+2581 has become spaces.
    """
    texts = sorted(added)
    # shorter[k]: index of the longest other text with which text k begins, or -1. In ascending
    # order, a text comes after all texts with which it begins.
    shorter: list[int] = []
    for place, text in enumerate(texts):
        other = place - 1
        while other >= 0 and not text.startswith(texts[other]):
            other = shorter[other]
        shorter.append(other)
    bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    ids = np.array([added[text] for text in texts], np.uint32)
    data = np.frombuffer(b"".join(texts), np.uint8)
    arrays = data, bounds, ids, np.array(shorter, np.int64)
    vocabulary.set_documents(changeable, has_prefix, is_late, *arrays, len(texts))
