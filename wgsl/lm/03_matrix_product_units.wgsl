// A product of two half-precision matrices on matrix units, with float32 sums.
//
//   product = left right (+ product) (+ residual)
//
// The same products as 03_matrix_product.wgsl, for devices that multiply small matrices, one a
// subgroup (WGSL's subgroup matrices; Vulkan's VK_KHR_cooperative_matrix; tensor cores). Blocks,
// registers and padding are arranged as in NVIDIA's CUTLASS:
// - A workgroup computes a tile of the product, and each of its subgroups a block of that, in
//   subgroup matrices of sums. In steps of the inner dimension, both factors' parts go to workgroup
//   memory in their order in memory: units read a transposed factor column by column.
// - The next step's parts are loaded into registers while this step's are multiplied.
// - Lines in workgroup memory are 16 bytes longer than their contents, so that the rows of a matrix
//   lie in different banks.
// - Sums are stored by way of workgroup memory, a line of neighbours at once.
//
// binding 0  left      read        (rows, inner)
// binding 1  right     read        (inner, columns)
// binding 2  product   read_write  (rows, columns) for each part, or for each matrix of a stack
// binding 3  dims      uniform     rows, columns, inner, terms of a part or matrices of a stack
// binding 4  residual  read        (rows, columns), only if it is added
// dispatch: one workgroup for each tile of each part or matrix; of a symmetric product only for the
//   tiles on the diagonal and below it
// limits: a subgroup's block is made of whole matrices, and threads load a whole number of vectors
//   of each factor for a step; half-precision products have even columns, and nothing is added to
//   them

// The entry point, named after the operation, as kernels are timed by name.
//!override name = matrix_product
// A tile, its step along the inner dimension, the block of a subgroup, and the threads of one.
//!override rows = 64
//!override columns = 64
//!override inner = 32
//!override subgroup_rows = 32
//!override subgroup_columns = 32
//!override lanes = 32
// Vectors of 16 bytes in workgroup memory, and matrices of sums that are stored side by side.
//!override left_size = 320
//!override right_size = 320
//!override together = 2
// Is a factor (or its transpose, in memory) contiguous along the inner dimension; are its lines
// multiples of 8 halves, which are loaded at once?
//!override left_contiguous = 1
//!override left_vectors = 0
//!override right_contiguous = 1
//!override right_vectors = 0
// Are the product's lines multiples of 16 bytes, which are stored at once?
//!override aligned = 0
// Are dimensions multiples of the tile's?
//!override whole_rows = 0
//!override whole_columns = 0
//!override whole_inner = 0
// Is the product's old value added, or another matrix?
//!override accumulate = 0
//!override residual = 1
// Is the product in half precision, two numbers per word?
//!override half = 0
// Are there stacks of matrices?
//!override stacked = 0
// Is the product symmetric: a matrix times its own transpose?
//!override symmetric = 0
// Are sums long, without parts and of an even number of steps?
//!override long_sums = 0
//!include lm/matrix_units.wgsl

//!let subgroups = {(rows / subgroup_rows) * (columns / subgroup_columns)}
//!let threads = {subgroups * lanes}
//!let down = {subgroup_rows / unit_rows}
//!let across = {subgroup_columns / unit_columns}
//!let edges = {!(whole_rows && whole_columns)}
//!let addend =
//!if accumulate
  //!let addend = product
//!else
  //!let addend = residual if residual
//!end
//!let adds = {accumulate || residual}
// Matrices are loaded with their addends where a tile is inside. Elsewhere these are added late.
//!let adds_late = {aligned && edges && adds}
// Lines are loaded for two steps at once if they are whole, and eight threads load one of 128
// bytes.
//!let whole_lines = {left_contiguous && left_vectors && right_contiguous && right_vectors}
//!let whole_steps = {!edges && whole_inner && 2 * inner == 64 && threads % 64 == 0}
//!let pairs = {long_sums && whole_lines && whole_steps && !stacked}
//!let sides = left x row0 {rows} {whole_rows}, right y column0 {columns} {whole_columns}
// lines and vectors of a factor's part in workgroup memory; stride: vectors from a line to the
// next.
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

//!if !pairs
// Eight neighbours of a factor, from a line's `column` on.
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

// The line and the vector of a thread's load `q` of a side. If all loads of a thread have one place
// in their lines, the text says so: the compiler then keeps one address for all of them.
//!block load_place
  //!if threads % {side}_line_vectors == 0
    //!let line = ({side}_line + {q * threads / {side}_line_vectors}u)
    //!let vector = local_index % {{side}_line_vectors}u
  //!else
    //!let line = (local_index + {q * threads}u) / {{side}_line_vectors}u
    //!let vector = (local_index + {q * threads}u) % {{side}_line_vectors}u
  //!end
