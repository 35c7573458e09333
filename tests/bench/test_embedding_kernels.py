"""The kernels that only the embedding's lab uses, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.bench import embedding as lab
from llmgpu.gpu.commands import MAX_GROUPS
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import constant
from llmgpu.lm.ops.ids import NO_TOKEN
from llmgpu.lm.ops.operations import GpuOperations, Operations
from tests.harness.kernels import kernel_of
from tests.lm.conftest import operations  # noqa: F401 (a fixture)
from tests.lm.ops.checking import assert_close, float32_values, poisoned, run, tensor_of
from tests.lm.ops.embedding_data import SHAPES, Ids, random_table, random_tokens
from tests.reference.lm import embedding as reference

Lookup = Callable[..., None]

LOOKUPS = [lab.embed_lookup_2d, lab.embed_lookup_token, lab.embed_lookup_rows_scalar]
BACKWARDS = [lab.embed_backward, lab.embed_backward_rows]


def look_up(device: Device, kernel: Lookup, tokens: Ids, table: NDArray[Any]) -> NDArray[Any]:
    """Run a lookup over a poisoned output and return that."""
    gpu = GpuOperations(device)
    out = poisoned(gpu, "out", (len(tokens), table.shape[1]))
    ids, rows = tensor_of(gpu, "tokens", tokens), tensor_of(gpu, "table", table)
    run(gpu, lambda: kernel(gpu, {"tokens": ids, "table": rows, "out": out}))
    return gpu.read(out)


def backward(
    device: Device, kernel: Lookup, batches: list[tuple[Ids, NDArray[np.float64]]], rows: int
) -> NDArray[Any]:
    """Add the gradients of micro-batches; return the table's gradient."""
    gpu = GpuOperations(device)
    grad_table = gpu.tensor("grad_table", (rows, batches[0][1].shape[1]))

    def record() -> None:
        for tokens, grad_out in batches:
            grads = tensor_of(gpu, "grad_out", grad_out)
            ids = tensor_of(gpu, "ids", tokens)
            kernel(gpu, {"tokens": ids, "grad_out": grads, "grad_table": grad_table})

    run(gpu, record)
    return gpu.read(grad_table)


