// Computes the gradients of attention for keys and values on matrix units, from stored weights.
//
//   grad_k = ds^T q / sqrt(D)
//   grad_v = p^T grad_out
//
// 10_attention_backward_q_units.wgsl stores the weights p and ds, so this kernel does not compute
// them again. Each workgroup owns `rows` keys, and walks in steps over the queries that see these
// keys. The weights of the next step, and the next step's rows of q and grad_out, are loaded into
// registers while the weights and rows of this step are multiplied.
//
// binding 0  params     uniform     sizes, see attention_sizes.wgsl
// binding 1  heads      read        q (N, H, D), 8 halves an element
// binding 2  grad_out   read        (N, H, D), 8 halves an element
// binding 3  starts     read        (N), the first key that each row sees
// binding 4  gradients  read_write  see attention_units_outputs.wgsl
// binding 5  weights    read        (B, H, T / step, 2, step / 8, T), 8 halves an element: for each
//   step of keys p and then ds; for each vector of 8 keys of the step one element per query
// binding 6  tables     read        (positions, D/2) cosines and sines, 4 an element, only bound if
//   `packed` is set
// dispatch: one workgroup for `rows` keys of each head and set of columns
// limits: D, `step` and `rows` are multiples of the sizes of matrices and of 8

//!let inputs = q heads heads params.queries
//!let arrays = scores vec4<u32> 4
//!let others = 0 q next, 1 grad_out next
//!let order = col_major
//!let tables = 6
//!include lm/attention_units_outputs.wgsl
//!include lm/attention_units_keys.wgsl

// Vectors of 8 halves in the weights of a step of queries, and the number of them that a thread
// loads.
//!let weight_vectors = {rows * step / 4}
//!let weight_loads = {(weight_vectors + threads - 1) / threads}

@group(0) @binding(5) var<storage, read> weights: array<vec4<u32>>;

// `lines` has a line for each query of a step: p of all own keys, then ds of all own keys. LINE is
// the number of vectors from a line to the next. Lines are padded by one vector of 16 bytes, so
// that they start in different banks.
const LINE: u32 = {rows / 4 + 1}u;
var<workgroup> lines: array<vec4<u32>, {step * (rows / 4 + 1)}>;

//!block place_of_weights
  //!let weights = &lines, {column}u * LINE + {skipped}u + {row} / 8u, LINE
//!end

// Sets, for load `j` of a thread, the query in the step, the step of keys among the own keys, and
// the vector among the step's vectors of weights (first p, then ds).
//!block place_of_load
                let n = local_index + {j * threads}u;
                let query = n % STEP;
                let vector = n / STEP % {step / 4}u;
                let key_step = n / {step * step / 4}u;
//!end

//!block load_weights
  //!for j in 0..weight_loads
            {
    //!include place_of_load
                let line = (stored + key_step) * {step / 4}u + vector;
                next_weights_{j} = select(
                    vec4<u32>(),
                    weights[line * params.seq + min(next + query, params.seq - 1u)],
                    next + query < params.seq
                );
            }
  //!end
//!end

//!block store_weights
  //!for j in 0..weight_loads
            {
    //!include place_of_load
                let place = query * LINE + vector / {step / 8}u * {rows / 8}u
                    + key_step * {step / 8}u + vector % {step / 8}u;
    //!if weight_vectors % threads
                if (n < {weight_vectors}u) { lines[place] = next_weights_{j}; }
    //!else
                lines[place] = next_weights_{j};
    //!end
            }
  //!end
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
//!include part_of_row
        let key_steps = (params.seq + STEP - 1u) / STEP;
//!for sums in grad_k, grad_v
  //!include declare_sums
//!end
        for (var member = 0u; member < group_size; member++) {
            let other_head = head * group_size + member;
            let stored = (sequence / params.seq * params.heads + other_head) * key_steps
                + own_first / STEP;
            var next = own_first;
//!include declare_rows
//!for j in 0..weight_loads
            var next_weights_{j} = vec4<u32>();
//!end
//!include load_rows
//!include load_weights
//!include store_rows
//!include store_weights
            workgroupBarrier();
            for (var first = next; first < params.seq; first = next) {
                next = first + STEP;
                let next_first = starts[sequence + min(next, params.seq - 1u)];
//!include load_rows
//!include load_weights
//!let skipped = 0
//!let side = 1
//!let sums = grad_v
//!include add_weighted
//!let skipped = {rows / 8}
//!let side = 0
//!let sums = grad_k
//!include add_weighted
                workgroupBarrier();
                // If the next step's first query sees no own key, no later query does.
                if (next_first >= own_first + ROWS) { break; }
//!include store_rows
//!include store_weights
                workgroupBarrier();
            }
        }
//!include store_both_gradients
    }
}
