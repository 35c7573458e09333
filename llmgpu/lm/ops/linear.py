"""Matrix products: a linear layer and its gradients."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.matrix_tiling import (
    HALVES,
    PROCESSORS,
    SOFTWARE_TILES,
    SUMS,
    TILES,
    MatrixTile,
    Tiling,
    choose_tiling,
)
from llmgpu.lm.ops.matrix_units import MatrixUnits, matrix_units
from llmgpu.lm.ops.recording import (
    WORKGROUP_SIZE,
    GpuRecorder,
    Recorder,
    as_single,
    dims,
    put,
    recorded,
    single_of,
    thread_count,
    workgroups,
)
from llmgpu.lm.ops.tensor import FloatArray, Tensor

# Outputs of a linear layer with few rows are computed one element by some threads: this many rows,
# of this many elements in all unless there is only one row.
FEW_ROWS = 8
FEW_ELEMENTS = 1 << 16
FEW_ROWS_WORKGROUP_SIZE = 64
FOUR = 4  # weights that its kernels load at once, where rows are a multiple
LOADS = 4  # of a thread, if a row is long enough
LEAST_ROW_THREADS = 8
ADD_NOTHING, ADD_RESIDUAL, ADD_TO_PRODUCT = range(3)  # as in the kernels
PAIRS_FROM = 2048  # terms: with fewer, or smaller tiles, loading for two steps at once begins late
MAX_PARTIALS = 1 << 26  # floats of partial sums; a power of two, as is the memory made for them


class ProductOperations(Recorder):
    """The operations on arrays."""

    @recorded
    def linear(
        self, x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> None:
        """Out (N, O) = x (N, I) weight^T (+ residual); x, weight (O, I) are float32 or float16.

        So are the factors of its gradients; sums are float32, on matrix units where the device has
        those and both factors are float16. What nothing is added to, here and in the gradient of
        x, may be float16: then it is rounded as by `round_to_half`.
        """
        factors = as_single(x.array), as_single(weight.array).T
        if residual is None:
            self._store_product(*factors, out)
        else:
            np.add(self._product(*factors), residual.array, out=out.array)

    @recorded
    def linear_backward_input(
        self, grad_out: Tensor, weight: Tensor, grad_x: Tensor, *, accumulate: bool
    ) -> None:
        """Grad_x (N, I) = grad_out (N, O) weight; with `accumulate` it is added to grad_x."""
        factors = as_single(grad_out.array), as_single(weight.array)
        if accumulate:
            grad_x.array[...] += self._product(*factors)
        else:
            self._store_product(*factors, grad_x)

    @recorded
    def linear_backward_weight(self, grad_out: Tensor, x: Tensor, grad_weight: Tensor) -> None:
        """Add grad_out^T x to grad_weight (O, I)."""
        grad_weight.array[...] += self._product(as_single(grad_out.array).T, as_single(x.array))

    @recorded
    def multiply(
        self,
        left: Tensor,
        right: Tensor,
        product: Tensor,
        *,
        left_transposed: bool = False,
        right_transposed: bool = False,
    ) -> None:
        """Write the products (S, N, O) of S matrices (N, I) and S matrices (I, O).

        Factors are float32 or float16 and may be stored transposed, one of them at most.
        """
        lefts, rights = as_single(left.array), as_single(right.array)
        if left_transposed:
            lefts = lefts.transpose(0, 2, 1)
        if right_transposed:
            rights = rights.transpose(0, 2, 1)
        for factor, other, out in zip(lefts, rights, product.array, strict=True):
            self._multiply(factor, other, out)

    def _store_product(self, left: FloatArray, right: FloatArray, out: Tensor) -> None:
        product = single_of(out.array)
        self._multiply(left, right, product)
        put(product, out.array)

    def _product(self, left: FloatArray, right: FloatArray) -> FloatArray:
        out = np.empty((left.shape[0], right.shape[1]), np.float32)
        self._multiply(left, right, out)
        return out

    def _multiply(self, left: FloatArray, right: FloatArray, out: FloatArray) -> None:
        if self.products is None:
            np.matmul(left, right, out=out)
        else:
            self.products.multiply(left, right, out)


@dataclass(frozen=True)
class _Operands:
    """A product of (rows, inner) and (inner, columns), either stored as it is or transposed.

    All three may be stacks of matrices, with one more dimension in front.
    """

    left: Tensor
    right: Tensor
    product: Tensor
    left_transposed: bool = False
    right_transposed: bool = False
    residual: Tensor | None = None
    accumulate: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and inner dimension."""
        rows, columns = self.product.shape[-2:]
        return rows, columns, self.left.size // (rows * self.stack)

    @property
    def stack(self) -> int:
        """How many products there are."""
        return self.product.shape[0] if len(self.product.shape) == 3 else 1


