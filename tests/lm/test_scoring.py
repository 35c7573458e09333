"""Scores of ids against the float64 model, a window at a time."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.errors import InputError, TrainingError
from llmgpu.lm import scoring
from llmgpu.lm.model import Model
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.scoring import Request, Scorer, read_documents, windows
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.sources import resolve_sources
from tests.lm.pretrained_folders import kind_of_model
from tests.lm.samples import random_weights, small_vocabulary
from tests.reference.lm.llama import Llama


def model_of(operations: Operations) -> Model:
    config = kind_of_model("qwen3")
    model = Model(operations, config)
    model.load(random_weights(config, 2).__getitem__)
    return model


def expected_scores(
    model: Llama, ids: np.ndarray, first: int, window: int, stride: int
) -> tuple[list[float], list[bool]]:
    """Each id in the first window that reaches it, with the logits of that window alone."""
    found, likeliest = [], []
    for at in range(first, len(ids)):
        end = min(window, len(ids) - 1)
        while end < at:
            end = min(end + stride, len(ids) - 1)
        begin = max(0, end - window)
        logits = model.forward(ids[None, begin:at])[0, -1]
        found.append(logits[ids[at]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max())
        likeliest.append(int(np.argmax(logits)) == ids[at])
    return found, likeliest


@cache
def requests_and_scores(
    window: int, stride: int
) -> tuple[list[Request], list[tuple[list[float], list[bool]]]]:
    """Return requests, and their scores by the float64 model, which takes long."""
    config = kind_of_model("qwen3")
    reference = Llama(config, random_weights(config, 2))
    rng = np.random.default_rng(3)
    requests = [
        Request(rng.integers(0, 270, length).astype(np.uint32), first)
        for length, first in [(40, 1), (2, 1), (1, 1), (0, 1), (33, 30), (17, 1), (64, 64), (9, 4)]
    ]
    # So that some of them are the likeliest.
    for at in range(8, 17):
        logits = reference.forward(requests[5].ids[None, max(0, at - window) : at])
        requests[5].ids[at] = np.argmax(logits[0, -1])
    for request in requests:
        request.ids.setflags(write=False)  # tests share them
    scores = [expected_scores(reference, r.ids, r.first, window, stride) for r in requests]
    return requests, scores


@pytest.mark.parametrize(("window", "stride"), [(64, 32), (20, 7), (16, 16), (5, 1)])
def test_scores_are_those_of_the_float64_model(
    operations: Operations, window: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "BATCH_IDS", 256)
    model = model_of(operations)
    requests, expected = requests_and_scores(window, stride)
    scores = list(Scorer(model, window, stride).scores(requests))
    assert scores[5].likeliest.any()
    for score, wanted in zip(scores, expected, strict=True):
        np.testing.assert_allclose(score.log_likelihoods, wanted[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(score.likeliest, wanted[1])


def test_many_texts_are_scored_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "TOGETHER", 100)
    monkeypatch.setattr(scoring, "BATCH_IDS", 64)
    model = model_of(open_operations(None))
    rng = np.random.default_rng(4)
    requests = [
        Request(rng.integers(0, 270, int(length)).astype(np.uint32))
        for length in rng.integers(0, 150, 30)
    ]
    scorer = Scorer(model, 64, 32)
    for request, score in zip(requests, scorer.scores(requests), strict=True):
        (alone,) = scorer.scores([request])
        np.testing.assert_allclose(score.log_likelihoods, alone.log_likelihoods, rtol=1e-5)


def test_each_target_is_scored_once_after_enough_others() -> None:
    for count in (0, 1, 9, 10, 11, 33, 100):
        for window, stride in ((10, 10), (10, 3), (10, 1), (1, 1)):
            seen = []
            for begin, end, scored in windows(count, window, stride):
                assert 0 <= begin <= scored < end <= count and end - begin <= window
                assert begin == 0 or scored - begin >= window - stride
                seen += range(scored, end)
            assert seen == list(range(count))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((65, 1), "--window is 65, but must be from 1 to 64"),
        ((0, 1), "window is 0"),
        ((10, 11), "--stride is 11, but must be from 1 to --window, 10"),
        ((10, 0), "stride is 0"),
    ],
)
def test_windows_that_can_not_be(sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Scorer(model_of(open_operations(None)), *sizes)


def test_logits_that_are_not_finite() -> None:
    model = model_of(open_operations(None))
    model.load(lambda name: random_weights(model.config, 1)[name] * np.float32(np.nan))
    with pytest.raises(TrainingError, match="logits are not finite"):
        list(Scorer(model, 8, 8).scores([Request(np.arange(5, dtype=np.uint32))]))


def test_documents_and_their_ids(tmp_path: Path) -> None:
    """Of files that have none, one, one longer than a slice, and several."""
    vocabulary = small_vocabulary()
    texts = {"b.jsonl": [], "c.jsonl": ["the and", "", "a" * 3_000_000, "and the", ""], "d": ["a"]}
    for name, documents in texts.items():
        lines = [json.dumps({"text": text}) + "\n" for text in documents]
        (tmp_path / name).write_text("".join(lines) if "." in name else documents[0])
    (tmp_path / "a").write_bytes(b"")
    files = [str(tmp_path / name) for name in ("a", *texts)]
    context = np.arange(2, dtype=np.uint32)
    with Corpus(resolve_sources(files), CorpusOptions()) as corpus:
        found = list(read_documents(open_encoder(vocabulary, NUMPY), corpus, context))
    named = [(name, text) for name, documents in texts.items() for text in documents]
    assert [document.number for document in found] == list(range(len(found)))
    rest = [document for document in found if document.path != files[0]]  # which is one, or none
    for document, (name, text) in zip(rest, named, strict=True):
        assert document.path == str(tmp_path / name)
        assert document.first == 2 and document.ids[:2].tolist() == [0, 1]
        assert b"".join(vocabulary.tokens[number] for number in document.ids[2:]) == text.encode()
