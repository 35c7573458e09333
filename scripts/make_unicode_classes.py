"""Write pretokens/unicode_classes.py: the classes of code points, as the `regex` module has them.

Run it from the top of the repository; the same version of `regex` gives the same output.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from textwrap import wrap

import regex

TARGET = Path("llmgpu/bpe/pretokens/unicode_classes.py")
CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)  # no text holds them
# Letter in the runs, and what belongs to the class; all else is "o".
CLASSES = {
    "u": r"[\p{Lu}\p{Lt}]",
    "l": r"\p{Ll}",
    "x": r"[\p{Lm}\p{Lo}]",
    "m": r"\p{M}",
    "n": r"\p{N}",
    "s": r"\s",
}
HEADER = '''"""Classes of code points, from Unicode {version}.

Made by scripts/make_unicode_classes.py: don't edit. The runs are written one after the other, each
as its length in code points (none: 1) and a letter for its class.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

UNICODE_VERSION = "{version}"
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
    runs = re.findall(r"([0-9]*)([a-z])", "".join(_RUNS.split()))
    lengths = [int(length or "1") for length, _ in runs]
    return np.repeat(np.array([_LETTERS.index(name) for _, name in runs], np.uint8), lengths)


_RUNS = """
{runs}
"""
'''


def classes() -> list[str]:
    """Return the class letter of every code point."""
    letters = ["o"] * CODE_POINTS
    text = "".join(chr(c) for c in range(CODE_POINTS) if c not in SURROGATES)
    for letter, expression in CLASSES.items():
        for match in regex.finditer(expression, text):
            letters[ord(match.group())] = letter
    return letters


def unicode_version() -> str:
    """Return the Unicode version of the `regex` module, told by when characters came to be."""
    # A letter or number of each version, newest first.
    newest = {
        "17.0": "\U00011db0",
        "16.0": "\U000105c0",
        "15.1": "\U0002ebf0",
        "15.0": "\U00011f04",
    }
    for version, character in newest.items():
        if regex.match(r"\p{L}", character):
            return version
    raise SystemExit("the regex module is older than Unicode 15.0")


def main() -> None:
    """Write the module."""
    runs = "".join(
        f"{length if length > 1 else ''}{letter}"
        for letter, length in ((key, len(list(group))) for key, group in groupby(classes()))
    )
    lines = "\n".join(wrap(runs, 98))
    TARGET.write_text(HEADER.format(version=unicode_version(), runs=lines), encoding="utf-8")


if __name__ == "__main__":
    main()
