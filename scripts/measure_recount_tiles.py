"""Measure how many symbols a workgroup of the recount trainer should count: COUNT_TILE.

usage: python scripts/measure_recount_tiles.py [TEXT [ADAPTER]]

Trains with each tile on up to 8 MiB of TEXT (by default the sources of this repository; on a
software adapter 512 KiB), checks that the merges are the same, and prints seconds of the whole
training and of the counting kernel, and how many of a tile's pairs are distinct. The choice is the
constant in wgsl/recount/iter_state.wgsl.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.plain import recount_gpu
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.gpu.adapters import OpenedAdapter, select_adapter
from llmgpu.gpu.device import Device

TILES = (256, 512, 1024, 2048, 4096, 8192)
MOST_BYTES, SOFTWARE_BYTES = 8 << 20, 1 << 19
MERGES, SOFTWARE_MERGES = 1000, 10
ROUNDS = 3


def distinct_pairs(text: NDArray[np.uint8], tile: int) -> float:
    """Return how many distinct pairs of bytes a tile has on average."""
    pairs = text[:-1].astype(np.uint16) << 8 | text[1:]
    tiles = pairs[: len(pairs) // tile * tile].reshape(-1, tile)[:1000]
    return float(np.mean([len(np.unique(one)) for one in tiles]))


def main() -> None:
    sources = Path(__file__).parents[1]
    paths = [Path(sys.argv[1])] if len(sys.argv) > 1 else sorted(sources.glob("**/*.py"))
    device = Device(OpenedAdapter(select_adapter(*sys.argv[2:3])))
    most = SOFTWARE_BYTES if device.is_software else MOST_BYTES
    text = np.frombuffer(b"".join(path.read_bytes() for path in paths)[:most], np.uint8)
    merges = SOFTWARE_MERGES if device.is_software else MERGES
    options = TrainingOptions(256 + merges)
    starts = np.zeros(1, np.int64)
    print(f"{device.name}: {len(text):,} bytes, {merges} merges, best of {ROUNDS}")
    expected = None
    for tile in TILES:
        seconds, counting = [], []
        for _ in range(ROUNDS):
            device.gpu_seconds.clear()
            begin = time.perf_counter()
            learned = recount_gpu.train(device, text, starts, options, count_tile=tile)
            seconds.append(time.perf_counter() - begin)
            device.timing = True
            recount_gpu.train(device, text, starts, options, count_tile=tile)
            device.timing = False
            counting.append(device.gpu_seconds["bpe_pair_count_b"])
        made = learned.pairs.tolist(), learned.counts.tolist()
        expected = expected or made
        assert made == expected, f"a tile of {tile} makes other merges"
        pairs = distinct_pairs(text, tile)
        print(
            f"tile {tile:5}: {min(seconds):8.3f} s, counting {min(counting):8.3f} s, "
            f"{pairs:7.1f} distinct pairs of bytes",
            flush=True,
        )


if __name__ == "__main__":
    main()
