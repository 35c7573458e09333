"""Models that others saved: their logits are those of transformers; what is wrong is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.errors import CheckpointError, LlmgpuError
from llmgpu.lm.checkpoints.checkpoint import open_model
from llmgpu.lm.checkpoints.huggingface import SavedModel
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.generator import Generator
from llmgpu.lm.model import Model
from llmgpu.lm.ops.operations import Operations
from tests.bpe.vocabularies import build_vocabulary
from tests.lm.pretrained_folders import (
    KINDS,
    as_stored,
    kind_of_model,
    weights_of,
    write_folder,
    write_safetensors,
)
from tests.lm.samples import logits_after
from tests.reference.lm.llama import Llama

IDS = np.random.default_rng(1).integers(0, 263, 50).tolist()
INDEX = "model.safetensors.index.json"


def logits_of(saved: SavedModel, operations: Operations) -> np.ndarray:
    model = Model(operations, saved.config)
    model.load(saved.weights.__getitem__)
    return logits_after(Generator(model, saved.vocabulary.size), IDS)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_float64_model(
    operations: Operations, tmp_path: Path, kind: str
) -> None:
    config = kind_of_model(kind)
    weights = weights_of(config)
    saved = open_model(write_folder(tmp_path / "m", config, weights, files=1))
    assert (saved.config, saved.eos_id, saved.stop_ids) == (config, 262, {262})
    expected = Llama(config, weights).forward(np.array([IDS]))[0, -1, :263]
    np.testing.assert_allclose(logits_of(saved, operations), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_several_files_are_those_of_one(tmp_path: Path, kind: str) -> None:
    config = kind_of_model(kind)
    weights = weights_of(config)
    one, three = (
        open_model(write_folder(tmp_path / str(files), config, weights, files=files))
        for files in (1, 3)
    )
    assert (three.config, three.eos_id, three.stop_ids) == (config, 262, {262})
    assert set(three.weights) == set(one.weights)
    for name in one.weights:
        np.testing.assert_array_equal(three.weights[name], one.weights[name])


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_is_widened_exactly(tmp_path: Path, dtype: str) -> None:
    config = kind_of_model("qwen2")
    weights = weights_of(config)
    saved = open_model(write_folder(tmp_path / "m", config, weights, dtype=dtype))
    for name, values in weights.items():
        stored = as_stored(values, dtype)
        if dtype == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        expected = stored.astype(np.float32)
        np.testing.assert_array_equal(saved.weights[name], expected)
        assert saved.weights[name].dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_gives_the_same_logits(
    operations: Operations, tmp_path: Path, kind: str, dtype: str
) -> None:
    """Of a folder that transformers itself writes, in several files."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = kind_of_model(kind)
    ours = write_folder(tmp_path / "ours", config, weights_of(config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(ours)
    folder = tmp_path / "theirs"
    theirs.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="10KB")
    assert (folder / INDEX).exists()
    (folder / "tokenizer.json").write_bytes((ours / "tokenizer.json").read_bytes())
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    saved = open_model(folder)
    assert saved.config == config
    with torch.no_grad():
        expected = again(torch.tensor([IDS])).logits[0, -1, :263].numpy()
    np.testing.assert_allclose(logits_of(saved, operations), expected, rtol=0, atol=1e-4)


def test_the_chat_template_and_all_ends_are_kept(tmp_path: Path) -> None:
    config = kind_of_model("llama")
    folder = write_folder(tmp_path / "m", config, weights_of(config), eos_token_id=[262, 261])
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "generation_config.json").write_text('{"eos_token_id": 260}')
    saved = open_model(folder)
    assert saved.vocabulary.chat is not None
    assert saved.vocabulary.chat.source == "{{ messages }}"
    assert (saved.eos_id, saved.stop_ids) == (262, {260, 261, 262})


def test_a_snapshot_of_the_cache_links_to_blobs(tmp_path: Path) -> None:
    config = kind_of_model("llama")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots").mkdir()
    folder = write_folder(tmp_path / "snapshots" / "1a2b", config, weights_of(config))
    for file in list(folder.iterdir()):
        blob = tmp_path / "blobs" / file.name
        file.rename(blob)
        file.symlink_to(os.path.relpath(blob, folder))
    assert open_model(folder).config == config


def edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def change_weights(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        weights = weights_of(kind_of_model("llama"))
        change(weights)
        write_safetensors(folder / "model.safetensors", weights, "F32")

    return apply


def index(table: object) -> Callable[[Path], None]:
    return lambda folder: (folder / INDEX).write_text(json.dumps(table)) and None


def link_out(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return apply


def cut_short(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-5])


def count_in_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data.replace(b'"F32"', b'"U32"', 1))


