"""Rows for token ids and the table's gradient against float64, with tokens beyond the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.gpu.commands import MAX_GROUPS
from llmgpu.gpu.device import Device
from llmgpu.lm.ops import ids
from llmgpu.lm.ops.ids import NO_TOKEN, SLICE, group_tokens, lanes_of_row
from llmgpu.lm.ops.operations import GpuOperations, Operations, open_operations
from llmgpu.lm.ops.tensor import Groups
from tests.lm.ops.checking import assert_close, float32_values, poisoned, run, tensor_of
from tests.lm.ops.embedding_data import SHAPES, VECTOR_SHAPES, Ids, random_table, random_tokens
from tests.reference.lm import embedding as reference

LOOKUPS = ["embed_lookup", "embed_lookup_elements"]
LOOKUP_CASES = [(name, shape) for name in LOOKUPS for shape in SHAPES]
HALF_LOOKUPS = [
    ("embed_lookup", SHAPES[1]),
    ("embed_lookup", SHAPES[-1]),
    ("embed_lookup", VECTOR_SHAPES[1]),
    ("embed_lookup_elements", SHAPES[1]),
]


def look_up(operations: Operations, name: str, tokens: Ids, table: NDArray[Any]) -> NDArray[Any]:
    """Run a lookup by its name over a poisoned output and return that."""
    out = poisoned(operations, "out", (len(tokens), table.shape[1]))
    ids, rows = tensor_of(operations, "tokens", tokens), tensor_of(operations, "table", table)
    # NumPy has one way to do all lookups.
    operation = getattr(operations, name, operations.embed_lookup)
    run(operations, lambda: operation(ids, rows, out))
    return operations.read(out)


def backward(
    operations: Operations, batches: list[tuple[Ids, NDArray[np.float64]]], rows: int
) -> NDArray[Any]:
    """Add the gradients of micro-batches; return the table's gradient."""
    grad_table = operations.tensor("grad_table", (rows, batches[0][1].shape[1]))

    def record() -> None:
        for tokens, grad_out in batches:
            grads = tensor_of(operations, "grad_out", grad_out)
            groups = [tensor_of(operations, "ids", array) for array in group_tokens(tokens)]
            operations.embed_backward_grouped(Groups(*groups), grads, grad_table)

    run(operations, record)
    return operations.read(grad_table)


@pytest.mark.parametrize(("name", "shape"), LOOKUP_CASES)
def test_lookup(operations: Operations, name: str, shape: tuple[int, int, int]) -> None:
    count, vocab_size, width = shape
    tokens, table = random_tokens(count, vocab_size), random_table(vocab_size, width)
    out = look_up(operations, name, tokens, table)
    np.testing.assert_array_equal(out, reference.embed_lookup(tokens, table))


@pytest.mark.parametrize(("name", "shape"), HALF_LOOKUPS)
def test_lookup_of_half_precision_is_that_of_the_same_numbers(
    operations: Operations, name: str, shape: tuple[int, int, int]
) -> None:
    count, vocab_size, width = shape
    if not operations.has_half_precision:
        pytest.skip("no half precision here")
    tokens = random_tokens(count, vocab_size)
    with np.errstate(under="ignore"):
        half = random_table(vocab_size, width).astype(np.float16)
    out = look_up(operations, name, tokens, half)
    np.testing.assert_array_equal(out, look_up(operations, name, tokens, half.astype(np.float64)))
    np.testing.assert_array_equal(out, reference.embed_lookup(tokens, half.astype(np.float64)))


