"""Files of SentencePiece's kind for tokenizers, compared with the library and the oracle."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgpu.cpu.library import library
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer import Tokenizer
from llmgpu.tokenizer.encoders import ProcessEncoders
from tests.bpe.interchange.models import BYTES, random_pieces, random_text
from tests.bpe.interchange.test_sentencepiece import engine_of_host
from tests.reference.pieces import BYTE, MARK, encode_json

tokenizers = pytest.importorskip("tokenizers")

__all__ = ["engine_of_host"]
PREPEND = {"type": "Prepend", "prepend": MARK}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
SPLIT: dict[str, Any] = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
}
SPLIT |= {"invert": False}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
DECODER = [
    {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]


def steps(*members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(members)}


def metaspace(scheme: str, split: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


def added(text: str, number: int = 0, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **plain, "special": True, **flags}


def content(
    seed: int,
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None = None,
    *,
    has_bytes: bool = True,
    more: list[dict[str, Any]] | None = None,
    **model: Any,
) -> dict[str, Any]:
    """Return a file with random tokens, and merges in a random order; some are missing."""
    pieces = random_pieces(seed, has_bytes=has_bytes)
    texts = [text for text, _, kind in pieces if kind != BYTE]
    pairs = [
        [text[:k], text[k:]]
        for text in texts[3:]
        for k in range(1, len(text))
        if text[:k] in texts and text[k:] in texts
    ]
    draw = random.Random(seed)
    draw.shuffle(pairs)
    merges = pairs[: len(pairs) * 5 // 6]
    vocab = {text: number for number, (text, _, _) in enumerate(pieces)}
    following = len(vocab)
    for entry in more or ():
        entry["id"] = vocab.get(entry["content"], following)
        following += entry["content"] not in vocab
    special = [added(text, number) for number, text in enumerate(["<unk>", "<s>", "</s>"])]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [*special, *(more or ())],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*DECODER, STRIP]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": has_bytes,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        }
        | model,
    }


NEW = [added("<|user|>")]
LINES = [added("ab", special=False), added(f"{MARK}{MARK}", special=False)]
CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "llama 2": lambda seed: content(seed, steps(PREPEND, REPLACE)),
    "llama, new": lambda seed: content(seed, None, metaspace("first", False)),
    "metaspace": lambda seed: content(seed, None, metaspace("always", True)),
    "metaspace, unknown": lambda seed: content(
        seed, None, metaspace("never", True), has_bytes=False
    ),
    "gemma": lambda seed: content(seed, REPLACE, SPLIT, more=[dict(each) for each in LINES]),
    "phi 3": lambda seed: content(seed, steps(PREPEND, REPLACE), more=[dict(NEW[0])]),
    "yi": lambda seed: content(seed, steps(REPLACE)),
    "unknown": lambda seed: content(seed, steps(PREPEND, REPLACE), has_bytes=False),
    "unknown, one by one": lambda seed: content(seed, REPLACE, has_bytes=False, fuse_unk=False),
    "no byte tokens": lambda seed: content(seed, REPLACE, has_bytes=False, byte_fallback=True),
    "whole": lambda seed: content(seed, REPLACE, ignore_merges=True),
    "normalized": lambda seed: content(
        seed,
        steps({"type": "Lowercase"}, PREPEND, REPLACE),
        more=[added("AB", normalized=True)],
    ),
}


def write(folder: Path, made: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(made))
    return path


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_the_library_gives_the_same_ids(
    name: str, seed: int, tmp_path: Path, engine_of_host: str
) -> None:
    path = write(tmp_path, CASES[name](seed))
    ours, theirs = Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))
    draw = random.Random(seed)
    more = ["<s>", "<|user|>", "ab", "AB", "<0x41>", MARK * 2]
    texts = [random_text(draw, more) for _ in range(120)]
    found = ours.encode_batch(texts, allowed_special="all")
    for text, ids in zip(texts, found, strict=True):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ids.tolist() == expected, repr(text)
        if name != "normalized":  # the library decodes these added tokens in normalized form
            assert ours.decode(ids) == theirs.decode(expected, skip_special_tokens=False)


@pytest.mark.parametrize("name", CASES)
def test_single_calls_give_the_ids_of_a_batch(name: str, tmp_path: Path) -> None:
    ours = Tokenizer.load(write(tmp_path, CASES[name](4)))
    draw = random.Random(4)
    more = ["<s>", "<|user|>", "ab", "AB", "\n\n", MARK * 2]
    texts: list[str | bytes] = [random_text(draw, more) for _ in range(150)]
    texts += [text.encode() + draw.choice((b"\xff", b"\xe6")) for text in map(str, texts[:20])]
    for given in ({}, {"allowed_special": "all"}, {"bos": 1}):
        found = ours.encode_batch(texts, **given)
        for text, ids in zip(texts, found, strict=True):
            assert ours.encode(text, dtype=list, **given) == ids.tolist(), repr(text)


@pytest.mark.parametrize("name", ["llama 2", "gemma", "normalized"])
def test_a_short_text_is_encoded_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library() is None:
        pytest.skip("no CPU engine")
    ours = Tokenizer.load(write(tmp_path, CASES[name](4)))
    texts = ["ba c", "a<s>", "<s> a<s>b"]
    expected = [ids.tolist() for ids in ours.encode_batch(texts, allowed_special="all")]
    monkeypatch.setattr(ProcessEncoders, "encode_documents", None)
    assert [ours.encode(text, allowed_special="all", dtype=list) for text in texts] == expected
    with pytest.raises(TypeError, match="NoneType"):  # no characters
        ours.encode(b"a\xff", allowed_special="all")


@pytest.mark.parametrize("has_bytes", [True, False])
@pytest.mark.parametrize("fuses", [True, False])
def test_ids_are_those_of_the_oracle(
    has_bytes: bool, fuses: bool, tmp_path: Path, engine_of_host: str
) -> None:
    for seed in range(4):
        made = content(seed, REPLACE, has_bytes=has_bytes, fuse_unk=fuses)
        ours = Tokenizer.load(write(tmp_path, made))
        model = made["model"]
        draw = random.Random(seed)
        for text in (random_text(draw) for _ in range(40)):
            expected = encode_json(
                model["vocab"],
                [(left, right) for left, right in model["merges"]],
                text.replace(" ", MARK),
                unknown="<unk>",
                fuses=fuses,
                has_bytes=has_bytes,
            )
            assert ours.encode(text, dtype=list) == expected, repr(text)


def test_a_prefix_follows_special_tokens_only_where_the_library_puts_it(tmp_path: Path) -> None:
    for scheme, count in (("first", 1), ("always", 2), ("never", 0)):
        made = content(1, None, metaspace(scheme, False))
        path = write(tmp_path, made)
        ours = Tokenizer.load(path)
        ids = ours.encode("x<s>x", allowed_special="all", dtype=list)
        assert ids.count(made["model"]["vocab"][MARK]) == count
        assert ids == tokenizers.Tokenizer.from_file(str(path)).encode("x<s>x").ids


def change(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets the entry at a path to the last argument."""
    *keys, last, value = path

    def set_entry(made: dict[str, Any]) -> None:
        inner: Any = made
        for key in keys:
            inner = inner[key]
        if value is None:
            del inner[last]
        else:
            inner[last] = value

    return set_entry


