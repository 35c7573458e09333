"""Matrix products: a linear layer and its gradients, and products of stacks of matrices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmgpu.lm.ops.matrix_tiling import (
    HALVES,
    PROCESSORS,
    SOFTWARE_TILES,
    SUMS,
    TILES,
    AnyTile,
    MatrixTile,
    Tiling,
    choose_tiling,
)
from llmgpu.lm.ops.matrix_units import MatrixUnits, matrix_units
from llmgpu.lm.ops.recording import (
    FOUR,
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

# A linear layer with at most FEW_ROWS rows and FEW_ELEMENTS outputs, or a single row, uses kernels
# in which several threads compute an output.
FEW_ROWS = 8
FEW_ELEMENTS = 1 << 16
FEW_ROWS_WORKGROUP_SIZE = 64
LOADS = 4  # loads of FOUR weights for each thread, if a row is long enough
LEAST_ROW_THREADS = 8
LARGE_TILE = 64 * 64  # least elements of a large tile on matrix units
# equal to the constants of these names in kernels
ADD_NOTHING, ADD_RESIDUAL, ADD_TO_PRODUCT = range(3)
# Least inner dimension of a product for kernels that load the numbers of two steps at once. Such a
# kernel starts slowly, so a product with a smaller inner dimension may take longer.
PAIRS_FROM = 768
# Most float32 numbers of partial sums; the memory for them is a power of two of numbers.
MAX_PARTIALS = 1 << 26


@dataclass(frozen=True)
class Product:
    """A product of (rows, inner) and (inner, columns); each factor may be stored transposed.

    The factors and `out` may be stacks of matrices, with one more dimension in front. name: name of
    the operation. residual: a matrix to add to the product. accumulate: add the product to `out`.
    """

    name: str
    left: Tensor
    right: Tensor
    out: Tensor
    left_transposed: bool = False
    right_transposed: bool = False
    residual: Tensor | None = None
    accumulate: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of rows and columns of the product, and the inner dimension."""
        rows, columns = self.out.shape[-2:]
        return rows, columns, self.left.size // (rows * self.stack)

    @property
    def stack(self) -> int:
        """Number of products."""
        return self.out.shape[0] if len(self.out.shape) == 3 else 1

    @property
    def is_symmetric(self) -> bool:
        """Whether the factors are a matrix and its own transpose."""
        alone = self.residual is None and not self.accumulate
        return alone and self.left is self.right and self.left_transposed != self.right_transposed


