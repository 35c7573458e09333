"""Texts that a model writes while it is trained, one JSON object per line: step and text."""

from __future__ import annotations

import json
from pathlib import Path

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.files import atomic_output, output_errors
from llmgpu.lm.generating.generator import Generator
from llmgpu.lm.generating.sampling import Sampler
from llmgpu.lm.model import Model
from llmgpu.lm.options import SamplingOptions

SAMPLE_TOKENS = 64


class Samples:
    """The file of a run's samples, and the generator that makes them."""

    def __init__(self, path: Path, model: Model, vocabulary: Vocabulary, first: int | None) -> None:
        """Make the generator; first: the id that samples begin with, a line end if None."""
        self._path, self._vocabulary = path, vocabulary
        self._prompt = [vocabulary.tokens.index(b"\n") if first is None else first]
        self._stop = first
        self._generator = Generator(model, vocabulary.size)

    def keep_up_to(self, step: int) -> None:
        """Remove the samples of later steps, which are taken again; OutputError if that fails."""
        if not self._path.exists():
            return
        with output_errors(str(self._path)):
            lines = self._path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] <= step]
        with atomic_output(self._path) as file:
            file.write(b"".join(kept))

    def take(self, step: int) -> str:
        """Write and return a text of the model as it is; OutputError if it can't be written."""
        ids = []
        sampler = Sampler(SamplingOptions())
        for token in self._generator.generate(self._prompt, SAMPLE_TOKENS, sampler):
            if token == self._stop:
                break
            ids.append(token)
        text = b"".join(self._vocabulary.tokens[token] for token in ids).decode("utf-8", "replace")
        line = json.dumps({"step": step, "text": text}, ensure_ascii=False).encode() + b"\n"
        with output_errors(str(self._path)), open(self._path, "ab") as file:
            file.write(line)
        return text
