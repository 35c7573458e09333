"""A small record of all parts, which several tests look at."""

from __future__ import annotations

from typing import Any

import pytest

from llmgpu.bench.suite import PARTS, BenchOptions, run_benchmark


@pytest.fixture(scope="session")
def measured() -> dict[str, Any]:
    """Measure every part on NumPy, as little as possible."""
    measured: dict[str, Any] = {}
    sizes: dict[str, Any] = {"limit": 20_000, "vocab_size": 300, "runs": 1, "quick": True}
    options = BenchOptions(parts=PARTS, devices=("cpu",), peers=False, **sizes)
    run_benchmark(options, measured)
    return measured
