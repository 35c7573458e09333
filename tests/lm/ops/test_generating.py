"""The operations of generating against float64: few rows and many, several sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from llmgpu.lm.config import ACTIVATIONS
from llmgpu.lm.ops.activations import BY_NAME, ActivationTensors
from llmgpu.lm.ops.generating import MOST_LARGEST, logits_of
from llmgpu.lm.ops.layers import rotary_frequencies, rotary_tables
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import (
    AttentionShape,
    HeadTensors,
    NewRows,
    Norm,
    Packed,
    Rotation,
    Tensor,
)
from tests.lm.ops.checking import assert_close, float32_values, poisoned, run, tensor_of
from tests.reference.lm import activation, attention, norm, rotary

Array = NDArray[np.float64]
EPSILON = 1e-5
TOLERANCE = 3e-5  # of a norm, products and what follows, one after the other
SHAPES = [
    AttentionShape(1, 1, 5, 1, 4),  # 20 wide: rows of zeros between the weights
    AttentionShape(1, 1, 4, 2, 24),
    AttentionShape(1, 1, 9, 3, 64),
]
CACHED = [AttentionShape(1, 1, 1, 1, 8), AttentionShape(1, 1, 4, 2, 12)] + [
    AttentionShape(1, 1, 3, 1, width) for width in (64, 128)
]
ROWS = [1, 3, 11]  # kernels for one, for few and for many


def name_of(shape: AttentionShape) -> str:
    return f"{shape.heads}-{shape.kv_heads}-{shape.head_dim}"


def packed_tensor(
    operations: Operations, shapes: Mapping[str, tuple[int, ...]], kind: DTypeLike
) -> Packed:
    _, shape = Packed.layout(shapes.values())
    return Packed.of(operations.tensor("packed", shape, kind), shapes)


def packed_of(
    operations: Operations, arrays: list[Array], *, half: bool = False
) -> tuple[Packed, list[Array]]:
    """Return matrices in one tensor, and their values there in float64."""
    kind = np.float16 if half else np.float32
    if half:
        arrays = [np.rint(array * 256) / 256 for array in arrays]
    shapes = {f"weight {k}": array.shape for k, array in enumerate(arrays)}
    packed = packed_tensor(operations, shapes, kind)
    for part, array in zip(packed.parts, arrays, strict=True):
        operations.write(part, array.astype(kind))
    return packed, [array.astype(kind).astype(np.float64) for array in arrays]


def norm_of(operations: Operations, x: Array, weight: Array) -> Norm:
    return Norm(
        tensor_of(operations, "x", x),
        tensor_of(operations, "norm weight", weight),
        poisoned(operations, "normed", x.shape),
        poisoned(operations, "inverse rms", (len(x),)),
    )


@pytest.mark.parametrize("half", [False, True], ids=["single", "half"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_heads_go_to_the_cache(
    operations: Operations, shape: AttentionShape, rows: int, half: bool
) -> None:
    if half and rows > 8 and not operations.has_half_precision:
        pytest.skip("the adapter has no half-precision numbers")
    rng = np.random.default_rng(rows)
    dim, kv_dim = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    x, weight = float32_values(rng, rows, dim) * 3, float32_values(rng, dim)
    matrices = [float32_values(rng, size, dim) for size in (dim, kv_dim, kv_dim)]
    packed, matrices = packed_of(operations, matrices, half=half)
    positions = rng.permutation(17)[:rows].astype(np.uint32)
    starts = 40 * np.arange(rows, dtype=np.uint32)
    places = tensor_of(operations, "places", np.stack([positions, starts]))
    tables = rotary_tables(17, rotary_frequencies(shape.head_dim, 10_000.0))
    angles = [tensor_of(operations, "angles", table) for table in tables]
    heads = HeadTensors(
        poisoned(operations, "queries", (rows, dim)),
        tensor_of(operations, "cache", np.full((rows * 40, 2 * kv_dim), -1.0)),
    )
    reads, rotation = norm_of(operations, x, weight), Rotation(*angles, places, shape.head_dim)
    run(operations, lambda: operations.heads_to_cache(reads, EPSILON, packed, rotation, heads))
    normed = norm.rms_norm(x, weight, EPSILON)[0]
    q, k, v = (normed @ matrix.T for matrix in matrices)
    q, k = (rotary.rotary(each, positions, shape.head_dim, 10_000.0) for each in (q, k))
    assert_close(operations.read(heads.q), q, TOLERANCE)
    expected = np.full((rows * 40, 2 * kv_dim), -1.0)
    expected[starts + positions] = np.concatenate([k, v], 1)
    assert_close(operations.read(heads.cache), expected, TOLERANCE)


@pytest.mark.parametrize("half", [False, True], ids=["single", "half"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", [(20, 37), (64, 128), (576, 8)], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_inside_of_the_feed_forward_network(
    operations: Operations, sizes: tuple[int, int], rows: int, name: str, half: bool
) -> None:
    if half and not operations.has_half_precision:
        pytest.skip("the adapter has no half-precision numbers")
    rng = np.random.default_rng(rows)
    dim, width = sizes
    x, weight = float32_values(rng, rows, dim), float32_values(rng, dim)
    matrices = [float32_values(rng, width, dim) / 4 for _ in range(1 + BY_NAME[name].is_gated)]
    packed, matrices = packed_of(operations, matrices, half=half)
    reads, out = norm_of(operations, x, weight), poisoned(operations, "out", (rows, width))
    t = ActivationTensors(BY_NAME[name], (), out)
    run(operations, lambda: operations.feed_forward(reads, EPSILON, packed, t))
    products = [norm.rms_norm(x, weight, EPSILON)[0] @ matrix.T for matrix in matrices]
    assert_close(operations.read(out), activation.forward(name, *products), TOLERANCE)


@pytest.mark.parametrize("shape", CACHED, ids=name_of)
def test_attention_cached(operations: Operations, shape: AttentionShape) -> None:
    rng = np.random.default_rng(1)
    positions = np.array([0, 1, 299, 255, 256, 17], np.uint32)
    starts = np.array([0, 300, 310, 0, 310, 609], np.uint32)
    kv_dim = shape.kv_heads * shape.head_dim
    q = float32_values(rng, len(positions), shape.heads * shape.head_dim)
    keys, values = (float32_values(rng, 640, kv_dim) for _ in range(2))
    values[[302, 639]] = np.nan  # rows that nobody attends to
    heads = HeadTensors(
        tensor_of(operations, "queries", q),
        tensor_of(operations, "cache", np.concatenate([keys, values], 1)),
    )
    places = tensor_of(operations, "places", np.stack([positions, starts]))
    out = poisoned(operations, "out", q.shape)
    run(operations, lambda: operations.attention_cached(heads, places, out, shape))
    expected = [
        attention.attention_cached(
            q[row : row + 1], keys[start:], values[start:], positions[row : row + 1], shape
        )
        for row, start in enumerate(starts)
    ]
    assert_close(operations.read(out), np.concatenate(expected))


@pytest.mark.parametrize("count", [1, 63, 300, 20_000])
def test_the_likeliest_ids_are_taken(operations: Operations, count: int) -> None:
    rng = np.random.default_rng(count)
    logits = rng.standard_normal((5, count + 9)).astype(np.float32)
    logits[:, count:] = 100  # columns without tokens
    logits[1, [count // 3, count // 2, count - 1]] = 50  # equal ones
    logits[2] = -np.inf
    logits[3, :count] = rng.choice(np.array([0.0, -0.0], np.float32), count)
    logits[4, count // 2] = np.nan  # before all numbers, as for NumPy
    places = np.array([[3, 0, 7, 1, 0], [0, 10, 20, 30, 99]], np.uint32)
    rows = NewRows(
        tensor_of(operations, "tokens", np.full(5, 9, np.uint32)),
        tensor_of(operations, "places", places),
        99,
    )
    chosen = tensor_of(operations, "chosen", np.full((3, 5), 7, np.uint32))
    given = tensor_of(operations, "logits", logits)
    run(operations, lambda: operations.take_likeliest(given, count, rows, chosen, 1))
    expected = [int(np.argmax(row[:count])) for row in logits]
    assert operations.read(rows.tokens).tolist() == expected
    assert operations.read(chosen).tolist() == [[7] * 5, expected, [7] * 5]
    # The last row has no sequence.
    assert operations.read(rows.places).tolist() == [[4, 1, 8, 2, 0], places[1].tolist()]


@pytest.mark.parametrize(("count", "k"), [(1, 1), (63, 9), (300, 300), (20_000, 200)])
def test_the_largest_logits_are_found(operations: Operations, count: int, k: int) -> None:
    rng = np.random.default_rng(k)
    logits = (rng.standard_normal((6, -(-count // 4) * 4 + 8)) * 9).astype(np.float32)
    logits[:, count:] = 1000  # columns without tokens
    logits[1, ::3] = np.rint(logits[1, ::3])  # some are equal
    logits[2, ::2], logits[2, ::4] = 0.0, -0.0  # equal, too
    logits[3, ::2] = -np.inf
    logits[4] = -abs(logits[4])
    logits[5, count // 2] = np.inf
    given = tensor_of(operations, "logits", logits)
    found = tensor_of(operations, "found", np.full((6, 1 + count, 2), 7, np.uint32))
    run(operations, lambda: operations.find_largest(given, count, k, found))
    for row, pairs in zip(logits[:, :count], operations.read(found), strict=True):
        least = np.sort(row)[count - k]
        expected = np.flatnonzero(row >= least)
        assert pairs[0].tolist() == [len(expected), 0]
        ids, inverted = pairs[1 : 1 + len(expected)].T
        assert sorted(ids) == expected.tolist()
        np.testing.assert_array_equal(logits_of(inverted), row[ids])
        assert (pairs[1 + len(expected) :] == 0xFFFFFFFF).all()


def test_more_equal_logits_than_there_is_room_for(operations: Operations) -> None:
    logits = np.zeros((2, 600), np.float32)
    logits[1, 77] = np.nan  # before all numbers, where it is seen
    given = tensor_of(operations, "logits", logits)
    found = tensor_of(operations, "found", np.zeros((2, 6, 2), np.uint32))
    run(operations, lambda: operations.find_largest(given, 600, 2, found))
    pairs = operations.read(found)
    assert pairs[:, 0].tolist() == [[600, 0], [600, 0]]
    assert pairs[1, 1:, 1].tolist().count(0) <= 1


@pytest.mark.parametrize("k", [1, 200, MOST_LARGEST])
def test_ids_are_drawn_from_the_largest_logits(operations: Operations, k: int) -> None:
    rng = np.random.default_rng(k)
    count, rows = 3000, 6
    logits = (rng.standard_normal((rows, count)) * 4).astype(np.float32)
    logits[1] = np.rint(logits[1] / 4)  # many are equal
    logits[2, ::2] = -np.inf
    given = tensor_of(operations, "logits", logits)
    places = np.array([[3, 0, 7, 1, 0, 2], [0, 10, 20, 30, 99, 40]], np.uint32)
    new = NewRows(
        tensor_of(operations, "tokens", np.full(rows, 9, np.uint32)),
        tensor_of(operations, "places", places),
        99,
    )
    found = tensor_of(operations, "found", np.full((rows, 1 + count, 2), 7, np.uint32))
    factors, top_p = np.array([1, 2, 0.3, 1e30, 0.7, 1]), np.array([1, 0.9, 0.5, 1, 1e-9, 0.999])
    for step, uniform in enumerate(np.linspace(0, 1 - 2**-24, 5)):
        draws = np.zeros((5, rows, 4))
        draws[step] = np.stack([np.full(rows, uniform), factors, top_p, np.full(rows, k)], 1)
        drawn = tensor_of(operations, "draws", draws)
        run(operations, lambda: operations.find_largest(given, count, k, found))
        run(operations, lambda: operations.draw_largest(found, drawn, new, step))  # noqa: B023
        ids = operations.read(new.tokens)
        assert operations.read(found)[:, 0, 1].tolist() == ids.tolist()
        for row, token in enumerate(ids):
            options = (factors[row], top_p[row], k)
            assert token in drawn_ids(tuple(logits[row].tolist()), uniform, *options)
    moved = places + np.array([[5], [0]], np.uint32) * (places[1] < 99)
    np.testing.assert_array_equal(operations.read(new.places), moved)


@cache
def drawn_ids(
    logits: tuple[float, ...], uniform: float, factor: float, top_p: float, k: int
) -> set[int]:
    """Return the ids that may be drawn: one, or several where sums are within rounding."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    weights = [math.exp((logits[i] - logits[order[0]]) * factor) for i in order]
    ids = set()
    for error in (-1e-5, 0, 1e-5):
        head, kept = 0.0, 0
        while kept < len(order) and (kept == 0 or head < top_p * sum(weights) * (1 + error)):
            head += weights[kept]
            kept += 1
        for shift in (-1e-5, 0, 1e-5):
            end, place = 0.0, 0
            while place < kept and end + weights[place] <= (uniform + shift) * head:
                end += weights[place]
                place += 1
            ids.add(order[min(place, kept - 1)])
    return ids


