"""The same results for subgroup sizes 4, 8 and 16, which Mesa's software driver can be told."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from llmgpu.gpu.device import Device
from tests.conftest import PYTHON_PATH

CHILD = """
import sys
import numpy as np
from llmgpu.backend import NUMPY, Backend
from llmgpu.text.corpus import corpus_from_bytes
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.training.options import TrainingOptions
from tests.bpe.plain.test_recount_gpu import words
from tests.bpe.plain.test_scan_blocks import test_offsets_and_total_are_those_of_numpy
from tests.harness.devices import open_device

device = open_device()
assert device.subgroup_size == int(sys.argv[1]), device.subgroup_size
text = words(7, 6_000, 900) + b"a" * 3_000
gpu = Backend(device, device.name)
made = [
    train_vocabulary(corpus_from_bytes(text), TrainingOptions(356, engine=engine), backend)
    for backend, engine in ((NUMPY, "batched"), (gpu, "batched"), (gpu, "recount"))
]
assert len({result.vocabulary.to_bytes() for result in made}) == 1
for match in ("bpe", "greedy"):
    vocabulary = made[0].vocabulary.with_match(match)
    ids = [
        np.concatenate([p.ids for p in open_encoder(vocabulary, b).encode(corpus_from_bytes(text))])
        for b in (NUMPY, gpu)
    ]
    assert np.array_equal(*ids), match
for symbols in (1, 256, 257, 100_003, 1024 * 256 + 1, 10**8):
    test_offsets_and_total_are_those_of_numpy(device, symbols, 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 8, 16])
def test_results_do_not_depend_on_the_subgroup_size(device: Device, size: int) -> None:
    if "llvmpipe" not in device.name:
        pytest.skip("only Mesa's software driver can change its subgroup size")
    environment = os.environ | {
        "LP_NATIVE_VECTOR_WIDTH": str(32 * size),
        "PYTHONPATH": PYTHON_PATH,
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(size)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
