"""Patterns that are any regular expression: where they cut, and that all backends cut alike."""

from __future__ import annotations

import time

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.pretokens.custom_regex import (
    DEFAULT_MATCH_SECONDS,
    limit_match_seconds,
    splits_name,
)
from llmgpu.bpe.pretokens.names import PATTERNS, REGEX_PREFIX
from llmgpu.bpe.pretokens.pattern import get_pattern, pattern_of_expression
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.patterns import last_start, start_mask
from tests.bpe.pretokens.test_pattern import ANY_TEXT

pytestmark = pytest.mark.usefixtures("cpu_engine")

EXPRESSIONS = [r"\w+|\s", r"(?<=a)b|a", r"[\p{Lu}]\p{Ll}*", r".", r"x*", r"\b", r"(?s:.){1,3}"]


def plain_starts(text: bytes, expression: str) -> list[int]:
    """Where matches and what is between them begin, character by character."""
    characters = text.decode("utf-8", "surrogateescape")
    cuts = {0}
    for match in regex.finditer(expression, characters):
        if match.start() < match.end():
            cuts |= {match.start(), match.end()}
    found = {len(characters[:cut].encode("utf-8", "surrogateescape")) for cut in cuts}
    return sorted(found - {len(text)})


@given(st.lists(ANY_TEXT, min_size=1, max_size=4), st.sampled_from(EXPRESSIONS))
def test_cuts_are_where_matches_begin_and_end(documents: list[bytes], expression: str) -> None:
    text = np.frombuffer(b"".join(documents), np.uint8)
    begins = np.cumsum([0, *map(len, documents[:-1])])
    expected = [
        begin + cut
        for begin, document in zip(begins.tolist(), documents, strict=True)
        if document
        for cut in plain_starts(document, expression)
    ]
    name = pattern_of_expression(expression)
    assert name == REGEX_PREFIX + expression
    assert np.flatnonzero(start_mask(text, name, begins)).tolist() == expected
    assert last_start(text, name, begins) == max((begins[begins < len(text)]).tolist(), default=0)


def test_a_published_expression_is_its_pattern() -> None:
    for pattern in PATTERNS.values():
        name = REGEX_PREFIX + pattern.expression
        assert pattern_of_expression(pattern.expression) == pattern.name
        assert get_pattern(name) is pattern
        assert TrainingOptions(300, pattern=name) == TrainingOptions(300, pattern=pattern.name)


@pytest.mark.parametrize("expression", ["(", "[", "*", r"\p{Nothing}"])
def test_a_wrong_expression_is_refused(expression: str) -> None:
    with pytest.raises(LlmgpuError, match="is not a regular expression"):
        get_pattern(REGEX_PREFIX + expression)


def test_all_backends_train_and_encode_alike(device: Device) -> None:
    documents = [b"abc abd\xff 12 abc" * 9, b"", "\u00e9\u00e9 abc ".encode() * 30]
    options = TrainingOptions(280, pattern_of_expression(r"\w{2}|\W"))
    made = [
        train_vocabulary(corpus_from_bytes(documents), options, backend).vocabulary
        for backend in (NUMPY, Backend(device, device.name))
    ]
    assert made[0].to_bytes() == made[1].to_bytes()
    assert Vocabulary.from_bytes(made[0].to_bytes()).pattern == options.pattern
    for match in ("bpe", "greedy"):
        vocabulary = made[0].with_match(match)
        ids = [
            np.concatenate([p.ids for p in open_encoder(vocabulary, backend, 64).encode(source)])
            for backend in (NUMPY, Backend(device, device.name))
            for source in [corpus_from_bytes(documents)]
        ]
        assert ids[0].tolist() == ids[1].tolist()
        assert vocabulary.decode(ids[0]) == b"".join(documents)


