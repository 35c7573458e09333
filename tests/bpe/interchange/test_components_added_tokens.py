"""Added tokens that are tokens of the model, too, against tokenizers."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from llmgpu.bpe.interchange import huggingface, tiktoken
from llmgpu.bpe.interchange.token_tables import to_text
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer import Tokenizer as LlmgpuTokenizer

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
LOWERCASE = {"type": "Lowercase"}
PREPEND = {"type": "Prepend", "prepend": "p"}
MERGES = [("a", "b"), ("Ġ", "a"), ("ab", "c")]


def describe(
    added: Sequence[dict[str, Any]], normalizer: dict[str, Any] | None, merges: list[Any] = MERGES
) -> dict[str, Any]:
    """Return a tokenizer.json with ignore_merges whose added tokens are in the model."""
    ids = {to_text(bytes([value])): value for value in range(256)}
    ids |= {left + right: 256 + k for k, (left, right) in enumerate(merges)}
    entries = [{"id": len(ids) + k} | each for k, each in enumerate(added)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model_ids = ids | {entry["content"]: entry["id"] for entry in entries}
    model = {"type": "BPE", "vocab": model_ids, "merges": merges, "ignore_merges": True}
    return {
        "version": "1.0",
        "added_tokens": [flags | {"special": True} | entry for entry in entries],
        "normalizer": normalizer,
        "pre_tokenizer": BYTE_LEVEL | {"use_regex": True},
        "decoder": BYTE_LEVEL,
        "model": model,
    }


def check(path: Path, content: dict[str, Any], texts: Sequence[str]) -> Vocabulary:
    """Compare the ids of texts, also after a file of the vocabulary and after export."""
    path.write_text(json.dumps(content))
    theirs = Tokenizer.from_file(str(path))
    read = Vocabulary.from_bytes(huggingface.read(path).to_bytes())
    huggingface.write(read, path, force=True)
    back, ours = Tokenizer.from_file(str(path)), LlmgpuTokenizer(read, device="cpu")
    for text in texts:
        expected = theirs.encode(text).ids
        assert ours.encode(text, allowed_special="all").tolist() == expected, text
        assert back.encode(text).ids == expected, text
    return read


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [(LOWERCASE, "PAD"), (PREPEND, "ad"), ({"type": "NFC"}, "\u212ab"), (None, "_Kb")],
)
def test_a_token_that_normalizing_makes(
    tmp_path: Path, normalizer: dict[str, Any] | None, text: str
) -> None:
    added = [{"content": "pad"}, {"content": "Kb", "single_word": True}]
    content = describe(added, normalizer)
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert Tokenizer.from_file(str(tmp_path / "t.json")).encode(text).ids[-1] in (259, 260)
    read = check(tmp_path / "t.json", content, [text, "pad", "Pad x pad", "Kb", "xKb", "pad" * 2])
    assert set(read.whole_tokens) <= {259, 260} and read.whole_tokens


def test_random_texts(tmp_path: Path) -> None:
    rng = random.Random(4)
    contents = ("pad", "Kb", "a b", "<x>", "abc!", "pb", "kb", "p")
    parts = (*contents, *"PADKBpadkb _", "\u212a", "<", "X>", "Abc")
    checked = 0
    for _ in range(60):
        added = [
            {"content": text, "single_word": rng.random() < 0.3, "normalized": rng.random() < 0.3}
            for text in rng.sample(contents, 3)
        ]
        normalizer = rng.choice([None, LOWERCASE, PREPEND, {"type": "NFC"}])
        texts = ["".join(rng.choices(parts, k=rng.randrange(8))) for _ in range(40)]
        try:
            check(tmp_path / "t.json", describe(added, normalizer), texts)
        except VocabularyError as error:
            assert "same text once it is" in str(error) or "the byte 0x70" in str(error)
            continue
        checked += 1
    assert checked > 20


def test_only_a_token_that_text_reaches_is_kept(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(describe([{"content": "<x>"}], LOWERCASE)))
    read = huggingface.read(tmp_path / "t.json")
    assert read.whole_tokens == () and b"whole_tokens" not in read.to_bytes()


def test_a_token_of_other_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(describe([{"content": "Ġyes"}], None)))
    with pytest.raises(VocabularyError, match="'Ġyes' is also the model's token for the bytes 20"):
        huggingface.read(tmp_path / "t.json")


def normalizing(*numbers: int) -> Vocabulary:
    """Return a vocabulary of ranks with a special token "pad" at ids 256 or later."""
    content = describe([], LOWERCASE, [("a", "b")])
    tokens = [bytes([value]) for value in range(256)] + [b"ab", b"ac"]
    special = {}
    for text, number in zip(("pad", "<y>"), numbers, strict=False):
        tokens.insert(number, text.encode())
        special[text] = number
    base = huggingface_vocabulary(content)
    return replace(
        base,
        tokens=tuple(tokens),
        merges=base.merges[:0],
        special_tokens=special,
        ignore_merges=True,
    )


def huggingface_vocabulary(content: dict[str, Any]) -> Vocabulary:
    path = Path("t.json")
    path.write_text(json.dumps(content))
    return huggingface.read(path)


def test_export_leaves_a_token_out_that_text_would_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vocabulary = normalizing(258, 259)
    huggingface.write(vocabulary, "out.json")
    content = json.loads(Path("out.json").read_text())
    assert "pad" not in content["model"]["vocab"]
    theirs, ours = Tokenizer.from_file("out.json"), LlmgpuTokenizer(vocabulary, device="cpu")
    for text in ("PAD", "pad", "<Y> <y> pad", "Pad AB"):
        expected = ours.encode(text, allowed_special="all").tolist()
        assert theirs.encode(text).ids == expected
    assert ours.encode("PAD").tolist() == [*b"pad"]
    with pytest.raises(VocabularyError, match=r"'pad' would also be a token of the model.*id 256"):
        huggingface.write(normalizing(256), "other.json")


def test_ranks_that_never_merge_come_back(tmp_path: Path) -> None:
    tokens = {bytes([value]): value for value in range(256)} | {b"abc": 256}
    ranks = tmp_path / "r.tiktoken"
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in tokens.items()]
    ranks.write_text("".join(lines))
    vocabulary = tiktoken.read(ranks, pattern="llama3")
    huggingface.write(vocabulary, tmp_path / "t.json")
    theirs = Tokenizer.from_file(str(tmp_path / "t.json"))
    read = huggingface.read(tmp_path / "t.json")
    for text in ("abc", "abcd", "abc abc", " abc", "xabc", "ab"):
        ids = theirs.encode(text).ids
        for ours in (vocabulary, read):
            assert LlmgpuTokenizer(ours, device="cpu").encode(text).tolist() == ids
    content = json.loads((tmp_path / "t.json").read_text())
    content["model"]["vocab"]["bc"] = 257
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(VocabularyError, match="b'abc' consists of two others"):
        huggingface.read(tmp_path / "t.json")