//!end

// Load both factors' parts of the step that begins at `start`.
//!block load_step
  //!for side outer first width whole in {sides}
    //!for q in 0..{side}_lines * {side}_line_vectors / threads
      //!include load_place
      //!if {side}_contiguous
        //!let column = {start} + {vector} * 8u
        //!let inside = {column} < dims.z
        //!let column = min({column}, dims.z - 8u) if {side}_vectors && !whole_inner
            {side}_{q} = load_{side}({side}_start_{q}, {column});
      //!else
        //!let row = ({start} + {line})
        //!let inside = {start} + {line} < dims.z
        //!let row = min({start} + {line}, dims.z - 1u) if !whole_inner
        //!let row = ({row} + part * dims.z) if stacked
            {side}_{q} = load_{side}({row} * dims.{outer}, {side}_start_{q});
      //!end
      //!if !whole_inner
            {side}_{q} = select(vec4<u32>(), {side}_{q}, {inside});
        //!if {side}_contiguous && !{side}_vectors
            // If the factor's row or column ends inside this vector, the halves beyond it are zero.
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

// Store the loaded vectors into workgroup memory.
//!block store_step
  //!for side in left, right
    //!for q in 0..{side}_lines * {side}_line_vectors / threads
      //!include load_place
            {side}_tile[{line} * {{side}_stride}u + {vector}] = {side}_{q};
    //!end
  //!end
//!end

// Load both factors' parts of two steps at once. A line of one step is half of a cache line, and
// looking for it takes as long as for a whole one. So eight threads load a line of both steps. The
// threads of its first half and of its second half change places at every other load: of two
// loads a thread has the first step's part of one line and the second step's part of another, and
// all threads store for either step.
//!block load_pairs
  //!for side in left, right
    //!for q in 0..2 * {side}_lines * {side}_line_vectors / threads
            {side}_{q} = {side}[{side}_start_{q} + {start} / 8u];
    //!end
  //!end
//!end

// Store the loaded vectors of the first or the second of two steps.
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

// Multiply the factors' parts that are in workgroup memory.
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
                // To and fro along the rows: each multiplication shares a matrix with the one
                // before.
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
    // The workgroup's tile. Workgroups that follow one another go down a band of 8 rows of tiles,
    // so that they share loads.
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
    // Row r of tiles begins at place r (r + 1) / 2. The root may be rounded up or down.
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
    // The first row and column, in the tile, of the block that this subgroup computes. The remainder
    // lets the compiler prove that the block lies inside the tile.
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
        // A thread loads from two lines, and eight threads store into two, which are so far from
        // one another that their vectors lie in different banks.
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
            // The condition always holds: without a branch here, compilers mix the steps, which
            // then take 1 to 2 % longer.
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
        // The line of a thread's first load. A quarter of a subgroup stores at once. If it stores
        // into several lines, these are so far from one another that their vectors lie in different
        // banks.
  //!for side in left, right
    //!let vectors = {{side}_line_vectors}
    //!let line = local_index / {vectors}u
    //!if vectors <= 4 && threads % (vectors * 8) == 0
      //!let turned = {line} % {8 / vectors}u * {vectors}u + {line} / {8 / vectors}u % {vectors}u
      //!let line = {line} / 8u * 8u + {turned}
    //!end
        let {side}_line = {line};
  //!end
        // Beyond the product's last row or column, elements inside are loaded: their sums are never
        // stored.
  //!for side outer first width whole in {sides}
    //!for q in 0..{side}_lines * {side}_line_vectors / threads
      //!include load_place
        var {side}_{q} = vec4<u32>();
      //!if {side}_contiguous
        //!let row = ({first} + {line})
        //!let row = min({row}, dims.{outer} - 1u) if !whole
        //!let row = ({row} + part * dims.{outer}) if stacked
        let {side}_start_{q} = {row} * dims.z;
      //!else
        //!let column = {first} + {vector} * 8u
        //!let column = min({column}, dims.{outer} - 8u) if {side}_vectors && !whole
        let {side}_start_{q} = {column};
      //!end
    //!end
  //!end
  //!let start = begin
  //!include load_step
  //!include store_step
        workgroupBarrier();
        for (var term = begin; term < end; term += {inner}u) {
            // A round stores what it loads: compilers move loads to the round that uses them, and
            // there nothing would hide how long they take.
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
