"""A small record of all parts, which several tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llmgpu.bench.suite import PARTS, BenchOptions, run_benchmark


@pytest.fixture(scope="package", autouse=True)
def rounding_to_half_precision() -> Iterator[None]:
    """Let random numbers become half-precision ones too small to be normal."""
    with np.errstate(under="ignore"):
        yield


@pytest.fixture(scope="session")
def measured() -> dict[str, Any]:
    """Measure every part on NumPy, as little as possible."""
    measured: dict[str, Any] = {}
    sizes: dict[str, Any] = {"limit": 20_000, "vocab_size": 300, "runs": 1, "quick": True}
    options = BenchOptions(parts=PARTS, devices=("cpu",), peers=False, **sizes)
    with np.errstate(under="ignore"):
        run_benchmark(options, measured)
    return measured
