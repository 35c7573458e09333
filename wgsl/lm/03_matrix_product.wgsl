// Computes a product of two matrices with float32 sums, for a linear layer and its gradients.
//
//   product = left right (+ product) (+ residual)
//
//   linear:                  out          = x weight^T (+ residual)
//   linear_backward_input:   grad_x       = grad_out weight (+ grad_x)
//   linear_backward_weight:  grad_weight += grad_out^T x
//
// x, grad_x (N, I); weight, grad_weight (O, I); out, grad_out, residual (N, O).
//
// Blocked product in registers (V. Volkov and J. Demmel, Benchmarking GPUs to tune dense linear
// algebra, SC 2008):
// - A workgroup computes a tile of the product, e.g. 64 x 128. It walks along the inner dimension
//   in steps of e.g. 16 terms. For each step, it copies 64 x 16 elements of the left factor and
//   16 x 128 elements of the right factor to workgroup memory. Each thread then adds the terms of
//   its 8 x 8 elements of the product, so that each number that it reads from workgroup memory
//   serves 8 multiplications. Meanwhile the elements of the next step are loaded into registers.
// - All sums of a thread must stay in registers. A compiler may keep a local array that is indexed
//   in a loop in memory, which makes the kernel ten times slower. So directives unroll the loops
//   over sums, and each variable holds the sums of four columns of one row.
// - If a product has few tiles, the inner dimension is split into parts. Each workgroup computes
//   the partial sums of one tile over one part, and 03_add_partials.wgsl adds them up.
// - If the factors are stacks of matrices, one dispatch computes the products of all matrices. The
//   inner dimension is then not split.
//
// binding 0  left      read        (rows, inner)
// binding 1  right     read        (inner, columns)
// binding 2  product   read_write  (rows, columns) for each part, or for each matrix of a stack
// binding 3  dims      uniform     rows, columns, inner, terms per part or matrices per stack
// binding 4  residual  read        (rows, columns), only bound if `residual` is set
// dispatch: one workgroup for each tile of each part or matrix
// limits: rows and columns of a tile are multiples of 4 thread_rows and 8 thread_columns; in each
//   step, a thread loads a whole number of vectors of four elements of each factor

// The name of the entry point is the name of the operation, because timings list kernels by name.
//!override name = matrix_product
// Rows and columns of a tile, terms of a step, and rows and columns of a thread's elements.
//!override rows = 32
//!override columns = 32
//!override inner = 16
//!override thread_rows = 4
//!override thread_columns = 4
// For each factor:
// - contiguous: 1 if the factor is contiguous in memory along the inner dimension, and 0 if it is
//   contiguous along the rows or columns of the product;
// - half: 1 if the elements are float16;
// - vectors: 1 if the contiguous dimension is a multiple of 4, so that a load takes 4 elements.
//!override left_contiguous = 1
//!override left_half = 0
//!override left_vectors = 0
//!override right_contiguous = 1
//!override right_half = 0
//!override right_vectors = 0
// 1 if the product's rows are multiples of 4, so that a thread stores 4 elements at once.
//!override vectors = 0
// 1 if the inner dimension is a multiple of the step, so that loads need no check against its end.
//!override whole_inner = 0
// accumulate: 1 if the old product is added. residual: 1 if the matrix `residual` is added.
//!override accumulate = 0
//!override residual = 1
// 1 if the factors are stacks of matrices.
//!override stacked = 0

//!let threads_down = {rows / thread_rows}
//!let threads_across = {columns / thread_columns}
//!let threads = {threads_down * threads_across}
//!if left_half or right_half
enable f16;
//!end
//!let sides = left x row0 {rows}, right y column0 {columns}
//!for side in left, right
  //!let {side}_element = f32
  //!let {side}_element = f16 if {side}_half
  //!let {side}_element = vec4<{{side}_element}> if {side}_vectors
//!end
//!let element = f32
//!let element = vec4<f32> if vectors

@group(0) @binding(0) var<storage, read> left: array<{left_element}>;
@group(0) @binding(1) var<storage, read> right: array<{right_element}>;
@group(0) @binding(2) var<storage, read_write> product: array<{element}>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;
//!if residual
@group(0) @binding(4) var<storage, read> residual: array<{element}>;
//!end

