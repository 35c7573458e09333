"""Errors of the Python API name its arguments, not options of the command line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmgpu import Tokenizer
from llmgpu.bpe.vocabulary.building import byte_vocabulary, extend_vocabulary
from llmgpu.errors import InputError, OutputError, VocabularyError
from llmgpu.spelling import speaking_python, spelled


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        (("--device cpu",), 'device="cpu"'),
        (("--max-token-length",), "max_token_length"),
        (("--doc-separator", "separators"), "separators"),
    ],
)
def test_options_become_arguments(option: tuple[str, ...], argument: str) -> None:
    inside = speaking_python(lambda: spelled(*option))
    assert (spelled(*option), inside(), spelled(*option)) == (option[0], argument, option[0])


def test_other_threads_of_a_call_speak_python_too() -> None:
    with ThreadPoolExecutor() as pool:
        inside = speaking_python(lambda: pool.submit(spelled, "--limit").result())
        assert inside() == "limit"


def test_the_api_speaks_of_arguments(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.write_bytes(b"AA== 0\n")
    with pytest.raises(VocabularyError, match="with pattern, one of"):
        Tokenizer.from_tiktoken(ranks)
    special = extend_vocabulary(
        byte_vocabulary("gpt2", "hf"), [], special_tokens=["<>"], training={}
    )
    with pytest.raises(InputError, match="use allowed_special to encode it as its id") as caught:
        Tokenizer(special, "cpu").encode("a<>", disallowed_special="all")
    assert "--" not in str(caught.value)
    (tmp_path / "text").write_text("precious")
    with pytest.raises(OutputError, match="force=True") as refused:
        Tokenizer(special, "cpu").save(tmp_path / "text")
    assert "--" not in str(refused.value)


def test_advice_names_nothing_that_the_api_lacks(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_vocabulary("o200k", "hf"), "cpu")
    with pytest.raises(VocabularyError, match="export it to huggingface"):
        tokenizer.export("gpt2", tmp_path)
    tokenizer.save(tmp_path / "v.bin")
    with pytest.raises(VocabularyError, match="'x': this version supports greedy, bpe"):
        Tokenizer.load(tmp_path / "v.bin", match="x")
