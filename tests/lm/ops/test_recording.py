"""Conversions between single and half precision, bit by bit."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.errors import DeviceError
from llmgpu.gpu.commands import MAX_TIMED
from llmgpu.gpu.device import HALVES, Device
from llmgpu.lm.ops import recording
from llmgpu.lm.ops.operations import GpuOperations, Operations, open_operations
from llmgpu.lm.ops.recording import Program
from llmgpu.lm.ops.tensor import Tensor
from tests.conftest import require_adapter
from tests.harness.devices import open_device
from tests.lm.ops.checking import run, tensor_of
from tests.reference.lm.cast import nearest_half

ALL_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
# Around the largest half and the number that would round to infinity.
LARGE = [1000, 65503, 65503.9, 65504, 65519.99, 65520, 65536, 1e5, 3e38, np.inf]
SMALL = [0.0, 1.0, 2.0**-14, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, 2.0**-26, 1e-30, 1e-42]


@pytest.fixture(params=["numpy", "full"])
def casting(request: pytest.FixtureRequest) -> Operations:
    """NumPy, and the best adapter if it has half precision."""
    if request.param == "numpy":
        return open_operations(None)
    require_adapter()
    operations = open_operations(request.getfixturevalue("device"))
    if not operations.has_half_precision:
        pytest.skip("the adapter has no half-precision numbers")
    return operations


def to_half(operations: Operations, values: NDArray[np.float32]) -> NDArray[np.float16]:
    source = tensor_of(operations, "source", values)
    target = tensor_of(operations, "target", np.full(values.shape, np.nan, np.float16))
    run(operations, lambda: operations.cast_f32_to_f16(source, target))
    result: NDArray[np.float16] = operations.read(target)
    return result


def to_single(operations: Operations, values: NDArray[np.float16]) -> NDArray[np.float32]:
    source = tensor_of(operations, "source", values)
    target = tensor_of(operations, "target", np.full(values.shape, np.nan, np.float32))
    run(operations, lambda: operations.cast_f16_to_f32(source, target))
    result: NDArray[np.float32] = operations.read(target)
    return result


def assert_same_bits(actual: NDArray[np.floating], expected: NDArray[np.floating]) -> None:
    """Check all bits, those of a NaN excepted."""
    assert actual.dtype == expected.dtype
    bits = f"u{actual.dtype.itemsize}"
    same = (actual.view(bits) == expected.view(bits)) | (np.isnan(actual) & np.isnan(expected))
    assert same.all(), (actual[~same][:5], expected[~same][:5])


def test_all_halves_to_single_and_back(casting: Operations) -> None:
    singles = to_single(casting, ALL_HALVES)
    assert_same_bits(singles, ALL_HALVES.astype(np.float32))
    saturated = np.where(np.isinf(ALL_HALVES), np.copysign(65504, ALL_HALVES), ALL_HALVES)
    assert_same_bits(to_half(casting, singles), saturated.astype(np.float16))


@np.errstate(under="ignore")
def test_between_all_neighbours_ties_go_to_even(casting: Operations) -> None:
    finite = np.sort(ALL_HALVES[np.isfinite(ALL_HALVES)].astype(np.float32))
    middle = (finite[1:] + finite[:-1]) / 2  # exact: halves have 11 bits
    for values in (
        middle,
        np.nextafter(middle, np.float32(np.inf)),
        np.nextafter(middle, np.float32(-np.inf)),
    ):
        assert_same_bits(to_half(casting, values), values.astype(np.float16))


@np.errstate(under="ignore")
def test_edges_and_saturation(casting: Operations) -> None:
    values = np.array([*LARGE, *SMALL], np.float32)
    values = np.concatenate([values, -values])
    expected = np.array([nearest_half(float(value)) for value in values], np.float16)
    assert_same_bits(to_half(casting, values), expected)
    assert np.isfinite(expected).all()


def test_nan_stays_nan(casting: Operations) -> None:
    bits = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x7F802000]
    values = np.array(bits, np.uint32).view(np.float32)
    assert np.isnan(to_half(casting, values)).all()


@np.errstate(under="ignore")
def test_reference_is_numpy_s_conversion() -> None:
    values = np.random.default_rng(0).integers(0, 0x477FE000, 2000, np.uint32).view(np.float32)
    expected = np.array([nearest_half(float(value)) for value in values], np.float16)
    assert_same_bits(values.astype(np.float16), expected)


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3, 5), (257,), (1031, 3)])
def test_odd_and_empty_shapes(casting: Operations, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    halves = to_half(casting, values)
    assert_same_bits(halves, values.astype(np.float16))
    assert_same_bits(to_single(casting, halves), halves.astype(np.float32))


def test_the_half_after_an_odd_number_is_not_written(casting: Operations) -> None:
    source = tensor_of(casting, "source", np.arange(5, dtype=np.float32))
    target = tensor_of(casting, "target", np.full(6, 7, np.float16))
    run(casting, lambda: casting.cast_f32_to_f16(source, target.rows(0, 5)))
    np.testing.assert_array_equal(casting.read(target), [0, 1, 2, 3, 4, 7])


CONVERSIONS = {
    "cast_f32_to_f16": (np.float32, np.float16),
    "round_to_half": (np.float32, np.float16),
    "cast_f16_to_f32": (np.float16, np.float32),
}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 1025, 4095, 4096, 4098, 9001])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_elements_after_the_last_are_not_written(
    casting: Operations, name: str, count: int
) -> None:
    kinds = CONVERSIONS[name]
    values = np.random.default_rng(count).integers(-2048, 2049, count + 9)
    source = tensor_of(casting, "source", values.astype(kinds[0]))
    target = tensor_of(casting, "target", np.full(count + 9, 7, kinds[1]))
    convert = getattr(casting, name)
    run(casting, lambda: convert(source.rows(0, count), target.rows(0, count)))
    found = casting.read(target)
    np.testing.assert_array_equal(found[:count], values[:count])
    assert (found[count:] == 7).all()


@np.errstate(under="ignore", over="ignore")
def test_rounding_lets_an_overflow_be_seen(casting: Operations) -> None:
    finite = np.sort(ALL_HALVES[np.isfinite(ALL_HALVES)].astype(np.float32))
    middle = (finite[1:] + finite[:-1]) / 2
    beyond = np.array([65519.996, 65520, 65536, 1e9, 3e38, np.inf, np.nan], np.float32)
    for values in (
        finite,
        middle,
        np.nextafter(middle, np.float32(np.inf)),
        np.nextafter(middle, np.float32(-np.inf)),
        np.concatenate([SMALL, beyond, -beyond]).astype(np.float32),
    ):
        source = tensor_of(casting, "source", values)
        target = tensor_of(casting, "target", np.full(len(values) + 1, 7, np.float16))
        run(casting, partial(casting.round_to_half, source, target.rows(0, len(values))))
        found = casting.read(target)
        assert_same_bits(found[:-1], values.astype(np.float16))
        assert found[-1] == 7


def test_devices_without_half_precision_say_so(portable_device: Device) -> None:
    operations = open_operations(portable_device)
    single = operations.tensor("single", (4,))
    half = operations.tensor("half", (4,), np.float16)
    message = r"has no half-precision numbers \(shader-f16\); use float32"
    with pytest.raises(DeviceError, match=message):
        run(operations, lambda: operations.cast_f32_to_f16(single, half))
    with pytest.raises(DeviceError, match=message):
        run(operations, lambda: operations.cast_f16_to_f32(half, single))


def zeros_of(operations: Operations, steps: int) -> tuple[Tensor, Program]:
    """Return a tensor and a program that fills it with zeros `steps` times."""
    tensor = tensor_of(operations, "ones", np.ones(4, np.float32))
    with operations.record("zeros") as program:
        for _ in range(steps):
            operations.fill_zero(tensor)
    return tensor, program


def test_a_prepared_program_runs_once_and_another_in_its_place(operations: Operations) -> None:
    (tensor, program), (other, second) = (zeros_of(operations, 1) for _ in range(2))
    operations.prepare(program)
    operations.write(tensor, np.full(4, 2.0))  # written after it was prepared, before it runs
    operations.run(second)
    assert (operations.read(tensor) == 2).all() and not operations.read(other).any()
    for _ in range(2):
        operations.prepare(program)
        operations.run(program)
        assert not operations.read(tensor).any()
        operations.write(tensor, np.ones(4))


def test_several_programs_are_prepared(operations: Operations) -> None:
    pairs = [zeros_of(operations, 1) for _ in range(3)]
    for _, program in (*pairs, pairs[0]):
        operations.prepare(program)
    for place in (1, 0, 2):
        tensor, program = pairs[place]
        operations.run(program)
        assert not operations.read(tensor).any()
        operations.write(tensor, np.ones(4))
    assert all(operations.read(tensor).all() for tensor, _ in pairs)


def test_nothing_of_a_prepared_program_runs_before_it_where_kernels_are_timed() -> None:
    require_adapter()
    device = open_device()
    operations = open_operations(device)
    device.timing = True
    tensor, program = zeros_of(operations, MAX_TIMED + 1)
    operations.prepare(program)
    assert operations.read(tensor).all()
    operations.run(program)
    assert not operations.read(tensor).any()


def test_a_program_that_was_prepared_without_timing_is_timed() -> None:
    require_adapter()
    device = open_device()
    if "timestamp-query" not in device.features:
        pytest.skip("asks for timestamps")
    operations = open_operations(device)
    _, program = zeros_of(operations, 3)
    operations.prepare(program)
    device.timing = True
    operations.run(program)
    assert device.gpu_seconds


def test_a_snapshot_keeps_the_numbers_of_its_moment(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that run while the parts are read change the tensors, not the copies."""
    monkeypatch.setattr(recording, "SNAPSHOT_PART", 4096)
    numbers = np.random.default_rng(5)
    arrays = {
        "large": numbers.standard_normal((5, 1000), np.float32),  # of several parts
        "small": numbers.standard_normal(3, np.float32),
        "bytes": numbers.integers(0, 256, 5, np.uint8),  # not whole words
    }
    tensors = [tensor_of(operations, name, array) for name, array in arrays.items()]
    snapshot = operations.open_snapshot(tensors)
    for round_ in range(2):  # the memory is used again
        for tensor in tensors:
            operations.write(tensor, arrays[tensor.name] * (round_ + 1))
        snapshot.take()
        for tensor in tensors:
            operations.write(tensor, np.zeros(tensor.shape, tensor.dtype))
        turns = 1
        while not snapshot.advance():
            turns += 1
        assert (turns > 5) == operations.is_asynchronous
        for name, array in arrays.items():
            expected = array * np.array(round_ + 1, array.dtype)
            np.testing.assert_array_equal(snapshot.arrays[name], expected, strict=True)


