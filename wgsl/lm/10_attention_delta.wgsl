// attention_delta: computes the sum of out * grad_out over each head of each row, for the
// gradients of attention. It also copies the first key that each row sees to the tensor of these
// sums, because the kernels for the gradients read both from one binding.
//
// binding 0  out       read        (N, H * D)
// binding 1  grad_out  read        (N, H * D)
// binding 2  delta     read_write  (N, H) sums, then (N,) starts as f32
// binding 3  starts    read        (N,) first key that each row sees
// binding 4  dims      uniform     N * H, 0, N
// dispatch: one thread per head of a row
//!include lm/elements.wgsl

override HEAD_QUADS: u32 = 16u; // head width / 4

@group(0) @binding(0) var<storage, read> out: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> grad_out: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> delta: array<f32>;
@group(0) @binding(3) var<storage, read> starts: array<u32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn attention_delta(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        var sum = 0.0;
        for (var quad = 0u; quad < HEAD_QUADS; quad++) {
            sum += dot(out[i * HEAD_QUADS + quad], grad_out[i * HEAD_QUADS + quad]);
        }
        delta[i] = sum;
        if (i < dims.z) {
            delta[dims.x + i] = f32(starts[i]);
        }
    }
}
