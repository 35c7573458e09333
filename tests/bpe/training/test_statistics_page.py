"""The page of a vocabulary: valid, whole and escaped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from llmgpu.bpe.training.statistics import draw_vocabulary, lengths_of
from tests.bench.test_page import NASTY, Page, Tags
from tests.bpe.encoding.test_special_encoding import SPECIAL, vocabulary


def test_page_is_valid_and_loads_nothing() -> None:
    nasty = replace(vocabulary(), training={})
    drawn = draw_vocabulary(NASTY, nasty, {"pattern": NASTY, "tokens": 272})
    page, tags = Page(drawn), Tags()
    tags.feed(drawn)
    assert not tags.addresses and not tags.tags & {"script", "link", "img", "iframe"}
    assert [node.text for node in page.all("h2")] == ["Lengths", "Scripts", "Longest tokens"]
    for text in SPECIAL:
        assert text in page.text
    counts = Counter(lengths_of(nasty))
    values = [node.text for node in page.all("td", "number")]
    assert f"{counts['1']:,} ({100 * counts['1'] / nasty.size:.1f} %)" in values
    longest = max(len(nasty.tokens[number]) for number in nasty.ordinary_ids)
    assert page.all("tbody")[2][0][2].text == str(longest)


def test_bytes_a_token_are_drawn() -> None:
    rates = [(0, 1.0), (256, 2.5)]
    page = Page(draw_vocabulary("v", vocabulary(), {}, rates, "a.txt"))
    assert page.all("h2")[0].text == "Bytes per token" and "in a.txt" in page.text
    assert [node.text for node in page.all("td", "number")][:2] == ["1.000", "2.500"]
    assert [node.get("width") for node in page.all("rect")][:2] == ["40.00%", "100.00%"]