def test_tensors_of_one_name_have_no_snapshot(operations: Operations) -> None:
    tensors = [operations.tensor("twice", (4,)) for _ in range(2)]
    with pytest.raises(ValueError, match="same name"):
        operations.open_snapshot(tensors)


def test_a_kernel_that_does_not_compile_fails_when_its_program_runs(device: Device) -> None:
    operations = open_operations(device)
    assert isinstance(operations, GpuOperations)
    tensor = operations.tensor("words", (4,), np.uint32)
    with operations.record("wrong") as program:
        # An override that the kernel does not have.
        operations.dispatch("lm/00_fill_zero.wgsl", 1, {"NO_SUCH": 1}, words=tensor)
    with pytest.raises(DeviceError):
        operations.run(program)


@np.errstate(under="ignore")
@pytest.mark.parametrize("file", ["lm/four_halves.wgsl", "lm/packed_halves.wgsl"])
def test_both_ways_to_round_give_the_same_bits(
    device: Device, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    if "shader-f16" not in device.features:
        pytest.skip("the adapter has no half-precision numbers")
    device.choose_halves()
    if file not in (HALVES, device.source_choices[HALVES]):
        pytest.skip("the device's own conversion is not the nearest number")
    monkeypatch.setattr(device, "source_choices", device.source_choices | {HALVES: file})
    monkeypatch.setattr(device, "_kernels", {})
    test_rounding_lets_an_overflow_be_seen(open_operations(device))


@np.errstate(under="ignore")
def test_a_device_rounds_itself_where_it_gives_the_nearest_numbers(any_device: Device) -> None:
    """The choice is that of a comparison with all halves, made here once more."""
    any_device.choose_halves()
    halves = np.sort(ALL_HALVES[np.isfinite(ALL_HALVES)].astype(np.float32))
    middle = (halves[1:] + halves[:-1]) / 2
    around = [np.nextafter(middle, np.float32(bound)) for bound in (-np.inf, np.inf)]
    numbers = np.concatenate([halves, middle, *around])
    numbers = np.resize(numbers, -(-len(numbers) // 1024) * 1024)
    source, target = any_device.upload("numbers", numbers), any_device.upload("halves", numbers)
    kernel = any_device.kernel("common/probe_halves.wgsl").bind(numbers=source, halves=target)
    commands = any_device.record()
    commands.dispatch(kernel, len(numbers) // 1024)
    commands.submit()
    found = any_device.read(target, len(numbers), np.float16)
    is_nearest = found.tobytes() == numbers.astype(np.float16).tobytes()
    chosen = "lm/packed_halves.wgsl" if is_nearest else HALVES
    assert any_device.source_choices[HALVES] == chosen
