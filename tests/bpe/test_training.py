"""Training through a corpus: the same file from every backend, and what is refused."""

from __future__ import annotations

import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.corpus import corpus_from_bytes
from llmgpu.bpe.training import TrainingOptions, estimate_memory, train_vocabulary
from llmgpu.errors import InputError, LlmgpuError
from llmgpu.gpu import Device
from tests.bpe.test_train_recount import words


@pytest.mark.parametrize("pattern", ["class", "none"])
@pytest.mark.parametrize("tie", ["hf", "bytes"])
def test_every_backend_makes_the_same_file(any_device: Device, pattern: str, tie: str) -> None:
    documents = [words(1, 2_000, 400), b"", words(2, 2_000, 400), b"\x00\xff" * 300]
    adapter = Backend(any_device, "the adapter")
    files = set()
    for backend, engine in ((NUMPY, "batched"), (adapter, "batched"), (adapter, "recount")):
        options = TrainingOptions(
            330, pattern=pattern, tie=tie, special_tokens=("<|end|>",), engine=engine
        )
        result = train_vocabulary(corpus_from_bytes(documents), options, backend)
        files.add(result.vocabulary.to_bytes())
    assert len(files) == 1


def test_training_facts(device: Device) -> None:
    text = words(3, 1_000, 200)
    result = train_vocabulary(
        corpus_from_bytes([text, text]), TrainingOptions(300), Backend(device, "the adapter")
    )
    facts = result.vocabulary.training
    assert (facts["text_bytes"], facts["documents"]) == (2 * len(text), 2)
    assert result.stop_reason is None
    assert len(result.merge_counts) == 44 and (result.merge_counts[:-1] > 0).all()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_corpus_that_ends_early_says_so(device: Device, on_gpu: bool) -> None:
    backend = Backend(device, "the adapter") if on_gpu else NUMPY
    result = train_vocabulary(corpus_from_bytes(b"abcabcab"), TrainingOptions(1_000), backend)
    assert result.vocabulary.size == 258
    assert result.stop_reason is not None and "after 2 merges" in result.stop_reason


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("documents", [[b""], [b"", b""]])
def test_an_empty_corpus_is_refused(device: Device, on_gpu: bool, documents: list[bytes]) -> None:
    backend = Backend(device, "the adapter") if on_gpu else NUMPY
    with pytest.raises(InputError, match="the corpus is empty"):
        train_vocabulary(corpus_from_bytes(documents), TrainingOptions(300), backend)


def test_a_vocabulary_of_bytes_alone(device: Device) -> None:
    for backend in (NUMPY, Backend(device, "the adapter")):
        result = train_vocabulary(corpus_from_bytes(b"aaaa"), TrainingOptions(256), backend)
        assert (result.vocabulary.size, result.stop_reason) == (256, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 255}, "the vocabulary size is 255; it must be from 256"),
        ({"vocab_size": 256, "special_tokens": ("a",)}, "from 257"),
        ({"vocab_size": 1 << 21}, "to 1048576"),
        ({"vocab_size": 300, "min_frequency": -1}, "the minimum frequency is -1"),
        ({"vocab_size": 300, "tie": "random"}, "unknown tie rule 'random'"),
        ({"vocab_size": 300, "pattern": "gpt5"}, "gpt5"),
        ({"vocab_size": 300, "special_tokens": ("x", "x")}, "special tokens must differ"),
    ],
)
def test_options_out_of_range(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LlmgpuError, match=message):
        TrainingOptions(**arguments)  # type: ignore[arg-type]


def test_memory_is_estimated(device: Device) -> None:
    host, on_device = estimate_memory(10**8, Backend(device, "the adapter"), "recount")
    assert on_device > 13 * 10**8 and host > 10**8
    assert estimate_memory(10**8, NUMPY)[1] == 0
