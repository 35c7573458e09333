"""The flags lstrip, rstrip and single_word of added tokens, against Hugging Face's tokenizers."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.encoder import NoTokenError
from llmgpu.bpe.encoding.open import open_encoder, open_matching_encoder
from llmgpu.bpe.encoding.special_encoding import SpecialEncoder, special_matches
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.encoding.special_search import begins_with_word, ends_in_word
from llmgpu.bpe.interchange import gguf, gpt2, huggingface, tiktoken
from llmgpu.bpe.interchange.token_tables import to_text
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.text.corpus import corpus_from_bytes
from llmgpu.text.documents import Piece
from llmgpu.tokenizer import Tokenizer as LlmgpuTokenizer
from tests.bpe.vocabularies import build_vocabulary

FLAGS = ("lstrip", "rstrip", "single_word")
TEXTS = ("<a>", "<a>b", " b", "b ", "ab", "\n<", "a b", "<a> ", "  ", "\u3000", "_x")
PARTS = (*TEXTS, *"ab \n\u3000\u00a0\u2028_1\u00b2\u24b6\u0301\u20ac-", " ", "\U0001f600", "é")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
MERGES = [("a", "b"), (">", "b"), ("<", "a"), ("Ã", "©"), ("Ġ", "a"), ("Ġ", "Ġ")]
NORMALIZERS: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"type": "NFC"},
    {"type": "Lowercase"},
    {"type": "Prepend", "prepend": "_"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
)


def describe(
    added: Sequence[dict[str, Any]],
    merges: Sequence[tuple[str, str]] = (),
    normalizer: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a tokenizer.json of the bytes, merges and added tokens."""
    ids = {to_text(bytes([value])): value for value in range(256)}
    ids |= {left + right: 256 + k for k, (left, right) in enumerate(merges)}
    flags = dict.fromkeys(FLAGS, False) | {"special": True, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [{"id": len(ids) + k} | flags | each for k, each in enumerate(added)],
        "normalizer": normalizer,
        "pre_tokenizer": BYTE_LEVEL | {"use_regex": True},
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": ids, "merges": list(map(" ".join, merges))},
    }


def read(path: Path, content: dict[str, Any]) -> tuple[Vocabulary, Tokenizer]:
    path.write_text(json.dumps(content))
    return huggingface.read(path), Tokenizer.from_file(str(path))


def flagged(path: Path, *flags: str, text: str = "<m>") -> Vocabulary:
    """Return a vocabulary of bytes, "a " and a token with flags."""
    token = {"content": text} | dict.fromkeys(flags, True)
    return read(path / "t.json", describe([token], [("a", "Ġ")]))[0]


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("lstrip", [97, 257, 32, 98, 257]),
        ("rstrip", [97, 32, 257, 98, 257]),
        ("single_word", [97, 32, 257, 32, 98, 60, 109, 62]),
    ],
)
def test_each_flag(tmp_path: Path, flag: str, expected: list[int]) -> None:
    vocabulary = flagged(tmp_path, flag)
    tokenizer = LlmgpuTokenizer(vocabulary, device="cpu")
    theirs = Tokenizer.from_file(str(tmp_path / "t.json"))
    text = "a <m> b<m>"
    assert theirs.encode(text).ids == expected
    assert tokenizer.encode(text, allowed_special="all").tolist() == expected
    (tmp_path / "text.txt").write_text(text)
    found = tokenizer.encode_file(tmp_path / "text.txt", allowed_special="all")
    assert found.tolist() == expected
    huggingface.write(vocabulary, tmp_path / "back.json")
    (back,) = json.loads((tmp_path / "back.json").read_text())["added_tokens"]
    assert [name for name in FLAGS if back[name]] == [flag]


