"""The command ``llmgpu generate``: continue one prompt or many with a trained model."""

from __future__ import annotations

import codecs
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import click

from llmgpu.backend import Backend, Opening
from llmgpu.bpe.encoding.special_options import NO_SPECIAL_TOKENS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.chat import check_chat, with_chat_template
from llmgpu.cli.commands.models import GenerateCommand
from llmgpu.cli.console import Reporter, is_terminal, print_result
from llmgpu.cli.groups import READING_INPUT, piped_input
from llmgpu.cli.options import refuse_given
from llmgpu.errors import CheckpointError, InputError
from llmgpu.input_files import (
    STANDARD_INPUT,
    decode_text,
    input_errors,
    naming,
    number_of,
    printable,
    read_whole,
    source_name,
)
from llmgpu.lm.checkpoints.checkpoint import open_model
from llmgpu.lm.checkpoints.huggingface import SavedModel
from llmgpu.lm.generator import Continuation, Generator, Request
from llmgpu.lm.model import load_model
from llmgpu.lm.sampling import Sampler
from llmgpu.pipeline import Background
from llmgpu.text.chat import MESSAGES, check_messages
from llmgpu.text.jsonl import parse_json_object
from llmgpu.tokenizer import Tokenizer
from llmgpu.tokenizer.encoders import ChatEncoder

JSON_ENDINGS = (".jsonl", ".ndjson")
# The fields of a prompt. PROMPT has a text to continue, MESSAGES a conversation to answer. The line
# of JSON for the prompt repeats all fields, and adds the continuation.
Prompt = dict[str, Any]
PROMPT = "prompt"


def generate(asked: GenerateCommand, report: Reporter, opening: Opening) -> None:
    """Continue prompts with the model in FOLDER: a run, a checkpoint or a Hugging Face model."""
    # Read and encode prompts before loading the model, so that errors are reported early.
    texts = _given_prompts(asked, report)
    if not os.path.isdir(asked.run):
        open_model(asked.run)  # raises the error of a missing folder before a device opens
    with Background() as checking:
        try:
            _generate(asked, report, opening, texts, checking)
        except CheckpointError:
            open_model(asked.run)  # if the weights are damaged, this error says so
            raise


def _generate(
    asked: GenerateCommand,
    report: Reporter,
    opening: Opening,
    texts: list[Prompt],
    checking: Background,
) -> None:
    """Continue prompts.

    checking: checks the weights while the device opens and the weights are copied to the device.
    """
    prompts, name = asked.prompts, MESSAGES if asked.chat else PROMPT
    saved, backend = _open(asked, report, opening, checking)
    vocabulary = with_chat_template(saved.vocabulary, asked.chat_template)
    prompt_ids = _encoded(texts, vocabulary, saved, chat=asked.chat)

    # Load the model, with memory for the longest prompt and continuation.
    report.note_missing_engine(backend)
    report.line(f"generating on {backend.description} with {saved.folder}")
    longest = max(map(len, prompt_ids)) + asked.max_new_tokens
    model = load_model(saved, backend, longest, asked.precision)
    sequences = 1 if prompts is None else min(asked.batch_size, len(texts))
    generator = Generator(model, saved.vocabulary.size, sequences)
    stops = frozenset[int]() if asked.ignore_eos else saved.stop_ids
    strings = [text.encode() for text in asked.stop]

    def begin(number: int) -> Continuation:
        sampler = Sampler(asked.sampling.numbered(number))
        given = prompt_ids[number], asked.max_new_tokens, sampler, stops
        return Continuation(*given, vocabulary=saved.vocabulary, stop_strings=strings)

    checking.wait()
    # Generate, and print.
    start = time.perf_counter()
    if prompts is not None:
        count = _continue_all(generator, texts, begin)
        summary: dict[str, Any] = {"prompts": len(texts), "tokens": count}
    else:
        one, prompt = begin(0), texts[0][name]
        if report.as_json:
            deque(generator.continue_all([one]), maxlen=0)
        else:
            _print_continued("" if asked.chat else prompt, one, generator)
        count = len(one.ids)
        summary = {"prompt": prompt, "prompt_ids": one.prompt, **one.describe()}
    seconds = time.perf_counter() - start
    report.line(f"{number_of(count, 'token')} in {seconds:.2f} s, {count / seconds:.1f} tokens/s")
    summary |= {"seconds": round(seconds, 3), "device": backend.description}
    summary |= {"checkpoint": str(saved.folder)}
    report.summarize(summary, to_stderr=prompts is not None)


def _open(
    asked: GenerateCommand, report: Reporter, opening: Opening, checking: Background
) -> tuple[SavedModel, Backend]:
    """Open the device, and meanwhile read the files of the model but its weights.

    checking: starts to check the weights.
    """
    opened: list[SavedModel] = []
    with Background() as reading:
        reading.start(lambda: opened.append(open_model(asked.run, report.note, checking.start)))
        Sampler(asked.sampling)  # NumPy imports its generators at their first use
        backend = opening.backend(report.note)
        reading.wait()
    return opened[0], backend


