// packed_gated: computes the activation of a feed-forward network with a gate. A row of the input
// holds a row of gate, then a row of up.
//
//   out = activated(gate) * up
//
// binding 0  params  uniform     sizes
// binding 1  x       read        (N, products)
// binding 2  out     read_write  (N, F)
// dispatch: one thread per element of out
//!include lm/elements.wgsl
//!include lm/activations.wgsl
//!include lm/inner_params.wgsl

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn packed_gated(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < params.rows * params.width) {
        let gate_ix = i / params.width * params.row_width + i % params.width;
        out[i] = activated(x[gate_ix]) * x[gate_ix + params.up_start];
    }
}
