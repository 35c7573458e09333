"""A small record of all parts, which several tests look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import pytest

from llmgpu.bench import PARTS, BenchOptions, cases, embedding, engines, kernels, models
from llmgpu.bench.cases import Sizes
from llmgpu.bench.results import Record, read_record
from llmgpu.bench.suite import Benchmark
from llmgpu.lm.config import ModelConfig

T = TypeVar("T")
# Number of random numbers that fill the arrays of tests: a prime, so that rows differ.
SMALL_PERIOD = 20_011


def given(value: T | None) -> T:
    """What is not None."""
    assert value is not None
    return value


def run(options: BenchOptions) -> Record:
    """Measure, and return the record."""
    benchmark = Benchmark(options)
    benchmark.run()
    return benchmark.record


def small_parts(patch: pytest.MonkeyPatch) -> None:
    """Let the parts about models take sizes, and time, that hardly count."""
    config = ModelConfig(90, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, seq_len=12)
    patch.setattr(kernels, "choose_sizes", lambda engine, quick: (Sizes(config, 3), "small"))
    patch.setattr(cases, "QUICK_CASE_SECONDS", 0.0)
    patch.setattr(embedding, "QUICK_TABLE_BYTES", 1 << 20)
    patch.setattr(cases, "PERIOD", SMALL_PERIOD)
    patch.setattr(engines, "WARM_UP_SECONDS", 0.0)
    patch.setattr(engines, "CPU_COPY_BYTES", 1 << 20)
    patch.setattr(engines, "PRODUCT_SIZE", 64)
    patch.setattr(models, "RUN_SECONDS", 0.01)


def assert_is_read_as_it_was(record: Record) -> None:
    """A record comes through JSON unchanged."""
    assert read_record(json.loads(json.dumps(record.to_json(), allow_nan=False))) == record


@pytest.fixture(scope="package", autouse=True)
def rounding_to_half_precision() -> Iterator[None]:
    """Let random numbers become half-precision ones too small to be normal."""
    with np.errstate(under="ignore"):
        yield


@pytest.fixture(scope="session")
def measured() -> Record:
    """Measure every part on NumPy, as little as possible."""
    sizes: dict[str, Any] = {"limit": 20_000, "vocab_size": 300, "runs": 1, "quick": True}
    options = BenchOptions(parts=PARTS, devices=("cpu",), peers=False, **sizes)
    with np.errstate(under="ignore"), pytest.MonkeyPatch.context() as patch:
        small_parts(patch)
        return run(options)