// The indices are term / 4, term % 4 and element / 4 of the tile. The first two are literals where
// the tiles are read, so that compilers add no bounds checks for them.
var<workgroup> left_tile: array<array<array<vec4<f32>, {rows / 4}>, 4>, {inner / 4}>;
var<workgroup> right_tile: array<array<array<vec4<f32>, {columns / 4}>, 4>, {inner / 4}>;

// Loads four adjacent elements of a row of a factor in memory, from `column` on. row_start is the
// index of the row's first element.
//!for side outer in left x, right y
fn load_{side}(row_start: u32, column: u32) -> vec4<f32> {
  //!if {side}_vectors
    return vec4<f32>({side}[(row_start + column) / 4u]);
  //!else
    //!let last = dims.{outer} - 1u
    //!let last = dims.z - 1u if {side}_contiguous
    return vec4<f32>(
        f32({side}[row_start + min(column + 0u, {last})]),
        f32({side}[row_start + min(column + 1u, {last})]),
        f32({side}[row_start + min(column + 2u, {last})]),
        f32({side}[row_start + min(column + 3u, {last})])
    );
  //!end
}
//!end

//!block addends
  //!let addends =
  //!let addends = + product[{index}] if accumulate
  //!let addends = {addends} + residual[{index}] if residual
//!end
// Stores four adjacent elements of a row of the product, from `column` on, unless they are outside.
// `part` is the number of the part of the inner dimension, or of the matrix in a stack.
fn store(part: u32, row: u32, column: u32, sums: vec4<f32>) {
    let start = part * dims.x * dims.y + row * dims.y + column;
//!if vectors
  //!let index = start / 4u
  //!include addends
    if (row < dims.x && column < dims.y) { product[{index}] = sums {addends}; }
//!else
  //!for j component in 0 x, 1 y, 2 z, 3 w
    //!let index = start + {j}u
    //!include addends
    if (row < dims.x && column + {j}u < dims.y) { product[{index}] = sums.{component} {addends}; }
  //!end
//!end
}

// Sets at_outer and at_inner for load `q` of a thread: the position of the loaded elements in the
// tile of `side`, along the rows or columns of the product, and along the inner dimension. The
// position along the contiguous dimension counts vectors of four elements.
//!block load_place
  //!let number = (local_index + {q * threads}u)
  //!if {side}_contiguous
    //!let at_outer = {number} / {inner / 4}u
    //!let at_inner = {number} % {inner / 4}u
  //!else
    //!let at_outer = {number} % {width / 4}u
    //!let at_inner = {number} / {width / 4}u
  //!end
//!end

// Loads a thread's elements of both factors for the step that begins at term `start`.
//!block load_step
  //!for side outer first width in {sides}
    //!for q in 0..width * inner / 4 / threads
      //!include load_place
      //!if {side}_contiguous
        //!let column = {start} + 4u * ({at_inner})
        //!let column = min({column}, dims.z - 4u) if {side}_vectors and not whole_inner
        {side}_{q} = load_{side}({side}_row_{q}, {column});
      //!else
        //!let row = ({start} + {at_inner})
        //!let row = min({start} + {at_inner}, dims.z - 1u) if not whole_inner
        //!let row = ({row} + part * dims.z) if stacked
        {side}_{q} = load_{side}({row} * dims.{outer}, {side}_column_{q});
      //!end
    //!end
  //!end
  //!if not whole_inner
        // Replace elements beyond the last term by zeros.
        if ({start} + {inner}u > dims.z) {
    //!for side outer first width in {sides}
      //!for q in 0..width * inner / 4 / threads
        //!include load_place
        //!let inside = {start} + {at_inner} < dims.z
        //!if {side}_contiguous
          //!let terms = {start} + 4u * ({at_inner}) + vec4<u32>(0u, 1u, 2u, 3u)
          //!let inside = {terms} < vec4<u32>(dims.z)
        //!end
            {side}_{q} = select(vec4<f32>(), {side}_{q}, {inside});
      //!end
    //!end
        }
  //!end
//!end

// Stores the loaded elements in workgroup memory.
//!block store_step
  //!for side outer first width in {sides}
    //!for q in 0..width * inner / 4 / threads
      //!include load_place
      //!if {side}_contiguous
        //!for j component in 0 x, 1 y, 2 z, 3 w
        {side}_tile[{at_inner}][{j}][({at_outer}) / 4u][({at_outer}) % 4u] = {side}_{q}.{component};
        //!end
      //!else
        {side}_tile[({at_inner}) / 4u][({at_inner}) % 4u][{at_outer}] = {side}_{q};
      //!end
    //!end
  //!end
