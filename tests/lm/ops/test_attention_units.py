"""Attention on matrix units. Without units, single lanes compute the products of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.gpu.adapters import aligned, load_driver
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import KernelSource, compose
from llmgpu.lm.ops import attention, matrix_units
from llmgpu.lm.ops.attention import PARAMS, attention_params
from llmgpu.lm.ops.layers import rotary_frequencies, rotary_tables
from llmgpu.lm.ops.matrix_units import (
    ATTENTION_TILES,
    AttentionUnits,
    attention_units,
)
from llmgpu.lm.ops.operations import GpuOperations, open_operations
from llmgpu.lm.ops.tensor import (
    AnyArray,
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    PackedGradient,
    Rotation,
    Tensor,
)
from tests.harness.kernels import kernel_of
from tests.lm.ops.checking import assert_rounded
from tests.lm.ops.test_attention import starts_of
from tests.reference.lm import attention as reference
from tests.reference.lm.rotary import rotary
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
UNWRITTEN = 6e4
NO_SETTINGS: Mapping[str, int] = {}
THETA = 10_000.0
KINDS_OF_GRADIENTS = [
    {"stores": stores, "packed": packed} for stores in (0, 1) for packed in (0, 1)
]


def small(head_dim: int, *, lanes: int = 8, rows: int = 8) -> AttentionUnits:
    """Two subgroups of `rows` rows each."""
    return AttentionUnits(2 * rows, 16, rows, SMALL_UNIT, lanes, head_dim)


def source_of(file: str, a: AttentionUnits, settings: Mapping[str, int]) -> KernelSource:
    return compose(file, a.settings | settings)


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
        self.positions = np.tile(np.arange(shape.seq, dtype=np.uint32), shape.batch)
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
        # Queries, keys and values in one buffer, and the element of 8 halves where each starts.
        self.firsts = np.cumsum([0, *(half.size // 8 for half in halves[:2])])
        self.inputs: dict[str, NDArray[Any]] = {
            "heads": np.concatenate([half.reshape(-1) for half in halves[:3]]),
            "grad_out": halves[3],
            "starts": self.starts,
        }
        # The first column of each head's gradients in a packed row, with a gap before keys.
        widths = [half.shape[1] for half in halves[:3]]
        self.columns = np.cumsum([0, widths[0] + 8, widths[1]])
        frequencies = rotary_frequencies(shape.head_dim, THETA)
        self.rotation = rotary_tables(shape.seq + 1, frequencies)

    def run(
        self,
        a: AttentionUnits,
        file: str,
        groups: int,
        outputs: dict[str, Any],
        places: Sequence[Any] = (),
        settings: Mapping[str, int] = NO_SETTINGS,
        **inputs: Any,
    ) -> list[NDArray[Any]]:
        """Return the outputs of a kernel; elements that it does not write are UNWRITTEN."""
        device = self.device
        places = [*self.firsts, *places]
        params = attention_params(self.shape, self.shape.seq, groups, places)
        buffers = {"params": device.create_buffer("params", PARAMS.itemsize)}
        device.write(buffers["params"], params)
        text = source_of(file, a, settings).text
        used = {
            key: each for key, each in (self.inputs | inputs).items() if f" {key}: array" in text
        }
        buffers |= {name: device.upload(name, array) for name, array in used.items()}
        for name, like in outputs.items():
            buffers[name] = device.upload(name, np.full(like.size + ROOM, UNWRITTEN, like.dtype))
        if a.unit == SMALL_UNIT:
            text = by_first_lanes(text, a.lanes)
        kernel = kernel_of(device, text)
        commands = device.record()
        commands.dispatch(kernel.bind(**buffers), groups)
        commands.submit()
        results = []
        for name, like in outputs.items():
            found = device.read(buffers[name], like.size + ROOM, like.dtype.type)
            assert (found[like.size :] == like.dtype.type(UNWRITTEN)).all()
            results.append(found[: like.size].reshape(like.shape))
        return results

    @np.errstate(under="ignore")
    def check_forward(self, a: AttentionUnits) -> None:
        shape = self.shape
        expected, sums = reference.attention(self.q, self.k, self.v, shape, self.starts)
        outputs = {"out": expected.astype(np.float16), "log_sum_exp": sums.astype(np.float32)}
        groups = shape.batch * shape.heads * -(-shape.seq // a.rows)
        out, found = self.run(a, FORWARD, groups, outputs)
        assert_near(out, expected)
        np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-4)

    def gradients(
        self, a: AttentionUnits, *, stores: bool, packed: bool = False
    ) -> list[NDArray[Any]]:
        """Return the gradients of queries, keys and values, and delta unless `stores` is set."""
        shape = self.shape
        out, sums = reference.attention(self.q, self.k, self.v, shape, self.starts)
        inputs: dict[str, NDArray[Any]] = {"log_sum_exp": sums.astype(np.float32)}
        inputs["out"] = out.astype(np.float16)
        gradients, places, tables = self.outputs(packed=packed)
        inputs |= tables
        steps = -(-shape.seq // a.step)
        kept: NDArray[Any] = np.empty(sums.shape, np.float32)
        if stores:
            sizes = shape.batch * shape.heads, steps, shape.seq, 2 * a.step
            kept = np.empty(sizes, np.float16)
        blocks = shape.batch * -(-shape.seq // a.rows)
        settings = {"stores": int(stores), "packed": int(packed)}
        # The kernel for keys and values computes weights again, or reads stored ones.
        outputs = {"gradients": gradients, "kept": kept}
        groups = blocks * shape.heads
        of_queries, kept = self.run(a, BACKWARD_Q, groups, outputs, places, settings, **inputs)
        del outputs["kept"]
        file, name = (BACKWARD_KV_STORED, "weights") if stores else (BACKWARD_KV, "delta")
        inputs[name] = kept
        groups = blocks * shape.kv_heads * a.column_sets
        (of_keys,) = self.run(a, file, groups, outputs, places, settings, **inputs)
        # Each element is written by at most one of the kernels.
        unwritten = gradients.dtype.type(UNWRITTEN)
        assert ((of_queries == unwritten) | (of_keys == unwritten)).all()
        both = np.where(of_queries == unwritten, of_keys, of_queries)
        parts = self.parts(both, packed=packed)
        return parts if stores else [*parts, kept]

    def outputs(self, *, packed: bool) -> tuple[Any, list[Any], dict[str, NDArray[Any]]]:
        """Return an array like the gradients, their places in `params`, and more inputs."""
        if packed:
            width = self.columns[2] + self.v.shape[1]
            places = [*(self.columns // 8), width // 8, width // 8, self.rotation[0].size // 4]
            tables = {"tables": np.stack(self.rotation)}
            return np.empty((len(self.q), width), np.float16), places, tables
        places = [*(2 * self.firsts), self.q.shape[1] // 4, self.k.shape[1] // 4]
        sizes = (each.size for each in (self.q, self.k, self.v))
        return np.empty(sum(sizes), np.float32), places, {}

    def parts(self, gradients: NDArray[Any], *, packed: bool) -> list[NDArray[Any]]:
        """Return the gradients of queries, keys and values."""
        heads = self.q, self.k, self.v
        if packed:
            ends = self.columns + [each.shape[1] for each in heads]
            gap = gradients[:, ends[0] : self.columns[1]]
            assert (gap == gradients.dtype.type(UNWRITTEN)).all()
            return [gradients[:, a:b] for a, b in zip(self.columns, ends, strict=True)]
        parts = np.split(gradients, 8 * self.firsts[1:])
        return [part.reshape(each.shape) for part, each in zip(parts, heads, strict=True)]

    @np.errstate(under="ignore")
    def check_gradients(self, a: AttentionUnits) -> None:
        shape = self.shape
        out, _ = reference.attention(self.q, self.k, self.v, shape, self.starts)
        inputs = (self.q, self.k, self.v, self.grad_out)
        gradients = reference.attention_backward(*inputs, shape, self.starts)
        terms = out.astype(np.float16) * self.grad_out
        delta = terms.reshape(len(out), shape.heads, -1).sum(-1)
        for stores in (False, True):
            found = self.gradients(a, stores=stores)
            for actual, expected in zip(found, (*gradients, delta), strict=False):
                assert_near(actual, expected)
            # The packed gradient is the rounding of the same gradients, turned back.
            packed = self.gradients(a, stores=stores, packed=True)
            for k in range(3):
                back = found[k].astype(np.float64)
                if k < 2:
                    back = rotary(back, self.positions, shape.head_dim, THETA, inverse=True)
                assert_rounded(packed[k], back)


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
def test_sets_of_columns_by_first_lanes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_units, "COLUMN_SET", 16)
    case, a = Case(device, AttentionShape(2, 21, 2, 1, 32)), small(32)
    assert a.fits and a.column_sets == 2
    case.check_gradients(a)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_three_sets_of_columns_by_first_lanes(
    device: Device, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Only the kernel that reads stored weights runs, because drivers compile it fastest."""
    monkeypatch.setattr(matrix_units, "COLUMN_SET", 16)
    shape = AttentionShape(2, 21, 2, 1, 48)
    case, a = Case(device, shape), small(48)
    assert a.fits and a.column_sets == 3
    # Draw p and ds of all pairs of a query and a key that the query sees.
    steps, step = -(-shape.seq // a.step), a.step
    sizes = 2, shape.batch, shape.heads, shape.seq, steps * step
    weights = np.tril(np.random.default_rng(3).standard_normal(sizes)).astype(np.float16)
    vectors = weights.reshape(*sizes[:4], steps, step // 8, 8)
    stored = np.ascontiguousarray(vectors.transpose(1, 2, 4, 0, 5, 3, 6))
    like, places, inputs = case.outputs(packed=packed)
    groups = shape.batch * shape.kv_heads * -(-shape.seq // a.rows) * a.column_sets
    settings, outputs = {"packed": int(packed)}, {"gradients": like}
    (found,) = case.run(
        a, BACKWARD_KV_STORED, groups, outputs, places, settings, weights=stored, **inputs
    )
    _, *actual = case.parts(found, packed=packed)
    # All query heads share one head of keys and values.
    p, ds = weights[..., : shape.seq].astype(np.float64)
    q, grad_out = (
        each.reshape(shape.batch, shape.seq, shape.heads, -1) for each in (case.q, case.grad_out)
    )
    grad_k, grad_v = (
        np.einsum("bhts,bthd->bsd", each, rows).reshape(case.k.shape)
        for each, rows in ((shape.scale * ds, q), (p, grad_out))
    )
    if packed:
        grad_k = rotary(grad_k, case.positions, shape.head_dim, THETA, inverse=True)
    for part, expected in zip(actual, (grad_k, grad_v), strict=True):
        assert_near(part, expected)


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


@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 96, 128])
@pytest.mark.parametrize("tile", ATTENTION_TILES, ids=str)
def test_tint_compiles_every_kind(
    null_device: Any, tile: tuple[int, int, int], head_dim: int
) -> None:
    a = AttentionUnits(*tile, (16, 16, 16), 32, head_dim)
    assert a.fits
    for file, settings in product(KINDS, KINDS_OF_GRADIENTS):
        source = source_of(file, a, settings)
        load_driver("dawn").create_shader_module(null_device, source.text, "attention")
        threads, memory = source.workgroup()
        is_stored = file == BACKWARD_KV_STORED
        assert threads == a.threads
        assert memory <= (a.stored_memory if is_stored else a.memory(gradients=file != FORWARD))


HARDWARE = [
    AttentionShape(2, 1, 2, 1, 64),
    AttentionShape(3, 37, 4, 2, 16),
    AttentionShape(1, 131, 3, 3, 32),
    AttentionShape(1, 40, 2, 1, 48),
    AttentionShape(2, 300, 6, 2, 64),
    AttentionShape(2, 77, 2, 1, 80),
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
        shapes = {name: (rows, n) for name, n in [*widths.items()][:3]}
        halves = [*operations.side_by_side(shapes, np.float16).values()]
        halves += [make(name, (rows, width), np.float16) for name in ("out", "grad_out")]
        results = [*operations.side_by_side(shapes, np.float32).values()]
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
    with np.errstate(under="ignore"):  # half precision has no numbers that small
        inputs = [
            rng.standard_normal((rows, widths[name])).astype(np.float16)
            for name in ("q", "k", "v", "grad_out")
        ]
    (stored, memory), (recomputed, less) = gradients(1 << 30), gradients(0)
    assert stored == recomputed and memory > less
    assert gradients(1 << 30, replace(shape, saves_memory=True)) == (recomputed, less)


# Tensors of the first shape have gaps between them in memory. Heads of the second shape have two
# sets of columns.
RECORDED = [AttentionShape(1, 37, 3, 1, 16), AttentionShape(2, 41, 4, 2, 128)]
FIELDS = PARAMS.names or ()
PLACES = FIELDS[FIELDS.index("queries") :]  # the fields that only kernels on matrix units have
Memory = tuple[int, int, int]  # the handle's `id`, the offset and the size of a buffer


class Recording(GpuOperations):
    """Keeps the arguments of all dispatches, and dispatches nothing.

    The tensors have the types and the memory that a layer gives them on a device with matrix units.
    `order` is the order of queries, keys and values in memory.
    """

    def __init__(
        self, device: Device, monkeypatch: pytest.MonkeyPatch, shape: AttentionShape, order: str
    ) -> None:
        super().__init__(device)
        self.units = AttentionUnits(32, 16, 32, (16, 16, 16), 32, shape.head_dim)
        assert self.units.fits
        monkeypatch.setattr(attention, "attention_units", lambda *_, gradients: self.units)
        self.dispatched: list[tuple[str, int, Mapping[str, int | str], dict[str, Any]]] = []
        self.rows, self.shape = shape.batch * shape.seq, shape
        widths = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
        self.widths = {name: count * shape.head_dim for name, count in widths.items()}
        self.shapes = {name: (self.rows, self.widths[name]) for name in order}
        out, self.grad_out = (
            self.tensor(name, (self.rows, self.widths["q"]), np.float16)
            for name in ("out", "grad_out")
        )
        sums = self.tensor("log_sum_exp", (self.rows, shape.heads))
        heads = self.side_by_side(self.shapes, np.float16)
        self.heads = AttentionTensors(**heads, out=out, log_sum_exp=sums)
        self.starts = self.tensor("starts", (self.rows,), np.uint32)

    def dispatch(
        self,
        file: str,
        groups: int,
        constants: Mapping[str, int | str] | None = None,
        /,
        **bindings: Tensor | AnyArray,
    ) -> None:
        self.dispatched.append((file, groups, constants or {}, bindings))

    def check(
        self, gradients: Sequence[Memory], places: dict[str, int], *, stores: bool, packed: bool
    ) -> None:
        """Check the dispatches of both kernels.

        gradients: the memory in which each kernel writes gradients. places: expected fields of
            `params` by name, except those of heads.
        """
        starts, end = places_of(self.shapes)
        names = {"q": "queries", "k": "keys", "v": "values"}
        places |= {names[name]: start // 8 for name, start in starts.items()}
        blocks = self.shape.batch * -(-self.shape.seq // 32)
        sets = self.units.column_sets * self.shape.kv_heads
        files = BACKWARD_Q, BACKWARD_KV_STORED if stores else BACKWARD_KV
        kept = []
        for file, count, written, dispatched in zip(
            files, (self.shape.heads, sets), gradients, self.dispatched, strict=True
        ):
            actual, groups, constants, bound = dispatched
            assert (actual, groups) == (file, blocks * count)
            (params,) = bound.pop("params")
            assert {name: params[name] for name in PLACES} == places
            assert params["workgroups"] == groups
            # The kernel is composed for the gradients and for the weights of the test.
            expected = self.units.settings | {"packed": 1} if packed else self.units.settings
            expected |= {"stores": int(stores)} if file == BACKWARD_Q else {}
            assert constants == expected
            source = compose(file, constants)
            assert {each.name for each in source.bindings} == {"params", *bound}
            # Bindings are the memory of the tensors.
            assert memory_of(bound["gradients"]) == written
            first = min((self.heads.q, self.heads.v), key=lambda each: each.buffer.offset)
            assert memory_of(bound["heads"]) == memory_of(first, 2 * end)
            names_of_inputs = {"grad_out", "starts", "out", "log_sum_exp"} & bound.keys()
            tensors = {**vars(self.heads), "grad_out": self.grad_out, "starts": self.starts}
            assert all(bound[name] is tensors[name] for name in names_of_inputs)
            kept.append(bound["kept" if file == BACKWARD_Q else "weights" if stores else "delta"])
        assert kept[0] is kept[1] and kept[0].is_half == stores


def places_of(shapes: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], int]:
    """Return the element at which each tensor of `side_by_side` starts, and the end of the last."""
    places, end = {}, 0
    for name, (rows, width) in shapes.items():
        places[name] = -(-end // 128) * 128
        end = places[name] + rows * width
    return places, end


def memory_of(tensor: Tensor, nbytes: int = 0) -> Memory:
    """Return the memory of a tensor, or of a binding of `nbytes` bytes that starts there."""
    buffer = tensor.buffer
    return id(buffer.handle), buffer.offset, aligned(nbytes) if nbytes else buffer.nbytes


@pytest.mark.parametrize("order", ["qkv", "vkq"])
@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("shape", RECORDED, ids=str)
def test_kernels_are_given_the_places_of_gradients(
    device: Device, monkeypatch: pytest.MonkeyPatch, shape: AttentionShape, stores: bool, order: str
) -> None:
    operations = Recording(device, monkeypatch, shape, order)
    shapes, widths = operations.shapes, operations.widths
    of_keys = {name: size for name, size in shapes.items() if name != "q"}
    found = operations.side_by_side(of_keys, np.float32)
    query = operations.tensor("grad_q", shapes["q"])
    grad = AttentionGradients(query, found["k"], found["v"], operations.grad_out)
    saving = replace(shape, saves_memory=not stores)
    operations.attention_backward(operations.heads, grad, operations.starts, saving)
    starts, end = places_of(of_keys)
    places = {"grad_queries": 0, "grad_keys": starts["k"] // 4, "grad_values": starts["v"] // 4}
    places |= {"query_stride": widths["q"] // 4, "key_stride": widths["k"] // 4, "sines": 0}
    first = min(found.values(), key=lambda each: each.buffer.offset)
    gradients = memory_of(query), memory_of(first, 4 * end)
    operations.check(gradients, places, stores=stores, packed=False)


@pytest.mark.parametrize("order", ["qkv", "vkq"])
@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("shape", RECORDED, ids=str)
def test_kernels_are_given_the_columns_of_the_packed_gradient(
    device: Device, monkeypatch: pytest.MonkeyPatch, shape: AttentionShape, stores: bool, order: str
) -> None:
    operations = Recording(device, monkeypatch, shape, order)
    widths = operations.widths
    columns = (8, 24 + widths["q"], 32 + widths["q"] + widths["k"])
    width = columns[2] + widths["v"] + 8
    packed = operations.tensor("packed", (operations.rows, width), np.float16)
    of_tables = dict.fromkeys(("cosines", "sines"), (shape.seq + 1, shape.head_dim // 2))
    tables = operations.side_by_side(of_tables, np.float32)
    positions = operations.tensor("positions", (operations.rows,), np.uint32)
    rotation = Rotation(**tables, positions=positions, head_dim=shape.head_dim)
    grad = PackedGradient(operations.grad_out, packed, columns, rotation)
    saving = replace(shape, saves_memory=not stores)
    operations.attention_backward_to_packed(operations.heads, grad, operations.starts, saving)
    names = "grad_queries", "grad_keys", "grad_values"
    places = {name: column // 8 for name, column in zip(names, columns, strict=True)}
    starts, end = places_of(of_tables)
    places |= {"query_stride": width // 8, "key_stride": width // 8, "sines": starts["sines"] // 4}
    for _, _, _, bound in operations.dispatched:
        if "tables" in bound:
            assert memory_of(bound["tables"]) == memory_of(tables["cosines"], 4 * end)
    operations.check([memory_of(packed)] * 2, places, stores=stores, packed=True)
