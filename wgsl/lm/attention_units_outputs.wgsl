// Stores the gradients of attention on matrix units, in one of two ways.
//
// The gradients are float32, each in a tensor in the memory of `gradients`. If `packed` is set,
// `gradients` is the gradient of the input of split_heads instead:
//
//   x[i], x[i + D/2] = q[i] cos + q[i + D/2] sin, q[i + D/2] cos - q[i] sin; the same for k; x = v
//
// in half precision, where row t of a sequence has position t. Queries, keys and values are columns
// of its rows.
//!override packed = 0
//!let inputs = {inputs}, grad_out grad_out heads 0u
//!include lm/attention_units.wgsl

//!let element = vec4<f32>
//!let element = vec4<u32> if packed
@group(0) @binding(2) var<storage, read> grad_out: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> starts: array<u32>;
@group(0) @binding(4) var<storage, read_write> gradients: array<{element}>;
//!if packed
@group(0) @binding({tables}) var<storage, read> tables: array<vec4<f32>>;
//!include lm/four_halves.wgsl
//!end

// Stores the sums `sums` of a gradient, which pass through `scores` chunk by chunk. `grads` and
// `stride` are fields of `params`: where the gradient starts, and the elements of a row. `is_turned`
// is 0 for values.
//!block store_gradient
  //!for c in 0..(width + step - 1) / step
    //!include chunk_of_sums
    //!include store_sums
    //!if packed
      //!for n in 0..chunk_width / 4
        let {sums}_quad_{chunk / 4 + n} =
            {factor} bitcast<vec4<f32>>(scores[part_row * SCORE_STRIDE + {n}u]);
      //!end
    //!else
        for (var n = local_index; n < ROWS * {chunk_width / 4}u; n += THREADS) {
            let line = n / {chunk_width / 4}u;
            if (own_first + line < params.seq) {
                let quad = {chunk / 4}u + n % {chunk_width / 4}u;
                let column = {first_quad} quad + select(0u, {gap / 4}u, quad >= {width / 8}u);
                let i = (sequence + own_first + line) * params.{stride} + head * {head_dim / 4}u;
                gradients[params.{grads} + i + column] =
                    {factor} bitcast<vec4<f32>>(scores[line * SCORE_STRIDE + n % {chunk_width / 4}u]);
            }
        }
    //!end
        workgroupBarrier();
  //!end
  //!if packed
        // A thread has all sums of its row, so it has both columns of each pair i, i + D/2.
        if (row < params.seq && lane % {row_threads}u == 0u) {
    //!for n in 0..width / 8
      //!let left = {sums}_quad_{n}
      //!let right = {sums}_quad_{width / 8 + n}
      //!if is_turned
            let {sums}_cosine_{n} = tables[{first_quad} row * {head_dim / 8}u + {n}u];
            let {sums}_sine_{n} = tables[params.sines + {first_quad} row * {head_dim / 8}u + {n}u];
            let {sums}_half_{n} = four_halves({left} * {sums}_cosine_{n} + {right} * {sums}_sine_{n});
            let {sums}_half_{width / 8 + n} =
                four_halves({right} * {sums}_cosine_{n} - {left} * {sums}_sine_{n});
      //!else
            let {sums}_half_{n} = four_halves({left});
            let {sums}_half_{width / 8 + n} = four_halves({right});
      //!end
    //!end
            let {sums}_first = params.{grads} + (sequence + row) * params.{stride} + head * VECTORS;
    //!for n in 0..width / 8
      //!let begin = {8 * n}
      //!let begin = {begin + gap} if begin >= width / 2
            gradients[{sums}_first + {first_vector} {begin / 8}u] =
                vec4<u32>({sums}_half_{2 * n}, {sums}_half_{2 * n + 1});
    //!end
        }
  //!end
//!end
