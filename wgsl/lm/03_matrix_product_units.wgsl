// Computes a product of two half-precision matrices on matrix units, with float32 sums.
//
//   product = left right (+ product) (+ residual)
//
// The kernel computes the same products as 03_matrix_product.wgsl, on devices where a subgroup
// multiplies small matrices (WGSL's subgroup matrices; Vulkan's VK_KHR_cooperative_matrix; tensor
// cores). Tiles, registers and padding are arranged like in NVIDIA's CUTLASS:
// - A workgroup computes a tile of the product. Each of its subgroups computes a block of the tile,
//   and keeps the sums in subgroup matrices. The workgroup walks along the inner dimension in
//   steps, and copies the elements of both factors for a step to workgroup memory. Their order
//   does not change: a subgroup loads the matrices of a transposed factor in column-major order.
// - The elements of the next step are loaded into registers while this step is multiplied.
// - A line is a run of elements in workgroup memory that are adjacent in one row of a factor in
//   memory. Lines are padded by 16 bytes, so that the rows of a matrix lie in different banks.
// - Sums pass through workgroup memory, so that neighbouring threads store neighbouring elements
//   (matrix_product_sums.wgsl).
//
// binding 0  left      read        (rows, inner)
// binding 1  right     read        (inner, columns)
// binding 2  product   read_write  (rows, columns) for each part, or for each matrix of a stack
// binding 3  dims      uniform     rows, columns, inner, terms per part or matrices per stack
// binding 4  residual  read        (rows, columns), only bound if `residual` is set
// dispatch: one workgroup for each tile of each part or matrix; of a symmetric product only for the
//   tiles on the diagonal and below it
// limits: a subgroup's block is made of whole matrices; in each step, a thread loads a whole number
//   of vectors of each factor; a half-precision product has an even number of columns and no addend

// The name of the entry point is the name of the operation, because timings list kernels by name.
//!override name = matrix_product
// Rows and columns of a tile, terms of a step, rows and columns of a subgroup's block, and threads
// of a subgroup.
//!override rows = 64
//!override columns = 64
//!override inner = 32
//!override subgroup_rows = 32
//!override subgroup_columns = 32
//!override lanes = 32
// Sizes of left_tile and right_tile in vectors of 16 bytes, and the number of adjacent matrices of
// sums that a subgroup stores at once.
//!override left_size = 320
//!override right_size = 320
//!override together = 2
// For each factor:
// - contiguous: 1 if the factor is contiguous in memory along the inner dimension, and 0 if it is
//   contiguous along the rows or columns of the product;
// - vectors: 1 if the contiguous dimension is a multiple of 8, so that a load takes 8 halves.
//!override left_contiguous = 1
//!override left_vectors = 0
//!override right_contiguous = 1
//!override right_vectors = 0
// 1 if the product's rows are multiples of 16 bytes, so that a thread stores 16 bytes at once.
//!override aligned = 0
// 1 if the product's rows are a multiple of the tile's rows, its columns a multiple of the tile's
// columns, and the inner dimension a multiple of the step.
//!override whole_rows = 0
//!override whole_columns = 0
//!override whole_inner = 0
// accumulate: 1 if the old product is added. residual: 1 if the matrix `residual` is added.
//!override accumulate = 0
//!override residual = 1
// 1 if the product is in half precision, two numbers per word.
//!override half = 0
// 1 if the factors are stacks of matrices.
//!override stacked = 0
// 1 if the product is symmetric: a matrix times its own transpose.
//!override symmetric = 0
// 1 if the inner dimension is long, is not split into parts, and has an even number of steps.
//!override long_sums = 0
//!include lm/matrix_units.wgsl

//!let subgroups = {(rows / subgroup_rows) * (columns / subgroup_columns)}
//!let threads = {subgroups * lanes}
//!let down = {subgroup_rows / unit_rows}
//!let across = {subgroup_columns / unit_columns}
//!let edges = {not (whole_rows and whole_columns)}
//!let addend =
//!if accumulate
  //!let addend = product
//!else
  //!let addend = residual if residual
