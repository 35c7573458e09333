"""The peers: the same merges and ids as NumPy, on text beyond ASCII, and what they can't do."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bench import peers
from llmgpu.bench.engines import Engine
from llmgpu.bench.peers import (
    EXPRESSIBLE,
    TOKENIZING_PEERS,
    TRAINING_PEERS,
    TokenizingPeer,
    pieces,
)
from llmgpu.bench.tokenizers import (
    Job,
    encode_all,
    load_text,
    measure_tokenizing,
    measure_training,
)
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange.formats import WRITERS
from llmgpu.bpe.interchange.token_tables import TIKTOKEN, expression_of
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import corpus_from_bytes

VOCAB_SIZE = 300
NUMPY_ENGINE = Engine(NUMPY, 0.0)
LIMIT = 20_000
BEYOND_ASCII = "Grüße, 東京 42!\n  naïve\u00a0Größe\tτί  x\n\n/a\nb\u2003\nc's\n" * 40
# What some pattern tells apart, and newlines more often than the rest.
APART = [*" \t\r/.!'_eS1", "'s", "'\u017f", "'lL", "'Ve", "'r", "\u00a0", "\u3000", "\x1c", "\x85"]
APART += ["\u01c5", "\u02b0", "漢", "\u0301", "\u093e", "\u0663", "½", "\U0001d7ce", "👍"]
ADVERSARIAL = "".join(random.Random(5).choices([*APART, *"\n" * 8, *"ab" * 6], k=20_000))
ENDS = ["a", "\n", "  ", "\n\n", "\n  ", " \n ", "\r\n  ", "1\n", "\u3000\n\u2003", "'S\n\r", ""]


def crossing_vocabulary(pattern: str, special_tokens: tuple[str, ...] = ()) -> Vocabulary:
    """A vocabulary that gives other ids where text is cut in other places.

    Its tokens are those of text that is not cut at all.
    """
    text = BEYOND_ASCII + ADVERSARIAL + " \n  \n\r\n  " * 50
    options = TrainingOptions(2000, "none", special_tokens=special_tokens)
    trained = train_vocabulary(corpus_from_bytes(text.encode()), options, NUMPY).vocabulary
    return replace(trained, pattern=pattern, expression=PATTERNS[pattern].expression)


def job_of(text: bytes, folder: Path, vocab_size: int, pattern: str) -> Job:
    return Job(text, folder, vocab_size, pattern, runs=1)


def require(peer: TokenizingPeer) -> None:
    for package in (peer.package, *peer.needs):
        pytest.importorskip(package)


def assert_ids_are_those_of_numpy(
    peer: TokenizingPeer, vocabulary: Vocabulary, texts: list[str], folder: Path
) -> None:
    WRITERS[peer.format].write(vocabulary, folder / "vocabulary")
    encode = peer.open(folder / "vocabulary", vocabulary.pattern)
    for text in texts:
        path = folder / "text"
        path.write_bytes(text.encode())
        expected = encode_all(open_encoder(vocabulary, NUMPY), corpus_from_bytes(text.encode()))
        np.testing.assert_array_equal(encode(path), expected, repr(text[-9:]))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", EXPRESSIBLE)
@pytest.mark.parametrize("peer", TOKENIZING_PEERS, ids=lambda peer: peer.package)
def test_peers_agree_on_text_beyond_ascii(
    peer: TokenizingPeer, pattern: str, tmp_path: Path
) -> None:
    require(peer)
    if pattern not in peer.patterns:
        pytest.skip(f"it doesn't know pattern {pattern}")
    texts = [ADVERSARIAL, *(BEYOND_ASCII + end for end in ENDS)]
    assert_ids_are_those_of_numpy(peer, crossing_vocabulary(pattern), texts, tmp_path)


@pytest.mark.parametrize("peer", TOKENIZING_PEERS, ids=lambda peer: peer.package)
def test_special_tokens_are_text_to_peers(peer: TokenizingPeer, tmp_path: Path) -> None:
    require(peer)
    vocabulary = crossing_vocabulary("gpt2", ("<|end|>",))
    assert_ids_are_those_of_numpy(peer, vocabulary, ["a<|end|>b <|end|>\n"], tmp_path)


@pytest.mark.parametrize("pattern", EXPRESSIBLE)
@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 2000])
def test_training_peers_beyond_ascii(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], pattern: str, vocab_size: int
) -> None:
    path = tmp_path / "text"
    path.write_bytes((BEYOND_ASCII + ADVERSARIAL).encode())
    job = job_of(load_text([str(path)], 100_000), tmp_path, vocab_size, pattern)
    results = list(measure_training(job, [], True))
    packages = [result.engine.split()[0] for result in results]
    assert packages == [peer.package for peer in TRAINING_PEERS]
    for result in results:
        assert result.correct is True or result.note
    assert capfd.readouterr() == ("", "")


def test_a_pattern_that_no_peer_knows_is_a_line(tmp_path: Path) -> None:
    job = job_of(load_text([], 2000), tmp_path, VOCAB_SIZE, "none")
    results = list(measure_training(job, [], True))
    results += list(measure_tokenizing(job, [], True, None, None))
    assert len(results) == len(TRAINING_PEERS) + len(TOKENIZING_PEERS)
    for result in results:
        assert result.note.startswith(("left out: it doesn't know pattern none", "not inst"))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", EXPRESSIBLE)
def test_pieces_end_where_pre_tokens_do(pattern: str) -> None:
    regex = pytest.importorskip("regex")
    text = BEYOND_ASCII + ADVERSARIAL + load_text([], LIMIT).decode()
    cut = pieces(text, 1)
    assert "".join(cut) == text
    assert len(cut) > 1000
    expression = regex.compile(expression_of(pattern, TIKTOKEN))
    of_pieces = [word for piece in cut for word in expression.findall(piece)]
    assert of_pieces == expression.findall(text)


def test_awkward_is_needed_for_tokenizing_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "package_version", lambda name: None if name == "awkward" else "1")
    assert all(peer.why_not("gpt2", is_utf8=True) is None for peer in TRAINING_PEERS)
    reasons = {peer.package: peer.why_not("gpt2", is_utf8=True) for peer in TOKENIZING_PEERS}
    assert reasons.pop("gigatoken") == "not installed: pip install gigatoken awkward"
    assert set(reasons.values()) == {None}


def test_a_vocabulary_that_peers_cannot_have_is_a_line(tmp_path: Path) -> None:
    job = job_of(load_text([], 2000), tmp_path, VOCAB_SIZE, "gpt2")
    greedy = crossing_vocabulary("gpt2").with_match("greedy")
    results = list(measure_tokenizing(job, [NUMPY_ENGINE], True, greedy, None))
    assert results[0].correct is True
    for result in results[1:]:
        assert result.note.startswith(("left out: a vocabulary with greedy matching", "not in"))
