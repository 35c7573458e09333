"""The table of models, with files that need no package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.models import constructed_rows, published_rows, row


@pytest.fixture
def cells(tmp_path: Path) -> dict[str, list[str]]:
    rows = constructed_rows(tmp_path / "npm", tmp_path)
    found = {model.names: model for model in rows if "Llama" not in model.origin}
    return {name: row(found[name], 40) for name in ("Pythia", "BERT")}


def test_rows(cells: dict[str, list[str]], tmp_path: Path) -> None:
    assert cells["Pythia"][2:] == ["`gpt2`, by merges, NFC", "tokenizers", "0"]
    assert cells["BERT"][2] == "refused: model 'WordPiece' is not supported; supported: BPE"
    gemma = next(m for m in published_rows(tmp_path) if m.names == "Gemma 3")
    assert row(gemma, 1)[2] == "the file is missing"