def _given_prompts(asked: GenerateCommand, report: Reporter) -> list[Prompt]:
    """Return the prompts to continue; UsageError for options that can't be combined."""
    if "" in asked.stop:
        raise click.UsageError("--stop must not be empty")
    check_chat(asked.chat, asked.chat_template, NO_SPECIAL_TOKENS)
    if asked.prompts is None:
        if not report.as_json:
            refuse_given(("log_probabilities",), "is for --prompts and --json")
        text = _single_prompt(asked.prompt, report)
        if asked.chat and not text:
            raise click.UsageError("--chat needs --prompt or --prompts: what the user says")
        return [_prompt_of_line(text, chat=asked.chat)]
    if asked.prompt is not None:
        raise click.UsageError("give --prompt or --prompts, not both")
    if asked.prompts == STANDARD_INPUT:
        report.line(READING_INPUT)
    return read_prompts(asked.prompts, asked.prompt_field, chat=asked.chat)


def _single_prompt(prompt: str | None, report: Reporter) -> str:
    """Return the prompt, from an option or a pipe; a pipe's final line end is removed."""
    if prompt == STANDARD_INPUT:
        report.line(READING_INPUT)
    elif prompt is not None or not piped_input(report):
        return prompt or ""
    return _read_text(STANDARD_INPUT).removesuffix("\n")


def _read_text(path: str) -> str:
    """Return the text of a file, or of standard input; InputError if it can't be read."""
    name = source_name(path)
    with naming(name), input_errors(name):
        if path != STANDARD_INPUT:
            return decode_text(read_whole(path, "file of prompts"))
        if sys.stdin is None:
            raise InputError("can't read standard input: it is closed")
        return decode_text(sys.stdin.buffer.read())


def _print_continued(prompt: str, one: Continuation, generator: Generator) -> None:
    """Print the prompt, then the text bit by bit while it is generated.

    Each bit consists of complete characters, which later tokens can't change. Invalid bytes are
    printed as U+FFFD.
    """
    is_shown = is_terminal(sys.stdout)

    def show(text: str) -> None:
        print_result(printable(text, keep="\n\t") if is_shown else text, end="")

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    show(prompt)
    for _ in generator.continue_all([one]):
        show(decoder.decode(one.text.take()))
    show(decoder.decode(one.text.take(last=True), final=True))
    print_result("")


def _prompt_of_line(text: str, *, chat: bool) -> Prompt:
    """Return the prompt of a text; with `chat`, a conversation of one message by the user."""
    return {MESSAGES: [{"role": "user", "content": text}]} if chat else {PROMPT: text}


def read_prompts(path: str, name_of_field: str | None, *, chat: bool = False) -> list[Prompt]:
    """Read prompts: lines of text, or a field of each object of JSON lines.

    path: a file, or "-" for standard input. name_of_field: the field of JSON lines. If it is None,
    the suffix decides: a file with a suffix in JSON_ENDINGS has JSON lines with the field "prompt"
    ("messages" with chat), and any other file has lines of text. chat: whether a line of text is
    a user's message, and a field a list of messages.

    Raises InputError for a file that can't be read, is not UTF-8 or has no prompts.
    """
    name, lines = source_name(path), _read_text(path).splitlines()
    if name_of_field is None and path.endswith(JSON_ENDINGS):
        name_of_field = MESSAGES if chat else PROMPT
    numbered = [(f"{name}, line {k}", line) for k, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise InputError(f"{name} has no prompts")
    if name_of_field is None:
        return [_prompt_of_line(line, chat=chat) for _, line in numbered]
    return [
        _of_json(parse_json_object(line, where), name_of_field, where, chat=chat)
        for where, line in numbered
    ]


def _of_json(found: Prompt, name: str, where: str, *, chat: bool) -> Prompt:
    content = found.pop(name, None)
    if chat:
        check_messages(content, where, lambda role: True)
    elif not isinstance(content, str):
        raise InputError(f'{where}: no text in "{name}"; use --prompt-field to name another field')
    return found | {MESSAGES if chat else PROMPT: content}


def _encoded(
    prompts: Sequence[Prompt], vocabulary: Vocabulary, model: SavedModel, *, chat: bool
) -> list[list[int]]:
    """Return the ids of each prompt. The ids of a conversation end with the header of a reply.

    The ids of a text start with the tokens that the model's vocabulary adds before a text. A text
    without any id becomes the token between documents; InputError if the model has no such token.
    """
    tokenizer = Tokenizer(vocabulary, device="cpu")
    if chat:
        # Errors of ChatEncoder name options. Errors of Tokenizer's method name its arguments.
        encoder = ChatEncoder(vocabulary, partial(tokenizer.encode, allowed_special=("all",)))
        return [encoder.encode(each[MESSAGES], None, True)[0].tolist() for each in prompts]
    before, start = model.vocabulary.prefix_ids, [] if model.eos_id is None else [model.eos_id]
    found = [[*before, *tokenizer.encode(each[PROMPT]).tolist()] or start for each in prompts]
    if not all(found):
        raise InputError(
            "the model has no end-of-document token, so it can't start without a prompt; give "
            "--prompt"
        )
    return found


def _continue_all(
    generator: Generator, prompts: Sequence[Prompt], begin: Callable[[int], Continuation]
) -> int:
    """Print a JSON line for each prompt, in the order of `prompts`; return the number of new ids.

    begin: returns the continuation of a prompt by its number.
    """
    made: dict[int, Continuation] = {}

    def requests() -> Iterator[Request]:
        for number in range(len(prompts)):
            made[number] = begin(number)
            yield made[number]

    # Continuations end in any order. A line is printed when all earlier prompts have ended.
    ended: set[int] = set()
    written = total = 0
    for number, token in generator.continue_all(requests()):
        if token is None:
            ended.add(number)
        while written in ended:
            one = made.pop(written)
            total += len(one.ids)
            print_result(json.dumps(prompts[written] | one.describe(), ensure_ascii=False))
            written += 1
    return total
