"""Statistics of a vocabulary: tokens by script and length, bytes per token, and an HTML page."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.training.merge_host import apply_merges
from llmgpu.bpe.training.symbols import seed_symbols
from llmgpu.bpe.vocabulary.building import byte_ranks, listed_merges
from llmgpu.bpe.vocabulary.spelling import readable
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.charts import (
    Column,
    draw_bars,
    draw_facts,
    draw_page,
    draw_table,
    element,
    folded,
)
from llmgpu.input_files import number_of
from llmgpu.progress import Progress, no_progress

MOST_LENGTH = 16  # tokens of more bytes are one group
PARTS, DIGITS, SPACE, SIGNS = "parts of characters", "digits", "white space", "punctuation, symbols"
SPECIAL = "special tokens"


# First words of those letter names in Unicode that do not begin with a script: the letter belongs
# to several scripts, or another word of the name is the script.
_NO_SCRIPTS = {
    *("", "Combining", "Double", "Feminine", "Masculine", "Mathematical", "Micro", "Modifier"),
    "Variation",
}
_WIDTHS = ("FULLWIDTH", "HALFWIDTH")


def scripts_of(vocabulary: Vocabulary) -> list[str]:
    """Return the script of each token, by id."""
    return _groups(vocabulary, script_of)


def script_of(token: bytes) -> str:
    """Return the script of a token's first letter, as Unicode names letters: Latin, Cyrillic, CJK.

    A token without letters and marks gets the name of a group: PARTS (incomplete characters) if it
    is not valid UTF-8, else DIGITS, SPACE for white space, or SIGNS for punctuation and symbols.
    """
    text = token.decode(errors="ignore")
    kinds = {unicodedata.category(character)[0]: character for character in reversed(text)}
    if "L" in kinds or "M" in kinds:
        return _script_of_letter(kinds.get("L") or kinds["M"])
    if len(text.encode()) < len(token):
        return PARTS
    if "N" in kinds:
        return DIGITS
    return SPACE if text.isspace() else SIGNS


@cache
def _script_of_letter(letter: str) -> str:
    words = unicodedata.name(letter, "").split(" ")
    name = words[words[0] in _WIDTHS and len(words) > 1].split("-")[0].capitalize()
    if name == "Cjk":
        return "CJK"
    return "other letters" if name in _NO_SCRIPTS else name


def lengths_of(vocabulary: Vocabulary) -> list[str]:
    """Return the group of each token by its length, in the order of ids; see `length_group`."""
    return _groups(vocabulary, lambda token: length_group(len(token)))


def _groups(vocabulary: Vocabulary, group_of: Callable[[bytes], str]) -> list[str]:
    special = set(vocabulary.special_tokens.values())
    return [
        SPECIAL if number in special else group_of(token)
        for number, token in enumerate(vocabulary.tokens)
    ]


def length_group(length: int) -> str:
    """Return the group of a length in bytes: "0 (no token)", "1", ..., "16", "17 or more"."""
    if not length:
        return "0 (no token)"
    return str(length) if length <= MOST_LENGTH else f"{MOST_LENGTH + 1} or more"


def bytes_a_token(
    vocabulary: Vocabulary, words: DistinctWords, progress: Progress = no_progress
) -> Iterator[tuple[int, float]]:
    """Yield (n, bytes per token if only the first n merges apply) for several n.

    The numbers n are 2^k - 256, ascending, and then the number of all merges. words: words of a
    text, cut by the vocabulary's pattern. A vocabulary with another match rule than "bpe" yields
    nothing.

    Raises VocabularyError for merges that can't be made one after the other, see `seed_symbols`.
    """
    if vocabulary.match != "bpe":
        return
    if not len(vocabulary.merges):
        vocabulary = replace(vocabulary, merges=listed_merges(vocabulary), ignore_merges=True)
    ranks = byte_ranks("hf")
    symbols = seed_symbols(vocabulary, ranks)
    left = symbols.words(words, ranks)
    steps: NDArray[np.int64] = (1 << np.arange(8, 31)) - 256
    done = 0
    for count in (*steps[steps < len(symbols.merges)].tolist(), len(symbols.merges)):
        left = apply_merges(left, symbols.merges[done:count], progress)
        done = count
        yield count, words.text_bytes / left.total


_LONGEST = 40  # number of rows in the table of the longest tokens


def draw_vocabulary(
    name: str,
    vocabulary: Vocabulary,
    facts: Mapping[str, object],
    rates: Sequence[tuple[int, float]] = (),
    text: str = "",
) -> str:
    """Return the HTML page of a vocabulary.

    name: name of the vocabulary. facts: lines at the top of the page. rates: pairs of a number of
    merges and bytes per token of a text; text: a description of this text.
    """
    lines = draw_facts([(key, str(value)) for key, value in facts.items()])
    if rates:
        about = f"How long tokens are on average in {text}, with the first merges alone."
        rows = [(f"{count:,} merges", f"{rate:.3f}", rate) for count, rate in rates]
        lines += [element("h2", text="Bytes per token"), element("p", text=about)]
        lines += draw_bars(("merges", "bytes per token"), rows)
    # Count the tokens by length and by script.
    lengths, scripts = Counter(lengths_of(vocabulary)), Counter(scripts_of(vocabulary))
    groups = (*map(length_group, range(MOST_LENGTH + 2)), SPECIAL)
    ordered = [(group, lengths[group]) for group in groups if lengths[group]]
    # Append a section for each chart and table.
    for title, head, counts in (
        ("Lengths", "length in bytes", ordered),
        ("Scripts", "script of the first letter", scripts.most_common()),
    ):
        counted = [
            (name, f"{count:,} ({100 * count / vocabulary.size:.1f} %)", count)
            for name, count in counts
        ]
        lines += [element("h2", text=title), *draw_bars((head, "tokens"), counted)]
    lines += [element("h2", text="Longest tokens"), *_longest(vocabulary)]
    return draw_page(f"Vocabulary {name}", f"llmgpu: vocabulary {name}", lines)


def _longest(vocabulary: Vocabulary) -> list[str]:
    special = set(vocabulary.special_tokens.values())
    ids = [number for number in range(vocabulary.size) if number not in special]
    ids = sorted(ids, key=lambda number: -len(vocabulary.tokens[number]))[:_LONGEST]
    tokens = [vocabulary.tokens[number] for number in ids]
    columns = [
        Column("token", "name", [readable(token).replace(" ", "␣") for token in tokens]),
        Column("id", "number", [*map(str, ids)]),
        Column("bytes", "number", [str(len(token)) for token in tokens]),
    ]
    special_tokens = [
        Column("special token", "name", [*vocabulary.special_tokens]),
        Column("id", "number", [*map(str, vocabulary.special_tokens.values())]),
    ]
    named = number_of(len(vocabulary.special_tokens), "special token")
    extra = folded(named, draw_table(special_tokens)) if vocabulary.special_tokens else []
    return [*draw_table(columns), *extra]
