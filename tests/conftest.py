"""Fixtures for what runs on an adapter.

Without one these tests are skipped, unless LLMGPU_REQUIRE_GPU=1 says that there must be one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from llmgpu.backend import list_adapters
from llmgpu.gpu import WEBGPU_DEFAULT_LIMITS, Device

settings.register_profile(
    "llmgpu",
    max_examples=int(os.environ.get("LLMGPU_TEST_EXAMPLES", "30")),
    deadline=None,
    derandomize="CI" in os.environ,
)
settings.load_profile("llmgpu")


def require_adapter() -> None:
    """Skip the test where there is no adapter, or fail it where there must be one."""
    if list_adapters():
        return
    if os.environ.get("LLMGPU_REQUIRE_GPU") == "1":
        pytest.fail("LLMGPU_REQUIRE_GPU=1, and there is no adapter")
    pytest.skip("no adapter; install a Vulkan driver")


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The best adapter with all that it has."""
    require_adapter()
    yield Device()


@pytest.fixture(scope="session")
def portable_device() -> Iterator[Device]:
    """The same adapter with WebGPU's default limits and no optional feature."""
    require_adapter()
    yield Device(features=frozenset(), limits=WEBGPU_DEFAULT_LIMITS)


@pytest.fixture(scope="session", params=["full", "portable"])
def any_device(request: pytest.FixtureRequest) -> Device:
    """Both of them, one after the other."""
    name = "device" if request.param == "full" else "portable_device"
    found: Device = request.getfixturevalue(name)
    return found
