"""Write llmgpu/text/nfc.txt: the characters that take part in NFC of Hugging Face tokenizers.

Python's own tables differ from one Python to the next, and vocabularies that normalize come from
tokenizers. So the installed tokenizers is asked, one code point after the other:

- A canonical decomposition is what NFD makes of a character.
- A character composes if NFC puts it together again from its decomposition.
- A mark changes places with another mark.

Run it from the top of the repository; the output is the same for the same tables in tokenizers.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from pathlib import Path
from textwrap import wrap

import tokenizers
from tokenizers import normalizers

TARGET = Path("llmgpu/text/nfc.txt")
CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
LOWEST, HIGHEST = "\u0334", "\u0345"  # marks of the classes 1 and 240

nfd = normalizers.NFD().normalize_str
nfc = normalizers.NFC().normalize_str

HEADER = """\
# Characters that take part in composing, as tokenizers {version} has them.
# Made by scripts/make_nfc_tables.py: do not edit. A run is its first code point, and the number of
# code points that follow it, both hexadecimal.

# Characters that NFC may change or move, or compose with an earlier character.
{changeable}

# Characters that a later mark or letter may join.
{bases}
"""


def is_mark(character: str) -> bool:
    """Whether a character changes places with a mark of the lowest or of the highest class."""
    return not (keeps_order(HIGHEST, character) and keeps_order(character, LOWEST))


def keeps_order(first: str, second: str) -> bool:
    return nfd(f"a{first}{second}") == f"a{first}{second}"


def write(characters: Collection[str]) -> str:
    """Return runs of neighbours, as FIRST+MORE."""
    codes = sorted(map(ord, characters))
    runs = ([c for _, c in run] for _, run in groupby(enumerate(codes), lambda at: at[1] - at[0]))
    spelled = (f"{run[0]:x}+{len(run) - 1:x}" for run in runs)
    return "\n".join(wrap(" ".join(spelled), 96, break_on_hyphens=False))


decomposed = {c: text for c in CHARACTERS if (text := nfd(c)) != c}
excluded = {c for c, text in decomposed.items() if nfc(text) != c}
marks = {c for c in CHARACTERS if c not in decomposed and is_mark(c)}
# A decomposition may have more than two characters. All characters but the last compose first, then
# their composition and the last character.
composed = {c: text for c, text in decomposed.items() if c not in excluded}
seconds = {text[-1] for text in composed.values()}
firsts = {nfc(text[:-1]) for text in composed.values()}
TARGET.write_text(
    HEADER.format(
        version=tokenizers.__version__,
        changeable=write(marks | excluded | seconds),
        bases=write({*firsts, *composed}),
    )
)
