"""Tensors that are read and written together, while programs run."""

from __future__ import annotations

import numpy as np

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.recording import STAGED
from llmgpu.lm.ops.tensor import FloatArray, Tensor


def numbers(size: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def test_tensors_and_parts_of_them_are_read_end_to_end(operations: Operations) -> None:
    tensors = [operations.tensor(f"t{size}", (size,)) for size in (3, 1, 200)]
    for seed, tensor in enumerate(tensors):
        operations.write(tensor, numbers(tensor.size, seed))
    pieces = [tensors[0], tensors[1], tensors[2].part(64, 130)]
    found, release = operations.open_transfers(100).start_reading(pieces)()
    np.testing.assert_array_equal(
        found, np.concatenate([numbers(3, 0), numbers(1, 1), numbers(200, 2)[64:130]])
    )
    release()


def test_what_runs_later_is_not_read_and_what_ran_before_is(operations: Operations) -> None:
    """Several reads are under way at a time, each of the state at its start."""
    tensor, transfers = operations.tensor("t", (5,)), operations.open_transfers(5)
    with operations.record("zeros") as clear:
        operations.fill_zero(tensor)
    reads = []
    for seed in range(3):
        operations.write(tensor, numbers(5, seed))
        reads.append((seed, transfers.start_reading([tensor])))
        operations.run(clear)
    for seed, read in reads:
        found, release = read()
        np.testing.assert_array_equal(found, numbers(5, seed))
        release()
    assert not operations.read(tensor).any()


def test_more_writes_than_there_is_staging_memory_for(operations: Operations) -> None:
    first, second = operations.tensor("first", (7, 3)), operations.tensor("second", (300,))
    pieces: list[Tensor] = [first, second.part(64, 200)]
    transfers = operations.open_transfers(21 + 136)
    for seed in range(2 * STAGED + 1):
        values = numbers(21 + 136, seed)
        out, write = transfers.start_writing(pieces)
        out[:] = values
        write()
        np.testing.assert_array_equal(operations.read(first).reshape(-1), values[:21])
    rest = operations.read(second)
    np.testing.assert_array_equal(rest[64:200], values[21:])
    assert not rest[:64].any() and not rest[200:].any()