//!end
//!let adds = {accumulate or residual}
// If the product is aligned, the matrices of sums start with the addends in tiles that are inside
// the product. Tiles that reach beyond its edge add the addends when they store their sums.
//!let adds_late = {aligned and edges and adds}
// If both factors are contiguous along the inner dimension and need no bounds checks, threads load
// two steps at once, and eight threads load one line of 128 bytes.
//!let whole_lines = {left_contiguous and left_vectors and right_contiguous and right_vectors}
//!let whole_steps = {not edges and whole_inner and 2 * inner == 64 and threads % 64 == 0}
//!let pairs = {long_sums and whole_lines and whole_steps and not stacked}
//!let sides = left x row0 {rows} {whole_rows}, right y column0 {columns} {whole_columns}
// lines: lines of a factor in workgroup memory. line_vectors: vectors of 8 halves in a line.
// stride: vectors from the start of a line to the start of the next.
//!for side outer first width whole in {sides}
  //!let {side}_lines = {inner}
  //!let {side}_line_vectors = {width / 8}
  //!let {side}_element = f16
  //!if {side}_contiguous
    //!let {side}_lines = {width}
    //!let {side}_line_vectors = {inner / 8}
  //!end
  //!let {side}_stride = {{side}_line_vectors + 1}
  //!let {side}_element = vec4<u32> if {side}_vectors
//!end
//!let element = f32
//!let element = u32 if half
//!let element = vec4<{element}> if aligned

@group(0) @binding(0) var<storage, read> left: array<{left_element}>;
@group(0) @binding(1) var<storage, read> right: array<{right_element}>;
@group(0) @binding(2) var<storage, read_write> product: array<{element}>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;
//!if residual
@group(0) @binding(4) var<storage, read> residual: array<{element}>;
//!end

var<workgroup> left_tile: array<vec4<u32>, {left_size}>;
var<workgroup> right_tile: array<vec4<u32>, {right_size}>;

//!include lm/matrix_product_sums.wgsl

//!if not pairs
// Loads eight adjacent halves of a row of a factor in memory, from `column` on. line_start is the
// index of the row's first element.
  //!for side outer in left x, right y
fn load_{side}(line_start: u32, column: u32) -> vec4<u32> {
    //!if {side}_vectors
    return {side}[(line_start + column) / 8u];
    //!else
      //!let last = dims.{outer} - 1u
      //!let last = dims.z - 1u if {side}_contiguous
      //!for j in 0..8
        //!let load{j} = f32({side}[line_start + min(column + {j}u, {last})])
      //!end
    return vec4<u32>(
        pack2x16float(vec2<f32>({load0}, {load1})),
        pack2x16float(vec2<f32>({load2}, {load3})),
        pack2x16float(vec2<f32>({load4}, {load5})),
        pack2x16float(vec2<f32>({load6}, {load7}))
    );
    //!end
}
  //!end
//!end

//!include store

// Sets `line` and `vector` for load `q` of a thread: the line in the tile of `side`, and the vector
// in the line. If `vector` is the same for all loads of a thread, its expression does not contain
// q, so that the compiler keeps one address for all loads.
//!block load_place
  //!if threads % {side}_line_vectors == 0
    //!let line = ({side}_line + {q * threads / {side}_line_vectors}u)
    //!let vector = local_index % {{side}_line_vectors}u
  //!else
    //!let line = (local_index + {q * threads}u) / {{side}_line_vectors}u
    //!let vector = (local_index + {q * threads}u) % {{side}_line_vectors}u
  //!end
//!end

// Loads a thread's vectors of both factors for the step that begins at term `start`.
//!block load_step
  //!for side outer first width whole in {sides}
    //!for q in 0..{side}_lines * {side}_line_vectors / threads
      //!include load_place
      //!if {side}_contiguous
        //!let column = {start} + {vector} * 8u
        //!let inside = {column} < dims.z
        //!let column = min({column}, dims.z - 8u) if {side}_vectors and not whole_inner
            {side}_{q} = load_{side}({side}_start_{q}, {column});
      //!else
        //!let row = ({start} + {line})
        //!let inside = {start} + {line} < dims.z
        //!let row = min({start} + {line}, dims.z - 1u) if not whole_inner
        //!let row = ({row} + part * dims.z) if stacked
            {side}_{q} = load_{side}({row} * dims.{outer}, {side}_start_{q});
      //!end
      //!if not whole_inner
            {side}_{q} = select(vec4<u32>(), {side}_{q}, {inside});
        //!if {side}_contiguous and not {side}_vectors
            // If the inner dimension ends inside the vector, the halves beyond its end become 0.
          //!let column = {start} + {vector} * 8u
          //!for j component in 0 x, 1 y, 2 z, 3 w
            //!let low = select(0u, 0xffffu, {column} + {2 * j}u < dims.z)
            //!let high = select(0u, 0xffff0000u, {column} + {2 * j + 1}u < dims.z)
            //!let word{j} = {side}_{q}.{component} & ({low} | {high})
          //!end
            {side}_{q} = vec4<u32>({word0}, {word1}, {word2}, {word3});
        //!end
      //!end
    //!end
  //!end
//!end

// Stores the loaded vectors in workgroup memory.
//!block store_step
  //!for side in left, right
    //!for q in 0..{side}_lines * {side}_line_vectors / threads
      //!include load_place
            {side}_tile[{line} * {{side}_stride}u + {vector}] = {side}_{q};
    //!end
  //!end
