// normed_gated_half: the inside of a feed-forward network with a gate for few rows: the norm, gate and
// up by weights in half precision, and the activation.
//
//   out = activated(gate) * up
//
// binding 0  params       uniform     sizes
// binding 1  x            read        (N, C), four per element
// binding 2  out          read_write  (N, F)
// binding 3  norm_weight  read        (C,), four per element
// binding 4  weight       read        (rows, C), half precision, four per element
// dispatch: for each row, one workgroup for WORKGROUP_SIZE / ROW_THREADS columns
//!include lm/normed_gated.wgsl

@group(0) @binding(4) var<storage, read> weight: array<vec2<u32>>;

fn four_weights(i: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(weight[i].x), unpack2x16float(weight[i].y));
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn normed_gated_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    store_normed_gated(flat_group(workgroup, workgroups), local_index);
}
