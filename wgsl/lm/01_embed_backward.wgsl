// embed_backward: computes the gradient of an embedding table by atomic additions, one element of
// grad_out per thread.
//
//   grad_table[v, d] += sum over s with tokens[s] == v of grad_out[s, d]
//
// binding 0  tokens      read        (N,)
// binding 1  grad_out    read        (N, C)
// binding 2  grad_table  read_write  (V, C), bits of f32 numbers
// binding 3  dims        uniform     N, C, V
// dispatch: one thread per element
// source: embed_backward. Training uses 01_embed_backward_grouped.wgsl, whose sums have a fixed
// order, and whose threads do not wait for each other.
//!include lm/atomic_gradient.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= dims.x * dims.y) {
        return;
    }
    let token = tokens[i / dims.y];
    if (token < dims.z) {
        add_atomically(token * dims.y + i % dims.y, grad_out[i]);
    }
}
