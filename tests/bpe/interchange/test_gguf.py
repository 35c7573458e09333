"""GGUF files of a vocabulary, read back by the package gguf and run by llama.cpp."""

from __future__ import annotations

import dataclasses
import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgpu.bpe.interchange import gguf
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import OutputError, VocabularyError
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.samples import random_ranks, rank_vocabulary, texts, trained
from tests.llama_cpp import LlamaCpp

END = "<|endoftext|>"


def read_metadata(path: Path) -> dict[str, Any]:
    reader = pytest.importorskip("gguf").GGUFReader(path)
    names = [name for name in reader.fields if name.startswith("tokenizer.")]
    return {name.removeprefix("tokenizer."): reader.fields[name].contents() for name in names}


def cut_by(pattern: str) -> Vocabulary:
    expression = get_pattern(pattern).expression
    return dataclasses.replace(trained(), pattern=pattern, expression=expression)


def mixed_texts(count: int) -> Iterator[str]:
    """Texts of few alphabets, and of any characters."""
    rng = random.Random(5)
    yield from texts(6, count // 2)
    for _ in range(count - count // 2):
        yield "".join(
            chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))))
            if rng.random() < 0.3
            else rng.choice("aB 1.\n's")
            for _ in range(rng.randrange(30))
        )


def test_tokens_around_a_text(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    notes: list[str] = []
    for before, after, given, found in (
        ((5,), (399,), {}, (5, 399, True, True)),
        ((5,), (), {}, (5, 399, True, False)),
        ((), (7,), {}, (7, 7, False, True)),
        ((5,), (7,), {"bos_id": 5, "eos_id": 399}, (5, 399, True, False)),
        ((5, 6), (), {}, (399, 399, False, False)),
    ):
        vocabulary = dataclasses.replace(cut_by("gpt2"), prefix_ids=before, suffix_ids=after)
        made = gguf.describe(vocabulary, notes.append, **given)
        names = ("bos_token_id", "eos_token_id", "add_bos_token", "add_eos_token")
        assert tuple(made[name] for name in names) == found
    refused = [note for note in notes if "does not add the ids" in note]
    assert refused == [
        "llama.cpp does not add the ids 7 around a text",
        "llama.cpp does not add the ids 5, 6 around a text",
    ]


def test_what_it_holds(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    chat = ChatTemplate("{{ messages }}")
    gguf.write(dataclasses.replace(cut_by("qwen2"), chat=chat), tmp_path / "v.gguf")
    found = read_metadata(tmp_path / "v.gguf")
    assert found["chat_template"] == "{{ messages }}"
    assert (found["ggml.model"], found["ggml.pre"]) == ("gpt2", "qwen2")
    assert (found["ggml.eos_token_id"], found["ggml.bos_token_id"]) == (399, 399)
    assert found["ggml.add_bos_token"] is False and found["ggml.add_eos_token"] is False
    assert len(found["ggml.tokens"]) == 400 and found["ggml.tokens"][32] == "\u0120"
    assert found["ggml.token_type"] == [1] * 399 + [3]
    assert len(found["ggml.merges"]) == 143 and found["ggml.merges"][0].count(" ") == 1


def test_tokens_that_merges_make_need_not_be_taken_whole() -> None:
    pytest.importorskip("gguf")
    ranks = [bytes([byte]) for byte in range(256)] + [b"ab", b"abc"]
    vocabulary = rank_vocabulary({token: i for i, token in enumerate(ranks)}, "gpt2", {END: 600})
    assert vocabulary.takes_whole_tokens and not len(vocabulary.merges)
    assert gguf.describe(vocabulary, [].append)["tokenizer_pre"] == "gpt-2"


def test_ids_without_a_token(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    vocabulary = rank_vocabulary(random_ranks(2), "llama3", {END: 600})
    gguf.write(vocabulary, tmp_path / "v.gguf")
    found = read_metadata(tmp_path / "v.gguf")
    assert found["ggml.pre"] == "llama-bpe"  # which takes tokens whole
    assert found["ggml.tokens"][599] == "[PAD599]" and found["ggml.token_type"][599:] == [5, 3]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (cut_by("nanochat"), "can't cut text by the pattern 'nanochat'; it can by gpt2, llama3"),
        (cut_by("class"), "can't cut text by the pattern 'class'"),
        (trained().with_match("greedy"), "llama.cpp applies merges"),
        (
            dataclasses.replace(trained(), ignore_merges=True),
            "always applies merges",
        ),
        (
            rank_vocabulary(random_ranks(1), "gpt2"),
            "always applies merges",
        ),
        (
            rank_vocabulary({b"a": 0, b"b": 1, b"ab": 2}, "llama3"),
            "254 bytes have no token, the first is 0x00",
        ),
        (
            rank_vocabulary({bytes([i]): i for i in range(256)}, "llama3"),
            "has no merges, which",
        ),
        (
            rank_vocabulary(random_ranks(2), "llama3", {"[PAD599]": 598, END: 600}),
            "has the text of an id without a token",
        ),
    ],
)
def test_what_can_not_be_exact_is_refused(
    tmp_path: Path, vocabulary: Vocabulary, message: str
) -> None:
    with pytest.raises(VocabularyError, match=re.escape(message)):
        gguf.write(vocabulary, tmp_path / "v.gguf")
    assert not list(tmp_path.iterdir())


def test_what_differs_is_noted() -> None:
    notes: list[str] = []
    gguf.describe(cut_by("gpt2"), notes.append)
    assert len(notes) == 1 and "new in Unicode 16" in notes.pop()
    gguf.describe(dataclasses.replace(cut_by("gpt2"), unicode="18.0"), notes.append)
    assert len(notes) == 2 and "the character classes of Unicode 18" in notes[1]
    notes.clear()
    given = dataclasses.replace(cut_by("cl100k"), normalizer="NFC", special_tokens={})
    gguf.describe(given, notes.append)
    assert len(notes) == 4 and "llama.cpp stops at id 11" in notes[0]
    assert "ends in white space with a line break" in notes[2] and "NFC" in notes[3]


def test_only_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(OutputError, match="has to be a file"):
        gguf.write(trained(), "/dev/null")
    (tmp_path / "v.gguf").write_text("notes")
    with pytest.raises(OutputError, match="is text, and a GGUF file would replace it"):
        gguf.write(trained(), tmp_path / "v.gguf")
    gguf.write(trained(), tmp_path / "v.gguf", force=True)
    gguf.write(trained(), tmp_path / "v.gguf")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_is_not_finished_is_removed(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    described = gguf.describe(trained())
    with pytest.raises(KeyError), gguf.new_file(tmp_path / "v.gguf", described, force=False):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(VocabularyError, match=re.escape("pip install 'llmgpu[gguf]'")):
        gguf.load_package()


@pytest.mark.parametrize("pattern", ["gpt2", "llama3", "qwen2"])
def test_llama_cpp_gives_the_same_ids(tmp_path: Path, pattern: str) -> None:
    pytest.importorskip("gguf")
    gguf.write(cut_by(pattern), tmp_path / "v.gguf")
    theirs = LlamaCpp(tmp_path / "v.gguf", vocabulary_only=True)
    assert (theirs.fact("eos"), theirs.fact("get_add_bos")) == (399, 0)
    ours = Tokenizer(cut_by(pattern), "cpu")
    for text in mixed_texts(10_000):
        if "'\u017f" not in text or pattern == "gpt2":
            assert theirs.encode(text) == ours.encode(text).tolist(), text
    marked = f"it's{END} a text"
    wanted = ours.encode(marked, allowed_special="all").tolist()
    assert theirs.encode(marked, special=True) == wanted
    theirs.close()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("cl100k", lambda text: bool(re.search(r"'\u017f|\s[\r\n]\s*\Z|[\r\n]\s+\Z", text))),
        ("rustbpe", lambda text: "'\u017f" in text),
    ],
)
def test_llama_cpp_differs_only_where_the_note_says(
    tmp_path: Path, pattern: str, expected: Any
) -> None:
    pytest.importorskip("gguf")
    gguf.write(cut_by(pattern), tmp_path / "v.gguf")
    theirs = LlamaCpp(tmp_path / "v.gguf", vocabulary_only=True)
    ours = Tokenizer(cut_by(pattern), "cpu")
    for text in mixed_texts(3_000):
        assert theirs.encode(text) == ours.encode(text).tolist() or expected(text), text
    theirs.close()


def test_llama_cpp_takes_ranks(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    vocabulary = rank_vocabulary(random_ranks(2), "rustbpe", {END: 600})
    vocabulary = dataclasses.replace(vocabulary, prefix_ids=(65,), suffix_ids=(600,))
    gguf.write(vocabulary, tmp_path / "v.gguf")
    theirs = LlamaCpp(tmp_path / "v.gguf", vocabulary_only=True)
    ours = Tokenizer(vocabulary, "cpu")
    for text in texts(9, 1_000):
        if "'\u017f" not in text:
            made = ours.encode(text, add_special_tokens=True, dtype=list)
            assert theirs.encode(text) == made, text
    theirs.close()


def test_a_list_longer_than_the_file_is_refused_before_its_texts_are_read() -> None:
    name = b"tokenizer.ggml.tokens"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(name)) + name
    head += struct.pack("<IIQ", 9, 8, 5)  # an array of 5 texts
    with pytest.raises(VocabularyError, match=rf"cut short .* at byte {len(head)}$"):
        gguf.read_metadata(head + bytes(8 * 4))
    assert gguf.read_metadata(head + bytes(8 * 5)) == {name.decode(): [""] * 5}