def check_random(path: Path, rng: random.Random) -> None:
    """Compare random texts with random added tokens, cut anywhere."""
    texts = rng.sample(TEXTS, rng.randint(1, 6))
    merges = rng.sample(MERGES, 3)
    made = {left + right for left, right in merges}
    added = [
        {"content": text, "normalized": rng.random() < 0.4}
        | {name: rng.random() < 0.4 for name in FLAGS}
        for text in texts
        if text not in made
    ]
    try:
        ours, theirs = read(path, describe(added, merges, rng.choice(NORMALIZERS)))
    except VocabularyError as error:
        assert "normalized" in str(error)
        return
    ours = Vocabulary.from_bytes(ours.to_bytes())
    inner = open_matching_encoder(ours, NUMPY, rng.choice([1, 5, 1000]))
    cut = rng.choice([1, 2, 3, 7, 100])
    encoder = SpecialEncoder(inner, ours, SpecialOptions(["all"]), cut)
    documents = ["".join(rng.choices(PARTS, k=rng.randrange(12))) for _ in range(30)]
    starts, ids = [0], []
    for piece in encoder.encode(corpus_from_bytes([text.encode() for text in documents])):
        starts += (piece.document_starts + len(ids)).tolist()
        ids += piece.ids.tolist()
    found = [ids[start:end] for start, end in pairwise([*starts[1:], len(ids)])]
    tokenizer = LlmgpuTokenizer(ours, device="cpu")
    for text, each in zip(documents, found, strict=True):
        try:
            expected = theirs.encode(text, add_special_tokens=False)
        except BaseException as error:  # a panic, where white space would be taken twice
            assert "bad split" in str(error)
            continue
        assert each == expected.ids, (text, added)
        # Theirs overlap where a token begins in white space that the one before swallows.
        ends = [0, *(end for _, end in expected.offsets)]
        is_apart = all(
            end <= begin for end, (begin, _) in zip(ends, expected.offsets, strict=False)
        )
        if ours.normalizer is None and is_apart:
            _, offsets = tokenizer.encode_with_offsets(text, allowed_special="all")
            special = [k for k, number in enumerate(each) if number >= 259]
            assert [tuple(offsets[k].tolist()) for k in special] == [
                expected.offsets[k] for k in special
            ]


def test_random_tokens_and_texts(tmp_path: Path) -> None:
    rng = random.Random(20)
    for _ in range(80):
        check_random(tmp_path / "t.json", rng)


@pytest.mark.slow
def test_many_random_tokens_and_texts(tmp_path: Path) -> None:
    rng = random.Random(21)
    for _ in range(3000):
        check_random(tmp_path / "t.json", rng)


@pytest.mark.parametrize("end", [0x3100, pytest.param(0x110000, marks=pytest.mark.slow)])
def test_word_characters_are_those_of_tokenizers(tmp_path: Path, end: int) -> None:
    _, theirs = read(tmp_path / "t.json", describe([{"content": "<m>", "single_word": True}]))
    codes = [code for code in range(end) if not 0xD800 <= code < 0xE000]
    texts = [f"<m>{chr(code)}" for code in codes]
    for code, found in zip(codes, theirs.encode_batch(texts), strict=True):
        data = chr(code).encode()
        is_word = found.ids[0] != 256
        assert begins_with_word(data + b"a") is is_word, hex(code)
        assert ends_in_word(b"a" + data) is is_word, hex(code)


def test_files_without_flags_stay(tmp_path: Path) -> None:
    vocabulary = flagged(tmp_path)
    with_flag = flagged(tmp_path, "lstrip")
    other = flagged(tmp_path, "rstrip")
    assert b"lstrip" not in vocabulary.to_bytes()
    assert len({v.fingerprint for v in (vocabulary, with_flag, other)}) == 3
    marked = replace(vocabulary, normalized_tokens=(257,))
    assert marked.fingerprint != with_flag.fingerprint
    with pytest.raises(VocabularyError, match="lstrip_tokens are not different ids of special"):
        replace(vocabulary, lstrip_tokens=(97,))
    with pytest.raises(VocabularyError, match="can't hold 'rstrip_tokens'"):
        replace(vocabulary, training={"rstrip_tokens": 1})


class Blank:
    """A text of white space in blocks, then a text."""

    def __init__(self, before: bytes, nbytes: int, after: bytes) -> None:
        self.before, self.left, self.after = before, nbytes, after
        self.begun = False

    def read_into(self, buffer: np.ndarray[Any, Any]) -> Piece:
        start = np.zeros(0 if self.begun else 1, np.int64)
        if not self.begun or not self.left:
            data = np.frombuffer(self.before if not self.begun else self.after, np.uint8)
            buffer[: len(data)] = data
            last, self.begun = self.begun, True
            return Piece(buffer[: len(data)], start, last, last)
        count = min(self.left, len(buffer))
        self.left -= count
        buffer[:count] = 32
        return Piece(buffer[:count], start, closed=False)


@pytest.mark.parametrize(("flag", "ends"), [("lstrip", (b"a", b"<m>")), ("rstrip", (b"<m>", b"a"))])
def test_much_white_space_takes_no_memory(
    tmp_path: Path, flag: str, ends: tuple[bytes, bytes]
) -> None:
    # Each thread has blocks of its own.
    special = SpecialOptions(["all"])
    encoder = open_encoder(flagged(tmp_path, flag), NUMPY, special=special, threads=2)
    tracemalloc.start()
    try:
        ids = [i for piece in encoder.encode(Blank(ends[0], 1 << 25, ends[1])) for i in piece.ids]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ids == ([97, 257] if flag == "lstrip" else [257, 97])
    assert peak < 1 << 24


