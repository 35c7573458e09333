"""Write pretokens/unicode_classes.txt: the classes of code points, as the `regex` module has them.

Run it from the top of the repository; the same version of `regex` gives the same output.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from textwrap import wrap

import regex

TARGET = Path("llmgpu/bpe/pretokens/unicode_classes.txt")
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
    """Write the table."""
    runs = "".join(
        f"{length if length > 1 else ''}{letter}"
        for letter, length in ((key, len(list(group))) for key, group in groupby(classes()))
    )
    lines = "\n".join(wrap(runs, 98))
    origin = f"Unicode {unicode_version()}. Made by scripts/make_unicode_classes.py: do not edit."
    TARGET.write_text(f"# Classes of code points, from {origin}\n{lines}\n", encoding="ascii")


if __name__ == "__main__":
    main()