@pytest.mark.parametrize("lanes", [1, 8, 256])
def test_lookup_by_any_number_of_threads_a_row(
    any_device: Device, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    monkeypatch.setattr(ids, "lanes_of_row", lambda width: lanes)
    tokens, table = random_tokens(70, 9), random_table(9, 132)
    out = look_up(GpuOperations(any_device), "embed_lookup", tokens, table)
    np.testing.assert_array_equal(out, reference.embed_lookup(tokens, table))


def test_threads_of_a_row() -> None:
    widths = [0, 4, 8, 64, 128, 384, 768, 1024, 2048, 4096, 16384]
    assert [lanes_of_row(width) for width in widths] == [1, 1, 2, 16, 32, 32, 64, 64, 128, 256, 256]


def test_ids_at_and_beyond_the_vocabulary_are_zeros(operations: Operations) -> None:
    tokens = np.array([3, 4, 5, 0, NO_TOKEN], np.uint32)
    table = random_table(4, 8)
    for name in LOOKUPS:
        out = look_up(operations, name, tokens, table)
        np.testing.assert_array_equal(out[[1, 2, 4]], np.zeros((3, 8)), name)
        np.testing.assert_array_equal(out[[0, 3]], table[[3, 0]], name)


def test_lookup_in_a_large_table(operations: Operations) -> None:
    tokens = np.array([16383, 0, 16384, 8191, 16383], np.uint32)
    table = np.arange(16384 * 384, dtype=np.float64).reshape(16384, 384)  # exact in float32
    out = look_up(operations, "embed_lookup", tokens, table)
    np.testing.assert_array_equal(out, reference.embed_lookup(tokens, table))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("width", [5, 8])
def test_lookup_in_a_table_of_several_parts(operations: Operations, width: int, half: bool) -> None:
    if half and not operations.has_half_precision:
        pytest.skip("no half precision here")
    tokens = random_tokens(90, 20)
    table = random_table(20, width).astype(np.float16 if half else np.float64)
    ids = tensor_of(operations, "tokens", tokens)
    parts = [tensor_of(operations, "part", part) for part in np.split(table, [6, 7])]
    out = poisoned(operations, "out", (90, width))
    run(operations, lambda: operations.embed_lookup(ids, parts, out))
    np.testing.assert_array_equal(
        operations.read(out), reference.embed_lookup(tokens, table.astype(np.float64))
    )


def test_lookup_by_more_workgroups_than_a_dimension_has(
    any_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "lanes_of_row", lambda width: 256)
    count = MAX_GROUPS + 2
    tokens, table = random_tokens(count, 5), random_table(6, 4)[:5]
    out = look_up(GpuOperations(any_device), "embed_lookup", tokens, table)
    padded = np.concatenate([table, np.zeros((1, 4))])
    np.testing.assert_array_equal(out, padded[np.minimum(tokens, 5)])


@pytest.mark.parametrize("name", LOOKUPS)
def test_no_tokens(operations: Operations, name: str) -> None:
    tokens = np.zeros(0, np.uint32)
    assert look_up(operations, name, tokens, random_table(3, 8)).shape == (0, 8)


@pytest.mark.parametrize("shape", SHAPES)
def test_backward(operations: Operations, shape: tuple[int, int, int]) -> None:
    count, vocab_size, width = shape
    tokens = random_tokens(count, vocab_size)
    grad_out = float32_values(np.random.default_rng(1), count, width)
    actual = backward(operations, [(tokens, grad_out)], vocab_size)
    assert_close(actual, reference.embed_backward(tokens, grad_out, vocab_size))


def test_gradients_that_are_not_finite_are_skipped(operations: Operations) -> None:
    tokens = np.array([2, 0, 2, 2, 1, 2], np.uint32)
    grad_out = np.array(
        [[np.nan, 1.0], [np.inf, -0.0], [0.5, -np.inf], [0.25, 0.0], [np.nan, np.nan], [0.0, 4.0]]
    )
    actual = backward(operations, [(tokens, grad_out)], 3)
    np.testing.assert_array_equal(actual, [[0.0, 0.0], [0.0, 0.0], [0.75, 5.0]])


def test_ten_times_the_same_token(operations: Operations) -> None:
    grad_out = np.arange(30, dtype=np.float64).reshape(10, 3)
    actual = backward(operations, [(np.full(10, 1, np.uint32), grad_out)], 2)
    np.testing.assert_array_equal(actual, [[0, 0, 0], [135, 145, 155]])


def test_gradients_of_micro_batches_add_up(operations: Operations) -> None:
    rng = np.random.default_rng(2)
    batches = [(random_tokens(100 + k, 6), float32_values(rng, 100 + k, 5)) for k in range(3)]
    actual = backward(operations, batches, 6)
    assert_close(actual, sum(reference.embed_backward(*batch, 6) for batch in batches))


def test_ten_thousand_tokens_of_three_ids(operations: Operations) -> None:
    rng = np.random.default_rng(3)
    tokens = rng.choice(np.array([4, 0, 2], np.uint32), 10_000, p=[0.9, 0.0998, 0.0002])
    grad_out = float32_values(rng, 10_000, 6)
    actual = backward(operations, [(tokens, grad_out)], 5)
    assert_close(actual, reference.embed_backward(tokens, grad_out, 5))


def test_backward_of_no_tokens(operations: Operations) -> None:
    empty = (np.zeros(0, np.uint32), np.zeros((0, 4)))
    np.testing.assert_array_equal(backward(operations, [empty], 3), np.zeros((3, 4)))


# Runs of one token that end at, before and after the end of a slice, or cover whole slices.
RUNS = [
    [SLICE],
    [SLICE, SLICE],
    [SLICE - 1, 2, SLICE - 1],
    [SLICE + 1, SLICE - 1, 1],
    [3 * SLICE, 5],
    [5, 3 * SLICE, 1, 4 * SLICE - 6, 2],
    [1] * SLICE + [2 * SLICE],
]


@pytest.mark.parametrize("runs", RUNS)
def test_groups_and_slices_that_end_anywhere(operations: Operations, runs: list[int]) -> None:
    rng = np.random.default_rng(4)
    tokens = rng.permutation(np.repeat(np.arange(len(runs), dtype=np.uint32), runs))
    grad_out = float32_values(rng, len(tokens), 3)
    actual = backward(operations, [(tokens, grad_out)], len(runs))
    assert_close(actual, reference.embed_backward(tokens, grad_out, len(runs)))


def test_numpy_adds_gradients_in_a_fixed_order() -> None:
    """To the bit, in groups of all sizes at which pairwise summation changes how it adds."""
    sizes = [*range(20), 127, 128, 129, 130, 136, 137, 138, 257, 258, 272, 273, 600]
    rng = np.random.default_rng(8)
    tokens = rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes))
    grad_out = rng.standard_normal((len(tokens), 3)) * 10.0 ** rng.integers(-6, 6, (len(tokens), 1))
    single = grad_out.astype(np.float32)
    actual = backward(open_operations(None), [(tokens, grad_out)], len(sizes))
    expected = reference.embed_backward_in_order(tokens, single, len(sizes))
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
    # It is that of NumPy's reduceat, with which runs of earlier versions were trained.
    order, starts, rows = group_tokens(tokens)
    count = np.count_nonzero(rows != NO_TOKEN)
    sums = np.add.reduceat(single[order], starts[:count].astype(np.int64), axis=0)
    np.testing.assert_array_equal(actual[rows[:count]], sums)