class GpuLinear(GpuRecorder, ProductOperations):
    """The operations as kernels."""

    def linear(
        self, x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> None:
        # A kernel must not bind one buffer twice, so a residual in place is an accumulation.
        operands = _Operands(x, weight, out, right_transposed=True, residual=residual)
        if residual is out:
            operands = replace(operands, residual=None, accumulate=True)
        rows = out.shape[0]
        few = rows == 1 or (rows <= FEW_ROWS and out.size <= FEW_ELEMENTS)
        if few and not x.is_half and not out.is_half:
            self._few_rows(operands)
        else:
            self._matrix_product("linear", operands)

    def linear_backward_input(
        self, grad_out: Tensor, weight: Tensor, grad_x: Tensor, *, accumulate: bool
    ) -> None:
        operands = _Operands(grad_out, weight, grad_x, accumulate=accumulate)
        self._matrix_product("linear_backward_input", operands)

    def linear_backward_weight(self, grad_out: Tensor, x: Tensor, grad_weight: Tensor) -> None:
        operands = _Operands(grad_out, x, grad_weight, left_transposed=True, accumulate=True)
        self._matrix_product("linear_backward_weight", operands)

    def multiply(
        self,
        left: Tensor,
        right: Tensor,
        product: Tensor,
        *,
        left_transposed: bool = False,
        right_transposed: bool = False,
    ) -> None:
        if product.shape[0] > 1:
            operands = _Operands(left, right, product, left_transposed, right_transposed)
            self._matrix_product("multiply", operands)
            return
        # A single product may be split, or have few rows.
        left, right, product = (each.reshaped(*each.shape[1:]) for each in (left, right, product))
        if right_transposed:
            self.linear(left, right, product)
        else:
            operands = _Operands(left, right, product, left_transposed)
            self._matrix_product("multiply", operands)

    def _few_rows(self, operands: _Operands) -> None:
        file = "lm/03_linear_few_rows.wgsl"
        groups, constants = operands.product.size, {"WORKGROUP_SIZE": FEW_ROWS_WORKGROUP_SIZE}
        *outer, inner = operands.sizes
        if inner % FOUR == 0:
            inner //= FOUR
            row_threads = thread_count(-(-inner // LOADS), LEAST_ROW_THREADS)
            file = "lm/03_linear_few_rows_fours.wgsl"
            groups = workgroups(groups * row_threads)
            constants = {"WORKGROUP_SIZE": WORKGROUP_SIZE, "ROW_THREADS": row_threads}
        self.dispatch(
            file,
            groups,
            {**constants, "half": operands.right.is_half},
            x=operands.left,
            weight=operands.right,
            residual=operands.residual or operands.left,
            out=operands.product,
            dims=dims(*outer, inner, _addend(operands)),
        )

    def _tiling(self, operands: _Operands, units: MatrixUnits | None) -> Tiling:
        # The largest power of two of floats that the device can bind at once.
        bindable = 1 << (self.device.max_binding_bytes // 4).bit_length() - 1
        software = self.device.is_software
        rows, columns, inner = operands.sizes
        return choose_tiling(
            units.tiles if units is not None else SOFTWARE_TILES if software else TILES,
            operands.stack * rows,
            columns,
            inner,
            processors=os.cpu_count() or 1 if software else PROCESSORS,
            most=min(MAX_PARTIALS, bindable) if operands.stack == 1 else 0,
        )

    def _matrix_product(self, name: str, operands: _Operands) -> None:
        rows, columns, _ = operands.sizes
        halves = operands.left.is_half and operands.right.is_half
        units = matrix_units(self.device) if halves else None
        tiling = self._tiling(operands, units)
        product = operands.product
        if product.is_half and (units is None or tiling.parts > 1 or columns % 2):
            single = self.scratch("product", product.shape)
            self._matrix_product(name, replace(operands, product=single))
            self.round_to_half(single, product)
            return
        if tiling.parts == 1:
            self._tiles(name, operands, tiling, units)
            return
        # Too few tiles to keep the device busy: each part of the inner sum is a product by itself,
        # and the parts are added up in a fixed order. Their memory is a power of two, so that
        # products of several sizes share it.
        floats = 1 << (tiling.parts * rows * columns - 1).bit_length()
        partials = self.scratch("partial sums", (floats,))
        first = Tensor("partial sums", (rows, columns), partials.dtype, partials.data)
        parts = replace(operands, product=first, residual=None, accumulate=False)
        self._tiles(name, parts, tiling, units)
        self.dispatch(
            "lm/03_add_partials.wgsl",
            workgroups(operands.product.size),
            partials=partials,
            residual=operands.residual or partials,
            product=operands.product,
            dims=dims(operands.product.size, tiling.parts, _addend(operands)),
        )

    def _tiles(
        self, name: str, operands: _Operands, tiling: Tiling, units: MatrixUnits | None
    ) -> None:
        rows, columns, inner = operands.sizes
        stacked = operands.stack > 1
        bindings: dict[str, Tensor | NDArray[np.uint32]] = {
            "left": operands.left,
            "right": operands.right,
            "product": operands.product,
            "dims": dims(rows, columns, inner, operands.stack if stacked else tiling.inner),
        }
        if operands.residual is not None:
            bindings["residual"] = operands.residual
        groups = tiling.tile.count(rows, columns) * (operands.stack if stacked else tiling.parts)
        file = "lm/03_matrix_product.wgsl" if units is None else "lm/03_matrix_product_units.wgsl"
        self.dispatch(file, groups, _settings(name, operands, tiling, units), **bindings)


def _settings(
    name: str, operands: _Operands, tiling: Tiling, units: MatrixUnits | None
) -> dict[str, int | str]:
    """Return the settings of lm/03_matrix_product.wgsl, or with units of its twin for them."""
    tile, inner = tiling.tile, operands.sizes[2]
    settings: dict[str, int | str] = {
        "name": name,
        **vars(tile),
        "left_contiguous": not operands.left_transposed,
        "right_contiguous": operands.right_transposed,
        "whole_inner": inner % tile.inner == 0,
        "accumulate": operands.accumulate,
        "residual": operands.residual is not None,
        "stacked": operands.stack > 1,
    }
    if units is None:
        return settings | _settings_of_singles(operands)
    return settings | _settings_of_halves(operands, tiling, units)


def _settings_of_singles(operands: _Operands) -> dict[str, int]:
    return {
        "left_half": operands.left.is_half,
        "right_half": operands.right.is_half,
        "left_vectors": operands.left.shape[-1] % SUMS == 0,
        "right_vectors": operands.right.shape[-1] % SUMS == 0,
        "vectors": operands.product.shape[-1] % SUMS == 0,
    }


def _settings_of_halves(operands: _Operands, tiling: Tiling, units: MatrixUnits) -> dict[str, int]:
    (rows, columns, inner), tile, half = operands.sizes, tiling.tile, operands.product.is_half
    assert isinstance(tile, MatrixTile)
    even_steps = tiling.parts == 1 and inner % (2 * tile.inner) == 0
    return {
        **units.settings(tile),
        "left_vectors": operands.left.shape[-1] % HALVES == 0,
        "right_vectors": operands.right.shape[-1] % HALVES == 0,
        "aligned": columns % (HALVES if half else SUMS) == 0,
        "whole_rows": rows % tile.rows == 0,
        "whole_columns": columns % tile.columns == 0,
        "half": half,
        "long_sums": even_steps and inner >= PAIRS_FROM and tile == units.tiles[0],
    }


def _addend(operands: _Operands) -> int:
    if operands.residual is not None:
        return ADD_RESIDUAL
    return ADD_TO_PRODUCT if operands.accumulate else ADD_NOTHING