def test_white_space_that_no_token_takes_is_text(tmp_path: Path) -> None:
    vocabulary = flagged(tmp_path, "lstrip")
    inner = open_matching_encoder(vocabulary, NUMPY, 100)
    encoder = SpecialEncoder(inner, vocabulary, SpecialOptions(["all"]), 10)
    pieces = encoder.encode(Blank(b"b", 200_001, b"b"))
    assert [i for piece in pieces for i in piece.ids] == [98, *[32] * 200_001, 98]


class Blocks:
    """A text in given blocks."""

    def __init__(self, *blocks: bytes) -> None:
        self.blocks, self.next = blocks, 0

    def read_into(self, buffer: np.ndarray[Any, Any]) -> Piece:
        data = np.frombuffer(self.blocks[self.next], np.uint8)
        starts = np.zeros(1 if self.next == 0 else 0, np.int64)
        self.next += 1
        buffer[: len(data)] = data
        last = self.next == len(self.blocks)
        return Piece(buffer[: len(data)], starts, last, last)


@pytest.mark.parametrize(
    "blocks", [(b"  ", b"b"), (b"\xe3", b"\x80\x80b"), (b" \xe3", b"\x80\x80b")]
)
def test_white_space_after_a_block_that_is_a_token_is_swallowed(
    tmp_path: Path, blocks: tuple[bytes, ...]
) -> None:
    vocabulary = flagged(tmp_path, "rstrip")
    encoder = open_encoder(vocabulary, NUMPY, special=SpecialOptions(["all"]))
    pieces = encoder.encode(Blocks(b"b", b"<m>", *blocks))
    assert [i for piece in pieces for i in piece.ids] == [98, 257, 98]


def test_the_offset_of_a_byte_without_a_token_counts_white_space(tmp_path: Path) -> None:
    content = describe([{"content": "<m>", "lstrip": True, "rstrip": True}], [("a", "b")])
    ids = content["model"]["vocab"]
    ids["aa"] = ids.pop("z")
    vocabulary, _ = read(tmp_path / "t.json", content)
    encoder = open_encoder(vocabulary, NUMPY, special=SpecialOptions(["all"]))
    text = b"ab   <m>  cd  <m> z"

    def encode() -> Iterator[object]:
        yield from encoder.encode(corpus_from_bytes([text]))

    with pytest.raises(NoTokenError) as caught:
        list(encode())
    assert caught.value.offset == text.index(b"z")


def test_conversations_leave_swallowed_white_space_out(tmp_path: Path) -> None:
    vocabulary = flagged(tmp_path, "lstrip", "rstrip")
    template = "{% for m in messages %}{{ m.role }} <m> {{ m.content }}  <m>\n{% endfor %}"
    tokenizer = LlmgpuTokenizer(vocabulary, device="cpu")
    messages = [{"role": "user", "content": "xy"}, {"role": "assistant", "content": " b <m> c "}]
    template = template.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}",
    )
    ids, mask = tokenizer.apply_chat_template(messages, chat_template=template)
    theirs = Tokenizer.from_file(str(tmp_path / "t.json"))
    text = tokenizer.render_chat_template(messages, chat_template=template)
    assert ids.tolist() == theirs.encode(text).ids
    assert tokenizer.decode(ids[mask]) == "b<m>c"


def test_other_formats_refuse_flags(tmp_path: Path) -> None:
    for flag in FLAGS:
        vocabulary = flagged(tmp_path, flag)
        for module in (gguf, gpt2, tiktoken):
            with pytest.raises(VocabularyError, match=flag):
                module.write(vocabulary, tmp_path / "out")  # type: ignore[attr-defined]


def test_matches_of_a_document(tmp_path: Path) -> None:
    vocabulary = flagged(tmp_path, "lstrip")
    assert special_matches(vocabulary, ("<m>",), b"a  <m> <m>") == [(1, 3, 6, 6), (6, 7, 10, 10)]


def test_a_token_without_normalized_text_is_refused() -> None:
    """Its text would be found everywhere."""
    remove = '[{"type":"Replace","pattern":{"String":"<x>"},"content":""}]'
    vocabulary = build_vocabulary([], pattern="none", tie="hf", special_tokens=["<x>"], training={})
    late = replace(vocabulary, normalizer=remove, normalized_tokens=(256,))
    with pytest.raises(VocabularyError, match="token '<x>' is empty once it is normalized"):
        LlmgpuTokenizer(late, device="cpu").encode("a <x> b", allowed_special="all")
