// embed_backward_rows: computes the gradient of an embedding table by atomic additions, one row of
// grad_out per workgroup.
//
//   grad_table[v, d] += sum over s with tokens[s] == v of grad_out[s, d]
//
// binding 0  tokens      read        (N,)
// binding 1  grad_out    read        (N, C)
// binding 2  grad_table  read_write  (V, C), bits of f32 numbers
// binding 3  dims        uniform     N, C, V
// dispatch: one workgroup per token
//!include lm/atomic_gradient.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let s = flat_group(workgroup, workgroups);
    if (s >= dims.x) {
        return;
    }
    let token = tokens[s];
    if (token >= dims.z) {
        return;
    }
    for (var column = local_index; column < dims.y; column += WORKGROUP_SIZE) {
        add_atomically(token * dims.y + column, grad_out[s * dims.y + column]);
    }
}
