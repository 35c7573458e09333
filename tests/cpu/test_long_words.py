"""Long words in windows, by the CPU engine, against the plain loop."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llmgpu.bpe.encoding.encoder_c import CSliceEncoder
from llmgpu.bpe.pretokens import blocks, custom_regex
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu import build, library
from llmgpu.cpu.library import load
from tests.bpe.encoding.test_long_words import WORDS, by_ranks, random_words, trained
from tests.bpe.encoding.test_matching import (
    BYTES,
    TOKENS,
    make_vocabulary,
    merge_vocabularies,
)
from tests.bpe.encoding.test_matching import rank_vocabularies as any_order
from tests.conftest import examples
from tests.reference import encoding as reference

HAS_COMPILER = shutil.which(os.environ.get("CC", "cc").split()[0]) is not None
pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")


@pytest.fixture(scope="module", autouse=True)
def small_windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The engine with windows of a few bytes for words that are not searched, of 49 or more."""
    path: Path = tmp_path_factory.mktemp("engine") / "engine.so"
    build.build(path, ["-O0", "-DMOST_AT_ONCE=48", "-DWINDOW=16"])
    loaded, reason = load(path)
    assert loaded is not None, reason
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "load", lambda path: (loaded, ""))
        patch.setenv(library.VARIABLE, "c")
        uncached = blocks.make_rule.__wrapped__
        for module in (blocks, custom_regex):
            patch.setattr(module, "make_rule", uncached)
        yield


@st.composite
def ranks_in_any_order(draw: st.DrawFn) -> Vocabulary:
    """Every byte, then tokens that may rank before their parts."""
    tokens = draw(st.permutations(draw(TOKENS)))
    return make_vocabulary([*BYTES, *tokens], [], ignore_merges=True)


def encode(vocabulary: Vocabulary, word: bytes) -> list[int]:
    ids = CSliceEncoder(vocabulary).encode_document(word)
    assert ids is not None
    return ids.tolist()


@settings(deadline=None, max_examples=examples(100))
@given(
    trained() | by_ranks() | merge_vocabularies() | any_order() | ranks_in_any_order(),
    WORDS,
    st.integers(2, 9),
)
def test_windows_of_words(vocabulary: Vocabulary, word: bytes, times: int) -> None:
    word *= times
    if vocabulary.missing_bytes:
        vocabulary = replace(vocabulary, unknown_token=0)
    assume(not (vocabulary.ignore_merges and word in vocabulary.tokens))
    assert encode(vocabulary, word) == reference.bpe_encode(vocabulary, word)


def test_windows_give_the_ids_of_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many words, against the engine that merges them whole."""
    rng = random.Random(1)
    cases = [random_words(rng, 20) for _ in range(examples(300))]
    found = [encode_all(*case) for case in cases]
    whole, reason = load(build.LIBRARY)
    assert whole is not None, reason
    monkeypatch.setattr(library, "load", lambda path: (whole, ""))
    for case, ids in zip(cases, found, strict=True):
        assert encode_all(*case) == ids, case[0].tokens[256:]


def encode_all(vocabulary: Vocabulary, words: list[bytes]) -> list[list[int]]:
    encoder = CSliceEncoder(vocabulary)
    return [ids.tolist() for word in words if (ids := encoder.encode_document(word)) is not None]


def test_many_ids_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tuple(bytes([byte]) for byte in range(256))
    none = np.empty((0, 3), np.uint32)
    vocabulary = Vocabulary(tokens, none, "none", r"[\x00-\xff]+", match="bpe")
    monkeypatch.setattr(library, "MANY_IDS", 100)
    for size in (50, 150):
        text = bytes(range(50)) * (size // 50)
        ids = CSliceEncoder(vocabulary).encode_document(text)
        assert ids is not None and ids.base is None and ids.tolist() == list(text)
