"""The hashes on a device against the oracle, and the key, which each process draws."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from llmgpu.gpu.device import Device, hash_key, hash_key_buffer
from llmgpu.kernel_source import read_wgsl
from tests.conftest import PYTHON_PATH
from tests.harness.hash_keys import KEYS, use_key
from tests.harness.kernels import kernel_of
from tests.reference import hashes

TEXT = """
@group(0) @binding(0) var<storage, read> given: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> found: array<vec4<u32>>;
@group(0) @binding(2) var<uniform> hash_key: vec4<u32>;
@compute @workgroup_size(64)
fn hash_all(@builtin(global_invocation_id) thread: vec3<u32>) {
    let i = thread.x;
    if (i >= arrayLength(&given)) { return; }
    let n = given[i];
    found[2u * i] = vec4<u32>(hash_number(n.x), hash_pair(n.x, n.y), hash_triple(n.xyz), 0u);
    found[2u * i + 1u] = vec4<u32>(keyed_product(n.xy, n.zw), whole_product(n.x, n.y));
}
"""


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_hashes_are_those_of_the_oracle(
    any_device: Device, key: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(monkeypatch, key)
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 1 << 32, (640, 4), dtype=np.uint32)
    numbers[:256] = rng.choice(np.array([0, 1, 0xFFFF, 0x10000, 1 << 31, 0xFFFFFFFF]), (256, 4))
    kernel = kernel_of(any_device, read_wgsl("common/hash.wgsl") + TEXT)
    found = any_device.create_buffer("found", 2 * numbers.nbytes)
    given = any_device.upload("given", numbers)
    commands = any_device.record()
    buffers = {"given": given, "found": found, "hash_key": hash_key_buffer(any_device)}
    commands.dispatch(kernel.bind(**buffers), 10)
    commands.submit()
    got = any_device.read(found, 8 * len(numbers), np.uint32).reshape(-1, 2, 4).tolist()
    for (short, products), (x, y, z, w) in zip(got, numbers.tolist(), strict=True):
        assert short[:3] == [hashes.hash_numbers([x, y, z][:n], key) for n in (1, 2, 3)]
        round_ = (x ^ z ^ key[0]) * (y ^ w ^ key[1])
        assert products == [*divmod(round_, 1 << 32)[::-1], *divmod(x * y, 1 << 32)[::-1]]


def test_each_process_draws_a_key() -> None:
    program = "from llmgpu.gpu.device import hash_key; print(*hash_key())"
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH}
    drawn = {tuple(hash_key().tolist())}
    for _ in range(3):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        drawn.add(tuple(map(int, done.stdout.split())))
    assert len(drawn) == 4
    for key in drawn:
        assert len(key) == 4 and key[3] % 2 == 1
        assert len({*key}) == 4 and max(key) > 1 << 24


def flipped(word: bytes, *bits: int) -> bytes:
    number = int.from_bytes(word, "little")
    for bit in bits:
        number ^= 1 << bit
    return number.to_bytes(len(word), "little")


@pytest.mark.parametrize("length", [11, 24])
def test_no_difference_of_two_words_collides_under_many_keys(length: int) -> None:
    """One bit, the same bit of two numbers, and any two: under a key that nobody knows."""
    draw, bits = random.Random(length), 8 * length
    word = draw.randbytes(length)
    others = [flipped(word, bit) for bit in range(bits)]
    others += [flipped(word, bit, bit + 32) for bit in range(bits - 32)]
    others += [flipped(word, *draw.sample(range(bits), 2)) for _ in range(100)]
    buckets, keys, met = 256, 250, [0] * len(others)
    for _ in range(keys):
        key = [draw.getrandbits(32) for _ in range(3)] + [draw.getrandbits(32) | 1]
        bucket = hashes.hash_word(word, key) % buckets
        for k, other in enumerate(others):
            met[k] += hashes.hash_word(other, key) % buckets == bucket
    assert max(met) < 16  # by chance 1, and 16 once in 1e13