@pytest.mark.parametrize("kernel", LOOKUPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_lookup(any_device: Device, kernel: Lookup, shape: tuple[int, int, int]) -> None:
    count, vocab_size, width = shape
    tokens, table = random_tokens(count, vocab_size), random_table(vocab_size, width)
    out = look_up(any_device, kernel, tokens, table)
    np.testing.assert_array_equal(out, reference.embed_lookup(tokens, table))


@pytest.mark.parametrize("kernel", LOOKUPS)
def test_ids_at_and_beyond_the_vocabulary_are_zeros(any_device: Device, kernel: Lookup) -> None:
    tokens = np.array([3, 4, 5, 0, NO_TOKEN], np.uint32)
    table = random_table(4, 8)
    out = look_up(any_device, kernel, tokens, table)
    np.testing.assert_array_equal(out[[1, 2, 4]], np.zeros((3, 8)))
    np.testing.assert_array_equal(out[[0, 3]], table[[3, 0]])


@pytest.mark.parametrize(
    ("kernel", "count"),
    [
        (lab.embed_lookup_2d, lab.TILE_TOKENS * MAX_GROUPS + 9),
        (lab.embed_lookup_rows_scalar, MAX_GROUPS + 2),
    ],
)
def test_lookup_by_more_workgroups_than_a_dimension_has(
    any_device: Device, kernel: Lookup, count: int
) -> None:
    tokens, table = random_tokens(count, 5), random_table(6, 4)[:5]
    out = look_up(any_device, kernel, tokens, table)
    padded = np.concatenate([table, np.zeros((1, 4))])
    np.testing.assert_array_equal(out, padded[np.minimum(tokens, 5)])


@pytest.mark.parametrize("kernel", LOOKUPS)
def test_no_tokens(any_device: Device, kernel: Lookup) -> None:
    tokens = np.zeros(0, np.uint32)
    assert look_up(any_device, kernel, tokens, random_table(3, 8)).shape == (0, 8)


@pytest.mark.parametrize("shape", SHAPES)
def test_lookup_with_positions(operations: Operations, shape: tuple[int, int, int]) -> None:  # noqa: F811
    count, vocab_size, width = shape
    tokens, positions = random_tokens(count, vocab_size), random_tokens(count, 11)[::-1].copy()
    table, position_table = random_table(vocab_size, width), random_table(11, width)
    out = poisoned(operations, "out", (count, width))
    arrays = {"tokens": tokens, "table": table}
    arrays |= {"positions": positions, "position_table": position_table}
    tensors = {name: tensor_of(operations, name, array) for name, array in arrays.items()}
    run(operations, lambda: lab.embed_lookup_positions(operations, tensors | {"out": out}))
    expected = reference.embed_lookup_positions(*arrays.values())
    np.testing.assert_array_equal(operations.read(out), expected.astype(np.float32))


@pytest.mark.parametrize("kernel", BACKWARDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_backward(any_device: Device, kernel: Lookup, shape: tuple[int, int, int]) -> None:
    count, vocab_size, width = shape
    tokens = random_tokens(count, vocab_size)
    grad_out = float32_values(np.random.default_rng(1), count, width)
    actual = backward(any_device, kernel, [(tokens, grad_out)], vocab_size)
    assert_close(actual, reference.embed_backward(tokens, grad_out, vocab_size))


@pytest.mark.parametrize("kernel", BACKWARDS)
def test_gradients_that_are_not_finite_are_skipped(any_device: Device, kernel: Lookup) -> None:
    tokens = np.array([2, 0, 2, 2, 1, 2], np.uint32)
    grad_out = np.array(
        [[np.nan, 1.0], [np.inf, -0.0], [0.5, -np.inf], [0.25, 0.0], [np.nan, np.nan], [0.0, 4.0]]
    )
    actual = backward(any_device, kernel, [(tokens, grad_out)], 3)
    np.testing.assert_array_equal(actual, [[0.0, 0.0], [0.0, 0.0], [0.75, 5.0]])


@pytest.mark.parametrize("kernel", BACKWARDS)
def test_ten_times_the_same_token(any_device: Device, kernel: Lookup) -> None:
    grad_out = np.arange(30, dtype=np.float64).reshape(10, 3)
    actual = backward(any_device, kernel, [(np.full(10, 1, np.uint32), grad_out)], 2)
    np.testing.assert_array_equal(actual, [[0, 0, 0], [135, 145, 155]])


@pytest.mark.parametrize("kernel", BACKWARDS)
def test_gradients_of_micro_batches_add_up(any_device: Device, kernel: Lookup) -> None:
    rng = np.random.default_rng(2)
    batches = [(random_tokens(100 + k, 6), float32_values(rng, 100 + k, 5)) for k in range(3)]
    actual = backward(any_device, kernel, batches, 6)
    assert_close(actual, sum(reference.embed_backward(*batch, 6) for batch in batches))


@pytest.mark.parametrize("kernel", BACKWARDS)
def test_ten_thousand_tokens_of_three_ids(any_device: Device, kernel: Lookup) -> None:
    rng = np.random.default_rng(3)
    tokens = rng.choice(np.array([4, 0, 2], np.uint32), 10_000, p=[0.9, 0.0998, 0.0002])
    grad_out = float32_values(rng, 10_000, 6)
    actual = backward(any_device, kernel, [(tokens, grad_out)], 5)
    assert_close(actual, reference.embed_backward(tokens, grad_out, 5))


@pytest.mark.parametrize("kernel", BACKWARDS)
def test_backward_of_no_tokens(any_device: Device, kernel: Lookup) -> None:
    empty = (np.zeros(0, np.uint32), np.zeros((0, 4)))
    np.testing.assert_array_equal(backward(any_device, kernel, [empty], 3), np.zeros((3, 4)))


def test_backward_by_more_workgroups_than_a_dimension_has(any_device: Device) -> None:
    tokens = random_tokens(MAX_GROUPS + 2, 70_000)
    batch = (tokens, np.ones((len(tokens), 1)))
    actual = backward(any_device, lab.embed_backward_rows, [batch], 70_000)
    known = tokens[tokens < 70_000]
    np.testing.assert_array_equal(actual[:, 0], np.bincount(known, minlength=70_000))


def test_constants_are_those_of_the_host() -> None:
    for name in ("TILE_COLUMNS", "TILE_TOKENS"):
        assert constant("bench/embed_lookup_2d.wgsl", name) == getattr(lab, name)


ADD_WITHOUT_ATOMICS = """
@group(0) @binding(0) var<storage, read> grad_out: array<f32>;
@group(0) @binding(1) var<storage, read_write> grad_table: array<f32>;

@compute @workgroup_size(256)
fn add_without_atomics(@builtin(global_invocation_id) thread: vec3<u32>) {
    grad_table[0] += grad_out[thread.x];
}
"""


def test_a_plain_sum_loses_gradients(device: Device) -> None:
    """4096 times the same token, one column: what `+=` makes of it.

    Neighbouring threads of a subgroup (on a CPU, lanes of a vector) read the sum together before
    any of them has written it, so most gradients are lost on every adapter that has more than one
    lane; the kernel with atomics loses none.
    """
    gpu = GpuOperations(device)
    grads = tensor_of(gpu, "grad_out", np.ones((4096, 1)))
    table = gpu.tensor("grad_table", (1, 1))
    kernel = kernel_of(device, ADD_WITHOUT_ATOMICS)
    bound = kernel.bind(grad_out=grads.buffer, grad_table=table.buffer)
    run(gpu, lambda: gpu.append(lambda: gpu._commands.dispatch(bound, 4096 // 256)))
    assert 1 <= gpu.read(table)[0, 0] < 4096
    batch = [(np.zeros(4096, np.uint32), np.ones((4096, 1)))]
    assert backward(device, lab.embed_backward, batch, 1)[0, 0] == 4096
