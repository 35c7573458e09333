// embed_backward_float: adds up the gradient of an embedding table by atomic float32 additions.
//
//   grad_table[v, d] += sum over s with tokens[s] == v of grad_out[s, d]
//
// binding 0  tokens      read        (N,)
// binding 1  grad_out    read        (N, C)
// binding 2  grad_table  read_write  (V, C)
// binding 3  dims        uniform     N, C, V
// dispatch: one thread per element of grad_out
// limits: atomic<f32>, a feature of wgpu's driver (shader-float32-atomic), which WebGPU lacks
//!include lm/elements.wgsl
//!include lm/finite.wgsl

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> grad_out: array<f32>;
@group(0) @binding(2) var<storage, read_write> grad_table: array<atomic<f32>>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward_float(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= dims.x * dims.y) { return; }
    let token = tokens[i / dims.y];
    if (token < dims.z && grad_out[i] != 0.0 && is_finite(grad_out[i])) {
        atomicAdd(&grad_table[token * dims.y + i % dims.y], grad_out[i]);
    }
}
