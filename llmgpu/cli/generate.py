"""What ``llmgpu generate`` does: continue a prompt, or many, with a trained model."""

from __future__ import annotations

import codecs
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import click

from llmgpu.backend import Opening
from llmgpu.bpe.encoding.special_options import NO_SPECIAL_TOKENS
from llmgpu.cli.chat import check_chat, with_chat_template
from llmgpu.cli.commands.models import GenerateCommand
from llmgpu.cli.console import Reporter, is_terminal, print_json, print_result
from llmgpu.cli.groups import READING_INPUT, piped_input
from llmgpu.cli.options import refuse_given
from llmgpu.cli.prompts import Prompt, continue_prompts, from_user, prompt_ids, read_prompts
from llmgpu.errors import InputError
from llmgpu.input_files import decode_text, naming, number_of, printable
from llmgpu.lm.checkpoints.checkpoint import open_model
from llmgpu.lm.generating.generator import Continuation, Ends, Generator
from llmgpu.lm.generating.sampling import Sampler
from llmgpu.lm.model import load_model
from llmgpu.text.streams import STANDARD_INPUT
from llmgpu.tokenizer import Tokenizer
from llmgpu.tokenizer.chatting import ChatEncoder


def generate(asked: GenerateCommand, opening: Opening) -> None:
    """Continue prompts with the model in FOLDER: a run, a checkpoint or a Hugging Face model."""
    report = Reporter(quiet=asked.report.quiet)
    as_json, prompts = asked.report.as_json, asked.prompts
    if "" in asked.stop:
        raise click.UsageError("--stop must not be empty")
    check_chat(asked, NO_SPECIAL_TOKENS)
    if prompts is None and not as_json:
        refuse_given(("log_probabilities",), "is for --prompts and --json")

    # Prompts and their ids, before the model is loaded.
    texts = _given_prompts(asked, report)
    saved = open_model(asked.run, report.note)
    vocabulary = with_chat_template(saved.vocabulary, asked.chat_template)
    tokenizer = Tokenizer(vocabulary, device="cpu")
    conversations = ChatEncoder(  # whose errors name options, unlike those of the tokenizer
        tokenizer.vocabulary, lambda data: tokenizer.encode(data, allowed_special=("all",))
    )
    wanted = [(each, prompt_ids(tokenizer, conversations, each, saved)) for each in texts]

    # The model, for the longest text that it will have.
    backend = opening.backend(report.note)
    report.line(f"generating on {backend.description} with {saved.folder}")
    longest = max(len(ids) for _, ids in wanted)
    model = load_model(saved, backend, longest + asked.max_new_tokens, asked.precision)
    sequences = 1 if prompts is None else min(asked.batch_size, len(wanted))
    generator = Generator(model, saved.vocabulary.size, sequences)
    ends = Ends(
        asked.max_new_tokens,
        frozenset() if asked.ignore_eos else frozenset(saved.stop_ids),
        tuple(text.encode() for text in asked.stop),
    )
    start = time.perf_counter()
    if prompts is not None:
        count = continue_prompts(generator, wanted, saved.vocabulary, asked.sampling, ends)
        summary: dict[str, Any] = {"prompts": len(wanted), "tokens": count}
    else:
        one = Continuation(saved.vocabulary, wanted[0][1], Sampler(asked.sampling), ends)
        _continue_one(texts[0].text, one, generator, is_printed=not as_json)
        count = len(one.ids)
        summary = {"prompt": texts[0].printed(), "prompt_ids": one.prompt_ids, **one.describe()}
    seconds = time.perf_counter() - start
    report.line(f"{number_of(count, 'token')} in {seconds:.2f} s, {count / seconds:.1f} tokens/s")
    if as_json:
        summary |= {"seconds": round(seconds, 3), "device": backend.description}
        print_json(summary | {"checkpoint": str(saved.folder)}, to_stderr=prompts is not None)


def _given_prompts(asked: GenerateCommand, report: Reporter) -> list[Prompt]:
    """Return what is to be continued; UsageError for options that do not fit together."""
    if asked.prompts is None:
        refuse_given(("prompt_field", "batch_size"), "is for --prompts")
        text = _single_prompt(asked.prompt, report)
        if asked.chat and not text:
            raise click.UsageError("--chat needs --prompt or --prompts: what the user says")
        return [from_user(text) if asked.chat else Prompt(text)]
    if asked.prompt is not None:
        raise click.UsageError("give --prompt or --prompts, not both")
    if asked.prompts == STANDARD_INPUT:
        report.line(READING_INPUT)
    return read_prompts(asked.prompts, asked.prompt_field, chat=asked.chat)


def _single_prompt(prompt: str | None, report: Reporter) -> str:
    """Return the prompt; one from a pipe loses its final line end."""
    if prompt is None:
        if not piped_input(report):
            return ""
    elif prompt != STANDARD_INPUT:
        return prompt
    else:
        report.line(READING_INPUT)
    if sys.stdin is None:
        raise InputError("can't read standard input: it is closed")
    with naming("standard input"):
        return decode_text(sys.stdin.buffer.read()).removesuffix("\n")


def _continue_one(
    prompt: str, one: Continuation, generator: Generator, *, is_printed: bool
) -> None:
    """Generate the text; with `is_printed`, print the prompt, and the text as it grows."""
    if not is_printed:
        deque(generator.continue_all([one.request()]), maxlen=0)
        return
    is_shown = is_terminal(sys.stdout)
    for text in _characters(prompt, _pieces(one, generator)):
        print_result(printable(text, keep="\n\t") if is_shown else text, end="")
    print_result("")


def _pieces(one: Continuation, generator: Generator) -> Iterator[bytes]:
    """Yield the bytes of the text once they are certain."""
    for _ in generator.continue_all([one.request()]):
        yield one.text.take()
    yield one.text.take(last=True)


def _characters(prompt: str, pieces: Iterator[bytes]) -> Iterator[str]:
    """Yield text once its characters are complete; invalid bytes become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield prompt
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)
