"""The table of models, with files that need no package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.models import ROOT, cells, constructed_rows, documents, main, published_rows, row


@pytest.fixture
def found(tmp_path: Path) -> dict[str, list[str]]:
    rows = constructed_rows(tmp_path / "npm", tmp_path)
    models = {model.names: model for model in rows if "Llama" not in model.origin}
    timed = documents()[:3]
    return {name: cells(row(models[name], 40, timed)) for name in ("Pythia", "BERT")}


def test_rows(found: dict[str, list[str]], tmp_path: Path) -> None:
    assert found["Pythia"][2:5] == ["`gpt2`, by merges, NFC", "tokenizers", "0"]
    assert all(float(rate) > 0 for rate in found["Pythia"][5:])
    assert found["BERT"][3:] == [""] * 4
    assert found["BERT"][2] == "refused: model 'WordPiece' is not supported; supported: BPE"
    gemma = next(m for m in published_rows(tmp_path) if m.names == "Gemma 3")
    assert row(gemma, 1)["read as"] == "the file is missing"


def test_the_table_of_a_record(
    found: dict[str, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = tmp_path / "record.json"
    names = ("model", "file", "read as", "ids of", "differ", "MB/s", "MB/s of the library")
    texts, rates = found["Pythia"][:5], map(float, found["Pythia"][5:])
    rows = [dict(zip(names, [*texts, *rates], strict=True))]
    record.write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr("sys.argv", ["models", "--from", str(record)])
    main()
    assert capsys.readouterr().out.splitlines()[2:] == [f"| {' | '.join(found['Pythia'])} |"]


def test_the_table_of_the_guide_is_that_of_the_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ROOT / "docs/recorded/models/two-cpu-cores.json"
    monkeypatch.setattr("sys.argv", ["models", "--from", str(record)])
    main()
    assert capsys.readouterr().out in (ROOT / "docs/other-tools.md").read_text("utf-8")
