"""The tokens that a tokenizer.json puts around a text, compared with tokenizers itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Peer
from tokenizers import processors

from llmgpu.bpe.interchange import huggingface
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.samples import texts, train_peer, trained

BEGIN, END = "<pad>", "<|endoftext|>"
IDS = {END: 0, BEGIN: 1}


def template(single: str) -> Any:
    return processors.TemplateProcessing(single=single, special_tokens=list(IDS.items()))


# Which tokens stand around a text, and those who put them there.
KINDS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "Qwen": (processors.ByteLevel(trim_offsets=False), (), ()),
    "Llama 3": (
        processors.Sequence([processors.ByteLevel(), template(f"{BEGIN} $A")]),
        (1,),
        (),
    ),
    "GPT-NeoX": (template("$A"), (), ()),
    "Qwen embeddings": (template(f"$A {END}"), (), (0,)),
    "GLM": (template(f"{BEGIN} {END} $A"), (1, 0), ()),
    "more after": (template(f"{BEGIN} $A {END} {BEGIN}:1 {END}"), (1,), (0, 1, 0)),
    "RoBERTa": (processors.RobertaProcessing((END, 0), (BEGIN, 1)), (1,), (0,)),
    "BERT": (processors.BertProcessing((END, 0), (BEGIN, 1)), (1,), (0,)),
}


@pytest.fixture(params=KINDS)
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Peer:
    made = train_peer()
    made.post_processor = KINDS[request.param][0]
    made.save(str(tmp_path / "t.json"))
    return made


def test_ids_are_those_of_the_library(peer: Peer, tmp_path: Path) -> None:
    Tokenizer.load(tmp_path / "t.json").save(tmp_path / "v.bin")
    tokenizer = Tokenizer.load(tmp_path / "v.bin")
    tokenizer.export("huggingface", tmp_path / "back.json")
    back = Peer.from_file(str(tmp_path / "back.json"))
    samples = [*texts(5, 40), "", f"a{BEGIN}b", BEGIN, "low lower " * 8000]
    for text in samples:
        plain = peer.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, allowed_special="all", dtype=list) == plain
        made = tokenizer.encode(text, allowed_special="all", add_special_tokens=True, dtype=list)
        assert made == peer.encode(text).ids == back.encode(text).ids
        assert back.encode(text, add_special_tokens=False).ids == plain
    several = tokenizer.encode_batch(
        samples, allowed_special="all", add_special_tokens=True, dtype=list
    )
    assert several == [each.ids for each in peer.encode_batch(samples)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept(kind: str, tmp_path: Path) -> None:
    made, notes = train_peer(), list[str]()
    made.post_processor, before, after = KINDS[kind]
    made.save(str(tmp_path / "t.json"))
    read = huggingface.read(tmp_path / "t.json", note=notes.append)
    assert (read.prefix_ids, read.suffix_ids) == (before, after)
    assert read.fingerprint == replace(read, prefix_ids=(), suffix_ids=()).fingerprint
    asked = sum("--add-special-tokens" in note for note in notes)
    pairs = sum("between two texts" in note for note in notes)
    assert (asked, pairs) == (bool(before or after), kind in ("RoBERTa", "BERT"))


def test_other_tokens_go_around_these(tmp_path: Path) -> None:
    """What --bos and --eos name is outside."""
    made = train_peer()
    made.post_processor = template(f"{BEGIN} $A {END}")
    made.save(str(tmp_path / "t.json"))
    tokenizer = Tokenizer.load(tmp_path / "t.json")
    ids = tokenizer.encode("low", bos=END, eos="!", add_special_tokens=True, dtype=list)
    middle = made.encode("low").ids
    assert ids == [0, *middle, tokenizer.token_to_id("!")]


def test_an_ordinary_token_around_a_text(tmp_path: Path) -> None:
    """It is named as the model names it; the two texts of a pair are treated alike."""
    made = replace(trained("gpt2"), prefix_ids=(10, 32), suffix_ids=(10,))
    huggingface.write(made, tmp_path / "t.json")
    back = Peer.from_file(str(tmp_path / "t.json"))
    assert back.encode("a").ids == [10, 32, 97, 10]
    assert back.encode("a", "b").ids == [10, 32, 97, 10, 10, 32, 98, 10]
    assert back.encode("a").tokens[:2] == ["\u010a", "\u0120"]
    assert huggingface.read(tmp_path / "t.json").prefix_ids == (10, 32)


A, B = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}
MARK = {"SpecialToken": {"id": "m", "type_id": 0}}


def of_pieces(*pieces: Any, ids: Any = (0,)) -> dict[str, Any]:
    known = {"m": {"id": "m", "ids": ids, "tokens": ["m"]}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": known}


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (of_pieces(), r"TemplateProcessing must have the text, \$A, once"),
        (of_pieces(MARK), "once"),
        (of_pieces(A, MARK, A), "once"),
        (of_pieces(MARK, B), "once"),
        (of_pieces({}), "once"),
        (of_pieces("A"), "not what the library writes"),
        (of_pieces(A, {"SpecialToken": {"id": "x", "type_id": 0}}), "not what the library writes"),
        (of_pieces(A, MARK, ids="0"), "the post_processor's token 'm' has id '0'"),
        (of_pieces(A, MARK, ids=(-1,)), "'m' has id -1"),
        (of_pieces(A, MARK, ids=(5000,)), "id 5000, added around a text, is not in the vocabulary"),
        ({"type": "TemplateProcessing"}, "not what the library writes"),
        ({"type": "BertProcessing", "cls": ["x", 1], "sep": ["y"]}, "BertProcessing is not what"),
        (
            {"type": "Sequence", "processors": [of_pieces(A, MARK), of_pieces(A)]},
            "TemplateProcessing is followed by another that adds tokens",
        ),
    ],
)
def test_what_is_refused(component: Any, message: str, tmp_path: Path) -> None:
    content = json.loads(train_peer().to_str()) | {"post_processor": component}
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(VocabularyError, match=message):
        huggingface.read(tmp_path / "t.json")
