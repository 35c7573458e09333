"""Engines and the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bench.engines import Engine, describe_machine, git_commit, open_engines
from llmgpu.errors import DeviceError
from llmgpu.gpu.device import Device

NUMPY_ENGINE = Engine(NUMPY, 0.0)


def test_machine() -> None:
    machine = describe_machine([NUMPY_ENGINE])
    assert machine.cpus >= 1
    assert machine.numpy == np.__version__
    assert machine.adapters == ()


def test_no_commit_outside_a_checkout(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None


def test_engines_are_opened_once() -> None:
    engines, failures = open_engines(["cpu", "all", "cpu"])
    names = [engine.name for engine in engines]
    assert names.count("NumPy") == 1
    assert len(set(names)) == len(names)
    assert not failures
    with pytest.raises(DeviceError):
        open_engines(["no such adapter"])


def test_adapters_of_both_drivers(dawn_device: Device) -> None:
    engines, _ = open_engines(["all"])
    again = {engine.name: engine.again for engine in engines if engine.name.endswith(" with Dawn")}
    name = f"{dawn_device.name} with Dawn"
    assert again[name] == any(engine.name == dawn_device.name for engine in engines)
    assert name in {adapter.name for adapter in describe_machine(engines).adapters}