def test_more_equal_logits_than_fit_still_give_an_id(operations: Operations) -> None:
    given = tensor_of(operations, "logits", np.zeros((1, 600), np.float32))
    found = tensor_of(operations, "found", np.zeros((1, 6, 2), np.uint32))
    new = NewRows(
        tensor_of(operations, "tokens", np.full(1, 700, np.uint32)),
        tensor_of(operations, "places", np.zeros((2, 1), np.uint32)),
        99,
    )
    draws = tensor_of(operations, "draws", np.array([[[0.5, 1, 1, 3]]]))
    run(operations, lambda: operations.find_largest(given, 600, 3, found))
    run(operations, lambda: operations.draw_largest(found, draws, new, 0))
    assert operations.read(new.tokens)[0] < 600


def test_packed_matrices_start_where_a_device_can_bind_them(operations: Operations) -> None:
    for width in (4, 12, 20, 128, 768):
        shapes = {"first": (width, width), "second": (3, width), "third": (1, width)}
        for kind in (np.float32, np.float16):
            packed = packed_tensor(operations, shapes, kind)
            assert packed.starts[0] == 0 and packed.tensor.shape[1] == width
            for number, part in enumerate(packed.parts):
                operations.write(part, np.full(part.shape, number + 1, kind))
            array = operations.read(packed.tensor)
            for number, (start, (rows, _)) in enumerate(
                zip(packed.starts, shapes.values(), strict=True)
            ):
                assert (array[start : start + rows] == number + 1).all()
                array[start : start + rows] = 0
            assert not array.any()


def test_a_read_is_of_what_was_run_before_it_began(operations: Operations) -> None:
    tensor: Tensor = tensor_of(operations, "x", np.ones(70))
    first = operations.begin_read(tensor)
    run(operations, lambda: operations.fill_zero(tensor))
    second = operations.begin_read(tensor)
    assert first().tolist() == [1] * 70
    assert second().tolist() == [0] * 70
