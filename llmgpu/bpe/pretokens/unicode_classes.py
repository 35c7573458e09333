"""Classes of code points, from Unicode 17.0.

scripts/make_unicode_classes.py makes unicode_classes.txt: runs of code points one after the other,
each as its length (none: 1) and a letter for its class.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

CODE_POINTS = 0x110000

OTHER = 0
UPPERCASE = 1  # Lu, Lt
LOWERCASE = 2  # Ll
OTHER_LETTER = 3  # Lm, Lo
MARK = 4  # M
NUMBER = 5  # N
WHITE_SPACE = 6

_LETTERS = "oulxmns"


@cache
def code_point_classes() -> NDArray[np.uint8]:
    """Return the class of every code point: uint8 (0x110000,). Not to be written to."""
    table = (files("llmgpu.bpe.pretokens") / "unicode_classes.txt").read_text(encoding="ascii")
    _, _, written = table.partition("\n")  # the first line says where it comes from
    runs = re.findall(r"([0-9]*)([a-z])", "".join(written.split()))
    lengths = [int(length or "1") for length, _ in runs]
    return np.repeat(np.array([_LETTERS.index(name) for _, name in runs], np.uint8), lengths)
