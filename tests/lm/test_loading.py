"""A saved model is loaded with room for as many tokens as are asked for."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.errors import DeviceError
from llmgpu.gpu.device import Device
from llmgpu.lm.checkpoints.checkpoint import open_model
from llmgpu.lm.checkpoints.huggingface import SavedModel
from llmgpu.lm.model import load_model
from tests.lm.pretrained_folders import kind_of_model, weights_of, write_folder
from tests.lm.samples import read_weights


@pytest.fixture
def saved(tmp_path: Path) -> SavedModel:
    config = kind_of_model("llama")
    return open_model(write_folder(tmp_path / "m", config, weights_of(config)))


def test_weights_and_sizes(saved: SavedModel) -> None:
    long = replace(saved, config=replace(saved.config, max_positions=3000))
    model = load_model(long, NUMPY, 2500)
    assert model.config == long.config.generating(2500) and model.config.seq_len == 2500
    assert (model.half_copies, model.mixed) == ({}, False)
    found = read_weights(model)
    assert found.keys() == model.weights.keys()
    for name, values in found.items():
        np.testing.assert_array_equal(values[: len(saved.weights[name])], saved.weights[name])


def test_half_precision(saved: SavedModel, device: Device, portable_device: Device) -> None:
    model = load_model(saved, Backend(device, "full"), 10, "f16")
    assert model.half_copies and model.mixed == bool(device.matrix_shapes)
    with pytest.raises(DeviceError, match="no half-precision numbers"):
        load_model(saved, Backend(portable_device, "portable"), 10, "f16")


def test_reading_a_folder_imports_no_operations() -> None:
    """It is what `info` and `export` do, and takes half the time."""
    code = (
        "import llmgpu.lm.checkpoints.checkpoint, sys; sys.exit('llmgpu.lm.model' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