//!end

@compute @workgroup_size({threads})
fn {name}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    // Find the tile of the workgroup. Consecutive workgroups take adjacent tiles along the
    // dimension with fewer tiles, so that they load the same elements of one factor from the cache.
    let group = workgroup.y * workgroups.x + workgroup.x;
    let tiles_down = (dims.x + {rows - 1}u) / {rows}u;
    let tiles_across = (dims.y + {columns - 1}u) / {columns}u;
//!if stacked
    let parts = dims.w;
//!else
    let parts = (dims.z + dims.w - 1u) / dims.w;
//!end
    let part = group / (tiles_down * tiles_across);
    let place = group % (tiles_down * tiles_across);
    let down = tiles_down < tiles_across;
    let tile_row = select(place / tiles_across, place % tiles_down, down);
    let tile_column = select(place % tiles_across, place / tiles_down, down);
    let row0 = tile_row * {rows}u;
    let column0 = tile_column * {columns}u;
    // Find the thread's first row and column in the tile, in units of 4. 32 consecutive threads,
    // which run in step, form a block of 4 x 8 threads, so that they share loads of both factors.
    let block = local_index / 32u;
    let lane = local_index % 32u;
    let thread_row = block / {threads_across / 8}u * 4u + lane / 8u;
    let thread_column = block % {threads_across / 8}u * 8u + lane % 8u;
    // The last workgroups of a dispatch that is split over two dimensions may have nothing to do.
    if (part < parts) {
//!for i in 0..thread_rows
  //!for j in 0..thread_columns / 4
        var sums_{i}_{j} = vec4<f32>();
  //!end
//!end
        // Loads beyond the last row or column of the product are clamped to the last one. The sums
        // of clamped loads are never stored.
//!for side outer first width in {sides}
  //!for q in 0..width * inner / 4 / threads
    //!include load_place
        var {side}_{q} = vec4<f32>();
    //!if {side}_contiguous
      //!let row = min({first} + {at_outer}, dims.{outer} - 1u)
      //!let row = ({row} + part * dims.{outer}) if stacked
        let {side}_row_{q} = {row} * dims.z;
    //!else
      //!let column = {first} + 4u * ({at_outer})
      //!let column = min({column}, dims.{outer} - 4u) if {side}_vectors
        let {side}_column_{q} = {column};
    //!end
  //!end
//!end
//!if stacked
        let first = 0u;
        let end = dims.z;
//!else
        let first = part * dims.w;
        let end = min(part * dims.w + dims.w, dims.z);
//!end
//!let start = first
//!include load_step
//!include store_step
        workgroupBarrier();
        for (var term = first; term < end; term += {inner}u) {
            // The elements of the next step are loaded while the terms of this step are added.
            let next = term + {inner}u;
            if (next < end) {
//!let start = next
//!include load_step
            }
//!for term in 0..inner
            {
  //!for i in 0..thread_rows / 4
                let l{i} = left_tile[{term / 4}][{term % 4}][thread_row + {i * threads_down}u];
  //!end
  //!for j in 0..thread_columns / 4
                let r{j} =
                    right_tile[{term / 4}][{term % 4}][thread_column + {j * threads_across}u];
  //!end
  //!for i in 0..thread_rows / 4
    //!for k component in 0 x, 1 y, 2 z, 3 w
      //!for j in 0..thread_columns / 4
        //!let sums = sums_{4 * i + k}_{j}
                {sums} = fma(vec4<f32>(l{i}.{component}), r{j}, {sums});
      //!end
    //!end
  //!end
            }
//!end
            workgroupBarrier();
            if (next < end) {
//!include store_step
            }
            workgroupBarrier();
        }
//!for i in 0..thread_rows / 4
  //!for k in 0..4
    //!let row = row0 + 4u * (thread_row + {i * threads_down}u) + {k}u
    //!for j in 0..thread_columns / 4
      //!let column = column0 + 4u * (thread_column + {j * threads_across}u)
        store(part, {row}, {column}, sums_{4 * i + k}_{j});
    //!end
  //!end
//!end
    }
}
