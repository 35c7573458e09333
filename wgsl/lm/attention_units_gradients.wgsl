// Blocks of text that the kernels for the gradients of attention on matrix units share.
//
// Probabilities are computed again from scores and their log_sum_exp (FlashAttention, T. Dao et
// al., arXiv 2205.14135). For a softmax ds = p (dp - delta), where delta, the sum of p dp over a
// row, equals grad_out . out.
//!let inputs = q heads heads params.queries, k heads kv_heads params.keys, v heads kv_heads params.values
//!let arrays = scores vec4<u32> 4
//!let order = row_major
//!include lm/attention_units_outputs.wgsl

@group(0) @binding(5) var<storage, read> log_sum_exp: array<f32>;

// Returns the probabilities p of four scores. `logs` are log_sum_exp as exponents of 2.
fn probabilities(scores: vec4<f32>, logs: vec4<f32>) -> vec4<f32> {
    return exp2(fma(scores, vec4<f32>(params.log2_scale), -logs));
}

// Returns whether four queries see four keys. `firsts` are the first keys that the queries see.
fn are_seen(keys: vec4<u32>, queries: vec4<u32>, firsts: vec4<u32>) -> vec4<bool> {
    return (keys <= queries) & (keys >= firsts) & (queries < vec4<u32>(params.seq));
}

// Computes the weights p and ds of a step. The products of own rows `own_0` and the rows of side 0
// are the scores. The products of own rows `own_1` and the rows of side 1 are dp, the `slope`
// variables. For vector `q` of a thread's scores, the block `numbers_of_four` sets `log`, `delta`,
// and the `keys`, `queries` and `firsts` that decide whether a query sees a key. `masks` is true
// if some query does not see some key.
//
// The array `scores` holds scores, slopes and weights one after the other, so that two workgroups
// fit on a processor. Threads read their scores into variables before the slopes overwrite them,
// and read their slopes before the weights overwrite them. A thread stores p first, then ds.
//!block make_weights
  //!let own = {own_0}
  //!let side = 0
  //!include multiply_rows
            workgroupBarrier();
  //!for q in 0..part_quads
            let s{q} = bitcast<vec4<f32>>(scores[part_row * SCORE_STRIDE + part_quad + {q}u]);
  //!end
            workgroupBarrier();
  //!let own = {own_1}
  //!let side = 1
  //!include multiply_rows
            workgroupBarrier();
  //!for q in 0..part_quads
            let slope{q} = bitcast<vec4<f32>>(scores[part_row * SCORE_STRIDE + part_quad + {q}u]);
    //!include numbers_of_four
            var p{q} = probabilities(s{q}, {log});
  //!end
            if ({masks}) {
  //!for q in 0..part_quads
                let at{q} = first + 4u * (part_quad + {q}u) + FOUR;
    //!include numbers_of_four
                p{q} = select(vec4<f32>(), p{q}, are_seen({keys}, {queries}, {firsts}));
  //!end
            }
  //!for q in 0..part_quads
    //!include numbers_of_four
            let ds{q} = p{q} * (slope{q} - {delta});
  //!end
  //!for n in 0..part_quads / 2
            let p_halves{n} = packed(p{2 * n}, p{2 * n + 1});
            let ds_halves{n} = halves_of(ds{2 * n}, ds{2 * n + 1});
            scores[part_row * SCORE_STRIDE + part_quad + {n}u] = p_halves{n};
            scores[part_row * SCORE_STRIDE + part_quad + {part_quads / 2 + n}u] = ds_halves{n};
  //!end
            workgroupBarrier();
//!end

// `skipped` is the number of a thread's vectors before the weights: 0 for p, and half of the
// thread's vectors for ds.
//!block place_of_weights
  //!let part = {column / (4 * part_quads)}
  //!let vector = {part * part_quads + skipped + column % (4 * part_quads) / 8}
  //!let weights = &scores, {row} * SCORE_STRIDE + {vector}u, SCORE_STRIDE
//!end
