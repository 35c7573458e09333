// Declarations and blocks of text that the kernels for attention on matrix units share: sizes,
// inputs, and the walk over rows.
//
// A workgroup owns `rows` rows: queries, or keys in the gradients of keys and values. Its subgroups
// hold the own rows as matrices. They walk over the other rows in steps of `step` rows: keys and
// values, or queries and gradients of the output. Scores, the products of own rows and the rows of
// a step, are written to workgroup memory. The threads turn scores into half-precision weights. The
// products of the weights and the rows of the step are added to the sums. The rows of the next step
// are loaded into registers while the rows of this step are multiplied. Rows beyond the sequence
// are zeros. Sums have a fixed order.
//
// Queries, keys and values are in one binding, `heads`, because WebGPU's default limit is 8 storage
// buffers.
//
// A file that includes this one sets `inputs` (name, binding, heads and first element of each
// input), `arrays` (name, element and numbers in an element of each array of scores and weights) and
// `others` (side, name and first row of each input whose rows a step loads). The side, 0 or 1, is
// the half of `tiles` that holds the rows.

// Own rows of a workgroup, own rows of a subgroup, other rows of a step, threads of a subgroup, and
// columns of a head.
//!override rows = 128
//!override subgroup_rows = 32
//!override step = 16
//!override lanes = 32
//!override head_dim = 64
// Number of workgroups that share a block of keys in the gradients of keys and values. Each of them
// computes a set of columns: as many of the first half of a head as of the second half, at the same
// places.
//!override column_sets = 1
//!include lm/matrix_units.wgsl

//!let subgroups = {rows / subgroup_rows}
//!let threads = {subgroups * lanes}
// down: matrices over the own rows of a subgroup. depth: matrices over the columns of a head.
//!let down = {subgroup_rows / unit_rows}
//!let depth = {head_dim / unit_inner}
// Vectors of 8 halves in the rows of a step of one input, and the number of them that a thread
// loads.
//!let step_vectors = {step * head_dim / 8}
//!let loads = {(step_vectors + threads - 1) / threads}

const VECTORS: u32 = {head_dim / 8}u; // vectors of 8 halves in a row of a head
// Strides from a row to the next in workgroup memory, in vectors of 16 bytes. Rows are padded by
// one vector, so that they start in different banks.
const STRIDE: u32 = {head_dim / 8 + 1}u;
const SCORE_STRIDE: u32 = {step / 4 + 1}u;
const WEIGHT_STRIDE: u32 = {step / 8 + 1}u;
const ROWS: u32 = {rows}u;
const STEP: u32 = {step}u;
const THREADS: u32 = {threads}u;
const FOUR: vec4<u32> = vec4<u32>(0u, 1u, 2u, 3u);
const LOG2_E: f32 = 1.4426950408889634;

//!include lm/attention_sizes.wgsl

@group(0) @binding(1) var<storage, read> heads: array<vec4<u32>>;
//!for name binding heads first in {inputs}

// Loads eight halves of a row of a head, or zeros beyond the sequence.
fn load_{name}(sequence: u32, head: u32, row: u32, vector: u32) -> vec4<u32> {
    if (row >= params.seq) { return vec4<u32>(); }
    return {binding}[{first} + ((sequence + row) * params.{heads} + head) * VECTORS + vector];
}
//!end

var<workgroup> tiles: array<vec4<u32>, {2 * step * (head_dim / 8 + 1)}>;
//!for name element numbers in {arrays}
var<workgroup> {name}: array<{element}, {rows * (step / numbers + 1)}>;
//!end

//!include lm/two_halves.wgsl

// Returns eight numbers rounded to half precision, two per word.
fn halves_of(first: vec4<f32>, second: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
        two_halves(first.xy), two_halves(first.zw), two_halves(second.xy), two_halves(second.zw)
    );
}

// Like `halves_of`, but without a check for overflow: weights are at most 2^14.
fn packed(first: vec4<f32>, second: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
        pack2x16float(first.xy),
        pack2x16float(first.zw),
        pack2x16float(second.xy),
        pack2x16float(second.zw)
    );
}

