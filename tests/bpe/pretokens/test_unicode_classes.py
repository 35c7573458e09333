"""The tables of classes against the packages that they are of, for every code point."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np
import pytest
import regex
import tiktoken
from tokenizers import Regex, pre_tokenizers

from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.unicode_classes import VERSIONS, code_point_classes
from llmgpu.errors import LlmgpuError
from tests.bpe.patterns import start_mask
from tests.reference.characters import CHARACTERS

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


def by_regex(expression: str) -> set[str]:
    return set(regex.findall(expression, CHARACTERS))


def by_tiktoken(expression: str) -> set[str]:
    """What tiktoken keeps of the text: it drops what the expression does not match."""
    ranks = {bytes([value]): value for value in range(256)}
    encoding = tiktoken.Encoding("x", pat_str=expression, mergeable_ranks=ranks, special_tokens={})
    return set(bytes(encoding.encode_ordinary(CHARACTERS)).decode())


def by_tokenizers(expression: str) -> set[str]:
    splitter = pre_tokenizers.Split(Regex(expression), "removed", invert=True)
    return {character for piece, _ in splitter.pre_tokenize_str(CHARACTERS) for character in piece}


@pytest.mark.parametrize(
    ("version", "package", "matching"),
    [
        pytest.param("16.0", "tiktoken", by_tiktoken, marks=pytest.mark.slow),
        pytest.param("16.0", "tokenizers", by_tokenizers, marks=pytest.mark.slow),
        pytest.param("18.0", "regex", by_regex, marks=pytest.mark.pinned_regex),
    ],
)
def test_every_code_point_has_the_class_that_the_package_gives_it(
    version: str, package: str, matching: Callable[[str], set[str]]
) -> None:
    classes = code_point_classes(version)
    assert (classes.shape, classes.dtype) == ((0x110000,), np.uint8)
    for number, expression in PROPERTIES.items():
        members = np.flatnonzero(classes == number)
        ours = {chr(c) for c in members.tolist() if not 0xD800 <= c < 0xE000}
        moved = sorted(f"U+{ord(c):04X}" for c in ours ^ matching(expression))
        assert not moved, (
            f"{package} {installed(package)} does not have the classes of Unicode {version}: "
            f"{len(moved)} code points differ in {expression}, {moved[:5]}"
        )


def test_the_versions_differ_where_unicode_did() -> None:
    older, newer = (code_point_classes(version) for version in VERSIONS)
    changed = np.flatnonzero(older != newer)
    # All but one were not assigned; U+0295 was a small letter.
    assert (older[changed] == unicode_classes.OTHER).sum() == len(changed) - 1
    assert (older[0x295], newer[0x295]) == (
        unicode_classes.LOWERCASE,
        unicode_classes.OTHER_LETTER,
    )
    with pytest.raises(LlmgpuError, match=r"no character classes of Unicode '17.0'; .* 16.0"):
        code_point_classes("17.0")


def test_a_pattern_has_the_classes_of_its_version() -> None:
    text = np.frombuffer("x\u0558y".encode(), np.uint8)
    begin = np.zeros(1, np.int64)
    assert start_mask(text, "gpt2", begin).tolist() == [True, True, False, True]
    newer = get_pattern("gpt2", "18.0")
    assert start_mask(text, newer, begin).tolist() == [True, False, False, False]
    assert {p.name for p in PATTERNS.values() if p.unicode is None} == {"class", "none"}
    assert get_pattern("class", "18.0") is PATTERNS["class"]
    with pytest.raises(LlmgpuError, match=r"no character classes of Unicode '15.0'"):
        get_pattern("class", "15.0")


@pytest.mark.slow
@pytest.mark.pinned_regex
def test_the_generator_makes_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llmgpu" / "bpe" / "pretokens"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "scripts" / "make_unicode_classes.py"), run_name="__main__")
    for version in VERSIONS:
        name = f"unicode_{version}.txt"
        shipped = Path(unicode_classes.__file__).with_name(name)
        assert (folder / name).read_bytes() == shipped.read_bytes()
