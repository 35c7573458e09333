// add_bias: adds a row to all rows of a matrix.
//
//   x[n, o] += bias[o]
//
// binding 0  x     read_write  (N, O)
// binding 1  bias  read        (O,)
// binding 2  dims  uniform     elements, O
// dispatch: one thread per element
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn add_bias(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        x[i] += bias[i % dims.y];
    }
}
