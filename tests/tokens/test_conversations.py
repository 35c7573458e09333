"""Which ids of conversations count: by their bytes, and as transformers says it."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange import huggingface
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from llmgpu.tokens.conversations import CHAT_TOKENS, Conversations
from llmgpu.tokens.filters import with_masks
from tests.bpe.interchange.samples import ALPHABETS, texts
from tests.bpe.plain.test_recount_gpu import words

MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
)
UNMARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)


@cache
def trained(normalizer: str | None = None, template: str | None = None) -> Vocabulary:
    corpus = words(5, 3_000, 300) + "".join(texts(5, 200)).encode()
    tokens = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    options = TrainingOptions(400, "qwen2", special_tokens=tokens)
    made = train_vocabulary(corpus_from_bytes(corpus), options, NUMPY).vocabulary
    chat = None if template is None else ChatTemplate(template)
    return dataclasses.replace(
        made, training={}, match="bpe", normalizer=normalizer, unicode="16.0", chat=chat
    )


def conversations(seed: int, count: int) -> list[list[dict[str, str]]]:
    """Messages of few characters of many kinds, special tokens among them."""
    rng = random.Random(seed)

    def content() -> str:
        alphabet = rng.choice([*ALPHABETS, "e\u0301\u0338 >a\u1100\u1161"])
        parts = rng.choices(
            [*alphabet, "<|im_end|>"], [8] * len(alphabet) + [1], k=rng.randrange(20)
        )
        return "".join(parts)

    roles = ("system", "user", "assistant", "tool")
    return [
        [{"role": rng.choice(roles), "content": content()} for _ in range(rng.randrange(1, 7))]
        for _ in range(count)
    ]


def write(folder: Path, made: Sequence[Any]) -> str:
    path = folder / "c.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in made))
    return str(path)


def encode(vocabulary: Vocabulary, path: str) -> list[tuple[list[int], list[bool]]]:
    """Return ids and mask of each conversation of a file."""
    ids: list[int] = []
    mask: list[bool] = []
    starts: list[int] = []
    with Conversations(vocabulary) as chat:
        encoder = open_encoder(vocabulary, NUMPY, 64, special=CHAT_TOKENS)
        with Corpus([path], CorpusOptions("messages", chat=chat)) as corpus:
            for piece in with_masks(encoder.encode(corpus), chat, vocabulary):
                assert piece.mask is not None
                starts += (piece.document_starts + len(ids)).tolist()
                ids += piece.ids.tolist()
                mask += piece.mask.tolist()
    assert chat.in_loss == sum(mask)
    ends = [*starts[1:], len(ids)]
    return [(ids[a:b], mask[a:b]) for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("template", [None, MARKED, UNMARKED])
def test_the_bytes_of_ids_that_count_are_the_assistants(
    tmp_path: Path, template: str | None
) -> None:
    if template:
        pytest.importorskip("jinja2")
    vocabulary = trained(template=template)
    made = conversations(1, 60)
    found = encode(vocabulary, write(tmp_path, made))
    for messages, (ids, mask) in zip(made, found, strict=True):
        text, flags = b"", []
        for message in messages:
            is_reply = message["role"] == "assistant"
            head = "<|im_start|>" + message["role"] + (":" if template == UNMARKED else "\n")
            body, end = message["content"] + "<|im_end|>", "" if template == UNMARKED else "\n"
            for part, counts in ((head, False), (body, is_reply), (end, False)):
                text += part.encode()
                flags += [counts] * len(part.encode())
        assert vocabulary.decode(ids) == text
        edges = [0, *accumulate(len(vocabulary.tokens[i]) for i in ids)]
        spans = pairwise(edges)
        assert mask == [any(flags[begin:end]) for begin, end in spans]


@pytest.mark.parametrize("normalizer", [None, "NFC"])
def test_ids_and_mask_are_those_of_transformers(tmp_path: Path, normalizer: str | None) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = trained(normalizer, MARKED)
    huggingface.write(vocabulary, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    made = conversations(2, 150)
    found = encode(vocabulary, write(tmp_path, made))
    for messages, (ids, mask) in zip(made, found, strict=True):
        expected = theirs.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == expected["input_ids"]
        assert mask == [bool(i) for i in expected["assistant_masks"]], messages


def test_a_character_across_an_edge_counts_once_it_is_normalized(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    vocabulary = trained("NFC", template)
    messages = [
        {"role": "user", "content": "xe"},
        {"role": "assistant", "content": "\u0301yo"},
        {"role": "user", "content": "\u0301z"},
    ]
    [(ids, mask)] = encode(vocabulary, write(tmp_path, [messages]))
    text = unicodedata.normalize("NFC", "xe\u0301yo\u0301z").encode()
    assert vocabulary.decode(ids) == text
    counted = b"".join(vocabulary.tokens[i] for i, counts in zip(ids, mask, strict=True) if counts)
    assert counted == "\u00e9y\u00f3".encode()


def test_a_special_token_that_normalizing_would_make_is_refused(tmp_path: Path) -> None:
    vocabulary = trained("NFC")
    tokens = (*vocabulary.tokens, "\u00e9".encode())
    special = vocabulary.special_tokens | {"\u00e9": len(tokens) - 1}
    vocabulary = dataclasses.replace(vocabulary, tokens=tokens, special_tokens=special)
    path = write(tmp_path, [[{"role": "user", "content": "e\u0301"}]])
    with pytest.raises(InputError, match=r"c.jsonl, line 1: .* text results in '\u00e9'"):
        encode(vocabulary, path)


def test_other_normalizers_are_refused() -> None:
    with pytest.raises(VocabularyError, match="can't be normalized by Lowercase, only by NFC"):
        Conversations(trained('[{"type":"Lowercase"}]'))


def test_without_a_template() -> None:
    vocabulary = dataclasses.replace(trained(), special_tokens={})
    with pytest.raises(
        VocabularyError, match=r"neither a chat template nor .*give --chat-template"
    ):
        Conversations(vocabulary)


def test_a_role_that_the_template_names(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    path = write(tmp_path, [[{"role": "narrator", "content": "a"}]])
    named = "{% if messages[0].role == 'narrator' %}b{% endif %}{% generation %}{% endgeneration %}"
    vocabulary = trained()
    found = encode(dataclasses.replace(vocabulary, chat=ChatTemplate(named)), path)
    assert [vocabulary.decode(ids) for ids, _ in found] == [b"b"]
    with pytest.raises(InputError, match="unknown role 'narrator'"):
        encode(dataclasses.replace(vocabulary, chat=ChatTemplate(MARKED)), path)


def test_tools_that_are_no_list(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"messages": [{"role": "user", "content": ""}], "tools": 1}')
    with pytest.raises(
        InputError, match=re.escape("line 1: the tools are not a list but a number")
    ):
        encode(trained(), str(tmp_path / "c.jsonl"))
    (tmp_path / "c.jsonl").write_text(
        '{"messages": [{"role": "user", "content": ""}], "tools": [{}]}'
    )
    with pytest.raises(InputError, match="the plain template has no place for tools"):
        encode(trained(), str(tmp_path / "c.jsonl"))


def test_the_digest_tells_templates_apart() -> None:
    pytest.importorskip("jinja2")
    digests = set()
    for chat in (None, ChatTemplate("a"), ChatTemplate("a", {"eos_token": "b"})):
        with Conversations(dataclasses.replace(trained(), chat=chat)) as made:
            digests.add(made.digest)
    assert len(digests) == 3


def test_masks_come_in_order() -> None:
    with Conversations(trained()) as chat:
        chat.add([(b"ab", False), (b"cd", True), (b"", True), (b"e", False), (b"fgh", True)])
        assert chat.mask(np.array([0, 1, 3])).tolist() == [False, True]
        assert chat.mask(np.array([3, 4, 5, 7])).tolist() == [True, False, True]
        chat.add([(b"i", False)])
        assert chat.mask(np.array([7, 8, 9])).tolist() == [True, False]
        assert chat.mask(np.array([9])).tolist() == []