//!end

// Loads a thread's vectors of both factors for two steps. A line of one step is half of a cache
// line, and loading half a cache line takes as long as loading a whole one. So eight threads load
// the vectors of both steps of a line: threads 0 to 3 load the first step, and threads 4 to 7 the
// second. At every other load, threads 0 to 3 load the second step, and threads 4 to 7 the first.
// So of two loads, each thread has one vector of each step, and all threads store in each step.
//!block load_pairs
  //!for side in left, right
    //!for q in 0..2 * {side}_lines * {side}_line_vectors / threads
            {side}_{q} = {side}[{side}_start_{q} + {start} / 8u];
    //!end
  //!end
//!end

// Stores the loaded vectors of one of two steps in workgroup memory: of the first step, or of the
// second if `second` is set.
//!block store_half
  //!for side in left, right
    //!for n in 0..{side}_lines * {side}_line_vectors / threads
      //!let low = {side}_{2 * n}
      //!let high = {side}_{2 * n + 1}
      //!if second
        //!let low = {side}_{2 * n + 1}
        //!let high = {side}_{2 * n}
      //!end
      //!let index = ({half_line} + {2 * n * threads / 8}u) * {{side}_stride}u + local_index % 4u
            {side}_tile[{index}] = select({high}, {low}, is_low);
    //!end
  //!end
//!end

// Multiplies the elements of both factors in workgroup memory, and adds the products to the sums.
//!block multiply
  //!for n in 0..inner / unit_inner
    //!let term = {n * unit_inner}
            {
    //!for i in 0..down
      //!let row = (own_row + {i * unit_rows}u)
      //!if left_contiguous
        //!let place = {term / 8}u + {row} * {left_stride}u, {left_stride}u
                let l{i} = subgroupMatrixLoad<Left, row_major>(&left_tile, {place});
      //!else
        //!let place = {term * left_stride}u + {row} / 8u, {left_stride}u
                let l{i} = subgroupMatrixLoad<Left, col_major>(&left_tile, {place});
      //!end
    //!end
    //!for j in 0..across
      //!let column = (own_column + {j * unit_columns}u)
      //!if right_contiguous
        //!let place = {term / 8}u + {column} * {right_stride}u, {right_stride}u
                let r{j} = subgroupMatrixLoad<Right, col_major>(&right_tile, {place});
      //!else
        //!let place = {term * right_stride}u + {column} / 8u, {right_stride}u
                let r{j} = subgroupMatrixLoad<Right, row_major>(&right_tile, {place});
      //!end
    //!end
                // Every other row of matrices is walked backwards, so that each multiplication
                // shares a matrix with the multiplication before.
    //!for i in 0..down
      //!for n in 0..across
        //!let j = {n}
        //!let j = {across - 1 - n} if i % 2
        //!let sums = sums_{i}_{j}
                {sums} = subgroupMatrixMultiplyAccumulate(l{i}, r{j}, {sums});
      //!end
    //!end
            }
  //!end
//!end

@compute @workgroup_size({threads})
fn {name}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    // Find the tile of the workgroup. Consecutive workgroups take the tiles of a band of 8 rows of
    // tiles, column by column, so that they load the same elements of both factors from the cache.
    let group = workgroup.y * workgroups.x + workgroup.x;
    let tiles_down = (dims.x + {rows - 1}u) / {rows}u;
//!if symmetric
    let tiles = tiles_down * (tiles_down + 1u) / 2u;
//!else
    let tiles_across = (dims.y + {columns - 1}u) / {columns}u;
    let tiles = tiles_down * tiles_across;
//!end
//!if stacked
    let parts = dims.w;
//!else
    let parts = (dims.z + dims.w - 1u) / dims.w;
//!end
    let part = group / tiles;
    let place = group % tiles;
//!if symmetric
    // Row r of the tiles begins at tile r (r + 1) / 2. The root may be rounded up or down, so the
    // row that it gives is corrected by one if necessary.
    let root = u32((sqrt(f32(8u * place + 1u)) - 1.0) / 2.0);
    let is_later = u32((root + 1u) * (root + 2u) / 2u <= place);
    let tile_row = root + is_later - u32(root * (root + 1u) / 2u > place);
    let row0 = tile_row * {rows}u;
    let column0 = (place - tile_row * (tile_row + 1u) / 2u) * {columns}u;
//!else
    let band_row = place / (8u * tiles_across) * 8u;
    let band_rows = min(8u, tiles_down - band_row);
    let in_band = place % (8u * tiles_across);
    let row0 = (band_row + in_band % band_rows) * {rows}u;
    let column0 = in_band / band_rows * {columns}u;
