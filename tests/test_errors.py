"""Messages quote a little of what is wrong, however long it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgpu.bench.results import FORMAT, read_record
from llmgpu.bpe.encoding.special_options import token_id
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.vocabulary.building import byte_ranks, byte_vocabulary
from llmgpu.errors import CheckpointError, LlmgpuError
from llmgpu.input_files import quote
from llmgpu.lm.checkpoints.huggingface import read_model
from llmgpu.text.documents import InputPolicy
from llmgpu.tokens.formats import open_writer
from tests.tokens.writing import sized

MOST = 300  # characters of the input


@pytest.mark.parametrize(
    "use",
    [
        lambda text: TrainingOptions(300, tie=text),
        lambda text: TrainingOptions(300, engine=text),
        lambda text: TrainingOptions(300, match=text),
        lambda text: TrainingOptions(300, unicode=text),
        get_pattern,
        lambda text: get_pattern("regex:(" + text),
        byte_ranks,
        lambda text: token_id(byte_vocabulary("gpt2", "hf"), text),
        InputPolicy,
        lambda text: open_writer("-", text, sized(300)),
    ],
)
@pytest.mark.parametrize("length", [350, 10_000])
def test_a_long_input_is_quoted_in_part(use: Callable[[str], object], length: int) -> None:
    with pytest.raises(LlmgpuError) as caught:
        use("x" * length)
    assert 0 < str(caught.value).count("x") <= MOST


def test_a_value_that_is_nested_too_deep_is_quoted_by_its_type() -> None:
    nested: list[object] = []
    for _ in range(10_000):
        nested = [nested]
    assert quote(nested) == "a list that is nested too deep"
    with pytest.raises(CheckpointError, match="model_type is a list that is nested too deep, but"):
        read_model({"model_type": nested})
    with pytest.raises(ValueError, match="of version a list that is nested too deep;"):
        read_record({"format": FORMAT, "version": nested})
