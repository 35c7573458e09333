"""Texts that threads of the engine encode part by part: ids do not depend on where parts end."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import CollectedIds
from llmgpu.bpe.encoding.encoder_c import CpuEncoder
from llmgpu.bpe.encoding.encoder_host import _FIRST_BYTES
from llmgpu.bpe.encoding.encoder_numpy import NumpyEncoder
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import library
from llmgpu.text import streams
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from llmgpu.text.streams import ByteStream, Source
from tests.bpe.host_encoders import cutting_cpu_encoder
from tests.engines import NumpyEngine, train

pytestmark = pytest.mark.skipif(library() is None, reason="there is no CPU engine")

# All that decides where a pre-token starts: letters, marks, numbers, signs, spaces, invalid UTF-8,
# and words longer than a part.
PIECES = [
    *(b"the", b" cat", b"  ", b" ", b"\n", b"\r\n", b"\t", b"'s", b"'", b"/", b"9", b"1234", b"-"),
    *("\u00e9", "e\u0301", "\u4e2d\u6587", "\uff0c", "\u00a0", "\u3000", "\u0663", "\u01c5"),
    *(b"\xff", b"\xc3", b"\xe4\xb8", b"\x80", b"a" * 300, b"\n" * 90, b" " * 50, b"\x00"),
]
TEXTS = [piece.encode() if isinstance(piece, str) else piece for piece in PIECES]


def random_text(rng: random.Random, pieces: int) -> bytes:
    weights = [rng.random() ** 3 for _ in TEXTS]
    return b"".join(rng.choices(TEXTS, weights, k=pieces))


@cache
def vocabulary_of(pattern: str) -> Vocabulary:
    text = random_text(random.Random(1), 3000)
    options = TrainingOptions(300, pattern=pattern, tie="hf")
    return train(NumpyEngine(), [text], options).vocabulary


def joined(encoder: object, source: Corpus) -> tuple[NDArray[np.uint32], list[int]]:
    ids, starts, count = [], [], 0
    for piece in encoder.encode(source):  # type: ignore[attr-defined]
        starts += (piece.document_starts + count).tolist()
        ids.append(piece.ids.copy())
        count += len(piece.ids)
    return np.concatenate(ids), starts


@pytest.mark.parametrize("pattern", [*sorted(PATTERNS), "regex:[a-z]+|[^a-z]"])
@pytest.mark.parametrize("seed", range(3))
def test_ids_of_documents_do_not_depend_on_threads(pattern: str, seed: int) -> None:
    rng = random.Random(f"{pattern} {seed}")
    vocabulary = vocabulary_of(pattern)
    documents = [random_text(rng, rng.choice([0, 1, 5, 60, 300])) for _ in range(8)]
    expected, starts = joined(NumpyEncoder(vocabulary), corpus_from_bytes(documents))
    for slice_bytes, threads in ((40, 4), (300, 3), (3000, 16), (1 << 16, 5), (1, 4)):
        encoder = cutting_cpu_encoder(vocabulary, slice_bytes, threads)
        for _ in range(2):  # without known words, and with them
            found = joined(encoder, corpus_from_bytes(documents))
            np.testing.assert_array_equal(found[0], expected)
            assert found[1] == starts


@pytest.mark.parametrize("pattern", ["cl100k", "gpt2", "o200k", "class", "no rule"])
@pytest.mark.parametrize("collected", [False, True])
def test_ids_of_files_do_not_depend_on_threads(
    pattern: str, collected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgpu.bpe.encoding.encoder.RESERVED_FROM", 1)
    monkeypatch.setattr("llmgpu.bpe.encoding.encoder_host._FIRST_BYTES", 600)
    rng = random.Random(pattern)
    vocabulary = vocabulary_of("class" if pattern == "no rule" else pattern)
    if pattern == "no rule":  # a pattern with certain starts that the engine does not know
        vocabulary = replace(vocabulary)
        vocabulary.__dict__["cut"] = replace(get_pattern("class"), kernel=pattern)
        assert vocabulary.cut.for_engine().is_marked
    names = [str(tmp_path / f"{k}.txt") for k in range(4)]
    for name, pieces in zip(names, (2500, 0, 3, 4000), strict=True):
        Path(name).write_bytes(random_text(rng, pieces) + b" and so on" * rng.randint(0, 900))
    expected, _ = joined(NumpyEncoder(vocabulary), Corpus(names))
    for slice_bytes, threads in ((700, 4), (4000, 16), (1 << 20, 5)):
        encoder = CpuEncoder(vocabulary, slice_bytes, threads)
        with Corpus(names) as corpus:
            if not collected:
                found, _ = joined(encoder, corpus)
            else:
                ids = CollectedIds(corpus.total_bytes)
                for piece in encoder.encode(corpus, ids):
                    ids.append(piece.ids)
                found = ids.take()
        np.testing.assert_array_equal(found, expected)


def test_threads_read_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first slice, the last, and what decides where slices end."""
    path = tmp_path / "text.txt"
    path.write_bytes(b"the cat sat on a mat " * 100_000)
    read_here = [0]

    class Counting(ByteStream):
        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer)
            read_here.append(count)
            return count

    read_at = streams.read_at

    def counting(source: Source, file: Any, data: NDArray[np.uint8], offset: int) -> None:
        read_at(source, file, data, offset)
        read_here.append(len(data))

    monkeypatch.setattr("llmgpu.text.corpus.ByteStream", Counting)
    monkeypatch.setattr(streams, "read_at", counting)
    vocabulary = vocabulary_of("cl100k")
    expected, _ = joined(NumpyEncoder(vocabulary), corpus_from_bytes(path.read_bytes()))
    with Corpus([str(path)]) as corpus:
        found, _ = joined(CpuEncoder(vocabulary, 1 << 20, 4), corpus)
    np.testing.assert_array_equal(found, expected)
    assert sum(read_here) < 10 * _FIRST_BYTES < path.stat().st_size / 3
