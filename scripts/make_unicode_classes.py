"""Write pretokens/unicode_*.txt: the classes of code points, one file for each version of Unicode.

- 16.0: as tiktoken has them, asked about every code point; tokenizers has to agree.
- 18.0: as the `regex` module has them.

Run it from the top of the repository; the same versions of the packages give the same output. When
the peers move to another Unicode, add a file for that and keep these: vocabularies refer to them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from textwrap import wrap

import regex
import tiktoken
from tokenizers import Regex, pre_tokenizers

FOLDER = Path("llmgpu/bpe/pretokens")
CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)  # no text holds them
TEXT = "".join(chr(c) for c in range(CODE_POINTS) if c not in SURROGATES)
# Letter in the runs, and what belongs to the class; all else is "o".
CLASSES = {
    "u": r"[\p{Lu}\p{Lt}]",
    "l": r"\p{Ll}",
    "x": r"[\p{Lm}\p{Lo}]",
    "m": r"\p{M}",
    "n": r"\p{N}",
    "s": r"\s",
}
# A letter or number that each version brought, newest first.
NEWEST = {
    "18.0": "\U0003d000",
    "17.0": "\U00011db0",
    "16.0": "\U000105c0",
    "15.1": "\U0002ebf0",
    "15.0": "\U00011f04",
}
Matching = Callable[[str], str]  # the characters of TEXT that an expression matches


def by_regex(expression: str) -> str:
    """Ask the `regex` module."""
    return "".join(regex.findall(expression, TEXT))


def by_tiktoken(expression: str) -> str:
    """Ask tiktoken, which drops text that no pre-token covers."""
    ranks = {bytes([value]): value for value in range(256)}
    encoding = tiktoken.Encoding(
        "bytes", pat_str=expression, mergeable_ranks=ranks, special_tokens={}
    )
    return bytes(encoding.encode_ordinary(TEXT)).decode()


def by_tokenizers(expression: str) -> str:
    """Ask tokenizers."""
    splitter = pre_tokenizers.Split(Regex(expression), "removed", invert=True)
    return "".join(piece for piece, _ in splitter.pre_tokenize_str(TEXT))


def runs(matching: Matching) -> str:
    """Return the classes of all code points, as runs."""
    letters = ["o"] * CODE_POINTS
    for letter, expression in CLASSES.items():
        for character in matching(expression):
            letters[ord(character)] = letter
    lengths = ((letter, len(list(group))) for letter, group in groupby(letters))
    return "".join(f"{length if length > 1 else ''}{letter}" for letter, length in lengths)


def unicode_version(matching: Matching) -> str:
    """Return the Unicode version of a package, told by when characters came to be."""
    known = matching(r"[\p{L}\p{N}]")
    return next(version for version, character in NEWEST.items() if character in known)


def write(version: str, matching: Matching) -> None:
    """Write the table of a version, which the package that is asked has to have."""
    found = unicode_version(matching)
    if found != version:
        raise SystemExit(f"{matching.__name__}: Unicode {found}, but {version} is needed")
    head = f"# Classes of code points in Unicode {version}, from scripts/make_unicode_classes.py."
    lines = "\n".join(wrap(runs(matching), 98))
    (FOLDER / f"unicode_{version}.txt").write_text(f"{head}\n{lines}\n", encoding="ascii")


def main() -> None:
    """Write the tables."""
    if runs(by_tiktoken) != runs(by_tokenizers):
        raise SystemExit("tiktoken and tokenizers differ: they need tables of their own")
    write("16.0", by_tiktoken)
    write("18.0", by_regex)


if __name__ == "__main__":
    main()
