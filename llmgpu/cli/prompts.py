"""What ``llmgpu generate --prompts`` does: continue many prompts, in batches."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import print_result
from llmgpu.errors import InputError
from llmgpu.input_files import decode_text, input_errors, naming, read_whole
from llmgpu.lm.checkpoints.pretrained import SavedModel
from llmgpu.lm.generating.generator import Continuation, Ends, Generator, Request
from llmgpu.lm.generating.sampling import Sampler
from llmgpu.lm.options import SamplingOptions
from llmgpu.text.chat import MESSAGES, check_messages
from llmgpu.text.jsonl import parse_json_object
from llmgpu.text.streams import STANDARD_INPUT
from llmgpu.tokenizer import Tokenizer
from llmgpu.tokenizer.chatting import ChatEncoder

JSON_ENDINGS = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Prompt:
    """A prompt to be continued.

    facts: what its line of JSON says besides. messages: of a conversation that is to be answered,
    in place of a text.
    """

    text: str
    facts: Mapping[str, object] = field(default_factory=dict)
    messages: Sequence[Any] | None = None

    def printed(self) -> str | Sequence[Any]:
        """Return what is continued."""
        return self.text if self.messages is None else self.messages


def from_user(text: str) -> Prompt:
    """Return the conversation that a user begins with a text."""
    return Prompt("", {}, [{"role": "user", "content": text}])


def read_prompts(path: str, name_of_field: str | None, *, chat: bool = False) -> list[Prompt]:
    """Read prompts: lines of text, or a field of each object of JSON lines.

    path: a file, or "-" for standard input. name_of_field: None for lines of text, unless the
    file's name says that it has JSON lines, whose field is "prompt" then, or "messages".
    chat: lines of text are what users say, and fields the messages of conversations.

    Raises InputError for a file that can't be read, is not UTF-8 or has no prompts.
    """
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise InputError("can't read standard input: it is closed")
        name, content = "standard input", sys.stdin.buffer.read()
    else:
        with input_errors(path):
            name, content = path, read_whole(path, "file of prompts")
    with naming(name):
        lines = decode_text(content).splitlines()
    if name_of_field is None and path.endswith(JSON_ENDINGS):
        name_of_field = MESSAGES if chat else "prompt"
    numbered = [(f"{name}, line {k}", line) for k, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise InputError(f"{name} has no prompts")
    if name_of_field is None:
        return [from_user(line) if chat else Prompt(line) for _, line in numbered]
    return [
        _of_json(parse_json_object(line, where), name_of_field, where, chat=chat)
        for where, line in numbered
    ]


def _of_json(found: dict[str, object], name: str, where: str, *, chat: bool) -> Prompt:
    content = found.pop(name, None)
    if chat:
        check_messages(content, where, lambda role: True)
        return Prompt("", found, cast("list[Any]", content))
    if not isinstance(content, str):
        raise InputError(f'{where}: no text in "{name}"; use --prompt-field to name another field')
    return Prompt(content, found)


def prompt_ids(
    tokenizer: Tokenizer, conversations: ChatEncoder, prompt: Prompt, model: SavedModel
) -> list[int]:
    """Return a prompt's ids; those of a conversation end with what begins a reply.

    Those of a text follow what the model's vocabulary puts before one. Without any of these, return
    the token between documents; InputError if there is none.
    """
    if prompt.messages is not None:
        answered, _ = conversations.encode(prompt.messages, None, True)
        return list(map(int, answered))
    ids = [*model.vocabulary.prefix_ids, *tokenizer.encode(prompt.text).tolist()]
    if ids:
        return ids
    if model.eos_id is None:
        raise InputError(
            "the model has no end-of-document token, so it can't start without a prompt; give "
            "--prompt"
        )
    return [model.eos_id]


def continue_prompts(
    generator: Generator,
    prompts: list[tuple[Prompt, list[int]]],
    vocabulary: Vocabulary,
    sampling: SamplingOptions,
    ends: Ends,
) -> int:
    """Print a JSON line for each prompt, in their order, and return the number of new ids.

    prompts: with their ids. Each has a sampler of its own: prompt number k has the seed plus k.
    """
    made: dict[int, Continuation] = {}

    def requests() -> Iterator[Request]:
        for number, (_, ids) in enumerate(prompts):
            sampler = Sampler(sampling.numbered(number))
            made[number] = Continuation(vocabulary, ids, sampler, ends)
            yield made[number].request()

    ended: set[int] = set()
    written = total = 0
    for number, token in generator.continue_all(requests()):
        if token is not None:
            continue
        ended.add(number)
        while written in ended:
            prompt, one = prompts[written][0], made.pop(written)
            total += len(one.ids)
            name = "prompt" if prompt.messages is None else MESSAGES
            content = {**prompt.facts, name: prompt.printed(), **one.describe()}
            print_result(json.dumps(content, ensure_ascii=False))
            written += 1
    return total