def test_a_character_with_a_token_needs_no_byte_token(tmp_path: Path, engine_of_host: str) -> None:
    """As the tab of Gemma 2."""
    made = content(2, REPLACE, unk_token=None)
    vocab = made["model"]["vocab"]
    made["model"]["vocab"] = {"\t" if t == "<0x09>" else t: number for t, number in vocab.items()}
    path = write(tmp_path, made)
    ours, theirs = Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))
    ours.vocabulary.save(tmp_path / "v.bin")
    again = Tokenizer.load(tmp_path / "v.bin")
    draw = random.Random(2)
    for text in (random_text(draw, ["\t", "\t\t"]) for _ in range(100)):
        expected = theirs.encode(text).ids
        assert ours.encode(text, dtype=list) == again.encode(text, dtype=list) == expected
        decoded = theirs.decode(expected, skip_special_tokens=False)
        assert ours.decode(expected) == decoded
    assert len(ours.encode(b"\xff\t\xe6")) == 3


def merge_of(left: str, right: str) -> Callable[[dict[str, Any]], None]:
    def add(made: dict[str, Any]) -> None:
        made["model"]["vocab"].setdefault(left + right, 5000)
        made["model"]["merges"].append([left, right])

    return add


def add_byte_token(made: dict[str, Any]) -> None:
    made["added_tokens"].append(added("<0x41>", made["model"]["vocab"]["<0x41>"]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (change("model", "vocab", "<0x41>", None), "1 of the 256 byte tokens are missing: .* 0x41"),
        (change("model", "vocab", "<0xE6>", None), "missing: the byte 0xe6 has no token"),
        (change("model", "unk_token", "<none>"), "unk_token '<none>' is not a token"),
        (change("model", "dropout", 0.1), "dropout"),
        (change("model", "vocab", "a b", 4000), "'a b' is empty or has a space"),
        (merge_of("<0x41>", "<0x42>"), "'<0x41>', which stands for bytes"),
        (merge_of("<unk>", MARK), "a merge names the token '<unk>'"),
        (merge_of("<s>", MARK), "'<s>' is special, and in a merge"),
        (change("normalizer", {"type": "Precompiled"}), "'Precompiled' is not supported"),
        (change("normalizer", {"type": "NFC"}), "does not make U\\+2581 of spaces"),
        (change("pre_tokenizer", {"type": "ByteLevel"}), "'ByteLevel' is not supported"),
        (change("pre_tokenizer", SPLIT | {"pattern": {"String": "a"}}), "Split is supported for"),
        (change("decoder", {"type": "CTC"}), "'CTC' is not supported"),
        (add_byte_token, "the byte token '<0x41>' is also an added token"),
    ],
)
def test_refused(changed: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    made = content(0, REPLACE)
    changed(made)
    with pytest.raises(VocabularyError, match=message):
        Tokenizer.load(write(tmp_path, made))


def test_missing_characters_need_a_token(tmp_path: Path) -> None:
    made = content(0, REPLACE, has_bytes=False, unk_token=None)
    with pytest.raises(VocabularyError, match="neither byte tokens nor an unk_token"):
        Tokenizer.load(write(tmp_path, made))
    assert len(BYTES) == 256


@pytest.mark.parametrize("seed", range(8))
def test_tokens_that_swallow_white_space(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    normalizer = draw.choice([steps(PREPEND, REPLACE), REPLACE, None])
    pre = None if normalizer else metaspace(draw.choice(["always", "first", "never"]), split=False)
    flags = {name: draw.random() < 0.5 for name in ("lstrip", "rstrip", "single_word")}
    more = [added("<x>", **flags), added("<yy>", rstrip=True), added("zz", special=False)]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content(seed, normalizer, pre, more=more)))
    tokenizer, library = Tokenizer.load(path, "cpu"), tokenizers.Tokenizer.from_file(str(path))
    parts = ["<x>", "<yy>", "zz", " ", "  ", "a", "b", "\n"]
    for _ in range(100):
        text = "".join(draw.choice(parts) for _ in range(draw.randint(0, 14)))
        expected = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, dtype=list, allowed_special="all") == expected, text
