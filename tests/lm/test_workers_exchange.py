"""Buckets of gradients, and their sums over workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llmgpu.lm import workers as workers_module
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.recording import STAGED
from llmgpu.lm.workers import buckets, exchange_memory, local_memory
from tests.lm.test_workers import command, environment, needs_mpi


def test_buckets_hold_all_numbers_once_and_in_order() -> None:
    operations = Operations()
    sizes = (1, 999, 63, 5000, 7, 936, 64, 1000, 0, 1001)
    tensors, expected = [], np.arange(sum(sizes), dtype=np.float32)
    first = 0
    for size in sizes:
        tensors.append(operations.tensor(f"of {size}", (size,)))
        operations.write(tensors[-1], expected[first : first + size])
        first += size
    found = list(buckets(tensors, 1000))
    lengths = [sum(part.size for part in bucket) for bucket in found]
    assert max(lengths) <= 1000 and min(lengths[:-1]) > 1000 - 2 * 64
    parts = [part.array for bucket in found for part in bucket]
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    for part in parts:  # a device binds memory from a multiple of 256 bytes
        start = next(t.array for t in tensors if np.shares_memory(t.array, part))
        assert (part.ctypes.data - start.ctypes.data) % 256 == 0


def test_memory_is_that_of_the_buckets_in_use() -> None:
    most = exchange_memory(10**9)
    assert (
        most
        == exchange_memory(10**12)
        == 4 * workers_module.BUCKET * (3 + workers_module.AHEAD + 2 + STAGED)
    )
    assert exchange_memory(1000) < most / 7
    assert local_memory(10**9) == 4 * 10**9 + most + 6 * 8 * 4 * (1 << 16)


SUMS = """
import sys
import numpy as np
from mpi4py.MPI import COMM_WORLD as workers
from llmgpu.lm import workers as workers_module

workers_module.BUCKET = 200_000
if sys.argv[1] == "separate":
    del workers_module.os.memfd_create
joined = workers_module.Workers(workers)
if sys.argv[1] == "apart":
    joined.local_count = 1
sums = joined.open_sums()
assert (sums.func is workers_module.shared_sums) == (sys.argv[1] == "shared")
for turn, count in enumerate((200_000, 1, 2, 131_073, 7, 65_536)):
    arrays = [
        (np.random.default_rng([turn, worker]).standard_normal(count) * 10.0**worker)
        .astype(np.float32) for worker in range(workers.size)
    ]
    expected = arrays[0].copy()
    for other in arrays[1:]:
        expected = expected + other
    out = np.empty(count, np.float32)
    sums(arrays[workers.rank])(out.__setitem__)
    assert out.tobytes() == expected.tobytes(), (turn, count)
print("same bits")
"""


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("memory", ["shared", "separate", "apart"])
def test_workers_get_the_ordered_sum(tmp_path: Path, memory: str) -> None:
    """Through memory of one machine, where that can't be shared, and between machines."""
    script = tmp_path / "sums.py"
    script.write_text(SUMS)
    words = command(3)
    words[words.index("-m") :] = [str(script), memory]
    done = subprocess.run(
        words, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["same bits"] * 3, done.stderr
    assert sys.platform != "linux" or not done.returncode
