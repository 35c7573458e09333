"""The three scan passes alone, on block sums that stand for 10^9 symbols."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.bpe.plain.recount_gpu import ARGS_BYTES, ARGS_COUNT, COUNT_TILE, SCAN_TILE, STATE
from llmgpu.gpu.device import Device

BLOCK = 256


@pytest.mark.slow
@pytest.mark.parametrize("symbols", [1, 256, 257, 100_003, 1024 * 256, 1024 * 256 + 1, 10**9])
def test_offsets_and_total_are_those_of_numpy(any_device: Device, symbols: int) -> None:
    blocks = -(-symbols // BLOCK)
    sums = np.random.default_rng(symbols).integers(0, BLOCK + 1, blocks, np.uint32)
    state = np.zeros(1, STATE)
    state["symbol_count"] = symbols
    tiles = -(-blocks // SCAN_TILE)
    buffers = {
        "block_sums": any_device.create_buffer("block sums", sums.nbytes),
        "tile_sums": any_device.create_buffer("tile sums", 4 * tiles),
        "dispatch_args": any_device.create_buffer("dispatch args", ARGS_BYTES),
        "state": any_device.create_buffer("state", STATE.itemsize),
    }
    any_device.write(buffers["block_sums"], sums)
    any_device.write(buffers["state"], state)
    commands = any_device.record()
    for file, groups in (
        ("recount/09_scan_pass1.wgsl", tiles),
        ("recount/10_scan_pass2.wgsl", 1),
        ("recount/11_scan_pass3.wgsl", tiles),
    ):
        kernel = any_device.kernel(file, WORKGROUP_SIZE=BLOCK, SCAN_TILE=SCAN_TILE)
        names = {binding.name for binding in kernel.bindings}
        commands.dispatch(kernel.bind(**{name: buffers[name] for name in names}), groups)
    commands.submit()
    offsets = np.cumsum(sums, dtype=np.uint64) - sums
    np.testing.assert_array_equal(
        any_device.read(buffers["block_sums"], blocks, np.uint32), offsets
    )
    after = any_device.read(buffers["state"], STATE.itemsize, np.uint8).view(STATE)
    total = int(after["next_symbol_count"][0])
    assert total == int(sums.sum(dtype=np.uint64))
    x, y, z = any_device.read(buffers["dispatch_args"], ARGS_BYTES // 4, np.uint32)[
        ARGS_COUNT // 4 :
    ][:3]
    groups = -(-total // COUNT_TILE)
    assert groups <= int(x) * int(y) < groups + 65_535 and z == 1
