"""Measuring tokenizing: a text file in the page cache in, a file of ids (format bin) out.

NumPy's ids are the reference, for peers too: those get the same vocabulary, in a file of theirs.
Every run has a new encoder, because encoders remember words; it is open before the clock starts,
and what that took is reported as start-up. Peers may make tables when they get their first text,
which is part of opening them: they get two words before the clock starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bench.measuring.engines import Engine, Job, begin_result
from llmgpu.bench.measuring.times import repeat, summarize, timed
from llmgpu.bench.text.bpe_train import train_file
from llmgpu.bench.text.peers_tokenizing import TOKENIZING_PEERS, EncodeFile, TokenizingPeer
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.id_buffers import CollectedIds
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange.formats import FORMATS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from llmgpu.tokens.formats import open_writer
from llmgpu.tokens.sinks import TokenWriter, id_dtype
from llmgpu.tokens.tokenizing import encode_into

WHAT = "tokenize"
_READ_BYTES = 4 << 20
_ONE_DOCUMENT = np.zeros(1, np.int64)
_TWO_WORDS = b"two words\n"


@dataclass(frozen=True)
class TokenizingBench:
    """Engines that are all to encode the job's text with the vocabulary in a file.

    reference: uint32 (tokens,), the ids that NumPy gives.
    """

    job: Job
    vocabulary: Vocabulary
    vocabulary_path: Path
    reference: NDArray[np.uint32]
    progress: Progress

    def measure_engine(self, engine: Engine) -> dict[str, Any]:
        """Measure one of llmgpu's engines; an engine that can't do the job says why."""
        result = begin_result(WHAT, engine.name, self.job)
        try:
            opening, encoder = timed(lambda: self._open(engine))
            first, _ = timed(lambda: self._encode_file(encoder))
            if self._compare(result, is_reference=engine.backend is NUMPY):
                result["start_up"] = {
                    "open device": engine.open_seconds,
                    "open encoder": opening,
                    "first run": first,
                }
                self._measure_runs(result, engine)
                result["phases"] = self._phases(engine)
                result["kernels"] = self._time_kernels(engine)
        except LlmgpuError as error:
            result["note"] = str(error)
        return result

    @property
    def _target(self) -> Path:
        return self.job.folder / "ids.bin"

    def _open(self, engine: Engine) -> Encoder:
        return open_encoder(Vocabulary.load(self.vocabulary_path), engine.backend)

    def _compare(self, result: dict[str, Any], *, is_reference: bool = False) -> bool:
        """Compare the file that was written with the reference."""
        ids = np.fromfile(self._target, id_dtype(self.vocabulary.size))
        same = np.array_equal(ids, self.reference)
        result["correct"] = same
        if is_reference and same:
            result["answer"] = "the reference"
        else:
            result["answer"] = f"{'the' if same else 'NOT the'} ids of NumPy"
        result["tokens"] = len(ids)
        return same

    def _encode_file(self, encoder: Encoder) -> None:
        with Corpus([str(self.job.path)]) as corpus, self._open_writer() as writer:
            encode_into(writer, encoder, corpus, no_progress)

    def _open_writer(self) -> TokenWriter:
        vocabulary = self.vocabulary
        return open_writer(
            self._target, "bin", vocabulary_size=vocabulary.size, fingerprint=vocabulary.fingerprint
        )

    def _measure_runs(self, result: dict[str, Any], engine: Engine) -> None:
        seconds: list[float] = []
        for run in range(self.job.runs):
            self.progress(f"{WHAT}: {result['engine']}", run, self.job.runs)
            seconds.append(self._time_file(self._open(engine)))
        self._add_times(result, seconds)

    def _add_times(self, result: dict[str, Any], seconds: list[float]) -> None:
        result["seconds"] = times = summarize(seconds)
        result["mb_per_second"] = len(self.job.text.data) / times["median"] / 1e6

    def _time_file(self, encoder: Encoder) -> float:
        return timed(lambda: self._encode_file(encoder))[0]

    def _phases(self, engine: Engine) -> dict[str, Any]:
        """Time each part on its own; end to end they overlap, so their sum may be more."""
        runs = self.job.runs
        return {
            "read": repeat(self._read, runs),
            "read and encode": summarize([self._time_encoding(engine) for _ in range(runs)]),
            "write": repeat(self._write, runs),
        }

    def _time_encoding(self, engine: Engine) -> float:
        """Time the way from the file to one array."""
        encoder = self._open(engine)
        with Corpus([str(self.job.path)]) as corpus:
            return timed(lambda: encode_all(encoder, corpus))[0]

    def _read(self) -> None:
        buffer = np.empty(_READ_BYTES, np.uint8)
        with Corpus([str(self.job.path)]) as corpus:
            while not corpus.read_into(buffer).end:
                pass

    def _write(self) -> None:
        with self._open_writer() as writer:
            writer.write(self.reference, _ONE_DOCUMENT)

    def _time_kernels(self, engine: Engine) -> dict[str, Any] | None:
        device = engine.backend.device
        if device is None or "timestamp-query" not in device.features:
            return None
        encoder = self._open(engine)
        device.gpu_seconds.clear()
        device.timing = True
        try:
            self._encode_file(encoder)
        finally:
            device.timing = False
        seconds = dict(sorted(device.gpu_seconds.items(), key=lambda item: -item[1]))
        total = sum(seconds.values())
        rate = len(self.job.text.data) / total / 1e6 if total else None
        return {"seconds": seconds, "total": total, "mb_per_second": rate}

    def measure_peer(self, peer: TokenizingPeer) -> dict[str, Any]:
        """Measure a peer; one that can't do the job says why."""
        result = begin_result(WHAT, peer.name, self.job) | {"peer": True}
        reason = peer.why_not(self.job)
        if reason is not None:
            result["note"] = reason
            return result
        try:
            path = self._export(peer.format)
        except VocabularyError as error:
            result["note"] = f"left out: {error}"
        else:
            self._measure_peer(result, peer, path)
        return result

    def _export(self, format: str) -> Path:
        """Write the vocabulary in a format of other tools; return the file."""
        path = self.job.folder / f"bench-v.{format}"
        FORMATS[format].write(self.vocabulary, path)
        return path

    def _measure_peer(self, result: dict[str, Any], peer: TokenizingPeer, path: Path) -> None:
        words = self.job.folder / "two-words.txt"
        words.write_bytes(_TWO_WORDS)

        def open_peer() -> EncodeFile:
            encode = peer.open(path, self.vocabulary.pattern)
            encode(words)
            return encode

        opening, encode = timed(open_peer)
        first, _ = timed(lambda: self._peer_file(encode))
        if not self._compare(result):
            return
        result["start_up"] = {"open encoder": opening, "first run": first}
        seconds: list[float] = []
        for run in range(self.job.runs):
            self.progress(f"{WHAT}: {result['engine']}", run, self.job.runs)
            seconds.append(self._time_peer(open_peer()))
        self._add_times(result, seconds)

    def _time_peer(self, encode: EncodeFile) -> float:
        return timed(lambda: self._peer_file(encode))[0]

    def _peer_file(self, encode: EncodeFile) -> None:
        encode(self.job.path).astype(id_dtype(self.vocabulary.size)).tofile(self._target)


def encode_all(encoder: Encoder, corpus: Corpus) -> NDArray[np.uint32]:
    """Return the ids of a text in one array."""
    ids = CollectedIds(corpus.total_bytes)
    for piece in encoder.encode(corpus, ids.allocate):
        ids.append(piece.ids)
    return ids.take()


def measure_tokenizing(
    job: Job,
    engines: list[Engine],
    peers: bool,
    progress: Progress,
    vocabulary: Vocabulary | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the result of each engine on a job, then those of the peers.

    vocabulary: what to tokenize with, in place of one trained on the text as the job says.
    """
    if vocabulary is None:
        vocabulary = train_file(job, NUMPY).vocabulary
    else:
        job = replace(job, vocab_size=vocabulary.size, pattern=vocabulary.pattern)
    path = job.folder / "bench-v.bin"
    vocabulary.save(path)
    reference = encode_all(open_encoder(vocabulary, NUMPY), corpus_from_bytes(job.text.data))
    bench = TokenizingBench(job, vocabulary, path, reference, progress)
    for engine in engines:
        yield bench.measure_engine(engine)
    if peers:
        for peer in TOKENIZING_PEERS:
            yield bench.measure_peer(peer)
