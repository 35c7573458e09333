"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmgpu.cpu.library import VARIABLE, library

CPU_ENGINES = ["numpy"] if library() is None else ["c", "numpy"]


@pytest.fixture(scope="module", params=CPU_ENGINES)
def cpu_engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine of the CPU, used by all of a module's tests before the next one is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        yield request.param
