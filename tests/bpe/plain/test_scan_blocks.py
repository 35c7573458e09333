"""The scan of block sums alone, on sums that stand for 10^9 symbols."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.bpe.plain.recount_gpu import (
    ARGS_BYTES,
    ARGS_COUNT,
    COUNT_TILE,
    RUNNING,
    STATE,
    SYMBOLS_PER_THREAD,
    TABLE_FULL,
)
from llmgpu.gpu.device import Device

BLOCK = 256 * SYMBOLS_PER_THREAD


@pytest.mark.slow
@pytest.mark.parametrize("status", [RUNNING, TABLE_FULL])
@pytest.mark.parametrize("symbols", [1, 256, 257, 100_003, 1024 * 1024, 1024 * 1024 + 1, 10**9])
def test_offsets_and_total_are_those_of_numpy(
    any_device: Device, symbols: int, status: int
) -> None:
    blocks = -(-symbols // BLOCK)
    sums = np.random.default_rng(symbols).integers(0, BLOCK + 1, blocks, np.uint32)
    state = np.zeros(1, STATE)
    state["symbol_count"], state["next_symbol_count"], state["status"] = symbols, 7, status
    buffers = {
        "block_sums": any_device.create_buffer("block sums", sums.nbytes),
        "dispatch_args": any_device.create_buffer("dispatch args", ARGS_BYTES),
        "state": any_device.create_buffer("state", STATE.itemsize),
    }
    any_device.write(buffers["block_sums"], sums)
    any_device.write(buffers["state"], state)
    kernel = any_device.kernel("recount/09_scan_blocks.wgsl", WORKGROUP_SIZE=256, BLOCK=BLOCK)
    commands = any_device.record()
    commands.dispatch(kernel.bind(**buffers), 1)
    commands.submit()
    found = any_device.read(buffers["block_sums"], blocks, np.uint32)
    after = any_device.read(buffers["state"], STATE.itemsize, np.uint8).view(STATE)
    total = int(after["next_symbol_count"][0])
    x, y, z = any_device.read(buffers["dispatch_args"], ARGS_BYTES // 4, np.uint32)[
        ARGS_COUNT // 4 :
    ][:3].tolist()
    if status != RUNNING:  # a halted loop keeps its state
        np.testing.assert_array_equal(found, sums)
        assert (total, x, y, z) == (7, 0, 0, 0)
        return
    np.testing.assert_array_equal(found, np.cumsum(sums, dtype=np.uint64) - sums)
    assert total == int(sums.sum(dtype=np.uint64))
    groups = -(-total // COUNT_TILE)
    assert groups <= x * y < groups + 65_535 and z == 1
