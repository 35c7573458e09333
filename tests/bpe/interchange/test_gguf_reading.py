"""GGUF vocabularies: written by the package gguf, read here, and run by llama.cpp."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmgpu.bpe.interchange import gguf
from llmgpu.bpe.interchange.formats import find_vocabulary, open_vocabulary
from llmgpu.bpe.interchange.gguf import CUTS, read_metadata
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.models import BYTES, SPECIAL, model, random_pieces, random_text
from tests.bpe.interchange.samples import random_ranks, rank_vocabulary
from tests.bpe.interchange.test_gguf import END, cut_by, mixed_texts
from tests.llama_cpp import LlamaCpp
from tests.reference.pieces import CONTROL, MARK, NORMAL, UNKNOWN, Piece, encode_model

PLAIN: list[Piece] = [(MARK, -1.0, NORMAL), ("a", -2.0, NORMAL), ("b", -3.0, NORMAL)]
MANY_MARKS = ("gpt-4o", "llama4", "tekken")  # their expressions differ on marks


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(value: Any) -> bytes:
    """A value with its type, by the description of the format."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + string(value)
    kinds = {str: 8, int: 5, float: 6}
    kind = kinds[type(value[0])]
    each = {8: string, 5: struct.Struct("<i").pack, 6: struct.Struct("<f").pack}[kind]
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(each, value))


def file_of(values: Mapping[str, Any], version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, 0, len(values))
    return head + b"".join(string(name) + value_of(value) for name, value in values.items())