NORM = "model.norm.weight"
HOSTILE: list[tuple[Callable[[Path], Any], str]] = [
    (edit("config.json", lambda c: c.update(num_hidden_layers=10**12)), "are too few for 10{12}"),
    (edit("config.json", lambda c: c.update(hidden_size=10**15)), r"must be .*, 10{15}\]"),
    (edit("config.json", lambda c: c.update(attention_bias=True)), "json: attention_bias is True"),
    (
        edit("config.json", lambda c: c.update(vocab_size=262)),
        r"is F32 .270, 40., but .* by the sizes",
    ),
    (edit("config.json", lambda c: c.update(eos_token_id=270)), "eos_token_id is 270, but ids"),
    (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    (lambda f: (f / "config.json").write_bytes(b"\xff"), "config.json: "),
    (lambda f: (f / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    (lambda f: (f / "tokenizer.json").unlink(), "has neither tokenizer.json nor vocab.json"),
    (cut_short, r"damaged or cut short: the tensors have .*, but the file has"),
    (change_weights(lambda w: w.pop(NORM)), "tensor 'model.norm.weight' is missing"),
    (
        change_weights(lambda w: w.update({NORM: w[NORM][:-1]})),
        r"model.safetensors: .* is F32 \[39\], but",
    ),
    (change_weights(lambda w: w.update(extra=w[NORM])), "tensor 'extra' is unexpected"),
    (count_in_weights, "is U32 .*, but must be F32 or F16 or BF16 .*; convert tensors"),
    (index([]), "not a JSON object"),
    (index({"weight_map": {}}), "weight_map is missing"),
    (
        index({"weight_map": {NORM: "../model.safetensors"}}),
        "a .safetensors in this folder",
    ),
    (
        index({"weight_map": {NORM: "/tmp/model.safetensors"}}),
        "a .safetensors in this folder",
    ),
    (
        index({"weight_map": {NORM: "..\\model.safetensors"}}),
        "a .safetensors in this folder",
    ),
    (index({"weight_map": {NORM: "a\0.safetensors"}}), "can't read it"),
    (index({"weight_map": {NORM: "a.bin"}}), "must be a .safetensors"),
    (index({"weight_map": {NORM: 3}}), "must be a .safetensors"),
    (index({"weight_map": {NORM: "gone.safetensors"}}), "can't read it: No such file"),
    (
        index({"weight_map": {"other": "model.safetensors"}}),
        "m: 0 tensors are too few for 2 layers",
    ),
    (link_out("model.safetensors"), "is a link out of the folder, to "),
    (link_out("config.json"), "is a link out of the folder, to "),
    (link_out("tokenizer.json"), "is a link out of the folder, to "),
]


@pytest.mark.parametrize(("damage", "message"), HOSTILE)
def test_what_is_refused(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    config = kind_of_model("llama")
    folder = write_folder(tmp_path / "m", config, weights_of(config))
    damage(folder)
    with pytest.raises(LlmgpuError, match=message) as error:
        open_model(folder)
    assert str(folder) in str(error.value)


def test_a_tokenizer_with_more_ids_than_the_model(tmp_path: Path) -> None:
    vocabulary = build_vocabulary(
        [(116, 104)], pattern="gpt2", tie="hf", special_tokens=["<|x|>"], training={}
    )
    config = kind_of_model("llama", 257)
    folder = write_folder(
        tmp_path / "m", config, weights_of(config), vocabulary=vocabulary, eos_token_id=None
    )
    with pytest.raises(CheckpointError, match=r"the tokenizer has 258 ids, .* is 257"):
        open_model(folder)


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    config = kind_of_model("llama")
    weights = weights_of(config)
    weights[NORM][3] = np.nan
    saved = open_model(write_folder(tmp_path / "m", config, weights, dtype="BF16"))
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor 'model.norm.weight' has"):
        saved.weights[NORM]


def test_one_of_several_files_is_named(tmp_path: Path) -> None:
    config = kind_of_model("llama")
    weights = weights_of(config)
    place = sorted(weights).index(NORM) % 3 + 1
    file = rf"model-{place:05}-of-00003.safetensors: tensor 'model.norm.weight' "
    weights[NORM][3] = np.inf
    saved = open_model(write_folder(tmp_path / "inf", config, weights, files=3))
    with pytest.raises(CheckpointError, match=f"{file}has numbers that are not finite"):
        saved.weights[NORM]
    weights[NORM] = weights[NORM][:5]
    with pytest.raises(CheckpointError, match=rf"{file}is F32 \[5\], but must be .* \[40\] by the"):
        open_model(write_folder(tmp_path / "short", config, weights, files=3))


def test_an_output_layer_that_is_stored_twice_and_frequencies(tmp_path: Path) -> None:
    config = kind_of_model("llama")
    weights = weights_of(config)
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    more["lm_head.weight"] = weights["model.embed_tokens.weight"]
    saved = open_model(write_folder(tmp_path / "m", config, weights | more))
    assert isinstance(saved.config, ModelConfig) and saved.config.tied
