"""Tokens as people see them: each line and each colour taken apart."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.vocabulary.spelling import readable
from llmgpu.progress import no_progress
from llmgpu.text.corpus import corpus_from_bytes
from llmgpu.tokens.ids import ShownTokens, Style
from llmgpu.tokens.tokenizing import encode_into
from tests.bpe.encoding.test_special_encoding import SPECIAL, vocabulary

DOCUMENTS = ["ab abab\n\tab\\", "", f"a{SPECIAL[0]}☃\x1b[1m", "b"]


def shown(path: Path, style: Style, slice_bytes: int) -> str:
    encoder = open_encoder(
        vocabulary(), NUMPY, slice_bytes, special=SpecialOptions(allowed=("all",))
    )
    with ShownTokens(path, vocabulary(), style) as sink:
        text = corpus_from_bytes([document.encode() for document in DOCUMENTS])
        encode_into(sink, encoder, text, no_progress)
    return path.read_text(encoding="utf-8")


def tokens_of(document: str) -> list[tuple[int, str]]:
    encoder = open_encoder(vocabulary(), NUMPY, special=SpecialOptions(allowed=("all",)))
    ids = [i for piece in encoder.encode(corpus_from_bytes(document.encode())) for i in piece.ids]
    return [(int(i), readable(vocabulary().tokens[i])) for i in ids]


@pytest.mark.parametrize("slice_bytes", [4, 1 << 16])
def test_a_line_for_each_token_and_an_empty_one_between_documents(
    tmp_path: Path, slice_bytes: int
) -> None:
    expected = [
        "".join(f"{i}\t{text}\n" for i, text in tokens_of(document)) for document in DOCUMENTS
    ]
    assert shown(tmp_path / "o", "lines", slice_bytes) == "\n".join(expected)


@pytest.mark.parametrize("slice_bytes", [4, 1 << 16])
def test_borders(tmp_path: Path, slice_bytes: int) -> None:
    text = shown(tmp_path / "o", "borders", slice_bytes)
    assert "\x1b" not in text
    first, second, third, last = text.split("\n\n")
    assert first.replace("│\n", "│").split("│")[:-1] == [t for _, t in tokens_of(DOCUMENTS[0])]
    assert "\\n│\n\\t" in first and second == ""
    assert third.split("│")[:-1] == [t for _, t in tokens_of(DOCUMENTS[2])]
    assert last == "b│\n"


def test_colours_change_from_token_to_token_and_nothing_else_does(tmp_path: Path) -> None:
    text = shown(tmp_path / "o", "colours", 1 << 16)
    found = re.findall(r"\x1b\[([0-9;]+)m([^\x1b]*)\x1b\[0m", text)
    assert [spelled for _, spelled in found] == [t for d in DOCUMENTS for _, t in tokens_of(d)]
    grounds = [colours for colours, _ in found]
    assert all(one != other for one, other in pairwise(grounds))
    of_special = {colours for colours, spelled in found if spelled in SPECIAL}
    of_others = {colours for colours, spelled in found if spelled not in SPECIAL}
    assert of_special and not of_special & of_others
    assert "\\x1b[1m" in re.sub(r"\x1b\[[0-9;]+m", "", text)
