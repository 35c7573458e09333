"""Composed text against Hugging Face tokenizers, from which the tables come."""

from __future__ import annotations

import re
import runpy
import time
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import NFC, NFD

from llmgpu.text import nfc
from llmgpu.text.nfc import normalize, starts_unit
from tests.conftest import examples
from tests.reference.characters import CHARACTERS

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "llmgpu" / "text" / "nfc.txt").read_text(encoding="ascii")
HANGUL = [chr(c) for c in (0x1100, 0x1112, 0x1161, 0x1175, 0x11A7, 0x11A8, 0x11C2, 0xAC00, 0xAC01)]


@cache
def composing() -> list[str]:
    """Return the characters that change others or are changed, but for syllables of Hangul."""
    # Python knows more characters than tokenizers, which must leave the others as they are.
    whole = [
        c for c in CHARACTERS if unicodedata.normalize("NFD", c) != c and not "가" <= c <= "힣"
    ]
    parts = sorted({*whole, *unicodedata.normalize("NFD", "".join(whole))})
    return parts + [c for c in CHARACTERS if unicodedata.combining(c)]


# Characters that take part in composing, often next to each other, and any others.
TEXTS = st.deferred(
    lambda: st.text(st.sampled_from(composing() + HANGUL * 20) | st.characters(codec="utf-8"))
)

(VERSION,) = re.findall(r"as tokenizers ([\d.]+) has them", TABLES)
pytestmark = pytest.mark.skipif(
    tokenizers.__version__ != VERSION,
    reason=f"compares with tokenizers {VERSION}, here is {tokenizers.__version__}",
)

compose, decompose = NFC().normalize_str, NFD().normalize_str


@pytest.mark.slow
def test_every_code_point_alone_and_after_a_letter() -> None:
    # An ASCII character takes no part in what comes before it.
    for before in ("\n", "\na"):
        text = before + before.join(CHARACTERS)
        assert normalize(text).split("\n") == compose(text).split("\n")
    for character in (*composing(), *HANGUL):
        assert normalize(character) == compose(character)


@settings(max_examples=examples(2000))
@given(TEXTS, st.sampled_from([0, nfc._LONG]))
def test_any_text(text: str, long: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nfc, "_LONG", long)
        composed = normalize(text)
        assert composed == compose(text)
        assert normalize(composed) == composed


@pytest.mark.parametrize("marks", ["\u0301\u0316" * 50_000, "\u0301" * 50_000 + "\u0316" * 50_000])
def test_a_long_run_of_marks_takes_little_time(marks: str) -> None:
    begun = time.process_time()
    composed = normalize(f"e{marks}e")
    assert time.process_time() - begun < 5
    assert composed == compose(f"e{marks}e")


@settings(max_examples=examples(2000))
@given(TEXTS, TEXTS)
def test_text_may_be_cut_where_a_unit_starts(before: str, after: str) -> None:
    if after and starts_unit(after[0]):
        assert compose(before + after) == compose(before) + compose(after)


@pytest.mark.slow
def test_characters_that_compose_with_others_start_no_unit() -> None:
    composed = [c for c in CHARACTERS if compose(c) == c != decompose(c)]
    assert not any(starts_unit(second) for c in composed for second in decompose(c)[1:])
    assert all(starts_unit(c) for c in "aé漢가\uf900😀\udc80") and not starts_unit("\u0301")


def test_lone_surrogates_stay() -> None:
    assert normalize("e\udcc3\u0301e\u0301\udc80") == "e\udcc3\u0301\u00e9\udc80"


def test_composed_text_is_not_copied() -> None:
    text = "plain \u00e9 漢字 한국어 😀" * 10
    assert normalize(text) is text


@pytest.mark.slow
def test_the_generator_makes_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llmgpu" / "text"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "scripts" / "make_nfc_tables.py"), run_name="__main__")
    assert (folder / "nfc.txt").read_text(encoding="ascii") == TABLES
