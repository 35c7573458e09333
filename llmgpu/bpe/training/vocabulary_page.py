"""A vocabulary as one page of HTML: what its tokens are, and what they make of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from llmgpu.bpe.training.statistics import lengths_of, scripts_of
from llmgpu.bpe.vocabulary.spelling import readable
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.charts import (
    Bar,
    Column,
    draw_bars,
    draw_facts,
    draw_page,
    draw_table,
    escape_text,
    folded,
)
from llmgpu.input_files import number_of

_MOST_SCRIPTS = 15  # in the chart; the others are added up
_LONGEST = 40  # tokens in the table


def draw_vocabulary(
    name: str,
    vocabulary: Vocabulary,
    facts: Mapping[str, object],
    rates: Sequence[tuple[int, float]] = (),
    text: str = "",
) -> str:
    """Return the page.

    name: of the vocabulary. facts: what to say of it. rates: bytes per token of a text by the
    number of merges; text: what that text was.
    """
    lines = draw_facts([(key, str(value)) for key, value in facts.items()])
    if rates:
        lines += [
            "<h2>Bytes per token</h2>",
            f"<p>How long tokens are on average in {escape_text(text)}, with the first merges "
            "alone.</p>",
            *_rate_bars(rates),
        ]
    lengths, scripts = Counter(lengths_of(vocabulary)), Counter(scripts_of(vocabulary))
    ordered = sorted(lengths.items(), key=_by_length)
    largest, others = scripts.most_common(_MOST_SCRIPTS), scripts.most_common()[_MOST_SCRIPTS:]
    if others:
        rest = sum(count for _, count in others)
        largest.append((f"{len(others)} other scripts", rest))
    lines += [
        "<h2>Lengths</h2>",
        *_count_bars(ordered, vocabulary.size, "tokens by their length in bytes"),
        "<h2>Scripts</h2>",
        *_count_bars(largest, vocabulary.size, "tokens by the script of their first letter"),
        "<h2>Longest tokens</h2>",
        *_longest(vocabulary),
    ]
    return draw_page(f"Vocabulary {name}", f"llmgpu: vocabulary {name}", lines)


def _by_length(group: tuple[str, int]) -> tuple[int, str]:
    first = group[0].split(" ")[0]
    return (int(first), "") if first.isdecimal() else (1 << 62, first)


def _count_bars(groups: Sequence[tuple[str, int]], size: int, caption: str) -> list[str]:
    bars = [
        Bar(name, "own", f"{count:,} ({100 * count / size:.1f} %)", float(count))
        for name, count in groups
    ]
    return draw_bars(bars, caption)


def _rate_bars(rates: Sequence[tuple[int, float]]) -> list[str]:
    bars = [Bar(f"{count:,} merges", "own", f"{rate:.3f}", rate) for count, rate in rates]
    return draw_bars(bars, "bytes per token: more is better")


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
