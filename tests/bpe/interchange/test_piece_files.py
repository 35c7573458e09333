"""Exports of SentencePiece's kind, which tokenizers and llama.cpp open with the same ids."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgpu.bpe.interchange import gguf, huggingface
from llmgpu.bpe.interchange.formats import WRITERS
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.models import (
    BYTES,
    SPECIAL,
    model,
    random_pieces,
    random_text,
    user_defined,
)
from tests.bpe.interchange.test_piece_files_reading import (
    CASES,
    PREPEND,
    REPLACE,
    added,
    content,
    metaspace,
    steps,
    write,
)
from tests.llama_cpp import LlamaCpp
from tests.reference.pieces import CONTROL, MARK, NORMAL, UNUSED, Piece, encode_model

tokenizers = pytest.importorskip("tokenizers")

PLAIN: list[Piece] = [(MARK, -1.0, NORMAL), ("a", -2.0, NORMAL), ("b", -3.0, NORMAL)]
NO_PREFIX = {3: 0}
ODD = [f"[REF]{MARK}", "x", "<s>", MARK * 2, "</s>", " " * 9]


def distinct(seed: int, *, has_bytes: bool) -> list[Piece]:
    """Return random pieces with scores that all differ, and all characters of their texts."""
    draw = random.Random(seed)
    pieces = random_pieces(seed, has_bytes=has_bytes)
    known = {text for text, _, _ in pieces}
    missing = sorted({c for text, _, kind in pieces if kind == NORMAL for c in text} - known)
    pieces += [(character, 0.0, NORMAL) for character in missing]
    scores = [float(-k) for k in range(len(pieces))]
    draw.shuffle(scores)
    return [
        (text, score if kind == NORMAL else 0.0, kind)
        for (text, _, kind), score in zip(pieces, scores, strict=True)
    ]


def load(folder: Path, data: bytes) -> Tokenizer:
    path = folder / "tokenizer.model"
    path.write_bytes(data)
    return Tokenizer.load(path)


def exported(ours: Tokenizer, folder: Path) -> Any:
    huggingface.write(ours.vocabulary, folder / "t.json", force=True)
    return tokenizers.Tokenizer.from_file(str(folder / "t.json"))


@pytest.mark.parametrize("has_bytes", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_tokenizers_gives_the_ids_of_a_model(seed: int, has_bytes: bool, tmp_path: Path) -> None:
    pieces = distinct(seed, has_bytes=has_bytes)
    ours = load(tmp_path, model(pieces))
    theirs = exported(ours, tmp_path)
    again = Tokenizer.load(tmp_path / "t.json")
    draw = random.Random(seed)
    for text in (random_text(draw, [MARK, "  "]) for _ in range(150)):
        found = theirs.encode(text, add_special_tokens=False).ids
        normalized = MARK + text.replace(" ", MARK) if text else ""
        assert found == encode_model(pieces, normalized), repr(text)
        assert found == again.encode(text, dtype=list) == ours.encode(text, dtype=list)
        if has_bytes:  # an unknown token is spelled in another way
            assert theirs.decode(found, skip_special_tokens=False) == ours.decode(found)
    marked = "a<s>b</s>"
    ids = ours.encode(marked, allowed_special="all", dtype=list)
    assert theirs.encode(marked).ids == ids


def test_user_defined_symbols_without_a_prefix(tmp_path: Path) -> None:
    symbols = ["ab", "<x>", MARK * 3, MARK * 2]
    pieces = [p for p in distinct(4, has_bytes=True) if p[0] not in symbols]
    ours = load(tmp_path, model([*pieces, *user_defined(*symbols)], None, NO_PREFIX))
    theirs = exported(ours, tmp_path)
    draw = random.Random(4)
    for text in (random_text(draw, ["ab", "<x>", "   "]) for _ in range(200)):
        assert theirs.encode(text).ids == ours.encode(text, allowed_special="all", dtype=list)


@pytest.mark.parametrize("name", CASES)
def test_a_tokenizer_json_is_written_as_it_was_read(name: str, tmp_path: Path) -> None:
    made = CASES[name](2)
    ours = Tokenizer.load(write(tmp_path, made))
    theirs = exported(ours, tmp_path)
    assert Tokenizer.load(tmp_path / "t.json").vocabulary.to_bytes() == ours.vocabulary.to_bytes()
    before = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    draw = random.Random(2)
    more = ["<s>", "<|user|>", "ab", "AB", "<0x41>", MARK * 2]
    for text in (random_text(draw, more) for _ in range(200)):
        ids = before.encode(text).ids
        assert theirs.encode(text).ids == ids, repr(text)
        decoded = before.decode(ids, skip_special_tokens=False)
        assert theirs.decode(ids, skip_special_tokens=False) == decoded
    assert theirs.get_vocab() == before.get_vocab()


def test_runs_of_equal_scores(tmp_path: Path) -> None:
    """As in Mistral 7B: the runs of spaces have one score, and one length is missing."""
    runs = [(MARK * length, -9.0, NORMAL) for length in (2, 3, 4, 5, 6, 8)]
    ours = load(tmp_path, model([*SPECIAL, *BYTES, *PLAIN, *runs]))
    theirs = exported(ours, tmp_path)
    for length in range(60):
        text = f"a{' ' * length}b {' ' * (60 - length)}"
        assert theirs.encode(text).ids == ours.encode(text, dtype=list), length


RUN: list[Piece] = [("aa", -9.0, NORMAL), ("aaa", -9.0, NORMAL)]


@pytest.mark.parametrize(
    ("pieces", "normalizer", "message"),
    [
        ([("ab", -1.0, NORMAL), ("ba", -1.0, NORMAL)], {}, "'ab' and 'ba' have equal scores"),
        ([*RUN, ("aab", -8.0, NORMAL)], {}, "'aaa' and 'aa' have equal scores"),
        ([("aa", -9.0, NORMAL), ("aaaa", -9.0, NORMAL)], {}, None),
        ([("aaaa", -9.0, NORMAL), *RUN, ("aaaaaaaaa", -8.0, NORMAL)], {}, None),
        ([("a\u65e5", -1.0, NORMAL)], {}, "the character '\u65e5' is no piece, but the piece 'a"),
        ([("ab", -1.0, UNUSED)], {}, "the unused piece 'ab' is made and split again"),
        ([("c", -1.0, UNUSED), ("ac", -1.0, NORMAL)], {}, "the character 'c' is no piece"),
        ([("c", -1.0, UNUSED), ("cdd", -1.0, UNUSED)], {}, None),
        (user_defined("<x>"), {}, "user-defined piece '<x>' and a dummy prefix"),
        ([], {4: 1}, "which has SentencePiece's remove_extra_whitespaces"),
    ],
)
def test_models_that_a_list_of_merges_can_not_express(
    pieces: list[Piece], normalizer: dict[int, int], message: str | None, tmp_path: Path
) -> None:
    ours = load(tmp_path, model([*SPECIAL, *BYTES, *PLAIN, *pieces], None, normalizer))
    if message is not None:
        with pytest.raises(VocabularyError, match=message):
            huggingface.write(ours.vocabulary, tmp_path / "t.json")
        return
    theirs = exported(ours, tmp_path)
    for text in ("aaaaaaaaaaaa b", "cabcdd", "cddcdd", "aa aaa"):
        assert theirs.encode(text).ids == ours.encode(text, dtype=list)


def test_names_are_all_different(tmp_path: Path) -> None:
    surface: dict[int, int | bytes] = {44: b"?"}
    ours = load(tmp_path, model([("<u>", 0.0, 2), ("<unk>", 0.0, CONTROL), *PLAIN], surface))
    with pytest.raises(VocabularyError, match=r"ids \d+ and \d+ would both be written '<unk>'"):
        huggingface.write(ours.vocabulary, tmp_path / "t.json")


def test_tokens_around_a_text_are_written(tmp_path: Path) -> None:
    ours = load(tmp_path, model([*SPECIAL, *BYTES, *PLAIN]))
    vocabulary = dataclasses.replace(ours.vocabulary, prefix_ids=(1,), suffix_ids=(260,))
    theirs = exported(Tokenizer(vocabulary), tmp_path)
    assert theirs.encode("ab").ids == [1, 259, 260, 261, 260]


def test_a_folder_for_transformers(tmp_path: Path) -> None:
    ours = load(tmp_path, model(distinct(1, has_bytes=True)))
    huggingface.write(ours.vocabulary, f"{tmp_path}/folder/")
    config = json.loads((tmp_path / "folder" / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "</s>"
    package = pytest.importorskip("transformers")
    theirs = package.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert theirs("ab ba", add_special_tokens=False).input_ids == ours.encode("ab ba", dtype=list)


def llama_ids(ours: Tokenizer, folder: Path, more: list[str], seed: int) -> None:
    """Compare the ids of random texts."""
    gguf.write(ours.vocabulary, folder / "v.gguf", force=True)
    theirs = LlamaCpp(folder / "v.gguf", vocabulary_only=True)
    draw = random.Random(seed)
    for text in (random_text(draw, more) for _ in range(400)):
        assert theirs.encode(text) == ours.encode(text, dtype=list), repr(text)
        allowed = ours.encode(text, dtype=list, allowed_special="all")
        assert theirs.encode(text, special=True) == allowed, repr(text)
    theirs.close()


@pytest.mark.parametrize("seed", range(4))
def test_llama_cpp_gives_the_ids_of_a_model(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pieces = random_pieces(seed, has_bytes=True)  # of equal scores, and characters without a piece
    ours = load(tmp_path, model(pieces, None, NO_PREFIX if seed % 2 else {}))
    llama_ids(ours, tmp_path, ODD, seed)


def test_llama_cpp_finds_user_defined_symbols(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    symbols = ["<x>", MARK * 3, MARK * 2, "\n\n", "\n\n\n"]
    pieces = [p for p in random_pieces(5, has_bytes=True) if p[0] not in symbols]
    ours = load(tmp_path, model([*pieces, *user_defined(*symbols)], None, NO_PREFIX))
    notes: list[str] = []
    gguf.describe(ours.vocabulary, notes.append)
    assert len(notes) == 2 and "finds '   ' in spaces only" in notes[0]
    gguf.write(ours.vocabulary, tmp_path / "v.gguf")
    theirs = LlamaCpp(tmp_path / "v.gguf", vocabulary_only=True)
    draw = random.Random(5)
    for text in (random_text(draw, ["<x>", "   ", "\n\n", "\n"]) for _ in range(400)):
        if MARK not in text:
            assert theirs.encode(text) == ours.encode(text, dtype=list), repr(text)


@pytest.mark.parametrize("normalizer", [steps(PREPEND, REPLACE), REPLACE])
@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_llama_cpp_gives_the_ids_of_a_tokenizer_json(
    seed: int, swaps: bool, normalizer: dict[str, Any], tmp_path: Path
) -> None:
    """With all cuts of each token side by side, as transformers converts models; and mixed."""
    pytest.importorskip("gguf")
    pieces = distinct(seed, has_bytes=True)
    vocab = {text: number for number, (text, _, _) in enumerate(pieces)}
    texts = sorted((p for p in pieces if p[2] == NORMAL), key=lambda p: -p[1])
    merges = [
        [text[:k], text[k:]]
        for text, _, _ in texts
        for k in range(1, len(text))
        if text[:k] in vocab and text[k:] in vocab
    ]
    draw = random.Random(seed)
    for place in draw.sample(range(len(merges) - 1), 3 * swaps):
        merges[place : place + 2] = merges[place + 1], merges[place]
    more = [added("<|user|>"), added("<y>", special=False)]
    for entry in more:
        entry["id"] = vocab.setdefault(entry["content"], len(vocab))
    made = content(seed, normalizer, vocab=vocab, merges=merges)
    made["added_tokens"] += more
    ours = Tokenizer.load(write(tmp_path, made))
    if swaps:
        try:
            gguf.describe(ours.vocabulary)
        except VocabularyError as error:
            assert "here the order of their merges is the other" in str(error)
            return
    llama_ids(ours, tmp_path, ["<|user|>", "<y>", "<s>"], seed)


def change_merges(made: dict[str, Any], merges: list[list[str]]) -> None:
    for text in ("ab", "bc", "abc"):
        made["model"]["vocab"].setdefault(text, len(made["model"]["vocab"]))
    for text in "abc":
        made["model"]["vocab"].setdefault(text, len(made["model"]["vocab"]))
    made["model"]["merges"] = merges


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda made: change_merges(made, [["a", "b"]]), "would merge 'b' and 'c' to the"),
        (
            lambda made: change_merges(made, [["b", "c"], ["a", "b"], ["ab", "c"]]),
            "would merge 'a' and 'bc' to the token 'abc'; here they do not",
        ),
        (lambda made: made["model"].update(ignore_merges=True), "ignore_merges"),
        (
            lambda made: made.update(normalizer=steps({"type": "Lowercase"}, REPLACE)),
            "can't normalize text by the steps Lowercase, Replace",
        ),
        (
            lambda made: made.update(normalizer=None, pre_tokenizer=metaspace("first", False)),
            "steps Replace, Metaspace",
        ),
    ],
)
def test_files_that_llama_cpp_would_encode_otherwise(
    changed: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    made = content(0, REPLACE)
    made["model"]["vocab"] = {
        text: number
        for number, text in enumerate(
            [t for t in made["model"]["vocab"] if len(t) == 1 or t.startswith("<")]
        )
    }
    made["model"]["merges"] = []
    changed(made)
    ours = Tokenizer.load(write(tmp_path, made))
    with pytest.raises(VocabularyError, match=message):
        gguf.describe(ours.vocabulary)


@pytest.mark.parametrize(
    ("pieces", "normalizer", "message"),
    [
        ([], {}, "needs byte tokens"),
        ([*BYTES, *user_defined("<x>")], {}, "'<x>' and a dummy prefix"),
        ([*BYTES, *user_defined("xy", "yz")], NO_PREFIX, "'xy' and 'yz' may overlap"),
        ([*BYTES, ("ab", 0.0, CONTROL)], {}, "would merge 'a' and 'b' to the token 'ab'"),
        ([*BYTES, ("ab", 0.0, UNUSED)], {}, "would merge 'a' and 'b' to the token 'ab'"),
    ],
)
def test_models_that_llama_cpp_would_encode_otherwise(
    pieces: list[Piece], normalizer: dict[int, int], message: str, tmp_path: Path
) -> None:
    ours = load(tmp_path, model([*SPECIAL, *PLAIN, *pieces], None, normalizer))
    with pytest.raises(VocabularyError, match=message):
        gguf.describe(ours.vocabulary)


def test_the_package_trains_models_that_both_tools_open(tmp_path: Path) -> None:
    package = pytest.importorskip("sentencepiece")
    pytest.importorskip("gguf")
    lines = [
        f"low lower lowest, new newer newest {k} \u00e9t\u00e9 \u65e5\u672c" for k in range(99)
    ]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    package.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"),
        model_prefix=str(tmp_path / "m"),
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    ours = Tokenizer.load(tmp_path / "m.model")
    theirs = exported(ours, tmp_path)
    draw = random.Random(0)
    processor = package.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    for _ in range(300):
        text = "".join(draw.choice("lowernst  ,é日x\n") for _ in range(draw.randrange(40)))
        assert theirs.encode(text).ids == processor.encode(text) == ours.encode(text, dtype=list)
    llama_ids(ours, tmp_path, ["lowest", "newer ", "\u00e9t\u00e9"], 1)


def test_other_formats_name_the_two(tmp_path: Path) -> None:
    ours = load(tmp_path, model([*SPECIAL, *PLAIN])).vocabulary
    with pytest.raises(VocabularyError, match="huggingface and gguf can hold such a vocabulary"):
        WRITERS["tiktoken"].write(ours, tmp_path / "t.tiktoken")


def test_rows_without_a_token(tmp_path: Path) -> None:
    """llama.cpp would make their texts, too, if the pieces spell them."""
    ours = load(tmp_path, model([*SPECIAL, *BYTES, *PLAIN]))
    made = gguf.describe(ours.vocabulary, rows=265)
    assert made["token_list"][262:] == ["[PAD262]", "[PAD263]", "[PAD264]"]
    assert made["token_types"][262:] == [5, 5, 5] and len(made["token_scores"]) == 265
    more = [("[P", "[PA", "[PAD", "99", "999", "999]"), tuple("[PAD9]")]
    texts = [text for group in more for text in group]
    parts: list[Piece] = [(text, -float(k), NORMAL) for k, text in enumerate(texts, 9)]
    ours = load(tmp_path, model([*SPECIAL, *BYTES, *PLAIN, *parts]))
    gguf.describe(ours.vocabulary, rows=999)
    with pytest.raises(VocabularyError, match=r"would merge '\[PAD' and '999\]' to the token"):
        gguf.describe(ours.vocabulary, rows=1000)
