"""Classes of code points, by version of Unicode.

- DEFAULT_VERSION is what the peers have, so that the named patterns cut as they do: tiktoken 0.14
  and tokenizers 0.23 agree about every code point.
- UNRECORDED_VERSION is that of vocabulary files with classes whose training data names none.
- A vocabulary, word counts and a checkpoint keep the version that they began with.

scripts/make_unicode_classes.py makes unicode_VERSION.txt: runs of code points one after the other,
each as its length (none: 1) and a letter for its class.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import LlmgpuError

VERSIONS = ("16.0", "18.0")
DEFAULT_VERSION = "16.0"
UNRECORDED_VERSION = "18.0"

CODE_POINTS = 0x110000

OTHER = 0
UPPERCASE = 1  # Lu, Lt
LOWERCASE = 2  # Ll
OTHER_LETTER = 3  # Lm, Lo
MARK = 4  # M
NUMBER = 5  # N
WHITE_SPACE = 6

_LETTERS = "oulxmns"


def check_version(version: object) -> None:
    """Raise LlmgpuError unless there is a table of this version of Unicode."""
    if version not in VERSIONS:
        raise LlmgpuError(
            f"there are no character classes of Unicode {str(version)[:40]!r}; this llmgpu has "
            f"those of {' and '.join(VERSIONS)}"
        )


@cache
def code_point_classes(version: str) -> NDArray[np.uint8]:
    """Return the class of every code point: uint8 (0x110000,). Not to be written to.

    version: one of VERSIONS; LlmgpuError if it is not.
    """
    check_version(version)
    table = Path(__file__).with_name(f"unicode_{version}.txt")
    _, _, written = table.read_text(encoding="ascii").partition("\n")  # the first line is a comment
    runs = re.findall(r"([0-9]*)([a-z])", "".join(written.split()))
    lengths = [int(length or "1") for length, _ in runs]
    classes = np.repeat(np.array([_LETTERS.index(name) for _, name in runs], np.uint8), lengths)
    classes.flags.writeable = False
    return classes
