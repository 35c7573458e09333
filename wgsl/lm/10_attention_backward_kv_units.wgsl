// Computes the gradients of attention for keys and values on matrix units, in half precision.
//
//   grad_k = ds^T q / sqrt(D)
//   ds = p (grad_out v^T - delta),  p = exp(q k^T / sqrt(D) - log_sum_exp)
//   grad_v = p^T grad_out
//
// The sums run over all queries that see a key, in all query heads that share the key's head. So a
// workgroup walks over the queries of all these query heads (FlashAttention, T. Dao et al., arXiv
// 2205.14135). The gradients of a workgroup have to fit into registers, so several workgroups may
// share a block of keys, each with a set of columns.
//
// binding 0  params       uniform     sizes, see attention_sizes.wgsl
// binding 1  heads        read        q (N, H, D), k and v (N, K, D), 8 halves an element
// binding 2  grad_out     read        (N, H, D), 8 halves an element
// binding 3  starts       read        (N), the first key that each row sees
// binding 4  gradients    read_write  see attention_units_outputs.wgsl
// binding 5  log_sum_exp  read        (N, H)
// binding 6  delta        read        (N, H)
// binding 7  tables       read        (positions, D/2) cosines and sines, 4 an element, only bound if
//   `packed` is set
// dispatch: one workgroup for `rows` keys of each head and set of columns
// limits: D, `step` and `rows` are multiples of the sizes of matrices and of 8

//!let others = 0 q next, 1 grad_out next
//!let tables = 7
//!include lm/attention_units_gradients.wgsl
//!include lm/attention_units_keys.wgsl

@group(0) @binding(6) var<storage, read> delta: array<f32>;

//!let own = k, v

// log_sum_exp (as exponents of 2), delta and first key of a step's queries, four queries per
// element.
var<workgroup> logs: array<vec4<f32>, {step / 4}>;
var<workgroup> deltas: array<vec4<f32>, {step / 4}>;
var<workgroup> firsts: array<vec4<u32>, {step / 4}>;

// `masks` is false if all queries of a step see all keys of a subgroup, as in most steps.
//!let after = first >= own_first + own_row + {subgroup_rows - 1}u && next <= params.seq
//!let masks = !({after} && firsts[{step / 4 - 1}u].w <= own_first + own_row)
//!block numbers_of_four
  //!let log = logs[part_quad + {q}u]
  //!let delta = deltas[part_quad + {q}u]
  //!let keys = vec4<u32>(row)
  //!let queries = at{q}
  //!let firsts = firsts[part_quad + {q}u]
//!end

// Loads log_sum_exp, delta and first key of the next step's queries, four queries per thread.
//!block load_numbers
            let next_first = starts[sequence + min(next, params.seq - 1u)];
            if (local_index < {step / 4}u) {
                let queries = min(next + 4u * local_index + FOUR, vec4<u32>(params.seq - 1u));
                let i = (sequence + queries) * params.heads + other_head;
                let start = sequence + queries;
                next_logs = vec4<f32>(
                    log_sum_exp[i.x], log_sum_exp[i.y], log_sum_exp[i.z], log_sum_exp[i.w]
                ) * LOG2_E;
                next_deltas = vec4<f32>(delta[i.x], delta[i.y], delta[i.z], delta[i.w]);
                next_firsts = vec4<u32>(
                    starts[start.x], starts[start.y], starts[start.z], starts[start.w]
                );
            }
//!end

//!block store_numbers
            if (local_index < {step / 4}u) {
                logs[local_index] = next_logs;
                deltas[local_index] = next_deltas;
                firsts[local_index] = next_firsts;
            }
//!end

@compute @workgroup_size({threads})
fn attention_backward_kv(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
//!include place_of_workgroup
    // The last workgroups of a dispatch that is split over two dimensions may have nothing to do.
    if (group < params.workgroups) {
//!include place_of_keys
//!include place_of_subgroup
//!include load_own
//!include part_of_row
//!for sums in grad_k, grad_v
  //!include declare_sums
//!end
        for (var member = 0u; member < group_size; member++) {
            let other_head = head * group_size + member;
            var next = own_first;
//!include declare_rows
            var next_logs = vec4<f32>();
            var next_deltas = vec4<f32>();
            var next_firsts = vec4<u32>();
//!include load_rows
//!include load_numbers
//!include store_rows
//!include store_numbers
            workgroupBarrier();
            for (var first = next; first < params.seq; first = next) {
                next = first + STEP;
//!include load_rows
//!include load_numbers
//!let own_0 = k
//!let own_1 = v
//!include make_weights
//!let skipped = 0
//!let side = 1
//!let sums = grad_v
//!include add_weighted
//!let skipped = {part_quads / 2}
//!let side = 0
//!let sums = grad_k
//!include add_weighted
                workgroupBarrier();
                // If the next step's first query sees no own key, no later query does.
                if (next_first >= own_first + ROWS) { break; }
//!include store_rows
//!include store_numbers
                workgroupBarrier();
            }
        }
//!include store_both_gradients
    }
}
