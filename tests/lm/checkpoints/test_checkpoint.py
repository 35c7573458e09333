"""Checkpoints of models: read back, killed while written, damaged, opened by transformers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import CheckpointError, OutputError
from llmgpu.lm.checkpoints.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    open_model,
    prepare_step_folders,
    save_checkpoint,
)
from llmgpu.tokenizer import Tokenizer
from tests.lm.samples import (
    END,
    moments,
    random_weights,
    save,
    small_config,
    small_vocabulary,
    sources,
    state_of,
    sum_of_parts,
    used_rows,
)

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "optimizer.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "training.json",
    "vocabulary.bin",
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_arrays(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


@pytest.mark.parametrize("sizes", [{}, {"tied": False}, {"activation": "gelu", "rope_theta": 5e5}])
def test_what_is_saved_is_loaded(tmp_path: Path, sizes: dict[str, Any]) -> None:
    vocabulary = small_vocabulary()
    config = small_config(vocabulary, **sizes)
    weights, optimizer = random_weights(config, 1), moments(config, 2)
    end = vocabulary.special_tokens[END]
    given = (config, vocabulary, *sources(weights, optimizer), state_of(100))
    folder = save_checkpoint(tmp_path, *given, eos_id=end)
    assert list_checkpoints(tmp_path) == {100: tmp_path / "step-00000100"} == {100: folder}
    assert set(names(folder)) == FILES and names(tmp_path) == [folder.name]
    for path in (tmp_path, folder):
        found = load_checkpoint(path)
        assert (found.folder, found.config, found.state) == (folder, config, state_of(100))
        assert found.vocabulary.to_bytes() == vocabulary.to_bytes()
        assert (found.bos_id, found.eos_id) == (None, end)
        assert_arrays(found.weights, used_rows(config, weights))
        assert_arrays(found.optimizer, optimizer)


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
    first, second = save(tmp_path / "a", 1), save(tmp_path / "b", 1)
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 100_000_000):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-00000010", "step-100000000"]
    assert load_checkpoint(tmp_path).state.step == 100_000_000
    save(tmp_path, 100_000_001, keep=1)
    assert list(list_checkpoints(tmp_path)) == [100_000_001]


def test_other_files_of_a_run_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "step-00000001.txt").write_text("x")
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-00000007").write_text("a file")
    prepare_step_folders(tmp_path)
    save(tmp_path, 2)
    save(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step-00000001.txt", "step-00000003", "step-00000007", "step-1"]


def test_a_step_that_is_there_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    with pytest.raises(OutputError, match="step-00000001 already exists"):
        save(tmp_path, 1, seed=5)
    found = load_checkpoint(folder)
    assert_arrays(found.weights, used_rows(found.config, random_weights(found.config, 1)))


def test_a_run_folder_with_newer_checkpoints_is_refused(tmp_path: Path) -> None:
    prepare_step_folders(tmp_path)
    save(tmp_path, 5)
    prepare_step_folders(tmp_path, 5)
    for step in (0, 4):
        with pytest.raises(OutputError, match=f"checkpoint of step 5, .* starts at step {step}"):
            prepare_step_folders(tmp_path, step)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="file"):
        prepare_step_folders(tmp_path / "file")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_save_that_fails_leaves_what_was(tmp_path: Path, error: BaseException) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    vocabulary = small_vocabulary()
    config = small_config(vocabulary)
    weights = random_weights(config, 3)

    def read(name: str) -> np.ndarray:
        if name == "model.norm.weight":
            raise error
        return weights[name]

    expected = KeyboardInterrupt if error is KeyboardInterrupt else OutputError
    with pytest.raises(expected):
        save_checkpoint(tmp_path, config, vocabulary, read, {}, state_of(3))
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    assert load_checkpoint(tmp_path).state == state_of(2)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes can't be forked here")
def test_a_kill_at_any_moment_leaves_whole_checkpoints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.lm.killed_saves", str(tmp_path)]
    subprocess.run(command, check=True, timeout=60, cwd=Path(__file__).parents[3])
    found: list[list[int]] = []
    left_over = 0
    runs = sorted(tmp_path.glob("run-*"), key=lambda path: int(path.name.split("-")[1]))
    for run in runs:
        left_over += len(names(run)) - len(list_checkpoints(run))
        for step, folder in list_checkpoints(run).items():
            assert load_checkpoint(folder).state == state_of(step)
        found.append(list(list_checkpoints(run)))
        prepare_step_folders(run, found[-1][-1])
        assert names(run) == [f"step-{step:08d}" for step in found[-1]]
        save(run, 4)
        assert load_checkpoint(run).state == state_of(4)
    assert found[0] == [1, 2] and found[-1] == [2, 3] and [1, 2, 3] in found
    assert found == sorted(found) and len(found) > 20 and left_over > 10


def damage_training(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change training.json, and its checksum with it."""
    content = json.loads((folder / "training.json").read_bytes())
    del content["sha256"]
    change(content)
    content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / "training.json").write_text(json.dumps(content))


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Put another file in place of one, as if it had been saved so."""
    (folder / name).write_bytes(data)
    damage_training(folder, lambda content: content["files"].update({name: sum_of_parts(data)}))


def change_config(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "config.json").read_bytes()) | changes
    replace_file(folder, "config.json", json.dumps(content).encode())


READ_AGAIN = ("config.json", "model.safetensors", "optimizer.safetensors", "vocabulary.bin")


@pytest.mark.parametrize("name", [*READ_AGAIN, "training.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1)
    whole = (folder / name).read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for data in (whole[:-2], whole[: len(whole) // 2], b"", bytes(changed)):
        (folder / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=rf"^{folder / name}: (damaged|not valid JSON)"):
            load_checkpoint(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name}: can't read it: No such file"):
        load_checkpoint(folder)


@pytest.mark.parametrize("remove", [True, False])
def test_a_model_opens_without_its_optimizer(tmp_path: Path, remove: bool) -> None:
    folder = save(tmp_path, 1)
    whole = load_checkpoint(folder)
    optimizer = folder / "optimizer.safetensors"
    if remove:
        optimizer.unlink()
    else:
        optimizer.write_bytes(b"damaged")
    for path in (folder, tmp_path):
        model = open_model(path)
        assert model.config == whole.config and model.folder == folder
        for name, values in whole.weights.items():
            np.testing.assert_array_equal(model.weights[name], values)
        with pytest.raises(CheckpointError, match=r"optimizer\.safetensors"):
            load_checkpoint(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocabulary.bin"])
def test_a_model_of_a_damaged_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1)
    (folder / name).write_bytes((folder / name).read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=rf"^{folder / name}: (damaged|not valid JSON)"):
        open_model(folder)


def test_a_checkpoint_of_version_1_has_sums_of_whole_files(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    tensors = load_checkpoint(folder).optimizer
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in READ_AGAIN}
    damage_training(folder, lambda content: content.update(version=1, files=sums))
    assert_arrays(load_checkpoint(folder).optimizer, tensors)
    (folder / "optimizer.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors: damaged or changed"):
        load_checkpoint(folder)


def test_every_byte_of_the_state_counts(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    whole = (folder / "training.json").read_bytes()
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 2
        (folder / "training.json").write_bytes(changed)
        try:
            found = load_checkpoint(folder)
        except CheckpointError:
            continue
        assert found.state == state_of(1) and whole[place : place + 1].isspace()


@pytest.mark.parametrize("name", ["step", "tokens_seen", "sequence_position"])
def test_no_number_of_the_state_is_negative(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1)
    damage_training(folder, lambda content: content.update({name: -1}))
    with pytest.raises(CheckpointError, match=f"damaged: {name} must not be negative"):
        load_checkpoint(folder)


def other_vocabulary() -> bytes:
    return small_vocabulary("none").to_bytes()


def larger_vocabulary() -> bytes:
    known = small_vocabulary()
    tokens = (*known.tokens, b"zzz")
    return dataclasses.replace(known, tokens=tokens).to_bytes()


def use_larger_vocabulary(folder: Path) -> None:
    replace_file(folder, "vocabulary.bin", larger_vocabulary())
    fingerprint = Vocabulary.load(folder / "vocabulary.bin").fingerprint
    damage_training(folder, lambda content: content.update(vocabulary=fingerprint))


MISFITS: list[tuple[Callable[[Path], None], str]] = [
    (
        lambda folder: damage_training(folder, lambda content: content.update(version=3)),
        r"training\.json: version '3' of the format, .* reads versions 1 and 2; use a newer llmgpu",
    ),
    (
        lambda folder: damage_training(folder, lambda content: content.update(version="0")),
        r"training\.json: version '0' of the format, but this llmgpu reads versions 1 and 2$",
    ),
    (
        lambda folder: damage_training(folder, lambda content: content.update(format="x")),
        r"training\.json: not the training state of a checkpoint",
    ),
    (
        lambda folder: damage_training(folder, lambda content: content.pop("files")),
        r"training\.json: damaged: files must be of type dict",
    ),
    (
        lambda folder: damage_training(folder, lambda content: content.update(step="1")),
        r"training\.json: damaged: step must be of type int",
    ),
    (
        lambda folder: damage_training(folder, lambda content: content.update(files={})),
        r"config\.json: damaged or changed",
    ),
    (
        lambda folder: (folder / "training.json").write_bytes(b"[]"),
        r"training\.json: damaged: not a JSON object",
    ),
    (
        lambda folder: replace_file(folder, "vocabulary.bin", other_vocabulary()),
        r"vocabulary\.bin is vocabulary [0-9a-f]{12}, .*training\.json belongs to [0-9a-f]{12}",
    ),
    (
        lambda folder: replace_file(folder, "vocabulary.bin", b"x"),
        r"vocabulary\.bin: not an llmgpu vocabulary",
    ),
    (
        use_larger_vocabulary,
        r": the tokenizer has 264 ids, but vocab_size in config\.json is 263",
    ),
    (
        lambda folder: change_config(folder, intermediate_size=44),
        r"gate_proj\.weight' is F32 \[40, 32\], but must be .* \[44, 32\] by .* config\.json",
    ),
    (
        lambda folder: change_config(folder, tie_word_embeddings=False),
        r"tensor 'lm_head\.weight' is missing",
    ),
    (
        lambda folder: change_config(folder, num_hidden_layers=1),
        r"tensor 'model\.layers\.1\.[a-z_.]+' is unexpected",
    ),
    (
        lambda folder: change_config(folder, num_hidden_layers=10**15),
        r"20 tensors are too few for 1000000000000000 layers",
    ),
    (
        lambda folder: change_config(folder, eos_token_id=263),
        r"config\.json: eos_token_id is 263, but ids are below 263",
    ),
    (
        lambda folder: change_config(folder, hidden_size="x"),
        r"config\.json: hidden_size is 'x', but must be of type int",
    ),
    (
        lambda folder: replace_file(folder, "model.safetensors", b"\xff" * 9),
        r"model\.safetensors: damaged or cut short: the header has",
    ),
    (
        lambda folder: replace_file(folder, "optimizer.safetensors", b""),
        r"optimizer\.safetensors: damaged or cut short: .* fit in a file of 0 bytes",
    ),
]


@pytest.mark.parametrize(("change", "message"), MISFITS, ids=range(len(MISFITS)))
def test_what_does_not_fit_together(
    tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    folder = save(tmp_path, 1)
    change(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(folder)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(str(folder)) and text.count(str(folder)) < 3


def test_nothing_older_is_taken_in_place_of_a_damaged_one(tmp_path: Path) -> None:
    before, newest = save(tmp_path, 1), save(tmp_path, 2)
    (newest / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=rf"{newest}.* damaged.*; the previous .* is {before}"
    ):
        load_checkpoint(tmp_path)
    assert load_checkpoint(before).state.step == 1
    shutil.rmtree(before)
    with pytest.raises(CheckpointError, match=r"since it was written$"):
        load_checkpoint(tmp_path)


def test_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path) == {} == list_checkpoints(tmp_path / "no")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no: no such folder"):
        load_checkpoint(tmp_path / "no")
    with pytest.raises(CheckpointError, match=r"training\.json: can't read it"):
        load_checkpoint(tmp_path / "step-00000001")


def test_another_vocabulary_than_the_model_s_is_refused(tmp_path: Path) -> None:
    found = load_checkpoint(save(tmp_path, 1))
    found.require_vocabulary(small_vocabulary(), "v.bin")
    found.require_vocabulary(small_vocabulary().with_match("greedy"), "v.bin")
    with pytest.raises(
        CheckpointError,
        match=rf"v\.bin is vocabulary \w+, but the model in {found.folder} needs \w+: use the",
    ):
        found.require_vocabulary(small_vocabulary("none"), "v.bin")


def test_a_vocabulary_that_tokenizer_json_can_not_hold(tmp_path: Path) -> None:
    vocabulary = small_vocabulary().with_match("greedy")
    config = small_config(vocabulary)
    given = (*sources(random_weights(config, 1)), state_of(1))
    notes: list[str] = []
    folder = save_checkpoint(tmp_path, config, vocabulary, *given, note=notes.append)
    assert set(names(folder)) == FILES - {"tokenizer.json", "tokenizer_config.json"}
    assert len(notes) == 1 and "no tokenizer.json: a vocabulary with greedy matching" in notes[0]
    assert load_checkpoint(folder).vocabulary.match == "greedy"


@pytest.mark.parametrize("pattern", ["gpt2", "none"])
def test_transformers_gives_the_same_ids(tmp_path: Path, pattern: str) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = small_vocabulary(pattern)
    config = small_config(vocabulary)
    end = vocabulary.special_tokens[END]
    given = (*sources(random_weights(config, 1)), state_of(1))
    folder = save_checkpoint(tmp_path, config, vocabulary, *given, eos_id=end)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(vocabulary, "cpu")
    for text in ("", "the band and the hand", "  Ünïcode \n\n 'tis 123", "\0", f"and{END} the"):
        ids = ours.encode(text, allowed_special="all").tolist()
        assert theirs(text).input_ids == ids
        assert theirs.decode(ids) == text
    assert (theirs.eos_token, theirs.vocab_size) == (END, vocabulary.size)


def test_a_chat_template_is_kept_without_a_note(tmp_path: Path) -> None:
    vocabulary = dataclasses.replace(small_vocabulary(), chat=ChatTemplate("{{ messages }}", {}))
    config = small_config(vocabulary)
    notes: list[str] = []
    given = (*sources(random_weights(config, 1)), state_of(1))
    folder = save_checkpoint(tmp_path, config, vocabulary, *given, note=notes.append)
    assert notes == []
    described = json.loads((folder / "tokenizer_config.json").read_text())
    assert described["chat_template"] == "{{ messages }}"
    assert load_checkpoint(folder).vocabulary.chat == vocabulary.chat
