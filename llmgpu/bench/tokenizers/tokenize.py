"""Measuring tokenizing: a text file in the page cache in, a file of ids (format bin) out.

NumPy's ids are the reference, for peers too: those get the same vocabulary, in a file of theirs.
Every run has a new encoder, because encoders remember words; it is open before the clock starts,
and what that took is reported as start-up. Peers may make tables when they get their first text,
which is part of opening them: they get two words before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bench.engines import Engine
from llmgpu.bench.peers.tokenizers import TOKENIZING_PEERS, EncodeFile, TokenizingPeer
from llmgpu.bench.results import TOKENIZE, KernelTimes, Result, Times
from llmgpu.bench.timing import kernel_times, timed
from llmgpu.bench.tokenizers.bpe_train import train_file
from llmgpu.bench.tokenizers.corpus import Job
from llmgpu.bpe.encoding.encoder import CollectedIds, EncodedSlice, Encoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange.formats import FORMATS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from llmgpu.tokens.formats import open_writer
from llmgpu.tokens.sinks import TokenWriter, id_dtype
from llmgpu.tokens.tokenizing import encode_into

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

    def measure_engine(self, engine: Engine) -> Result:
        """Measure one of llmgpu's engines; an engine that can't do the job says why."""
        begun = self.job.begin(TOKENIZE, engine.name)
        begun = replace(begun, start_up={"open device": engine.open_seconds})
        try:
            result = self._measure_runs(begun, partial(self._open, engine), self._encode_file)
            if not result.correct:
                return result
            answer = "the reference" if engine.backend is NUMPY else result.answer
            phases, kernels = self._phases(engine), self._time_kernels(engine)
            return replace(result, answer=answer, phases=phases, kernels=kernels)
        except LlmgpuError as error:
            return replace(begun, start_up={}, note=str(error))

    def measure_peer(self, peer: TokenizingPeer) -> Result:
        """Measure a peer; one that can't do the job says why."""
        begun = replace(self.job.begin(TOKENIZE, peer.name), peer=True)
        reason = peer.why_not(self.job)
        if reason is not None:
            return replace(begun, note=reason)
        path = self.job.folder / f"bench-v.{peer.format}"
        try:
            FORMATS[peer.format].write(self.vocabulary, path)
        except VocabularyError as error:
            return replace(begun, note=f"left out: {error}")
        words = self.job.folder / "two-words.txt"
        words.write_bytes(_TWO_WORDS)

        def open_peer() -> EncodeFile:
            encode = peer.open(path, self.vocabulary.pattern)
            encode(words)
            return encode

        return self._measure_runs(begun, open_peer, self._encode_with_peer)

    @property
    def _target(self) -> Path:
        return self.job.folder / "ids.bin"

    def _open(self, engine: Engine) -> Encoder:
        return open_encoder(Vocabulary.load(self.vocabulary_path), engine.backend)

    def _encode_file(self, encoder: Encoder) -> None:
        with Corpus([str(self.job.path)]) as corpus, self._open_writer() as writer:
            encode_into(writer, encoder, corpus, no_progress)

    def _encode_with_peer(self, encode: EncodeFile) -> None:
        encode(self.job.path).astype(id_dtype(self.vocabulary.size)).tofile(self._target)

    def _open_writer(self) -> TokenWriter:
        vocabulary = self.vocabulary
        return open_writer(
            self._target, "bin", vocabulary_size=vocabulary.size, fingerprint=vocabulary.fingerprint
        )

    def _measure_runs(
        self, begun: Result, open_new: Callable[[], Any], encode: Callable[[Any], None]
    ) -> Result:
        """Compare the ids of a first run; time encodings of the file, each by a new encoder."""
        opening, encoder = timed(open_new)
        first, _ = timed(partial(encode, encoder))
        ids = np.fromfile(self._target, id_dtype(self.vocabulary.size))
        if not np.array_equal(ids, self.reference):
            return replace(
                begun, correct=False, answer="NOT the ids of NumPy", tokens=len(ids), start_up={}
            )
        seconds: list[float] = []
        for run in range(self.job.runs):
            self.progress(f"{TOKENIZE}: {begun.engine}", run, self.job.runs)
            seconds.append(timed(partial(encode, open_new()))[0])
        times = Times.of(seconds)
        return replace(
            begun,
            correct=True,
            answer="the ids of NumPy",
            tokens=len(ids),
            start_up=begun.start_up | {"open encoder": opening, "first run": first},
            seconds=times,
            mb_per_second=len(self.job.text.data) / times.median / 1e6,
        )

    def _phases(self, engine: Engine) -> dict[str, Times]:
        """Time each part alone; end to end they overlap, so their sum may be more."""
        runs = range(self.job.runs)
        return {
            "read": Times.of([timed(self._read)[0] for _ in runs]),
            "read and encode": Times.of([self._time_encoding(engine) for _ in runs]),
            "write": Times.of([timed(self._write)[0] for _ in runs]),
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
            writer.write(EncodedSlice(self.reference, _ONE_DOCUMENT))

    def _time_kernels(self, engine: Engine) -> KernelTimes | None:
        device = engine.backend.device
        times = kernel_times(device, partial(self._encode_file, self._open(engine)))
        if times is None or not times.total:
            return times
        return replace(times, mb_per_second=len(self.job.text.data) / times.total / 1e6)


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
) -> Iterator[Result]:
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
