"""Tensors side by side in a device's memory, which one kernel can compute as a single tensor.

A dispatch takes several microseconds even if it has little to compute, and a small tensor does not
keep a device busy. So the weights of a model that have one shape, their gradients and the float32
state of the optimizer are adjacent in the same order, in groups of up to `stack_elements` elements.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from llmgpu.lm.ops.recording import Recorder
from llmgpu.lm.ops.tensor import PACKED_ELEMENTS, Shape, Tensor

Shapes = Mapping[str, Shape]  # of tensors, by their names


def adjacent_tensors(
    operations: Recorder,
    shapes: Shapes,
    dtype: DTypeLike = np.float32,
    kinds: Sequence[Hashable] = (),
) -> list[Tensor]:
    """Create tensors with these names and shapes, in the order of `shapes`.

    On a device, tensors of one kind lie side by side in groups. A group has up to `stack_elements`
    elements, or a single tensor. The places of tensors in a group do not depend on `dtype`. On the
    CPU, each tensor has its own memory.

    kinds: the kind of each tensor; by default its shape.

    Raises DeviceError if the device has too little memory.
    """
    if not operations.stack_elements:
        return [operations.tensor(name, shape, dtype) for name, shape in shapes.items()]
    by_kind: dict[Hashable, dict[str, Shape]] = {}
    for (name, shape), kind in zip(shapes.items(), kinds or shapes.values(), strict=True):
        by_kind.setdefault(kind, {})[name] = shape
    most = min(operations.stack_elements, operations.max_tensor_bytes // 4)
    made: dict[str, Tensor] = {}
    for of_kind in by_kind.values():
        for group in _groups(of_kind, most):
            made |= side_by_side(operations, group, dtype)
    return [made[name] for name in shapes]


def _groups(shapes: Shapes, most: int) -> Iterator[dict[str, Shape]]:
    """Divide tensors, in order, into groups of similar sizes, each of up to `most` elements."""
    total = sum(map(_places, shapes.values()))
    enough = -(-total // -(-total // most))
    group: dict[str, Shape] = {}
    size = 0
    for name, shape in shapes.items():
        if group and (size >= enough or size + _places(shape) > most):
            yield group
            group, size = {}, 0
        group[name] = shape
        size += _places(shape)
    yield group


def side_by_side(operations: Recorder, shapes: Shapes, dtype: DTypeLike) -> dict[str, Tensor]:
    """Create tensors in the memory of a single tensor; return them by their names.

    Raises DeviceError if the device can't allocate or bind all of them together.
    """
    first, *more = shapes
    if not more:
        return {first: operations.tensor(first, shapes[first], dtype)}
    elements = sum(map(_places, shapes.values()))
    whole = operations.tensor(f"{first} to {more[-1]}", (elements,), dtype)
    start, made = 0, {}
    for name, shape in shapes.items():
        part = whole.part(start, start + math.prod(shape)).reshaped(*shape)
        made[name] = replace(part, name=name)
        start += _places(shape)
    return made


def _places(shape: Shape) -> int:
    """Return the number of elements from the start of a tensor to where the next may start."""
    return -(-math.prod(shape) // PACKED_ELEMENTS) * PACKED_ELEMENTS


def adjacent_runs(rows: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """Group rows of tensors into runs, so that `joined` can make one tensor of each column.

    In a run, the tensors of each column are contiguous in memory. All rows have the same number of
    tensors. Returns the row numbers of each run. On the CPU, each run has one row.
    """
    runs: list[list[int]] = []
    ends: dict[tuple[int, int], list[int]] = {}  # runs, by the end of their first column in memory
    for number, row in enumerate(rows):
        run: list[int] = []
        if not isinstance(row[0].data, np.ndarray):
            buffer = row[0].buffer
            before = ends.get((id(buffer.handle), buffer.offset))
            if before and all(map(_follows, row, rows[before[-1]])):
                run = before
            ends[id(buffer.handle), buffer.offset + row[0].nbytes] = run
        if not run:
            runs.append(run)
        run.append(number)
    return runs


def _follows(tensor: Tensor, before: Tensor) -> bool:
    """Whether a tensor starts in memory where another one ends, with no gap in between."""
    mine, other = tensor.buffer, before.buffer
    return mine.handle is other.handle and mine.offset == other.offset + before.nbytes


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return contiguous tensors as one tensor of all their elements, (n,); see `adjacent_runs`."""
    if len(tensors) == 1:
        return tensors[0]
    memory = tensors[0].buffer.until(tensors[-1].buffer)
    return replace(tensors[0], shape=(sum(each.size for each in tensors),), data=memory)


def spanning(tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]] | None:
    """Return one tensor of the memory from the first to the last tensor, and where each starts.

    A start is a number of elements. The tensors, whose elements have one size, may lie in any
    order. Returns None unless they are in one buffer. On the CPU, returns the first tensor and
    zeros.
    """
    if isinstance(tensors[0].data, np.ndarray):
        return tensors[0], [0] * len(tensors)
    buffers = sorted((each.buffer for each in tensors), key=lambda buffer: buffer.offset)
    if any(buffer.handle is not buffers[0].handle for buffer in buffers):
        return None
    memory = buffers[0].until(buffers[-1])
    itemsize = tensors[0].dtype.itemsize
    starts = [(each.buffer.offset - memory.offset) // itemsize for each in tensors]
    return replace(tensors[0], shape=(memory.nbytes // itemsize,), data=memory), starts
