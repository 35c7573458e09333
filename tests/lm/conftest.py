"""Operations on all backends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmgpu.cpu.library import library
from llmgpu.lm import updates
from llmgpu.lm.ops import optimizer
from llmgpu.lm.ops.operations import Operations, open_operations
from tests.conftest import require_adapter


@pytest.fixture(params=["numpy", "c", "full", "portable"])
def operations(request: pytest.FixtureRequest) -> Operations:
    """NumPy, the CPU engine, the best adapter, and it with WebGPU's default limits alone."""
    if request.param == "numpy":
        return open_operations(None)
    if request.param == "c":
        if library() is None:
            pytest.skip("the CPU engine is not used")
        return open_operations(None, fixed_products=True)
    require_adapter()
    name = "device" if request.param == "full" else "portable_device"
    return open_operations(request.getfixturevalue(name))


@pytest.fixture(scope="module")
def few_partial_norms() -> Iterator[None]:
    """Add the squares of a small gradient up in few workgroups.

    Software takes longer for the workgroups without an element than for all else of a step. Tests
    of the operation have as many as there are.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (optimizer, updates):
            patch.setattr(module, "NORM_PARTIALS", 8)
        yield
