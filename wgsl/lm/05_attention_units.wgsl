// Computes causal attention with grouped key/value heads on matrix units, in half precision.
//
//   out = softmax(q k^T / sqrt(D)) v, over the keys from a row's start to the row itself
//   log_sum_exp = log of the sum of exp(q k^T / sqrt(D)) over these keys
//
// As in FlashAttention (T. Dao et al., arXiv 2205.14135), only the scores of one step of keys are
// stored at a time. The kernel keeps a running maximum of the scores of each row, and running sums,
// in float32. A weight is exp(score) divided by exp(maximum). Sums in subgroup matrices can't be
// scaled row by row. So the maximum is only replaced when the exponential of a score is more than
// 2^14 times the exponential of the maximum. The sums then pass through workgroup memory, where
// they are scaled (as in FlashAttention-4). So weights are at most 2^14, below the largest
// half-precision number, 65504. If a weight is NaN, the sum of the weights of its row is NaN, too.
//
// binding 0  params       uniform     sizes, see attention_sizes.wgsl
// binding 1  heads        read        q (N, H, D), k and v (N, K, D), 8 halves an element
// binding 2  out          read_write  (N, H, D), 8 halves an element
// binding 3  log_sum_exp  read_write  (N, H)
// binding 4  starts       read        (N), the first key that each row sees
// dispatch: one workgroup for `rows` queries of each head
// limits: D, `step` and `rows` are multiples of the sizes of matrices and of 8

//!let inputs = q heads heads params.queries, k heads kv_heads params.keys, v heads kv_heads params.values
//!let arrays = scores vec4<u32> 4, weights vec4<u32> 8
//!let others = 0 k next, 1 v first
//!let order = row_major
//!include lm/attention_units.wgsl

// The maximum of a row, as an exponent of 2, starts at `lowest`. The exponents of masked scores
// are far below `lowest`, and the exponents of all other scores are above it.
//!let lowest = -1.0e30
//!let masked = -3.0e38
//!let own = q
//!let sums = out
//!let width = {head_dim}
//!let chunks = {(width + step - 1) / step}
//!let gap = 0
//!let first_vector =

@group(0) @binding(2) var<storage, read_write> out: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(4) var<storage, read> starts: array<u32>;
var<workgroup> grown: atomic<u32>; // 1 + first key of the last step that replaced a maximum

//!block place_of_weights
  //!let weights = &weights, {row} * WEIGHT_STRIDE + {column / 8}u, WEIGHT_STRIDE
//!end

@compute @workgroup_size({threads})
fn attention(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
//!include place_of_workgroup
    // The last workgroups of a dispatch that is split over two dimensions may have nothing to do.
    if (group < params.workgroups) {
//!include place_of_queries
//!include place_of_subgroup
//!include load_own
//!include part_of_row
        let place = sequence + min(row, params.seq - 1u);
        // The maximum of the row's scores, as an exponent of 2.
        var largest = {lowest};
        var sum = 0.0;
        atomicStore(&grown, 0u);
        // A row may see no key of the first steps. Its weights in these steps are 0.
        let begin = starts[sequence + own_first] / STEP * STEP;
        let own_start = vec4<u32>(starts[place]);
//!include keys_of_all_rows
        let last_start = starts[sequence + last_row];
//!include declare_sums
        var next = begin;
//!include declare_rows
//!let others = 0 k next
//!include load_rows
//!include store_rows
//!let others = 0 k next, 1 v first
//!let order = row_major
        workgroupBarrier();
        for (var first = next; first < min(own_first + ROWS, params.seq); first = next) {
            next = first + STEP;
//!include load_rows
//!let side = 0
//!include multiply_rows
            workgroupBarrier();
//!for c in 0..part_quads
            var s{c} = bitcast<vec4<f32>>(scores[part_row * SCORE_STRIDE + part_quad + {c}u]);
//!end
            if (next > end_of_common || first < last_start) {
//!for c in 0..part_quads
                let keys{c} = first + 4u * (part_quad + {c}u) + FOUR;
  //!let seen = (keys{c} <= vec4<u32>(row)) & (keys{c} >= own_start)
                s{c} = select(vec4<f32>({masked}), s{c}, {seen});
//!end
            }
            var four = s0;
//!for c in 1..part_quads
            four = max(four, s{c});
//!end
            var top = max(max(four.x, four.y), max(four.z, four.w));
//!if row_threads > 1
            top = max(top, subgroupShuffleXor(top, 1u));
//!end
//!if row_threads > 2
            top = max(top, subgroupShuffleXor(top, 2u));
//!end
            var factor = 1.0;
            let exponent = params.log2_scale * top;
            if (exponent - largest > 14.0) {
                factor = exp2(largest - exponent);
                largest = exponent;
                atomicStore(&grown, first + 1u);
            }
            // A rounding error of `largest` multiplies all weights of the row and their sum by one
            // factor, which cancels.
            var total = vec4<f32>();
//!for c in 0..part_quads
            let p{c} = exp2(fma(s{c}, vec4<f32>(params.log2_scale), vec4<f32>(-largest)));
            total += p{c};
  //!if c % 2
            weights[part_row * WEIGHT_STRIDE + part_quad / 2u + {c / 2}u] = packed(p{c - 1}, p{c});
  //!end
//!end
            // All subgroups have read the keys of this step and the values of the step before. The
            // keys of the next step and the values of this step, whose loads started at the
            // beginning of this step, replace them.
//!include store_rows
            sum = fma(sum, factor, (total.x + total.y) + (total.z + total.w));
            // Scale the sums if this step replaced a maximum. The first step has no sums yet.
            // workgroupUniformLoad is also a barrier, after which all weights are stored.
            if (workgroupUniformLoad(&grown) == first + 1u && first > begin) {
//!for c in 0..chunks
  //!include chunk_of_sums
  //!include store_sums
                for (var c = lane % {row_threads}u; c < {chunk_width / 4}u; c += {row_threads}u) {
                    let i = part_row * SCORE_STRIDE + c;
                    scores[i] = bitcast<vec4<u32>>(bitcast<vec4<f32>>(scores[i]) * factor);
                }
                workgroupBarrier();
  //!include load_sums
//!end
            }
//!let side = 1
//!include add_weighted
        }
//!if row_threads > 1
        sum += subgroupShuffleXor(sum, 1u);
//!end
//!if row_threads > 2
        sum += subgroupShuffleXor(sum, 2u);
//!end
        let number = place * params.heads + head;
        if (row < params.seq && lane % {row_threads}u == 0u) {
            log_sum_exp[number] = (largest + log2(sum)) / LOG2_E;
        }
//!for c in 0..chunks
  //!include chunk_of_sums
  //!include store_sums
        for (var c = lane % {row_threads}u; c < {chunk_width / 8}u && row < params.seq; c += {row_threads}u) {
            let i = part_row * SCORE_STRIDE + 2u * c;
            out[number * VECTORS + {chunk / 8}u + c] =
                halves_of(bitcast<vec4<f32>>(scores[i]) / sum, bitcast<vec4<f32>>(scores[i + 1u]) / sum);
        }
        workgroupBarrier();
//!end
    }
}
