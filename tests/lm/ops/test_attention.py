"""Causal attention against the whole matrix of probabilities in float64."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.errors import DeviceError
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import constant
from llmgpu.lm.ops import attention
from llmgpu.lm.ops.layers import rotary_frequencies, rotary_tables
from llmgpu.lm.ops.operations import GpuOperations, Operations, open_operations
from llmgpu.lm.ops.tensor import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    PackedGradient,
    Rotation,
    Tensor,
)
from tests.lm.ops.checking import (
    FLOAT32_TOLERANCE,
    assert_close,
    float32_values,
    poisoned,
    poisoned_halves,
    run,
    tensor_of,
)
from tests.reference.lm import attention as reference
from tests.reference.lm.rotary import rotary

Array = NDArray[np.float64]
Starts = NDArray[np.uint32]
# Few widths, since each is compiled separately; the blocks of the kernels are 64 tokens.
ONE_TOKEN = [AttentionShape(1, 1, 1, 1, 12), AttentionShape(3, 1, 2, 1, 8)]
SHAPES = [
    AttentionShape(2, 7, 2, 2, 8),
    AttentionShape(1, 33, 4, 2, 12),
    AttentionShape(2, 64, 2, 1, 8),
    AttentionShape(1, 65, 2, 1, 64),
    AttentionShape(1, 131, 1, 1, 72),
    AttentionShape(1, 97, 2, 2, 128),
    AttentionShape(1, 200, 8, 1, 8),
]


def name_of(shape: AttentionShape) -> str:
    return f"B{shape.batch}-T{shape.seq}-H{shape.heads}-K{shape.kv_heads}-D{shape.head_dim}"


def inputs(shape: AttentionShape) -> list[Array]:
    """Return q, k, v and grad_out."""
    rng = np.random.default_rng(shape.seq)
    rows = shape.batch * shape.seq
    heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
    return [float32_values(rng, rows, count * shape.head_dim) for count in heads]


def starts_of(shape: AttentionShape, lengths: list[int]) -> Starts:
    """Return where the documents of each row begin; their lengths repeat along all sequences."""
    starts = np.zeros((shape.batch, shape.seq), np.uint32)
    sizes = cycle(lengths)
    for sequence in starts:
        begin = 0
        while begin < shape.seq:
            size = next(sizes)
            sequence[begin : begin + size] = begin
            begin += size
    return starts.reshape(-1)


def starts_tensor(operations: Operations, shape: AttentionShape, starts: Starts | None) -> Tensor:
    if starts is None:
        starts = starts_of(shape, [shape.seq])
    return tensor_of(operations, "starts", starts)


def run_forward(
    operations: Operations,
    arrays: list[Array],
    shape: AttentionShape,
    starts: Starts | None = None,
) -> list[NDArray[np.float32]]:
    firsts = starts_tensor(operations, shape, starts)
    q, k, v = (tensor_of(operations, "input", array) for array in arrays[:3])
    out = poisoned(operations, "out", q.shape)
    sums = poisoned(operations, "log_sum_exp", (q.shape[0], shape.heads))
    tensors = AttentionTensors(q, k, v, out, sums)
    run(operations, lambda: operations.attention(tensors, firsts, shape))
    return [operations.read(out), operations.read(sums)]


def run_both(
    operations: Operations,
    arrays: list[Array],
    shape: AttentionShape,
    starts: Starts | None = None,
) -> list[NDArray[np.float32]]:
    """Return the gradients of q, k and v."""
    firsts = starts_tensor(operations, shape, starts)
    q, k, v, grad_out = (tensor_of(operations, "input", array) for array in arrays)
    out = poisoned(operations, "out", q.shape)
    sums = poisoned(operations, "log_sum_exp", (q.shape[0], shape.heads))
    grads = [poisoned(operations, "gradient", tensor.shape) for tensor in (q, k, v)]

    def record() -> None:
        tensors = AttentionTensors(q, k, v, out, sums)
        operations.attention(tensors, firsts, shape)
        gradients = AttentionGradients(*grads, grad_out)
        operations.attention_backward(tensors, gradients, firsts, shape)

    run(operations, record)
    return [operations.read(grad) for grad in grads]


@np.errstate(under="ignore")
def test_the_packed_gradient_of_numpy() -> None:
    """Gradients of queries and keys are turned back, and the gap before keys is not written."""
    shape, operations = AttentionShape(2, 5, 4, 2, 8), open_operations(None)
    arrays = [array.astype(np.float16) for array in inputs(shape)]
    q, k, v, grad_out = (tensor_of(operations, "input", array) for array in arrays)
    out, firsts = (
        poisoned_halves(operations, "out", q.shape),
        starts_tensor(operations, shape, None),
    )
    tensors = AttentionTensors(q, k, v, out, operations.tensor("sums", (len(arrays[0]), 4)))
    positions = np.tile(np.arange(5, dtype=np.uint32), 2)
    tables = [tensor_of(operations, "t", a) for a in rotary_tables(5, rotary_frequencies(8, 1e4))]
    rotation = Rotation(*tables, tensor_of(operations, "positions", positions), 8)
    columns = (0, 40, 56)
    packed = operations.tensor("x", (10, 72), np.float16)
    gradients = PackedGradient(grad_out, packed, columns, rotation)

    def record() -> None:
        operations.attention(tensors, firsts, shape)
        operations.attention_backward_to_packed(tensors, gradients, firsts, shape)

    run(operations, record)
    found = operations.read(packed).astype(np.float64)
    wide = [array.astype(np.float64) for array in arrays]
    for n, gradient in enumerate(reference.attention_backward(*wide, shape)):
        back = rotary(gradient, positions, 8, 1e4, inverse=True) if n < 2 else gradient
        part = found[:, columns[n] : columns[n] + back.shape[1]]
        np.testing.assert_allclose(part, back, rtol=2e-3, atol=2e-3)
    assert not found[:, 32:40].any()


@pytest.mark.parametrize("shape", ONE_TOKEN + SHAPES, ids=name_of)
def test_attention(operations: Operations, shape: AttentionShape) -> None:
    arrays = inputs(shape)
    for actual, expected in zip(
        run_forward(operations, arrays, shape),
        reference.attention(*arrays[:3], shape),
        strict=True,
    ):
        assert_close(actual, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_attention_backward(operations: Operations, shape: AttentionShape) -> None:
    arrays = inputs(shape)
    for actual, expected in zip(
        run_both(operations, arrays, shape),
        reference.attention_backward(*arrays, shape),
        strict=True,
    ):
        # The sums of a row of few keys cancel: its gradients are far smaller than their terms.
        assert_close_in_tensor(actual, expected)


DOCUMENTS = [
    (AttentionShape(2, 7, 2, 2, 8), [3, 1, 3, 7]),
    (AttentionShape(1, 33, 4, 2, 12), [1, 9]),
    (AttentionShape(2, 200, 2, 1, 8), [64, 5, 130, 1, 63]),
    (AttentionShape(1, 200, 4, 2, 72), [100, 20, 80]),
    (AttentionShape(1, 131, 1, 1, 128), [129, 2]),
]


@pytest.mark.parametrize(("shape", "lengths"), DOCUMENTS, ids=str)
def test_attention_does_not_cross_documents(
    operations: Operations, shape: AttentionShape, lengths: list[int]
) -> None:
    arrays, starts = inputs(shape), starts_of(shape, lengths)
    forward = run_forward(operations, arrays, shape, starts)
    for actual, expected in zip(
        forward, reference.attention(*arrays[:3], shape, starts), strict=True
    ):
        assert_close(actual, expected)
    for actual, expected in zip(
        run_both(operations, arrays, shape, starts),
        reference.attention_backward(*arrays, shape, starts),
        strict=True,
    ):
        assert_close_in_tensor(actual, expected)


def test_a_document_is_the_same_wherever_it_is(operations: Operations) -> None:
    """What other documents hold, infinite numbers apart, changes no bit."""
    shape = AttentionShape(1, 192, 2, 1, 8)
    arrays, starts = inputs(shape), starts_of(shape, [70, 60, 62])
    once = run_forward(operations, arrays, shape, starts)
    for array in arrays[:3]:
        array[:70] *= 1e4
        array[130:] = 7.0
    again = run_forward(operations, arrays, shape, starts)
    for first, second in zip(once, again, strict=True):
        assert first[70:130].tobytes() == second[70:130].tobytes()


def assert_close_in_tensor(
    actual: NDArray[np.float32], expected: Array, tolerance: float = FLOAT32_TOLERANCE
) -> None:
    assert_close(actual.reshape(1, -1), expected.reshape(1, -1), tolerance)


@pytest.mark.parametrize("shape", ONE_TOKEN, ids=name_of)
def test_attention_backward_of_one_token(operations: Operations, shape: AttentionShape) -> None:
    arrays = inputs(shape)
    grad_q, grad_k, grad_v = run_both(operations, arrays, shape)
    np.testing.assert_allclose(grad_q, 0, atol=1e-6)
    np.testing.assert_allclose(grad_k, 0, atol=1e-6)
    assert_close(grad_v, reference.attention_backward(*arrays, shape)[2])


def test_the_reference_s_gradients_are_its_slopes() -> None:
    shape = AttentionShape(2, 5, 4, 2, 4)
    arrays = inputs(shape)
    grads = reference.attention_backward(*arrays, shape)
    rng = np.random.default_rng(0)
    for number, grad in enumerate(grads):
        direction = rng.standard_normal(grad.shape)
        sums = []
        for step in (1e-5, -1e-5):
            moved = list(arrays)
            moved[number] = arrays[number] + step * direction
            sums.append((reference.attention(*moved[:3], shape)[0] * arrays[3]).sum())
        slope = (sums[0] - sums[1]) / 2e-5
        np.testing.assert_allclose((grad * direction).sum(), slope, rtol=1e-6)


def test_large_scores(operations: Operations) -> None:
    # Multiples of 1/8 give scores that are exact in float32, all of them around 3200.
    shape = AttentionShape(1, 70, 2, 1, 64)
    arrays = [np.rint(8 * array) / 8 for array in inputs(shape)]
    arrays[0][:, ::64], arrays[1][:, 0] = 160, 160
    actual = run_forward(operations, arrays, shape)
    expected = reference.attention(*arrays[:3], shape)
    assert expected[1].min() > 3000
    assert_close(actual[0], expected[0])
    assert_close(actual[1], expected[1])
    for grad, expected_grad in zip(
        run_both(operations, arrays, shape),
        reference.attention_backward(*arrays, shape),
        strict=True,
    ):
        # log_sum_exp in float32 is off by 1e-4 here, and probabilities by as much of their value.
        # In the first column, gradients are 100 times as large or cancel.
        small = np.arange(grad.shape[1]) % 64 != 0
        assert_close_in_tensor(grad[:, small], expected_grad[:, small], 1e-3)


def test_same_bits_twice(operations: Operations) -> None:
    shape = AttentionShape(1, 67, 4, 2, 8)
    arrays = inputs(shape)
    runs = [run_forward(operations, arrays, shape) for _ in range(2)]
    runs = [forward + run_both(operations, arrays, shape) for forward in runs]
    for first, second in zip(*runs, strict=True):
        assert first.tobytes() == second.tobytes()


def test_a_sequence_does_not_see_its_neighbours(operations: Operations) -> None:
    arrays = inputs(AttentionShape(3, 37, 2, 1, 8))
    together = run_forward(operations, arrays, AttentionShape(3, 37, 2, 1, 8))
    middle = [array[37:74] for array in arrays]
    alone = run_forward(operations, middle, AttentionShape(1, 37, 2, 1, 8))
    for first, second in zip(together, alone, strict=True):
        assert first[37:74].tobytes() == second.tobytes()


def test_numpy_goes_through_queries_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = AttentionShape(2, 37, 4, 2, 8)
    arrays = inputs(shape)
    operations = open_operations(None)
    for scores in (1, 1500):  # one query at a time, five of them
        monkeypatch.setattr(attention, "BLOCK_SCORES", scores)
        assert_close(
            run_forward(operations, arrays, shape)[0],
            reference.attention(*arrays[:3], shape)[0],
        )
        for actual, expected in zip(
            run_both(operations, arrays, shape),
            reference.attention_backward(*arrays, shape),
            strict=True,
        ):
            assert_close_in_tensor(actual, expected)


@pytest.mark.parametrize("width", [6, 132])
def test_widths_the_kernels_do_not_take(device: Device, width: int) -> None:
    shape = AttentionShape(1, 2, 1, 1, width)
    arrays = inputs(shape)
    with pytest.raises(DeviceError, match=f"heads are {width} wide.*multiples of 4 up to 128"):
        run_forward(GpuOperations(device), arrays, shape)
    out, _ = run_forward(open_operations(None), arrays, shape)
    assert_close(out, reference.attention(*arrays[:3], shape)[0])


@pytest.mark.parametrize(("memory", "depth"), [(16_384, 4), (32_768, 8), (49_152, 8)])
def test_tiles_fit_the_workgroup_memory(memory: int, depth: int) -> None:
    constants = attention.tile_constants(64, {"max-compute-workgroup-storage-size": memory})
    assert constants["DEPTH_QUADS"] == depth
    assert constants["TILE_SLOTS"] * attention.SLOT_BYTES <= memory


def test_the_kernels_constants_are_the_host_s() -> None:
    tiles = "lm/attention_tiles.wgsl"
    assert constant(tiles, "BLOCK_ROWS") == attention.BLOCK_ROWS
    lanes = constant(tiles, "LANES")
    assert constant(tiles, "THREADS") == constant(tiles, "BLOCK_ROWS") // 8 * lanes
