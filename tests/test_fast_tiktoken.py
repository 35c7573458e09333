"""`Tokenizer.as_tiktoken(fast=True)`: every call gives what tiktoken's own encoding gives."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiktoken

from llmgpu import Tokenizer
from llmgpu.errors import InputError, VocabularyError
from tests.conftest import examples
from tests.harness.transformers_calls import outcome, random_text

SPECIAL = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load("cl100k", "cpu")


@pytest.fixture(scope="module")
def both(tokenizer: Tokenizer) -> tuple[Any, Any]:
    return tokenizer.as_tiktoken("own"), tokenizer.as_tiktoken("own", fast=True)


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    corpus = ["low lower lowest é 漢字 don't 1234 \n\n"] * 9
    made = Tokenizer.train_from_iterator(
        corpus, vocab_size=300, special_tokens=SPECIAL, pattern="gpt2", device="cpu"
    )
    return made.as_tiktoken(), made.as_tiktoken(fast=True)


def same(call: Callable[[Any], Any], pair: tuple[Any, Any]) -> Any:
    theirs, ours = (outcome(lambda each=each: call(each)) for each in pair)
    assert ours == theirs
    return theirs[0]


def random_call(rng: random.Random) -> Callable[[Any], Any]:
    names = ["encode", "encode_to_numpy", "encode_ordinary"]
    texts: Any = random_text(rng, SPECIAL)
    if rng.random() < 0.4:
        names = ["encode_batch", "encode_ordinary_batch"]
        texts = [random_text(rng, SPECIAL) for _ in range(rng.randrange(4))]
    name = rng.choice(names)
    options: dict[str, Any] = {}
    if "ordinary" not in name:
        if rng.random() < 0.6:
            options["allowed_special"] = rng.choice(["all", set(), {*SPECIAL[:1]}, {"<none>"}])
        if rng.random() < 0.6:
            options["disallowed_special"] = rng.choice(["all", (), SPECIAL[1:2], {"low"}])
    return lambda encoding: getattr(encoding, name)(texts, **options)


@pytest.mark.parametrize("kind", ["published", "trained"])
def test_random_calls(
    kind: str, both: tuple[Any, Any], trained: tuple[Any, Any], number: int = 1500
) -> None:
    pair = both if kind == "published" else trained
    rng = random.Random(kind)
    for _ in range(examples(number)):
        same(random_call(rng), pair)


def test_simple_texts_and_roundtrips(both: tuple[Any, Any]) -> None:
    ours = both[1]
    assert ours.encode("hello world") == [15339, 1917]
    assert ours.decode([15339, 1917]) == "hello world"
    assert ours.encode("hello <|endoftext|>", allowed_special="all") == [15339, 220, 100257]
    for text in ["rer", "'rer", "today\n ", "today\n \n", " \x850", "👍", "", "^" * 5000, "0" * 9]:
        same(lambda encoding, text=text: encoding.encode(text), both)
        assert ours.decode(ours.encode(text)) == text
        assert ours.decode_batch(ours.encode_batch([text, text])) == [text, text]
    for token in range(10_000):
        assert ours.encode_single_token(ours.decode_single_token_bytes(token)) == token
    for surrogates in ("\ud83d\udc4d", "\ud83d", "a\udc4d b"):
        same(lambda encoding, text=surrogates: encoding.encode(text), both)
        same(lambda encoding, text=surrogates: encoding.encode_to_numpy(text), both)


def test_special_tokens_in_text(both: tuple[Any, Any]) -> None:
    text = "<|endoftext|> hello <|fim_prefix|>"
    calls: list[dict[str, Any]] = [
        {},
        {"disallowed_special": "all"},
        {"disallowed_special": ()},
        {"allowed_special": "all"},
        {"allowed_special": "all", "disallowed_special": "all"},
        {"allowed_special": {"<|fim_prefix|>"}},
        {"allowed_special": {"<|fim_prefix|>"}, "disallowed_special": ()},
        {"allowed_special": "all", "disallowed_special": {"<|fim_prefix|>"}},
        {"allowed_special": ["<|endoftext|>"]},
        {"disallowed_special": {"hello"}},
    ]
    for options in calls:
        for name in ("encode", "encode_batch", "encode_to_numpy"):
            given: Any = [text, "x"] if name == "encode_batch" else text
            same(lambda e, n=name, g=given, o=options: getattr(e, n)(g, **o), both)
    with pytest.raises(ValueError, match=r"disallowed special token '<\|endoftext\|>'"):
        both[1].encode(text)
    with pytest.raises(ValueError, match=r"disallowed special token '<\|fim_prefix\|>'"):
        both[1].encode_batch(["a", "<|fim_prefix|>"])


def test_names_and_values(both: tuple[Any, Any]) -> None:
    for call in (
        lambda e: (e.name, e.n_vocab, e.eot_token, e.max_token_value, repr(e)),
        lambda e: sorted(e.special_tokens_set),
        lambda e: e.token_byte_values()[::1000],
        lambda e: e.is_special_token(100257),
        lambda e: e.decode_bytes([15339, 1917]),
        lambda e: e.decode_tokens_bytes([15339, 1917]),
        lambda e: e.decode_with_offsets([15339, 1917]),
        lambda e: e.decode_bytes_batch([[15339], []]),
        lambda e: e.decode([1_000_000]),
        lambda e: e.decode_single_token_bytes(1_000_000),
        lambda e: e.encode_single_token("<|endoftext|>"),
        lambda e: e.encode_single_token("no such token"),
        lambda e: e.encode_batch("ab"),
    ):
        same(call, both)
    assert isinstance(both[1], tiktoken.Encoding)
    ids = both[1].encode_to_numpy("hello")
    assert ids.dtype == np.uint32 and not ids.flags.writeable
    with pytest.raises(TypeError, match="a text is a str, not bytes"):
        both[1].encode(b"hello")


def test_copies(trained: tuple[Any, Any]) -> None:
    for made in (pickle.loads(pickle.dumps(trained[1])), copy.deepcopy(trained[1])):
        assert type(made) is type(trained[1]) and made.name == trained[1].name
        same(lambda e: e.encode("low é<|endoftext|>", allowed_special="all"), (trained[0], made))


def test_refused(trained: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match=r"use as_tiktoken\(\) without fast"):
        trained[1].encode_with_unstable("low")
    greedy = Tokenizer.train_from_iterator(["low low"], vocab_size=258, match="greedy")
    with pytest.raises(VocabularyError, match="greedy matching"):
        greedy.as_tiktoken(fast=True)
