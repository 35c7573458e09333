"""Engines and the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bench.engines import Engine, describe_machine, git_commit, open_engines
from llmgpu.errors import DeviceError

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