def test_grouped_gradients_repeat_bit_for_bit(operations: Operations) -> None:
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 4, 3000).astype(np.uint32)
    batch = [(tokens, float32_values(rng, 3000, 20))]
    first, *others = [backward(operations, batch, 4) for _ in range(4)]
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spare", [False, True])
def test_gradient_as_ids_and_rows(
    operations: Operations, shape: tuple[int, int, int], spare: bool
) -> None:
    count, vocab_size, width = shape
    tokens = random_tokens(count, vocab_size)
    grad_out = float32_values(np.random.default_rng(6), count, width)
    ids = np.unique(tokens)
    groups = group_tokens(tokens)
    *tensors, grads = (tensor_of(operations, "input", array) for array in (*groups, grad_out))
    out = poisoned(operations, "out", (count if spare else len(ids), width))
    run(operations, lambda: operations.embed_gradient_rows(Groups(*tensors), grads, out))
    expected = np.zeros(out.shape)
    for row, token in enumerate(ids):  # tokens beyond a table have rows, too
        expected[row] = grad_out[tokens == token].sum(axis=0)
    np.testing.assert_array_equal(groups[2][: len(ids)], ids)
    assert_close(operations.read(out), expected)


@pytest.mark.parametrize(("shape", "dtype"), [((300, 3), "f4"), ((5,), "f2"), ((3,), "u1")])
def test_fill_zero_leaves_what_follows(
    operations: Operations, shape: tuple[int, ...], dtype: str
) -> None:
    whole = operations.tensor("whole", (2 * shape[0], *shape[1:]), dtype)
    operations.write(whole, np.ones(whole.shape))
    run(operations, lambda: operations.fill_zero(whole.rows(0, shape[0])))
    expected = np.concatenate([np.zeros(shape), np.ones(shape)])
    np.testing.assert_array_equal(operations.read(whole), expected)


def test_groups_of_tokens() -> None:
    order, starts, rows = group_tokens(np.array([7, 2, 7, 9, 2, 7], np.uint32))
    assert order.tolist() == [1, 4, 0, 2, 5, 3]
    assert starts.tolist() == [0, 2, 5, 6, 6, 6, 6]
    assert rows.tolist() == [2, 7, 9, NO_TOKEN, NO_TOKEN, NO_TOKEN]
    assert all(array.dtype == np.uint32 for array in (order, starts, rows))
    assert [array.tolist() for array in group_tokens(np.zeros(0, np.uint32))] == [[], [0], []]
