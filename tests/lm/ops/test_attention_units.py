"""Attention on matrix units. Without units, single lanes compute the products of matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.gpu.adapters import load_driver
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import KernelSource, compose
from llmgpu.lm.ops import attention
from llmgpu.lm.ops.attention import PARAMS
from llmgpu.lm.ops.matrix_units import (
    ATTENTION_TILES,
    AttentionTile,
    AttentionUnits,
    attention_units,
)
from llmgpu.lm.ops.operations import open_operations
from llmgpu.lm.ops.tensor import AttentionGradients, AttentionShape, AttentionTensors
from tests.harness.kernels import kernel_of
from tests.lm.ops.test_attention import starts_of
from tests.reference.lm import attention as reference
from tests.reference.lm.subgroup_matrices import by_first_lanes

FORWARD, BACKWARD_Q, BACKWARD_KV, BACKWARD_KV_STORED = KINDS = (
    "lm/05_attention_units.wgsl",
    "lm/10_attention_backward_q_units.wgsl",
    "lm/10_attention_backward_kv_units.wgsl",
    "lm/10_attention_backward_kv_stored_units.wgsl",
)
Array = NDArray[np.float64]
TOLERANCE = 3e-3  # of the norm: weights are rounded to 11 bits
SMALL_UNIT = (8, 8, 8)  # of kernels that single lanes compute
ROOM = 64  # numbers after an output, which have to stay


def small(head_dim: int, *, lanes: int = 8, rows: int = 8) -> AttentionUnits:
    """Two subgroups of `rows` rows each."""
    return AttentionUnits(AttentionTile(2 * rows, 16, rows), SMALL_UNIT, lanes, head_dim)


def source_of(file: str, a: AttentionUnits, *, stores: bool = False) -> KernelSource:
    return compose(file, {}, a.settings | ({"stores": 1} if stores else {}))


class Case:
    """Inputs of attention rounded to half precision, and checks of kernels against float64."""

    @np.errstate(under="ignore")
    def __init__(
        self,
        device: Device,
        shape: AttentionShape,
        *,
        growing: bool = False,
        lengths: list[int] | None = None,
    ) -> None:
        self.device, self.shape = device, shape
        rng = np.random.default_rng(shape.seq)
        rows = shape.batch * shape.seq
        self.starts = starts_of(shape, lengths or [shape.seq])
        heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
        halves = [
            rng.standard_normal((rows, count * shape.head_dim)).astype(np.float16)
            for count in heads
        ]
        if growing:  # the largest score of a row is the last one, far above those before it
            position = np.tile(np.arange(shape.seq, dtype=np.float16), shape.batch)[:, None]
            halves[0] = abs(halves[0])
            halves[1] = (abs(halves[1]) * position / 8).astype(np.float16)
        self.q, self.k, self.v, self.grad_out = (half.astype(np.float64) for half in halves)
        self.inputs = {
            name: device.upload(name, half)
            for name, half in zip(("q", "k", "v", "grad_out"), halves, strict=True)
        }

    def run(
        self,
        a: AttentionUnits,
        file: str,
        groups: int,
        outputs: dict[str, Any],
        *,
        stores: bool = False,
        **inputs: Any,
    ) -> list[NDArray[Any]]:
        shape, device = self.shape, self.device
        scales = (shape.scale, shape.scale * np.log2(np.e))
        sizes = (shape.seq, shape.heads, shape.kv_heads, groups)
        starts = shape.batch * shape.seq * shape.heads
        params = np.array([(*sizes, *scales, starts)], PARAMS)
        buffers = {"params": device.create_uniform("params", PARAMS.itemsize)}
        device.write(buffers["params"], params)
        buffers |= {name: device.upload(name, array) for name, array in inputs.items()}
        for name, like in outputs.items():
            buffers[name] = device.upload(name, np.full(like.size + ROOM, 6e4, like.dtype))
        text = source_of(file, a, stores=stores).text
        if a.unit == SMALL_UNIT:
            text = by_first_lanes(text, a.lanes)
        kernel = kernel_of(device, text)
        used = {name: each for name, each in self.inputs.items() if f" {name}: array" in text}
        commands = device.record()
        commands.dispatch(kernel.bind(**used, **buffers), groups)
        commands.submit()
        results = []
        for name, like in outputs.items():
            found = device.read(buffers[name], like.size + ROOM, like.dtype.type)
            assert (found[like.size :] == like.dtype.type(6e4)).all()
            results.append(found[: like.size].reshape(like.shape))
        return results

    @np.errstate(under="ignore")
    def check_forward(self, a: AttentionUnits) -> None:
        shape = self.shape
        expected, sums = reference.attention(self.q, self.k, self.v, shape, self.starts)
        outputs = {"out": expected.astype(np.float16), "log_sum_exp": sums.astype(np.float32)}
        groups = shape.batch * shape.heads * -(-shape.seq // a.tile.rows)
        out, found = self.run(a, FORWARD, groups, outputs, starts=self.starts)
        assert_near(out, expected)
        np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-4)

    @np.errstate(under="ignore")
    def check_gradients(self, a: AttentionUnits) -> None:
        shape = self.shape
        out, sums = reference.attention(self.q, self.k, self.v, shape, self.starts)
        terms = (out * self.grad_out).reshape(len(out), shape.heads, -1)
        inputs = {
            "log_sum_exp": sums.astype(np.float32),
            "delta": np.append(terms.sum(-1), self.starts).astype(np.float32),
        }
        blocks = shape.batch * -(-shape.seq // a.tile.rows)
        inputs_of = (self.q, self.k, self.v, self.grad_out)
        gradients = reference.attention_backward(*inputs_of, shape, self.starts)
        likes = [gradient.astype(np.float32) for gradient in gradients]
        groups, key_groups = blocks * shape.heads, blocks * shape.kv_heads * a.column_sets
        of_queries, of_keys = {"grad_q": likes[0]}, {"grad_k": likes[1], "grad_v": likes[2]}
        # The kernel for keys and values computes weights again, or reads stored ones.
        recomputed = self.run(a, BACKWARD_Q, groups, of_queries, **inputs)
        recomputed += self.run(a, BACKWARD_KV, key_groups, of_keys, **inputs)
        steps = -(-shape.seq // a.tile.step)
        sizes = shape.batch * shape.heads, steps, shape.seq, 2 * a.tile.step
        of_both = of_queries | {"weights": np.empty(sizes, np.float16)}
        *stored, weights = self.run(a, BACKWARD_Q, groups, of_both, stores=True, **inputs)
        stored += self.run(
            a, BACKWARD_KV_STORED, key_groups, of_keys, delta=inputs["delta"], weights=weights
        )
        for actual, other, expected in zip(recomputed, stored, gradients, strict=True):
            assert_near(actual, expected)
            assert_near(other, expected)


def assert_near(actual: NDArray[Any], expected: Array) -> None:
    error = actual.astype(np.float64) - expected
    assert np.linalg.norm(error) <= TOLERANCE * np.linalg.norm(expected) + 1e-5
    # No element is off by more than a few roundings of the largest.
    assert abs(error).max() <= 4 * TOLERANCE * abs(expected).max() + 1e-5


SHAPES = [
    AttentionShape(2, 7, 2, 2, 8),
    AttentionShape(1, 37, 4, 2, 16),
    AttentionShape(2, 33, 3, 1, 8),
]


@pytest.mark.slow  # software drivers compile these for seconds
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("lanes", "rows"), [(8, 8), (16, 8), (16, 16)])
def test_attention_by_first_lanes(
    device: Device, shape: AttentionShape, lanes: int, rows: int
) -> None:
    case, a = Case(device, shape), small(shape.head_dim, lanes=lanes, rows=rows)
    assert a.fits
    case.check_forward(a)
    case.check_gradients(a)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[40, 1, 29], [17, 3, 90]], ids=str)
@pytest.mark.parametrize("growing", [False, True])
def test_documents_by_first_lanes(device: Device, lengths: list[int], growing: bool) -> None:
    case = Case(device, AttentionShape(2, 70, 2, 1, 16), growing=growing, lengths=lengths)
    case.check_forward(small(16))
    case.check_gradients(small(16))


def test_the_largest_score_grows(device: Device) -> None:
    case = Case(device, AttentionShape(1, 70, 1, 1, 24), growing=True)
    case.check_forward(small(24))


@pytest.mark.parametrize("head_dim", [16, 64, 96, 128])
@pytest.mark.parametrize("tile", ATTENTION_TILES, ids=str)
def test_tint_compiles_every_kind(null_device: Any, tile: AttentionTile, head_dim: int) -> None:
    a = AttentionUnits(tile, (16, 16, 16), 32, head_dim)
    assert a.fits
    for file, stores in (*((file, False) for file in KINDS), (BACKWARD_Q, True)):
        source = source_of(file, a, stores=stores)
        load_driver("dawn").create_shader_module(null_device, source.text, "attention")
        threads, memory = source.workgroup({})
        is_stored = file == BACKWARD_KV_STORED
        assert threads == a.threads
        assert memory <= (a.stored_memory if is_stored else a.memory(gradients=file != FORWARD))


HARDWARE = [
    AttentionShape(2, 1, 2, 1, 64),
    AttentionShape(3, 37, 4, 2, 16),
    AttentionShape(1, 131, 3, 3, 32),
    AttentionShape(2, 300, 6, 2, 64),
    AttentionShape(1, 257, 2, 1, 96),
    AttentionShape(2, 161, 2, 2, 128),
]


@pytest.mark.parametrize("lengths", [None, [90, 1, 30, 64]], ids=str)
@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("shape", HARDWARE, ids=str)
def test_matrix_units_attend_as_float64_does(
    dawn_device: Device, shape: AttentionShape, growing: bool, lengths: list[int] | None
) -> None:
    if attention_units(dawn_device, shape.head_dim, gradients=True) is None:
        pytest.skip("Dawn's adapter has no matrix units")
    case = Case(dawn_device, shape, growing=growing, lengths=lengths)
    for gradients in (False, True):
        a = attention_units(dawn_device, shape.head_dim, gradients=gradients)
        assert a is not None
        if gradients:
            case.check_gradients(a)
        else:
            case.check_forward(a)


def test_stored_weights_give_the_bits_of_recomputed_ones(
    dawn_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = AttentionShape(2, 300, 4, 2, 64)
    if attention_units(dawn_device, shape.head_dim, gradients=True) is None:
        pytest.skip("Dawn's adapter has no matrix units")
    rng = np.random.default_rng(5)
    rows, width, kv_width = shape.batch * shape.seq, shape.heads * 64, shape.kv_heads * 64
    starts = starts_of(shape, [90, 1, 30, 64])

    def gradients(most_bytes: int, shape: AttentionShape = shape) -> tuple[list[bytes], int]:
        monkeypatch.setattr(attention, "MOST_WEIGHT_BYTES", most_bytes)
        operations = open_operations(dawn_device)
        make = operations.tensor
        halves = [make(name, (rows, n), np.float16) for name, n in widths.items()]
        results = [make(f"grad_{name}", (rows, n)) for name, n in [*widths.items()][:3]]
        t = AttentionTensors(*halves[:4], make("log_sum_exp", (rows, shape.heads)))
        grad = AttentionGradients(*results, halves[4])
        first_keys = make("starts", (rows,), np.uint32)
        for tensor, values in zip((*halves[:3], halves[4]), inputs, strict=True):
            operations.write(tensor, values)
        operations.write(first_keys, starts)
        with operations.record("gradients") as program:
            operations.attention(t, first_keys, shape)
            operations.attention_backward(t, grad, first_keys, shape)
        operations.run(program)
        return [operations.read(tensor).tobytes() for tensor in results], operations.nbytes

    widths = {"q": width, "k": kv_width, "v": kv_width, "out": width, "grad_out": width}
    inputs = [
        rng.standard_normal((rows, widths[name])).astype(np.float16)
        for name in ("q", "k", "v", "grad_out")
    ]
    (stored, memory), (recomputed, less) = gradients(1 << 30), gradients(0)
    assert stored == recomputed and memory > less
    assert gradients(1 << 30, replace(shape, saves_memory=True)) == (recomputed, less)