def ggml(**values: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


def pieces_file(pieces: list[Piece], **changes: Any) -> dict[str, Any]:
    return ggml(
        model="llama",
        tokens=[text for text, _, _ in pieces],
        scores=[score for _, score, _ in pieces],
        token_type=[kind for _, _, kind in pieces],
        bos_token_id=1,
        eos_token_id=2,
        **changes,
    )


def save(folder: Path, values: Mapping[str, Any]) -> Path:
    path = folder / "v.gguf"
    path.write_bytes(file_of(values))
    return path


def write_with(path: Path, vocabulary: Vocabulary, **changes: Any) -> None:
    described = gguf.describe(vocabulary) | changes
    with gguf.new_file(path, described, force=True) as writer:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()


def test_the_package_reads_the_same_values(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    gguf.write(cut_by("qwen2"), tmp_path / "v.gguf")
    fields = package.GGUFReader(tmp_path / "v.gguf").fields
    expected = {
        name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")
    }
    assert read_metadata((tmp_path / "v.gguf").read_bytes()) == expected
    own = {**pieces_file([*SPECIAL, *BYTES, *PLAIN]), "other": 1, "general.name": "x"}
    assert read_metadata(file_of(own, version=2)).keys() < own.keys()


@pytest.mark.parametrize("pattern", ["gpt2", "llama3", "qwen2", "o200k"])
def test_an_export_is_read_back(pattern: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    vocabulary = cut_by(pattern)
    gguf.write(vocabulary, tmp_path / "v.gguf")
    again = open_vocabulary(tmp_path / "v.gguf")
    assert again.fingerprint == vocabulary.fingerprint
    assert again.special_tokens == vocabulary.special_tokens
    assert find_vocabulary(tmp_path / "v.gguf").format == "gguf"


def test_ranks_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    vocabulary = rank_vocabulary(random_ranks(2), "llama3", {END: 600})
    gguf.write(vocabulary, tmp_path / "v.gguf")
    again = open_vocabulary(tmp_path / "v.gguf")
    assert again.size == 601 and again.tokens[599] == b""
    ours, theirs = Tokenizer(again, "cpu"), Tokenizer(vocabulary, "cpu")
    for text in mixed_texts(300):
        assert ours.encode(text, dtype=list) == theirs.encode(text, dtype=list)


@pytest.mark.parametrize("name", CUTS)
def test_llama_cpp_cuts_text_alike(name: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("regex")
    write_with(tmp_path / "v.gguf", cut_by("gpt2"), tokenizer_pre=name)
    notes: list[str] = []
    ours = Tokenizer(open_vocabulary(tmp_path / "v.gguf", note=notes.append), "cpu")
    theirs = LlamaCpp(tmp_path / "v.gguf", vocabulary_only=True)
    for text in mixed_texts(600):
        if name in MANY_MARKS:
            text = text.encode("ascii", "ignore").decode()
        if "'\u017f" not in text or not any("U+017F" in note for note in notes):
            assert theirs.encode(text) == ours.encode(text, dtype=list), text
    theirs.close()
    assert (name in MANY_MARKS) == any("combining marks" in note for note in notes)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_pieces_are_those_of_a_model(seed: int, prefix: bool, tmp_path: Path) -> None:
    pieces = random_pieces(seed, has_bytes=True)
    path = save(tmp_path, pieces_file(pieces, add_space_prefix=prefix))
    ours = Tokenizer.load(path)
    assert ours.vocabulary.prefix_ids == (1,)
    draw = random.Random(seed)
    for text in (random_text(draw, [MARK]) for _ in range(60)):
        normalized = (MARK * prefix + text.replace(" ", MARK)) if text else ""
        assert ours.encode(text, dtype=list) == encode_model(pieces, normalized), repr(text)


@pytest.mark.parametrize("seed", range(4))
def test_exported_pieces_are_read_back(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "t.model").write_bytes(model(random_pieces(seed, has_bytes=True)))
    first = Tokenizer.load(tmp_path / "t.model")
    gguf.write(first.vocabulary, tmp_path / "v.gguf")
    again = Tokenizer.load(tmp_path / "v.gguf")
    assert again.vocabulary.special_tokens == first.vocabulary.special_tokens
    draw = random.Random(seed)
    texts = [random_text(draw, [MARK, "<s>"]) for _ in range(100)]
    for text in texts:
        ids = first.encode(text, dtype=list)
        assert again.encode(text, dtype=list) == ids
        assert again.decode(ids) == first.decode(ids)
    theirs = LlamaCpp(tmp_path / "v.gguf", vocabulary_only=True)
    for text in texts:
        assert theirs.encode(text) == again.encode(text, dtype=list)
    theirs.close()


def test_a_file_with_weights_behind_the_vocabulary(tmp_path: Path) -> None:
    path = save(tmp_path, pieces_file([*SPECIAL, *BYTES, *PLAIN]))
    with path.open("ab") as file:
        file.truncate(1 << 32)
    assert find_vocabulary(path).format == "gguf"
    assert open_vocabulary(path).size == 262


def test_the_chat_template_and_the_tokens_around(tmp_path: Path) -> None:
    made = pieces_file([*SPECIAL, *BYTES, *PLAIN], add_bos_token=False, add_eos_token=True)
    made["tokenizer.chat_template"] = "{{ messages }}"
    vocabulary = open_vocabulary(save(tmp_path, made))
    assert (vocabulary.prefix_ids, vocabulary.suffix_ids) == ((), (2,))
    assert vocabulary.chat is not None and vocabulary.chat.source == "{{ messages }}"
    assert vocabulary.chat.tokens == {"bos_token": "<s>", "eos_token": "</s>"}


SMALL = ggml(model="gpt2", pre="gpt-2", tokens=["a", "b", "ab"], merges=["a b"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (ggml(model="bert"), "tokenizer 'bert' is not supported; supported: gpt2, and llama"),
        (ggml(model="t5"), "tokenizer 't5' is not supported"),
        (ggml(pre="default"), "pre-tokenizer 'default' is not supported; supported: codeshell"),
        (ggml(pre=5), "pre-tokenizer 5 is not"),
        (ggml(merges=["ab"]), "merge 1 of the list is not two tokens: 'ab'"),
        (ggml(merges=["a c"]), "a merge needs the token 'c'"),
        (ggml(merges="a b"), "no list tokenizer.ggml.merges of type str"),
        (ggml(tokens=["a", "a"]), "ids 0 and 1 are both 'a'"),
        (ggml(tokens=["a", "b", "\u65e5"]), "not written in the byte-level alphabet"),
        (ggml(token_type=[1]), "the types of tokens are not 3 numbers from 1 to 6"),
        (ggml(token_type=[1, 1, 9]), "are not 3 numbers"),
        (ggml(bos_token_id=3), "the bos token has id 3, which is no token"),
        (ggml(model="llama"), "no list tokenizer.ggml.scores"),
        (ggml(model="llama", scores=[0.0]), "1 scores for 3 tokens"),
        (ggml(model="llama", scores=[0.0] * 3), "unknown and byte pieces"),
    ],
)
def test_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=re.escape(message)):
        open_vocabulary(save(tmp_path, SMALL | changes))


def test_user_defined_tokens_and_unknown_ids(tmp_path: Path) -> None:
    kinds = {UNKNOWN: "<unk>", CONTROL: "<s>", 4: "<x>", 5: "[PAD9]"}
    tokens = ["a", "b", "ab", *kinds.values()]
    made = SMALL | ggml(tokens=tokens, token_type=[1, 1, 1, *kinds])
    vocabulary = open_vocabulary(save(tmp_path, made))
    assert vocabulary.special_tokens == {"<unk>": 3, "<s>": 4, "<x>": 5}
    notes: list[str] = []
    pieces: list[Piece] = [*SPECIAL, *BYTES, *PLAIN, ("  ", 0.0, 4)]
    found = open_vocabulary(save(tmp_path, pieces_file(pieces)), note=notes.append)
    assert found.always_allowed == ("  ",)
    assert notes[0].startswith("llama.cpp puts a space after each user-defined token")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    data = file_of(SMALL | {"other": 2.5, "numbers": [1, 2]})
    path = tmp_path / "v.gguf"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(VocabularyError):
            open_vocabulary(path)
    draw = random.Random(1)
    for _ in range(2_000):
        damaged = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(data))] = draw.choice([0, 1, 8, 9, 0x7F, 0xFF])
        path.write_bytes(damaged)
        try:
            open_vocabulary(path)
        except VocabularyError as error:
            assert str(error).startswith(str(path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGUF" + struct.pack("<I", 4), "not a GGUF file of version 2 or 3"),
        (file_of({}), "has no vocabulary"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("x") + struct.pack("<I", 13), "type 13"),
        (
            b"GGUF" + struct.pack("<IQQQsIIQ", 3, 0, 1, 1, b"x", 9, 8, 1 << 60),
            "cut short",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("x") + struct.pack("<IIQ", 9, 9, 1),
            "an array of the unsupported type 9",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff", "not UTF-8"),
    ],
)
def test_other_content(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.gguf").write_bytes(data)
    with pytest.raises(VocabularyError, match=message):
        open_vocabulary(tmp_path / "v.gguf")
