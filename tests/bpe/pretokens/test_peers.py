"""Where every pattern cuts text with each code point, against tiktoken and Hugging Face tokenizers.

tokenizers tells where its pre-tokens begin. tiktoken gives ids only, so it is asked with the 256
bytes and all pairs of bytes as tokens, pairs across two characters first: what is cut or joined
otherwise has other ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from itertools import accumulate

import numpy as np
import pytest
import tiktoken
from numpy.typing import NDArray
from tokenizers import Regex, pre_tokenizers

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange.token_tables import HUGGINGFACE, TIKTOKEN
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.unicode_classes import VERSIONS, code_point_classes
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.patterns import start_mask
from tests.bpe.pretokens.test_pretoken_gpu import Marker

# Alone, between letters, after a space, after an apostrophe, doubled, among letters of upper and
# lower case, between digits, before a contraction, in white space.
NEIGHBOURS = "@\na@b @ '@ @@ @Aa A@z Z@@a a@A 1@2 @'s  @\n"
CHUNK = 1 << 15  # code points in a text
WITH_CLASSES = [name for name, pattern in PATTERNS.items() if pattern.unicode]
# Variants of cl100k differ from it in numbers and white space alone.
EVERY = ("gpt2", "cl100k", "o200k")
STEP = 16


def text_of(points: Sequence[int]) -> tuple[str, NDArray[np.int64]]:
    """The neighbourhoods of code points, and where the bytes of each begin."""
    parts = [NEIGHBOURS.replace("@", chr(c)) for c in points]
    lengths = [len(part.encode()) for part in parts]
    return "".join(parts), np.array([0, *accumulate(lengths)][:-1], np.int64)


def valid(points: Sequence[int]) -> list[int]:
    return [c for c in points if not 0xD800 <= c < 0xE000]


@cache
def edges() -> list[int]:
    """Code points at which a class begins or ends in some version."""
    found = [set(np.flatnonzero(np.diff(code_point_classes(name)))) for name in VERSIONS]
    return valid(sorted({int(c) + k for c in set().union(*found) for k in (0, 1)}))


def chunks(points: Sequence[int]) -> list[list[int]]:
    return [valid(points[k : k + CHUNK]) for k in range(0, len(points), CHUNK)]


PAIRS = sorted(
    (bytes([first, second]) for first in range(256) for second in range(256)),
    key=lambda pair: (0x80 <= pair[1] < 0xC0, pair[0] < 0x80, pair),
)
TOKENS = [*(bytes([value]) for value in range(256)), *PAIRS]


@cache
def encoding_of(pattern: str) -> tiktoken.Encoding:
    ranks = {token: rank for rank, token in enumerate(TOKENS)}
    return tiktoken.Encoding(
        "pairs", pat_str=TIKTOKEN[pattern], mergeable_ranks=ranks, special_tokens={}
    )


@cache
def encoder_of(pattern: str) -> Encoder:
    vocabulary = Vocabulary(
        tokens=tuple(TOKENS),
        merges=np.empty((0, 3), np.uint32),
        pattern=pattern,
        expression=PATTERNS[pattern].expression,
        match="bpe",
        ignore_merges=True,
    )
    return open_encoder(vocabulary, NUMPY)


def ids_by_tiktoken(text: str, pattern: str) -> NDArray[np.int64]:
    ids = encoding_of(pattern).encode_to_numpy(text, disallowed_special=())
    return np.asarray(ids, np.int64)


def ids_here(text: str, pattern: str) -> NDArray[np.int64]:
    pieces = encoder_of(pattern).encode(corpus_from_bytes(text.encode()))
    return np.concatenate([piece.ids for piece in pieces]).astype(np.int64)


def starts_by_tokenizers(text: str, pattern: str) -> NDArray[np.int64]:
    """Where pre-tokens begin, in characters."""
    splitter = pre_tokenizers.Split(Regex(HUGGINGFACE[pattern]), "isolated")
    pieces = splitter.pre_tokenize_str(text)
    return np.fromiter((begin for _, (begin, _) in pieces), np.int64, len(pieces))


def starts_here(text: str, pattern: str) -> NDArray[np.int64]:
    data = np.frombuffer(text.encode(), np.uint8)
    marks = start_mask(data, pattern, np.zeros(1, np.int64))
    is_character = data & 0xC0 != 0x80
    assert not marks[~is_character].any()
    return np.flatnonzero(marks[is_character])


def first_difference(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> int | None:
    """Return the first position at which two arrays differ, if any."""
    common = min(len(ours), len(theirs))
    unlike = np.flatnonzero(ours[:common] != theirs[:common])
    if len(unlike) == 0:
        return None if len(ours) == len(theirs) else common
    return int(unlike[0])


def compare_ids(points: Sequence[int], pattern: str) -> None:
    text, begins = text_of(points)
    ours, theirs = ids_here(text, pattern), ids_by_tiktoken(text, pattern)
    where = first_difference(ours, theirs)
    if where is not None:
        before = sum(len(TOKENS[i]) for i in theirs[:where].tolist())
        blame("tiktoken", pattern, points[int(np.searchsorted(begins, before, "right")) - 1])


def compare_starts(points: Sequence[int], pattern: str) -> None:
    text, _ = text_of(points)
    ours, theirs = starts_here(text, pattern), starts_by_tokenizers(text, pattern)
    where = first_difference(ours, theirs)
    if where is not None:
        at = int(min(part[where] for part in (ours, theirs) if where < len(part)))
        blame("tokenizers", pattern, points[min(at // len(NEIGHBOURS), len(points) - 1)])


def blame(package: str, pattern: str, point: int) -> None:
    text, _ = text_of([point])
    pytest.fail(
        f"{package} {version(package)} cuts text with U+{point:04X} otherwise by {pattern}: "
        f"{text!r}; its Unicode may have moved, see scripts/make_unicode_classes.py"
    )


@pytest.mark.parametrize("pattern", EVERY)
def test_edges_of_classes(pattern: str) -> None:
    compare_ids(edges(), pattern)
    compare_starts(edges(), pattern)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [*WITH_CLASSES, "class"])
def test_every_code_point_as_tiktoken(pattern: str) -> None:
    for points in chunks(range(0x110000)):
        if points:
            compare_ids(points, pattern)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [*WITH_CLASSES, "class"])
def test_every_code_point_as_tokenizers(pattern: str) -> None:
    for points in chunks(range(0, 0x110000, 1 if pattern in EVERY else STEP)):
        if points:
            compare_starts(points, pattern)


@pytest.mark.slow
@pytest.mark.parametrize("unicode", VERSIONS)
@pytest.mark.parametrize("pattern", WITH_CLASSES)
def test_devices_cut_as_numpy_does(device: Device, pattern: str, unicode: str) -> None:
    text, _ = text_of([*edges(), *valid(range(0, 0x110000, 97))])
    cut = get_pattern(pattern, unicode)
    marks = Marker(device, cut, len(text.encode())).documents([text.encode()], len(text.encode()))
    data = np.frombuffer(text.encode(), np.uint8)
    np.testing.assert_array_equal(marks, start_mask(data, cut, np.zeros(1, np.int64)))
