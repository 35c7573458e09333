"""How long whole commands with little to do take, by phase."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmgpu.backend import NUMPY
from llmgpu.bench import STARTUP, BenchOptions, suite
from llmgpu.bench.engines import Engine, cpu_engine
from llmgpu.errors import LlmgpuError
from llmgpu.progress import no_progress

OPTIONS = BenchOptions(runs=1, quick=True)


def test_every_command_has_its_phases() -> None:
    results = list(suite.measure_startup([Engine(NUMPY, 0.0)], OPTIONS, no_progress))
    assert [result.job.split(":")[0] for result in results] == [
        *("bpe-train", "tokenize", "train", "generate")
    ]
    for result in results:
        assert (result.what, result.engine) == (STARTUP, cpu_engine())
        first, *_, last = result.phases
        assert (first, last) == ("python and NumPy", "the rest")
        assert len(result.phases) > 2
        # Phases may overlap, so that together they may take longer than the command.
        assert sum(phase.median for phase in result.phases.values()) >= 0.99 * result.median


def test_a_command_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho out of order >&2\nexit 3\n")
    failing.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(failing))
    with pytest.raises(LlmgpuError, match="out of order"):
        list(suite.measure_startup([Engine(NUMPY, 0.0)], OPTIONS, no_progress))
