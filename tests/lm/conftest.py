"""Operations on all backends."""

from __future__ import annotations

import pytest

from llmgpu.lm.ops.backends import open_operations
from llmgpu.lm.ops.operations import Operations
from tests.conftest import require_adapter


@pytest.fixture(params=["numpy", "full", "portable"])
def operations(request: pytest.FixtureRequest) -> Operations:
    """NumPy, the best adapter, and the same with WebGPU's default limits and no feature."""
    if request.param == "numpy":
        return open_operations(None)
    require_adapter()
    name = "device" if request.param == "full" else "portable_device"
    return open_operations(request.getfixturevalue(name))