//!end
    // own_row and own_column are the first row and column of the subgroup's block in the tile. The
    // remainder lets the compiler prove that the block lies inside the tile.
//!let blocks_across = {columns / subgroup_columns}
    let own_row = subgroup / {blocks_across}u % {rows / subgroup_rows}u * {subgroup_rows}u;
    let own_column = subgroup % {blocks_across}u * {subgroup_columns}u;
    // The last workgroups of a dispatch that is split over two dimensions may have nothing to do.
    if (part < parts) {
//!if stacked
        let begin = 0u;
        let end = dims.z;
//!else
        let begin = part * dims.w;
        let end = min(part * dims.w + dims.w, dims.z);
//!end
//!for i in 0..down
  //!for j in 0..across
        var sums_{i}_{j}: Sum;
  //!end
//!end
//!include start_sums
//!if pairs
        // A thread loads vectors of even_line and odd_line. Eight threads store into two lines at
        // once, which are so far apart that their vectors lie in different banks.
  //!let pair_lines = {threads / 8}
        let is_low = local_index % 8u < 4u;
        let even_line = local_index / 8u;
        let odd_line = (even_line ^ 4u) + {pair_lines}u;
        let first_line = select(odd_line, even_line, is_low);
        let second_line = select(even_line, odd_line, is_low);
  //!for side outer first width whole in {sides}
    //!for q in 0..2 * {side}_lines * {side}_line_vectors / threads
      //!let line = even_line
      //!let vector = local_index % 8u
      //!if q % 2
        //!let line = odd_line
        //!let vector = ((local_index % 8u) ^ 4u)
      //!end
      //!let row = ({first} + {line} + {q / 2 * 2 * pair_lines}u)
        var {side}_{q} = vec4<u32>();
        let {side}_start_{q} = {row} * (dims.z / 8u) + {vector};
    //!end
  //!end
  //!let start = begin
  //!include load_pairs
  //!let half_line = first_line
  //!let second = 0
  //!include store_half
        workgroupBarrier();
        for (var term = begin; term < end; term += {2 * inner}u) {
  //!include multiply
            workgroupBarrier();
            // This condition is always true. Without the branch, compilers interleave the two
            // steps, which makes the kernel 1 to 2 % slower.
            if (term + {inner}u < end) {
  //!let half_line = second_line
  //!let second = 1
  //!include store_half
            }
            workgroupBarrier();
            let next = term + {2 * inner}u;
            if (next < end) {
  //!let start = next
  //!include load_pairs
            }
  //!include multiply
            workgroupBarrier();
            if (next < end) {
  //!let half_line = first_line
  //!let second = 0
  //!include store_half
            }
            workgroupBarrier();
        }
//!else
        // Find the line of a thread's first load. The hardware stores the vectors of a quarter of a
        // subgroup at once. If a quarter stores into several lines, the lines are so far apart that
        // their vectors lie in different banks.
  //!for side in left, right
    //!let vectors = {{side}_line_vectors}
    //!let line = local_index / {vectors}u
    //!if vectors <= 4 and threads % (vectors * 8) == 0
      //!let turned = {line} % {8 / vectors}u * {vectors}u + {line} / {8 / vectors}u % {vectors}u
      //!let line = {line} / 8u * 8u + {turned}
    //!end
        let {side}_line = {line};
  //!end
        // Loads beyond the last row or column of the product are clamped to the last one. The sums
        // of clamped loads are never stored.
  //!for side outer first width whole in {sides}
    //!for q in 0..{side}_lines * {side}_line_vectors / threads
      //!include load_place
        var {side}_{q} = vec4<u32>();
      //!if {side}_contiguous
        //!let row = ({first} + {line})
        //!let row = min({row}, dims.{outer} - 1u) if not whole
        //!let row = ({row} + part * dims.{outer}) if stacked
        let {side}_start_{q} = {row} * dims.z;
      //!else
        //!let column = {first} + {vector} * 8u
        //!let column = min({column}, dims.{outer} - 8u) if {side}_vectors and not whole
        let {side}_start_{q} = {column};
      //!end
    //!end
  //!end
  //!let start = begin
  //!include load_step
  //!include store_step
        workgroupBarrier();
        for (var term = begin; term < end; term += {inner}u) {
            // Each iteration stores the vectors that it loads. If the next iteration stored them,
            // compilers would move the loads there, and no multiplication would hide their latency.
            let next = term + {inner}u;
            if (next < end) {
  //!let start = next
  //!include load_step
            }
  //!include multiply
            workgroupBarrier();
            if (next < end) {
  //!include store_step
            }
            workgroupBarrier();
        }
//!end
//!include store_sums
    }
}