def test_the_name_goes_with_the_expression() -> None:
    options = TrainingOptions(258, pattern_of_expression(r"\w+|\W"))
    vocabulary = train_vocabulary(corpus_from_bytes(b"aa aa"), options, NUMPY).vocabulary
    fields = {name: getattr(vocabulary, name) for name in ("tokens", "merges", "pattern")}
    with pytest.raises(VocabularyError, match="does not have the expression"):
        Vocabulary(**fields, expression=r"\w+")


def test_recounting_marks_long_runs_on_the_host(device: Device) -> None:
    """More digits than a thread looks back over: the kernel leaves the text undecided."""
    documents = [b"1" * 9000 + b" ab" * 50, b" " * 5000 + b"\n ab"]
    made = [
        train_vocabulary(
            corpus_from_bytes(documents), TrainingOptions(262, "cl100k", engine=engine), backend
        ).vocabulary
        for engine, backend in (
            ("batched", NUMPY),
            ("recount", Backend(device, device.name)),
            ("batched", Backend(device, device.name)),
        )
    ]
    assert [v.merges.tolist() for v in made[1:]] == [made[0].merges.tolist()] * 2
    for vocabulary in (made[0], made[0].with_match("greedy")):
        for size in (4000, 1 << 16):
            ids = [
                np.concatenate(
                    [piece.ids for piece in encoder.encode(corpus_from_bytes(documents))]
                )
                for encoder in (
                    open_encoder(vocabulary, NUMPY),
                    open_encoder(vocabulary, Backend(device, device.name), size),
                )
            ]
            assert ids[0].tolist() == ids[1].tolist()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(" * 60 + "a" + ")" * 60, "nests more than 50 groups or sets"),
        ("(?V1)" + "[" * 60 + "a" + "]" * 60, "nests more than 50 groups or sets"),
        ("(" * 2000, "nests more than 50 groups or sets"),
        ("(?:" * 40 + "a" + "){2,3}" * 40, "repeats groups to more than 65536 items"),
        ("[[](?:(?:ab){999}){99}", "repeats groups to more than 65536 items"),
        ("(?V1)[[a]](?:(?:ab){999}){99}", "repeats groups to more than 65536 items"),
        ("x" * 70_000, "has 70000 bytes, but the limit is 65536"),
        ("a{99999999999999}", "repeat count too big"),
        ("(?<n>a)\\g<zz>", "unknown group"),
        ("(" + "x" * 5000, "^'x{0}\\(x{1,60}'"),
    ],
)
def test_expressions_that_would_take_long_to_compile(expression: str, message: str) -> None:
    with pytest.raises(LlmgpuError, match=message) as caught:
        pattern_of_expression(expression)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "expression",
    ["(?:[^\\n]{1,80}\\n){1,1000}", "(?#(((((" + ")a", "[((((]{3}", "\\({9}", "a{1,60000}"],
)
def test_expressions_that_are_not_too_large(expression: str) -> None:
    assert pattern_of_expression(expression) == REGEX_PREFIX + expression


@pytest.mark.parametrize("expression", ["(?:a|a)*$", "a*b|a", "(?:a|(?R)b)"])
def test_matching_takes_limited_time(expression: str) -> None:
    name = pattern_of_expression(expression)
    text = np.frombuffer(b"a" * 50_000 + b"c", np.uint8)
    limit_match_seconds(0.05)
    try:
        with pytest.raises(LlmgpuError, match=r"took more than 0\.05 s of CPU time per megabyte"):
            start_mask(text, name, np.zeros(1, np.int64))
    finally:
        limit_match_seconds(DEFAULT_MATCH_SECONDS)


def test_many_pieces_are_matched_without_reading_the_cpu_time_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, reads = time.process_time, [0]

    def process_time() -> float:
        reads[0] += 1
        return real()

    monkeypatch.setattr(time, "process_time", process_time)
    text = np.frombuffer(b"ab " * 3000, np.uint8)
    pattern = get_pattern(splits_name(["(?s:.)", "a"]))
    assert start_mask(text, pattern, np.empty(0, np.int64)).all()
    assert 0 < reads[0] < 3000  # once for each of 9000 characters, else
