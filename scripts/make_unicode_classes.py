"""Update pretokens/unicode_classes.py: the classes of code points, as the `regex` module has them.

Run it from the top of the repository; the same version of `regex` gives the same output. The first
line of the module names its version of Unicode, and the table is its last string.
"""

from __future__ import annotations

import re
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
    module = TARGET.read_text(encoding="utf-8")
    module = re.sub(r"Unicode [0-9.]+[0-9]", f"Unicode {unicode_version()}", module, count=1)
    before, _, _ = module.partition('_RUNS = """')
    TARGET.write_text(f'{before}_RUNS = """\n{lines}\n"""\n', encoding="utf-8")


if __name__ == "__main__":
    main()
