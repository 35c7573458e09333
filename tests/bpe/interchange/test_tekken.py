"""Mistral's tekken.json, compared with tiktoken, which Mistral's own package runs it with."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgpu.bpe.interchange import tekken
from llmgpu.bpe.interchange.formats import find_vocabulary, open_vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.samples import random_ranks
from tests.bpe.interchange.test_components_splits import mixed_texts

tiktoken = pytest.importorskip("tiktoken")
pytest.importorskip("regex")

SPECIAL = ["<unk>", "<s>", "</s>"]
FIRST, SIZE = 10, 380  # special tokens, ids


def tokens() -> list[bytes]:
    longer = sorted(random_ranks(3), key=lambda token: (len(token), token))
    return [bytes([i]) for i in range(256)] + [t for t in longer if len(t) > 1]


def content() -> dict[str, Any]:
    return {
        "config": {
            "pattern": tekken.EXPRESSION,
            "num_vocab_tokens": 456,
            "default_vocab_size": SIZE,
            "default_num_special_tokens": FIRST,
            "version": "v7",
        },
        "vocab": [
            {"rank": k, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for k, token in enumerate(tokens())
        ],
        "special_tokens": [
            {"rank": k, "token_str": text, "is_control": True} for k, text in enumerate(SPECIAL)
        ],
    }


def write(path: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    made = content()
    if change is not None:
        change(made)
    path.write_text(json.dumps(made))
    return path


def test_tiktoken_gives_the_same_ids(tmp_path: Path) -> None:
    notes: list[str] = []
    read = tekken.read(write(tmp_path / "tekken.json"), note=notes.append)
    assert (read.size, read.special_tokens["</s>"], read.special_tokens["<SPECIAL_9>"]) == (
        380,
        2,
        9,
    )
    assert len(read.special_tokens) == FIRST and "the package regex" in notes[0]
    # As mistral-common makes it.
    ranks = {token: k for k, token in enumerate(tokens()[: SIZE - FIRST])}
    theirs = tiktoken.Encoding(
        "tekken", pat_str=tekken.EXPRESSION, mergeable_ranks=ranks, special_tokens={}
    )
    given = list(mixed_texts(2_000))
    for text, ids in zip(given, Tokenizer(read, "cpu").encode_batch(given), strict=True):
        assert list(ids) == [FIRST + i for i in theirs.encode(text)], ascii(text)


def test_it_is_recognized(tmp_path: Path) -> None:
    path = write(tmp_path / "tekken.json")
    assert find_vocabulary(path).format == "tekken"
    (tmp_path / "other order").write_text(json.dumps(dict(reversed(content().items()))))
    assert find_vocabulary(tmp_path / "other order").format == "tekken"
    for name in (path, tmp_path):
        assert open_vocabulary(name).training == {"imported_from": "tekken"}


def set_in(*keys: Any) -> Callable[[dict[str, Any]], None]:
    *path, last, value = keys

    def change(made: Any) -> None:
        for key in path:
            made = made[key]
        made[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_in("config", None), "not a tekken.json"),
        (set_in("config", "pattern", r"\w+"), "is not Mistral's"),
        (set_in("config", "default_vocab_size", "1"), "default_vocab_size is '1'"),
        (set_in("config", "default_vocab_size", 5), "no room"),
        (set_in("config", "default_num_special_tokens", -1), "default_num_special_tokens is '-1'"),
        (set_in("special_tokens", None), "no special_tokens: use a file of version 7"),
        (set_in("special_tokens", 1, "token_str", "<unk>"), "'<unk>' is missing or a duplicate"),
        (set_in("special_tokens", 1, "rank", 0), "'<s>' and '<unk>' have the same id, 0"),
        (set_in("special_tokens", 1, "rank", 10), "rank is '10', not a number below 10"),
        (set_in("vocab", {}), "no vocab"),
        (set_in("vocab", 3, {}), "entry 3 of vocab is not a rank and bytes"),
        (set_in("vocab", 3, "token_bytes", "a"), "entry 3 of vocab is not a rank and bytes"),
        (set_in("vocab", 3, "token_bytes", "AA=="), "entry 3 .* a duplicate"),
        (set_in("vocab", 3, "rank", 4), "entry 3 of vocab has rank '4'"),
    ],
)
def test_damaged_files(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = write(tmp_path / "tekken.json", change)
    with pytest.raises(VocabularyError, match=rf"tekken\.json: .*{message}"):
        tekken.read(path)


def test_early_files_have_special_tokens_of_their_own(tmp_path: Path) -> None:
    def early(made: dict[str, Any]) -> None:
        del made["special_tokens"]
        made["config"] |= {"version": "v3", "default_num_special_tokens": 22}

    special = open_vocabulary(write(tmp_path / "early.json", early)).special_tokens
    assert [*special][:4] == ["<unk>", "<s>", "</s>", "[INST]"]
    assert (special["[TOOL_CONTENT]"], special["<SPECIAL_21>"]) == (19, 21)


def test_mistrals_package_gives_the_same_ids() -> None:
    """The files that it ships."""
    package = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    folder = Path(package.__file__).parents[2] / "data"
    for path in sorted(folder.glob("tekken_24*.json")):
        ours, theirs = Tokenizer.load(path), package.Tekkenizer.from_file(path)
        for text in (*mixed_texts(60), "x\u2581 \U0001f600\n\n  y"):
            assert ours.encode(text, dtype=list) == theirs.encode(text, bos=False, eos=False)
