// Computes the gradient of attention for queries on matrix units, in half precision.
//
//   grad_q = ds k / sqrt(D)
//   ds = p (grad_out v^T - delta),  p = exp(q k^T / sqrt(D) - log_sum_exp)
//   delta = the sum of out * grad_out over a head of a row
//
// Each workgroup walks over the keys that its queries see (FlashAttention, T. Dao et al., arXiv
// 2205.14135), and sums up the gradients in float32.
//
// binding 0  params       uniform     sizes, see attention_sizes.wgsl
// binding 1  heads        read        q (N, H, D), k and v (N, K, D), 8 halves an element
// binding 2  grad_out     read        (N, H, D), 8 halves an element
// binding 3  starts       read        (N), the first key that each row sees
// binding 4  gradients    read_write  see attention_units_outputs.wgsl
// binding 5  log_sum_exp  read        (N, H)
// binding 6  out          read        (N, H, D), 8 halves an element
// binding 7  kept         read_write  delta (N, H), or if `stores` is set p and ds as
//   10_attention_backward_kv_stored_units.wgsl reads them
// binding 8  tables       read        (positions, D/2) cosines and sines, 4 an element, only bound if
//   `packed` is set
// dispatch: one workgroup for `rows` queries of each head
// limits: D, `step` and `rows` are multiples of the sizes of matrices and of 8

// 1 if the kernel stores p and ds for 10_attention_backward_kv_stored_units.wgsl.
//!override stores = 0
//!let others = 0 k next, 1 v next
//!let tables = 8
//!include lm/attention_units_gradients.wgsl

//!let kept = f32
//!let kept = vec4<u32> if stores
@group(0) @binding(6) var<storage, read> out: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read_write> kept: array<{kept}>;

//!let own = q, grad_out
//!let sums = grad_q
//!let width = {head_dim}
//!let gap = 0
//!let first_vector =
//!let first_quad =
//!let grads = grad_queries
//!let stride = query_stride
//!let is_turned = 1
//!let factor = params.scale *

//!let masks = next > end_of_common || first < last_start
//!block numbers_of_four
  //!let log = own_log
  //!let delta = own_delta
  //!let keys = at{q}
  //!let queries = vec4<u32>(row)
  //!let firsts = own_start
//!end

@compute @workgroup_size({threads})
fn attention_backward_q(
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
//!include part_of_row
        let number = (sequence + min(row, params.seq - 1u)) * params.heads + head;
        let own_log = vec4<f32>(log_sum_exp[number] * LOG2_E);
        let own_start = vec4<u32>(starts[sequence + min(row, params.seq - 1u)]);
//!for n in 0..head_dim / 8
        let out_{n} = out[number * VECTORS + {n}u];
        let gradient_{n} = grad_out[number * VECTORS + {n}u];
//!end
        var own_delta = 0.0;
//!for n in 0..head_dim / 8
        for (var word = 0u; word < 4u; word++) {
            own_delta += dot(unpack2x16float(out_{n}[word]), unpack2x16float(gradient_{n}[word]));
        }
//!end
//!if not stores
        if (row < params.seq && lane % {row_threads}u == 0u) { kept[number] = own_delta; }
//!end
//!include load_own
//!include keys_of_all_rows
        let last_start = starts[sequence + last_row];
        let first_seen = starts[sequence + own_first];
//!if stores
        // Begin with a block of ROWS keys, because the kernel that reads the weights reads whole
        // blocks of keys. The weights of keys that a query does not see are stored as zeros.
        let begin = first_seen / ROWS * ROWS;
        let key_steps = (params.seq + STEP - 1u) / STEP;
        let stored = (sequence / params.seq * params.heads + head) * key_steps;
//!else
        let begin = first_seen / STEP * STEP;
//!end
//!include declare_sums
        var next = begin;
//!include declare_rows
//!include load_rows
//!include store_rows
        workgroupBarrier();
        for (var first = next; first < min(own_first + ROWS, params.seq); first = next) {
            next = first + STEP;
//!include load_rows
//!let own_0 = q
//!let own_1 = grad_out
//!include make_weights
//!if stores
            if (row < params.seq) {
                let vector = (stored + first / STEP) * {step / 4}u + part_quad / 2u;
  //!for n in 0..part_quads / 2
                kept[(vector + {n}u) * params.seq + row] = p_halves{n};
                kept[(vector + {step / 8 + n}u) * params.seq + row] = ds_halves{n};
  //!end
            }
//!end
//!let skipped = {part_quads / 2}
//!let side = 0
//!include add_weighted
            workgroupBarrier();
//!include store_rows
            workgroupBarrier();
        }
//!include store_gradient
    }
}
