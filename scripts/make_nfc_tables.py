"""Write llmgpu/text/nfc.txt: what Hugging Face tokenizers know about composing characters.

Python's own tables differ from one Python to the next, and vocabularies that normalize come from
tokenizers. So the installed tokenizers is asked, one code point after the other:

- A canonical decomposition is what NFD makes of a character.
- A combining class shows in how two marks are reordered. Which values there are is Unicode's, and
  one mark of each class, from Python's table, serves as the yardstick.
- A character composes if NFC puts it together again from its decomposition.

Run it from the top of the repository; the output is the same for the same tables in tokenizers.
"""

from __future__ import annotations

import unicodedata
from itertools import groupby, pairwise
from pathlib import Path
from textwrap import wrap

import tokenizers
from tokenizers import normalizers

TARGET = Path("llmgpu/text/nfc.txt")
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)  # composed by arithmetic
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
LOWEST, HIGHEST = "\u0334", "\u0345"  # marks of the classes 1 and 240

nfd = normalizers.NFD().normalize_str
nfc = normalizers.NFC().normalize_str

HEADER = """\
# Canonical decompositions and combining classes, as tokenizers {version} has them.
# Made by scripts/make_nfc_tables.py: do not edit. Code points are hexadecimal and without leading
# zeros; Hangul syllables are left out, since they follow by arithmetic.

# Marks: first code point, number of code points that follow it and share its class, class.
{classes}

# Characters that NFC composes: the character, then its full decomposition.
{composed}

# Characters that NFC replaces by their full decomposition and leaves decomposed.
{decomposed}
"""


def decompositions() -> dict[int, str]:
    """Return the full decomposition of every character that has one."""
    found = {c: nfd(chr(c)) for c in CODE_POINTS if c not in HANGUL_SYLLABLES}
    return {c: text for c, text in found.items() if text != chr(c)}


def combining_classes(decomposed: dict[int, str]) -> dict[int, int]:
    """Return the combining class of every character that has one other than 0."""
    whole = [c for c in CODE_POINTS if c not in decomposed and c not in HANGUL_SYLLABLES]
    marks = [c for c in whole if is_mark(chr(c))]
    yardstick: dict[int, str] = {}
    for mark in marks:
        yardstick.setdefault(unicodedata.combining(chr(mark)), chr(mark))
    yardstick.pop(0, None)
    in_order = [yardstick[value] for value in sorted(yardstick)]
    for low, high in pairwise(in_order):
        assert keeps_order(low, high) and not keeps_order(high, low)
    return {mark: class_of(chr(mark), yardstick) for mark in marks}


def is_mark(character: str) -> bool:
    """Whether a character changes places with a mark of the lowest or of the highest class."""
    return not (keeps_order(HIGHEST, character) and keeps_order(character, LOWEST))


def keeps_order(first: str, second: str) -> bool:
    return nfd(f"a{first}{second}") == f"a{first}{second}"


def class_of(mark: str, yardstick: dict[int, str]) -> int:
    """Return the class whose yardstick never changes places with a mark."""
    same = (v for v, m in yardstick.items() if keeps_order(mark, m) and keeps_order(m, mark))
    return next(same)


def write(lines: list[str]) -> str:
    return "\n".join(wrap(" ".join(lines), 96, break_on_hyphens=False))


def class_runs(classes: dict[int, int]) -> list[str]:
    """Return runs of neighbours with the same class, as FIRST+MORE=CLASS."""
    runs = groupby(enumerate(sorted(classes)), lambda at: (at[1] - at[0], classes[at[1]]))
    members = [([c for _, c in run], value) for (_, value), run in runs]
    return [f"{run[0]:x}+{len(run) - 1:x}={value:x}" for run, value in members]


def spell(decomposed: dict[int, str]) -> list[str]:
    parts = {c: "+".join(f"{ord(part):x}" for part in text) for c, text in decomposed.items()}
    return [f"{c:x}={text}" for c, text in parts.items()]


decomposed = decompositions()
composed = {c: text for c, text in decomposed.items() if nfc(text) == chr(c)}
excluded = {c: text for c, text in decomposed.items() if c not in composed}
TARGET.write_text(
    HEADER.format(
        version=tokenizers.__version__,
        classes=write(class_runs(combining_classes(decomposed))),
        composed=write(spell(composed)),
        decomposed=write(spell(excluded)),
    )
)