// Sets the number of the workgroup, the blocks of own rows in a sequence, the workgroups with the
// same block of rows (`columns`), and the query heads per key/value head.
//!block place_of_workgroup
    let group = workgroup.y * workgroups.x + workgroup.x;
    let blocks = (params.seq + ROWS - 1u) / ROWS;
    let columns = params.workgroups / blocks;
    let group_size = params.heads / params.kv_heads;
//!end

// Sets the head, the first row of the sequence, and the first own row of a workgroup that owns
// queries. The blocks that see most keys come first.
//!block place_of_queries
        let head = group % params.heads;
        let other_head = head / group_size;
        let sequence = group % columns / params.heads * params.seq;
        let own_first = (blocks - 1u - group / columns) * ROWS;
//!end

// Sets the first column of the gradients, the head, the first row of the sequence, and the first
// own row of a workgroup that owns keys. The blocks that most queries see come first.
//!block place_of_keys
        let column0 = group % {column_sets}u * {width / 2}u;
        let head = group % columns / {column_sets}u % params.kv_heads;
        let sequence = group % columns / {column_sets}u / params.kv_heads * params.seq;
        let own_first = group / columns * ROWS;
//!end

//!block place_of_subgroup
        // The remainder lets the compiler prove that the subgroup's rows are inside the block.
        let own_subgroup = subgroup % {subgroups}u;
        let own_row = own_subgroup * {subgroup_rows}u;
        // Products start from `zero`, because some drivers do not set a variable that is declared
        // in a loop to zero again in each iteration.
        var zero: Sum;
//!end

// Every query of a subgroup sees all keys from the first key that the last query sees up to
// `end_of_common` - 1. A step inside this range needs no masks.
//!block keys_of_all_rows
        let end_of_common = own_first + own_row + 1u;
        let last_row = min(own_first + own_row + {subgroup_rows}u, params.seq) - 1u;
//!end

// Number of threads that share a row of scores, and of vectors of four scores that each of them
// has.
//!let row_threads = {lanes / subgroup_rows}
//!let part_quads = {step / 4 / row_threads}

// Sets the row of scores of a thread (part_row), its first vector of four scores in the row
// (part_quad), and the row of the sequence (row).
//!block part_of_row
        let part_row = own_row + lane / {row_threads}u;
        let part_quad = lane % {row_threads}u * {part_quads}u;
        let row = own_first + part_row;
//!end

// Loads the own rows of the inputs `own` as matrices. The rows pass through `scores`, which has
// room for 2 * step columns of halves at a time.
//!block load_own
  //!for name in {own}
    //!for c in 0..(head_dim + 2 * step - 1) / (2 * step)
      //!let chunk = {c * 2 * step}
      //!let vectors = {step / 4}
      //!let vectors = {(head_dim - chunk) / 8} if chunk + 2 * step > head_dim
        for (var n = local_index; n < ROWS * {vectors}u; n += THREADS) {
            let line = n / {vectors}u;
            let vector = n % {vectors}u;
            scores[line * SCORE_STRIDE + vector] =
                load_{name}(sequence, head, own_first + line, {chunk / 8}u + vector);
        }
        workgroupBarrier();
      //!for d in 0..vectors * 8 / unit_inner
        //!for i in 0..down
          //!let matrix = {name}_{i}_{chunk / unit_inner + d}
          //!let row = (own_row + {i * unit_rows}u) * SCORE_STRIDE
          //!let place = {row} + {d * unit_inner / 8}u, SCORE_STRIDE
        let {matrix} = subgroupMatrixLoad<Left, row_major>(&scores, {place});
        //!end
      //!end
        workgroupBarrier();
    //!end
  //!end
//!end

// Declares the matrices of sums `sums`, which have `width` columns.
//!block declare_sums
  //!for i in 0..down
    //!for j in 0..width / unit_columns
        var {sums}_{i}_{j}: Sum;
    //!end
  //!end
//!end

// Declares the variables for a thread's vectors of the next step's rows.
//!block declare_rows
  //!for side name begin in {others}
    //!for j in 0..loads
        var next_{side}_{j} = vec4<u32>();
    //!end
  //!end
//!end

// Loads a thread's vectors of the rows of a step.
//!block load_rows
  //!for side name begin in {others}
    //!for j in 0..loads
      //!let n = (local_index + {j * threads}u)
      //!let place = {begin} + {n} / VECTORS, {n} % VECTORS
            next_{side}_{j} = load_{name}(sequence, other_head, {place});
    //!end
  //!end
