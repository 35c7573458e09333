"""Which of several equally frequent pairs is merged first.

The pair whose left symbol has the lowest rank wins, then the one whose right symbol does. The rank
of a merged symbol is its id, so it comes after all bytes. The rules differ in
the ranks of the bytes:

- ``bytes``: a byte ranks as its value.
- ``hf``: bytes rank in the order of the characters that Hugging Face's byte-level alphabet (GPT-2's
  bytes_to_unicode) shows them as: a printable Latin-1 character stands for itself, every other byte
  takes the next free code point from 256 on. This gives the merges that its trainer gives.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary import TIE_RULES
from llmgpu.errors import LlmgpuError
from llmgpu.input_files import quote


def _make_alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    number = {value: 0x100 + k for k, value in enumerate(others)}
    return tuple(chr(number.get(value, value)) for value in range(256))


ALPHABET = _make_alphabet()  # by byte


def byte_ranks(tie: str) -> NDArray[np.uint32]:
    """Return the rank of each byte under the rule `tie`: uint32 (256,), a permutation.

    Raises LlmgpuError for an unknown rule.
    """
    if tie not in TIE_RULES:
        raise LlmgpuError(f"unknown tie rule {quote(tie)}: use one of {', '.join(TIE_RULES)}")
    ranks = np.arange(256, dtype=np.uint32)
    if tie == "hf":
        ranks[np.argsort(ALPHABET)] = np.arange(256, dtype=np.uint32)
    return ranks
