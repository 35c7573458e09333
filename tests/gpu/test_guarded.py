"""The guard words themselves: a kernel that writes after its buffer is caught."""

from __future__ import annotations

import pytest

from tests.gpu.guarded import GuardedDevice
from tests.harness.kernels import kernel_of

WRITE = """
@group(0) @binding(0) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(1)
fn write() {
    out[PLACE] = 7u;
}
"""


@pytest.mark.parametrize("place", [0, 99, 100, 127, 128, 191])
def test_a_kernel_that_writes_after_its_buffer_is_caught(
    portable_device: GuardedDevice, place: int
) -> None:
    """A buffer of 100 words and 28 of padding, then the guard words."""
    out = portable_device.create_buffer("the output", 400)
    assert out.nbytes == 512
    kernel = kernel_of(portable_device, WRITE.replace("PLACE", f"{place}u"))
    commands = portable_device.record()
    commands.dispatch(kernel.bind(out=out), 1)
    commands.submit()
    if place < 100:
        portable_device.check_guards()
    else:
        with pytest.raises(AssertionError, match=f"wrote {4 * (place - 100)} bytes after the out"):
            portable_device.check_guards()
