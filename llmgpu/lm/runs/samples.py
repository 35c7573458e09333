"""Texts that a model generates while it is trained."""

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
    """Texts that a model generates while it is trained, in a file of JSON lines: step and text."""

    def __init__(
        self, path: Path, model: Model, vocabulary: Vocabulary, first: int | None, step: int
    ) -> None:
        """Create the generator, and remove samples of steps after `step`, which the run repeats.

        first: the first id of samples, which also ends a sample; None: samples begin with a
        newline. Raises OutputError if the file can't be written.
        """
        self._path, self._vocabulary = path, vocabulary
        self._prompt = [vocabulary.tokens.index(b"\n") if first is None else first]
        self._stop = first
        self._generator = Generator(model, vocabulary.size)
        if path.exists():
            with output_errors(str(path)):
                lines = path.read_bytes().splitlines(keepends=True)
            whole = (line for line in lines if line.endswith(b"\n"))
            with atomic_output(path) as file:
                file.writelines(line for line in whole if json.loads(line)["step"] <= step)

    def take(self, step: int) -> str:
        """Generate a text, append it to the file and return it.

        Raises OutputError if the file can't be written.
        """
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
