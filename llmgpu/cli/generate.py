"""What ``llmgpu generate`` does: continue a prompt with a trained model."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterable, Iterator, Set
from typing import Any

from llmgpu.backend import select_backend
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter, is_terminal, print_json, print_result
from llmgpu.cli.options import READING_INPUT
from llmgpu.errors import InputError
from llmgpu.input_files import decode_text, naming, number_of, printable
from llmgpu.lm.checkpoints.checkpoint import open_model
from llmgpu.lm.checkpoints.pretrained import SavedModel
from llmgpu.lm.generating.generator import Generator
from llmgpu.lm.generating.sampling import Sampler
from llmgpu.lm.model import Model
from llmgpu.lm.ops.backends import open_operations
from llmgpu.lm.options import SamplingOptions
from llmgpu.text.streams import STANDARD_INPUT
from llmgpu.tokenizer import Tokenizer


def generate(
    run: str,
    prompt: str | None,
    max_new_tokens: int,
    ignore_eos: bool,
    device: str,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **sampling: Any,
) -> None:
    """Continue a prompt with the model in FOLDER: of a run, a checkpoint or Hugging Face's kind."""
    report = Reporter(quiet=quiet)
    sampler = Sampler(SamplingOptions(**sampling))
    checkpoint = open_model(run, report.note)
    vocabulary = checkpoint.vocabulary
    if prompt == STANDARD_INPUT:
        prompt = _piped_prompt(report)
    ids = _prompt_ids(prompt, checkpoint)
    backend = select_backend(device, matrices=True, note=report.note)
    report.line(f"generating on {backend.description} with {checkpoint.folder}")
    config = checkpoint.config.generating(len(ids) + max_new_tokens)
    model = Model(open_operations(backend.device, fixed_products=True), config)
    model.load(checkpoint.weights.__getitem__)
    is_shown = is_terminal(sys.stdout)
    start = time.perf_counter()
    new: list[int] = []
    stops = frozenset() if ignore_eos else checkpoint.stop_ids
    generator = Generator(model, vocabulary.size)
    continued = _until(stops, generator.generate(ids, max_new_tokens, sampler), new)
    for text in _characters(prompt or "", _token_bytes(continued, vocabulary)):
        print_result(printable(text, keep="\n\t") if is_shown else text, end="")
    print_result("")
    seconds = time.perf_counter() - start
    report.line(
        f"{number_of(len(new), 'token')} in {seconds:.2f} s, {len(new) / seconds:.1f} tokens/s"
    )
    if as_json:
        print_json(
            {
                "prompt_ids": ids,
                "ids": new,
                "seconds": round(seconds, 3),
                "device": backend.description,
                "checkpoint": str(checkpoint.folder),
            },
            to_stderr=True,
        )


def _piped_prompt(report: Reporter) -> str:
    """Return what standard input has, without the line end at its end."""
    report.line(READING_INPUT)
    if sys.stdin is None:
        raise InputError("can't read standard input: it is closed")
    with naming("standard input"):
        return decode_text(sys.stdin.buffer.read()).removesuffix("\n")


def _prompt_ids(prompt: str | None, checkpoint: SavedModel) -> list[int]:
    """Return the prompt's ids; without a prompt, the token between documents.

    Raises:
        InputError: there is neither a prompt nor such a token.
    """
    if prompt:
        ids: list[int] = Tokenizer(checkpoint.vocabulary, device="cpu").encode(prompt).tolist()
        return ids
    if checkpoint.eos_id is None:
        raise InputError("the model has no token between documents; give a --prompt")
    return [checkpoint.eos_id]


def _until(stops: Set[int], ids: Iterable[int], taken: list[int]) -> Iterator[int]:
    """Yield ids up to one of `stops`, which is left out, and append them to `taken`."""
    for token in ids:
        if token in stops:
            return
        taken.append(token)
        yield token


def _token_bytes(ids: Iterable[int], vocabulary: Vocabulary) -> Iterator[bytes]:
    """Yield the bytes of each id, none for an id that stands for nothing."""
    for token in ids:
        yield vocabulary.tokens[token]


def _characters(prompt: str, pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield text once its characters are complete; invalid bytes become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield prompt
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)