class ProductOperations(Recorder):
    """Matrix products, computed by NumPy or the C engine. All operations call `multiply_matrices`.

    Factors are float32 or float16, and sums are float32. If the device has matrix units, they
    compute products of two float16 factors. `out` may be float16 if nothing is added to the
    product: then the results are rounded as by `round_to_half`.
    """

    def linear(
        self, x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> None:
        """Write out (N, O) = x (N, I) weight^T (+ residual); weight is (O, I)."""
        # A kernel can't bind one buffer twice. If the residual is `out`, add the product to `out`.
        in_place = residual is out
        residual = None if in_place else residual
        product = Product("linear", x, weight, out, False, True, residual, in_place)
        self.multiply_matrices(product)

    def linear_backward_input(
        self, grad_out: Tensor, weight: Tensor, grad_x: Tensor, *, accumulate: bool
    ) -> None:
        """Write grad_x (N, I) = grad_out (N, O) weight; accumulate: add to grad_x instead."""
        name = "linear_backward_input"
        self.multiply_matrices(Product(name, grad_out, weight, grad_x, accumulate=accumulate))

    def linear_backward_weight(
        self, grad_out: Tensor, x: Tensor, grad_weight: Tensor, *, accumulate: bool
    ) -> None:
        """Write grad_weight (O, I) = grad_out^T x; `accumulate`: add it to grad_weight instead."""
        name = "linear_backward_weight"
        product = Product(name, grad_out, x, grad_weight, True, accumulate=accumulate)
        self.multiply_matrices(product)

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

        One of the factors may be stored transposed.
        """
        name = "multiply"
        if product.shape[0] == 1:  # kernels for few rows or with partial sums do not support stacks
            # A factor that is also the other factor stays the same tensor.
            tensors = {id(each): each.reshaped(*each.shape[1:]) for each in (left, right, product)}
            left, right, product = (tensors[id(each)] for each in (left, right, product))
            name = "linear" if right_transposed else name
        self.multiply_matrices(
            Product(name, left, right, product, left_transposed, right_transposed)
        )

    @recorded
    def multiply_matrices(self, p: Product) -> None:
        """Compute a `Product`."""
        left, right, out = as_single(p.left.array), as_single(p.right.array), p.out.array
        left = left.swapaxes(-1, -2) if p.left_transposed else left
        right = right.swapaxes(-1, -2) if p.right_transposed else right
        if p.residual is None and not p.accumulate:
            product = single_of(out)
            self._multiply(left, right, product)
            put(product, out)
            return
        product = np.empty(out.shape, np.float32)
        self._multiply(left, right, product)
        np.add(product, out if p.residual is None else p.residual.array, out=out)

    def _multiply(self, left: FloatArray, right: FloatArray, out: FloatArray) -> None:
        if out.ndim == 3:
            for matrices in zip(left, right, out, strict=True):
                self._multiply(*matrices)
        elif self.products is None:
            np.matmul(left, right, out=out)
        else:
            self.products.multiply(left, right, out)


class GpuProducts(GpuRecorder, ProductOperations):
    """Matrix products, as GPU kernels."""

    def multiply_matrices(self, p: Product) -> None:
        rows = p.out.shape[-2]
        few = rows == 1 or (rows <= FEW_ROWS and p.out.size <= FEW_ELEMENTS)
        if p.name == "linear" and few and not p.left.is_half and not p.out.is_half:
            self._few_rows(p)
        else:
            self._matrix_product(p)

    def _few_rows(self, p: Product) -> None:
        file = "lm/03_linear_few_rows.wgsl"
        groups, constants = p.out.size, {"WORKGROUP_SIZE": FEW_ROWS_WORKGROUP_SIZE}
        *outer, inner = p.sizes
        if inner % FOUR == 0:
            inner //= FOUR
            row_threads = thread_count(-(-inner // LOADS), LEAST_ROW_THREADS)
            file = "lm/03_linear_few_rows_fours.wgsl"
            groups = workgroups(groups * row_threads)
            constants = {"WORKGROUP_SIZE": WORKGROUP_SIZE, "ROW_THREADS": row_threads}
        self.dispatch(
            file,
            groups,
            {**constants, "half": p.right.is_half},
            x=p.left,
            weight=p.right,
            residual=p.residual or p.left,
            out=p.out,
            dims=dims(*outer, inner, _addend(p)),
        )

    def _tiling(self, p: Product, units: MatrixUnits | None) -> Tiling:
        # The number of float32 that the device can bind at once, rounded down to a power of two.
        bindable = 1 << (self.device.max_binding_bytes // 4).bit_length() - 1
        software = self.device.is_software
        rows, columns, inner = p.sizes
        tiles: Sequence[AnyTile] = SOFTWARE_TILES if software else TILES
        if units is not None:
            tiles = units.tiles
            if p.is_symmetric:
                tiles = units.square_tiles
            elif p.left_transposed != p.right_transposed:
                tiles = units.tiles + units.wide
            if _addend(p) != ADD_NOTHING:
                # Large tiles that are partly outside load addends late, which takes longer.
                large = [each for each in tiles if each.rows * each.columns >= LARGE_TILE]
                whole = [each for each in large if not (rows % each.rows or columns % each.columns)]
                tiles = tuple(whole) or tiles
        return choose_tiling(
            tiles,
            p.stack * rows,
            columns,
            inner,
            processors=os.cpu_count() or 1 if software else PROCESSORS,
            most=min(MAX_PARTIALS, bindable) if p.stack == 1 else 0,
        )

    def _matrix_product(self, p: Product) -> None:
        rows, columns, _ = p.sizes
        halves = p.left.is_half and p.right.is_half
        units = matrix_units(self.device) if halves else None
        tiling = self._tiling(p, units)
        if p.out.is_half and (units is None or tiling.parts > 1 or columns % 2):
            with self.rounding_to("product", p.out) as out:
                self._matrix_product(replace(p, out=out))
            return
        if tiling.parts == 1:
            self._tiles(p, tiling, units)
            return
        # There are too few tiles to keep the device busy. So each part of the inner dimension is a
        # product by itself, and a second kernel adds up these products in a fixed order. The memory
        # of partial sums is a power of two of float32 numbers, so that products of several sizes
        # share it.
        floats = 1 << (tiling.parts * rows * columns - 1).bit_length()
        partials = self.scratch("partial sums", (floats,))
        first = Tensor("partial sums", (rows, columns), partials.dtype, partials.data)
        parts = replace(p, out=first, residual=None, accumulate=False)
        self._tiles(parts, tiling, units)
        numbers = 1 if p.out.size % FOUR else FOUR
        self.dispatch(
            "lm/03_add_partials.wgsl",
            workgroups(p.out.size // numbers),
            {"parts": tiling.parts, "numbers": numbers},
            partials=partials,
            residual=p.residual or partials,
            product=p.out,
            dims=dims(p.out.size // numbers, _addend(p)),
        )

    def _tiles(self, p: Product, tiling: Tiling, units: MatrixUnits | None) -> None:
        rows, columns, inner = p.sizes
        stacked = p.stack > 1
        sizes = dims(rows, columns, inner, p.stack if stacked else tiling.inner)
        bindings = {"left": p.left, "right": p.right, "product": p.out}
        if p.residual is not None:
            bindings["residual"] = p.residual
        settings = _settings(p, tiling, units)
        tiles = tiling.tile.count(rows, columns)
        if settings.get("symmetric"):
            across = -(-rows // tiling.tile.rows)
            tiles = across * (across + 1) // 2
        groups = tiles * (p.stack if stacked else tiling.parts)
        file = "lm/03_matrix_product.wgsl" if units is None else "lm/03_matrix_product_units.wgsl"
        self.dispatch(file, groups, settings, **bindings, dims=sizes)


def _settings(p: Product, tiling: Tiling, units: MatrixUnits | None) -> dict[str, int | str]:
    """Return the settings of lm/03_matrix_product.wgsl, or of its variant for matrix units."""
    (rows, columns, inner), tile, half = p.sizes, tiling.tile, p.out.is_half
    vector = SUMS if units is None else HALVES  # elements of a vector of 16 bytes of a factor
    settings: dict[str, int | str] = {
        "name": p.name,
        **vars(tile),
        "left_contiguous": not p.left_transposed,
        "right_contiguous": p.right_transposed,
        "left_vectors": p.left.shape[-1] % vector == 0,
        "right_vectors": p.right.shape[-1] % vector == 0,
        "whole_inner": inner % tile.inner == 0,
        "accumulate": p.accumulate,
        "residual": p.residual is not None,
        "stacked": p.stack > 1,
    }
    if units is None:
        kinds = {"left_half": p.left.is_half, "right_half": p.right.is_half}
        return {**settings, **kinds, "vectors": columns % SUMS == 0}
    assert isinstance(tile, MatrixTile)
    even_steps = tiling.parts == 1 and inner % (2 * tile.inner) == 0
    return {
        **settings,
        **units.settings(tile),
        "aligned": columns % (HALVES if half else SUMS) == 0,
        "whole_rows": rows % tile.rows == 0,
        "whole_columns": columns % tile.columns == 0,
        "half": half,
        "symmetric": p.is_symmetric,
        "long_sums": even_steps and inner >= PAIRS_FROM and tile == units.tiles[0],
    }


def _addend(p: Product) -> int:
    if p.residual is not None:
        return ADD_RESIDUAL
    return ADD_TO_PRODUCT if p.accumulate else ADD_NOTHING