//!end

// Stores the loaded vectors in `tiles`.
//!block store_rows
  //!for side name begin in {others}
    //!for j in 0..loads
      //!let n = (local_index + {j * threads}u)
      //!let place = ({side * step}u + {n} / VECTORS) * STRIDE + {n} % VECTORS
      //!if step_vectors % threads
            if ({n} < {step_vectors}u) { tiles[{place}] = next_{side}_{j}; }
      //!else
            { tiles[{place}] = next_{side}_{j}; }
      //!end
    //!end
  //!end
//!end

// Stores the products of the own rows of input `own` and the step's rows of side `side` in
// `scores`.
//!block multiply_rows
  //!for j in 0..step / unit_columns
            {
    //!for d in 0..depth
      //!let place = {side * step + j * unit_columns}u * STRIDE + {d * unit_inner / 8}u
                let r{d} = subgroupMatrixLoad<Right, col_major>(&tiles, {place}, STRIDE);
      //!for i in 0..down
        //!if d
                block{i} = subgroupMatrixMultiplyAccumulate({own}_{i}_{d}, r{d}, block{i});
        //!else
                var block{i} = subgroupMatrixMultiplyAccumulate({own}_{i}_{d}, r{d}, zero);
        //!end
      //!end
    //!end
    //!for i in 0..down
      //!let place = (own_row + {i * unit_rows}u) * SCORE_STRIDE + {j * unit_columns / 4}u
                subgroupMatrixStore<row_major>(&scores, {place}, block{i}, SCORE_STRIDE);
    //!end
            }
  //!end
//!end

// Adds the products of the weights and `width` columns of the step's rows of side `side` to `sums`.
// The block `place_of_weights` sets `weights`, the array, index and stride of the matrix of weights
// that starts at `row` and `column`. `order` is the order of its elements, row_major or col_major.
// `first_vector` is empty, or adds the first vector of the workgroup's columns. Columns of a set
// in the second half of a head come after `gap` columns that other sets have.
//!block add_weighted
  //!for t in 0..step / unit_inner
    //!let column = {t * unit_inner}
            {
    //!for i in 0..down
      //!let row = (own_row + {i * unit_rows}u)
      //!include place_of_weights
                let w{i} = subgroupMatrixLoad<Left, {order}>({weights});
    //!end
    //!for j in 0..width / unit_columns
      //!let begin = {j * unit_columns}
      //!let begin = {begin + gap} if begin >= width / 2
      //!let place = {side * step + column}u * STRIDE + {first_vector} {begin / 8}u
                let r{j} = subgroupMatrixLoad<Right, row_major>(&tiles, {place}, STRIDE);
      //!for i in 0..down
        //!let sum = {sums}_{i}_{j}
                {sum} = subgroupMatrixMultiplyAccumulate(w{i}, r{j}, {sum});
      //!end
    //!end
            }
  //!end
//!end

// Sets the first column (chunk) and the width (chunk_width) of chunk `c` of the sums. Sums pass
// through `scores` in chunks of at most `step` columns.
//!block chunk_of_sums
  //!let chunk = {c * step}
  //!let chunk_width = {step}
  //!let chunk_width = {width - chunk} if chunk + step > width
//!end

// Stores a chunk of the sums in `scores`.
//!block store_sums
  //!for i in 0..down
    //!for j in 0..chunk_width / unit_columns
      //!let place = (own_row + {i * unit_rows}u) * SCORE_STRIDE + {j * unit_columns / 4}u
      //!let sum = {sums}_{i}_{chunk / unit_columns + j}
            subgroupMatrixStore<row_major>(&scores, {place}, {sum}, SCORE_STRIDE);
    //!end
  //!end
            workgroupBarrier();
//!end

// Loads a chunk of the sums from `scores`.
//!block load_sums
  //!for i in 0..down
    //!for j in 0..chunk_width / unit_columns
      //!let place = (own_row + {i * unit_rows}u) * SCORE_STRIDE + {j * unit_columns / 4}u
      //!let sum = {sums}_{i}_{chunk / unit_columns + j}
            {sum} = subgroupMatrixLoad<Sum, row_major>(&scores, {place}, SCORE_STRIDE);
    //!end
  //!end
            workgroupBarrier();
//!end
