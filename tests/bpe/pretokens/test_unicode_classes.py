"""The table of classes against the `regex` module, for every code point."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import regex

from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.unicode_classes import code_point_classes

ROOT = Path(__file__).parents[3]
PROPERTIES = {
    unicode_classes.UPPERCASE: r"[\p{Lu}\p{Lt}]",
    unicode_classes.LOWERCASE: r"\p{Ll}",
    unicode_classes.OTHER_LETTER: r"[\p{Lm}\p{Lo}]",
    unicode_classes.MARK: r"\p{M}",
    unicode_classes.NUMBER: r"\p{N}",
    unicode_classes.WHITE_SPACE: r"\s",
    unicode_classes.OTHER: r"[^\s\p{L}\p{M}\p{N}]",
}


@pytest.mark.pinned_regex
def test_every_code_point_has_the_class_of_its_properties() -> None:
    classes = code_point_classes()
    assert (classes.shape, classes.dtype) == ((0x110000,), np.uint8)
    for number, expression in PROPERTIES.items():
        members = np.flatnonzero(classes == number)
        text = "".join(chr(c) for c in members if not 0xD800 <= c < 0xE000)
        assert regex.fullmatch(f"{expression}*", text), expression


@pytest.mark.pinned_regex
def test_the_generator_makes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llmgpu" / "bpe" / "pretokens"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "scripts" / "make_unicode_classes.py"), run_name="__main__")
    shipped = Path(unicode_classes.__file__).with_suffix(".txt")
    assert (folder / "unicode_classes.txt").read_bytes() == shipped.read_bytes()
